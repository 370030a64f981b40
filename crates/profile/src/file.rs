//! A file that is there whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;

/// Why a profile could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file's ending names no format.
    #[error(
        "{}: no profile format has this ending; take .otlp, .pb.gz (pprof), .json.gz (Firefox Profiler), .svg (flame graph) or .folded",
        .0.display()
    )]
    Ending(PathBuf),
    /// Writing failed; the file is as it was before.
    #[error("{}: can't be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Reading failed.
    #[error("{}: can't be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file holds something else than an OTLP profile, or only a part of one.
    #[error("{}: not a whole OTLP profile: {reason}; record it again with `-o FILE.otlp`", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Writes `path` by `content`. Whatever happens, also if this process is killed, `path` holds what
/// it held before or all of the new content, and nothing else is left behind.
///
/// What is no regular file (a pipe, a terminal) is written to as it stands.
pub(crate) fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    try_write(path, content).map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

fn try_write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let existing = path.metadata().ok();
    if existing.as_ref().is_some_and(|found| !found.is_file()) {
        return fill(OpenOptions::new().write(true).open(path)?, content).map(drop);
    }
    // A link's target is what is to be written, not the link.
    let path = &if existing.is_some() {
        path.canonicalize()?
    } else {
        path.to_owned()
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // A file without a name: it goes away with its last descriptor.
    let nameless = OpenOptions::new()
        .write(true)
        .custom_flags(OFlag::O_TMPFILE.bits())
        .open(directory);
    match nameless {
        Ok(file) => {
            let file = fill(file, content)?;
            let own = format!("/proc/self/fd/{}", file.as_raw_fd());
            let link = |to: &Path| {
                linkat(
                    AT_FDCWD,
                    own.as_str(),
                    AT_FDCWD,
                    to,
                    AtFlags::AT_SYMLINK_FOLLOW,
                )
            };
            match link(path) {
                Ok(()) => Ok(()),
                // A name is not taken over by linking, only by renaming.
                Err(nix::errno::Errno::EEXIST) => {
                    let other = beside(path);
                    link(&other)?;
                    rename(&other, path)
                }
                Err(errno) => Err(errno.into()),
            }
        }
        // Some file systems (overlay before Linux 6.3, NFS, FUSE) have no such files.
        Err(error) if has_no_nameless_files(&error) => {
            let other = beside(path);
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&other)?;
            match fill(file, content) {
                Ok(_) => rename(&other, path),
                Err(error) => {
                    let _ = std::fs::remove_file(&other);
                    Err(error)
                }
            }
        }
        Err(error) => Err(error),
    }
}

fn has_no_nameless_files(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(nix::errno::Errno::from_raw);
    matches!(
        errno,
        Some(nix::errno::Errno::EOPNOTSUPP | nix::errno::Errno::EISDIR)
    )
}

/// A name of this process's own in the same directory.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to).inspect_err(|_| {
        let _ = std::fs::remove_file(from);
    })
}

fn fill(file: File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut writer = BufWriter::with_capacity(1 << 16, file);
    content(&mut writer)?;
    writer.into_inner().map_err(io::IntoInnerError::into_error)
}
