//! Code that a process is about to copy from its file to memory.

/// Maximum number of readings of a process's mappings for code that may be copied: each is some time after the one before.
const MAX_READINGS: u8 = 8;

/// Counts the readings of a process's mappings that are left because memory in the place of a file's code has other bytes: a
/// just-in-time compiler's stays so.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copies {
    /// Number of readings since the last one without such memory.
    readings: u8,
    may_be_copied: bool,
}

impl Copies {
    /// Notes what a reading has shown.
    pub(crate) fn note(&mut self, may_be_copied: bool) {
        self.may_be_copied = may_be_copied;
        self.readings = if may_be_copied {
            self.readings.saturating_add(1)
        } else {
            0
        };
    }

    /// Notes that memory was mapped, or its protection changed, in the place of a file's code.
    pub(crate) fn restart(&mut self) {
        *self = Self {
            readings: 0,
            may_be_copied: true,
        };
    }

    /// Notes that any memory was mapped, or its protection changed.
    pub(crate) fn renew(&mut self) {
        self.readings = 0;
    }

    /// Returns true if the mappings are to be read again.
    pub(crate) fn are_read_again(self) -> bool {
        self.may_be_copied && self.readings < MAX_READINGS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_stays_different_is_read_a_few_times() {
        let mut copies = Copies::default();
        assert!(!copies.are_read_again());
        copies.restart();
        assert!(copies.are_read_again());
        for _ in 0..MAX_READINGS {
            assert!(copies.are_read_again());
            copies.note(true);
        }
        assert!(!copies.are_read_again());
        // Its protection changes: the copy may be complete.
        copies.restart();
        assert!(copies.are_read_again());
        copies.note(false);
        copies.renew();
        assert!(!copies.are_read_again());
    }
}
