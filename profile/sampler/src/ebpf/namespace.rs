//! The recorder's PID namespace.

use std::io;
use std::os::linux::fs::MetadataExt;

/// The inode of the first PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Returns true if the recorder sees the kernel's own process IDs.
pub(super) fn is_first() -> bool {
    inode().is_ok_and(|inode| inode == 0)
}

/// The inode of the recorder's PID namespace file; zero for the first one.
pub(super) fn inode() -> io::Result<u64> {
    let inode = std::fs::metadata("/proc/self/ns/pid")?.st_ino();
    Ok(if inode == FIRST_NAMESPACE { 0 } else { inode })
}
