//! The global lock of an interpreter.

use std::ops::Range;
use std::sync::Arc;

use otelctx_sample::{Frame, FrameKind, GilState, NamedFrame};

/// A thread's relation to the global lock of its interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gil {
    /// The thread holds it.
    pub is_held: bool,
    /// The code that takes it or passes it on: a thread that does not hold it and has a native
    /// frame there waits for it. If this is empty, threads that wait count as having released it.
    pub code: Arc<[Range<u64>]>,
}

impl Gil {
    /// Creates the relation of a thread that holds the lock or not: see [`Self::code`].
    #[must_use]
    pub const fn new(is_held: bool, code: Arc<[Range<u64>]>) -> Self {
        Self { is_held, code }
    }

    /// The thread's state, by its native stack, innermost frame first. If it waits, adds a frame of
    /// this kind, [`GilState::WAITING_FRAME`], as the caller of the code that takes the lock.
    pub fn state_in(&self, native: &mut Vec<Frame>, kind: FrameKind) -> GilState {
        if self.is_held {
            return GilState::Held;
        }
        let takes_it = |frame: &Frame| {
            let address = frame.lookup_address();
            address.is_some_and(|it| self.code.iter().any(|code| code.contains(&it)))
        };
        let Some(innermost) = native.iter().position(takes_it) else {
            return GilState::Released;
        };
        // Its parts may call each other.
        let outer = &native[innermost..];
        let depth = outer.iter().take_while(|frame| takes_it(frame)).count();
        let frame = NamedFrame {
            kind,
            function: GilState::WAITING_FRAME.to_owned(),
            ..NamedFrame::default()
        };
        native.insert(innermost + depth, Frame::from(frame));
        GilState::Waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A native stack of these addresses, innermost frame first.
    fn native(addresses: &[u64]) -> Vec<Frame> {
        let frame = |(depth, address): (usize, &u64)| Frame::native(depth, *address);
        addresses.iter().enumerate().map(frame).collect()
    }

    #[test]
    fn a_thread_waits_if_it_is_in_the_code_that_takes_the_lock_and_does_not_hold_it() {
        let mut gil = Gil {
            is_held: false,
            code: [0x100..0x120, 0x200..0x240].into(),
        };
        let waiting = Frame::from(NamedFrame {
            kind: FrameKind::CPYTHON,
            function: "[waiting for the GIL]".into(),
            ..NamedFrame::default()
        });
        let state = |gil: &Gil, addresses: &[u64]| {
            let mut stack = native(addresses);
            let state = gil.state_in(&mut stack, FrameKind::CPYTHON);
            let place = stack.iter().position(|frame| *frame == waiting);
            stack.retain(|frame| *frame != waiting);
            assert_eq!(stack, native(addresses));
            (state, place)
        };
        let released = (GilState::Released, None);
        assert_eq!(state(&gil, &[]), released);
        // The instruction at the end is another function's, the return address there is its own.
        assert_eq!(state(&gil, &[0x120, 0x300]), released);
        assert_eq!(state(&gil, &[0x300, 0x120]), (GilState::Waiting, Some(2)));
        assert_eq!(state(&gil, &[0x200, 0x300]), (GilState::Waiting, Some(1)));
        // One part calls the other. What is further out takes the lock, too, but has called
        // something else.
        let stack = [0x300, 0x210, 0x110, 0x300, 0x210];
        assert_eq!(state(&gil, &stack), (GilState::Waiting, Some(3)));
        gil.is_held = true;
        assert_eq!(state(&gil, &stack), (GilState::Held, None));
        assert_eq!(state(&Gil::default(), &stack), released);
    }
}
