//! Writes files atomically: a file is complete or does not appear.
//!
//! The content goes into a file without a name (`O_TMPFILE`), which is linked to its path when it
//! is complete. It has a temporary name while it replaces another file, as only rename(2) does, and
//! while it is written where the file system has no unnamed files. A writer that is killed then
//! leaves it behind. Its lock (`flock`) tells the next writer of the path if it can be removed.
//!
//! The crate `tempfile` names the file from the start: a killed writer would always leave one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag};
use nix::unistd::{AccessFlags, access, geteuid, linkat};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::Error;

/// Writes `content` to `path`, which has its earlier content until the new one is complete. A
/// killed process can leave a file `.NAME.PID` in the same directory; the next call for `path`
/// removes it. A pipe or a terminal is written to directly.
pub(crate) fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    try_write(path, content).map_err(|source| write_error(path, source))
}

fn write_error(path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    Error::Write { path, source }
}

fn try_write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let existing = path.metadata().ok();
    if existing.as_ref().is_some_and(|found| !found.is_file()) {
        return fill(&OpenOptions::new().write(true).open(path)?, content);
    }
    // A symbolic link is kept, and its target replaced.
    let path = &if existing.is_some() {
        path.canonicalize()?
    } else {
        path.to_owned()
    };
    clear(path);
    match nameless(directory(path)) {
        Ok(file) => {
            let file = MaybeLocked::lock(file);
            fill(&file, content)?;
            let own = format!("/proc/self/fd/{}", file.as_raw_fd());
            let follow = AtFlags::AT_SYMLINK_FOLLOW;
            let link = |to: &Path| linkat(AT_FDCWD, own.as_str(), AT_FDCWD, to, follow);
            match link(path) {
                Ok(()) => Ok(()),
                // Linking does not replace a file, renaming does.
                Err(Errno::EEXIST) => {
                    let other = beside(path);
                    link(&other)?;
                    rename(&other, path)
                }
                Err(errno) => Err(errno.into()),
            }
        }
        Err(error) if has_no_nameless_files(&error) => {
            let (other, file) = named(path)?;
            match fill(&file, content) {
                Ok(()) => rename(&other, path),
                Err(error) => {
                    let _ = fs::remove_file(&other);
                    Err(error)
                }
            }
        }
        Err(error) => Err(error),
    }
}

/// Checks that a profile can be written to `path`, as far as possible without one. Leaves nothing
/// behind that [`Profile::write_file`](crate::Profile::write_file) would not remove.
///
/// # Errors
/// Returns [`Error::Write`].
pub fn check_writable(path: &Path) -> Result<(), Error> {
    // As in `Format::ParquetFolder`.
    let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let permitted = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(error),
        Ok(found) if found.is_dir() && !is_folder => Err(Errno::EISDIR.into()),
        Ok(_) => access(path, AccessFlags::W_OK).map_err(io::Error::from),
        // Its folders are made.
        Err(_) if is_folder && !directory(path).exists() => {
            return check_writable(&directory(path).join(""));
        }
        Err(_) => match nameless(directory(path)) {
            Err(error) if has_no_nameless_files(&error) => {
                named(path).and_then(|(other, _)| fs::remove_file(other))
            }
            other => other.map(drop),
        },
    };
    permitted.map_err(|source| write_error(path, source))
}

/// Creates a file without a name in a directory, for writing and reading. Where the file system has
/// no such files, a killed process can leave a file `.otelctx.PID`, which the next call removes.
pub(crate) fn unlinked(directory: &Path) -> io::Result<File> {
    match nameless(directory) {
        Err(error) if has_no_nameless_files(&error) => {
            let (path, file) = named(&directory.join("otelctx"))?;
            fs::remove_file(path)?;
            // The lock ends here: nobody else can find the file.
            file.try_clone()
        }
        file => file,
    }
}

/// Creates a file without a name near `path`: in its directory, otherwise in the current one or the
/// directory for temporary files, otherwise in memory.
pub(crate) fn spool(path: &Path) -> io::Result<File> {
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    let is_new = path.symlink_metadata().is_err();
    let beside = (is_file || is_new).then(|| directory(path).to_owned());
    let places = [Some(".".into()), Some(std::env::temp_dir())];
    let mut places = beside.into_iter().chain(places.into_iter().flatten());
    match places.find_map(|place| unlinked(&place).ok()) {
        Some(file) => Ok(file),
        None => Ok(memfd_create(c"otelctx-spool", MemfdFlags::CLOEXEC)?.into()),
    }
}

pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Creates a file without a name, which is deleted when its last descriptor is closed.
fn nameless(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_TMPFILE.bits())
        .open(directory)
}

/// Recognizes a file system without unnamed files (overlay before Linux 6.3, NFS, FUSE). A kernel
/// without `O_TMPFILE` returns `EISDIR` (open(2)).
fn has_no_nameless_files(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EOPNOTSUPP | Errno::EISDIR))
}

/// Creates a new file next to `path`. Returns its path, too.
fn named(path: &Path) -> io::Result<(PathBuf, MaybeLocked)> {
    clear(path);
    let other = beside(path);
    let file = File::create_new(&other)?;
    Ok((other, MaybeLocked::lock(file)))
}

/// Returns a path in the same directory with this process's ID.
fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!("{}{}", head(path), std::process::id()))
}

/// Returns the prefix of the names of files next to `path`, before the process ID.
fn head(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.")
}

/// Removes files left behind by killed writers of `path`. Failures are ignored.
fn clear(path: &Path) {
    let head = head(path);
    let entries = fs::read_dir(directory(path)).into_iter().flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(&head));
        let is_id = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        if id.is_some_and(is_id) && is_abandoned(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns true if a file belongs to this user and has no active writer.
fn is_abandoned(path: &Path) -> bool {
    // Where others can write, it can be anything: a link, a pipe without a writer.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path);
    let Ok(file) = file else { return false };
    let is_own = |found: fs::Metadata| found.is_file() && found.uid() == geteuid().as_raw();
    file.metadata().is_ok_and(is_own) && Flock::lock(file, LOCK).is_ok()
}

const LOCK: FlockArg = FlockArg::LockExclusiveNonblock;

/// A file that is locked while it is open, if its file system supports locks.
enum MaybeLocked {
    Locked(Flock<File>),
    Unlocked(File),
}

impl MaybeLocked {
    fn lock(file: File) -> Self {
        Flock::lock(file, LOCK).map_or_else(|(file, _)| Self::Unlocked(file), Self::Locked)
    }
}

impl Deref for MaybeLocked {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Self::Locked(file) => file,
            Self::Unlocked(file) => file,
        }
    }
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to).inspect_err(|_| {
        let _ = fs::remove_file(from);
    })
}

fn fill(file: &File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut writer = BufWriter::with_capacity(1 << 16, file);
    content(&mut writer)?;
    writer.flush()
}
