//! Where a function was interrupted while it built its frame, or after it had left it.

use crate::code::Code;
use crate::heap::{Heap, Object};

/// Bytes of a function's code in which it builds its frame.
const PROLOGUE: usize = 64;
/// `push rbp; mov rbp, rsp`, with both encodings.
const BUILDS_FRAME: [[u8; 4]; 2] = [[0x55, 0x48, 0x89, 0xe5], [0x55, 0x48, 0x8b, 0xec]];
/// Bytes of the instructions behind that, which put the context and the function into the frame: `push rsi; push rdi`.
const FILLS_FRAME: u64 = 2;
/// `ret`, and `ret n`.
const RETURNS: [u8; 2] = [0xc3, 0xc2];

/// Where an interrupted function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its return address is on top of the stack, and its function in a register.
    Entered,
    /// The frame pointer of its caller is on top of that.
    Pushed,
    /// Its frame pointer is there, and its function still in the register alone.
    Unfilled,
    /// Its frame is there.
    Built,
    /// It is about to return: its frame is gone.
    Returning,
}

impl Stage {
    /// The stage at an instruction, which is in `code`, if that was generated.
    pub(crate) fn at(heap: &Heap<'_>, pc: u64, code: Option<&Code>) -> Self {
        let mut there = [0; 4];
        if heap.memory.read(pc, &mut there).is_err() {
            return Self::Built;
        }
        if BUILDS_FRAME.contains(&there) {
            return Self::Entered;
        }
        if RETURNS.contains(&there[0]) {
            return Self::Returning;
        }
        let is_pushed = BUILDS_FRAME.iter().any(|code| there[..3] == code[1..]);
        let mut before = [0];
        let is_read = heap.memory.read(pc.wrapping_sub(1), &mut before).is_ok();
        if is_pushed && is_read && before[0] == BUILDS_FRAME[0][0] {
            return Self::Pushed;
        }
        let in_code = code.and_then(|code| Self::in_prologue(heap, pc, code));
        in_code.unwrap_or(Self::Built)
    }

    /// The stage at an instruction before the end of a function's prologue. Optimized functions check first whether their code
    /// is still valid.
    fn in_prologue(heap: &Heap<'_>, pc: u64, code: &Code) -> Option<Self> {
        let distance = pc.checked_sub(code.range.start)?;
        let mut prologue = [0; PROLOGUE];
        heap.memory.read(code.range.start, &mut prologue).ok()?;
        let builds = |bytes: &[u8]| BUILDS_FRAME.iter().any(|code| bytes == code);
        let built = prologue.windows(4).position(builds)? as u64;
        let filled = built + 4;
        if distance < built {
            Some(Self::Entered)
        } else if (filled..filled + FILLS_FRAME).contains(&distance) {
            Some(Self::Unfilled)
        } else {
            None
        }
    }
}

impl Heap<'_> {
    /// Returns whether generated code is a function's. `None` if it does not say.
    pub(crate) fn is_code_of(&self, code: &Code, shared: Object) -> Option<bool> {
        if self.is_optimized(code) {
            Some(self.optimized_function(code)? == shared)
        } else if self.is_baseline(code) {
            Some(self.bytecode_of(code)? == self.bytecode(shared)?)
        } else if self.is_interpreter(code) {
            Some(self.interpreter_of(shared)? == code.object)
        } else {
            None
        }
    }
}
