//! Guards that are not dropped in the reverse order of their making.
//!
//! The short way of dropping a guard compares the slot with the guard's own record, and that
//! must be all it does. A guard A that is dropped while a later one B is alive leaves a *gap*: B
//! will want to restore A's record. So that B does not take the short way, the slot then gets a
//! *copy* of the record that is in it, as long as there are gaps. No guard finds a copy to be its
//! own record.
//!
//! The block of a gap is nobody's record: A's record has moved to another block. So a guard that
//! has it as its `previous` knows what it means.
//!
//! A shared record to which an attribute was added has a copy in the slot for the same reason:
//! its guard takes the slow way, and restores what it has replaced.

use super::bytes;
use super::pool;
use super::shared_block;
use super::state::{clear_slot, is_attached_shared, is_outermost, prepare_exit, slot, State};
use std::ptr;

/// How many gaps a thread may have at once: more than there are nested scopes, and few enough to
/// look through. A publisher that leaves its own record in the slot each time makes a gap that
/// nobody ever closes.
const MAX_GAPS: usize = 1024;

/// Gaps and copies of a thread.
#[derive(Default)]
pub(super) struct OutOfOrder {
    gaps: Vec<Gap>,
    copies: Vec<Copy>,
}

/// A guard that was dropped early.
#[derive(Clone, Copy)]
struct Gap {
    /// What its record was: a guard still has this as its `previous`.
    block: *mut u8,
    owner: GapOwner,
    /// What the guard would have restored.
    previous: *mut u8,
}

/// Where the block of a gap goes.
#[derive(Clone, Copy)]
pub(super) enum GapOwner {
    /// Into the thread's pool, with this size class.
    Pool(usize),
    /// To this function, which takes it out of the list of attached blocks: the list keeps the
    /// shared record alive until then.
    Shared(unsafe fn(*mut State, *mut u8)),
}

/// A record that is or was in the slot in place of another one with the same bytes.
struct Copy {
    of: *mut u8,
    block: *mut u8,
    class: usize,
}

/// Drops a guard whose record is not in the slot. Returns false when a later guard is alive: then
/// a gap must be [added](add_gap).
///
/// # Safety
/// `state` is the calling thread's, `previous` what attaching `record` has replaced.
pub(super) unsafe fn detach(state: *mut State, record: *mut u8, previous: *mut u8) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        let slot = slot(state);
        let current = slot.read_volatile();
        // The slot was emptied or written without a guard, so no guard's `previous` counts any
        // more.
        if is_outermost(state, current) {
            clear(state);
            return true;
        }
        let Some(this) = (*state).out_of_order.as_mut() else {
            return false;
        };
        let is_own = |copy: &Copy| copy.block == current && copy.of == record;
        let Some(copy) = this.copies.iter().position(is_own) else {
            return false;
        };
        let copy = this.copies.swap_remove(copy);
        let mut previous = this.close_gaps(state, previous);
        if !this.gaps.is_empty() {
            previous = this.copy_of(state, previous);
        }
        slot.write_volatile(previous);
        pool::put(state, copy.block, copy.class);
        let nothing_left = (*state)
            .out_of_order
            .as_ref()
            .is_some_and(|this| this.gaps.is_empty() && this.copies.is_empty());
        if nothing_left || is_outermost(state, previous) {
            clear(state);
        }
        true
    }
}

/// Notes that a guard was dropped early which had replaced `previous` with `block`. Nobody's
/// record has this block any more.
///
/// # Safety
/// `state` is the calling thread's.
pub(super) unsafe fn add_gap(
    state: *mut State,
    block: *mut u8,
    owner: GapOwner,
    previous: *mut u8,
) {
    // SAFETY: as the caller promises; `out_of_order` is null or came from Box.
    unsafe {
        let this = OutOfOrder::of(state);
        if this.gaps.len() == MAX_GAPS {
            // What is right is not known any more; nothing attached is never wrong.
            clear_slot(state);
            clear(state);
            Gap {
                block,
                owner,
                previous,
            }
            .close(state);
            return;
        }
        for copy in this.copies.iter().filter(|copy| copy.of == block) {
            // A later guard restores it when another publisher has the slot now, and put that
            // guard's own record back.
            pool::invalidate(copy.block);
        }
        this.gaps.push(Gap {
            block,
            owner,
            previous,
        });
        let slot = slot(state);
        slot.write_volatile(this.copy_of(state, slot.read_volatile()));
    }
}

impl OutOfOrder {
    /// That of the thread, made if there is none.
    ///
    /// # Safety
    /// `state` is the calling thread's, and nothing else refers to its `out_of_order`.
    unsafe fn of<'a>(state: *mut State) -> &'a mut Self {
        // SAFETY: as the caller promises; `out_of_order` is null or came from Box.
        unsafe {
            if (*state).out_of_order.is_null() {
                prepare_exit(state);
                (*state).out_of_order = Box::into_raw(Box::default());
            }
            &mut *(*state).out_of_order
        }
    }

