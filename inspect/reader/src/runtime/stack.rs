//! The frames of a thread that its runtime knows, in its native stack.

use std::ops::Range;
use std::sync::Arc;

use otelctx_sample::{Frame, FrameKind, NamedFrame};

/// The frames of a thread that its runtime knows.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RuntimeStack {
    /// The frames, innermost first, grouped by calls of the interpreter, innermost first.
    pub calls: Vec<Vec<NamedFrame>>,
    /// The code of the interpreter, if any: each native frame in it represents one of the calls.
    pub interpreter: Vec<Range<u64>>,
    /// The code of single instructions, if calls of the interpreter call a function for each: a native frame in it belongs
    /// to the call whose frame is the next one.
    pub instructions: Arc<[Range<u64>]>,
    /// The addresses that calls of the interpreter return to, in ascending order: generated code whose caller returns
    /// to one of them represents a call, too.
    pub callers: Arc<[u64]>,
    /// Outer frames are missing.
    pub is_truncated: bool,
    /// Prefixes of the file names of libraries that let a thread execute on several stacks, such as
    /// greenlet's. The frames are those of one stack.
    pub switching_libraries: &'static [&'static str],
}

/// What a native frame stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Native,
    /// A call of the interpreter.
    Call,
    /// The instruction that the call whose frame is the next one executes.
    Instruction,
}

/// Facts about the frames of a native stack.
pub trait NativeFrames {
    /// Returns true if this frame, which called the interpreter, only does so for this function.
    fn only_calls(&self, frame: &Frame, callee: &NamedFrame) -> bool;

    /// Returns true if the runtime of this kind may have generated the code of this frame, and has
    /// not announced its name.
    fn is_generated(&self, frame: &Frame, kind: FrameKind) -> bool;
}

impl RuntimeStack {
    /// Creates a stack that is complete: see [`Self::calls`] and [`Self::interpreter`].
    #[must_use]
    pub fn new(calls: Vec<Vec<NamedFrame>>, interpreter: Vec<Range<u64>>) -> Self {
        Self {
            calls,
            interpreter,
            instructions: Arc::default(),
            callers: Arc::default(),
            is_truncated: false,
            switching_libraries: &[],
        }
    }

    /// All frames, innermost first.
    pub fn frames(&self) -> impl Iterator<Item = &NamedFrame> {
        self.calls.iter().flatten()
    }

    /// Replaces each call of the interpreter in a native stack, innermost frame first, by the
    /// frames of that call. Calls without a native frame, because the native stack is incomplete,
    /// are added at the end. Native frames that exceed the calls are the innermost ones, which have
    /// not begun to execute a function, or have ended doing so.
    ///
    /// If the native stack reaches its start, no call can be further out: those without a native frame
    /// follow the last one with a native frame, and [`Self::MISPLACED`] says that their place is unknown.
    ///
    /// Frames of code that only calls the interpreter for one function, as CPython's with `-X perf`
    /// (Python/perf_trampoline.c), are omitted if they have the function's name, or none yet.
    #[must_use]
    pub fn in_native(self, native: Vec<Frame>, reaches_start: bool) -> Vec<Frame> {
        struct ByNames;
        impl NativeFrames for ByNames {
            fn only_calls(&self, frame: &Frame, callee: &NamedFrame) -> bool {
                let has_name =
                    |named: &NamedFrame| named.kind == callee.kind && named.name() == callee.name();
                matches!(frame, Frame::Named(named) if has_name(named))
                    || self.is_generated(frame, callee.kind)
            }

            fn is_generated(&self, frame: &Frame, kind: FrameKind) -> bool {
                let is_it = |named: &NamedFrame| named.kind == kind && named.is_unnamed();
                matches!(frame, Frame::Named(named) if is_it(named)) && !frame.is_gil_wait()
            }
        }
        self.in_native_with(native, reaches_start, &ByNames)
    }

