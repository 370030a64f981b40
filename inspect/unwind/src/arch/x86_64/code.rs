//! Rules of a function that no table describes, from its instructions.

mod extent;
mod start;
mod state;

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use self::state::State;
use crate::instruction_set::{self, Flow, InstructionSet};
use crate::instructions::{Call, CodeReader, CodeWork, FunctionCode};
use crate::paths;

/// Maximum size of the padding behind a function, in bytes. Compilers align functions to 64 bytes at most.
const MAX_PADDING: usize = 64;
/// Functions that are preceded by padding are aligned to this many bytes.
const ALIGNMENT: u64 = 16;

pub(super) const READER: CodeReader = CodeReader {
    function: paths::function::<X86_64>,
    extent: extent::extent,
    calls,
    next_instruction,
    call_ends,
    addresses,
    starts_of_coroutines,
    records,
    may_start,
    skip_padding,
};

struct X86_64;

impl InstructionSet for X86_64 {
    type Instruction = Instruction;
    type State = State;
    type Decoder<'a> = iced_x86::DecoderIntoIter<'a>;

    fn decode<'a>(code: &FunctionCode<'a>, start: u64) -> Option<Self::Decoder<'a>> {
        decoder(code, start).map(Decoder::into_iter)
    }

    fn may_start_behind_call(_: &FunctionCode<'_>, at: u64) -> bool {
        at.is_multiple_of(ALIGNMENT)
    }

    fn is_inside_function(code: &FunctionCode<'_>, at: u64, work: &mut CodeWork) -> Option<bool> {
        start::is_inside_function(code, at, work)
    }

    fn padding_end(code: &FunctionCode<'_>, at: u64, work: &mut CodeWork) -> Option<Option<u64>> {
        padding_end(code, at, work)
    }

    fn skip_padding(code: &FunctionCode<'_>, start: u64, work: &mut CodeWork) -> u64 {
        skip_padding(code, start, work)
    }

    fn is_table_jump(jump: &Instruction, before: Option<&Instruction>) -> bool {
        let register = jump.op0_register();
        let is_sum =
            |it: &Instruction| it.mnemonic() == Mnemonic::Add && it.op0_register() == register;
        // Of a pointer at an index.
        jump.memory_index() != Register::None
            || register != Register::None && before.is_some_and(is_sum)
    }
}

impl instruction_set::Instruction for Instruction {
    fn next(&self) -> u64 {
        self.next_ip()
    }

    fn is_valid(&self) -> bool {
        !self.is_invalid()
    }

    fn flow(&self) -> Flow {
        match self.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                Flow::Conditional(self.near_branch_target())
            }
            FlowControl::UnconditionalBranch => Flow::Jump(self.near_branch_target()),
            FlowControl::IndirectBranch => Flow::IndirectJump,
            FlowControl::Return => Flow::Return,
            _ => Flow::Next,
        }
    }

    fn is_call(&self) -> bool {
        self.is_call_near() || self.is_call_near_indirect()
    }

    fn called(&self) -> Option<u64> {
        self.is_call_near().then(|| self.near_branch_target())
    }

    fn address(&self) -> Option<u64> {
        let is_address = self.mnemonic() == Mnemonic::Lea && self.is_ip_rel_memory_operand();
        is_address.then(|| self.ip_rel_memory_address())
    }
}

fn decoder<'a>(code: &FunctionCode<'a>, start: u64) -> Option<Decoder<'a>> {
    let bytes = code.from(start)?;
    Some(Decoder::with_ip(64, bytes, start, DecoderOptions::NONE))
}

/// Finds the calls. See [`CodeReader::calls`].
fn calls(code: &[u8], start: u64) -> Box<dyn Iterator<Item = Call> + '_> {
    let call = move |index: usize| {
        let distance = code.get(index + 1..)?.first_chunk()?;
        let behind = start.wrapping_add(index as u64 + 5);
        let target = behind.wrapping_add_signed(i32::from_le_bytes(*distance).into());
        let at = behind.wrapping_sub(5);
        Some(Call { at, target })
    };
    Box::new(memchr::memchr_iter(0xe8, code).filter_map(call))
}

/// Decodes up to an address. See [`CodeReader::next_instruction`].
fn next_instruction(code: &[u8], start: u64, at: u64) -> u64 {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    while decoder.can_decode() && decoder.ip() < at {
        let _ = decoder.decode();
    }
    decoder.ip()
}

/// Finds calls. See [`CodeReader::call_ends`].
fn call_ends(code: &[u8], start: u64) -> Vec<u64> {
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let calls = decoder
        .into_iter()
        .filter(|it| it.mnemonic() == Mnemonic::Call);
    calls.map(|call| call.next_ip()).collect()
}

/// Finds addresses that code takes. See [`CodeReader::addresses`].
fn addresses(code: &[u8], start: u64) -> Vec<u64> {
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let address = |it: Instruction| match (it.mnemonic(), it.op1_kind()) {
        (Mnemonic::Mov, OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64) => {
            Some(it.immediate(1))
        }
        _ => instruction_set::Instruction::address(&it),
    };
    decoder.into_iter().filter_map(address).collect()
}

