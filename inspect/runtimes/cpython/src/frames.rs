//! The frames of a thread.

use std::ops::Range;

use otelctx_reader::remote::{Memory, MemoryError};
use otelctx_reader::runtime::{
    BothEnds, MAX_FRAMES, MAX_OUTERMOST, MAX_WALKED, RuntimeError, RuntimeStack,
};
use otelctx_reader::sample::{FrameKind, NamedFrame};

use crate::code::{Code, Codes};
use crate::layout::{CallEnd, GENERATOR_STATE, Instruction, Layout, TopFrame};
use crate::step::{Part, SampledFrame};
use crate::structure::Structure;

/// Maximum number of frames that are read of a stack, including those without a function, as many as in
/// `bpf/cpython.step.h`.
const MAX_STEPS: usize = 2 * MAX_WALKED;
/// `FRAME_OWNED_BY_GENERATOR`.
const OWNED_BY_GENERATOR: u8 = 1;
/// More than a thread state takes in 3.11 and 3.12, in bytes.
const MAX_STATE: u64 = 1024;
/// From 3.14 on, the low bits of a pointer to an object are flags.
const TAG: u64 = 3;

/// The library of greenlet, on which gevent and eventlet are based. Before greenlet 1.0, its name had no
/// underscore.
const SWITCHING_LIBRARIES: [&str; 2] = ["_greenlet.", "greenlet."];

/// The frames of the thread with this thread state. `interpreter` is the code that executes them.
///
/// # Errors
/// If the innermost frame cannot be read. If another one cannot, the stack is truncated there.
pub(crate) fn stack(
    memory: &dyn Memory,
    layout: &Layout,
    codes: &mut Codes,
    thread_state: u64,
    interpreter: Vec<Range<u64>>,
) -> Result<RuntimeStack, RuntimeError> {
    let mut stack = RuntimeStack::new(Vec::new(), interpreter);
    stack.switching_libraries = &SWITCHING_LIBRARIES;
    let at = |offset| thread_state.wrapping_add(offset);
    let mut walk = Walk {
        memory,
        layout,
        codes,
        stack,
    };
    match layout.thread.frame {
        TopFrame::Direct(frame) => {
            let innermost = memory.read_u64(at(frame))?;
            walk.read(innermost, None)?;
        }
        TopFrame::CFrame { cframe, current } => {
            let call = |address| {
                let call = Call::read(memory, (thread_state, current), address, 0);
                call.map_err(|error| RuntimeError::from(error).in_a_change())
            };
            let innermost = call(memory.read_u64(at(cframe))?)?;
            let mut is_right = walk.read(innermost.innermost, Some(innermost));
            if !matches!(is_right, Ok(true)) && !innermost.is_outside {
                let before = call(innermost.before)?;
                // Without a caller, there is no other stack.
                if is_right.is_ok() || !before.is_outside {
                    is_right = walk.read(before.innermost, Some(before));
                }
                // If the innermost call is unknown, it may not be the only one.
                is_right = is_right.map(|is_right| is_right && !before.is_outside);
            }
            if !is_right.map_err(RuntimeError::in_a_change)? {
                walk.stack.calls.clear();
                walk.stack.is_truncated = true;
            }
        }
    }
    Ok(walk.stack)
}

/// A call of the interpreter in 3.11 and 3.12, by its `_PyCFrame`, which may still have the
/// contents of an earlier call: see `struct python_call` in `bpf/cpython.step.h`. Then the call has
/// no frames yet.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// Its innermost frame.
    innermost: u64,
    /// The caller's `_PyCFrame`.
    before: u64,
    /// The caller's frame. `None` if it cannot be read.
    caller: Option<u64>,
    /// The address of the thread state, and the offset of `current_frame` in a `_PyCFrame`.
    place: (u64, u64),
    /// The number of calls inside of this one.
    depth: u32,
    /// True if this is past the outermost call.
    is_outside: bool,
}

