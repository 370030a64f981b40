//! Code that linkers make, for which only GNU ld writes unwind tables: procedure linkage tables
//! (PLT), and what crti.o adds to `.init` and `.fini`.

use super::above_stack_pointer;
use crate::arch::Write;
use crate::error::Error;
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

const ENTRY: usize = 16;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `push imm32`, 5 bytes.
const PUSH: u8 = 0x68;
/// `push disp32(%rip)`, 6 bytes.
const PUSH_GOT: [u8; 2] = [0xff, 0x35];
/// `jmp *disp32(%rip)`, 6 bytes.
const JUMP_GOT: [u8; 2] = [0xff, 0x25];
/// `push %r11`
const PUSH_R11: [u8; 2] = [0x41, 0x53];
/// `sub $8, %rsp`
const RESERVE: [u8; 4] = [0x48, 0x83, 0xec, 8];
/// `add $8, %rsp; ret`
const RETURN: [u8; 5] = [0x48, 0x83, 0xc4, 8, 0xc3];

pub(super) fn rules(bytes: &[u8], address: u64, write: &mut Write<'_>) -> Result<(), Error> {
    let behind_mark = bytes.strip_prefix(&ENDBR64).unwrap_or(bytes);
    if behind_mark.starts_with(&RESERVE) {
        return function(bytes, address, write);
    }
    let mut address = address;
    let mut in_mold_header = false;
    for entry in bytes.chunks(ENTRY) {
        // The header, which calls the dynamic linker, comes first: an entry has pushed its number.
        if entry.starts_with(&PUSH_GOT) {
            write(address, above_stack_pointer(8))?;
            write(address + 6, above_stack_pointer(16))?;
        } else if is_mold_header(entry) {
            write(address, above_stack_pointer(0))?;
            write(address + 6, above_stack_pointer(8))?;
            write(address + 12, above_stack_pointer(16))?;
            in_mold_header = true;
        } else if !std::mem::take(&mut in_mold_header) {
            write(address, entry_rule(entry))?;
        }
        address += entry.len() as u64;
    }
    Ok(())
}

/// mold's header has 32 bytes: its entries leave their number in r11, and the header pushes that.
fn is_mold_header(entry: &[u8]) -> bool {
    let push = entry.strip_prefix(&ENDBR64);
    let push_got = push.and_then(|push| push.strip_prefix(&PUSH_R11));
    push_got.is_some_and(|push_got| push_got.starts_with(&PUSH_GOT))
}

fn entry_rule(entry: &[u8]) -> Rule {
    let skipped = if entry.starts_with(&JUMP_GOT) {
        6
    } else if entry.starts_with(&ENDBR64) {
        ENDBR64.len()
    } else {
        0
    };
    if entry.get(skipped) != Some(&PUSH) {
        return above_stack_pointer(0);
    }
    Rule::Frame(FrameRule {
        cfa: Cfa::Plt {
            pushed_at: skipped as u8 + 5,
        },
        frame_pointer: Saved::Same,
        base: Saved::Same,
        return_address: ReturnAddress::AtCfa(-8),
    })
}

/// `_init` and `_fini`: `sub $8, %rsp`, calls, `add $8, %rsp`, `ret`.
fn function(bytes: &[u8], address: u64, write: &mut Write<'_>) -> Result<(), Error> {
    let find = |code: &[u8]| bytes.windows(code.len()).position(|it| it == code);
    let (Some(reserve), Some(release)) = (find(&RESERVE), find(&RETURN)) else {
        return Ok(());
    };
    write(address, above_stack_pointer(0))?;
    let reserved = address + (reserve + RESERVE.len()) as u64;
    write(reserved, above_stack_pointer(8))?;
    write(address + release as u64 + 4, above_stack_pointer(0))
}
