//! Messages in files, which outlive the process.
//!
//! Each message is a file of its own, whose content is the OTLP message and nothing else: `otelctx report FILE` reads it,
//! and it can be posted to a collector as it is. Its name has the rest: a number that gives the order, the number of samples,
//! the size and the CRC-32 (IEEE 802.3): `00000000000000000007-412-90210-1c291ca3.otlp`.
//!
//! A file is written under another name, and renamed: after a kill, it is there as a whole or not at all. After a loss of
//! power it may be truncated or have other content, which its size and CRC reveal.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Crc;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;

/// The extension of messages.
const EXTENSION: &str = ".otlp";
/// The name under which a message is written.
const UNFINISHED: &str = "unfinished";
/// The file whose lock says that a process uses the directory.
const LOCK: &str = "lock";
/// Maximum size of a message in a file, in bytes. Recorders write messages of a few MiB.
const MAX_MESSAGE: u64 = 256 << 20;
/// Maximum number of files in the directory.
const MAX_FILES: usize = 1_000_000;
/// Maximum number of a message: as many per second would take centuries.
const MAX_SEQUENCE: u64 = 1 << 62;

/// Attempts to lock a folder, and the time between two.
const LOCK_ATTEMPTS: u32 = 41;
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// Why a directory cannot keep messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// It cannot be created, opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The directory, or a file in it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users may write to it, so they could have this process send anything.
    #[error("{}: other users may write to it", path.display())]
    Writable {
        /// The directory.
        path: PathBuf,
    },
    /// Another process uses it.
    #[error("{}: another process keeps its messages there", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It has too many files to be a queue.
    #[error("{}: it has more than {MAX_FILES} files", path.display())]
    TooManyFiles {
        /// The directory.
        path: PathBuf,
    },
}

/// Locks a folder for this process, by a file with the name `lock` in it, until the value is dropped. Returns `None` if another
/// process still has it locked after two seconds: child processes of one that was killed have its lock until they have ended, too.
///
/// # Errors
/// Returns the error of opening or locking the file.
pub fn lock_folder(folder: &Path) -> io::Result<Option<Flock<File>>> {
    lock_with_retries(folder, || std::thread::sleep(LOCK_INTERVAL))
}

fn lock_with_retries(folder: &Path, mut pause: impl FnMut()) -> io::Result<Option<Flock<File>>> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(folder.join(LOCK))?;
    for attempt in 1..=LOCK_ATTEMPTS {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, errno)) => return Err(errno.into()),
        };
        if attempt < LOCK_ATTEMPTS {
            pause();
        }
    }
    Ok(None)
}

/// What the name of a message's file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    pub(crate) samples: u64,
    pub(crate) size: u64,
    crc: u32,
}

impl Stored {
    pub(crate) fn of(sequence: u64, samples: u64, message: &[u8]) -> Self {
        Self {
            sequence,
            samples,
            size: message.len() as u64,
            crc: crc(message),
        }
    }

    fn name(self) -> String {
        let Self {
            sequence,
            samples,
            size,
            crc,
        } = self;
        format!("{sequence:020}-{samples}-{size}-{crc:08x}{EXTENSION}")
    }

    /// Parses a name. `None` if it is not exactly as it would be written.
    fn parse(name: &OsStr) -> Option<Self> {
        let text = name.to_str()?;
        let mut fields = text.strip_suffix(EXTENSION)?.split('-');
        let mut next = || fields.next();
        let stored = Self {
            sequence: next()?.parse().ok()?,
            samples: next()?.parse().ok()?,
            size: next()?.parse().ok()?,
            crc: u32::from_str_radix(next()?, 16).ok()?,
        };
        let is_possible = stored.sequence <= MAX_SEQUENCE && stored.size <= MAX_MESSAGE;
        // Samples take several bytes each; a wrong number would make sums meaningless.
        let is_possible = is_possible && stored.samples <= stored.size;
        (is_possible && stored.name() == text).then_some(stored)
    }
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// The messages that were found in a directory.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Sorted by their numbers.
    pub(crate) messages: Vec<Stored>,
    /// Messages whose files have another size than their names say.
    pub(crate) damaged: Vec<Stored>,
    /// The first file that is no message, and the number of such files.
    pub(crate) foreign: Option<(PathBuf, usize)>,
}

/// A directory with messages, which only this process uses.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Its name in messages.
    path: PathBuf,
    /// The open directory that was checked, as a path: what `path` leads to may change.
    opened: PathBuf,
    _directory: File,
    _lock: Flock<File>,
}

