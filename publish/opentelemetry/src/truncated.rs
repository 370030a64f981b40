//! Counts the records that have no room for all values.

use std::sync::atomic::{AtomicU64, Ordering};

static TRUNCATED: AtomicU64 = AtomicU64::new(0);

/// Number of records so far that have no room for all values, or for a whole one: a record has up
/// to 612 bytes of attributes, and a value 255. Each span has a record, and so has each context
/// that is derived while [entries of the baggage](crate::Install::with_baggage) are published, or
/// from one [with another attribute](crate::with_attribute).
#[must_use]
pub fn truncated() -> u64 {
    TRUNCATED.load(Ordering::Relaxed)
}

#[inline]
pub(crate) fn count(is_truncated: bool) {
    if is_truncated {
        TRUNCATED.fetch_add(1, Ordering::Relaxed);
    }
}
