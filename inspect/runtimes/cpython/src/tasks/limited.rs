//! Limits the number of reads of memory, and their time.

use std::cell::Cell;
use std::time::Instant;

use otelctx_reader::remote::{Memory, MemoryError};
use otelctx_reader::runtime::RuntimeError;

/// Number of reads after which the time is checked.
const READS: u64 = 256;

/// Memory that fails after a number of reads or a deadline.
pub(super) struct Limited<'m> {
    memory: &'m dyn Memory,
    limit: u64,
    left: Cell<u64>,
    until: Option<Instant>,
    is_late: Cell<bool>,
}

impl<'m> Limited<'m> {
    pub(super) fn new(memory: &'m dyn Memory, limit: u64, until: Option<Instant>) -> Self {
        Self {
            memory,
            limit,
            left: Cell::new(limit),
            until,
            is_late: Cell::new(false),
        }
    }

    /// Returns an error if the limit or the deadline has been reached.
    pub(super) fn check(&self) -> Result<(), RuntimeError> {
        if self.is_late.get() {
            return Err(RuntimeError::new("the deadline has passed"));
        }
        if self.left.get() == 0 {
            let limit = self.limit;
            let reason = format!("reading its tasks takes more than {limit} reads");
            return Err(RuntimeError::new(reason));
        }
        Ok(())
    }

    /// Replaces an error with the one of [`Self::check`], if there is one.
    pub(super) fn or_limit<T>(&self, result: Result<T, RuntimeError>) -> Result<T, RuntimeError> {
        result.or_else(|error| self.check().and(Err(error)))
    }
}

impl Memory for Limited<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let left = self.left.get();
        if (self.limit - left).is_multiple_of(READS)
            && self.until.is_some_and(|until| Instant::now() >= until)
        {
            self.is_late.set(true);
        }
        if left == 0 || self.is_late.get() {
            let length = buffer.len();
            return Err(MemoryError::Unmapped { address, length });
        }
        self.left.set(left - 1);
        self.memory.read(address, buffer)
    }
}

#[cfg(test)]
mod tests {
    use otelctx_reader::remote::memory::Image;

    use super::*;

    #[test]
    fn so_much_is_read_and_no_more() {
        const START: u64 = 0x1000;
        let mut image = Image::new();
        image.map_u64(START, &[7]);
        let limited = Limited::new(&image, 3, None);
        for _ in 0..3 {
            assert_eq!(limited.check(), Ok(()));
            assert_eq!(limited.read_u64(START), Ok(7));
        }
        assert!(limited.read_u64(START).is_err());
        let error = |reason| Err(RuntimeError::new(reason));
        let expected = error("reading its tasks takes more than 3 reads");
        assert_eq!(limited.check(), expected);
        assert_eq!(limited.or_limit::<()>(error("something else")), expected);
        assert_eq!(limited.or_limit(Ok(1)), Ok(1));
        let late = Limited::new(&image, 3, Some(Instant::now()));
        assert_eq!(late.check(), Ok(()));
        assert!(late.read_u64(START).is_err());
        assert_eq!(late.check(), error("the deadline has passed"));
    }
}
