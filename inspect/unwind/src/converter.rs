//! Turns `gimli`'s rows into rules.

use gimli::{
    CfaRule, FrameDescriptionEntry, RegisterRule, UnwindContextStorage, UnwindExpression,
    UnwindSection, UnwindTableRow,
};

use crate::arch::Architecture;
use crate::expression::{self, Value};
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};
use crate::tables::Bytes;

/// Storage for `gimli`'s rows: at most 33 registers of interest, and one or two remembered states.
#[derive(Debug)]
pub(crate) struct Storage;

impl UnwindContextStorage<usize> for Storage {
    type Rules = [(gimli::Register, RegisterRule<usize>); 64];
    type Stack = Box<[UnwindTableRow<usize, Self>; 8]>;
}

/// Turns `gimli`'s rows of one function into rules.
pub(crate) struct Converter<'s, S> {
    section: &'s S,
    architecture: &'static Architecture,
    is_signal: bool,
    /// The column of the return address: not always x30 on aarch64.
    return_column: gimli::Register,
    tracks_base: bool,
    /// The last offset from the CFA of a saved frame pointer that was not below the stack pointer.
    saved: Option<i32>,
}

impl<'a, 's, S: UnwindSection<Bytes<'a>>> Converter<'s, S> {
    pub(crate) fn new(
        section: &'s S,
        architecture: &'static Architecture,
        function: &FrameDescriptionEntry<Bytes<'a>>,
        tracks_base: bool,
    ) -> Self {
        Converter {
            section,
            architecture,
            is_signal: function.is_signal_trampoline(),
            return_column: function.cie().return_address_register(),
            tracks_base,
            saved: None,
        }
    }

    /// `None` if rules cannot express it.
    pub(crate) fn rule(&mut self, row: &UnwindTableRow<usize, Storage>) -> Option<Rule> {
        let architecture = self.architecture;
        if self.is_signal {
            // Its tables describe only part of the registers that the kernel saves.
            return Some(Rule::Context {
                register: architecture.stack_pointer,
                offset: architecture.signal_context,
                signal: true,
            });
        }
        // One pass: a row has up to a dozen registers, and there are a million rows.
        let (mut return_rule, mut frame_pointer, mut stack_pointer) = (None, None, None);
        let mut base = None;
        for (register, rule) in row.registers() {
            if *register == self.return_column {
                return_rule = Some(rule);
                continue;
            }
            match u8::try_from(register.0) {
                Ok(number) if number == architecture.frame_pointer => frame_pointer = Some(rule),
                Ok(number) if number == architecture.stack_pointer => stack_pointer = Some(rule),
                Ok(number) if Some(number) == architecture.base => base = Some(rule),
                _ => {}
            }
        }
        if return_rule == Some(&RegisterRule::Undefined) {
            return Some(Rule::End);
        }
        let cfa = match stack_pointer {
            None => self.cfa(row.cfa())?,
            Some(_) if self.has_own_stack(row, frame_pointer) => self.cfa(row.cfa())?,
            Some(saved) => match self.context(row) {
                Some(context) => return Some(context),
                None => return Self::jump(saved, frame_pointer?, return_rule?),
            },
        };
        let return_address = match return_rule {
            Some(RegisterRule::Offset(offset)) => {
                ReturnAddress::AtCfa(i32::try_from(*offset).ok()?)
            }
            Some(RegisterRule::Register(register)) => {
                ReturnAddress::Register(u8::try_from(register.0).ok()?)
            }
            None | Some(RegisterRule::SameValue) if architecture.link.is_some() => {
                ReturnAddress::Register(u8::try_from(self.return_column.0).ok()?)
            }
            _ => return None,
        };
        let base = match base {
            _ if !self.tracks_base => Saved::Unknown,
            None | Some(RegisterRule::SameValue) => Saved::Same,
            Some(RegisterRule::Offset(offset)) => Saved::AtCfa(i32::try_from(*offset).ok()?),
            _ => Saved::Unknown,
        };
        Some(Rule::Frame(FrameRule {
            cfa,
            frame_pointer: self.frame_pointer(cfa, frame_pointer)?,
            base,
            return_address,
        }))
    }

    /// Returns whether the frame pointer is the pointer of a stack of the language, as in code of GHC: the stack pointer is
    /// that of the C functions that such code calls.
    fn has_own_stack(
        &self,
        row: &UnwindTableRow<usize, Storage>,
        frame_pointer: Option<&RegisterRule<usize>>,
    ) -> bool {
        let own = self.architecture.frame_pointer;
        frame_pointer == Some(&RegisterRule::ValOffset(0))
            && matches!(row.cfa(), CfaRule::RegisterAndOffset { register, .. } if register.0 == own.into())
    }

