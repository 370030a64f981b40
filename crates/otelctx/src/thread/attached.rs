//! The guard of an attached record.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{compiler_fence, Ordering};

use super::chain;
use super::pool::{link, NEVER_ATTACHED};
use super::record::Record;
use crate::arch;

/// Keeps a [`Record`] attached to the thread. Dropping it attaches what was attached before.
///
/// Guards may be dropped in any order: the thread is left with the record of the latest guard
/// that is still alive. A guard that finds the record of another publisher in its place leaves it
/// there.
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
    record: &'a mut Record,
    /// Of one thread: neither `Send` nor `Sync`.
    thread: PhantomData<*mut u8>,
}

impl<'a> Attached<'a> {
    #[inline(always)]
    pub(super) fn new(record: &'a mut Record) -> Self {
        let (mut slot, mut record) = (arch::slot(), record);
        let mut block = record.block();
        // SAFETY: the slot is this thread's, and so is the record, which is Send no more than
        // the guard is; its memory stays a record until the thread ends.
        unsafe {
            // Nobody else writes the slot while this reads it: only the stores are volatile.
            let (link, below) = (link(block), slot.read());
            // A record that is attached where it was the last time is linked already.
            if link.read() != below {
                if link.read() == NEVER_ATTACHED {
                    link.write(below);
                } else {
                    (slot, record) = attach_elsewhere(slot, record);
                    block = record.block();
                }
            }
            // A reader stops this thread, so the order of its own instructions is all that counts.
            compiler_fence(Ordering::Release);
            slot.write_volatile(block);
            Self {
                slot,
                block,
                record,
                thread: PhantomData,
            }
        }
    }
}

/// Links a record that was attached over another one before. It is in the chain still if its guard
/// was forgotten.
///
/// Returns its arguments: the usual way need not keep them in registers that a call preserves, which
/// would have to be saved first.
///
/// # Safety
/// The slot is the calling thread's.
#[cold]
#[inline(never)]
unsafe fn attach_elsewhere(slot: *mut *mut u8, record: &mut Record) -> (*mut *mut u8, &mut Record) {
    // SAFETY: as the caller promises.
    unsafe {
        detach_out_of_order(record);
        link(record.block()).write(slot.read_volatile());
    }
    (slot, record)
}

/// Takes a record out of the chain. Where it may be below another publisher's, it leaves its block.
#[cold]
#[inline(never)]
fn detach_out_of_order(record: &mut Record) {
    let state = arch::state();
    // SAFETY: the state and the record are this thread's.
    unsafe {
        if !chain::unlink(state, record.block()) {
            record.leave_block(state);
        }
    }
}

impl Drop for Attached<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the guard is this thread's, and so is the record, whose link is what is below it.
        unsafe {
            if self.slot.read() == self.block {
                self.slot.write_volatile(link(self.block).read());
            } else {
                detach_out_of_order(self.record);
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
