//! Differences between architectures.

mod aarch64;
mod x86_64;

use otelctx_remote::Machine;

use crate::error::Error;
use crate::instructions::CodeReader;
use crate::rule::Rule;

/// Takes a rule and the address that it holds from.
pub(crate) type Write<'a> = dyn FnMut(u64, Rule) -> Result<(), Error> + 'a;

/// Reads the code before an instruction, up to it. Returns whether it could be read.
pub(crate) type ReadBefore<'a> = dyn Fn(&mut [u8]) -> bool + 'a;
/// Maximum number of first returns that are searched for in a file: more than any C library has.
pub(crate) const MAX_FIRST_RETURNS: usize = 64;

/// An architecture, as far as unwinding depends on it. Registers are DWARF's numbers.
#[derive(Debug)]
pub(crate) struct Architecture {
    pub(crate) stack_pointer: u8,
    pub(crate) frame_pointer: u8,
    /// The register that some assembly functions compute the CFA from, across calls.
    pub(crate) base: Option<u8>,
    /// The register with the return address, unless the tables have another rule.
    pub(crate) link: Option<u8>,
    /// Bytes from the stack pointer to the `ucontext_t` in a signal handler's frame.
    pub(crate) signal_context: i32,
    pub(crate) context: ContextLayout,
    /// The code to which signal handlers return, which calls `rt_sigreturn`.
    pub(crate) sigreturn: &'static [&'static [u8]],
    /// The code, up to 16 bytes each, to which a first function without a mark returns.
    pub(crate) starts: &'static [&'static [u8]],
    /// The code after the call in a trampoline of CPython with `-X perf` (Python/asm_trampoline.S),
    /// which has no tables, and whose frame has 8 bytes and the return address. May be empty.
    pub(crate) trampoline: &'static [u8],
    /// Returns the rule of a function without tables that has just started or is about to return,
    /// by its next instructions and the previous ones, which `before` reads.
    pub(crate) without_frame: fn(next: [u8; 8], before: &ReadBefore<'_>) -> Option<Rule>,
    /// Returns whether the code seems to have removed its frame and to leave the function: then the word at the stack pointer
    /// is the return address.
    pub(crate) has_left: fn(next: [u8; 8], before: &ReadBefore<'_>) -> bool,
    /// The instruction by which generated code that is an outermost frame clears the frame pointer before a call. Empty where
    /// none is known that compilers do not use for other data.
    pub(crate) clears_frame_pointer: &'static [u8],
    /// Returns whether the bytes before an instruction end with a call.
    pub(crate) is_behind_call: fn(before: [u8; 8]) -> bool,
    /// The bits of a return address that are an address: the others sign it.
    pub(crate) address_mask: u64,
    /// The extension of call frame instructions that `gimli` decodes.
    pub(crate) vendor: gimli::Vendor,
    /// Writes the rules of a section of code that linkers make.
    pub(crate) stubs: fn(bytes: &[u8], address: u64, write: &mut Write<'_>) -> Result<(), Error>,
    /// Returns the size of a C library's `_start` up to its call of the function that never
    /// returns, given the code at a program's entry point; 0 for other code.
    pub(crate) entry: fn(code: &[u8]) -> usize,
    /// Adds to `found` the return addresses of indirect calls whose result is immediately passed to
    /// one of the functions at `ends`. The code is at `start`.
    pub(crate) first_returns: fn(code: &[u8], start: u64, ends: &[u64], found: &mut Vec<u64>),
    /// Returns the rule where a function of Go, which may be written in assembly, has moved the stack pointer by that
    /// many bytes.
    pub(crate) go: fn(size: i32, is_assembly: bool) -> Rule,
    /// Makes rules of instructions.
    pub(crate) code: CodeReader,
}

#[derive(Debug)]
pub(crate) struct ContextLayout {
    /// Offset of the first register, in bytes.
    pub(crate) offset: u64,
    pub(crate) registers: &'static [u8],
    /// The register with the address of the instruction.
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
