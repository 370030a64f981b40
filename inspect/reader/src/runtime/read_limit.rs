//! The limit on what is read to name the functions of one process: it could otherwise keep the reader from reading others.

use std::cell::Cell;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use otelctx_remote::{Memory, MemoryError};

/// Maximum number of bytes that are read of the functions of a process in a microsecond, that is 32 MB a second, and at once:
/// the sources of a large program are read when its functions are first seen.
const MAX_WORK: u64 = 32;
const MAX_AT_ONCE: u64 = 256 << 20;
/// What a read takes as long as, in bytes, however few it reads.
const MIN_READ: u64 = 128;

/// The number of bytes that may still be read of a process to name its functions: 32 MB a second on average, and 256 MiB at once.
#[derive(Debug)]
pub struct ReadLimit(Mutex<Left>);

#[derive(Debug)]
struct Left {
    bytes: u64,
    /// When that was.
    at: Option<Instant>,
}

impl Default for ReadLimit {
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

impl ReadLimit {
    /// Takes the bytes of a read from what may be read. False if they may not be read.
    fn take(&self, bytes: u64, now: Instant) -> bool {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.refill(now);
        let rest = left.bytes.checked_sub(bytes.max(MIN_READ));
        left.bytes = rest.unwrap_or(left.bytes);
        rest.is_some()
    }

    /// Permits nothing for an hour, for tests of what is not read then.
    #[doc(hidden)]
    pub fn use_up(&self) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let later = Instant::now() + Duration::from_secs(3600);
        (left.bytes, left.at) = (0, Some(later));
    }

    /// Returns whether this number of bytes may be read, and `reserve` more.
    pub fn has_room(&self, bytes: u64, reserve: u64, now: Instant) -> bool {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.refill(now);
        left.bytes.saturating_sub(reserve) >= bytes
    }
}

/// Memory that is read as far as a [`ReadLimit`] permits.
pub struct LimitedMemory<'a> {
    memory: &'a dyn Memory,
    limit: &'a ReadLimit,
    was_denied: Cell<bool>,
}

impl fmt::Debug for LimitedMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedMemory").finish_non_exhaustive()
    }
}

impl<'a> LimitedMemory<'a> {
    /// Limits reads of a process's memory.
    pub fn new(memory: &'a dyn Memory, limit: &'a ReadLimit) -> Self {
        Self {
            memory,
            limit,
            was_denied: Cell::new(false),
        }
    }

    /// Returns whether a read has failed for the limit.
    pub fn was_denied(&self) -> bool {
        self.was_denied.get()
    }
}

impl Memory for LimitedMemory<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len() as u64;
        if self.was_denied() || !self.limit.take(length, Instant::now()) {
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
mod tests {
    use otelctx_remote::memory::Image;

    use super::*;

    #[test]
    fn reads_are_limited_at_once_and_by_the_second() {
        let limit = ReadLimit::default();
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(limit.has_room(MAX_AT_ONCE - 64, 64, start));
        assert!(!limit.has_room(MAX_AT_ONCE - 64, 65, start));
        assert!(limit.take(MAX_AT_ONCE, start));
        assert!(!limit.take(0, start));
        let second = MAX_WORK * 1_000_000;
        assert!(!limit.take(second, at(999)));
        assert!(limit.take(second, at(1000)));
        assert!(!limit.take(1, at(1000)));
        // In steps of less than a microsecond.
        for step in 1..10_000 {
            let now = at(1000) + Duration::from_nanos(100 * step);
            assert!(!limit.take(second / 1000, now));
        }
        assert!(limit.take(second / 1000, at(1001)));
        // Time that goes back, and much of it.
        assert!(!limit.take(1, start));
        assert!(limit.take(MAX_AT_ONCE, at(1 << 40)));
        assert!(!limit.take(1, at(1 << 40)));
        let reads = (second / MIN_READ) as usize;
        let now = at((1 << 40) + 1000);
        assert_eq!(
            (0..reads + 10).filter(|_| limit.take(1, now)).count(),
            reads
        );
        assert!(!limit.has_room(1, 0, now));
    }

    #[test]
    fn memory_beyond_the_limit_is_not_read() {
        let mut image = Image::new();
        image.map(0, [7; 64]);
        let limit = ReadLimit::default();
        let memory = LimitedMemory::new(&image, &limit);
        assert_eq!(memory.read_u8(1), Ok(7));
        assert!(memory.read_u8(64).is_err() && !memory.was_denied());
        limit.use_up();
        assert!(memory.read_u8(1).is_err() && memory.was_denied());
    }
}
