//! Settings from a file, in TOML.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::str::FromStr;

use serde::Deserializer;
use serde::de::Error as _;

use super::Given;
use super::values::parsed;
use crate::error::Error;

/// Maximum size of a file with settings, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Given, Error> {
    let text = content(path).map_err(|why| Error::Settings {
        place: path.display().to_string(),
        why: why.to_string(),
    })?;
    parse(&text).map_err(|(line, column, why)| Error::Settings {
        place: format!("{}:{line}:{column}", path.display()),
        why,
    })
}

fn content(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    file.take(MAX_SIZE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_SIZE {
        let message = format!("it has more than {MAX_SIZE} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

/// Parses settings. An error has its line and column, from 1.
fn parse(text: &str) -> Result<Given, (usize, usize, String)> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.get(..at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |it| it + 1);
        let column = before[start..].chars().count() + 1;
        (line, column, error.message().replace('\n', " "))
    })
}

/// Reads a value as it would be on a command line.
pub(super) fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    parsed(deserializer).map(Some)
}

/// Reads the number of scans for waits in a second.
pub(super) fn wall<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let frequency = parsed(deserializer)?;
    if (1..=1_000).contains(&frequency) {
        Ok(Some(frequency))
    } else {
        Err(D::Error::custom("expected a number from 1 to 1000"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> (usize, usize, String) {
        parse(text).unwrap_err()
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_column() {
        let (line, column, why) = wrong("# agent\ninterval = \"5s\"\n  frequenzy = 99\n");
        assert_eq!((line, column), (3, 3), "{why}");
        assert!(why.starts_with("unknown field `frequenzy`"), "{why}");
        for (text, place, expected) in [
            (
                "frequency = 0",
                (1, 13),
                "expected a number from 1 to 20000",
            ),
            (
                "\ninterval = \"5x\"",
                (2, 12),
                "expected a number of seconds",
            ),
            (
                "cpu-budget = 1.5",
                (1, 14),
                "expected a part of a CPU from 0.1% to 100%",
            ),
            ("interval = true", (1, 12), "expected a text or a number"),
            ("queue-size = \"1TB\"", (1, 14), "expected a size such as"),
            (
                "otlp-protocol = \"http\"",
                (1, 17),
                "\"http\" is neither grpc nor",
            ),
            ("max-values = -1", (1, 14), "invalid digit"),
            ("max-values = 1.5", (1, 14), "invalid digit"),
            ("wall = 5000", (1, 8), "expected a number from 1 to 1000"),
            (
                "listen = \"localhost\"",
                (1, 10),
                "expected a port, such as 9464",
            ),
            (
                "resource = [\"a=b\", \"c\"]",
                (1, 12),
                "expected NAME=VALUE",
            ),
            ("otlp = 1", (1, 8), "invalid type: integer `1`"),
            ("service = [\"a\", 1]", (1, 17), "invalid type: integer `1`"),
            ("otlp = \"a\"\notlp = \"b\"", (2, 1), "duplicate key"),
            ("otlp = ", (1, 8), ""),
            ("[agent]", (1, 2), "unknown field `agent`"),
        ] {
            let (line, column, why) = wrong(text);
            assert_eq!((line, column), place, "{text}: {why}");
            assert!(why.starts_with(expected), "{text}: {why}");
        }
    }

    /// Also as Helm writes them: each number with a fraction.
    #[test]
    fn all_settings_can_be_in_a_file() {
        let all = r#"
            otlp = "http://localhost:4317"
            otlp-protocol = "grpc"
            interval = 10
            queue-dir = "/var/lib/otelctx"
            queue-size = "1GiB"
            queue-memory = 1048576
            stop-timeout = "1m"
            parquet = "/srv/samples"
            parquet-interval = "1m"
            attribute-prefix = "x."
            listen = 9464
            node-name = "node-7"
            pod-logs = "/srv/links"
            frequency = 19.0
            cpu-budget = "0.5%"
            wall = 49
            ptrace = true
            service = ["shop", "web-*"]
            except-service = ["batch"]
            resource = ["k8s.namespace.name=shop"]
            except-resource = ["debug=true"]
            keep-attribute = ["http.route"]
            drop-attribute = ["user.id"]
            max-attributes = 8.0
            max-values = 100
            max-routes = 50
            debug-dir = ["/srv/debug"]
            debuginfod = "https://debuginfod.debian.net"
            no-symbols = true
        "#;
        let given = parse(all).unwrap();
        // A setting that is not in this list has its default.
        let debug = format!("{given:?}");
        for absent in ["None", "[]", "false"] {
            assert!(!debug.contains(absent), "{debug}");
        }
    }
}
