//! The recorder's PID namespace.

use std::io;
use std::os::linux::fs::MetadataExt;

/// The inode of the first PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Returns the inode of the recorder's PID namespace; zero for the first one.
pub(super) fn inode() -> io::Result<u64> {
    let inode = std::fs::metadata("/proc/self/ns/pid")?.st_ino();
    Ok(if inode == FIRST_NAMESPACE { 0 } else { inode })
}
