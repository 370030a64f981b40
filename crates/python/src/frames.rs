//! The frames of a thread.

use std::ops::Range;

use otelctx_reader::remote::Memory;
use otelctx_reader::runtime::{MAX_FRAMES, RuntimeError, RuntimeStack};
use otelctx_reader::sample::{FrameKind, NamedFrame};

use crate::code::{Code, Codes};
use crate::layout::{CallEnd, Instruction, Layout, TopFrame};
use crate::step::Part;
use crate::structure::Structure;

/// Maximum number of frames that are read of a stack, including those without a function.
const MAX_STEPS: usize = 4 * MAX_FRAMES;
/// From 3.14 on, the low bits of a pointer to an object are flags.
const TAG: u64 = 3;

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
    let mut stack = RuntimeStack {
        interpreter,
        ..RuntimeStack::default()
    };
    let at = |offset| thread_state.wrapping_add(offset);
    match layout.thread.frame {
        TopFrame::Direct(frame) => {
            let innermost = memory.read_u64(at(frame))?;
            walk(memory, layout, codes, innermost, &mut stack)?;
        }
        TopFrame::CFrame {
            cframe,
            current,
            previous,
        } => {
            let cframe = memory.read_u64(at(cframe))?;
            if cframe == 0 {
                return Ok(stack);
            }
            let innermost = memory.read_u64(cframe.wrapping_add(current))?;
            if let Err(error) = walk(memory, layout, codes, innermost, &mut stack) {
                // It may have entered the interpreter, and not have stored its first frame yet.
                let cframe = memory.read_u64(cframe.wrapping_add(previous))?;
                let outer = memory.read_u64(cframe.wrapping_add(current));
                let outer = outer.ok().filter(|outer| *outer != 0);
                let outer = outer.map(|outer| walk(memory, layout, codes, outer, &mut stack));
                if !matches!(outer, Some(Ok(()))) {
                    return Err(error);
                }
            }
        }
    }
    Ok(stack)
}

fn walk(
    memory: &dyn Memory,
    layout: &Layout,
    codes: &mut Codes,
    innermost: u64,
    stack: &mut RuntimeStack,
) -> Result<(), RuntimeError> {
    let (mut next, mut call, mut count) = (innermost, Vec::new(), 0);
    for _ in 0..MAX_STEPS {
        if next == 0 || count == MAX_FRAMES {
            break;
        }
        let step = match read(memory, layout, codes, next) {
            Ok(step) => step,
            Err(error) if count == 0 => return Err(error),
            Err(_) => break,
        };
        if let Some(frame) = step.frame {
            call.push(frame);
            count += 1;
        }
        if step.ends_call && !call.is_empty() {
            stack.calls.push(std::mem::take(&mut call));
        }
        next = step.previous;
    }
    if !call.is_empty() {
        stack.calls.push(call);
    }
    stack.is_truncated = next != 0;
    Ok(())
}

/// The frames that the kernel's step has read of a thread.
pub(crate) fn sampled(
    memory: &dyn Memory,
    layout: &Layout,
    codes: &mut Codes,
    part: &Part<'_>,
    interpreter: Vec<Range<u64>>,
) -> RuntimeStack {
    let (mut calls, mut call) = (Vec::new(), Vec::new());
    for frame in part.frames() {
        if !frame.is_shim && frame.code != 0 {
            let code = codes.sampled(memory, layout, frame.code, frame.identity);
            call.push(code.map_or_else(unknown, |code| {
                let line = codes.line(&code, position(layout, frame.position));
                named(&code, line)
            }));
        }
        let ends_call = frame.is_shim || frame.is_entry || layout.frame.end == CallEnd::Every;
        if ends_call && !call.is_empty() {
            calls.push(std::mem::take(&mut call));
        }
    }
    if !call.is_empty() {
        calls.push(call);
    }
    RuntimeStack {
        calls,
        interpreter,
        is_truncated: part.is_truncated,
    }
}

/// The offset of an instruction among the instructions, in bytes.
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

/// A function whose code object was freed before its name was read.
fn unknown() -> NamedFrame {
    NamedFrame {
        kind: FrameKind::CPYTHON,
        function: "[Python]".to_owned(),
        ..NamedFrame::default()
    }
}

struct Step {
    /// `None` for one that only marks the end of a call.
    frame: Option<NamedFrame>,
    ends_call: bool,
    previous: u64,
}

fn read(
    memory: &dyn Memory,
    layout: &Layout,
    codes: &mut Codes,
    address: u64,
) -> Result<Step, RuntimeError> {
    let frame = &layout.frame;
    let (at, traced) = match frame.instruction {
        Instruction::Last { at, traced, .. } => (at, traced),
        Instruction::Address(at) => (at, None),
    };
    let mark = match frame.end {
        CallEnd::Every => at,
        CallEnd::Flag(mark) | CallEnd::Shim { owner: mark, .. } => mark,
    };
    let (trace, traced_line) = traced.unwrap_or((at, at));
    let fields = [frame.previous, frame.code, at, mark, trace, traced_line];
    let structure = Structure::read(memory, address, &fields)?;
    let previous = structure.pointer(frame.previous);
    let ends_call = match frame.end {
        CallEnd::Every => true,
        CallEnd::Flag(is_entry) => structure.byte(is_entry) != 0,
        CallEnd::Shim { owner, least } => {
            if structure.byte(owner) >= least {
                return Ok(Step {
                    frame: None,
                    ends_call: true,
                    previous,
                });
            }
            false
        }
    };
    let code_address = structure.pointer(frame.code) & !TAG;
    let code = codes.get(memory, layout, code_address)?;
    let line = match frame.instruction {
        Instruction::Last { .. } if traced.is_some() && structure.pointer(trace) != 0 => {
            u32::try_from(structure.int(traced_line)).unwrap_or(0)
        }
        Instruction::Last { at, unit, .. } => {
            codes.line(&code, i64::from(structure.int(at)) * i64::from(unit))
        }
        Instruction::Address(at) => {
            let start = code_address.wrapping_add(layout.code.instructions.unwrap_or(0));
            codes.line(
                &code,
                structure.pointer(at).wrapping_sub(start).cast_signed(),
            )
        }
    };
    Ok(Step {
        frame: Some(named(&code, line)),
        ends_call,
        previous,
    })
}
