//! This process's own memory.

#[cfg(target_env = "gnu")]
use nix::libc;

/// Size of memory that goes back to the kernel when it is freed, in bytes: unwind tables of large files,
/// and parts of recordings.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;

/// Makes the C library give back large memory that is freed. By itself, it raises that size to what was
/// freed last, up to 32 MiB, and then keeps as much for each thread (mallopt(3), `M_MMAP_THRESHOLD`).
pub(crate) fn give_back_large() {
    // SAFETY: mallopt(3) takes any numbers; one that it does not know has no effect.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
