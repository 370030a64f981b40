//! Finds the calls of the evaluation loop in the interpreter's code. The native caller of code that the JIT of 3.14 has
//! generated is that of the loop, which the frame pointer skips: this shows which generated code stands for a loop.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use otelctx_reader::remote::elf::{Elf, ElfError};
use otelctx_reader::remote::{LoadedModule, Machine, Target};

use crate::interpreter::function_at;

/// Maximum size of all code that is searched, in bytes: ten times the largest interpreter.
const MAX_CODE: u64 = 64 << 20;
/// Number of bytes that are read at once.
const CHUNK: u64 = 1 << 20;
/// Maximum number of calls and of functions that end with the loop: ten times the actual numbers.
const MAX_FOUND: usize = 512;

/// The addresses in a module that calls return to.
struct Callers(Vec<u64>);

/// The addresses in the process that calls of the function at `code` return to, in ascending order, and calls of
/// functions that continue with it at their end.
pub(crate) fn callers(target: &dyn Target, module: &LoadedModule, code: &Range<u64>) -> Arc<[u64]> {
    let start = code.start.wrapping_sub(module.bias);
    let find = |elf: &Elf<'_>| callers_in(elf, start).map(Callers);
    // Searched once per file.
    let found = module.fact(target, "calls of the evaluation loop", find);
    let found = found.ok();
    let found = found.iter().flat_map(|found| &found.0);
    found.map(|it| it.wrapping_add(module.bias)).collect()
}

fn callers_in(elf: &Elf<'_>, start: u64) -> Result<Vec<u64>, ElfError> {
    let mut returns = BTreeSet::new();
    let mut functions = BTreeSet::new();
    visit(elf, &mut |branch| {
        if branch.target == start {
            if branch.is_call {
                returns.insert(branch.end);
            } else {
                functions.insert(branch.end - 1);
            }
        }
        returns.len() + functions.len() < MAX_FOUND
    })?;
    let starts = functions.into_iter().map(|jump| function_at(elf, jump));
    let starts: Result<BTreeSet<u64>, _> = starts
        .filter_map(|it| it.map(|function| Some(function?.start)).transpose())
        .filter(|it| *it != Ok(start))
        .collect();
    let starts = starts?;
    visit(elf, &mut |branch| {
        if branch.is_call && starts.contains(&branch.target) {
            returns.insert(branch.end);
        }
        returns.len() < 2 * MAX_FOUND
    })?;
    Ok(returns.into_iter().collect())
}

/// A call, or a jump, to a constant address.
struct Branch {
    /// The address after the instruction.
    end: u64,
    target: u64,
    is_call: bool,
}

/// Calls `visit` with all branches of a module's code until it returns false. On x86-64, bytes within instructions may
/// look like branches, to any address.
fn visit(elf: &Elf<'_>, visit: &mut dyn FnMut(Branch) -> bool) -> Result<(), ElfError> {
    let (step, size) = match elf.machine() {
        Machine::X86_64 => (1, 5),
        Machine::Aarch64 => (4, 4),
        Machine::Other(_) => return Ok(()),
    };
    let mut left = MAX_CODE;
    let mut bytes = Vec::new();
    for segment in elf.loads().iter().filter(|it| it.executable) {
        let length = segment.file_size.min(left);
        left -= length;
        let mut at = 0;
        while at + size <= length {
            let read = (length - at).min(CHUNK);
            bytes.resize(read as usize, 0);
            let address = segment.address.wrapping_add(at);
            elf.read_at(address, &mut bytes)?;
            let starts = bytes.windows(size as usize).step_by(step);
            for (index, window) in starts.enumerate() {
                let address = address.wrapping_add((index * step) as u64);
                let Some(branch) = branch(window, address) else {
                    continue;
                };
                if !visit(branch) {
                    return Ok(());
                }
            }
            // An instruction can continue in the next chunk.
            at += read - (size - 1) / 4 * 4;
        }
    }
    Ok(())
}

/// Decodes a branch: `call` and `jmp` with an offset of 32 bits, which take five bytes (Intel SDM), or `bl` and `b` of
/// aarch64 (Arm ARM, C6.2), which take four.
fn branch(bytes: &[u8], address: u64) -> Option<Branch> {
    let (end, offset, is_call) = match *bytes {
        [code @ (0xe8 | 0xe9), a, b, c, d] => {
            let end = address.wrapping_add(5);
            (end, i32::from_le_bytes([a, b, c, d]).into(), code == 0xe8)
        }
        [a, b, c, d] => {
            let word = u32::from_le_bytes([a, b, c, d]);
            if word >> 26 & 0x1f != 0b0_0101 {
                return None;
            }
            let offset = i64::from((word << 6).cast_signed() >> 4) - 4;
            (address.wrapping_add(4), offset, word >> 31 == 1)
        }
        _ => return None,
    };
    let target = end.wrapping_add_signed(offset);
    Some(Branch {
        end,
        target,
        is_call,
    })
}
