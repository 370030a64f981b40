//! What a thread's guards have attached: a chain from the record in the slot down.
//!
//! Each record links to the one below it, which it has replaced and which its guard restores: in the
//! word before a record of the thread, in its entry in the list of attached shared records. A guard
//! whose record is in the slot puts the link there. Any other guard takes its record out of the
//! chain, so that guards can be dropped in any order; and so does a record that is dropped, so that
//! nothing is left of a forgotten guard. Attaching and detaching need not note anything for that.
//!
//! A record is in the chain once at most. The chain ends at null and at a record that was written
//! without a guard. What is below the record of another publisher is known to that publisher only: a
//! record that may be there keeps its memory ([`pool::forget`]).

use super::attached_blocks::AttachedBlocks;
use super::pool;
use super::state::{slot, State};

/// How many records are searched, so that a chain which another publisher has made a circle of ends.
/// What lies deeper counts as unknown.
const MAX_DEPTH: usize = 1 << 16;

/// What is below a record.
pub(super) enum Below {
    Nothing,
    /// What this place holds.
    Link(*mut *mut u8),
    /// The record is another publisher's.
    Unknown,
}

/// What is below a record in the chain.
///
/// # Safety
/// `state` is the calling thread's.
pub(super) unsafe fn below(state: *mut State, record: *mut u8) -> Below {
    // SAFETY: as the caller promises.
    unsafe {
        if record.is_null() || record == (*state).current.block {
            Below::Nothing
        } else if pool::class_of(state, record).is_some() {
            Below::Link(pool::link(record))
        } else {
            let entry = AttachedBlocks::find(&raw mut (*state).shared, record);
            entry.map_or(Below::Unknown, |entry| Below::Link(&raw mut (*entry).below))
        }
    }
}

/// Takes a record out of the chain if it is there. Returns false when it may still be there.
///
/// # Safety
/// `state` is the calling thread's.
#[inline(never)]
pub(super) unsafe fn unlink(state: *mut State, record: *mut u8) -> bool {
    // SAFETY: as the caller promises; the links are those of records in the chain.
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