    /// [`Self::in_native`] with another recognition of native frames.
    #[must_use]
    pub fn in_native_with(
        self,
        native: Vec<Frame>,
        reaches_start: bool,
        frames: &impl NativeFrames,
    ) -> Vec<Frame> {
        let places = self.places(&native, frames);
        // Of a truncated stack, it is unknown which calls are missing.
        let native_calls = places
            .iter()
            .filter(|it| **it == Place::Call && !self.is_truncated);
        let mut excess = native_calls.count().saturating_sub(self.calls.len());
        let mut calls = self.calls.into_iter().peekable();
        let mut mixed: Vec<Frame> = Vec::with_capacity(native.len());
        let (mut was_call, mut after_last, length) = (false, None, native.len());
        for (index, (frame, place)) in native.into_iter().zip(places).enumerate() {
            let is_call = place == Place::Call;
            // Without functions, the call has only its native frames.
            if place == Place::Instruction && excess == 0 && calls.peek().is_some() {
                was_call = false;
                continue;
            }
            let is_trampoline = match mixed.last() {
                Some(Frame::Named(callee)) => was_call && frames.only_calls(&frame, callee),
                _ => false,
            };
            was_call = is_call;
            if is_trampoline {
                continue;
            }
            // All that is left belongs inside of the frame that the thread started with.
            if index + 1 == length && !is_call && after_last.is_none() {
                after_last = Some(mixed.len());
            }
            let is_excess = is_call && excess > 0;
            excess -= usize::from(is_excess);
            match calls.next_if(|_| is_call && !is_excess) {
                Some(frames) => {
                    mixed.extend(frames.into_iter().map(Frame::from));
                    after_last = Some(mixed.len());
                }
                None => mixed.push(frame),
            }
        }
        let left = calls.flatten().map(Frame::from).collect::<Vec<_>>();
        let is_function = |frame: &Frame| !matches!(frame, Frame::Named(it) if it.kind == FrameKind::ABORT_MARKER);
        let at = after_last.filter(|_| reaches_start).unwrap_or(mixed.len());
        let is_misplaced = reaches_start && length > 0 && left.iter().any(is_function);
        let marker = is_misplaced.then(|| Frame::from(NamedFrame::incomplete(Self::MISPLACED)));
        mixed.splice(at..at, marker.into_iter().chain(left));
        mixed
    }

    /// Why a stack is incomplete that has calls without a native frame, though that reaches its start.
    pub const MISPLACED: &'static str = "place of the callers unknown";

    /// Returns true if a stack has calls whose place among its native frames is unknown.
    #[must_use]
    pub fn is_misplaced(mixed: &[Frame]) -> bool {
        let marker = Frame::from(NamedFrame::incomplete(Self::MISPLACED));
        mixed.contains(&marker)
    }

    /// Returns for each native frame what it stands for by its code.
    fn places_by_code(&self, native: &[Frame]) -> Vec<Place> {
        let is_in = |frame: &Frame, code: &[Range<u64>]| {
            let address = frame.lookup_address();
            address.is_some_and(|address| code.iter().any(|code| code.contains(&address)))
        };
        let is_loop = |frame: &Frame| is_in(frame, &self.interpreter);
        let place = |(index, frame): (usize, &Frame)| {
            if is_loop(frame) {
                Place::Call
            } else if !is_in(frame, &self.instructions) {
                Place::Native
            } else if native.get(index + 1).is_some_and(is_loop) {
                Place::Instruction
            } else {
                // The frame of its call is missing.
                Place::Call
            }
        };
        native.iter().enumerate().map(place).collect()
    }

