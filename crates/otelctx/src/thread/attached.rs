//! The guard of an attached record.

use std::marker::PhantomData;

use super::state::{self, State};
use crate::arch;

/// Keeps a record attached to the thread. Dropping it attaches what was attached before.
///
/// Guards may be dropped in any order: the thread is left with the record of the innermost guard
/// that is still alive. A guard that finds a record of somebody else in its place leaves it there.
#[must_use = "the record is detached when the guard is dropped"]
#[derive(Debug)]
pub struct Attached<'a> {
    state: *mut State,
    record: *mut u8,
    previous: *mut u8,
    order: u64,
    borrowed: PhantomData<&'a ()>,
}

impl Attached<'_> {
    /// Attaches a record to the calling thread.
    ///
    /// # Safety
    /// `record` points at a record that stays one until the thread ends.
    #[inline(always)]
    pub(super) unsafe fn new(record: *mut u8) -> Self {
        let state = arch::state();
        // SAFETY: the state is this thread's; the rest as the caller promises.
        let (previous, order) = unsafe { state::attach(state, record) };
        Self {
            state,
            record,
            previous,
            order,
            borrowed: PhantomData,
        }
    }
}

impl Drop for Attached<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the guard is of this thread (it is not Send), and dropped once.
        unsafe { state::detach(self.state, self.record, self.previous, self.order) };
    }
}
