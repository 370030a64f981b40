//! This crate's state for each thread.
//!
//! Everything here is accessed through raw pointers and changed only by its own thread. A signal
//! handler may attach and detach at any time: it leaves the slot and the list of attached blocks as
//! it found them, and touches nothing else.

use std::ptr;

use super::attached_blocks::{AttachedBlocks, Entry};
use super::chain::{self, Below};
use super::pool::{self, Pool};
use super::shared_block::{self, FreeBlocks};
use crate::arch;

/// The calling thread's [`State`]. It is not `Send`, so it never belongs to another thread.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct ThreadState(*mut State);

impl ThreadState {
    /// # Safety
    /// `state` belongs to the calling thread.
    #[inline(always)]
    pub(crate) unsafe fn new(state: *mut State) -> Self {
        Self(state)
    }

    #[inline(always)]
    pub(super) fn get(self) -> *mut State {
        self.0
    }
}

/// A thread's state; all zeroes when the thread starts.
#[repr(C)]
pub(crate) struct State {
    /// Address of this thread's `otel_thread_ctx_v1`; null until first needed.
    slot: *mut *mut u8,
    /// The record that [`super::ThreadContext`] rewrites; null until first needed.
    pub(super) in_place: *mut u8,
    /// Equal to `in_place`, or null if something was cut or skipped since the record was last
    /// replaced. So replacing it reads only one word.
    pub(super) in_place_whole: *mut u8,
    pub(super) exit: Exit,
    pub(super) pool: Pool,
    pub(super) shared: AttachedBlocks,
    pub(super) free_shared: FreeBlocks,
    /// The record of [`super::swap_current`] or [`super::set_current`]. Nothing is below it.
    pub(super) current: Entry,
    /// True if `current` was set by [`super::set_current`], and has no reference.
    pub(super) current_is_unowned: bool,
    /// Releases the thread's data about shared records; null until it uses any, so that programs
    /// that never do are not linked with it.
    pub(super) end_shared: Option<unsafe fn(ThreadState)>,
}

/// The progress of the thread in freeing its memory at its end.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
pub(super) enum Exit {
    NotPrepared = 0,
    Prepared,
    /// Our destructor has run; others may still run and use records.
    Begun,
}

impl State {
    /// The initial state of a thread.
    #[cfg_attr(all(target_os = "linux", not(miri)), allow(dead_code))]
    pub(crate) const ZERO: Self = Self {
        slot: ptr::null_mut(),
        in_place: ptr::null_mut(),
        in_place_whole: ptr::null_mut(),
        exit: Exit::NotPrepared,
        pool: Pool::EMPTY,
        shared: AttachedBlocks::NONE,
        free_shared: FreeBlocks::NONE,
        current: Entry::NONE,
        current_is_unowned: false,
        end_shared: None,
    };
}

/// Returns this thread's slot.
#[inline(always)]
pub(super) fn slot(state: ThreadState) -> *mut *mut u8 {
    // SAFETY: `state` is this thread's.
    let slot = unsafe { (*state.get()).slot };
    if slot.is_null() {
        return find_slot(state);
    }
    slot
}

/// Returns [`slot`], if it was called before on this thread.
#[inline(always)]
pub(super) fn found_slot(state: ThreadState) -> *mut *mut u8 {
    // SAFETY: `state` is this thread's.
    unsafe { (*state.get()).slot }
}

#[cold]
#[inline(never)]
fn find_slot(state: ThreadState) -> *mut *mut u8 {
    let slot = arch::slot();
    // SAFETY: `state` is this thread's.
    unsafe { (*state.get()).slot = slot };
    slot
}

/// Ensures that the thread's memory is freed when it ends.
#[cold]
#[inline(never)]
pub(super) fn prepare_exit(state: ThreadState) {
    struct OnExit;
    impl Drop for OnExit {
        fn drop(&mut self) {
            // SAFETY: a thread-local's destructor runs in its own thread.
            unsafe { begin_exit(arch::state()) };
        }
    }
    thread_local! {
        static ON_EXIT: OnExit = const { OnExit };
    }
    // SAFETY: `state` is this thread's.
    unsafe {
        if (*state.get()).exit == Exit::NotPrepared {
            (*state.get()).exit = Exit::Prepared;
            // It can be destroyed already only if `exit` is `Begun`.
            let _ = ON_EXIT.try_with(|_| ());
        }
    }
}

/// # Safety
/// The thread is ending.
unsafe fn begin_exit(state: ThreadState) {
    // SAFETY: `state` is this thread's; the caller ensures that it is ending.
    unsafe {
        (*state.get()).exit = Exit::Begun;
        let in_place = (*state.get()).in_place;
        if !in_place.is_null() {
            (*state.get()).in_place = ptr::null_mut();
            (*state.get()).in_place_whole = ptr::null_mut();
            pool::release(state, in_place, pool::LARGEST);
        }
        clear_slot(state);
        pool::release_forgotten(state);
        end_shared(state);
        pool::free_if_unused(state);
    }
}

/// [`prepare_exit`] for a thread that uses shared records.
pub(super) fn prepare_shared_exit(state: ThreadState) {
    // SAFETY: `state` is this thread's.
    unsafe {
        (*state.get()).end_shared = Some(end_shared_records);
        prepare_exit(state);
    }
}

/// Releases the thread's data about shared records. Its slot was [cleared](clear_slot).
///
/// # Safety
/// The thread is ending.
pub(super) unsafe fn end_shared(state: ThreadState) {
    // SAFETY: `state` is this thread's; the caller ensures that it is ending.
    unsafe {
        if let Some(end_shared) = (*state.get()).end_shared {
            end_shared(state);
        }
    }
}

/// # Safety
/// Same as [`end_shared`].
unsafe fn end_shared_records(state: ThreadState) {
    // SAFETY: `state` is this thread's; the caller ensures that it is ending.
    unsafe {
        // If another publisher's record is in the slot, it may restore this one.
        let mut current = std::mem::replace(&mut (*state.get()).current, Entry::NONE);
        if std::mem::take(&mut (*state.get()).current_is_unowned) {
            current.block = ptr::null_mut();
        }
        if slot(state).read_volatile().is_null() {
            current.release(state);
        }
        AttachedBlocks::clear_at_exit(state);
        shared_block::give_back_all(state);
    }
}

/// Clears the slot unless it contains a record of another publisher.
#[inline(never)]
pub(super) fn clear_slot(state: ThreadState) {
    // SAFETY: `state` is this thread's.
    unsafe {
        let slot = slot(state);
        let record = slot.read_volatile();
        if is_own(state, record) {
            slot.write_volatile(ptr::null_mut());
        }
    }
}

/// Returns whether the content of the slot is null or belongs to this copy of the crate.
pub(super) fn is_own(state: ThreadState, record: *mut u8) -> bool {
    !matches!(chain::below(state, record), Below::Unknown)
}

/// Returns whether our destructor of the thread has run.
#[inline]
pub(super) fn exit_has_begun(state: ThreadState) -> bool {
    // SAFETY: `state` is this thread's.
    unsafe { (*state.get()).exit == Exit::Begun }
}
