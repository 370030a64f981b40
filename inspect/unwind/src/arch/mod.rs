//! What differs between architectures.

mod aarch64;
mod x86_64;

use otelctx_remote::Machine;

use crate::error::Error;
use crate::rule::Rule;

/// Registers by DWARF number that are kept of a frame; the last one stands for the address of the
/// instruction in a [`ContextLayout`].
pub(crate) const REGISTERS: usize = 33;

/// Takes a rule and the address that it holds from.
pub(crate) type Write<'a> = dyn FnMut(u64, Rule) -> Result<(), Error> + 'a;

/// Reads the code before an instruction, up to it. Returns whether it could be read.
pub(crate) type ReadBefore<'a> = dyn Fn(&mut [u8]) -> bool + 'a;
/// How many first returns are searched for in a file: more than any C library has.
pub(crate) const MAX_FIRST_RETURNS: usize = 64;

/// An architecture, as far as unwinding depends on it. Registers are DWARF's numbers.
#[derive(Debug)]
pub(crate) struct Architecture {
    pub(crate) stack_pointer: u8,
    pub(crate) frame_pointer: u8,
    /// A register that functions which call others count from, where they are written in assembly.
    pub(crate) base: Option<u8>,
    /// The register in which a function finds its return address: its tables say so by saying nothing.
    /// `None`: that is on the stack.
    pub(crate) link: Option<u8>,
    /// Bytes from the stack pointer to the `ucontext_t` in a signal handler's frame.
    pub(crate) signal_context: i32,
    pub(crate) context: ContextLayout,
    /// The code to which signal handlers return: what `rt_sigreturn` is called by.
    pub(crate) sigreturn: &'static [&'static [u8]],
    /// The code to which a first function returns, where its tables do not say that it is the first
    /// one. At most 16 bytes each, as above.
    pub(crate) starts: &'static [&'static [u8]],
    /// What is behind the call in code that keeps 8 bytes of stack besides its return address, and nothing
    /// else; empty if there is no such code. CPython makes a piece of it for each function with `-X perf`,
    /// without tables (Python/asm_trampoline.S).
    pub(crate) trampoline: &'static [u8],
    /// The rule of a function without tables that has just started, or returns, by its next instructions and those before,
    /// which the second argument reads: the frame pointer is its caller's. `None` anywhere else.
    pub(crate) without_frame: fn(next: [u8; 8], before: &ReadBefore<'_>) -> Option<Rule>,
    /// The bits of a return address that are an address: the others sign it.
    pub(crate) address_mask: u64,
    /// Whose call frame instructions `gimli` expects.
    pub(crate) vendor: gimli::Vendor,
    /// Writes the rules of a section of code that linkers make.
    pub(crate) stubs: fn(bytes: &[u8], address: u64, write: &mut Write<'_>) -> Result<(), Error>,
    /// How many of these bytes, from a program's entry point on, are those of a C library's `_start` up to its
    /// call of the function that never returns. 0 if they are something else.
    pub(crate) entry: fn(code: &[u8]) -> usize,
    /// Where indirect calls return to whose result is passed to one of the functions at `ends` at once, in code from `start`
    /// on.
    pub(crate) first_returns: fn(code: &[u8], start: u64, ends: &[u64], found: &mut Vec<u64>),
}

/// Where a `ucontext_t` has the registers.
#[derive(Debug)]
pub(crate) struct ContextLayout {
    /// Offset of the first one, in bytes. The others follow.
    pub(crate) offset: u64,
    /// Their order.
    pub(crate) registers: &'static [u8],
    /// Which of them is the address of the instruction.
    pub(crate) instruction_pointer: u8,
}

impl Architecture {
    /// `None` if no stacks are unwound on this machine.
    pub(crate) fn of(machine: Machine) -> Option<&'static Self> {
        match machine {
            Machine::X86_64 => Some(&x86_64::ARCHITECTURE),
            Machine::Aarch64 => Some(&aarch64::ARCHITECTURE),
            Machine::Other(_) => None,
        }
    }
}