impl Call {
    /// The call whose `_PyCFrame` is at an address.
    fn read(
        memory: &dyn Memory,
        place: (u64, u64),
        address: u64,
        depth: u32,
    ) -> Result<Self, MemoryError> {
        let (thread_state, current) = place;
        let at = address.wrapping_add(current);
        let innermost = memory.read_u64(at)?;
        // `previous`
        let before = memory.read_u64(at.wrapping_add(8))?;
        // The first `_PyCFrame` is part of the thread state and has no frames. Each greenlet has its
        // own one, whose `previous` is the first.
        let is_in_state = |address: u64| address.wrapping_sub(thread_state) < MAX_STATE;
        let is_first = is_in_state(address) || is_in_state(before);
        Ok(Self {
            innermost,
            before,
            caller: match before {
                0 => None,
                _ => memory.read_u64(before.wrapping_add(current)).ok(),
            },
            place,
            depth,
            is_outside: innermost == 0 && is_first,
        })
    }

    fn caller(&self, memory: &dyn Memory) -> Result<Self, MemoryError> {
        Self::read(memory, self.place, self.before, self.depth + 1)
    }
}

/// Reads the frames of a thread.
struct Walk<'w> {
    memory: &'w dyn Memory,
    layout: &'w Layout,
    codes: &'w mut Codes,
    stack: RuntimeStack,
}

impl Walk<'_> {
    /// Reads the frames from the innermost one on; `call` is its call, if that is known. False if they
    /// are not those of the thread.
    fn read(&mut self, innermost: u64, mut call: Option<Call>) -> Result<bool, RuntimeError> {
        let (mut next, mut frames) = (innermost, Frames::new());
        let (mut is_complete, mut has_generator) = (true, false);
        self.stack.calls.clear();
        self.stack.is_truncated = true;
        for index in 0..MAX_STEPS {
            if next == 0 || frames.count() == MAX_WALKED {
                break;
            }
            let step = match read(self.memory, self.layout, self.codes, next) {
                Ok(step) => step,
                Err(error) if frames.count() == 0 => return Err(error),
                Err(_) if call.is_some_and(|call| call.depth == 0) => return Ok(false),
                Err(_) => break,
            };
            next = step.previous;
            // From 3.12 on, the caller of a generator is stored after the generator's frame.
            let stores_late = matches!(self.layout.frame.end, CallEnd::Shim { .. });
            has_generator = stores_late && index == 0 && step.is_generator;
            is_complete = step.ends_call;
            if let Some(known) = call.filter(|_| step.ends_call) {
                if known.caller == Some(next) {
                    call = Some(known.caller(self.memory)?);
                } else if !step.is_generator {
                    return Ok(false);
                } else {
                    // An exception is raised in a generator that delegates to another one: 3.11 does
                    // not enter the interpreter for that, and the frame has its mark of an earlier call.
                    is_complete = false;
                }
            }
            match step.frame {
                Some(frame) => frames.push(frame, is_complete),
                None => frames.end_call(),
            }
        }
        let is_outside = call.is_none_or(|call| call.is_outside);
        let is_whole = next == 0 && is_complete && is_outside;
        self.stack.is_truncated = !is_whole;
        self.stack.calls = frames.into_calls(is_whole);
        Ok(next != 0 || is_outside || has_generator)
    }
}

/// The frames of a stack, innermost first, each with true for the outermost one of a call.
struct Frames {
    kept: BothEnds<(NamedFrame, bool)>,
    /// Number of calls whose outermost frame is omitted.
    omitted_calls: usize,
}

impl Frames {
    fn new() -> Self {
        Self {
            kept: BothEnds::new(MAX_FRAMES - MAX_OUTERMOST, MAX_OUTERMOST),
            omitted_calls: 0,
        }
    }

    fn count(&self) -> usize {
        self.kept.count()
    }

    fn push(&mut self, frame: NamedFrame, ends_call: bool) {
        let omitted = self.kept.push((frame, ends_call));
        self.omitted_calls += usize::from(omitted.is_some_and(|it| it.1));
    }

    fn end_call(&mut self) {
        if let Some((_, ends_call)) = self.kept.newest() {
            *ends_call = true;
        }
    }

    fn into_calls(self, is_whole: bool) -> Vec<Vec<NamedFrame>> {
        let (first, omitted, last) = self.kept.into_parts();
        let omitted = (omitted, self.omitted_calls);
        calls(first.into_iter(), omitted, last.into_iter(), is_whole)
    }
}

