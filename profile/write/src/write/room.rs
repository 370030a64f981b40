//! A memory budget for long recordings.

/// The name of all stacks, traces or spans without room.
pub(super) const OTHER: &str = "(other)";

#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) size: usize,
    left: usize,
    /// Bytes of the budget that are reserved for now.
    pub(super) reserved: usize,
}

impl Room {
    /// Estimated memory of an entry in an index, in bytes, without its contents.
    pub(super) const ENTRY: usize = 32;

    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            left: size,
            reserved: 0,
        }
    }

    /// Takes this many bytes from the budget. Returns false if they are not left.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let bytes = bytes.saturating_add(Self::ENTRY);
        let is_enough = self.left.saturating_sub(self.reserved) >= bytes;
        self.left -= if is_enough { bytes } else { 0 };
        is_enough
    }
}
