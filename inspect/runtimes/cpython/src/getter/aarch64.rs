//! The few instructions of aarch64 that such functions consist of.

use otelctx_reader::remote::Memory;
use otelctx_reader::remote::a64::{Access, Instruction};
use otelctx_reader::remote::memory::Image;

use super::{Getter, Jump, Leaving, RegisterContents};

/// The register that has the first argument, and the result.
const X0: u8 = 0;

/// X0 to X30; `None` if the content is unknown. Number 31 is the stack pointer or zero, and not kept.
#[derive(Default)]
struct Registers([Option<RegisterContents>; 31]);

impl Registers {
    fn get(&self, register: u8) -> Option<RegisterContents> {
        *self.0.get(usize::from(register))?
    }

    fn set(&mut self, register: u8, contents: Option<RegisterContents>) {
        if let Some(place) = self.0.get_mut(usize::from(register)) {
            *place = contents;
        }
    }

    /// Executes an instruction; returns an address or number that it makes.
    fn execute(&mut self, memory: &dyn Memory, instruction: Instruction) -> Option<u64> {
        let (to, contents) = match instruction {
            Instruction::Address { to, address } => (to, Some(RegisterContents::constant(address))),
            Instruction::Number { to, number } => (to, Some(RegisterContents::constant(number))),
            Instruction::Move { to, from, .. } => (to, self.get(from)),
            Instruction::Add { to, from, number } => {
                let sum = self
                    .get(from)
                    .and_then(|base| base.plus(number.cast_unsigned()));
                (to, sum)
            }
            Instruction::Access(access) => return self.access(memory, &access),
            Instruction::Sum { to, .. } => (to, None),
            Instruction::ThreadPointer { to } => (to, Some(RegisterContents::ThreadPointer(0))),
            Instruction::Other { changed } => {
                for register in (0..).take(self.0.len()) {
                    if changed >> register & 1 != 0 {
                        self.set(register, None);
                    }
                }
                return None;
            }
            Instruction::SystemCall => (X0, None),
            _ => return None,
        };
        self.set(to, contents);
        let made = contents?.value()?;
        made.read_from.is_none().then_some(made.number)
    }

    /// Executes a load or a store; returns nothing, because it makes no number.
    fn access(&mut self, memory: &dyn Memory, access: &Access) -> Option<u64> {
        let base = self.get(access.base);
        let plus = |by: Option<i64>| base.and_then(|base| base.plus(by?.cast_unsigned()));
        let address = plus(access.offset);
        if access.base_moves.is_some() {
            self.set(access.base, plus(access.base_moves));
        }
        if access.is_load {
            let is_simple = access.count == 1 && !access.is_signed;
            let loaded = address.filter(|_| is_simple);
            let loaded = loaded.and_then(|it| it.load(memory, access.size.into()));
            for register in access.registers.into_iter().flatten() {
                self.set(register, loaded);
            }
        }
        None
    }
}

/// See [`Getter::read`].
pub(super) fn read(memory: &dyn Memory, code: &[u8], address: u64) -> Getter {
    let mut getter = Getter::default();
    let mut registers = Registers::default();
    let mut has_called = false;
    for instruction in Instruction::all(code, address) {
        let leaving = match instruction {
            Instruction::Jump { .. } | Instruction::IndirectJump { .. } => Leaving::Jump,
            Instruction::Call { .. } | Instruction::IndirectCall { .. } => Leaving::Call,
            Instruction::ConditionalJump { .. } => Leaving::Condition,
            Instruction::Return { .. } => {
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
    let jumps = Instruction::all(code, address).filter_map(|it| {
        let (leaving, target) = match it {
            Instruction::Jump { target } => (Leaving::Jump, target),
            Instruction::Call { target } => (Leaving::Call, target),
            Instruction::ConditionalJump { target } => (Leaving::Condition, target),
            _ => return None,
        };
        Some(Jump { leaving, target })
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