    /// Returns for each native frame what it stands for.
    fn places(&self, native: &[Frame], frames: &impl NativeFrames) -> Vec<Place> {
        let by_code = self.places_by_code(native);
        let mut places = by_code.clone();
        let kind = self.frames().next().map(|frame| frame.kind);
        let Some(kind) = kind.filter(|_| !self.callers.is_empty()) else {
            return places;
        };
        let calls_it = |frame: &Frame| {
            let address = frame.address();
            address.is_some_and(|address| self.callers.binary_search(&address).is_ok())
        };
        // Code that the interpreter has generated has its frame pointer, which leads to its caller.
        for index in 1..native.len() {
            let is_generated = frames.is_generated(&native[index - 1], kind);
            // That which has called the loop itself only calls it for one function.
            let is_trampoline = index > 1 && by_code[index - 2] == Place::Call;
            if is_generated && !is_trampoline && calls_it(&native[index]) {
                places[index - 1] = Place::Call;
            }
        }
        places
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
        let is_switch = |frame: &Frame| frame.lookup_address().is_some_and(&switches);
        let mut calls = 0;
        let mut places = self.places_by_code(native).into_iter();
        let first = native.iter().position(|frame| {
            calls += usize::from(places.next() == Some(Place::Call));
            calls >= self.calls.len() && is_switch(frame)
        })?;
        let rest = native[first..].iter();
        Some(first + rest.take_while(|frame| is_switch(frame)).count())
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

    /// The code of an evaluation loop.
    fn loops() -> Vec<Range<u64>> {
        let start = 0x100;
        std::iter::once(start..start + 0x100).collect()
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
            .in_native(native(&[0x100, 0x300, 0x200, 0x301]), false);
        let last = Frame::native(3, 0x301);
        assert_eq!(mixed, [c.clone(), b.clone(), other, a.clone(), last]);
        // A truncated stack, and an empty one.
        let mixed = stack.clone().in_native(native(&[0x300, 0x101]), false);
        assert_eq!(
            mixed,
            [Frame::native(0, 0x300), c.clone(), b.clone(), a.clone()]
        );
        let all = [c.clone(), b.clone(), a.clone()];
        assert_eq!(stack.clone().in_native(Vec::new(), false), all);
        // More native calls than the runtime knows.
        let mixed = stack
            .clone()
            .in_native(native(&[0x150, 0x300, 0x150, 0x150]), false);
        let [first, second] = [Frame::native(0, 0x150), Frame::native(1, 0x300)];
        assert_eq!(mixed, [first, second, c.clone(), b.clone(), a]);
        let mixed = RuntimeStack {
            calls: vec![vec![named("c")]],
            is_truncated: true,
            ..stack.clone()
        };
        let last = Frame::native(1, 0x150);
        assert_eq!(
            mixed.in_native(native(&[0x150, 0x150]), false),
            [c.clone(), last]
        );
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
            let mixed = mixed.clone().in_native(with_announced, false);
            assert_eq!(mixed, [c.clone(), b.clone(), announced(name)]);
        }
        let mixed = RuntimeStack {
            calls: Vec::new(),
            ..stack
        };
        assert_eq!(mixed.in_native(native(&[0x150]), false), native(&[0x150]));
    }

    /// The code that a runtime has generated, without a name.
    fn generated() -> Frame {
        Frame::from(NamedFrame {
            kind: FrameKind::CPYTHON,
            function: "[Python]".into(),
            ..NamedFrame::default()
        })
    }

    /// Functions of CPython, and their frames.
    fn functions<const N: usize>(names: [&str; N]) -> ([NamedFrame; N], [Frame; N]) {
        let named = names.map(|name| NamedFrame {
            kind: FrameKind::CPYTHON,
            file: "shop.py".into(),
            ..named(name)
        });
        (named.clone(), named.map(Frame::from))
    }

    /// As in CPython with tail calls: a call has a frame of the loop and one of the instruction that it executes.
    #[test]
    fn the_instruction_that_a_call_executes_is_part_of_it() {
        let mut stack = RuntimeStack::new(vec![vec![named("b")], vec![named("a")]], loops());
        stack.instructions = Arc::new([0x400..0x480, 0x500..0x580]);
        let [a, b] = ["a", "b"].map(|name| Frame::from(named(name)));
        let mixed = |stack: &RuntimeStack, addresses: &[u64]| {
            stack.clone().in_native(native(addresses), true)
        };
        let [callee, caller] = [Frame::native(2, 0x300), Frame::native(5, 0x301)];
        let addresses = [0x410, 0x110, 0x300, 0x510, 0x120, 0x301];
        assert_eq!(
            mixed(&stack, &addresses),
            [b.clone(), callee, a.clone(), caller]
        );
        // Without a frame of the loop, it stands for the call.
        let caller = Frame::native(2, 0x301);
        let middle = Frame::native(1, 0x300);
        assert_eq!(
            mixed(&stack, &[0x410, 0x300, 0x510, 0x302]),
            [b.clone(), middle, a.clone(), Frame::native(3, 0x302)]
        );
        // The innermost call has no function yet.
        stack.calls.remove(0);
        let innermost = [Frame::native(0, 0x410), Frame::native(1, 0x110)];
        let [first, second] = innermost;
        assert_eq!(
            mixed(&stack, &[0x410, 0x110, 0x301, 0x510, 0x120, 0x302]),
            [first, second, caller, a, Frame::native(5, 0x302)]
        );
        // Of a stack that was cut, it is unknown which calls have functions.
        stack.is_truncated = true;
        let library = |address| (0x600..0x680).contains(&address);
        assert_eq!(
            stack.own_native_frames(&native(&[0x410, 0x110, 0x610]), library),
            None
        );
        stack.is_truncated = false;
        let addresses = [0x410, 0x110, 0x610, 0x510, 0x120, 0x302];
        assert_eq!(
            stack.own_native_frames(&native(&addresses), library),
            Some(3)
        );
    }

