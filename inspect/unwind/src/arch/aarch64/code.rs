//! Rules of a function that no table describes, from its instructions.

mod extent;
mod state;

use otelctx_remote::a64::{self, STACK_POINTER};

use self::state::State;
use crate::instruction_set::{self, Flow, InstructionSet};
use crate::instructions::{Call, CodeReader, CodeWork, FunctionCode};
use crate::paths;

/// Size of an instruction, in bytes.
const SIZE: u64 = 4;
/// Maximum size of the padding behind a function, in bytes. Compilers align functions to 64 bytes at most.
const MAX_PADDING: usize = 64;
/// Functions that are preceded by padding are aligned to this many bytes.
const ALIGNMENT: u64 = 8;

const NOP: u32 = 0xd503_201f;
/// Zeros are an instruction that is never defined (UDF #0).
const ZERO: u32 = 0;
/// Instructions that functions start with, if their branches are protected: bti c; paciasp; pacibsp.
const MARKS: [u32; 3] = [0xd503_245f, 0xd503_233f, 0xd503_237f];

pub(super) const READER: CodeReader = CodeReader {
    function: paths::function::<A64>,
    extent: extent::extent,
    calls,
    next_instruction: |_, start, at| {
        start.wrapping_add(at.saturating_sub(start).next_multiple_of(SIZE))
    },
    call_ends,
    addresses: |_, _| Vec::new(),
    starts_of_coroutines: |_, _| Vec::new(),
    records: |_, _| Box::new(std::iter::empty()),
    may_start,
    skip_padding,
};

struct A64;

/// An instruction at an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoded {
    at: u64,
    instruction: a64::Instruction,
}

/// The instructions from an address on.
pub(super) struct Decoder<'a> {
    code: std::slice::Iter<'a, [u8; 4]>,
    at: u64,
}

impl Iterator for Decoder<'_> {
    type Item = Decoded;

    fn next(&mut self) -> Option<Decoded> {
        let word = u32::from_le_bytes(*self.code.next()?);
        let at = self.at;
        self.at = at.wrapping_add(SIZE);
        let instruction = a64::Instruction::decode(word, at);
        Some(Decoded { at, instruction })
    }
}

impl InstructionSet for A64 {
    type Instruction = Decoded;
    type State = State;
    type Decoder<'a> = Decoder<'a>;

    fn decode<'a>(code: &FunctionCode<'a>, start: u64) -> Option<Decoder<'a>> {
        // The processor refuses other addresses.
        let is_aligned = start.is_multiple_of(SIZE);
        code.from(start)
            .filter(|_| is_aligned)
            .map(|bytes| decoded(bytes, start))
    }

    fn may_start_behind_call(code: &FunctionCode<'_>, at: u64) -> bool {
        at.is_multiple_of(ALIGNMENT) || may_be_first(code, at)
    }

    fn is_inside_function(_: &FunctionCode<'_>, _: u64, _: &mut CodeWork) -> Option<bool> {
        Some(false)
    }

    fn padding_end(code: &FunctionCode<'_>, at: u64, work: &mut CodeWork) -> Option<Option<u64>> {
        padding_end(code, at, work)
    }

    fn skip_padding(code: &FunctionCode<'_>, start: u64, work: &mut CodeWork) -> u64 {
        skip_padding(code, start, work)
    }

    fn is_table_jump(jump: &Decoded, before: Option<&Decoded>) -> bool {
        let (a64::Instruction::IndirectJump { register }, Some(before)) =
            (jump.instruction, before)
        else {
            return false;
        };
        matches!(before.instruction, a64::Instruction::Sum { to, .. } if to == register)
    }
}

impl instruction_set::Instruction for Decoded {
    fn next(&self) -> u64 {
        self.at.wrapping_add(SIZE)
    }

    fn is_valid(&self) -> bool {
        self.instruction != a64::Instruction::Invalid
    }

    fn flow(&self) -> Flow {
        match self.instruction {
            a64::Instruction::Jump { target } => Flow::Jump(target),
            a64::Instruction::ConditionalJump { target } => Flow::Conditional(target),
            a64::Instruction::IndirectJump { .. } => Flow::IndirectJump,
            a64::Instruction::Return { .. } => Flow::Return,
            _ => Flow::Next,
        }
    }

    fn is_call(&self) -> bool {
        matches!(
            self.instruction,
            a64::Instruction::Call { .. } | a64::Instruction::IndirectCall { .. }
        )
    }

    fn called(&self) -> Option<u64> {
        match self.instruction {
            a64::Instruction::Call { target } => Some(target),
            _ => None,
        }
    }