/// Groups frames by calls of the interpreter: those at both ends of a stack, each with true for the
/// outermost one of a call, and the numbers of frames and of such frames that are omitted between them.
/// A call without a kept frame has none. Without all frames, the last ones are not the outermost ones.
fn calls(
    innermost: impl Iterator<Item = (NamedFrame, bool)>,
    (omitted, omitted_calls): (usize, usize),
    outermost: impl ExactSizeIterator<Item = (NamedFrame, bool)>,
    is_whole: bool,
) -> Vec<Vec<NamedFrame>> {
    let (mut calls, mut call, mut count) = (Vec::new(), Vec::new(), omitted + outermost.len());
    for (frame, ends_call) in innermost {
        count += 1;
        call.push(frame);
        if ends_call {
            calls.push(std::mem::take(&mut call));
        }
    }
    if omitted > 0 && is_whole {
        call.push(NamedFrame::omitted(omitted));
        // Each needs its place among the native frames.
        for _ in 0..omitted_calls.min(omitted) {
            calls.push(std::mem::take(&mut call));
        }
    }
    for (frame, ends_call) in outermost.filter(|_| omitted == 0 || is_whole) {
        call.push(frame);
        if ends_call {
            calls.push(std::mem::take(&mut call));
        }
    }
    if !is_whole && count > 0 {
        call.push(NamedFrame::unknown_outside(count));
    }
    if !call.is_empty() {
        calls.push(call);
    }
    calls
}

/// Converts the frames that the eBPF step has read of a thread.
pub(crate) fn sampled(
    memory: &dyn Memory,
    layout: &Layout,
    codes: &mut Codes,
    part: &Part<'_>,
    interpreter: Vec<Range<u64>>,
) -> RuntimeStack {
    let (innermost, outermost) = part.frames();
    let mut name = |frame: SampledFrame| {
        let code = codes.sampled(memory, layout, frame.code, frame.identity);
        let named = match code {
            Some(code) => {
                let line = codes.line(&code, position(layout, frame.position));
                named(&code, line)
            }
            // Its code object was freed before its name was read.
            None => NamedFrame {
                kind: FrameKind::CPYTHON,
                function: "[Python]".to_owned(),
                ..NamedFrame::default()
            },
        };
        (named, frame.is_entry)
    };
    let innermost: Vec<_> = innermost.into_iter().map(&mut name).collect();
    let outermost: Vec<_> = outermost.into_iter().map(&mut name).collect();
    let calls = calls(
        innermost.into_iter(),
        part.omitted(),
        outermost.into_iter(),
        !part.is_truncated,
    );
    let mut stack = RuntimeStack::new(calls, interpreter);
    stack.switching_libraries = &SWITCHING_LIBRARIES;
    stack.is_truncated = part.is_truncated;
    stack
}

/// Stands for the offset of an instruction outside of its code object, which has no line.
const ELSEWHERE: u32 = u32::MAX;

/// Converts the offset of an instruction in the code object to that among the instructions, in bytes.
fn position(layout: &Layout, sampled: u32) -> i64 {
    match layout.frame.instruction {
        Instruction::Last { unit, .. } => i64::from(sampled.cast_signed()) * i64::from(unit),
        Instruction::Address(_) => {
            let start = layout.code.instructions.unwrap_or(0);
            i64::from(sampled) - start.cast_signed()
        }
    }
}

fn named(code: &Code, line: u32) -> NamedFrame {
    NamedFrame {
        kind: FrameKind::CPYTHON,
        function: code.name.clone(),
        qualified_name: code.qualified_name.clone(),
        file: code.file.clone(),
        line,
    }
}

struct Step {
    /// `None` for a frame that only marks the end of a call.
    frame: Option<NamedFrame>,
    ends_call: bool,
    is_generator: bool,
    previous: u64,
}

