//! The files that a process has open. Only [`Process::reopen_file`] opens one of them: the others read what `/proc` says
//! of descriptors, which has no effect on a FIFO, a device or a file server.

use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{Mode, fstatat};

use super::{Process, numbers};
use crate::Error;

/// Maximum number of descriptors whose paths are read. Files that a runtime opens at its start have the first ones.
const MAX_DESCRIPTORS: usize = 1024;

impl Process {
    /// Opens a regular file that the process has open, or has inherited, by the path with which it was opened: of the first
    /// 1,024 descriptors, that of the lowest number for whose path `is_wanted` returns true.
    pub fn reopen_file(&self, is_wanted: impl Fn(&Path) -> bool) -> Option<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut directory = Dir::openat(&self.directory, "fd", flags, Mode::empty()).ok()?;
        let descriptors = numbers(&mut directory).map_while(Result::ok);
        let entries = descriptors.map(|number| PathBuf::from(format!("fd/{number}")));
        let mut wanted = entries.take(MAX_DESCRIPTORS).filter(|entry| {
            let path = readlinkat(&self.directory, entry.as_path());
            path.is_ok_and(|path| is_wanted(Path::new(&path)))
        });
        wanted.find_map(|entry| self.open_regular(&entry, |_| true))
    }

    /// What a descriptor refers to, as `/proc/PID/fd` shows it: a path, or a name such as `socket:[4711]`, `pipe:[4711]` and
    /// `anon_inode:[eventfd]`. A path ends with ` (deleted)` if the file was deleted.
    #[doc(alias = "readlink")]
    pub fn descriptor_link(&self, number: i32) -> Result<OsString, Error> {
        let entry = format!("fd/{number}");
        readlinkat(&self.directory, entry.as_str())
            .map_err(|errno| self.error(&entry, "read a descriptor", errno.into()))
    }

    /// Whether a descriptor was opened for reading and for writing.
    pub fn descriptor_access(&self, number: i32) -> Result<(bool, bool), Error> {
        let entry = format!("fd/{number}");
        // The link's own mode (fs/proc/fd.c, tid_fd_update_inode), not its target's.
        let found = fstatat(
            &self.directory,
            entry.as_str(),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        );
        let found = found.map_err(|errno| self.error(&entry, "read a descriptor", errno.into()))?;
        let mode = Mode::from_bits_truncate(found.st_mode);
        Ok((mode.contains(Mode::S_IRUSR), mode.contains(Mode::S_IWUSR)))
    }

    /// `/proc/PID/fdinfo` of a descriptor, at most `limit` bytes of it.
    pub fn descriptor_info(&self, number: i32, limit: u64) -> Result<Vec<u8>, Error> {
        self.read_entry(&format!("fdinfo/{number}"), limit)
    }

    /// Calls `visit` with each descriptor's number until it breaks. May not end, like
    /// [`Self::visit_thread_ids`].
    pub fn visit_descriptors(
        &self,
        visit: &mut dyn FnMut(i32) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let error = |errno: Errno| self.error("fd", "list the descriptors", errno.into());
        let mut directory =
            Dir::openat(&self.directory, "fd", flags, Mode::empty()).map_err(error)?;
        for number in numbers(&mut directory) {
            if visit(number.map_err(error)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// A table of the process's network namespace, such as `tcp6`, at most `limit` bytes of it.
    pub fn network_table(&self, name: &str, limit: u64) -> Result<Vec<u8>, Error> {
        self.read_entry(&format!("net/{name}"), limit)
    }

    /// The identity of the process's namespace of a kind, such as `net:[4026531840]` of `net`.
    pub fn namespace(&self, kind: &str) -> Result<OsString, Error> {
        let entry = format!("ns/{kind}");
        readlinkat(&self.directory, entry.as_str())
            .map_err(|errno| self.error(&entry, "read a namespace", errno.into()))
    }

    /// Opens the process's namespace of a kind, for setns(2).
    pub fn open_namespace(&self, kind: &str) -> Result<File, Error> {
        let entry = format!("ns/{kind}");
        self.open_entry(&entry)
            .map_err(|error| self.error(&entry, "open a namespace", error))
    }
}