    #[test]
    fn generated_code_with_the_interpreter_s_caller_is_a_call() {
        let ([a, b, c], [in_a, in_b, in_c]) = functions(["a", "b", "c"]);
        let mut stack = RuntimeStack::new(vec![vec![c], vec![b], vec![a]], loops());
        stack.callers = Arc::new([0x300, 0x310]);
        let call = |address| Frame::return_address(address);
        let mixed = |native: &[Frame]| stack.clone().in_native(native.to_vec(), true);
        // The loop, generated code whose caller called the loop, and the loop.
        let native = [
            call(0x150),
            call(0x300),
            generated(),
            call(0x310),
            call(0x150),
            call(0x400),
        ];
        let expected = [
            &in_c,
            &call(0x300),
            &in_b,
            &call(0x310),
            &in_a,
            &call(0x400),
        ];
        assert_eq!(mixed(&native), expected.map(Clone::clone));
        // Generated code that the loop called, and code of a library that generates some, too.
        let native = [
            generated(),
            call(0x150),
            call(0x330),
            generated(),
            call(0x320),
            call(0x150),
            call(0x300),
            call(0x150),
            call(0x400),
        ];
        let expected = [
            &generated(),
            &in_c,
            &call(0x330),
            &generated(),
            &call(0x320),
            &in_b,
            &call(0x300),
            &in_a,
            &call(0x400),
        ];
        assert_eq!(mixed(&native), expected.map(Clone::clone));
        // Code that has called the loop.
        let native = [
            call(0x150),
            generated(),
            call(0x300),
            call(0x150),
            call(0x400),
        ];
        assert_eq!(
            mixed(&native)[..3],
            [in_c.clone(), call(0x300), in_b.clone()]
        );
        // Code that has a name is no call.
        let announced = Frame::from(named("py::f"));
        let native = [announced.clone(), call(0x300)];
        assert_eq!(mixed(&native)[..1], [announced]);
    }

    #[test]
    fn no_call_is_further_out_than_the_start() {
        let ([a, b, c], [in_a, in_b, in_c]) = functions(["a", "b", "c"]);
        let stack = RuntimeStack::new(vec![vec![c], vec![b], vec![a]], loops());
        let call = |address| Frame::return_address(address);
        let marker = Frame::from(NamedFrame::incomplete(RuntimeStack::MISPLACED));
        let native = [call(0x300), call(0x150), call(0x310), call(0x320)];
        let mixed = |native: &[Frame], reaches_start| {
            let mixed = stack.clone().in_native(native.to_vec(), reaches_start);
            assert_eq!(RuntimeStack::is_misplaced(&mixed), reaches_start);
            mixed
        };
        let expected = [
            &call(0x300),
            &in_c,
            &marker,
            &in_b,
            &in_a,
            &call(0x310),
            &call(0x320),
        ];
        assert_eq!(mixed(&native, true), expected.map(Clone::clone));
        let expected = [
            &call(0x300),
            &in_c,
            &call(0x310),
            &call(0x320),
            &in_b,
            &in_a,
        ];
        assert_eq!(mixed(&native, false), expected.map(Clone::clone));
        // No native frame is a call.
        let native = [call(0x300), call(0x310), call(0x320)];
        let expected = [
            &call(0x300),
            &call(0x310),
            &marker,
            &in_c,
            &in_b,
            &in_a,
            &call(0x320),
        ];
        assert_eq!(mixed(&native, true), expected.map(Clone::clone));
        let native = [call(0x320)];
        let expected = [&marker, &in_c, &in_b, &in_a, &call(0x320)];
        assert_eq!(mixed(&native, true), expected.map(Clone::clone));
        let native = [call(0x150)];
        assert_eq!(
            mixed(&native, true),
            [&in_c, &marker, &in_b, &in_a].map(Clone::clone)
        );
    }

    /// Calls whose frames are omitted have native frames, which are omitted with them.
    #[test]
    fn omitted_calls_keep_their_places() {
        let ([a, b], [in_a, in_b]) = functions(["a", "b"]);
        let omitted = NamedFrame::omitted(2);
        let in_omitted = Frame::from(omitted.clone());
        let calls = vec![vec![b, omitted], vec![], vec![a]];
        let stack = RuntimeStack::new(calls, loops());
        let call = |address| Frame::return_address(address);
        let native = [0x150, 0x300, 0x150, 0x310, 0x150, 0x320].map(call);
        let mixed = stack.in_native(native.to_vec(), true);
        let expected = [
            &in_b,
            &in_omitted,
            &call(0x300),
            &call(0x310),
            &in_a,
            &call(0x320),
        ];
        assert_eq!(mixed, expected.map(Clone::clone));
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
