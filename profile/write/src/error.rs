//! Errors of writing and reading profiles.

use std::io;
use std::path::PathBuf;

/// An error of writing or reading a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file's extension belongs to no format.
    #[error(
        "{}: unknown file extension; use .otlp, .pb.gz (pprof), .json.gz (Firefox Profiler), .html \
         (page), .svg (flame graph), .speedscope.json or .folded",
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
    #[error("{}: not a complete OTLP profile: {reason}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format and what opens it, as a sentence without a full stop.
        reason: String,
    },
    /// The file is not an OTLP profile, or only a part of one.
    #[error("{}: not a complete OTLP profile: {reason}; record it again with `-o FILE.otlp`", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The defect, as a sentence without a full stop.
        reason: String,
    },
}
