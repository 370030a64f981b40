//! Hand-made processes with CPython 3.12, of which most are malformed.

use otelctx_reader::remote::TargetImage;
use otelctx_reader::runtime::{MAX_FRAMES, MAX_OUTERMOST, RuntimeStack};
use otelctx_reader::sample::FrameKind;

use super::*;
use crate::layout::TopFrame;

/// All structures are in one block of zeros, at these addresses.
const START: u64 = 0x1_0000;
const SIZE: usize = 0x1_0000;
const INTERPRETERS: u64 = START + 0x10;
const INTERPRETER: u64 = START + 0x1000;
const GIL: u64 = START + 0x2000;
const STATE: u64 = START + 0x3000;
const CFRAME: u64 = START + 0x4000;
/// The `_PyCFrame` that has no frames, in the thread state.
const OUTSIDE: u64 = STATE + 0x300;
const FRAME: u64 = START + 0x5000;
/// Marks the end of the thread's only call of the interpreter.
const SHIM: u64 = START + 0x5800;
const CODE: u64 = START + 0x6000;
const TYPE: u64 = START + 0x7000;
const NAME: u64 = START + 0x8000;
const LINES: u64 = START + 0x9000;
const TYPE_NAME: u64 = START + 0xa000;
const THREAD: ThreadView = ThreadView::new(1, 0x7f00);

struct Made {
    bytes: Vec<u8>,
    layout: Layout,
}

impl Made {
    /// A thread in line 11 of a function `f`, which holds the GIL.
    fn new() -> Self {
        let version = Version::new(3, 12, 1);
        let layout = Layout::of(&TargetImage::new(), version, None).unwrap();
        let mut made = Self {
            bytes: vec![0; SIZE],
            layout,
        };
        made.put(INTERPRETERS, INTERPRETER);
        made.put(INTERPRETER + layout.interpreter.threads, STATE);
        let crate::layout::Gil::OfInterpreter {
            gil,
            locked,
            last_holder,
            ..
        } = layout.gil
        else {
            panic!("{layout:?}")
        };
        made.put(INTERPRETER + gil, GIL);
        made.put(GIL + locked, 1);
        made.put(GIL + last_holder, STATE);
        made.put(STATE + layout.thread.interpreter, INTERPRETER);
        made.put(STATE + layout.thread.id, THREAD.thread_pointer);
        let TopFrame::CFrame { cframe, current } = layout.thread.frame else {
            panic!("{layout:?}")
        };
        made.put(STATE + cframe, CFRAME);
        made.put(CFRAME + current, FRAME);
        made.put(CFRAME + current + 8, OUTSIDE);
        made.put_frame(FRAME, CODE, SHIM);
        made.put_shim(SHIM, 0);
        let code = &layout.code;
        made.put(CODE + 8, TYPE);
        made.put(TYPE + 24, TYPE_NAME);
        made.put(TYPE_NAME, u64::from_ne_bytes(*b"code\0\0\0\0"));
        for text in [code.name, code.filename, code.qualified_name.unwrap()] {
            made.put(CODE + text, NAME);
        }
        made.put(NAME + 16, 1);
        // One byte a character, compact, ASCII.
        made.put(NAME + 32, 1 << 2 | 1 << 5 | 1 << 6);
        made.put(NAME + 40, u64::from(b'f'));
        made.put(CODE + code.line_table, LINES);
        made.put(CODE + code.first_line, 10);
        made.put(LINES + 16, 2);
        // Eight instructions, one line further.
        made.put(LINES + 32, 0x80 | 13 << 3 | 7 | 2 << 8);
        made
    }

    fn put_frame(&mut self, at: u64, code: u64, previous: u64) {
        let frame = self.layout.frame;
        self.put(at + frame.code, code);
        self.put(at + frame.previous, previous);
        let crate::layout::Instruction::Address(instruction) = frame.instruction else {
            panic!("{frame:?}")
        };
        self.put(
            at + instruction,
            code + self.layout.code.instructions.unwrap(),
        );
    }

