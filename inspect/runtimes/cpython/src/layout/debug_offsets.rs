//! The layouts of versions that describe themselves: `_Py_DebugOffsets`, with which `_PyRuntime`
//! starts from 3.13 on (`Include/internal/pycore_debug_offsets.h`; in 3.13 `pycore_runtime.h`).
//!
//! It consists of blocks of 64-bit words, one block per structure. It does not describe its own
//! shape, which differs between minor versions.

use otelctx_reader::remote::Memory;
use otelctx_reader::runtime::RuntimeError;

use super::{
    CallEnd, CodeOffsets, FrameOffsets, Gil, Instruction, InterpreterOffsets, Layout, LineFormat,
    ObjectLayout, RuntimeOffsets, TextLayout, ThreadOffsets, TopFrame,
};
use crate::version::Version;

const COOKIE: [u8; 8] = *b"xdebugpy";
/// Number of words up to the end of the last block that is read, of every version.
const WORDS: usize = 96;
/// Maximum sizes of structures, in bytes: several times the largest.
const MAX_LARGE: u64 = 16 << 20;
const MAX_SMALL: u64 = 2048;

/// Minor versions whose shape is known.
pub(super) const SERIES: [(u8, u8); 3] = [(3, 13), (3, 14), (3, 15)];

/// The starts of a version's blocks, and fields whose index in their block differs: numbers of words.
struct Shape {
    /// `ceval_gil`, then `gil_runtime_state`, `…_enabled`, `…_locked`, `…_holder`.
    gil: usize,
    thread: usize,
    /// `thread_id`.
    thread_id: usize,
    frame: usize,
    code: usize,
    object: usize,
    unicode: usize,
    free_threaded: FreeThreaded,
}

/// Properties of free-threaded builds.
struct FreeThreaded {
    /// `PyThreadState.state`, which no version describes: its offset in bytes, the same on all 64-bit
    /// architectures.
    attached: u64,
    /// True if threads execute copies of the instructions: `tlbc_index` is the eighth word of the
    /// block of a frame, and `co_tlbc` the eleventh one of that of a code object.
    has_copies: bool,
    /// The number of bits of `PyASCIIObject.state.interned`.
    interned: u8,
}

fn shape(series: (u8, u8)) -> Option<Shape> {
    let (blocks, attached) = match series {
        (3, 13) => ([14, 19, 24, 28, 34, 44, 67], 40),
        (3, 14) => ([15, 22, 27, 31, 39, 50, 77], 44),
        (3, 15) => ([15, 22, 30, 39, 47, 58, 89], 48),
        _ => return None,
    };
    let [gil, thread, thread_id, frame, code, object, unicode] = blocks;
    let has_copies = series >= (3, 14);
    Some(Shape {
        gil,
        thread,
        thread_id,
        frame,
        code,
        object,
        unicode,
        free_threaded: FreeThreaded {
            attached,
            has_copies,
            interned: if has_copies { 8 } else { 2 },
        },
    })
}

/// The first words, which are the same in all versions.
const VERSION: usize = 1;
const FREE_THREADED: usize = 2;
const RUNTIME: usize = 3;
const INTERPRETER: usize = 6;

/// Reads the layout from the `_PyRuntime` at this address. `None` if the version's shape is unknown.
///
/// # Errors
/// If it is inconsistent, or describes something that is not supported.
pub(super) fn layout(
    memory: &dyn Memory,
    runtime: u64,
    version: Version,
) -> Result<Option<Layout>, RuntimeError> {
    let Some(shape) = shape(version.series()) else {
        return Ok(None);
    };
    let mut words = [[0; 8]; WORDS];
    memory.read(runtime, words.as_flattened_mut())?;
    if words[0] != COOKIE {
        return Err(RuntimeError::new("its _PyRuntime has no debug offsets"));
    }
    let words = words.map(u64::from_ne_bytes);
    if Version::of_hex(words[VERSION]) != Some(version) {
        let reason = "its debug offsets are those of another version";
        return Err(RuntimeError::new(reason));
    }
    read(&words, &shape, version).map(Some)
}

/// A block, which starts with the size of its structure.
struct Block<'w> {
    words: &'w [u64],
    size: u64,
}

impl<'w> Block<'w> {
    fn at(words: &'w [u64; WORDS], start: usize, limit: u64) -> Result<Self, RuntimeError> {
        let words = &words[start..];
        match words[0] {
            size @ 8.. if size <= limit => Ok(Self { words, size }),
            size => Err(impossible(size)),
        }
    }

    /// The offset of a field of `bytes` bytes.
    fn field(&self, index: usize, bytes: u64) -> Result<u64, RuntimeError> {
        let offset = self.words[index];
        let end = offset.checked_add(bytes);
        let fits = end.is_some_and(|end| end <= self.size);
        fits.then_some(offset).ok_or_else(|| impossible(offset))
    }

