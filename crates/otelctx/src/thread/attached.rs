//! The guard of an attached record.

use std::marker::PhantomData;
use std::ops::Deref;

use super::out_of_order::{self, GapOwner};
use super::record::Record;
use super::state;
use crate::arch;

/// Keeps a [`Record`] attached to the thread. Dropping it attaches what was attached before.
///
/// Guards may be dropped in any order: the thread is left with the record of the latest guard
/// that is still alive (with none when more than 1,024 were dropped before later ones). A guard that
/// finds the record of another publisher in its place leaves it there.
///
/// A guard that was forgotten keeps its record attached until the record is dropped.
///
/// It dereferences to the record, which can be [appended](Record::append) to meanwhile.
#[must_use = "the record is detached when the guard is dropped"]
#[derive(Debug)]
pub struct Attached<'a> {
    slot: *mut *mut u8,
    /// The record's block, so that dropping does not have to look it up.
    block: *mut u8,
    previous: *mut u8,
    record: &'a mut Record,
    /// Of one thread: neither `Send` nor `Sync`.
    thread: PhantomData<*mut u8>,
}

impl<'a> Attached<'a> {
    #[inline(always)]
    pub(super) fn new(record: &'a mut Record) -> Self {
        let record = record.mark_attached();
        let slot = arch::slot();
        let block = record.block();
        // SAFETY: the slot is this thread's, and so is the record, which is Send no more than
        // the guard is; its memory stays a record until the thread ends.
        let previous = unsafe { state::attach(slot, block) };
        Self {
            slot,
            block,
            previous,
            record,
            thread: PhantomData,
        }
    }
}

/// Drops a guard whose record is not in the slot.
///
/// # Safety
/// The record was attached to the calling thread and replaced `previous`.
#[cold]
#[inline(never)]
unsafe fn detach_out_of_order(record: &mut Record, previous: *mut u8) {
    let state = arch::state();
    let block = record.block();
    // SAFETY: as the caller promises. The record leaves its block to the gap.
    unsafe {
        if !out_of_order::detach(state, block, previous) {
            let class = record.leave_block(state);
            out_of_order::add_gap(state, block, GapOwner::Pool(class), previous);
        }
    }
    record.mark_detached();
}

impl Drop for Attached<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the guard is this thread's, and it is dropped once.
        unsafe {
            if state::detach(self.slot, self.block, self.previous) {
                self.record.mark_detached();
            } else {
                detach_out_of_order(self.record, self.previous);
            }
        }
    }
}

impl Deref for Attached<'_> {
    type Target = Record;

    #[inline]
    fn deref(&self) -> &Record {
        self.record
    }
}
