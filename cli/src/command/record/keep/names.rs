//! The names of files that are written while a recording is kept: with the time in them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use otelctx_profile::Format;

use crate::output::clock;

/// Returns the paths with a time in the name of each, which is in nanoseconds after 1970-01-01 UTC: of `a/b.svg`,
/// `a/b-2026-11-30T02-40-00Z.svg`. If one of them exists, all get the next number that is free: `…Z-2.svg`.
pub(in crate::command::record) fn with_time(paths: &[PathBuf], unix: u64) -> Vec<PathBuf> {
    let stamp = clock::file_stamp(UNIX_EPOCH + Duration::from_nanos(unix));
    let mut number = 1_u64;
    loop {
        let suffix = match number {
            1 => stamp.clone(),
            number => format!("{stamp}-{number}"),
        };
        let all: Vec<PathBuf> = paths.iter().map(|path| insert(path, &suffix)).collect();
        if !all.iter().any(|path| path.symlink_metadata().is_ok()) {
            return all;
        }
        number += 1;
    }
}

/// Inserts a suffix before the extension, or before the slash of a folder.
fn insert(path: &Path, suffix: &str) -> PathBuf {
    let extension = Format::from_path(path).map_or("", Format::extension);
    let bytes = path.as_os_str().as_bytes();
    // The extension is ASCII, in upper or lower case.
    let (stem, ending) = bytes.split_at(bytes.len() - extension.len());
    let name = [stem, b"-", suffix.as_bytes(), ending].concat();
    OsString::from_vec(name).into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_time_is_before_the_extension() {
        let paths = [
            "checkout.html",
            "/tmp/absent/a.SPEEDSCOPE.json",
            "a.b.pb.gz",
            "hours/",
            ".svg",
            "größe.otlp",
        ];
        let paths = paths.map(PathBuf::from);
        let named = with_time(&paths, 1_709_210_096_007_000_000);
        let expected = [
            "checkout-2024-02-29T12-34-56Z.html",
            "/tmp/absent/a-2024-02-29T12-34-56Z.SPEEDSCOPE.json",
            "a.b-2024-02-29T12-34-56Z.pb.gz",
            "hours-2024-02-29T12-34-56Z/",
            "-2024-02-29T12-34-56Z.svg",
            "größe-2024-02-29T12-34-56Z.otlp",
        ];
        let named: Vec<_> = named.iter().map(|it| it.to_str().unwrap()).collect();
        assert_eq!(named, expected);
        for (path, name) in paths.iter().zip(&named) {
            let of = |path: &Path| Format::from_path(path).unwrap();
            assert_eq!(of(path), of(Path::new(name)));
        }
    }

    #[test]
    fn no_file_is_replaced() {
        let base = std::env::temp_dir().join(format!("otelctx-kept-names-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let paths = ["a.svg", "b.otlp"].map(|name| base.join(name));
        let named = || -> Vec<String> {
            let named = with_time(&paths, 0).into_iter();
            named
                .map(|it| it.file_name().unwrap().to_str().unwrap().to_owned())
                .collect()
        };
        fs::write(base.join("b-1970-01-01T00-00-00Z.otlp"), "").unwrap();
        assert_eq!(
            named(),
            [
                "a-1970-01-01T00-00-00Z-2.svg",
                "b-1970-01-01T00-00-00Z-2.otlp"
            ]
        );
        let dangling = base.join("a-1970-01-01T00-00-00Z-2.svg");
        std::os::unix::fs::symlink("absent", dangling).unwrap();
        assert_eq!(named()[0], "a-1970-01-01T00-00-00Z-3.svg");
        fs::remove_dir_all(&base).unwrap();
    }
}
