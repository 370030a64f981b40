//! Which thread a handle belongs to.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The calling thread's thread pointer: one instruction, and different for all threads that run.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let pointer: usize;
        // SAFETY: the first word of the thread control block is its own address (ELF TLS, variant II).
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

/// The thread that a record belongs to, and whether the record is attached to it: the thread pointer,
/// whose lowest bit is free. One word, so that attaching and detaching compare once.
pub(crate) struct Owner(AtomicUsize);

const ATTACHED: usize = 1;
/// Of no thread: the thread has ended, or is changing the record.
const NONE: usize = 0;

/// Whether the calling thread may use a record.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Use {
    Detached,
    Attached,
    /// It belongs to another thread.
    Refused,
}

impl Owner {
    pub(crate) fn this() -> Self {
        Self(AtomicUsize::new(this_thread()))
    }

    #[inline(always)]
    pub(crate) fn of_this_thread(&self) -> Use {
        match self.0.load(Ordering::Relaxed).wrapping_sub(this_thread()) {
            0 => Use::Detached,
            ATTACHED => Use::Attached,
            _ => Use::Refused,
        }
    }

    /// Notes that the calling thread attaches the record. False if it is attached, or belongs to
    /// another thread.
    #[inline(always)]
    pub(crate) fn attach(&self) -> bool {
        let this = this_thread();
        let may = self.0.load(Ordering::Relaxed) == this;
        if may {
            self.0.store(this | ATTACHED, Ordering::Relaxed);
        }
        may
    }

    /// Notes that the calling thread detaches the record. False if it is not attached, or belongs to
    /// another thread.
    #[inline(always)]
    pub(crate) fn detach(&self) -> bool {
        let this = this_thread();
        let may = self.0.load(Ordering::Relaxed) == this | ATTACHED;
        if may {
            self.0.store(this, Ordering::Relaxed);
        }
        may
    }

    /// Whether the thread has ended and left the handle empty.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) == NONE
    }

    pub(crate) fn end(&self) {
        self.0.store(NONE, Ordering::Release);
    }

    /// Gives a record back to the calling thread after [`end`](Self::end).
    pub(crate) fn begin(&self) {
        self.0.store(this_thread(), Ordering::Relaxed);
    }
}
