//! Targets for which no thread-local variable is defined: private memory replaces it.

use crate::thread::{State, ThreadState};
use std::cell::UnsafeCell;
use std::ptr;

/// True if other processes can find the variables of this module.
pub(crate) const OBSERVED: bool = false;

struct Variables {
    slot: UnsafeCell<*mut u8>,
    state: UnsafeCell<State>,
}

thread_local! {
    // It needs no destructor, so it stays usable until the thread has ended.
    static VARIABLES: Variables = const {
        Variables {
            slot: UnsafeCell::new(ptr::null_mut()),
            state: UnsafeCell::new(State::ZERO),
        }
    };
}

/// Returns the calling thread's slot.
#[inline]
pub(crate) fn slot() -> *mut *mut u8 {
    VARIABLES.with(|variables| variables.slot.get())
}

/// Returns the calling thread's state in this copy of the crate, zeroed when the thread starts.
#[inline]
pub(crate) fn state() -> ThreadState {
    // SAFETY: the variable is the thread's own.
    VARIABLES.with(|variables| unsafe { ThreadState::new(variables.state.get()) })
}
