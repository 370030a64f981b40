//! Calls on files: by descriptor, by path, and locks of files.

use super::Inspection;
use super::named::Direction;
use crate::file_locks::{self, Kind};

/// F_SETLKW and F_OFD_SETLKW (<asm-generic/fcntl.h>), the commands of fcntl(2) that wait.
const F_SETLKW: u64 = 7;
const F_OFD_SETLKW: u64 = 38;

impl Inspection<'_> {
    pub(super) fn file(&mut self, call: &'static str) -> Option<String> {
        match call {
            "fsync" | "fdatasync" | "syncfs" | "sync_file_range" | "ftruncate" | "fallocate"
            | "getdents" | "getdents64" | "fstat" | "fstatfs" | "fchmod" | "fchown"
            | "fgetxattr" | "fsetxattr" | "fadvise64" | "readahead" | "lseek" | "fchdir" => {
                Some(self.on_descriptor(call, 0))
            }
            "ioctl" => {
                let named = self.named(self.int(0), Direction::Unknown);
                Some(format!("ioctl on {}", self.with_peer(named)))
            }
            "flock" => Some(self.lock(call, Kind::Flock)),
            "fcntl" => match self.argument(1) & u64::from(u32::MAX) {
                F_SETLKW => Some(self.lock("fcntl lock", Kind::Posix)),
                F_OFD_SETLKW => Some(self.lock("fcntl lock", Kind::Description)),
                _ => Some(self.on_descriptor(call, 0)),
            },
            "open" | "creat" => self.on_path("open", 0),
            "openat" | "openat2" => self.on_path("open", 1),
            "stat" | "lstat" | "access" | "unlink" | "mkdir" | "rmdir" | "rename" | "link"
            | "symlink" | "readlink" | "chdir" | "chmod" | "chown" | "lchown" | "truncate"
            | "statfs" | "execve" | "mknod" | "utimes" | "getxattr" | "setxattr" | "umount2" => {
                self.on_path(call, 0)
            }
            "newfstatat" | "statx" | "faccessat" | "faccessat2" | "unlinkat" | "mkdirat"
            | "renameat" | "renameat2" | "linkat" | "readlinkat" | "fchmodat" | "fchownat"
            | "mknodat" | "utimensat" | "execveat" | "mount" => self.on_path(call, 1),
            "sendfile" => Some(self.between(call, 1, 0)),
            "splice" | "copy_file_range" => Some(self.between(call, 0, 2)),
            "tee" => Some(self.between(call, 0, 1)),
            "vmsplice" => Some(self.transfer(call, Direction::To)),
            "mq_timedreceive" => self.with_preposition(call, Direction::From),
            "mq_timedsend" => self.with_preposition(call, Direction::To),
            _ => None,
        }
    }

    fn on_descriptor(&mut self, call: &str, index: usize) -> String {
        let named = self.named(self.int(index), Direction::Unknown);
        format!("{call} {}", self.with_peer(named))
    }

    fn on_path(&self, call: &str, index: usize) -> Option<String> {
        Some(format!("{call} {}", self.path(index)?))
    }

    /// A call that moves data from one descriptor to another.
    fn between(&mut self, call: &str, from: usize, to: usize) -> String {
        let from = self.named(self.int(from), Direction::From);
        let to = self.named(self.int(to), Direction::To);
        format!(
            "{call} from {} to {}",
            self.with_peer(from),
            self.with_peer(to)
        )
    }

    /// A lock of a file, and the process that has it.
    fn lock(&mut self, call: &str, kind: Kind) -> String {
        let text = self.on_descriptor(call, 0);
        let holder = file_locks::holder(self.process.pid(), kind);
        let peer = holder.and_then(|pid| self.machine.peers.get(pid, self.thread.now));
        match peer {
            Some(peer) => {
                let text = format!("{text} held by {} ({})", peer.pid, peer.label());
                self.peer = Some(peer);
                text
            }
            None => text,
        }
    }
}
