//! The data that is exchanged with `bpf/waits.bpf.c` (`bpf/waits.h`).

use std::sync::Arc;

use aya::Pod;
use otelctx_sample::{Found, Frame, OffCpuState};
use otelctx_waits::Call;

use crate::ebpf::abi::{EventHead, Parts, Target, found, part, take};
use crate::ebpf::copies;
use crate::ebpf::decode::{name, read_stack};
use crate::second_walk::{CopiedStack, StackBytes};
use crate::waits::{Times, WaitEvent, WaitSnapshot};

/// `enum wait_event_kind`.
pub(super) mod kind {
    pub(in crate::ebpf) const WAIT: u8 = 5;
    pub(in crate::ebpf) const SAME_WAIT: u8 = 6;
}

/// `EVENT_TORN`.
pub(super) const TORN: u8 = 8;

/// `enum wait_part_kind`.
mod wait_part {
    pub(super) const WAIT: u16 = 4;
    pub(super) const TIMES: u16 = 5;
    pub(super) const REGISTERS: u16 = 6;
    pub(super) const STACK_BYTES: u16 = 7;
    pub(super) const CALL_MEMORY: u16 = 8;
}

/// `WAIT_STATES`.
pub(super) const STATES: usize = 4;
/// `WAIT_REGISTERS`.
const REGISTERS: usize = 34;
/// `LONG_STACK`: the program's copies have no more bytes.
pub(super) const LONG_STACK: u32 = 17 * 4096;
/// `STACK_PAGE`, in bytes.
const STACK_PAGE: usize = 4096;
/// `DEFAULT_STACK`, in bytes.
pub(super) const DEFAULT_STACK: u32 = 4096;

/// `struct wait_part`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitPart {
    pub(super) since: u64,
    pub(super) weight: u64,
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
    pub(super) thread_pointer: u64,
    pub(super) state: u32,
    pub(super) reserved: u32,
}

/// `struct wait_times`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitTimes {
    pub(super) by_state: [u64; STATES],
    pub(super) last: u64,
    pub(super) switches: u64,
}

/// `struct call_memory`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CallMemory {
    pub(super) piece: [CallPiece; 3],
}

/// `struct call_piece`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CallPiece {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) bytes: [u8; 128],
}

/// `struct stack_piece`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct StackPiece {
    pub(super) detail: u64,
    pub(super) tid: u32,
    pub(super) size: u32,
    pub(super) address: u64,
    pub(super) bytes: [u8; STACK_PAGE],
}

// The object's type information does not have it: `bpf/waits.h` asserts the same.
const _: () = {
    assert!(size_of::<StackPiece>() == 4120);
    assert!(std::mem::offset_of!(StackPiece, bytes) == 24);
};

/// `struct wait_target`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitTarget {
    pub(super) target: Target,
    pub(super) stack_size: u32,
    pub(super) version: u32,
}

/// `struct scan`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanParameters {
    pub(super) weight: u64,
    pub(super) started: u64,
    pub(super) own_pid: u32,
    pub(super) is_flush: u32,
    pub(super) is_check: u32,
    pub(super) reserved: u32,
}

/// `struct scan_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanCounts {
    pub(super) seen: u64,
    pub(super) running: u64,
    pub(super) same: u64,
    pub(super) read: u64,
    pub(super) torn: u64,
    pub(super) known_arrivals: u64,
    pub(super) known_delay: u64,
    pub(super) own_delay: u64,
    pub(super) barrier: u64,
}

// SAFETY: integers without padding: `repr(C)`, and a test compares the layout with the objects.
unsafe impl Pod for WaitPart {}
// SAFETY: as above.
unsafe impl Pod for WaitTimes {}
// SAFETY: as above.
unsafe impl Pod for CallMemory {}
// SAFETY: as above.
unsafe impl Pod for StackPiece {}
// SAFETY: as above.
unsafe impl Pod for WaitTarget {}
// SAFETY: as above.
unsafe impl Pod for ScanParameters {}
// SAFETY: as above.
unsafe impl Pod for ScanCounts {}

/// Times of the wait that was known before an event.
fn times(parts: Parts<'_>) -> WaitTimes {
    let mut times = parts.filter(|part| part.kind == wait_part::TIMES);
    let times = times.next().and_then(|part| take(part.bytes));
    times.map_or_else(WaitTimes::default, |(times, _)| times)
}

/// Returns the thread pointer that was read with a wait.
pub(super) fn thread_pointer(parts: Parts<'_>) -> u64 {
    let mut waits = parts.filter(|part| part.kind == wait_part::WAIT);
    let wait = waits.next().and_then(|part| take::<WaitPart>(part.bytes));
    wait.map_or(0, |(wait, _)| wait.thread_pointer)
}

