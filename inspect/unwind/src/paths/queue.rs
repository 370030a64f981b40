//! The paths that are left to follow.

/// Addresses that are left to follow, with what is known there, the lowest last. That is followed first: most paths lead to
/// higher addresses, so that nearly all paths to an instruction have met before it is followed.
pub(super) struct Paths<S>(Vec<(u64, S)>);

impl<S> Paths<S> {
    pub(super) fn from(address: u64, state: S) -> Self {
        Self(vec![(address, state)])
    }

    pub(super) fn push(&mut self, address: u64, state: S) {
        let place = self.0.partition_point(|it| it.0 > address);
        self.0.insert(place, (address, state));
    }

    pub(super) fn pop(&mut self) -> Option<(u64, S)> {
        self.0.pop()
    }

    /// Removes another path to this address.
    pub(super) fn pop_at(&mut self, address: u64) -> Option<S> {
        self.0.pop_if(|it| it.0 == address).map(|it| it.1)
    }

    /// The lowest address from this one on.
    pub(super) fn next_from(&self, address: u64) -> Option<u64> {
        let behind = self.0.partition_point(|it| it.0 >= address);
        Some(self.0.get(behind.checked_sub(1)?)?.0)
    }
}
