//! One frame of a stack.

use std::fmt;
use std::sync::Arc;

use crate::gil::GilState;

/// One frame of a stack. A stack can mix both kinds: C may call a Python function, which calls C.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Machine code, whose function is resolved later. Created by [`Frame::instruction`] and
    /// [`Frame::return_address`].
    Native {
        /// An address in the process; in a kernel stack, in the kernel.
        address: u64,
        /// True for a return address, which may be the first address of the next function; false
        /// for the address of an instruction.
        is_return_address: bool,
    },
    /// A function that its runtime has already named.
    Named(Arc<NamedFrame>),
}

impl Frame {
    /// A frame that was interrupted at this address: the innermost one, or one that a signal
    /// handler interrupted.
    #[must_use]
    pub const fn instruction(address: u64) -> Self {
        Self::Native {
            address,
            is_return_address: false,
        }
    }

    /// A frame that called another one, which returns to this address.
    #[must_use]
    pub const fn return_address(address: u64) -> Self {
        Self::Native {
            address,
            is_return_address: true,
        }
    }

    /// The frame at this depth (0 is the innermost) of a stack of native frames.
    #[must_use]
    pub const fn native(depth: usize, address: u64) -> Self {
        Self::Native {
            address,
            is_return_address: depth > 0,
        }
    }

    /// Marks the frames that signal handlers return to as instructions: code of the kernel or of
    /// the C library that ends a signal. No call leads there, so its first address does not follow
    /// a call. Each is the frame before an interrupted one, which must be marked already.
    pub fn mark_signal_returns(stack: &mut [Self]) {
        // From the innermost frame on, so that a frame that is marked here does not mark another one.
        for depth in 1..stack.len().saturating_sub(1) {
            if let Self::Native { address, .. } = stack[depth]
                && let Self::Native {
                    is_return_address: false,
                    ..
                } = stack[depth + 1]
            {
                stack[depth] = Self::instruction(address);
            }
        }
    }

    /// Returns true for [`GilState::WAITING_FRAME`], which stands for taking an interpreter's lock.
    #[must_use]
    pub fn is_gil_wait(&self) -> bool {
        matches!(self, Self::Named(named) if named.function == GilState::WAITING_FRAME)
    }

    /// Estimates the memory that it refers to, in bytes.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Native { .. } => 0,
            Self::Named(named) => named.memory(),
        }
    }

    /// The sampled address of a native frame.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        match self {
            Self::Native { address, .. } => Some(*address),
            Self::Named(_) => None,
        }
    }

    /// The address for finding a native frame's function and line. For a return address, this is
    /// the byte before it, which belongs to the call instruction.
    #[must_use]
    pub fn lookup_address(&self) -> Option<u64> {
        match self {
            Self::Native {
                address,
                is_return_address,
            } => Some(address.saturating_sub(u64::from(*is_return_address))),
            Self::Named(_) => None,
        }
    }
}

impl From<NamedFrame> for Frame {
    fn from(named: NamedFrame) -> Self {
        Self::Named(Arc::new(named))
    }
}

/// A function named by its runtime, and the position within it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NamedFrame {
    /// The runtime that executes it.
    pub kind: FrameKind,
    /// The function's unqualified name: `checkout`.
    pub function: String,
    /// Its name with its enclosing scopes: `Shop.checkout`; empty if the runtime has none.
    pub qualified_name: String,
    /// The source file; empty if unknown.
    pub file: String,
    /// The line in the file, from 1; 0 if unknown.
    pub line: u32,
}

impl NamedFrame {
    /// Stands for this number of frames in the middle of a stack, which are not kept:
    /// `[1,488 frames omitted]`.
    #[must_use]
    pub fn omitted(count: usize) -> Self {
        let frames = if count == 1 { "frame" } else { "frames" };
        Self::marker(format!("[{} {frames} omitted]", grouped(count)))
    }

    /// Stands for all frames further in of a stack of which this number were read from its outer end.
    #[must_use]
    pub fn unknown_inside(count: usize) -> Self {
        let count = grouped(count);
        Self::incomplete(format_args!("inner frames unknown, more than {count}"))
    }

    /// Stands for all frames further out of a stack of which this number were read from its inner end.
    #[must_use]
    pub fn unknown_outside(count: usize) -> Self {
        let count = grouped(count);
        Self::incomplete(format_args!("outer frames unknown, more than {count}"))
    }

    /// Stands for missing frames, for this reason: `[incomplete: no unwind tables]`.
    #[must_use]
    pub fn incomplete(reason: impl fmt::Display) -> Self {
        Self::marker(format!("[incomplete: {reason}]"))
    }

