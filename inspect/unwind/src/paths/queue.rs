//! The paths that are left to follow.

use std::collections::BTreeMap;

/// Addresses that are left to follow, with what is known there on each path to them. The lowest is followed first: most paths
/// lead to higher addresses, so that nearly all paths to an instruction have met before it is followed. In a list, a hostile
/// file's jumps to ever higher addresses would each move all the others.
pub(super) struct Paths<S>(BTreeMap<u64, Vec<S>>);

impl<S> Paths<S> {
    pub(super) fn from(address: u64, state: S) -> Self {
        Self(BTreeMap::from([(address, vec![state])]))
    }

    pub(super) fn push(&mut self, address: u64, state: S) {
        self.0.entry(address).or_default().push(state);
    }

    pub(super) fn pop(&mut self) -> Option<(u64, S)> {
        let address = *self.0.first_key_value()?.0;
        Some((address, self.pop_at(address)?))
    }

    /// Removes another path to this address.
    pub(super) fn pop_at(&mut self, address: u64) -> Option<S> {
        let states = self.0.get_mut(&address)?;
        let state = states.pop();
        if states.is_empty() {
            self.0.remove(&address);
        }
        state
    }

    /// The lowest address from this one on.
    pub(super) fn next_from(&self, address: u64) -> Option<u64> {
        Some(*self.0.range(address..).next()?.0)
    }
}
