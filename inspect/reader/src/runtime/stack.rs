//! The frames of a thread that its runtime knows, in its native stack.

use std::ops::Range;

use otelctx_sample::{Frame, NamedFrame};

/// The frames of a thread that its runtime knows.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RuntimeStack {
    /// The frames, innermost first, grouped by calls of the interpreter, innermost first.
    pub calls: Vec<Vec<NamedFrame>>,
    /// The code of the interpreter, if any: each native frame in it represents one of the calls.
    pub interpreter: Vec<Range<u64>>,
    /// Outer frames are missing.
    pub is_truncated: bool,
    /// Prefixes of the file names of libraries that let a thread execute on several stacks, such as
    /// greenlet's. The frames are those of one stack.
    pub switching_libraries: &'static [&'static str],
}

impl RuntimeStack {
    /// Creates a stack that is complete: see [`Self::calls`] and [`Self::interpreter`].
    #[must_use]
    pub const fn new(calls: Vec<Vec<NamedFrame>>, interpreter: Vec<Range<u64>>) -> Self {
        Self {
            calls,
            interpreter,
            is_truncated: false,
            switching_libraries: &[],
        }
    }

    /// All frames, innermost first.
    pub fn frames(&self) -> impl Iterator<Item = &NamedFrame> {
        self.calls.iter().flatten()
    }

    /// Replaces each call of the interpreter in a native stack, innermost frame first, by the
    /// frames of that call. Calls without a native frame, because the native stack is truncated,
    /// are added at the end. Native frames that exceed the calls are the innermost ones, which have
    /// not begun to execute a function, or have ended doing so.
    ///
    /// Frames of code that only calls the interpreter for one function, as CPython's with `-X perf`
    /// (Python/perf_trampoline.c), are omitted if they have the function's name, or none yet.
    #[must_use]
    pub fn in_native(self, native: Vec<Frame>) -> Vec<Frame> {
        self.in_native_with(native, |frame, callee| match frame {
            Frame::Named(named) => {
                let is_unnamed = named.is_unnamed() && !frame.is_gil_wait();
                named.kind == callee.kind && (named.name() == callee.name() || is_unnamed)
            }
            Frame::Native { .. } => false,
        })
    }

    /// [`Self::in_native`] with another recognition of frames to omit: `only_calls` returns true if
    /// this frame, which called the interpreter, only does so for this function.
    #[must_use]
    pub fn in_native_with(
        self,
        native: Vec<Frame>,
        only_calls: impl Fn(&Frame, &NamedFrame) -> bool,
    ) -> Vec<Frame> {
        let is_call = |frame: &Frame| {
            let address = frame.lookup_address();
            let contains = |address| self.interpreter.iter().any(|code| code.contains(&address));
            address.is_some_and(contains)
        };
        // Of a truncated stack, it is unknown which calls are missing.
        let native_calls = native.iter().filter(|it| !self.is_truncated && is_call(it));
        let mut excess = native_calls.count().saturating_sub(self.calls.len());
        let mut calls = self.calls.into_iter().peekable();
        let mut mixed: Vec<Frame> = Vec::with_capacity(native.len());
        let mut was_call = false;
        for frame in native {
            let is_call = is_call(&frame);
            let is_trampoline = match mixed.last() {
                Some(Frame::Named(callee)) => was_call && only_calls(&frame, callee),
                _ => false,
            };
            was_call = is_call;
            if is_trampoline {
                continue;
            }
            let is_excess = is_call && excess > 0;
            excess -= usize::from(is_excess);
            match calls.next_if(|_| is_call && !is_excess) {
                Some(frames) => mixed.extend(frames.into_iter().map(Frame::from)),
                None => mixed.push(frame),
            }
        }
        mixed.extend(calls.flatten().map(Frame::from));
        mixed
    }

    /// Returns true if the file at a path is one of [`Self::switching_libraries`].
    #[must_use]
    pub fn is_switching_library(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut libraries = self.switching_libraries.iter();
        libraries.any(|library| name.starts_with(library))
    }

