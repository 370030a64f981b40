//! The functions of optimized code at a call, exactly: as V8 returns from such code to the interpreter, to the bytecode behind
//! the call (src/deoptimizer/translation-opcode.h in V8). Positions of code are those of whole statements in places.

use crate::code::{Called, Code, MAX_INLINED};
use crate::heap::{Heap, Object, small_integer};
use crate::positions::{Bytes, MAX_TABLE};

/// Number of operands of each operation, from V8 13 on.
const OPERANDS: [u8; 45] = [
    6, 4, 3, 3, 2, 1, 3, 4, 3, 3, 3, 1, 0, 0, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 2, 1,
];
/// The first operations are frames of functions of JavaScript: an offset in the bytecode, a literal, and others. The next ones
/// are what is left of a builtin that calls them.
const FUNCTIONS: u8 = 2;
const CONTINUATIONS: u8 = 4;
/// The operations with which a translation begins.
const BEGINS: [u8; 2] = [14, 15];
/// The last operation stands for as many of an earlier translation as its operand says. From its number on, an operation is
/// such a number.
const SAME: u8 = OPERANDS.len() as u8 - 1;
const SAME_INLINE: u8 = OPERANDS.len() as u8;
/// Maximum number of operations of a translation.
const MAX_OPERATIONS: usize = 1 << 16;
/// Maximum number of calls of an optimized function.
const MAX_CALLS: u32 = 1 << 17;
/// Words of an entry that refers to a translation, and the place of the reference.
const ENTRY_WORDS: u64 = 3;
const ENTRY_TRANSLATION: u64 = 1;

/// A function in a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Translated {
    /// Offset of the bytecode; −1 at the function's entry.
    offset: i64,
    /// Index of the function among the literals.
    literal: u64,
}

/// An operation, as far as it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Function(Translated),
    Continuation,
    Other,
}

/// Reads the functions of the translation at an index of the array, outermost first. `None` if it has others than it says, or
/// more than [`MAX_INLINED`].
fn translation(array: &[u8], at: usize) -> Option<Vec<Translated>> {
    let (operations, count) = whole_translation(array, at)?;
    let frames = operations.iter().filter(|it| **it != Operation::Other);
    let function = |operation: &Operation| match operation {
        Operation::Function(function) => Some(*function),
        Operation::Continuation | Operation::Other => None,
    };
    let functions: Vec<_> = operations.iter().filter_map(function).collect();
    let is_whole = frames.count() as u64 == count && functions.len() <= MAX_INLINED;
    is_whole.then_some(functions)
}

/// Reads the operations of a translation, and the number of its functions.
fn whole_translation(array: &[u8], at: usize) -> Option<(Vec<Operation>, u64)> {
    let mut bytes = Bytes(array.get(at..)?);
    let (distance, count) = begin(&mut bytes)?;
    let basis = match usize::try_from(distance).ok()? {
        0 => Vec::new(),
        distance => {
            let mut basis = Bytes(array.get(at.checked_sub(distance)?..)?);
            // It is a whole one.
            if begin(&mut basis)?.0 != 0 {
                return None;
            }
            operations(&mut basis, &[])?
        }
    };
    Some((operations(&mut bytes, &basis)?, count))
}

/// Reads what a translation begins with. Returns the distance of the one that it repeats parts of, and the number of functions.
fn begin(bytes: &mut Bytes<'_>) -> Option<(u64, u64)> {
    let is_begin = BEGINS.contains(&bytes.byte()?);
    let distance = bytes.unsigned()?;
    // The number of all frames.
    bytes.unsigned()?;
    let count = u64::try_from(signed(bytes.unsigned()?)).ok()?;
    is_begin.then_some((distance, count))
}

