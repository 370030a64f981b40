//! The stack of a stopped thread.

use std::sync::Arc;

use otelctx_reader::remote::{Memory, Stopped};
use otelctx_sample::{Frame, StackEnd};
use otelctx_unwind::{CodeMap, Registers, walk_generated};

use crate::second_walk::CopiedStack;
use crate::user_stack;
use crate::walkers::LiveWalkers;

/// Maximum number of frames that are kept of a stack walked by frame pointers, as by the kernel
/// (`kernel.perf_event_max_stack`).
const MAX_FRAMES: usize = 127;

/// A stack, innermost frame first.
#[derive(Debug, Default)]
pub(super) struct Stack {
    pub(super) frames: Vec<Frame>,
    /// The end of the stack; `None` if stacks are not sampled.
    pub(super) end: Option<StackEnd>,
    /// A copy for a second walk: the tables were not ready.
    pub(super) copied: Option<Box<CopiedStack>>,
    /// What the walk has found, until [`Self::name`] makes frames of it.
    found: Vec<otelctx_unwind::Frame>,
}

impl Stack {
    /// Converts what the walk has found to frames. Runtimes read the names of their functions, for which the thread need not be
    /// stopped any more.
    pub(super) fn name(&mut self, walkers: Option<&LiveWalkers>) {
        let found = std::mem::take(&mut self.found);
        let Some(end) = self.end.as_mut().filter(|_| !found.is_empty()) else {
            return;
        };
        self.frames = match walkers {
            Some(walkers) => walkers.frames(&found, end),
            None => user_stack::frames(&found, end, &|_, _| Arc::default()),
        };
    }
}

/// Walks a stack by the unwind tables of the process's code. Where they are not ready, the stack has its innermost frame
/// alone, and is copied if `may_copy`. Where no stacks are unwound, it is walked by frame pointers. [`Stack::name`] is to follow.
pub(super) fn walk(
    stopped: &Stopped,
    memory: &dyn Memory,
    code: Option<&CodeMap>,
    walkers: Option<&LiveWalkers>,
    may_copy: bool,
) -> Stack {
    let Some(registers) = Registers::of_stopped(stopped.registers()) else {
        return walk_frame_pointers(stopped, memory);
    };
    let copy = || may_copy.then(|| Box::new(CopiedStack::of(registers, memory)));
    let Some(code) = code.filter(|code| !code.mappings().is_empty()) else {
        return Stack {
            frames: vec![Frame::instruction(registers.instruction_pointer())],
            end: Some(StackEnd::TablesNotReady),
            copied: copy(),
            ..Stack::default()
        };
    };
    let (mut found, limit) = (Vec::new(), otelctx_unwind::MAX_FRAMES);
    let generated = walkers.map_or(&[][..], |it| it.walkers.walkers());
    let end = walk_generated(&registers, code, generated, memory, limit, &mut found);
    let end = user_stack::stack_end(end);
    // The code may be newer than the code map.
    let copied = (end == StackEnd::NotExecutable).then(copy).flatten();
    Stack {
        frames: Vec::new(),
        end: Some(end),
        copied,
        found,
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
            return Stack {
                frames,
                end: Some(StackEnd::Limit),
                ..Stack::default()
            };
        }
        frames.push(Frame::return_address(address));
        // The target chooses the addresses.
        let Some(above) = frame.checked_add(16) else {
            break;
        };
        (lowest, frame) = (above, next);
    }
    // Nothing shows that the last frame is the thread's first one.
    Stack {
        frames,
        end: Some(StackEnd::FramePointers),
        ..Stack::default()
    }
}
