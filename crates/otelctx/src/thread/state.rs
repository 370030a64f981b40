//! What this crate keeps for each thread, and the two moves of its slot.
//!
//! Everything here is reached through raw pointers and changed by its own thread only. A signal
//! handler may attach and detach in the middle of any of it: it leaves the slot and the list of
//! attached blocks as it found them, and touches nothing else.

use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use super::attached_blocks::AttachedBlocks;
use super::out_of_order::{self, OutOfOrder};
use super::pool::{self, Pool};
use super::shared_block::{self, FreeBlocks};
use crate::arch;

/// A thread's state; all zeroes when the thread starts.
#[repr(C)]
pub(crate) struct State {
    /// Address of this thread's `otel_thread_ctx_v1`; null until it is first needed.
    slot: *mut *mut u8,
    /// The record that [`super::ThreadRecord`] rewrites; null until it is first needed.
    pub(super) in_place: *mut u8,
    /// The same, unless something was cut or left out since it was last replaced: null then, so
    /// that replacing it reads one word.
    pub(super) in_place_whole: *mut u8,
    pub(super) exit: Exit,
    /// Null unless guards were dropped out of order.
    pub(super) out_of_order: *mut OutOfOrder,
    pub(super) pool: Pool,
    pub(super) shared: AttachedBlocks,
    pub(super) free_shared: FreeBlocks,
    /// The block that [`super::swap_current`] has attached, with its reference; null for none.
    pub(super) current: *mut u8,
    /// Releases what the thread has of shared records; null unless it has used any, so that a
    /// program which never does is not linked with it.
    pub(super) end_shared: Option<unsafe fn(*mut State)>,
    /// The slot, once the thread's end is prepared, so that swapping reads one word; null again
    /// after the end.
    pub(super) swap_slot: *mut *mut u8,
}

/// Whether the thread frees its memory when it ends.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
pub(super) enum Exit {
    NotPrepared = 0,
    Prepared,
    /// Its destructors have come to ours; others may still run and use records.
    Begun,
}

impl State {
    /// The state of a thread that starts.
    #[cfg_attr(all(target_os = "linux", not(miri)), allow(dead_code))]
    pub(crate) const ZERO: Self = Self {
        slot: ptr::null_mut(),
        in_place: ptr::null_mut(),
        in_place_whole: ptr::null_mut(),
        exit: Exit::NotPrepared,
        out_of_order: ptr::null_mut(),
        pool: Pool::EMPTY,
        shared: AttachedBlocks::NONE,
        free_shared: FreeBlocks::NONE,
        current: ptr::null_mut(),
        end_shared: None,
        swap_slot: ptr::null_mut(),
    };
}

/// This thread's slot.
///
/// # Safety
/// `state` is the calling thread's.
#[inline(always)]
pub(super) unsafe fn slot(state: *mut State) -> *mut *mut u8 {
    // SAFETY: as the caller promises.
    let slot = unsafe { (*state).slot };
    if slot.is_null() {
        // SAFETY: as above.
        return unsafe { find_slot(state) };
    }
    slot
}

/// [`slot`], after it has been called before on this thread.
///
/// # Safety
/// `state` is the calling thread's.
#[inline(always)]
pub(super) unsafe fn found_slot(state: *mut State) -> *mut *mut u8 {
    // SAFETY: as the caller promises.
    unsafe { (*state).slot }
}

/// # Safety
/// `state` is the calling thread's.
#[cold]
#[inline(never)]
unsafe fn find_slot(state: *mut State) -> *mut *mut u8 {
    let slot = arch::slot();
    // SAFETY: as the caller promises.
    unsafe { (*state).slot = slot };
    slot
}

/// Puts `record` into the slot; returns what was there.
///
/// # Safety
/// `slot` is the calling thread's; `record` points at a record that stays one until the thread
/// ends.
#[inline(always)]
pub(super) unsafe fn attach(slot: *mut *mut u8, record: *mut u8) -> *mut u8 {
    // SAFETY: the slot lives as long as its thread.
    unsafe {
        let previous = slot.read_volatile();
        // A reader stops this thread, so the order of its own instructions is all that counts.
        compiler_fence(Ordering::Release);
        slot.write_volatile(record);
        previous
    }
}

/// Puts `previous` back if `record` is in the slot: the short way of dropping a guard.
///
/// # Safety
/// `slot` is the calling thread's, `previous` what [`attach`] has returned for `record`.
#[inline(always)]
pub(super) unsafe fn detach(slot: *mut *mut u8, record: *mut u8, previous: *mut u8) -> bool {
    // SAFETY: the slot lives as long as its thread.
    unsafe {
        let innermost = slot.read_volatile() == record;
        if innermost {
            slot.write_volatile(previous);
        }
        innermost
    }
}