/// Reads operations up to the next translation.
fn operations(bytes: &mut Bytes<'_>, basis: &[Operation]) -> Option<Vec<Operation>> {
    let mut found: Vec<Operation> = Vec::new();
    while let Some(operation) = bytes.0.first().copied() {
        if BEGINS.contains(&operation) {
            break;
        }
        bytes.byte()?;
        if operation >= SAME {
            let count = match operation.checked_sub(SAME_INLINE) {
                Some(count) => u64::from(count),
                None => bytes.unsigned()?,
            };
            let end = found.len().checked_add(usize::try_from(count).ok()?)?;
            found.extend(basis.get(found.len()..end)?);
        } else {
            let mut operands = [0; 2];
            for index in 0..usize::from(OPERANDS[usize::from(operation)]) {
                let operand = bytes.unsigned()?;
                if let Some(kept) = operands.get_mut(index) {
                    *kept = operand;
                }
            }
            found.push(match operation {
                0..FUNCTIONS => Operation::Function(Translated {
                    offset: signed(operands[0]),
                    literal: operands[1] >> 1,
                }),
                FUNCTIONS..CONTINUATIONS => Operation::Continuation,
                _ => Operation::Other,
            });
        }
        if found.len() > MAX_OPERATIONS {
            return None;
        }
    }
    Some(found)
}

/// A number whose lowest bit is its sign (src/base/vlq.h in V8).
fn signed(operand: u64) -> i64 {
    let value = (operand >> 1) as i64;
    if operand & 1 == 0 { value } else { -value }
}

