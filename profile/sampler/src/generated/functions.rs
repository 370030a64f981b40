//! The functions that a runtime has announced, by their addresses.

use std::collections::BTreeMap;

use otelctx_sample::Frame;

use super::announcement::{Entry, Next};
use super::frame::frame;

/// Maximum length of a name that is kept, in bytes.
pub(super) const MAX_NAME: usize = 1 << 10;

/// Functions that do not overlap, by their starts.
#[derive(Debug, Default)]
pub(super) struct Functions(pub(super) BTreeMap<u64, Function>);

#[derive(Debug)]
pub(super) struct Function {
    pub(super) end: u64,
    /// Time when it was announced, or an earlier one.
    since: u64,
    pub(super) frame: Frame,
    /// The earlier function at the same address.
    earlier: Option<Box<Replaced>>,
}

#[derive(Debug)]
struct Replaced {
    function: Function,
    /// The function was there at least until this time.
    until: u64,
}

/// The bounds of a time that is not known exactly, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBounds {
    pub(super) earliest: u64,
    pub(super) latest: u64,
}

impl TimeBounds {
    pub(super) fn exactly(time: u64) -> Self {
        Self {
            earliest: time,
            latest: time,
        }
    }
}

impl Functions {
    /// Returns the frame of the function at an address at a time.
    pub(super) fn at(&self, address: u64, time: u64) -> Option<&Frame> {
        let mut found = self.0.range(..=address).next_back().map(|it| it.1);
        while let Some(function) = found {
            if address < function.end && function.since <= time {
                return Some(&function.frame);
            }
            let earlier = function.earlier.as_deref();
            found = earlier.filter(|it| time < it.until).map(|it| &it.function);
        }
        None
    }

    /// Applies an entry that was announced between two reads. Returns false if it is a new function
    /// beyond the limit.
    pub(super) fn apply(&mut self, next: Next<'_>, announced: TimeBounds, limit: usize) -> bool {
        match next {
            Next::Function(entry) => return self.insert(&entry, announced, limit),
            Next::Moved { from, to, time } => {
                if let Some(function) = self.0.remove(&from)
                    && let Some(end) = to.checked_add(function.end - from)
                {
                    self.place(to, end, function.frame, TimeBounds::exactly(time));
                }
            }
            Next::Other | Next::Damaged => {}
        }
        true
    }

    pub(super) fn insert(
        &mut self,
        entry: &Entry<'_>,
        announced: TimeBounds,
        limit: usize,
    ) -> bool {
        let end = entry.start.checked_add(entry.size);
        let Some(end) = end.filter(|end| *end > entry.start) else {
            return true;
        };
        let overlaps = self.overlaps(entry.start, end);
        if self.0.len() >= limit && !overlaps {
            return false;
        }
        let name = &entry.name[..entry.name.len().min(MAX_NAME)];
        let frame = Frame::from(frame(&String::from_utf8_lossy(name)));
        // A sample between the two reads may lie in this function or in earlier code there.
        let since = match entry.time {
            Some(time) => TimeBounds::exactly(time),
            None if overlaps => announced,
            None => TimeBounds::exactly(announced.earliest),
        };
        self.place(entry.start, end, frame, since);
        true
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        let last = self.0.range(..end).next_back();
        last.is_some_and(|(_, known)| known.end > start)
    }

    /// Adds a function in place of the functions that it overlaps.
    fn place(&mut self, start: u64, end: u64, frame: Frame, replaced: TimeBounds) {
        let earlier = self.remove_overlapping(start, end);
        // Samples come within milliseconds: one earlier function is enough.
        let earlier = earlier.map(|mut function| {
            function.earlier = None;
            Box::new(Replaced {
                function,
                until: replaced.earliest,
            })
        });
        let function = Function {
            end,
            since: replaced.latest,
            frame,
            earlier,
        };
        self.0.insert(start, function);
    }

    /// Removes the functions that overlap a range, and returns the one at its start.
    pub(super) fn remove_overlapping(&mut self, start: u64, end: u64) -> Option<Function> {
        let mut first = None;
        while let Some((&other, known)) = self.0.range(..end).next_back() {
            if known.end <= start {
                break;
            }
            let removed = self.0.remove(&other);
            if other == start {
                first = removed;
            }
        }
        first
    }
}
