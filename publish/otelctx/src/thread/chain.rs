//! The chain of records that a thread's guards have attached, starting with the record in the slot.
//!
//! Each record links to the one below it, which it replaced and which its guard will restore. A
//! record of the thread has this link in the word before it; a shared record has it in its entry in
//! the list of attached records. A guard whose record is in the slot stores the link there. Any
//! other guard removes its record from the chain, so that guards can be dropped in any order. So
//! does a record that is dropped, in case its guard was forgotten. Attaching and detaching need no
//! extra work for this.
//!
//! A record is in the chain at most once. The chain ends at null, or at a record that was written
//! without a guard. Only another publisher knows what is below its records: a record that may be
//! there keeps its memory ([`pool::forget`]).

use super::attached_blocks::AttachedBlocks;
use super::pool;
use super::state::{slot, ThreadState};

/// Maximum number of records to follow, so that the search ends if another publisher has created a
/// cycle. Anything deeper counts as unknown.
const MAX_DEPTH: usize = 1 << 16;

/// The record below another one.
pub(super) enum Below {
    Nothing,
    /// The record that this location points to.
    Link(*mut *mut u8),
    /// The record is another publisher's.
    Unknown,
}

/// Finds what is below a record in the chain.
pub(super) fn below(state: ThreadState, record: *mut u8) -> Below {
    // SAFETY: `state` is this thread's.
    unsafe {
        if record.is_null() || record == (*state.get()).current.block {
            Below::Nothing
        } else if pool::class_of(state, record).is_some() {
            Below::Link(pool::link(record))
        } else {
            let entry = AttachedBlocks::find(state, record);
            entry.map_or(Below::Unknown, |entry| Below::Link(&raw mut (*entry).below))
        }
    }
}

/// Returns whether a record is in the chain; `None` if it may be below another publisher's record.
pub(super) fn contains(state: ThreadState, record: *mut u8) -> Option<bool> {
    // SAFETY: `state` is this thread's; the links are those of records in the chain.
    unsafe {
        let mut this = slot(state).read_volatile();
        for _ in 0..MAX_DEPTH {
            if this == record {
                return Some(true);
            }
            this = match below(state, this) {
                Below::Nothing => return Some(false),
                Below::Unknown => return None,
                Below::Link(link) => link.read(),
            };
        }
        None
    }
}

/// Removes a record from the chain if it is in it. Returns false if it may still be in it.
#[inline(never)]
pub(super) fn unlink(state: ThreadState, record: *mut u8) -> bool {
    // SAFETY: `state` is this thread's; the links are those of records in the chain.
    unsafe {
        let mut place = slot(state);
        for _ in 0..MAX_DEPTH {
            let this = place.read_volatile();
            match below(state, this) {
                Below::Nothing => return true,
                Below::Unknown => return false,
                Below::Link(link) if this == record => {
                    place.write_volatile(link.read());
                    return true;
                }
                Below::Link(link) => place = link,
            }
        }
        false
    }
}
