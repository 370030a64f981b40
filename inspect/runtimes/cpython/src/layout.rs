//! The structures of each version of CPython: offsets in bytes.
//!
//! Up to 3.12 they are in `offsets.csv`. It was made with the interpreters' own headers
//! (`offsetof` and `sizeof`, compiled for x86-64), one row per version and field. Later versions
//! describe themselves.

mod check;
mod debug_offsets;
mod table;

use otelctx_reader::remote::Memory;
use otelctx_reader::runtime::RuntimeError;

use crate::version::Version;

pub(crate) use check::UsedOffsets;

/// `PyGenObject.gi_frame_state`, a byte, from the frame that is part of the generator, from 3.11 on:
/// `FRAME_EXECUTING` is 0 up to 3.14.
pub(crate) const GENERATOR_STATE: u64 = 0_u64.wrapping_sub(5);

/// The offsets of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The version that has these offsets: the nearest one that is known.
    pub(crate) version: Version,
    pub(crate) runtime: Option<RuntimeOffsets>,
    pub(crate) interpreter: InterpreterOffsets,
    pub(crate) thread: ThreadOffsets,
    pub(crate) gil: Gil,
    pub(crate) object: ObjectLayout,
    pub(crate) frame: FrameOffsets,
    pub(crate) code: CodeOffsets,
    pub(crate) text: TextLayout,
}

/// Offsets in `_PyRuntime`, which exists from 3.7 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeOffsets {
    /// `interpreters.head`.
    pub(crate) interpreters: u64,
    /// `gilstate.tstate_current`, up to 3.11: the thread state that holds the GIL.
    pub(crate) current: Option<u64>,
    /// `autoTSSkey`, a `Py_tss_t`: the key under which each thread stores its thread state.
    pub(crate) tss_key: Option<u64>,
}

/// Offsets in `PyInterpreterState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterpreterOffsets {
    pub(crate) next: u64,
    /// `threads.head`, the first thread state.
    pub(crate) threads: u64,
}

/// Offsets in `PyThreadState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadOffsets {
    pub(crate) next: u64,
    /// `interp`.
    pub(crate) interpreter: u64,
    /// `thread_id`: the value of `pthread_self`.
    pub(crate) id: u64,
    pub(crate) frame: TopFrame,
    /// `cframe`, from 3.10 to 3.12: the address of the structure of the innermost call of the interpreter
    /// on its C stack or, without a call, of a field of the thread state.
    pub(crate) call: Option<u64>,
    /// `state`, an `int`, in free-threaded builds: 1 while the thread is attached.
    pub(crate) attached: Option<u64>,
}

/// The location of a thread's innermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopFrame {
    /// `frame` of the thread state, or from 3.13 on `current_frame`.
    Direct(u64),
    /// In 3.11 and 3.12, a field of a `_PyCFrame` on the C stack.
    CFrame {
        /// `PyThreadState.cframe`.
        cframe: u64,
        /// `_PyCFrame.current_frame`, and after it `previous`.
        current: u64,
    },
}

/// The variable with the holder of the GIL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gil {
    /// Up to 3.11, a variable has the thread state that holds it.
    Current,
    /// From 3.12 on, each interpreter has one.
    OfInterpreter {
        /// `PyInterpreterState.ceval.gil`, a pointer.
        gil: u64,
        /// `_gil_runtime_state.locked`, an `int`.
        locked: u64,
        /// `_gil_runtime_state.last_holder`, a thread state.
        last_holder: u64,
        /// `_gil_runtime_state.enabled`, an `int`, in free-threaded builds: 0 while there is no GIL.
        enabled: Option<u64>,
    },
}

/// The layout of the objects that all others start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectLayout {
    /// `PyObject` is `ob_refcnt` and `ob_type`.
    Counted,
    /// In free-threaded builds, it is `ob_tid`, `ob_ref_local` (an `int` at offset 12), `ob_ref_shared`
    /// (at 16), and `ob_type`.
    FreeThreaded,
}

impl ObjectLayout {
    /// `sizeof(PyObject)`, the offset of `PyVarObject.ob_size`, and of the length of every text.
    pub(crate) const fn size(self) -> u64 {
        match self {
            Self::Counted => 16,
            Self::FreeThreaded => 32,
        }
    }

    /// `PyObject.ob_type`, its last word.
    pub(crate) const fn object_type(self) -> u64 {
        self.size() - 8
    }

    /// `PyTypeObject.tp_name`, the first field after those of a `PyVarObject`.
    pub(crate) const fn type_name(self) -> u64 {
        self.size() + 8
    }

    /// `PyASCIIObject.state`, and `PyBytesObject.ob_sval`: after the size and a hash.
    pub(crate) const fn after_hash(self) -> u64 {
        self.size() + 16
    }
}