    fn pointer(&self, index: usize) -> Result<u64, RuntimeError> {
        self.field(index, 8)
    }
}

fn impossible(number: u64) -> RuntimeError {
    RuntimeError::new(format!(
        "its debug offsets contain an impossible one, {number}"
    ))
}

/// Reads the offsets of the GIL, from the word `gil` of the interpreter's block on.
fn gil(block: &Block<'_>, gil: usize, is_free_threaded: bool) -> Result<Gil, RuntimeError> {
    // An interpreter contains a lock, but may use that of another one.
    let lock = block.pointer(gil + 1)?;
    let of_lock = |index| {
        let offset = block.pointer(gil + index)?.checked_sub(lock);
        let offset = offset.filter(|offset| *offset < MAX_SMALL);
        offset.ok_or_else(|| impossible(lock))
    };
    // Unlike the others, this offset is relative to the lock.
    let enabled = is_free_threaded.then_some(block.words[gil + 2]);
    if let Some(offset) = enabled.filter(|offset| *offset >= MAX_SMALL) {
        return Err(impossible(offset));
    }
    Ok(Gil::OfInterpreter {
        gil: block.pointer(gil)?,
        locked: of_lock(3)?,
        last_holder: of_lock(4)?,
        enabled,
    })
}

fn read(words: &[u64; WORDS], shape: &Shape, version: Version) -> Result<Layout, RuntimeError> {
    let runtime = Block::at(words, RUNTIME, MAX_LARGE)?;
    let interpreter = Block::at(words, INTERPRETER, MAX_LARGE)?;
    let thread = Block::at(words, shape.thread, MAX_SMALL)?;
    let frame = Block::at(words, shape.frame, MAX_SMALL)?;
    let code = Block::at(words, shape.code, MAX_SMALL)?;
    let object_block = Block::at(words, shape.object, MAX_SMALL)?;
    let unicode = Block::at(words, shape.unicode, MAX_SMALL)?;
    let (object, free_threaded) = match words[FREE_THREADED] {
        0 => (ObjectLayout::Counted, None),
        _ => (ObjectLayout::FreeThreaded, Some(&shape.free_threaded)),
    };
    if object_block.pointer(1)? != object.object_type() {
        return Err(RuntimeError::new("its objects have an unknown layout"));
    }
    let copies = free_threaded.filter(|it| it.has_copies);
    let gil_start = shape.gil - INTERPRETER;
    // `PyObject`, length, hash and flags, padded, and in `PyCompactUnicodeObject` two more words.
    let (ascii, other) = (object.size() + 24, object.size() + 40);
    // PyUnicodeObject is a PyCompactUnicodeObject and a pointer.
    if (unicode.words[3], unicode.size - 8) != (ascii, other) {
        return Err(RuntimeError::new("its strings have an unknown layout"));
    }
    Ok(Layout {
        version,
        runtime: Some(RuntimeOffsets {
            interpreters: runtime.pointer(2)?,
            current: None,
            tss_key: None,
        }),
        interpreter: InterpreterOffsets {
            next: interpreter.pointer(2)?,
            threads: interpreter.pointer(3)?,
        },
        thread: ThreadOffsets {
            next: thread.pointer(2)?,
            interpreter: thread.pointer(3)?,
            frame: TopFrame::Direct(thread.pointer(4)?),
            call: None,
            id: thread.pointer(shape.thread_id - shape.thread)?,
            attached: free_threaded.map(|it| it.attached),
        },
        gil: gil(&interpreter, gil_start, free_threaded.is_some())?,
        object,
        frame: FrameOffsets {
            previous: frame.pointer(1)?,
            code: frame.pointer(2)?,
            instruction: Instruction::Address(frame.pointer(3)?),
            copy: copies.map(|_| frame.field(7, 4)).transpose()?,
            end: CallEnd::Shim {
                owner: frame.field(5, 1)?,
                // FRAME_OWNED_BY_CSTACK; from 3.14 on FRAME_OWNED_BY_INTERPRETER.
                least: 3,
            },
        },
        code: CodeOffsets {
            filename: code.pointer(1)?,
            name: code.pointer(2)?,
            qualified_name: Some(code.pointer(3)?),
            line_table: code.pointer(4)?,
            first_line: code.field(5, 4)?,
            line_format: LineFormat::Locations,
            instructions: Some(code.pointer(9)?),
            copies: copies.map(|_| code.pointer(10)).transpose()?,
            is_numbered: true,
            changing_words: 0,
        },
        text: TextLayout::Unicode {
            interned: free_threaded.map_or(2, |it| it.interned),
            ascii,
            other,
        },
    })
}