    /// A frame that marks the end of a call.
    fn put_shim(&mut self, at: u64, previous: u64) {
        // `owner` is one of eight bytes.
        self.put(at + 64, 3 << 48);
        self.put(at + self.layout.frame.previous, previous);
    }

    /// Offset of `current_frame` in a `_PyCFrame`; `previous` comes after it.
    fn current(&self) -> u64 {
        match self.layout.thread.frame {
            TopFrame::CFrame { current, .. } => current,
            TopFrame::Direct(_) => panic!("{:?}", self.layout),
        }
    }

    fn put(&mut self, address: u64, value: u64) {
        let at = usize::try_from(address - START).unwrap();
        self.bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn read(self) -> Result<Option<RuntimeThread>, RuntimeError> {
        let mut target = TargetImage::new();
        target.memory.map(START, self.bytes);
        let process = PythonProcess {
            version: Version::new(3, 12, 1),
            layout: self.layout,
            variables: Variables {
                thread_id: 0,
                interpreters: INTERPRETERS,
                current: None,
                thread_current: None,
                own: None,
            },
            states: StateCache::default(),
            module: OsString::new(),
            files: FileCache::default(),
            code: OnceLock::new(),
            step: None,
            others: Vec::new(),
            codes: Mutex::default(),
            active_threads: ActiveThreads::default(),
        };
        process.thread(&target, THREAD)
    }

    fn stack(self) -> RuntimeStack {
        self.read().unwrap().unwrap().stack
    }

    /// Its functions and lines, and true if outer ones are missing.
    fn frames(self) -> (Vec<(String, u32)>, bool) {
        let stack = self.stack();
        let frames = stack
            .frames()
            .filter(|it| it.kind != FrameKind::ABORT_MARKER);
        let frames = frames.map(|it| (it.function.clone(), it.line));
        (frames.collect(), stack.is_truncated)
    }

    fn error(self) -> String {
        self.read().unwrap_err().to_string()
    }
}

#[test]
fn a_thread_has_its_function_and_line() {
    let (frames, is_truncated) = Made::new().frames();
    assert_eq!(frames, [("f".to_owned(), 11)]);
    assert!(!is_truncated);
    let facts = Made::new().read().unwrap().unwrap().facts;
    assert_eq!(facts[0], ("holds_gil".into(), Value::Bool(true)));
    assert_eq!(facts[1], ("thread_state".into(), "0x13000".into()));
}

#[test]
fn endless_chains_of_frames_are_truncated() {
    let mut made = Made::new();
    made.put_frame(FRAME, CODE, FRAME);
    let stack = made.stack();
    let names: Vec<_> = stack.frames().map(|it| it.function.as_str()).collect();
    let (last, innermost) = names.split_last().unwrap();
    assert_eq!(innermost, ["f"; MAX_FRAMES - MAX_OUTERMOST]);
    assert_eq!(*last, "[incomplete: outer frames unknown, more than 4,096]");
    assert!(stack.is_truncated);
    // Frames that mark the end of a call, alone.
    let mut made = Made::new();
    made.put_shim(FRAME, FRAME);
    made.put(OUTSIDE + made.current(), FRAME);
    assert_eq!(made.frames(), (Vec::new(), true));
}

#[test]
fn endless_lists_are_errors() {
    let mut made = Made::new();
    made.put(STATE + made.layout.thread.next, STATE);
    made.put(STATE + made.layout.thread.id, 1);
    assert_eq!(made.error(), "its list of threads has more than 16384");
    let mut made = Made::new();
    made.put(STATE + made.layout.thread.next, STATE);
    assert_eq!(made.error(), "the thread has more than 64 thread states");
    let mut made = Made::new();
    made.put(INTERPRETER + made.layout.interpreter.next, INTERPRETER);
    assert_eq!(made.error(), "its list of interpreters has more than 1024");
}

#[test]
fn what_is_no_thread_state_or_code_object_is_an_error() {
    let mut made = Made::new();
    made.put(STATE + made.layout.thread.interpreter, 8);
    assert_eq!(made.error(), "there is no thread state at 0x13000");
    let mut made = Made::new();
    made.put(TYPE_NAME, u64::from_ne_bytes(*b"coder\0\0\0"));
    assert_eq!(made.error(), "there is no code object at 0x16000");
    let mut made = Made::new();
    made.put(NAME + 32, 0);
    assert_eq!(made.error(), "there is no string at 0x18000");
}

#[test]
fn a_function_with_a_huge_table_of_lines_has_no_lines() {
    let mut made = Made::new();
    made.put(LINES + 16, u64::MAX);
    assert_eq!(made.frames().0, [("f".to_owned(), 0)]);
}

#[test]
fn a_stack_ends_where_a_frame_cannot_be_read() {
    let mut made = Made::new();
    made.put_shim(SHIM, 8);
    made.put(OUTSIDE + made.current(), 8);
    let (frames, is_truncated) = made.frames();
    assert_eq!((frames.len(), is_truncated), (1, true));
}

/// A call of the interpreter that has just begun has the `_PyCFrame` of an earlier one, on the same place
/// of the stack. Then the frames are those of its caller.
#[test]
fn frames_of_an_earlier_call_are_not_read() {
    const EARLIER: u64 = FRAME + 0x200;
    let begun = |change: &dyn Fn(&mut Made)| {
        let mut made = Made::new();
        let current = made.current();
        let TopFrame::CFrame { cframe, .. } = made.layout.thread.frame else {
            panic!("{:?}", made.layout)
        };
        made.put(STATE + cframe, CFRAME + 0x100);
        made.put(CFRAME + 0x100 + current, EARLIER);
        made.put(CFRAME + 0x100 + current + 8, CFRAME);
        change(&mut made);
        made.frames()
    };
    let caller = (vec![("f".to_owned(), 11)], false);
    // Its frame has the caller's frame before it, or another one.
    let with_caller = begun(&|made| {
        made.put_frame(EARLIER, CODE, EARLIER + 0x100);
        made.put_shim(EARLIER + 0x100, FRAME);
    });
    assert_eq!(with_caller.0.len(), 2);
    let changes: [&dyn Fn(&mut Made); 4] = [
        &|made| {
            made.put_frame(EARLIER, CODE, EARLIER + 0x100);
            made.put_shim(EARLIER + 0x100, FRAME + 0x300);
        },
        &|made| made.put_shim(EARLIER, 0),
        &|made| made.put_frame(EARLIER, 8, 0),
        &|made| made.put_frame(EARLIER, CODE, 8),
    ];
    for change in changes {
        assert_eq!(begun(change), caller);
    }
    // Neither is that of the caller known then.
    let unknown = begun(&|made| {
        made.put_shim(EARLIER, 0);
        made.put_shim(SHIM, 0x10);
    });
    assert_eq!(unknown, (Vec::new(), true));
}

/// The reader reads a thread again whose innermost call has just begun.
#[test]
fn a_call_that_is_not_there_yet_is_a_change() {
    let read = |at: u64, word: u64| {
        let mut made = Made::new();
        made.put(at, word);
        made.read()
    };
    let current = Made::new().current();
    let error = read(CFRAME + current, 8).unwrap_err();
    let expected = RuntimeError::new(error.to_string());
    assert_ne!(error, expected);
    assert_eq!(error, expected.in_a_change());
    let previous = SHIM + Made::new().layout.frame.previous;
    assert!(!read(previous, 0x10).unwrap().unwrap().is_settled);
    assert!(Made::new().read().unwrap().unwrap().is_settled);
}

/// 3.12 stores the caller of a generator's frame after that, and removes it before.
#[test]
fn a_generator_without_a_caller_is_marked() {
    let mut made = Made::new();
    made.put_frame(FRAME, CODE, 0);
    // `owner` is one of eight bytes.
    made.put(FRAME + 64, 1 << 48);
    assert_eq!(made.frames(), (vec![("f".to_owned(), 11)], true));
}

#[test]
fn long_names_are_cut() {
    let mut made = Made::new();
    made.put(NAME + 16, u64::MAX);
    let (frames, _) = made.frames();
    assert_eq!(frames[0].0.len(), 512);
}