/// Finds where coroutines of Boost.Context start, which PHP's fibers and others have copied
/// (src/asm/make_x86_64_sysv_elf_gas.S there). See [`CodeReader::starts_of_coroutines`].
fn starts_of_coroutines(code: &[u8], start: u64) -> Vec<Range<u64>> {
    // push %rbp, the return address; jmp *%rbx, the function. It returns to xor %rdi, %rdi; call _exit; hlt.
    const CODE: [u8; 7] = [0x55, 0xff, 0xe3, 0x48, 0x31, 0xff, 0xe8];
    const HLT: u8 = 0xf4;
    let places = memchr::memmem::find_iter(code, &CODE);
    let places = places.filter(|at| code.get(at + CODE.len() + 4) == Some(&HLT));
    let start_of = |at| start.wrapping_add(at as u64);
    places.map(|at| start_of(at)..start_of(at + 3)).collect()
}

/// Finds frame records. See [`CodeReader::records`].
fn records(code: &[u8], start: u64) -> Box<dyn Iterator<Item = u64> + '_> {
    // push %rbp; push %rbp; mov %rsp, %rbp
    const CODE: [u8; 5] = [0x55, 0x55, 0x48, 0x89, 0xe5];
    let places = memchr::memmem::find_iter(code, &CODE);
    Box::new(places.map(move |at| start.wrapping_add((at + CODE.len()) as u64)))
}

/// Returns whether a function may start. See [`CodeReader::may_start`].
fn may_start(before: &[u8], from: &[u8], may_follow_call: bool) -> bool {
    // Of one and of three to eight bytes (Intel's Software Developer's Manual, NOP); longer ones have prefixes.
    const NOPS: [&[u8]; 6] = [
        &[0x90],
        &[0x0f, 0x1f, 0],
        &[0x0f, 0x1f, 0x40, 0],
        &[0x0f, 0x1f, 0x44, 0, 0],
        &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
        &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    ];
    // endbr64
    if from.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        return true;
    }
    let min = before.len().saturating_sub(MAX_PADDING);
    let mut code = before;
    while !is_end(code, may_follow_call) {
        let mut nops = NOPS.iter();
        let nop = nops.find_map(|nop| code.strip_suffix(*nop));
        let has_prefix = code.len() < before.len() && matches!(code, [.., 0x66 | 0x2e]);
        let prefix = has_prefix.then(|| &code[..code.len() - 1]);
        let Some(left) = nop.or(prefix).filter(|left| left.len() >= min) else {
            return false;
        };
        code = left;
    }
    true
}

/// Returns whether code ends with an instruction that nothing follows, or with a call, whose callee may not return.
fn is_end(code: &[u8], may_be_call: bool) -> bool {
    match code {
        // ret, int3, hlt; ret that removes bytes; ud2
        [.., 0xc3 | 0xcc | 0xf4] | [.., 0xc2, _, _] | [.., 0x0f, 0x0b] => true,
        // jmp
        [.., 0xe9, _, _, _, _] | [.., 0xeb, _] => true,
        // jmp of a register or a pointer
        [.., 0xff, 0xe0..=0xe7] | [.., 0xff, 0x25, _, _, _, _] => true,
        // call of a function, of a register or a pointer
        [.., 0xe8, _, _, _, _] | [.., 0xff, 0xd0..=0xd7] | [.., 0xff, 0x15, _, _, _, _] => {
            may_be_call
        }
        _ => false,
    }
}

/// The end of the padding (nops, int3 or zeros) at an address, if it has any, and the next instruction is aligned or behind
/// the code. The outer `None` if there is no work left.
fn padding_end(code: &FunctionCode<'_>, at: u64, work: &mut CodeWork) -> Option<Option<u64>> {
    let Some(mut decoder) = decoder(code, at) else {
        return Some(None);
    };
    while decoder.can_decode() && decoder.ip() - at < MAX_PADDING as u64 {
        work.take()?;
        let end = decoder.ip();
        // Two zeros are an instruction, but not one of a program's.
        let is_zero = code.from(end).is_some_and(|code| code.starts_with(&[0, 0]));
        match decoder.decode().mnemonic() {
            Mnemonic::Add if is_zero => {}
            Mnemonic::Int3 | Mnemonic::Nop => {}
            _ => {
                let is_padding = end > at;
                return Some(is_padding.then_some(end));
            }
        }
    }
    let is_end = decoder.ip() > at && !decoder.can_decode();
    Some(is_end.then(|| decoder.ip()))
}

/// Skips padding. See [`CodeReader::skip_padding`].
fn skip_padding(code: &FunctionCode<'_>, start: u64, work: &mut CodeWork) -> u64 {
    let mut at = start;
    while let Some(bytes) = code.from(at).filter(|bytes| !bytes.is_empty()) {
        // Zeros are two for one instruction (`add %al, (%rax)`): the last one may be the first byte of another.
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let is_alignment = (at + zeros as u64).is_multiple_of(ALIGNMENT);
        let zeros = if is_alignment { zeros } else { zeros & !1 };
        let traps = bytes.iter().take_while(|byte| **byte == 0xcc).count();
        let size = zeros.max(traps);
        if work.take().is_none() {
            return code.end;
        }
        if size > 0 {
            at += size as u64;
            continue;
        }
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let instruction = decoder.decode();
        // xchg %ax, %ax and lea 0(%rsi), %rsi are left to functions.
        if instruction.mnemonic() != Mnemonic::Nop && !instruction.is_invalid() {
            return at;
        }
        at = decoder.ip().max(at + 1);
    }
    code.end
}

#[cfg(test)]
mod tests;