impl Heap<'_> {
    /// The functions of optimized code, innermost first, whose call returns `distance` bytes from the start. `None` if the call
    /// has no translation, or this version of V8 has others.
    pub(crate) fn called_at(
        &self,
        code: &Code,
        data: Object,
        distance: u64,
    ) -> Option<Vec<Called>> {
        let first = self.layout.deopt_entries?;
        let entry = self.deopt_index(code, distance)?;
        let at = first + ENTRY_WORDS * u64::from(entry) + ENTRY_TRANSLATION;
        let at = small_integer(self.element(data, at)?)?;
        let array = Object::strong(self.element(data, 0)?)?;
        let array = self.bytes(array, MAX_TABLE)?;
        let functions = translation(&array, usize::try_from(at).ok()?)?;
        let literals = Object::strong(self.element(data, self.layout.deopt_literals)?)?;
        let called = functions.iter().map(|function| {
            let shared = self.literal(literals, function.literal)?;
            let bytecode = self.bytecode(shared)?;
            let length = i64::from(self.bytecode_length(bytecode)?);
            (-1..length).contains(&function.offset).then_some(())?;
            let position = self.bytecode_position(bytecode, function.offset);
            Some(Called { shared, position })
        });
        let mut called: Vec<Called> = called.collect::<Option<_>>()?;
        let outer = called.first()?.shared;
        called.reverse();
        (self.optimized_function(code)? == outer).then_some(called)
    }

    /// The number of the entry for a call in the table behind the code (`SafepointTable`, `MaglevSafepointTable` in V8): the
    /// number of slots, that of calls, how large their entries' fields are, and the entries. `distance` is that of the return
    /// address, also of one that leads out of code that is no longer valid.
    fn deopt_index(&self, code: &Code, distance: u64) -> Option<u32> {
        let word = |index: u64| {
            let at = code.range.end.wrapping_add(4 * index);
            self.memory.read_u32(at).ok()
        };
        let (count, sizes) = (word(1)?, word(2)?);
        let field = |shift: u32| (sizes >> shift & 7) as usize;
        let has_data = sizes & 1 != 0;
        let (registers, address, number) = (field(1), field(4), field(7));
        if !has_data || count > MAX_CALLS || !(1..=4).contains(&address) || number > 4 {
            return None;
        }
        // Maglev also has the number of slots with references, and in each entry that of slots for arguments.
        let is_maglev = self.is_maglev(code);
        let size = 2 * address + number + registers + usize::from(is_maglev);
        let start = code.range.end.wrapping_add(if is_maglev { 16 } else { 12 });
        let limit = MAX_CALLS as usize * size;
        let entries = u64::from(count) * size as u64;
        let entries = self.memory.read_vec(start, entries, limit).ok()?;
        let value = |bytes: &[u8]| {
            let bytes = bytes.iter().rev();
            bytes.fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let mut entries = entries.chunks_exact(size);
        let entry = entries.find(|entry| {
            let way_out = &entry[address + number..2 * address + number];
            value(&entry[..address]) == distance || value(way_out) == distance + 1
        })?;
        let number = value(&entry[address..address + number]);
        u32::try_from(number.checked_sub(1)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(offset: i64, literal: u64) -> Translated {
        Translated { offset, literal }
    }

    /// Two translations: a function with two registers that another one calls, and the same behind another bytecode.
    #[test]
    fn a_translation_repeats_parts_of_an_earlier_one() {
        let whole = [14, 0, 4, 4, 1, 10, 6, 2, 4, 20, 8, 20, 10, 1, 1, 8, 2, 4];
        let next = [14, 18, 4, 4, SAME_INLINE + 3, 1, 3, 8, 2, 4];
        let array = [&whole[..], &next].concat();
        let first = [function(5, 3), function(0, 4)];
        assert_eq!(translation(&whole, 0).unwrap(), first);
        let second = [function(5, 3), function(-1, 4)];
        assert_eq!(translation(&array, 18).unwrap(), second);
        // The same number as an operand.
        let next = [15, 18, 4, 4, SAME, 3, 1, 3, 8, 2, 4];
        let array = [&whole[..], &next].concat();
        assert_eq!(translation(&array, 18).unwrap(), second);
    }

    #[test]
    fn a_damaged_translation_has_no_functions() {
        let whole = [14, 0, 4, 4, 1, 10, 6, 2, 4];
        for end in 0..4 {
            assert_eq!(translation(&whole[..end], 0), None);
        }
        assert_eq!(translation(&whole[..8], 0), None);
        assert_eq!(translation(&whole, 1), None);
        assert_eq!(translation(&whole, 10), None);
        // It would repeat itself, or what comes before the array, or more than there is.
        for distance in [0, 1, 9, 10, 200] {
            let next = [14, distance, 4, 4, SAME_INLINE + 2];
            let array = [&whole[..], &next].concat();
            assert_eq!(translation(&array, 9), None, "{distance}");
        }
        assert_eq!(translation(&[14, 0, 4, 4, 1, 0x80, 0x80], 0), None);
    }

    /// A continuation of a builtin counts as a function.
    #[test]
    fn a_translation_has_as_many_functions_as_it_says() {
        let with = |count: u8, continuations: usize, functions: usize| {
            let continuation = [2, 4, 2, 4].repeat(continuations);
            let functions = [1, 10, 6, 2, 4].repeat(functions);
            let begin = [14, 0, 4, count];
            translation(&[&begin[..], &functions, &continuation].concat(), 0)
        };
        let found = |count| Some(vec![function(5, 3); count]);
        for (count, expected) in [(0, None), (1, None), (2, found(1)), (4, None), (6, None)] {
            assert_eq!(with(count, 0, 1), expected, "{count}");
        }
        assert_eq!(with(4, 0, 2), found(2));
        assert_eq!(with(4, 1, 1), found(1));
        assert_eq!(with(2, 1, 1), None);
        let most = MAX_INLINED as u8;
        // In two bytes.
        let large = |count: u8| {
            let functions = [1, 10, 6, 2, 4].repeat(count.into());
            let begin = [14, 0, 4, count << 1 | 0x80, count >> 6];
            translation(&[&begin[..], &functions].concat(), 0).map(|it| it.len())
        };
        assert_eq!(large(most), Some(MAX_INLINED));
        assert_eq!(large(most + 1), None);
    }
}
