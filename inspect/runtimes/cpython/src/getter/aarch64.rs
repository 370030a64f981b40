//! The few instructions of A64 that such functions consist of (Arm Architecture Reference Manual for
//! A-profile, chapter C6).

use otelctx_reader::remote::Memory;
use otelctx_reader::remote::memory::Image;

use super::{Getter, Jump, Leaving, RegisterContents};

/// The register that has the first argument, and the result.
const X0: usize = 0;

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    /// ADR, ADRP: an address.
    Address { to: usize, address: u64 },
    /// MOVZ: a number.
    Number { to: usize, number: u64 },
    /// MOV between registers.
    Move { to: usize, from: usize },
    /// ADD of a number.
    Add { to: usize, from: usize, number: u64 },
    /// LDR from an address in a register.
    Load {
        to: usize,
        from: usize,
        offset: u64,
        size: usize,
    },
    /// MRS of TPIDR_EL0, the thread pointer.
    ThreadPointer { to: usize },
    /// B, BL, B.cond, CBZ, CBNZ, TBZ, TBNZ.
    Jump(Jump),
    /// BR, BLR: to an address in a register.
    IndirectJump(Leaving),
    /// RET, RETAA, RETAB.
    Return,
    /// Another instruction, which changes up to two registers.
    Other { to: [usize; 2] },
}

impl Instruction {
    fn decode(word: u32, address: u64) -> Self {
        let register = |at: u32| (word >> at & 31) as usize;
        let bits = |at: u32, count: u32| word >> at & ((1 << count) - 1);
        // A signed number of instructions.
        let target = |at: u32, count: u32| {
            let distance = i64::from(bits(at, count).cast_signed() << (32 - count) >> (32 - count));
            address.wrapping_add_signed(4 * distance)
        };
        let jump = |leaving, target| Self::Jump(Jump { leaving, target });
        let to = register(0);
        let from = register(5);
        match word {
            _ if word & 0x1f00_0000 == 0x1000_0000 => {
                let distance = (bits(5, 19) << 2 | bits(29, 2)).cast_signed() << 11 >> 11;
                let address = if word >> 31 == 1 {
                    (address & !0xfff).wrapping_add_signed(i64::from(distance) << 12)
                } else {
                    address.wrapping_add_signed(distance.into())
                };
                Self::Address { to, address }
            }
            _ if word & 0x7f80_0000 == 0x5280_0000 => Self::Number {
                to,
                number: u64::from(bits(5, 16)) << (16 * bits(21, 2)),
            },
            _ if word & 0x7fe0_ffe0 == 0x2a00_03e0 => Self::Move {
                to,
                from: register(16),
            },
            _ if word & 0xff80_0000 == 0x9100_0000 => Self::Add {
                to,
                from,
                number: u64::from(bits(10, 12)) << (12 * bits(22, 1)),
            },
            _ if word & 0xbfc0_0000 == 0xb940_0000 => {
                let size = if word >> 30 == 3 { 8 } else { 4 };
                Self::Load {
                    to,
                    from,
                    offset: u64::from(bits(10, 12)) * size as u64,
                    size,
                }
            }
            _ if word & 0xffff_ffe0 == 0xd53b_d040 => Self::ThreadPointer { to },
            _ if word & 0xfc00_0000 == 0x1400_0000 => jump(Leaving::Jump, target(0, 26)),
            _ if word & 0xfc00_0000 == 0x9400_0000 => jump(Leaving::Call, target(0, 26)),
            _ if word & 0xff00_0010 == 0x5400_0000 => jump(Leaving::Condition, target(5, 19)),
            _ if word & 0x7e00_0000 == 0x3400_0000 => jump(Leaving::Condition, target(5, 19)),
            _ if word & 0x7e00_0000 == 0x3600_0000 => jump(Leaving::Condition, target(5, 14)),
            _ if word & 0xffff_fc1f == 0xd61f_0000 => Self::IndirectJump(Leaving::Jump),
            _ if word & 0xffff_fc1f == 0xd63f_0000 => Self::IndirectJump(Leaving::Call),
            _ if word & 0xffff_fc1f == 0xd65f_0000 => Self::Return,
            0xd65f_0bff | 0xd65f_0fff => Self::Return,
            // Loads of pairs change the second register, too.
            _ => Self::Other {
                to: [to, register(10)],
            },
        }
    }

