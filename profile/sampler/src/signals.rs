//! Work that signals would interrupt.

use std::mem::MaybeUninit;

/// Calls `work` with all signals blocked in this thread; signals that arrive meanwhile are delivered
/// afterwards.
///
/// The kernel's verifier gives up with EAGAIN when a signal arrives (kernel/bpf/verifier.c), and aya then
/// loads the program again with a log, which takes the kernel seconds.
pub(crate) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset(3) initializes the set, and pthread_sigmask(3) only reads it and writes the
    // other one.
    let failed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let result = work();
    if failed == 0 {
        // SAFETY: the call above has initialized `before`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}