    /// What is right in place of `previous`, which may have become a gap, or the copy of one.
    ///
    /// # Safety
    /// `state` is the calling thread's; the guard that knew `previous` is being dropped.
    unsafe fn close_gaps(&mut self, state: *mut State, mut previous: *mut u8) -> *mut u8 {
        loop {
            let copy = self.copies.iter().position(|copy| copy.block == previous);
            let record = copy.map_or(previous, |copy| self.copies[copy].of);
            let Some(gap) = self.gaps.iter().position(|gap| gap.block == record) else {
                return previous;
            };
            let gap = self.gaps.swap_remove(gap);
            previous = gap.previous;
            // SAFETY: as the caller promises.
            unsafe {
                if let Some(copy) = copy {
                    let copy = self.copies.swap_remove(copy);
                    pool::put(state, copy.block, copy.class);
                }
                gap.close(state);
            }
        }
    }

    /// A copy of a record that is about to be in the slot; the record itself when it is not one
    /// of ours, was attached without a guard, or is a copy already; null when it was dropped, which
    /// a forgotten guard allows.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    unsafe fn copy_of(&mut self, state: *mut State, record: *mut u8) -> *mut u8 {
        if self.copies.iter().any(|copy| copy.block == record) {
            return record;
        }
        // SAFETY: the record is this thread's, or a shared one that its list keeps alive.
        unsafe {
            if is_outermost(state, record) {
                return record;
            }
            let class = match pool::class_of(state, record) {
                Some(class) => class,
                None if is_attached_shared(state, record) => shared_block::class(record),
                None => return record,
            };
            if !bytes::is_valid(record) {
                return ptr::null_mut();
            }
            let block = pool::allocate(state, class);
            bytes::copy(record, block);
            self.copies.push(Copy {
                of: record,
                block,
                class,
            });
            block
        }
    }
}

impl Gap {
    /// # Safety
    /// `state` is the calling thread's; no guard has the block as its `previous` any more.
    #[inline(never)]
    unsafe fn close(&self, state: *mut State) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.owner {
                GapOwner::Pool(class) => pool::put(state, self.block, class),
                GapOwner::Shared(remove) => remove(state, self.block),
            }
        }
    }
}

/// The record that a copy in the slot stands for; `None` when it is not a copy.
///
/// # Safety
/// `state` is the calling thread's.
pub(super) unsafe fn original(state: *mut State, block: *mut u8) -> Option<*mut u8> {
    // SAFETY: as the caller promises.
    let this = unsafe { (*state).out_of_order.as_ref() }?;
    let copy = this.copies.iter().find(|copy| copy.block == block)?;
    Some(copy.of)
}

/// Puts a changed copy of a shared record into the slot, in place of the record or of an earlier
/// copy of it.
///
/// # Safety
/// `state` is the calling thread's, `of` a shared record that it has attached, and `block` a valid
/// record of its pool, of this size class.
pub(super) unsafe fn replace_by_copy(state: *mut State, of: *mut u8, block: *mut u8, class: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let this = OutOfOrder::of(state);
        let slot = slot(state);
        let current = slot.read_volatile();
        let earlier = this.copies.iter().position(|copy| copy.block == current);
        this.copies.push(Copy { of, block, class });
        slot.write_volatile(block);
        if let Some(earlier) = earlier {
            let earlier = this.copies.swap_remove(earlier);
            pool::put(state, earlier.block, earlier.class);
        }
    }
}

/// Writes the change of an attached record into its copies as well.
///
/// # Safety
/// `state` is the calling thread's, and `record` a record of its pool.
#[cold]
#[inline(never)]
pub(super) unsafe fn change_copies(state: *mut State, record: *mut u8) {
    // SAFETY: as the caller promises; a copy is as large as its record.
    unsafe {
        let Some(this) = (*state).out_of_order.as_ref() else {
            return;
        };
        for copy in this.copies.iter().filter(|copy| copy.of == record) {
            pool::invalidate(copy.block);
            bytes::copy(record, copy.block);
        }
    }
}

/// Has readers ignore the copies of `record`, whose memory is about to be used for another one.
///
/// # Safety
/// `state` is the calling thread's.
#[cold]
#[inline(never)]
pub(super) unsafe fn forget_record(state: *mut State, record: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(this) = (*state).out_of_order.as_ref() else {
            return;
        };
        let slot = slot(state);
        let mut attached = false;
        for copy in this.copies.iter().filter(|copy| copy.of == record) {
            // A later guard may restore it.
            pool::invalidate(copy.block);
            attached |= copy.block == slot.read_volatile();
        }
        if attached {
            slot.write_volatile(ptr::null_mut());
            clear(state);
        }
    }
}

/// Forgets all gaps and copies: no guard restores anything any more.
///
/// # Safety
/// `state` is the calling thread's.
#[inline(never)]
pub(super) unsafe fn clear(state: *mut State) {
    // SAFETY: as the caller promises; `out_of_order` is null or came from Box.
    unsafe {
        if (*state).out_of_order.is_null() {
            return;
        }
        let this = Box::from_raw((*state).out_of_order);
        (*state).out_of_order = ptr::null_mut();
        for gap in &this.gaps {
            gap.close(state);
        }
        for copy in &this.copies {
            pool::put(state, copy.block, copy.class);
        }
    }
}
