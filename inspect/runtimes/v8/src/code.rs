//! Generated code: the function's code at an address, and the functions and positions that an instruction belongs to.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::heap::{Heap, Object};
use crate::layout::Layout;
use crate::positions::{Bytes, MAX_TABLE, Position, position_at};

/// Maximum size of a function's code, in bytes. Larger functions are not optimized.
const MAX_CODE: u64 = 1 << 20;
/// Bytes that are searched at a time.
const CHUNK: u64 = 4096;
/// Maximum number of places that look like the start of code and are not.
const MAX_CANDIDATES: usize = 64;
/// Maximum number of functions of one optimized function at an instruction.
pub(crate) const MAX_INLINED: usize = 64;
/// Bytes of an entry of the table of inlined calls: a position, and the number of a function.
const INLINED_CALL: u64 = 16;
/// Maximum size of a function's bytecode, in bytes.
const MAX_BYTECODE: usize = 8 << 20;

/// The code of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) object: Object,
    /// The addresses of its instructions.
    pub(crate) range: Range<u64>,
    /// What generated it (`CodeKind` in V8).
    kind: u32,
}

/// A function that an instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Called {
    pub(crate) shared: Object,
    /// Position in the function's script, if known.
    pub(crate) position: Option<u32>,
}

/// The number of bytes of each bytecode: for operands of one byte, of two and of four (`Bytecodes::kBytecodeSizes`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BytecodeSizes(Vec<u8>);

impl BytecodeSizes {
    /// Checks the table's size and its values.
    pub(crate) fn new(table: Vec<u8>) -> Option<Self> {
        const SCALES: usize = 3;
        let count = table.len() / SCALES;
        let is_table = table.len().is_multiple_of(SCALES) && (4..=256).contains(&count);
        (is_table && table.iter().all(|size| *size > 0)).then_some(Self(table))
    }

    /// The size of the bytecode at the start, with its prefix for larger operands.
    fn size(&self, bytecode: &[u8]) -> Option<usize> {
        let count = self.0.len() / 3;
        // Wide, ExtraWide, and the same where a debugger stops.
        let (scale, prefix) = match bytecode.first()? {
            0 | 2 => (1, 1),
            1 | 3 => (2, 1),
            _ => (0, 0),
        };
        let number = usize::from(*bytecode.get(prefix)?);
        let size = (number < count).then(|| self.0[scale * count + number])?;
        Some(prefix + usize::from(size))
    }
}

/// Finds code by the addresses of its instructions.
#[derive(Debug, Default)]
pub(crate) struct CodeFinder {
    /// The map of all objects with instructions, once one was found: most words are recognized as another's by it alone.
    streams: AtomicU64,
}

impl CodeFinder {
    /// The code that an instruction belongs to: the last one that starts before it. `floor` is the start of the mapping.
    pub(crate) fn find(&self, heap: &Heap<'_>, address: u64, floor: u64) -> Option<Code> {
        let lowest = floor.max(address.saturating_sub(MAX_CODE));
        let aligned = address / Layout::CODE_ALIGNMENT * Layout::CODE_ALIGNMENT;
        let last = aligned.checked_sub(Layout::STREAM_HEADER)?;
        let count = last.checked_sub(lowest)? / Layout::CODE_ALIGNMENT + 1;
        let mut bytes = vec![0; CHUNK as usize];
        let mut read = None;
        let mut left = MAX_CANDIDATES;
        for index in 0..count {
            // No header crosses a page.
            let at = last - Layout::CODE_ALIGNMENT * index;
            let start = at / CHUNK * CHUNK;
            if read != Some(start) {
                heap.memory.read(start, &mut bytes).ok()?;
                read = Some(start);
            }
            if let Some(code) = self.code_of(&bytes[(at - start) as usize..]) {
                if let Some(code) = self.at(heap, at, code) {
                    return (address <= code.range.end).then_some(code);
                }
                left = left.checked_sub(1)?;
            }
        }
        None
    }