/// Offsets in a frame: `PyFrameObject`, or from 3.11 on `_PyInterpreterFrame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameOffsets {
    /// The caller.
    pub(crate) previous: u64,
    pub(crate) code: u64,
    pub(crate) instruction: Instruction,
    /// `tlbc_index`, an `int`, in free-threaded builds from 3.14 on: the number of the copy of the
    /// instructions that the thread executes.
    pub(crate) copy: Option<u64>,
    pub(crate) end: CallEnd,
}

/// The field of a frame with its position in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// Up to 3.10, `f_lasti` is its offset, an `int`.
    Last {
        /// `PyFrameObject.f_lasti`.
        at: u64,
        /// The unit of the offset, in bytes.
        unit: i32,
        /// `f_trace` and `f_lineno`, an `int`, up to 3.9: if the frame is traced, the latter is its
        /// line.
        traced: Option<(u64, u64)>,
    },
    /// From 3.11 on, its address: `prev_instr` or `instr_ptr`.
    Address(u64),
}

/// The mark of the last frame of a call of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// Up to 3.10, each frame is a call.
    Every,
    /// In 3.11, the frame has a mark.
    Flag {
        /// `is_entry`, a `bool`.
        is_entry: u64,
        /// `owner`, a byte.
        owner: u64,
    },
    /// From 3.12 on, a frame without a function comes after it, on the C stack.
    Shim {
        /// `owner`, a byte.
        owner: u64,
        /// The least value of `owner` of these frames.
        least: u8,
    },
}

/// Offsets in `PyCodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeOffsets {
    pub(crate) filename: u64,
    pub(crate) name: u64,
    pub(crate) qualified_name: Option<u64>,
    /// `co_firstlineno`, an `int`.
    pub(crate) first_line: u64,
    /// `co_linetable` or `co_lnotab`, bytes.
    pub(crate) line_table: u64,
    pub(crate) line_format: LineFormat,
    /// `co_code_adaptive`, from 3.11 on: its instructions, which are part of the object.
    pub(crate) instructions: Option<u64>,
    /// `co_tlbc`, in free-threaded builds from 3.14 on: the address of the number of copies of the
    /// instructions and the copies' addresses. The first one is part of the object.
    pub(crate) copies: Option<u64>,
    /// True if it has a unique number, `co_version`, among the first 16 words: from 3.12 on.
    pub(crate) is_numbered: bool,
    /// A bit for each of the first 16 words, from `ob_type` on, that changes while the object lives.
    pub(crate) changing_words: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// Up to 3.5: pairs of unsigned bytes, the increments of instruction offset and line.
    Unsigned,
    /// Up to 3.9: the increment of the line is signed.
    Signed,
    /// 3.10: the size of a range of instructions, and the increment of the line; -128 is no line.
    Ranges,
    /// From 3.11 on: `Objects/locations.md` in CPython's source.
    Locations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextLayout {
    /// `PyStringObject` of Python 2: the length is at offset 16, the bytes are at 36.
    Bytes,
    /// `PyUnicodeObject`, from 3.3 on. After the `PyObject` are the length, in characters, a hash, and flags:
    /// `interned`, the size of a character in 3 bits, `compact`, and `ascii`.
    Unicode {
        /// The number of bits of `interned`.
        interned: u8,
        /// `sizeof(PyASCIIObject)`: the offset of ASCII characters.
        ascii: u64,
        /// `sizeof(PyCompactUnicodeObject)`: the offset of others.
        other: u64,
    },
}

impl TextLayout {
    pub(crate) const LENGTH: u64 = 16;
    /// Number of bytes before the characters that are compared.
    pub(crate) const HEAD: usize = 32;

    /// The offset of the bytes that are compared.
    pub(crate) fn start(self) -> u64 {
        let first_character = match self {
            Self::Bytes => 36,
            Self::Unicode { ascii, .. } => ascii,
        };
        first_character.saturating_sub(Self::HEAD as u64)
    }

    fn of(series: (u8, u8)) -> Self {
        // Include/cpython/unicodeobject.h; 3.12 dropped `wstr`.
        match series {
            (2, _) => Self::Bytes,
            (3, 0..=11) => Self::Unicode {
                interned: 2,
                ascii: 48,
                other: 72,
            },
            _ => Self::Unicode {
                interned: 2,
                ascii: 40,
                other: 56,
            },
        }
    }
}

impl Layout {
    /// The layout of a version, whose `_PyRuntime` is at `runtime`, if it has one.
    ///
    /// # Errors
    /// If the version is unknown, or its description of itself is inconsistent.
    pub(crate) fn of(
        memory: &dyn Memory,
        version: Version,
        runtime: Option<u64>,
    ) -> Result<Self, RuntimeError> {
        let found = match runtime {
            Some(runtime) => debug_offsets::layout(memory, runtime, version)?,
            None => None,
        };
        found.or_else(|| table::layout(version)).ok_or_else(|| {
            let known = table::SERIES.iter().chain(&debug_offsets::SERIES);
            let known = known.map(|(major, minor)| format!("{major}.{minor}"));
            let known = known.collect::<Vec<_>>().join(", ");
            let reason = format!("version {version} is not supported, only {known}");
            RuntimeError::new(reason)
        })
    }
}