    fn all(code: &[u8], address: u64) -> impl Iterator<Item = Self> {
        let (words, _) = code.as_chunks();
        (0..).zip(words).map(move |(index, word): (u64, _)| {
            Self::decode(u32::from_le_bytes(*word), address.wrapping_add(4 * index))
        })
    }
}

/// X0 to X30; `None` if the content is unknown. Number 31 is the stack pointer or zero, and not kept.
#[derive(Default)]
struct Registers([Option<RegisterContents>; 31]);

impl Registers {
    fn get(&self, register: usize) -> Option<RegisterContents> {
        *self.0.get(register)?
    }

    fn set(&mut self, register: usize, contents: Option<RegisterContents>) {
        if let Some(place) = self.0.get_mut(register) {
            *place = contents;
        }
    }

    /// Executes an instruction; returns an address or number that it makes.
    fn execute(&mut self, memory: &dyn Memory, instruction: Instruction) -> Option<u64> {
        let (to, contents) = match instruction {
            Instruction::Address { to, address } => (to, Some(RegisterContents::constant(address))),
            Instruction::Number { to, number } => (to, Some(RegisterContents::constant(number))),
            Instruction::Move { to, from } => (to, self.get(from)),
            Instruction::Add { to, from, number } => {
                (to, self.get(from).and_then(|base| base.plus(number)))
            }
            Instruction::Load {
                to,
                from,
                offset,
                size,
            } => {
                let address = self.get(from).and_then(|base| base.plus(offset));
                (to, address.and_then(|it| it.load(memory, size)))
            }
            Instruction::ThreadPointer { to } => (to, Some(RegisterContents::ThreadPointer(0))),
            Instruction::Other { to } => {
                self.set(to[1], None);
                (to[0], None)
            }
            _ => return None,
        };
        self.set(to, contents);
        let made = contents?.value()?;
        made.read_from.is_none().then_some(made.number)
    }
}

/// See [`Getter::read`].
pub(super) fn read(memory: &dyn Memory, code: &[u8], address: u64) -> Getter {
    let mut getter = Getter::default();
    let mut registers = Registers::default();
    let mut has_called = false;
    for instruction in Instruction::all(code, address) {
        let leaving = match instruction {
            Instruction::Jump(jump) => jump.leaving,
            Instruction::IndirectJump(leaving) => leaving,
            Instruction::Return => {
                if !has_called {
                    getter.result = registers.get(X0).and_then(RegisterContents::returned);
                }
                return getter;
            }
            _ => {
                let constant = registers.execute(memory, instruction);
                getter.constants.extend(constant);
                continue;
            }
        };
        if leaving != Leaving::Condition && !has_called {
            getter.argument = registers.get(X0).and_then(RegisterContents::value);
        }
        match leaving {
            Leaving::Condition => {}
            Leaving::Call => {
                has_called = true;
                registers = Registers::default();
            }
            Leaving::Jump => return getter,
        }
    }
    getter
}

/// See [`Code::jumps`](super::Code::jumps).
pub(super) fn jumps(code: &[u8], address: u64) -> Vec<Jump> {
    let jumps = Instruction::all(code, address).filter_map(|it| match it {
        Instruction::Jump(jump) => Some(jump),
        _ => None,
    });
    jumps.collect()
}

/// See [`Code::constants`](super::Code::constants).
pub(super) fn constants(code: &[u8], address: u64) -> Vec<u64> {
    let mut registers = Registers::default();
    let nothing = Image::new();
    let constants =
        Instruction::all(code, address).filter_map(|it| registers.execute(&nothing, it));
    constants.collect()
}

#[cfg(test)]
mod tests;