    /// The code that an object with these first words belongs to, if it can be one with instructions.
    fn code_of(&self, words: &[u8]) -> Option<Object> {
        let word = |index: usize| {
            let bytes = words.get(8 * index..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let map = word(0)?;
        let known = self.streams.load(Ordering::Relaxed);
        if known != 0 && map != known || Object::strong(map).is_none() {
            return None;
        }
        Object::strong(word((Layout::STREAM_CODE / 8) as usize)?)
    }

    /// The code whose instructions are behind an address, if `code` says the same.
    fn at(&self, heap: &Heap<'_>, address: u64, code: Object) -> Option<Code> {
        let stream = Object::at(address);
        heap.of_type(stream, heap.layout.types.instruction_stream)?;
        let code = heap.code(code)?;
        if code.range.start != address + Layout::STREAM_HEADER {
            return None;
        }
        self.streams.store(heap.word(stream, 0)?, Ordering::Relaxed);
        Some(code)
    }
}

impl Heap<'_> {
    /// The code that an object describes.
    fn code(&self, object: Object) -> Option<Code> {
        let object = self.of_type(object, self.layout.types.code)?;
        let start = self.word(object, self.layout.code_start)?;
        let size = u64::from(self.u32_at(object, self.layout.code_size)?);
        let kind = self.u32_at(object, self.layout.code_flags)? & Layout::CODE_KIND;
        let end = start.checked_add(size).filter(|_| size <= MAX_CODE)?;
        Some(Code {
            object,
            range: start..end,
            kind,
        })
    }

    /// The bytecode that baseline code was generated from.
    pub(crate) fn bytecode_of(&self, code: &Code) -> Option<Object> {
        self.bytecode_behind(code.object)
    }

    /// Returns whether the same code is still where it was.
    pub(crate) fn is_still(&self, code: &Code) -> bool {
        self.code(code.object).as_ref() == Some(code)
    }

    pub(crate) fn is_regular_expression(&self, code: &Code) -> bool {
        self.layout.is_regular_expression(code.kind)
    }

    /// Returns whether code is that of a function of JavaScript.
    pub(crate) fn is_compiled(&self, code: &Code) -> bool {
        self.is_baseline(code) || self.is_optimized(code)
    }

    /// Returns whether code is a copy of the interpreter's for one function (`--interpreted-frames-native-stack`).
    pub(crate) fn is_interpreter(&self, code: &Code) -> bool {
        self.layout.is_builtin(code.kind)
    }

    pub(crate) fn is_baseline(&self, code: &Code) -> bool {
        code.kind == self.layout.baseline
    }

    pub(crate) fn is_optimized(&self, code: &Code) -> bool {
        code.kind > self.layout.baseline
    }

    /// Returns whether code was generated by the faster one of two compilers that optimize.
    pub(crate) fn is_maglev(&self, code: &Code) -> bool {
        code.kind == self.layout.baseline + 1
    }

    /// The position of a bytecode of a function.
    pub(crate) fn bytecode_position(&self, bytecode: Object, offset: i64) -> Option<u32> {
        // Without a table, nobody has needed the positions so far.
        let table = self.object(bytecode, Layout::BYTECODE_POSITIONS)?;
        let table = self.bytes(table, MAX_TABLE)?;
        position_at(&table, offset, self.layout.has_statements)?.in_script()
    }

    /// The number of bytes of a function's bytecode.
    pub(crate) fn bytecode_length(&self, bytecode: Object) -> Option<u32> {
        let length = self.integer(bytecode, Layout::ARRAY_LENGTH)?;
        u32::try_from(length).ok()
    }

    /// The offset of the bytecode whose baseline code has the instruction `distance` bytes from its start.
    pub(crate) fn baseline_offset(
        &self,
        code: &Code,
        bytecode: Object,
        distance: u64,
        sizes: &BytecodeSizes,
    ) -> Option<u32> {
        let table = self.object(code.object, Layout::CODE_POSITIONS)?;
        let table = self.bytes(table, MAX_TABLE)?;
        let length = u64::from(self.bytecode_length(bytecode)?);
        let start = bytecode.address().wrapping_add(self.layout.bytecode_data);
        let bytecodes = self.memory.read_vec(start, length, MAX_BYTECODE).ok()?;
        let mut sizes_of_code = Bytes(&table);
        // The first one is the size of what comes before the first bytecode.
        let (mut end, mut offset, mut is_first) = (0_u64, 0, true);
        while !sizes_of_code.0.is_empty() {
            end = end.checked_add(sizes_of_code.unsigned()?)?;
            if distance < end {
                return u32::try_from(offset).ok();
            }
            if !std::mem::take(&mut is_first) {
                offset += sizes.size(bytecodes.get(offset..)?)?;
            }
        }
        None
    }

    /// The function that optimized code was generated for.
    pub(crate) fn optimized_function(&self, code: &Code) -> Option<Object> {
        let data = self.object(code.object, Layout::CODE_DEOPT)?;
        let function = self.element(data, self.layout.deopt_shared)?;
        self.unwrapped(Object::strong(function)?)
    }

    /// The functions that the instruction `distance` bytes from the start of optimized code belongs to, innermost first: the
    /// last one is the one that was optimized. `is_call` is true for one that is the last byte of a call.
    pub(crate) fn optimized(
        &self,
        code: &Code,
        distance: u64,
        is_call: bool,
    ) -> Option<Vec<Called>> {
        let data = self.object(code.object, Layout::CODE_DEOPT)?;
        let exact = is_call.then(|| self.called_at(code, data, distance + 1));
        exact
            .flatten()
            .or_else(|| self.called_by_positions(code, data, distance))
    }

    fn called_by_positions(&self, code: &Code, data: Object, distance: u64) -> Option<Vec<Called>> {
        let element = |index| Object::strong(self.element(data, index)?);
        let outer = self.optimized_function(code)?;
        let table = self.object(code.object, Layout::CODE_POSITIONS)?;
        let table = self.bytes(table, MAX_TABLE)?;
        let distance = i64::try_from(distance).ok()?;
        let position = position_at(&table, distance, self.layout.has_statements);
        let Some(mut position) = position else {
            return Some(vec![Called {
                shared: outer,
                position: None,
            }]);
        };
        let mut called = Vec::new();
        while called.len() < MAX_INLINED {
            let in_script = position.in_script();
            let Some(call) = position.inlined() else {
                called.push(Called {
                    shared: outer,
                    position: in_script,
                });
                return Some(called);
            };
            let calls = element(self.layout.deopt_inlining)?;
            let length = self.byte_length(calls)?;
            let at = Layout::ARRAY_DATA + INLINED_CALL * call;
            if INLINED_CALL * (call + 1) > length {
                return None;
            }
            let caller = self.word(calls, at)? as i64;
            let function = self.u32_at(calls, at + 8)? as i32;
            let shared = match u64::try_from(function) {
                Ok(function) => self.literal(element(self.layout.deopt_literals)?, function)?,
                Err(_) => outer,
            };
            called.push(Called {
                shared,
                position: in_script,
            });
            position = Position::of(caller);
        }
        None
    }

    /// The function that an optimized function has as a literal.
    pub(crate) fn literal(&self, literals: Object, index: u64) -> Option<Object> {
        let found = Object::strong_or_weak(self.element(literals, index)?)?;
        self.of_type(found, self.layout.types.shared)
    }

    /// A `SharedFunctionInfo`, or the one that a wrapper refers to.
    fn unwrapped(&self, object: Object) -> Option<Object> {
        let kind = self.instance_type(object)?;
        if kind == self.layout.types.shared {
            return Some(object);
        }
        let is_wrapper = Some(kind) == self.layout.types.shared_wrapper;
        let wrapped = is_wrapper.then(|| self.object(object, Layout::WRAPPED))??;
        self.of_type(wrapped, self.layout.types.shared)
    }
}