fn read(
    memory: &dyn Memory,
    layout: &Layout,
    codes: &mut Codes,
    address: u64,
) -> Result<Step, RuntimeError> {
    let frame = &layout.frame;
    let structure = Structure::read(memory, address, &fields(layout))?;
    let (is_function, ends_call, is_generator) = match frame.end {
        CallEnd::Every => (true, true, false),
        CallEnd::Flag { is_entry, owner } => {
            let is_generator = structure.byte(owner) == OWNED_BY_GENERATOR;
            if is_generator {
                let mut state = [0];
                memory.read(address.wrapping_add(GENERATOR_STATE), &mut state)?;
                if state != [0] {
                    let reason = format!("the generator of {address:#x} does not run");
                    return Err(RuntimeError::new(reason));
                }
            }
            (true, structure.byte(is_entry) != 0, is_generator)
        }
        CallEnd::Shim { owner, least } => {
            let owner = structure.byte(owner);
            let is_shim = owner >= least;
            (!is_shim, is_shim, owner == OWNED_BY_GENERATOR)
        }
    };
    let function = is_function.then(|| function_of(memory, layout, codes, &structure));
    Ok(Step {
        frame: function.transpose()?,
        ends_call,
        is_generator,
        previous: structure.pointer(frame.previous),
    })
}

/// Reads the function of any frame, such as that of a suspended generator.
pub(crate) fn function(
    memory: &dyn Memory,
    layout: &Layout,
    codes: &mut Codes,
    address: u64,
) -> Result<NamedFrame, RuntimeError> {
    let structure = Structure::read(memory, address, &fields(layout))?;
    function_of(memory, layout, codes, &structure)
}

/// The function of a frame, which was read up to the ends of [`fields`].
fn function_of(
    memory: &dyn Memory,
    layout: &Layout,
    codes: &mut Codes,
    structure: &Structure,
) -> Result<NamedFrame, RuntimeError> {
    let frame = &layout.frame;
    let code_address = structure.pointer(frame.code) & !TAG;
    let code = codes.get(memory, layout, code_address)?;
    let line = match frame.instruction {
        Instruction::Last {
            traced: Some((trace, traced_line)),
            ..
        } if structure.pointer(trace) != 0 => {
            u32::try_from(structure.int(traced_line)).unwrap_or(0)
        }
        Instruction::Last { at, unit, .. } => {
            codes.line(&code, i64::from(structure.int(at)) * i64::from(unit))
        }
        Instruction::Address(at) => {
            let copy = frame.copy.map_or(0, |copy| structure.int(copy));
            let start = instructions(memory, layout, code_address, copy)?;
            let sampled = structure.pointer(at).wrapping_sub(start);
            let sampled = sampled.wrapping_add(layout.code.instructions.unwrap_or(0));
            let sampled = u32::try_from(sampled).unwrap_or(ELSEWHERE);
            codes.line(&code, position(layout, sampled))
        }
    };
    Ok(named(&code, line))
}

/// The offsets of the fields of a frame that are read.
fn fields(layout: &Layout) -> [u64; 7] {
    let frame = &layout.frame;
    let (at, traced) = match frame.instruction {
        Instruction::Last { at, traced, .. } => (at, traced),
        Instruction::Address(at) => (at, None),
    };
    let mark = match frame.end {
        CallEnd::Every => at,
        CallEnd::Flag { owner, .. } | CallEnd::Shim { owner, .. } => owner,
    };
    let (trace, line) = traced.unwrap_or((at, at));
    let copy = frame.copy.unwrap_or(at);
    [frame.previous, frame.code, at, mark, trace, line, copy]
}

/// The address of the instructions of a code object: in the object, or the copy with this number, see
/// [`CodeOffsets::copies`](crate::layout::CodeOffsets).
fn instructions(
    memory: &dyn Memory,
    layout: &Layout,
    code: u64,
    copy: i32,
) -> Result<u64, MemoryError> {
    match (layout.code.copies, u64::try_from(copy)) {
        (Some(copies), Ok(copy @ 1..)) => {
            let copies = memory.read_u64(code.wrapping_add(copies))?;
            memory.read_u64(copies.wrapping_add(8 + 8 * copy))
        }
        _ => Ok(code.wrapping_add(layout.code.instructions.unwrap_or(0))),
    }
}