    /// A frame that is no function.
    fn marker(function: String) -> Self {
        Self {
            kind: FrameKind::ABORT_MARKER,
            function,
            ..Self::default()
        }
    }

    /// Returns true if the function's name is unknown, and the runtime's replaces it, such as
    /// `[Python]`.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.kind != FrameKind::ABORT_MARKER
            && self.file.is_empty()
            && self.function.starts_with('[')
            && self.function.ends_with(']')
    }

    /// The name to show: the qualified name if there is one.
    #[must_use]
    pub fn name(&self) -> &str {
        match self.qualified_name.as_str() {
            "" => &self.function,
            name => name,
        }
    }

    /// Estimates its memory, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.function.len() + self.qualified_name.len() + self.file.len()
    }
}

/// Formats a number with separated thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The runtime that executes a [`NamedFrame`]: the value of `profile.frame.type` in OTLP. The
/// constants are the values of the semantic conventions; other runtimes use other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameKind(&'static str);

impl FrameKind {
    /// CPython.
    pub const CPYTHON: Self = Self("cpython");
    /// V8, as in Node.js.
    pub const V8JS: Self = Self("v8js");
    /// Go.
    pub const GO: Self = Self("go");
    /// A Java virtual machine.
    pub const JVM: Self = Self("jvm");
    /// .NET.
    pub const DOTNET: Self = Self("dotnet");
    /// Ruby.
    pub const RUBY: Self = Self("ruby");
    /// PHP.
    pub const PHP: Self = Self("php");
    /// Erlang and Elixir.
    pub const BEAM: Self = Self("beam");
    /// Native code that a runtime has named.
    pub const NATIVE: Self = Self("native");
    /// Stands for missing frames, and is no function: the end of an incomplete stack
    /// ([`StackEnd::marker`](crate::StackEnd::marker)), or [`NamedFrame::omitted`].
    /// The value is that of OpenTelemetry's eBPF profiler (`libpf/frametype.go`).
    pub const ABORT_MARKER: Self = Self("abort-marker");

    /// Another runtime, by convention its name in lower case.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The value of `profile.frame.type`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl Default for FrameKind {
    fn default() -> Self {
        Self::NATIVE
    }
}

impl fmt::Display for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_looked_up_and_not_what_follows_it() {
        assert_eq!(Frame::native(0, 0x10).lookup_address(), Some(0x10));
        assert_eq!(Frame::native(1, 0x10), Frame::return_address(0x10));
        assert_eq!(Frame::return_address(0x10).lookup_address(), Some(0xf));
        assert_eq!(Frame::return_address(0).lookup_address(), Some(0));
        let named = Frame::from(NamedFrame::default());
        assert_eq!((named.address(), named.lookup_address()), (None, None));
    }

    #[test]
    fn what_a_signal_handler_returns_to_was_not_called() {
        let (called, at) = (Frame::return_address, Frame::instruction);
        let mut stack = [
            at(1),
            called(2),
            called(3),
            at(4),
            called(5),
            at(6),
            called(7),
        ];
        Frame::mark_signal_returns(&mut stack);
        let expected = [at(1), called(2), at(3), at(4), at(5), at(6), called(7)];
        assert_eq!(stack, expected);
        let mut short = [called(1)];
        Frame::mark_signal_returns(&mut short);
        Frame::mark_signal_returns(&mut []);
        assert_eq!(short, [called(1)]);
    }

    #[test]
    fn a_qualified_name_is_shown_where_there_is_one() {
        let mut frame = NamedFrame {
            function: "checkout".into(),
            ..NamedFrame::default()
        };
        assert_eq!(frame.name(), "checkout");
        frame.qualified_name = "Shop.checkout".into();
        assert_eq!(frame.name(), "Shop.checkout");
    }

    #[test]
    fn markers_say_how_many_frames_are_missing() {
        let text = |frame: NamedFrame| (frame.is_unnamed(), frame.function);
        for (count, expected) in [
            (1, "[1 frame omitted]"),
            (999, "[999 frames omitted]"),
            (1488, "[1,488 frames omitted]"),
            (1_000_000, "[1,000,000 frames omitted]"),
        ] {
            let expected = (false, expected.to_owned());
            assert_eq!(text(NamedFrame::omitted(count)), expected);
        }
        let expected = "[incomplete: outer frames unknown, more than 4,096]".to_owned();
        assert_eq!(text(NamedFrame::unknown_outside(4096)), (false, expected));
    }

    /// Every frame of an interned stack takes this much memory.
    #[test]
    fn a_frame_takes_two_words() {
        assert_eq!(size_of::<Frame>(), 16);
    }
}
