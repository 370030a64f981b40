//! Reads and decodes a recorded OTLP file. The file may be hostile: worker processes decode it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_worker::{self as worker, Failure, Limits};
use prost::Message;
use serde::de::DeserializeOwned;

use crate::error::Error;
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
    Error::Malformed { path, reason }
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    Error::Read { path, source }
}

fn file_too_large(path: &Path) -> Error {
    too_large(path, format!("it has more than {} MiB", MAX_FILE >> 20))
}

/// Decodes all messages of a file and checks that they violate no rule.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<ProfilesData>, String> {
    let decoded = Messages::new(bytes)
        .map(|message| ProfilesData::decode(message?).map_err(|error| error.to_string()));
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

fn died(path: &Path, limits: Limits) -> Error {
    let limit = limits.memory >> 20;
    too_large(
        path,
        format!("decoding it takes more than {limit} MiB of memory, or ten minutes of CPU time"),
    )
}

/// Describes a file of another format, by its first bytes.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Some("it is compressed, like files for pprof and the Firefox Profiler");
    }
    if bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Some(
            "it is compressed; configure the Collector's file exporter without \
            `compression`",
        );
    }
    if bytes.starts_with(b"{") {
        return Some("it is JSON; configure the Collector's file exporter with `format: proto`");
    }
    let is_picture = bytes.starts_with(b"<?xml") || bytes.starts_with(b"<svg");
    is_picture.then_some("it is an SVG image, open it in a browser")
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
    let first = Messages::new(&bytes).next().and_then(Result::ok);
    match first.and_then(other_format) {
        Some(other) => Err(malformed(path, other.to_owned())),
        None => Ok(bytes),
    }
}
