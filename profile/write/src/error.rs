//! Errors of writing and reading profiles.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A format in which recordings are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum InputFormat {
    /// OTLP profiles.
    Otlp,
    /// pprof's `profile.proto`.
    Pprof,
    /// Folded stacks.
    Folded,
    /// The output of `perf script`.
    PerfScript,
}

impl InputFormat {
    /// Describes what a damaged file is not.
    fn complete(self) -> &'static str {
        match self {
            Self::Otlp => "a complete OTLP profile",
            Self::Pprof => "a complete profile for pprof",
            Self::Folded => "complete folded stacks",
            Self::PerfScript => "the complete output of perf script",
        }
    }

    /// Says what helps.
    fn hint(self) -> &'static str {
        match self {
            Self::Otlp => "record it again with `-o FILE.otlp`",
            Self::Pprof => "`go tool pprof -top FILE` reads it with pprof's own code",
            Self::Folded => "a line has frames between semicolons, a space and a number",
            Self::PerfScript => "write it again with `perf script > FILE`",
        }
    }
}

/// An error of writing or reading a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file's extension belongs to no format.
    #[error(
        "{}: unknown file extension; use .otlp, .pb.gz (pprof), .json.gz (Firefox Profiler), .html \
         (page), .svg (flame graph), .speedscope.json, .folded or .parquet, or FOLDER/",
        .0.display()
    )]
    Ending(PathBuf),
    /// Writing failed; the file is as it was before.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Reading failed.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file seems valid, but decoding it exceeds the memory limit.
    #[error("{}: too large: {reason}; record for a shorter time, at a lower frequency (-F) or \
        fewer processes (-p, --filter)", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The required memory, and the limit.
        reason: String,
    },
    /// The file has another format.
    #[error("{}: not a profile that can be read: {reason}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format and what opens it, as a sentence without a full stop.
        reason: String,
    },
    /// The file is not a profile, or only a part of one.
    #[error("{}: not {}: {reason}; {}", path.display(), format.complete(), format.hint())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its format, as far as its content shows.
        format: InputFormat,
        /// The defect, as a sentence without a full stop.
        reason: String,
    },
    /// A file of spans cannot be decoded.
    #[error("{}: not a complete OTLP file of spans: {reason}", path.display())]
    Spans {
        /// The file.
        path: PathBuf,
        /// The defect, as a sentence without a full stop.
        reason: String,
    },
}
