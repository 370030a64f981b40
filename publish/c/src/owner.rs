//! The thread that a handle belongs to.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the thread pointer: one instruction, and different for all threads that run.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let pointer: usize;
        // SAFETY: the thread control block starts with its own address (ELF TLS, variant II).
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, pure, readonly));
        }
        pointer
    }
    #[cfg(target_arch = "aarch64")]
    {
        let pointer: usize;
        // SAFETY: reads a register.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags, pure));
        }
        pointer
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        // SAFETY: always successful.
        unsafe { libc::pthread_self() as usize }
    }
}

/// Returns a number of the calling thread, not 0, that no other thread gets, also after this one
/// has ended: for handles that nothing empties at a thread's end.
pub(crate) fn serial() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Without a destructor, so it can be used until the thread has ended.
        static SERIAL: Cell<usize> = const { Cell::new(0) };
    }
    match SERIAL.get() {
        0 => {
            let serial = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            SERIAL.set(serial);
            serial
        }
        serial => serial,
    }
}

/// The thread that a context belongs to.
pub(crate) struct Owner(AtomicUsize);

/// The owner after its thread has ended.
const NONE: usize = 0;
/// The owner while its thread changes the context. No thread pointer is odd.
const PAUSED: usize = 1;

impl Owner {
    pub(crate) fn this() -> Self {
        Self(AtomicUsize::new(this_thread()))
    }

    #[inline(always)]
    pub(crate) fn is_this(&self) -> bool {
        self.0.load(Ordering::Relaxed) == this_thread()
    }

    /// Returns whether the thread has ended and left the handle empty.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) == NONE
    }

    pub(crate) fn end(&self) {
        self.0.store(NONE, Ordering::Release);
    }

    /// Refuses all use, also by signal handlers, until it is resumed or ended.
    pub(crate) fn pause(&self) {
        self.0.store(PAUSED, Ordering::Relaxed);
    }

    /// Gives a context back to the calling thread after [`pause`](Self::pause).
    pub(crate) fn resume(&self) {
        self.0.store(this_thread(), Ordering::Relaxed);
    }
}
