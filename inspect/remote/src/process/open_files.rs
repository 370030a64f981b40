//! The files that a process has open.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::Mode;

use super::{Process, numbers};

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
}
