//! The guard of an attached record.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{compiler_fence, Ordering};

use super::chain;
use super::context::Context;
use super::pool::{link, NEVER_ATTACHED};
use crate::arch;

/// Keeps a [`Context`] attached to the thread. Dropping it restores what was attached before.
///
/// Guards may be dropped in any order: the record of the latest guard that is still alive stays
/// attached. A guard that finds another publisher's record in the slot leaves it there.
///
/// A forgotten guard keeps its record attached until the record is dropped.
///
/// It dereferences to the record, to which attributes can be [appended](Context::append).
#[must_use = "the record is detached when the guard is dropped"]
#[derive(Debug)]
pub struct Attached<'a> {
    slot: *mut *mut u8,
    /// The record's block, so that dropping does not have to look it up.
    block: *mut u8,
    record: &'a mut Context,
    /// Bound to one thread: neither `Send` nor `Sync`.
    thread: PhantomData<*mut u8>,
}

impl<'a> Attached<'a> {
    #[inline(always)]
    pub(super) fn new(record: &'a mut Context) -> Self {
        // SAFETY: the slot is this thread's.
        unsafe { Self::at(arch::slot(), record) }
    }

    /// Returns the guard of a record that was attached and whose guard was forgotten.
    #[inline(always)]
    pub(super) fn again(slot: *mut *mut u8, record: &'a mut Context) -> Self {
        Self {
            slot,
            block: record.block(),
            record,
            thread: PhantomData,
        }
    }

    /// # Safety
    /// The slot belongs to the calling thread.
    #[inline(always)]
    pub(super) unsafe fn at(slot: *mut *mut u8, record: &'a mut Context) -> Self {
        let (mut slot, mut record) = (slot, record);
        let mut block = record.block();
        // SAFETY: the slot belongs to this thread, and so does the record, which is not Send, like
        // the guard; its memory stays a record until the thread ends.
        unsafe {
            // No other code writes the slot during the read, so only stores must be volatile.
            let (link, below) = (link(block), slot.read());
            // A record that is attached at the same place as last time is already linked.
            if link.read() != below {
                if link.read() == NEVER_ATTACHED {
                    link.write(below);
                } else {
                    (slot, record) = attach_elsewhere(slot, record);
                    block = record.block();
                }
            }
            // A reader stops this thread, so only the order of its own instructions matters.
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

/// Links a record that was attached over another one. With a forgotten guard, it is still linked.
///
/// Returns its arguments so that the fast path need not keep them in callee-saved registers, which
/// it would have to save first.
///
/// # Safety
/// The slot belongs to the calling thread.
#[cold]
#[inline(never)]
unsafe fn attach_elsewhere(
    slot: *mut *mut u8,
    record: &mut Context,
) -> (*mut *mut u8, &mut Context) {
    detach_out_of_order(record);
    // SAFETY: the caller ensures that the slot belongs to the calling thread.
    unsafe { link(record.block()).write(slot.read_volatile()) };
    (slot, record)
}

/// Removes a record from the chain, or gives it a new block if another publisher may restore it.
#[cold]
#[inline(never)]
fn detach_out_of_order(record: &mut Context) {
    let state = arch::state();
    if !chain::unlink(state, record.block()) {
        record.leave_block(state);
    }
}

impl Drop for Attached<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: guard and record belong to this thread; the record's link is the record below it.
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
    type Target = Context;

    #[inline]
    fn deref(&self) -> &Context {
        self.record
    }
}
