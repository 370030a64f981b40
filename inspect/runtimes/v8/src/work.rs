//! The limit on reads of one process: it could otherwise keep the reader from reading others.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use otelctx_reader::remote::{Memory, MemoryError};

/// Maximum number of bytes that are read of the functions of a process in a microsecond, that is 32 MB a second, and at once:
/// the sources of a large program are read when its functions are first seen.
const MAX_WORK: u64 = 32;
const MAX_AT_ONCE: u64 = 256 << 20;
/// What a read takes as long as, in bytes, however few it reads.
const MIN_READ: u64 = 128;
/// What is left for the names of functions by the sources of scripts, in bytes.
const RESERVE: u64 = 64 << 20;

/// What may still be read of a process.
#[derive(Debug)]
pub(crate) struct Work(Mutex<Left>);

#[derive(Debug)]
struct Left {
    bytes: u64,
    /// When that was.
    at: Option<Instant>,
}

impl Default for Work {
    fn default() -> Self {
        Self(Mutex::new(Left {
            bytes: MAX_AT_ONCE,
            at: None,
        }))
    }
}

impl Left {
    fn refill(&mut self, now: Instant) {
        let at = *self.at.get_or_insert(now);
        let passed = now.saturating_duration_since(at).as_micros();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        let more = passed.saturating_mul(MAX_WORK);
        self.bytes = self.bytes.saturating_add(more).min(MAX_AT_ONCE);
        // Parts of a microsecond count the next time.
        self.at = at.checked_add(Duration::from_micros(passed));
    }
}

impl Work {
    /// Takes the bytes of a read from what may be read. False if they may not be read.
    fn take(&self, bytes: u64, now: Instant) -> bool {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.refill(now);
        let rest = left.bytes.checked_sub(bytes.max(MIN_READ));
        left.bytes = rest.unwrap_or(left.bytes);
        rest.is_some()
    }

    /// Returns whether a source of this size, in bytes, may be read, too.
    pub(crate) fn has_room_for_source(&self, bytes: u64, now: Instant) -> bool {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.refill(now);
        left.bytes.saturating_sub(RESERVE) >= bytes
    }
}

/// Memory that is read as far as [`Work`] permits.
pub(crate) struct LimitedMemory<'a> {
    memory: &'a dyn Memory,
    work: &'a Work,
    was_denied: Cell<bool>,
}

impl<'a> LimitedMemory<'a> {
    pub(crate) fn new(memory: &'a dyn Memory, work: &'a Work) -> Self {
        Self {
            memory,
            work,
            was_denied: Cell::new(false),
        }
    }

    /// Returns whether a read has failed for the limit.
    pub(crate) fn was_denied(&self) -> bool {
        self.was_denied.get()
    }
}

impl Memory for LimitedMemory<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len() as u64;
        if self.was_denied() || !self.work.take(length, Instant::now()) {
            self.was_denied.set(true);
            return Err(MemoryError::Limit {
                address,
                length,
                limit: MAX_AT_ONCE as usize,
            });
        }
        self.memory.read(address, buffer)
    }

    fn forget(&self) {
        self.memory.forget();
    }
}

#[cfg(test)]
impl Work {
    /// Nothing may be read for the time of a test.
    pub(crate) fn use_up(&self) {
        let mut left = self.0.lock().unwrap();
        let later = Instant::now() + Duration::from_secs(3600);
        (left.bytes, left.at) = (0, Some(later));
    }
}

#[cfg(test)]
mod tests {
    use otelctx_reader::remote::memory::Image;

    use super::*;

    #[test]
    fn work_is_limited_at_once_and_by_the_second() {
        let work = Work::default();
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(work.has_room_for_source(MAX_AT_ONCE - RESERVE, start));
        assert!(!work.has_room_for_source(MAX_AT_ONCE - RESERVE + 1, start));
        assert!(work.take(MAX_AT_ONCE, start));
        assert!(!work.take(0, start));
        let second = MAX_WORK * 1_000_000;
        assert!(!work.take(second, at(999)));
        assert!(work.take(second, at(1000)));
        assert!(!work.take(1, at(1000)));
        // In steps of less than a microsecond.
        for step in 1..10_000 {
            let now = at(1000) + Duration::from_nanos(100 * step);
            assert!(!work.take(second / 1000, now));
        }
        assert!(work.take(second / 1000, at(1001)));
        // Time that goes back, and much of it.
        assert!(!work.take(1, start));
        assert!(work.take(MAX_AT_ONCE, at(1 << 40)));
        assert!(!work.take(1, at(1 << 40)));
        let reads = (second / MIN_READ) as usize;
        let now = at((1 << 40) + 1000);
        assert_eq!((0..reads + 10).filter(|_| work.take(1, now)).count(), reads);
        assert!(!work.has_room_for_source(1, now));
    }

    #[test]
    fn memory_beyond_the_limit_is_not_read() {
        let mut image = Image::new();
        image.map(0, [7; 64]);
        let work = Work::default();
        let memory = LimitedMemory::new(&image, &work);
        assert_eq!(memory.read_u8(1), Ok(7));
        assert!(memory.read_u8(64).is_err() && !memory.was_denied());
        work.use_up();
        assert!(memory.read_u8(1).is_err() && memory.was_denied());
    }
}