/// Takes `record`, whose memory is about to be used for another one, out of the slot. It can be
/// there only when its guard was forgotten, or when another publisher has restored it.
///
/// # Safety
/// `state` is the calling thread's.
#[inline]
pub(super) unsafe fn forget_record(state: *mut State, record: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        let slot = slot(state);
        if slot.read_volatile() == record {
            // What the forgotten guard would have restored is not known.
            slot.write_volatile(ptr::null_mut());
        }
        if !(*state).out_of_order.is_null() {
            out_of_order::forget_record(state, record);
        }
    }
}

/// Makes sure that the thread's memory is freed when it ends.
///
/// # Safety
/// `state` is the calling thread's.
#[cold]
#[inline(never)]
pub(super) unsafe fn prepare_exit(state: *mut State) {
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
    // SAFETY: as the caller promises.
    unsafe {
        if (*state).exit == Exit::NotPrepared {
            (*state).exit = Exit::Prepared;
            // It can be gone already only when `exit` is `Begun`.
            let _ = ON_EXIT.try_with(|_| ());
        }
    }
}

/// # Safety
/// `state` is the calling thread's, and the thread ends.
unsafe fn begin_exit(state: *mut State) {
    // SAFETY: as the caller promises.
    unsafe {
        (*state).exit = Exit::Begun;
        (*state).swap_slot = ptr::null_mut();
        out_of_order::clear(state);
        let in_place = (*state).in_place;
        if !in_place.is_null() {
            (*state).in_place = ptr::null_mut();
            (*state).in_place_whole = ptr::null_mut();
            pool::release(state, in_place, pool::LARGEST);
        }
        clear_slot(state);
        pool::release_forgotten(state);
        end_shared(state);
        pool::free_if_unused(state);
    }
}

/// [`prepare_exit`] for a thread that has something of shared records.
///
/// # Safety
/// `state` is the calling thread's.
pub(super) unsafe fn prepare_shared_exit(state: *mut State) {
    // SAFETY: as the caller promises.
    unsafe {
        (*state).end_shared = Some(end_shared_records);
        prepare_exit(state);
    }
}

/// Releases what the thread has of shared records. Its slot was [cleared](clear_slot).
///
/// # Safety
/// `state` is the calling thread's, and the thread ends.
pub(super) unsafe fn end_shared(state: *mut State) {
    // SAFETY: as the caller promises.
    unsafe {
        if let Some(end_shared) = (*state).end_shared {
            end_shared(state);
        }
    }
}

/// # Safety
/// That of [`end_shared`].
unsafe fn end_shared_records(state: *mut State) {
    // SAFETY: as the caller promises.
    unsafe {
        let current = std::mem::replace(&mut (*state).current, ptr::null_mut());
        // Another publisher whose record is in the slot may restore what it has replaced.
        if !current.is_null() && slot(state).read_volatile().is_null() {
            shared_block::release(|| state, current);
        }
        AttachedBlocks::clear_at_exit(state);
        shared_block::give_back_all(state);
    }
}

/// Empties the slot unless it holds a record of another publisher.
///
/// # Safety
/// `state` is the calling thread's.
#[inline(never)]
pub(super) unsafe fn clear_slot(state: *mut State) {
    // SAFETY: as the caller promises.
    unsafe {
        let slot = slot(state);
        let record = slot.read_volatile();
        if pool::class_of(state, record).is_some() || is_attached_shared(state, record) {
            slot.write_volatile(ptr::null_mut());
        }
    }
}

/// Whether a record is a shared one that this thread has attached, by a guard or as its current
/// one.
///
/// # Safety
/// `state` is the calling thread's.
pub(super) unsafe fn is_attached_shared(state: *mut State, record: *mut u8) -> bool {
    // SAFETY: as the caller promises.
    unsafe { !record.is_null() && AttachedBlocks::is_attached(state, record) }
}

/// Whether no guard has attached a record: the slot is empty, or it was written without a guard,
/// which ends what guards restore.
///
/// # Safety
/// `state` is the calling thread's.
#[inline]
pub(super) unsafe fn is_outermost(state: *mut State, record: *mut u8) -> bool {
    // SAFETY: as the caller promises.
    record.is_null() || unsafe { record == (*state).in_place || record == (*state).current }
}

/// Whether the thread's destructors have come to ours.
///
/// # Safety
/// `state` is the calling thread's.
#[inline]
pub(super) unsafe fn exit_has_begun(state: *mut State) -> bool {
    // SAFETY: as the caller promises.
    unsafe { (*state).exit == Exit::Begun }
}