impl Directory {
    /// Opens a directory for this process alone, and creates it if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Self, DirectoryError> {
        let error = |path: &Path, source| DirectoryError::Io {
            path: path.to_owned(),
            source,
        };
        let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(|source| error(path, source))?;
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).bits())
            .open(path)
            .map_err(|source| error(path, source))?;
        let found = directory.metadata();
        let found = found.map_err(|source| error(path, source))?;
        let is_own = found.uid() == geteuid().as_raw() || found.uid() == 0;
        if !is_own || found.mode() & 0o022 != 0 {
            return Err(DirectoryError::Writable {
                path: path.to_owned(),
            });
        }
        let opened = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        match lock_folder(&opened) {
            Ok(Some(lock)) => Ok(Self {
                path: path.to_owned(),
                opened,
                _directory: directory,
                _lock: lock,
            }),
            Ok(None) => Err(DirectoryError::InUse {
                path: path.to_owned(),
            }),
            Err(source) => Err(error(&path.join(LOCK), source)),
        }
    }

    /// Finds the messages of an earlier process. Removes the one that it did not finish, and damaged ones.
    pub(crate) fn find(&self) -> Result<Found, DirectoryError> {
        let error = |source| DirectoryError::Io {
            path: self.path.clone(),
            source,
        };
        let mut found = Found::default();
        let entries = fs::read_dir(&self.opened).map_err(error)?;
        for (index, entry) in entries.enumerate() {
            let entry = entry.map_err(error)?;
            if index >= MAX_FILES {
                let path = self.path.clone();
                return Err(DirectoryError::TooManyFiles { path });
            }
            let name = entry.file_name();
            if name == UNFINISHED {
                let _ = fs::remove_file(entry.path());
            } else if let Some(stored) = Stored::parse(&name) {
                let is_damaged = match entry.path().symlink_metadata() {
                    Ok(metadata) => !metadata.is_file() || metadata.len() != stored.size,
                    Err(error) => Self::is_damage(&error),
                };
                if is_damaged {
                    // If it stays, the next process finds it again.
                    let _ = self.remove(stored);
                    found.damaged.push(stored);
                } else {
                    found.messages.push(stored);
                }
            } else if name != LOCK {
                let path = self.path.join(&name);
                let (_, number) = found.foreign.get_or_insert((path, 0));
                *number += 1;
            }
        }
        found.messages.sort_unstable();
        Ok(found)
    }

    /// Writes a message, as a whole or not at all.
    pub(crate) fn write(&self, stored: Stored, message: &[u8]) -> io::Result<()> {
        let unfinished = self.opened.join(UNFINISHED);
        let written = self.write_to(&unfinished, message);
        let renamed = written.and_then(|()| fs::rename(&unfinished, self.file(stored)));
        if renamed.is_err() {
            // It would take room that is wanted.
            let _ = fs::remove_file(&unfinished);
        }
        renamed
    }

    fn write_to(&self, path: &Path, message: &[u8]) -> io::Result<()> {
        // Not into a file that another process has opened or linked here.
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(message)
    }

    /// Reads a message. The error says what is wrong with its file.
    pub(crate) fn read(&self, stored: Stored) -> io::Result<Vec<u8>> {
        let mut options = OpenOptions::new();
        // A pipe in its place would block.
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let file = options
            .read(true)
            .custom_flags(flags)
            .open(self.file(stored))?;
        let wrong = |message: &str| io::Error::new(ErrorKind::InvalidData, message);
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() != stored.size {
            return Err(wrong("its size is not that in its name"));
        }
        let mut message = Vec::with_capacity(stored.size as usize);
        // It may grow meanwhile.
        file.take(stored.size + 1).read_to_end(&mut message)?;
        if message.len() as u64 != stored.size || crc(&message) != stored.crc {
            return Err(wrong("its CRC is not that in its name"));
        }
        Ok(message)
    }

    /// Returns true if a message cannot be read because its file is not what was written, and will not be.
    pub(crate) fn is_damage(error: &io::Error) -> bool {
        let is_link = error.raw_os_error() == Some(Errno::ELOOP as i32);
        is_link || matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::NotFound)
    }

    /// Removes a message.
    ///
    /// # Errors
    /// The path and the system's error. The next process finds the file again.
    pub(crate) fn remove(&self, stored: Stored) -> Result<(), (PathBuf, io::Error)> {
        let file = self.file(stored);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                // It may have been replaced by a directory.
                fs::remove_dir(&file).map_err(|_| (self.path(stored), error))
            }
            _ => Ok(()),
        }
    }

    fn file(&self, stored: Stored) -> PathBuf {
        self.opened.join(stored.name())
    }

    /// Returns the path for messages about it.
    pub(crate) fn path(&self, stored: Stored) -> PathBuf {
        self.path.join(stored.name())
    }
}

#[cfg(test)]
pub(crate) mod tests;
