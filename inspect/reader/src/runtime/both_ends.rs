//! Both ends of a stack that is too long to keep.

use std::collections::VecDeque;

/// Collects the frames of a stack in the order in which they are read, and keeps the first and the
/// last ones.
#[derive(Clone, Debug)]
pub struct BothEnds<T> {
    first: Vec<T>,
    max_first: usize,
    last: VecDeque<T>,
    max_last: usize,
    omitted: usize,
}

impl<T> BothEnds<T> {
    /// Creates a collection that keeps these numbers of frames of each end.
    #[must_use]
    pub const fn new(max_first: usize, max_last: usize) -> Self {
        Self {
            first: Vec::new(),
            max_first,
            last: VecDeque::new(),
            max_last,
            omitted: 0,
        }
    }

    /// Adds the next frame. Returns the one that is omitted for it, if any.
    pub fn push(&mut self, frame: T) -> Option<T> {
        if self.first.len() < self.max_first {
            self.first.push(frame);
            return None;
        }
        self.last.push_back(frame);
        if self.last.len() <= self.max_last {
            return None;
        }
        self.omitted += 1;
        self.last.pop_front()
    }

    /// The frame that was added last.
    pub fn newest(&mut self) -> Option<&mut T> {
        match self.last.back_mut() {
            None => self.first.last_mut(),
            newest => newest,
        }
    }

    /// Number of frames that were added.
    #[must_use]
    pub fn count(&self) -> usize {
        self.first.len() + self.omitted + self.last.len()
    }

    /// The first frames, the number of frames that are omitted after them, and the last frames.
    #[must_use]
    pub fn into_parts(self) -> (Vec<T>, usize, Vec<T>) {
        (self.first, self.omitted, self.last.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_kept_and_the_rest_is_counted() {
        for count in 0..20 {
            let mut both = BothEnds::new(4, 3);
            let omitted: Vec<i32> = (0..count).filter_map(|it| both.push(it)).collect();
            assert_eq!(both.newest().copied(), (count > 0).then_some(count - 1));
            assert_eq!(both.count(), count as usize);
            let (first, number, last) = both.into_parts();
            assert_eq!(first, (0..count.min(4)).collect::<Vec<_>>());
            assert_eq!(last, ((count - 3).max(4)..count).collect::<Vec<_>>());
            assert_eq!(omitted, (4..(count - 3).max(4)).collect::<Vec<_>>());
            assert_eq!(number, omitted.len());
        }
    }
}
