//! The stack of a stopped thread.

use otelctx_reader::remote::{Memory, Stopped};
use otelctx_sample::{Frame, StackEnd};

/// Maximum number of frames kept of a stack: as many as the kernel keeps
/// (`kernel.perf_event_max_stack`).
const MAX_FRAMES: usize = 127;

/// A stack, innermost frame first.
#[derive(Debug, Default)]
pub(super) struct Stack {
    pub(super) frames: Vec<Frame>,
    /// Why it ended; `None` if it was not to be walked.
    pub(super) end: Option<StackEnd>,
}

/// Walks a stack by frame pointers: each frame starts with its caller's frame pointer, followed by
/// the return address (on both x86-64 and aarch64).
pub(super) fn walk(stopped: &Stopped, memory: &dyn Memory) -> Stack {
    let registers = stopped.registers();
    let mut frames = vec![Frame::instruction(registers.instruction_pointer())];
    let mut frame = registers.frame_pointer();
    // Stacks grow down: a caller's frame lies above.
    let mut lowest = registers.stack_pointer();
    while frame >= lowest && frame.is_multiple_of(8) {
        let mut words = [0; 16];
        if memory.read(frame, &mut words).is_err() {
            break;
        }
        let (next, address) = words.split_at(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let (next, address) = (word(next), word(address));
        if address == 0 {
            break;
        }
        if frames.len() == MAX_FRAMES {
            let end = Some(StackEnd::Limit);
            return Stack { frames, end };
        }
        frames.push(Frame::return_address(address));
        // The end of this frame, at an address chosen by the target.
        let Some(above) = frame.checked_add(16) else {
            break;
        };
        (lowest, frame) = (above, next);
    }
    // Nothing shows that the last frame is the one that the thread started with.
    let end = Some(StackEnd::NoTables);
    Stack { frames, end }
}