    /// Counts the native frames, innermost first, of the stack that the calls belong to. `None` if
    /// that is the thread's own. The last frames of another stack are in the library that began it:
    /// `switches` returns true if an address is in such a library ([`Self::is_switching_library`]).
    #[must_use]
    pub fn own_native_frames(
        &self,
        native: &[Frame],
        switches: impl Fn(u64) -> bool,
    ) -> Option<usize> {
        if self.calls.is_empty() || self.is_truncated {
            return None;
        }
        let is_in = |frame: &Frame, contains: &dyn Fn(u64) -> bool| {
            frame.lookup_address().is_some_and(contains)
        };
        let is_call = |address| self.interpreter.iter().any(|code| code.contains(&address));
        let mut calls = 0;
        let first = native.iter().position(|frame| {
            calls += usize::from(is_in(frame, &is_call));
            calls >= self.calls.len() && is_in(frame, &switches)
        })?;
        let rest = native[first..].iter();
        Some(first + rest.take_while(|frame| is_in(frame, &switches)).count())
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

    fn named(function: &str) -> NamedFrame {
        NamedFrame {
            function: function.into(),
            ..NamedFrame::default()
        }
    }

    #[test]
    fn each_call_of_the_interpreter_is_replaced_by_its_frames() {
        let stack = RuntimeStack::new(
            vec![vec![named("c"), named("b")], vec![named("a")]],
            vec![0x100..0x120, 0x120..0x200],
        );
        let [a, b, c] = ["a", "b", "c"].map(|name| Frame::from(named(name)));
        let other = Frame::native(1, 0x300);
        // A return address just after the interpreter's code still belongs to it.
        let mixed = stack
            .clone()
            .in_native(native(&[0x100, 0x300, 0x200, 0x301]));
        let last = Frame::native(3, 0x301);
        assert_eq!(mixed, [c.clone(), b.clone(), other, a.clone(), last]);
        // A truncated stack, and an empty one.
        let mixed = stack.clone().in_native(native(&[0x300, 0x101]));
        assert_eq!(
            mixed,
            [Frame::native(0, 0x300), c.clone(), b.clone(), a.clone()]
        );
        let all = [c.clone(), b.clone(), a.clone()];
        assert_eq!(stack.clone().in_native(Vec::new()), all);
        // More native calls than the runtime knows.
        let mixed = stack
            .clone()
            .in_native(native(&[0x150, 0x300, 0x150, 0x150]));
        let [first, second] = [Frame::native(0, 0x150), Frame::native(1, 0x300)];
        assert_eq!(mixed, [first, second, c.clone(), b.clone(), a]);
        let mixed = RuntimeStack {
            calls: vec![vec![named("c")]],
            is_truncated: true,
            ..stack.clone()
        };
        let last = Frame::native(1, 0x150);
        assert_eq!(mixed.in_native(native(&[0x150, 0x150])), [c.clone(), last]);
        // The first is code that calls the interpreter for `b`.
        let announced = |name: &str| {
            Frame::from(NamedFrame {
                line: 0,
                ..named(name)
            })
        };
        let mixed = RuntimeStack {
            calls: vec![vec![named("c"), named("b")]],
            ..stack.clone()
        };
        for name in ["b", "[toy]"] {
            let mut with_announced = native(&[0x150, 0x300, 0x300]);
            with_announced[1] = announced(name);
            with_announced[2] = announced(name);
            let mixed = mixed.clone().in_native(with_announced);
            assert_eq!(mixed, [c.clone(), b.clone(), announced(name)]);
        }
        let mixed = RuntimeStack {
            calls: Vec::new(),
            ..stack
        };
        assert_eq!(mixed.in_native(native(&[0x150])), native(&[0x150]));
    }

    #[test]
    fn a_stack_of_its_own_ends_in_the_library_that_began_it() {
        let own = |calls: usize, addresses: &[u64]| {
            let interpreter = vec![0x100..0x180, 0x180..0x200];
            let stack = RuntimeStack::new(vec![vec![named("a")]; calls], interpreter);
            stack.own_native_frames(&native(addresses), |address| address >> 8 == 4)
        };
        // The library calls the interpreter, and follows once more, as part of another stack.
        let addresses = [0x300, 0x150, 0x450, 0x460, 0x150, 0x450];
        assert_eq!(own(1, &addresses), Some(4));
        assert_eq!(own(2, &addresses), Some(6));
        assert_eq!(own(0, &addresses), None);
        // It was called by the interpreter.
        assert_eq!(own(1, &[0x450, 0x460, 0x150, 0x300]), None);
        // The innermost call has not begun.
        assert_eq!(own(1, &[0x150, 0x300, 0x150, 0x450, 0x150]), Some(4));
    }
}
