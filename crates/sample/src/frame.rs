//! One frame of a stack.

use std::fmt;
use std::sync::Arc;

/// One frame of a stack. A stack mixes both kinds: a Python function may be called from C, and call C.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Machine code, whose function is resolved later: [`Frame::instruction`] and
    /// [`Frame::return_address`] make one.
    Native {
        /// An address in the process; in a kernel stack, in the kernel.
        address: u64,
        /// Whether this is the address behind a call, which may be the first of the next function.
        /// Otherwise it is that of an instruction.
        is_return_address: bool,
    },
    /// A function that its runtime has named already.
    Named(Arc<NamedFrame>),
}

impl Frame {
    /// A frame that was interrupted at this address: the innermost one, or one below a signal
    /// handler.
    #[must_use]
    pub const fn instruction(address: u64) -> Self {
        Self::Native {
            address,
            is_return_address: false,
        }
    }

    /// A frame that has called another one, which returns to this address.
    #[must_use]
    pub const fn return_address(address: u64) -> Self {
        Self::Native {
            address,
            is_return_address: true,
        }
    }

    /// The frame at this depth (0 is the innermost) of a stack that has native frames only.
    #[must_use]
    pub const fn native(depth: usize, address: u64) -> Self {
        Self::Native {
            address,
            is_return_address: depth > 0,
        }
    }

    /// Bytes of text that it has beside itself.
    pub(crate) fn text_size(&self) -> usize {
        match self {
            Self::Native { .. } => 0,
            Self::Named(named) => {
                let texts = [&named.function, &named.qualified_name, &named.file];
                size_of::<NamedFrame>() + texts.map(String::len).iter().sum::<usize>()
            }
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

    /// The address that a native frame's function and line are looked up by: of a return address
    /// the byte before it, which belongs to the call.
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

/// A function, named by its runtime, and where in it the thread was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NamedFrame {
    /// What executes it.
    pub kind: FrameKind,
    /// The function's own name: `checkout`.
    pub function: String,
    /// Its name with what it is defined in: `Shop.checkout`; empty if the runtime has none.
    pub qualified_name: String,
    /// The source file; empty if unknown.
    pub file: String,
    /// The line in it, from 1; 0 if unknown.
    pub line: u32,
}

impl NamedFrame {
    /// The name to show: the qualified one if there is one.
    #[must_use]
    pub fn name(&self) -> &str {
        match self.qualified_name.as_str() {
            "" => &self.function,
            name => name,
        }
    }
}

/// What executes the code of a [`NamedFrame`]: the value of `profile.frame.type` in OTLP. The
/// semantic conventions list these; another runtime has a value of its own.
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
    /// Erlang and Elixir.
    pub const BEAM: Self = Self("beam");
    /// Native code that its runtime has named.
    pub const NATIVE: Self = Self("native");

    /// Another one: lowercase letters, as a rule the runtime's name.
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
    fn a_qualified_name_is_shown_where_there_is_one() {
        let mut frame = NamedFrame {
            function: "checkout".into(),
            ..NamedFrame::default()
        };
        assert_eq!(frame.name(), "checkout");
        frame.qualified_name = "Shop.checkout".into();
        assert_eq!(frame.name(), "Shop.checkout");
    }

    /// A stack has one for each of its frames while it is interned.
    #[test]
    fn a_frame_takes_two_words() {
        assert_eq!(size_of::<Frame>(), 16);
    }
}
