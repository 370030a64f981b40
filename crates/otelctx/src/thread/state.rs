//! What this crate keeps for each thread, and the order in which records were attached.
//!
//! Everything here is reached through a raw pointer and changed by its own thread only. A signal
//! handler may attach and detach in the middle of any of it: it leaves [`State::order`] and the
//! slot as it found them, and touches nothing else.

use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use super::pool::{self, Pool};
use crate::arch;

/// A thread's state; all zeroes when the thread starts.
#[repr(C)]
pub(crate) struct State {
    /// Address of this thread's `otel_thread_ctx_v1`; null until it is first needed.
    slot: *mut *mut u8,
    /// How many guards are alive (low 32 bits), and how many [`Early`] there have been (high 32
    /// bits). A guard keeps the value it made. When the two still agree as it drops, it is the
    /// innermost one and what it replaced is still right.
    pub(super) order: u64,
    /// The record that [`super::ThreadRecord`] rewrites; null until it is first needed.
    pub(super) in_place: *mut u8,
    pub(super) in_place_truncated: bool,
    /// Guards dropped while a later one was alive; null until there is one.
    early: *mut Vec<Early>,
    pub(super) pool: Pool,
    exit: Exit,
}

/// A guard that was dropped before one that was made later: whoever uncovers its place shall
/// restore what it would have restored.
struct Early {
    depth: u32,
    previous: *mut u8,
}

/// Whether the thread frees its memory when it ends.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Exit {
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
        order: 0,
        in_place: ptr::null_mut(),
        in_place_truncated: false,
        early: ptr::null_mut(),
        pool: Pool::EMPTY,
        exit: Exit::NotPrepared,
    };
}

fn depth_of(order: u64) -> u32 {
    order as u32
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

/// Puts `record` into the slot; returns what was there, and the guard's place in the order.
///
/// # Safety
/// `state` is the calling thread's; `record` points at a record that stays one until the thread
/// ends.
#[inline(always)]
pub(super) unsafe fn attach(state: *mut State, record: *mut u8) -> (*mut u8, u64) {
    // SAFETY: the slot lives as long as its thread, whose state this is.
    unsafe {
        let slot = slot(state);
        let order = (&raw mut (*state).order).read_volatile().wrapping_add(1);
        (&raw mut (*state).order).write_volatile(order);
        let previous = slot.read_volatile();
        // A reader stops this thread, so the order of its own instructions is all that counts.
        compiler_fence(Ordering::Release);
        slot.write_volatile(record);
        (previous, order)
    }
}

/// Undoes the [`attach`] that returned `previous` and `order`.
///
/// # Safety
/// `state` is the calling thread's, and the arguments are those of one [`attach`] not undone yet.
#[inline(always)]
pub(super) unsafe fn detach(state: *mut State, record: *mut u8, previous: *mut u8, order: u64) {
    // SAFETY: attach() has found the slot.
    unsafe {
        let slot = (*state).slot;
        let innermost = (&raw mut (*state).order).read_volatile() == order;
        if innermost & (slot.read_volatile() == record) {
            slot.write_volatile(previous);
            (&raw mut (*state).order).write_volatile(order.wrapping_sub(1));
        } else {
            detach_out_of_order(state, record, previous, order);
        }
    }
}

/// [`detach`] when guards were dropped in another order than the reverse of their making, or
/// when another publisher has put its own record into the slot.
///
/// # Safety
/// That of [`detach`].
#[cold]
#[inline(never)]
unsafe fn detach_out_of_order(state: *mut State, record: *mut u8, previous: *mut u8, order: u64) {
    // SAFETY: as the caller promises.
    unsafe {
        if depth_of((*state).order) != depth_of(order) {
            remember_early(state, depth_of(order), previous);
            return;
        }
        let previous = uncover(state, previous);
        let slot = (*state).slot;
        // Otherwise somebody else's record is attached, and it stays.
        if slot.read_volatile() == record {
            slot.write_volatile(previous);
        }
    }
}

/// Notes that the guard at `depth` is gone while a later one is alive.
///
/// # Safety
/// `state` is the calling thread's.
unsafe fn remember_early(state: *mut State, depth: u32, previous: *mut u8) {
    // SAFETY: as the caller promises; `early` is null or came from Box.
    unsafe {
        if (*state).exit == Exit::Begun {
            return;
        }
        if (*state).early.is_null() {
            (*state).early = Box::into_raw(Box::default());
            prepare_exit(state);
        }
        (*(*state).early).push(Early { depth, previous });
        // From here on, no guard made before takes the short way.
        (*state).order = (*state).order.wrapping_add(1 << 32);
    }
}

/// Steps below the innermost guard, and below those beneath it that dropped early. Returns what
/// is right for the slot then: `previous`, or what the last of these would have restored.
///
/// # Safety
/// `state` is the calling thread's.
unsafe fn uncover(state: *mut State, mut previous: *mut u8) -> *mut u8 {
    // SAFETY: as the caller promises; `early` is null or came from Box.
    unsafe {
        let mut order = (*state).order.wrapping_sub(1);
        if !(*state).early.is_null() {
            let early = &mut *(*state).early;
            while let Some(at) = early.iter().position(|e| e.depth == depth_of(order)) {
                previous = early.swap_remove(at).previous;
                order = order.wrapping_sub(1);
            }
        }
        (*state).order = order;
        if (*state).exit == Exit::Begun {
            // The memory of an earlier record may be gone.
            return ptr::null_mut();
        }
        previous
    }
}

/// Takes `record`, whose memory is about to be used for another one, out of the slot. It can be
/// there only when its guard was forgotten.
///
/// # Safety
/// `state` is the calling thread's.
#[inline]
pub(super) unsafe fn forget_record(state: *mut State, record: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        let slot = slot(state);
        if slot.read_volatile() == record {
            forget_attached(state, slot);
        }
    }
}

/// # Safety
/// `state` is the calling thread's and `slot` its slot.
#[cold]
#[inline(never)]
unsafe fn forget_attached(state: *mut State, slot: *mut *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        // What the forgotten guard would have restored is not known, unless what lies below it
        // was dropped early.
        let previous = match depth_of((*state).order) {
            0 => ptr::null_mut(),
            _ => uncover(state, ptr::null_mut()),
        };
        (*state).order = (*state).order.wrapping_add(1 << 32);
        slot.write_volatile(previous);
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
        // Guards that outlive this go the long way.
        (*state).order = (*state).order.wrapping_add(1 << 32);
        if !(*state).early.is_null() {
            drop(Box::from_raw((*state).early));
            (*state).early = ptr::null_mut();
        }
        let in_place = (*state).in_place;
        if !in_place.is_null() {
            (*state).in_place = ptr::null_mut();
            pool::release(state, in_place, pool::LARGEST);
        }
        if pool::owns(state, slot(state).read_volatile()) {
            slot(state).write_volatile(ptr::null_mut());
        }
        pool::free_if_unused(state);
    }
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
