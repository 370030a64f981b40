//! The few DWARF expressions that compilers and assembly files use in unwind tables.

use gimli::constants as op;

/// Maximum length of an expression, in bytes. Those of PLTs, the longest, have 11.
const MAX_LENGTH: usize = 64;
/// Values on the stack of an expression.
const MAX_DEPTH: usize = 8;

/// The value of an expression. Registers are DWARF's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Constant(i64),
    /// `register + offset`
    Register {
        register: u8,
        offset: i64,
    },
    /// `*(register + offset) + addend`
    Memory {
        register: u8,
        offset: i64,
        addend: i64,
    },
    /// `rsp + 8`, or 8 more from this offset on in an entry of 16 bytes.
    Plt {
        pushed_at: u8,
    },
}

/// Returns the value of an expression; `None` if a [`Value`] cannot express it.
pub(crate) fn evaluate(code: &[u8]) -> Option<Value> {
    if code.len() > MAX_LENGTH {
        return None;
    }
    if let Some(pushed_at) = plt(code) {
        return Some(Value::Plt { pushed_at });
    }
    let mut stack: Vec<Value> = Vec::with_capacity(MAX_DEPTH);
    let mut rest = code;
    while !rest.is_empty() {
        if stack.len() == MAX_DEPTH {
            return None;
        }
        let operation = op::DwOp(u8::from_le_bytes(take(&mut rest)?));
        let register = |operation: op::DwOp| operation.0.wrapping_sub(op::DW_OP_breg0.0);
        let literal = |operation: op::DwOp| operation.0.wrapping_sub(op::DW_OP_lit0.0);
        let value = match operation {
            _ if register(operation) < 32 => Value::Register {
                register: register(operation),
                offset: signed(&mut rest)?,
            },
            _ if literal(operation) < 32 => Value::Constant(literal(operation).into()),
            op::DW_OP_const1u => Value::Constant(u8::from_le_bytes(take(&mut rest)?).into()),
            op::DW_OP_const1s => Value::Constant(i8::from_le_bytes(take(&mut rest)?).into()),
            op::DW_OP_const2u => Value::Constant(u16::from_le_bytes(take(&mut rest)?).into()),
            op::DW_OP_const2s => Value::Constant(i16::from_le_bytes(take(&mut rest)?).into()),
            op::DW_OP_const4u => Value::Constant(u32::from_le_bytes(take(&mut rest)?).into()),
            op::DW_OP_const4s => Value::Constant(i32::from_le_bytes(take(&mut rest)?).into()),
            op::DW_OP_constu => Value::Constant(i64::try_from(unsigned(&mut rest)?).ok()?),
            op::DW_OP_consts => Value::Constant(signed(&mut rest)?),
            op::DW_OP_plus_uconst => {
                let addend = i64::try_from(unsigned(&mut rest)?).ok()?;
                stack.pop()?.plus(addend)?
            }
            op::DW_OP_plus => match (stack.pop()?, stack.pop()?) {
                (Value::Constant(addend), value) | (value, Value::Constant(addend)) => {
                    value.plus(addend)?
                }
                _ => return None,
            },
            op::DW_OP_minus => match stack.pop()? {
                Value::Constant(subtrahend) => stack.pop()?.plus(subtrahend.checked_neg()?)?,
                _ => return None,
            },
            op::DW_OP_deref => match stack.pop()? {
                Value::Register { register, offset } => Value::Memory {
                    register,
                    offset,
                    addend: 0,
                },
                _ => return None,
            },
            _ => return None,
        };
        stack.push(value);
    }
    stack.pop()
}

impl Value {
    fn plus(self, more: i64) -> Option<Self> {
        Some(match self {
            Value::Constant(value) => Value::Constant(value.checked_add(more)?),
            Value::Register { register, offset } => Value::Register {
                register,
                offset: offset.checked_add(more)?,
            },
            Value::Memory {
                register,
                offset,
                addend,
            } => Value::Memory {
                register,
                offset,
                addend: addend.checked_add(more)?,
            },
            Value::Plt { .. } => return None,
        })
    }
}