    fn address(&self) -> Option<u64> {
        match self.instruction {
            a64::Instruction::Address { address, .. } => Some(address),
            _ => None,
        }
    }
}

fn word_at(code: &FunctionCode<'_>, at: u64) -> Option<u32> {
    let bytes = code.from(at)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// The instructions of code at an address.
fn decoded(code: &[u8], at: u64) -> Decoder<'_> {
    let (words, _) = code.as_chunks();
    let code = words.iter();
    Decoder { code, at }
}

/// Returns whether functions that build a frame start with the code at an address: it marks a start, or makes room on the
/// stack. GCC does not align functions that it considers unlikely.
fn may_be_first(code: &FunctionCode<'_>, at: u64) -> bool {
    let instruction = |at| word_at(code, at).map(|word| a64::Instruction::decode(word, at));
    let makes_room = match instruction(at) {
        Some(a64::Instruction::Add { to, from, number }) => {
            (to, from) == (STACK_POINTER, STACK_POINTER) && number < 0
        }
        Some(a64::Instruction::Access(access)) => {
            let moves = access.base_moves.unwrap_or_default();
            access.base == STACK_POINTER && !access.is_load && moves < 0
        }
        // Much of it.
        Some(a64::Instruction::Number { to: size, .. }) => {
            let subtraction = a64::Instruction::Sum {
                to: STACK_POINTER,
                from: STACK_POINTER,
                by: Some(size),
                is_subtraction: true,
            };
            instruction(at.wrapping_add(SIZE)) == Some(subtraction)
        }
        _ => false,
    };
    makes_room || word_at(code, at).is_some_and(|word| MARKS.contains(&word))
}

/// Finds the calls. See [`CodeReader::calls`].
fn calls(code: &[u8], start: u64) -> Box<dyn Iterator<Item = Call> + '_> {
    let calls = decoded(code, start).filter_map(|it| match it.instruction {
        a64::Instruction::Call { target } => Some(Call { at: it.at, target }),
        _ => None,
    });
    Box::new(calls)
}

/// Finds calls. See [`CodeReader::call_ends`].
fn call_ends(code: &[u8], start: u64) -> Vec<u64> {
    use instruction_set::Instruction;
    let calls = decoded(code, start).filter(Instruction::is_call);
    calls.map(|call| call.next()).collect()
}

/// Returns whether a function may start. See [`CodeReader::may_start`].
fn may_start(before: &[u8], from: &[u8], may_follow_call: bool) -> bool {
    let first = from.first_chunk().map(|it| u32::from_le_bytes(*it));
    if first.is_some_and(|first| MARKS.contains(&first)) {
        return true;
    }
    let (_, words) = before.as_rchunks();
    let words = words.iter().rev().map(|it| u32::from_le_bytes(*it));
    let mut words = words
        .take(MAX_PADDING / SIZE as usize)
        .skip_while(|it| *it == NOP);
    words
        .next()
        .is_some_and(|word| match a64::Instruction::decode(word, 0) {
            a64::Instruction::Jump { .. }
            | a64::Instruction::IndirectJump { .. }
            | a64::Instruction::Return { .. }
            | a64::Instruction::Trap => true,
            a64::Instruction::Call { .. } | a64::Instruction::IndirectCall { .. } => {
                may_follow_call
            }
            _ => false,
        })
}

/// The end of the padding (nops or zeros) at an address, if it has any, and the next instruction is aligned or behind the
/// code. The outer `None` if there is no work left.
fn padding_end(code: &FunctionCode<'_>, at: u64, work: &mut CodeWork) -> Option<Option<u64>> {
    let mut end = at;
    let mut is_trap = false;
    while let Some(word) = word_at(code, end).filter(|_| end - at < MAX_PADDING as u64) {
        work.take()?;
        if word != NOP && word != ZERO {
            let is_padding = end > at && (is_trap || end.is_multiple_of(ALIGNMENT));
            return Some(is_padding.then_some(end));
        }
        is_trap |= word == ZERO;
        end += SIZE;
    }
    let is_end = end > at && word_at(code, end).is_none();
    Some(is_end.then_some(end))
}

/// Skips padding. See [`CodeReader::skip_padding`].
fn skip_padding(code: &FunctionCode<'_>, start: u64, work: &mut CodeWork) -> u64 {
    let mut at = start.checked_next_multiple_of(SIZE).unwrap_or(code.end);
    while let Some(word) = word_at(code, at) {
        if work.take().is_none() {
            break;
        }
        let is_invalid = a64::Instruction::decode(word, at) == a64::Instruction::Invalid;
        if word != NOP && word != ZERO && !is_invalid {
            return at;
        }
        at += SIZE;
    }
    code.end
}

#[cfg(test)]
mod tests;