    fn frame_pointer(&mut self, cfa: Cfa, rule: Option<&RegisterRule<usize>>) -> Option<Saved> {
        let own = self.architecture.frame_pointer;
        Some(match rule {
            None | Some(RegisterRule::SameValue) => Saved::Same,
            Some(RegisterRule::Offset(offset)) => self.saved(cfa, i32::try_from(*offset).ok()?),
            Some(RegisterRule::ValOffset(0)) => Saved::Cfa,
            Some(RegisterRule::Register(register)) => {
                Saved::Register(u8::try_from(register.0).ok()?)
            }
            Some(RegisterRule::Expression(code)) => match self.value(*code) {
                Some(Value::Register { register, offset }) if register == own => {
                    Saved::AtFramePointer(i32::try_from(offset).ok()?)
                }
                _ => Saved::Unknown,
            },
            _ => Saved::Unknown,
        })
    }

    /// Handles epilogues: the frame pointer is already restored while the tables still refer to its
    /// saved value below the stack pointer, where a signal may overwrite it. A function that saves
    /// it there (in the red zone) has no row with it above.
    fn saved(&mut self, cfa: Cfa, offset: i32) -> Saved {
        if let Cfa::Register {
            register,
            offset: height,
        } = cfa
        {
            let is_at_stack = register == self.architecture.stack_pointer;
            if !is_at_stack || height.saturating_add(offset) >= 0 {
                self.saved = Some(offset);
            } else if self.saved == Some(offset) {
                return Saved::Same;
            }
        }
        Saved::AtCfa(offset)
    }

    fn cfa(&self, rule: &CfaRule<usize>) -> Option<Cfa> {
        let (register, offset) = match *rule {
            CfaRule::RegisterAndOffset { register, offset } => {
                (u8::try_from(register.0).ok()?, offset)
            }
            CfaRule::Expression(code) => match self.value(code)? {
                Value::Register { register, offset } => (register, offset),
                Value::Memory {
                    register,
                    offset,
                    addend,
                } => {
                    return Some(Cfa::Memory {
                        register,
                        offset: i32::try_from(offset).ok()?,
                        addend: i32::try_from(addend).ok()?,
                    });
                }
                Value::Plt { pushed_at } => return Some(Cfa::Plt { pushed_at }),
                Value::Constant(_) => return None,
            },
        };
        Some(Cfa::Register {
            register,
            offset: i32::try_from(offset).ok()?,
        })
    }

    /// Recognizes `setcontext` and `swapcontext`, whose CFA is the address of a `ucontext_t`.
    fn context(&self, row: &UnwindTableRow<usize, Storage>) -> Option<Rule> {
        let layout = &self.architecture.context;
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
            return None;
        };
        let is_saved = |number: u8| {
            let place = layout.registers.iter().position(|it| *it == number);
            let saved = row.register(gimli::Register(number.into()));
            let place = place.map(|place| layout.offset as i64 + 8 * place as i64);
            place.is_some_and(|place| saved == Some(RegisterRule::Offset(place)))
        };
        let all = [
            self.architecture.stack_pointer,
            self.architecture.frame_pointer,
            layout.instruction_pointer,
        ];
        all.into_iter().all(is_saved).then_some(Rule::Context {
            register: u8::try_from(register.0).ok()?,
            offset: i32::try_from(offset).ok()?,
            signal: false,
        })
    }

    /// Recognizes `longjmp`, which has loaded all values that it needs into registers.
    fn jump(
        stack_pointer: &RegisterRule<usize>,
        frame_pointer: &RegisterRule<usize>,
        return_address: &RegisterRule<usize>,
    ) -> Option<Rule> {
        let register = |rule: &RegisterRule<usize>| match rule {
            RegisterRule::Register(register) => u8::try_from(register.0).ok(),
            _ => None,
        };
        Some(Rule::Frame(FrameRule {
            cfa: Cfa::Register {
                register: register(stack_pointer)?,
                offset: 0,
            },
            frame_pointer: Saved::Register(register(frame_pointer)?),
            base: Saved::Unknown,
            return_address: ReturnAddress::Register(register(return_address)?),
        }))
    }

    fn value(&self, code: UnwindExpression<usize>) -> Option<Value> {
        let code = code.get(self.section).ok()?;
        expression::evaluate(code.0.slice())
    }
}
