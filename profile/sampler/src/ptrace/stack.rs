//! The stack of a stopped thread.

use otelctx_reader::remote::{Memory, Stopped};
use otelctx_sample::{Frame, StackEnd};
use otelctx_unwind::{CodeMap, Registers};

/// Maximum number of frames that are kept of a stack walked by frame pointers, as by the kernel
/// (`kernel.perf_event_max_stack`).
const MAX_FRAMES: usize = 127;

/// A stack, innermost frame first.
#[derive(Debug, Default)]
pub(super) struct Stack {
    pub(super) frames: Vec<Frame>,
    /// The end of the stack; `None` if stacks are not sampled.
    pub(super) end: Option<StackEnd>,
}

/// Walks a stack by the unwind tables of the process's code, or without those by frame pointers.
pub(super) fn walk(stopped: &Stopped, memory: &dyn Memory, code: Option<&CodeMap>) -> Stack {
    let registers = Registers::of_stopped(stopped.registers());
    let code = code.filter(|code| !code.mappings().is_empty());
    let (Some(code), Some(registers)) = (code, registers) else {
        return walk_frame_pointers(stopped, memory);
    };
    let (mut found, limit) = (Vec::new(), otelctx_unwind::MAX_FRAMES);
    let end = otelctx_unwind::walk(&registers, code, memory, limit, &mut found);
    let frame = |frame: &otelctx_unwind::Frame| {
        if frame.is_caller {
            Frame::return_address(frame.address)
        } else {
            Frame::instruction(frame.address)
        }
    };
    let mut frames: Vec<Frame> = found.iter().map(frame).collect();
    Frame::mark_signal_returns(&mut frames);
    Stack {
        frames,
        end: Some(stack_end(end)),
    }
}

fn stack_end(end: otelctx_unwind::StackEnd) -> StackEnd {
    match end {
        otelctx_unwind::StackEnd::Start => StackEnd::Start,
        otelctx_unwind::StackEnd::Limit => StackEnd::Limit,
        otelctx_unwind::StackEnd::NoRows => StackEnd::NoTables,
        otelctx_unwind::StackEnd::Unreadable(_) => StackEnd::Unreadable,
        otelctx_unwind::StackEnd::NotExecutable(_) => StackEnd::NotExecutable,
        _ => StackEnd::BadTables,
    }
}

/// Walks a stack by frame pointers: each frame starts with its caller's frame pointer and the
/// return address (on both x86-64 and aarch64).
fn walk_frame_pointers(stopped: &Stopped, memory: &dyn Memory) -> Stack {
    let registers = stopped.registers();
    let mut frames = vec![Frame::instruction(registers.instruction_pointer())];
    let mut frame = registers.frame_pointer();
    // Stacks grow down: a caller's frame lies above.
    let mut lowest = registers.stack_pointer();
    while frame >= lowest && frame.is_multiple_of(8) {
        let mut bytes = [0; 16];
        if memory.read(frame, &mut bytes).is_err() {
            break;
        }
        let words = u128::from_le_bytes(bytes);
        let (next, address) = (words as u64, (words >> 64) as u64);
        if address == 0 {
            break;
        }
        if frames.len() == MAX_FRAMES {
            let end = Some(StackEnd::Limit);
            return Stack { frames, end };
        }
        frames.push(Frame::return_address(address));
        // The target chooses the addresses.
        let Some(above) = frame.checked_add(16) else {
            break;
        };
        (lowest, frame) = (above, next);
    }
    // Nothing shows that the last frame is the thread's first one.
    let end = Some(StackEnd::FramePointers);
    Stack { frames, end }
}
