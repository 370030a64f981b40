//! Reads and decodes a recorded OTLP file. The file may be hostile: worker processes decode it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_worker::{self as worker, Failure, Limits};
use prost::Message;
use serde::de::DeserializeOwned;

use crate::error::{Error, InputFormat};
use crate::messages::Messages;
use crate::rules;

/// Maximum size of a file, in bytes.
const MAX_FILE: u64 = 1 << 30;
/// 4.2 million samples in a file of 252 MiB took 34 s of CPU time on a busy machine; the largest
/// file has four times as many. A report with as many traces takes half a GiB of output.
pub(crate) const LIMITS: Limits = Limits {
    memory: 4 << 30,
    output: 1 << 30,
    cpu: 600,
    timeout: 1800,
};

fn too_large(path: &Path, reason: String) -> Error {
    let path = path.to_owned();
    Error::TooLarge { path, reason }
}

fn malformed(path: &Path, reason: String) -> Error {
    let path = path.to_owned();
    Error::Malformed {
        path,
        format: InputFormat::Otlp,
        reason,
    }
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    Error::Read { path, source }
}

fn file_too_large(path: &Path) -> Error {
    too_large(path, format!("it has more than {} MiB", MAX_FILE >> 20))
}

/// Describes a message that cannot be decoded: most often, half of a file.
fn damage(error: &prost::DecodeError) -> String {
    format!("it was cut off, or is not a recording ({error})")
}

/// Decodes all messages of a file and checks that they violate no rule.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<ProfilesData>, String> {
    let decoded = Messages::new(bytes)
        .map(|message| ProfilesData::decode(message?).map_err(|error| damage(&error)));
    let data = decoded.collect::<Result<Vec<_>, _>>()?;
    let violation = data.iter().flat_map(rules::violations).next();
    violation.map_or(Ok(data), Err)
}

/// Runs `work` on the file at `path` in a worker process. It writes a value as JSON, or a sentence
/// that names the file's defect.
pub(crate) fn in_worker<T: DeserializeOwned>(
    path: &Path,
    limits: Limits,
    work: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<T, Error> {
    let output = run(path, limits, work)?;
    let answer: Result<T, String> =
        serde_json::from_slice(&output).map_err(|_| died(path, limits))?;
    answer.map_err(|reason| malformed(path, reason))
}

/// Runs `work` on the file at `path` in a worker process, and returns its output.
pub(crate) fn run(
    path: &Path,
    limits: Limits,
    work: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<Vec<u8>, Error> {
    worker::run(limits, work).map_err(|failure| match failure {
        Failure::TimedOut => too_large(path, "decoding it takes too long".to_owned()),
        Failure::OutputTooLarge => {
            let limit = limits.output >> 20;
            too_large(path, format!("its result takes more than {limit} MiB"))
        }
        Failure::NotStarted => unreadable(path, io::Error::other("cannot start a worker process")),
        _ => died(path, limits),
    })
}

pub(crate) fn died(path: &Path, limits: Limits) -> Error {
    let limit = limits.memory >> 20;
    too_large(
        path,
        format!("decoding it takes more than {limit} MiB of memory, or ten minutes of CPU time"),
    )
}

/// Number of bytes in which a text's kind is searched.
const MAX_HEAD: usize = 4096;

/// Describes a file of another format, by its first bytes, and says what opens it.
pub(crate) fn other_format(bytes: &[u8], path: &Path) -> Option<String> {
    // In a file of several messages, after the first one's size.
    let bytes = Messages::new(bytes).next()?.ok()?;
    let head = &bytes[..bytes.len().min(MAX_HEAD)];
    let file = path.display();
    let json = "it is JSON; configure the Collector's file exporter with `format: proto`";
    Some(match head {
        [0x1f, 0x8b, ..] => {
            let mut first = [0];
            let read = MultiGzDecoder::new(head).read_exact(&mut first);
            if read.is_ok() && first == *b"{" {
                "it is compressed JSON, as for the Firefox Profiler: load it at \
                    https://profiler.firefox.com"
                    .to_owned()
            } else {
                format!(
                    "it is compressed: uncompress it first with `gzip -d`, or, if it is for pprof, \
                    open it with `go tool pprof -http=: {file}`"
                )
            }
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            "it is compressed; configure the Collector's file exporter without `compression`".into()
        }
        [b'P', b'A', b'R', b'1', ..] => {
            "it is Parquet: query it with DuckDB or ClickHouse, or report the recording that it was \
                made of"
                .into()
        }
        [b'P', b'E', b'R', b'F', b'I', b'L', b'E', ..] => {
            format!(
                "it is a recording of perf: `perf report -i {file}`, or `perf script -i {file} | otelctx report -`"
            )
        }
        // elf(5): e_type is ET_CORE.
        [0x7f, b'E', b'L', b'F', ..] if head.get(16) == Some(&4) => {
            format!("it is a core file: `otelctx dump --core {file}`")
        }
        [0x7f, b'E', b'L', b'F', ..] => {
            format!(
                "it is a program or library: `otelctx check {file}`, or `otelctx record -- {file}`"
            )
        }
        [b'{', ..] if contains(head, b"speedscope") => {
            "it is for speedscope: load it at https://www.speedscope.app".into()
        }
        [b'{', ..] => json.into(),
        _ if head.to_ascii_lowercase().starts_with(b"<!doctype html") => {
            "it is a page, open it in a browser".into()
        }
        _ if head.starts_with(b"<?xml") || head.starts_with(b"<svg") => {
            "it is an SVG image, open it in a browser".into()
        }
        _ => return other_text(head),
    })
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// Describes a text.
fn other_text(head: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // The last character may be cut.
        Err(error) if head.len() == MAX_HEAD && error.valid_up_to() + 4 > MAX_HEAD => {
            std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return None,
    };
    let is_binary = |it: char| it.is_control() && !it.is_whitespace();
    if text.trim().is_empty() || text.contains(is_binary) {
        return None;
    }
    let (frames, number) = text.lines().next()?.rsplit_once(' ').unwrap_or_default();
    let is_folded = !frames.is_empty() && number.parse::<u64>().is_ok();
    Some(if is_folded {
        "it has folded stacks, and a line without a number of samples: it was cut off".into()
    } else {
        "it is a text; `otelctx record -o profile.otlp -p PID` makes a recording".into()
    })
}

/// Reads a recorded file.
///
/// # Errors
/// Returns [`Error::Read`], [`Error::TooLarge`] and [`Error::Malformed`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    // A pipe has no size: `read_from` checks what was read.
    if file.metadata().is_ok_and(|found| found.len() > MAX_FILE) {
        return Err(file_too_large(path));
    }
    read_from(file, path)
}

/// Like [`read`], from a source other than a file; errors name it `path`.
pub(crate) fn read_from(source: impl Read, path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = source.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|source| unreadable(path, source))?;
    if bytes.is_empty() {
        return Err(malformed(path, "it is empty".to_owned()));
    }
    if bytes.len() as u64 > MAX_FILE {
        return Err(file_too_large(path));
    }
    match other_format(&bytes, path) {
        Some(reason) => Err(Error::OtherFormat {
            path: path.to_owned(),
            reason,
        }),
        None => Ok(bytes),
    }
}