/// `rsp + 8 + ((rip & 15) >= N) * 8`, as GNU ld writes it (bfd/elfxx-x86.c and elf64-x86-64.c,
/// `elf_x86_64_eh_frame_lazy_plt`). Returns N.
fn plt(code: &[u8]) -> Option<u8> {
    let (rsp, rip) = (op::DW_OP_breg7.0, op::DW_OP_breg16.0);
    let head = [rsp, 8, rip, 0, op::DW_OP_lit15.0, op::DW_OP_and.0];
    let tail = [op::DW_OP_ge, op::DW_OP_lit3, op::DW_OP_shl, op::DW_OP_plus].map(|it| it.0);
    let [literal] = code.strip_prefix(&head)?.strip_suffix(&tail)? else {
        return None;
    };
    let number = literal.checked_sub(op::DW_OP_lit0.0);
    number.filter(|number| *number < 16)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}

/// An unsigned LEB128 number of at most 63 bits.
fn unsigned(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let [byte] = take(rest)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A signed LEB128 number of at most 63 bits.
fn signed(rest: &mut &[u8]) -> Option<i64> {
    let before = *rest;
    let value = unsigned(rest)? as i64;
    let bits = 7 * (before.len() - rest.len()) as u32;
    // Copies the sign, the highest bit that was read, to all above it.
    Some(value << (64 - bits) >> (64 - bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_compilers_and_assembly_are_understood() {
        // gcc, a realigned stack: breg6 -8, deref
        assert_eq!(
            evaluate(&[0x76, 0x78, 0x06]),
            Some(Value::Memory {
                register: 6,
                offset: -8,
                addend: 0
            })
        );
        // OpenSSL: breg7 +152, deref, plus_uconst 8
        assert_eq!(
            evaluate(&[0x77, 0x98, 0x01, 0x06, 0x23, 0x08]),
            Some(Value::Memory {
                register: 7,
                offset: 152,
                addend: 8
            })
        );
        // The same with a literal: lit8, plus
        assert_eq!(
            evaluate(&[0x77, 0x98, 0x01, 0x06, 0x38, 0x22]),
            evaluate(&[0x77, 0x98, 0x01, 0x06, 0x23, 0x08])
        );
        // breg6 +0, const1s -16, plus; and with minus
        let expected = Some(Value::Register {
            register: 6,
            offset: -16,
        });
        assert_eq!(evaluate(&[0x76, 0x00, 0x09, 0xf0, 0x22]), expected);
        assert_eq!(evaluate(&[0x76, 0x00, 0x08, 0x10, 0x1c]), expected);
    }

    #[test]
    fn the_expression_of_a_plt_is_understood() {
        let of = |threshold| {
            let code = [
                0x77, 8, 0x80, 0, 0x3f, 0x1a, threshold, 0x2a, 0x33, 0x24, 0x22,
            ];
            evaluate(&code)
        };
        assert_eq!(of(0x3b), Some(Value::Plt { pushed_at: 11 }));
        assert_eq!(of(0x39), Some(Value::Plt { pushed_at: 9 }));
        assert_eq!(of(0x40), None);
    }

    #[test]
    fn what_is_cut_or_unknown_is_nothing() {
        let codes: [&[u8]; 8] = [
            &[],
            &[0x77],
            &[0x77, 0x80],
            &[0x22],
            &[0x06],
            // call_frame_cfa
            &[0x9c],
            // breg7 of an offset that has no end
            &[
                0x77, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f,
            ],
            &[0x30; 9],
        ];
        for code in codes {
            assert_eq!(evaluate(code), None, "{code:x?}");
        }
        let long = [&[0x77, 0][..], &[0x23, 0].repeat(40)].concat();
        assert_eq!(evaluate(&long), None);
    }

    #[test]
    fn leb128_keeps_signs() {
        for (bytes, value) in [
            (&[0x00][..], 0),
            (&[0x3f], 63),
            (&[0x40], -64),
            (&[0x7f], -1),
            (&[0xc0, 0x00], 64),
            (&[0x80, 0x7f], -128),
        ] {
            let mut rest = bytes;
            assert_eq!(signed(&mut rest), Some(value));
            assert!(rest.is_empty());
        }
    }
}