/// Decodes an event of a scan's output. `None` for one of an unknown kind.
pub(super) fn decode(
    head: &EventHead,
    parts: Parts<'_>,
    output: &Arc<Vec<u8>>,
) -> Option<WaitEvent> {
    let thread = (head.pid as i32, head.tid as i32);
    let times = times(parts.clone());
    let former = Times {
        by_state: times.by_state,
        last: times.last,
        // One more, so that none is 0.
        switches: times.switches.saturating_sub(1),
    };
    match head.kind {
        kind::SAME_WAIT => Some(WaitEvent::Same {
            thread,
            time: head.time,
            more: former,
        }),
        kind::WAIT => Some(WaitEvent::New {
            former,
            snapshot: Box::new(snapshot(head, parts, thread, output)),
        }),
        _ => None,
    }
}

fn snapshot(
    head: &EventHead,
    parts: Parts<'_>,
    (pid, tid): (i32, i32),
    output: &Arc<Vec<u8>>,
) -> WaitSnapshot {
    let (mut wait, mut record, mut variable) = (WaitPart::default(), None, 0);
    let (mut registers, mut stack) = (None, (0, StackBytes::default()));
    let mut call_memory = Vec::new();
    let mut kernel_stack: Vec<Frame> = Vec::new();
    for part in parts {
        match part.kind {
            part::RECORD => (record, variable) = (Some(part.bytes), usize::from(part.outcome)),
            part::KERNEL_STACK => read_stack(&mut kernel_stack, part.bytes),
            wait_part::WAIT => wait = take(part.bytes).map_or(wait, |(wait, _)| wait),
            wait_part::REGISTERS => {
                let words = take::<[u64; REGISTERS]>(part.bytes);
                registers = words.and_then(|(words, _)| copies::registers(&words));
            }
            wait_part::CALL_MEMORY => {
                if let Some((memory, _)) = take::<CallMemory>(part.bytes) {
                    let pieces = memory.piece.iter().filter(|piece| piece.address != 0);
                    let bytes = |piece: &CallPiece| {
                        let size = piece.bytes.len().min(piece.size as usize);
                        (piece.address, piece.bytes[..size].to_vec())
                    };
                    call_memory = pieces.map(bytes).collect();
                }
            }
            wait_part::STACK_BYTES => {
                if let Some((address, bytes)) = take::<u64>(part.bytes) {
                    stack = (address, StackBytes::part(output, bytes));
                }
            }
            _ => {}
        }
    }
    WaitSnapshot {
        time: head.time,
        pid,
        tid,
        comm: name(&head.comm).into_owned(),
        // One more, so that none is 0.
        switches: head.detail.saturating_sub(1),
        is_torn: head.flags & TORN != 0,
        is_executing: false,
        serial: head.serial,
        variable,
        context: found(head.outcome, record).and_then(|bytes| Found::Attached(bytes.to_vec())),
        call: Call {
            number: wait.number,
            arguments: wait.arguments,
        },
        state: OffCpuState::ALL
            .get(wait.state as usize)
            .copied()
            .unwrap_or(OffCpuState::Asleep),
        since: wait.since,
        weight: wait.weight,
        stack: registers.map(|it| Arc::new(CopiedStack::of_bytes(it, stack))),
        call_memory,
        kernel_stack,
        runtimes: Vec::new(),
    }
}

#[cfg(test)]
pub(in crate::ebpf) mod tests {
    use super::*;

    /// Calls `check` with name, size and members (offset in bytes) of each structure.
    pub(in crate::ebpf) fn check_layouts(check: impl Fn(&str, usize, &[(&str, usize)])) {
        use std::mem::offset_of;

        macro_rules! layout {
            ($name:literal, $type:ty, [$($member:ident),*]) => {
                let members = [$((stringify!($member), offset_of!($type, $member))),*];
                check($name, size_of::<$type>(), &members);
            };
        }
        layout!(
            "wait_part",
            WaitPart,
            [
                since,
                weight,
                number,
                arguments,
                thread_pointer,
                state,
                reserved
            ]
        );
        layout!("wait_times", WaitTimes, [by_state, last, switches]);
        layout!("call_memory", CallMemory, [piece]);
        layout!("call_piece", CallPiece, [address, size, bytes]);
        layout!("wait_target", WaitTarget, [target, stack_size, version]);
        layout!(
            "scan",
            ScanParameters,
            [weight, started, own_pid, is_flush, is_check, reserved]
        );
        layout!(
            "scan_counts",
            ScanCounts,
            [
                seen,
                running,
                same,
                read,
                torn,
                known_arrivals,
                known_delay,
                own_delay,
                barrier
            ]
        );
    }
}
