//! This process's table of file descriptors.

use std::fs::File;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::close;

/// Number of descriptors to have room for: those of 1,000 threads' files, in a table of 32 KiB.
const ENOUGH: u64 = 4096;

/// Makes room for descriptors while this process has only one thread.
///
/// A table that several threads share doubles only after an RCU grace period of 4 to 20 ms
/// (fs/file.c, `expand_fdtable`), from 64 entries on: `dump` would spend most of its time waiting.
pub(crate) fn reserve() {
    // If this fails, the table grows later.
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE)
        && let Ok(last) = i32::try_from(limit.min(ENOUGH).saturating_sub(1))
        && let Ok(any) = File::open("/proc/self")
        && let Ok(highest) = fcntl(&any, FcntlArg::F_DUPFD_CLOEXEC(last))
    {
        let _ = close(highest);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The number of entries, which the kernel rounds up to a power of two.
    fn size() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("FDSize:"));
        line.unwrap()["FDSize:".len()..].trim().parse().unwrap()
    }

    #[test]
    fn work_on_its_own_thread_has_room_for_descriptors() {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let size = crate::stop::on_own_thread(size).unwrap();
        assert!(size >= limit.min(ENOUGH), "{size} of {limit}");
    }
}
