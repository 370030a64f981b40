//! Blocks signals during work that they would interrupt.

use std::mem::MaybeUninit;

/// Calls `work` with all signals blocked in this thread; they are delivered afterwards. On a
/// signal, the kernel's verifier gives up with EAGAIN (kernel/bpf/verifier.c), and aya loads the
/// program again with a log, which takes the kernel seconds.
pub(crate) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: this function owns both sets; sigfillset(3) initializes the one that is read.
    let failed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let result = work();
    if failed == 0 {
        // SAFETY: the successful call above has initialized `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}
