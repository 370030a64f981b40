//! The data that is exchanged with the kernel programs (`bpf/target.h`, `bpf/event.h`). A test
//! compares every layout with the type information in the objects.

use std::mem::offset_of;

use aya::Pod;
use otelctx_sample::{Found, ReadStep};

/// Maximum number of definitions of the variable that are read per process.
pub(crate) const MAX_PLACES: usize = 4;
/// Maximum number of bytes that are read of a record, including its header.
pub(crate) const RECORD_LIMIT: usize = 4096;

/// `enum storage`.
pub(crate) mod storage {
    pub(crate) const STATIC: u32 = 1;
    pub(crate) const GLIBC: u32 = 2;
    pub(crate) const MUSL: u32 = 3;
}

/// `enum event_kind`.
pub(crate) mod kind {
    pub(crate) const ON_CPU: u8 = 1;
    pub(crate) const FORK: u8 = 2;
    pub(crate) const EXEC: u8 = 3;
    pub(crate) const EXIT: u8 = 4;
}

/// `enum outcome`.
pub(crate) mod outcome {
    pub(crate) const ATTACHED: u8 = 1;
    pub(crate) const DETACHED: u8 = 2;
    pub(crate) const NOT_VALID: u8 = 3;
    pub(crate) const SLOT: u8 = 4;
    pub(crate) const RECORD: u8 = 5;
    pub(crate) const MOVED: u8 = 6;
}

/// Converts the outcome of reading a thread's context; `record` is the part with the record's
/// bytes. A process that the program does not know counts as not publishing.
pub(crate) fn found(outcome: u8, record: Option<&[u8]>) -> Found<&[u8]> {
    match (outcome, record) {
        (outcome::ATTACHED, Some(record)) => Found::Attached(record),
        (outcome::ATTACHED | outcome::RECORD, _) => Found::Unreadable(ReadStep::Record),
        (outcome::DETACHED, _) => Found::Detached,
        (outcome::NOT_VALID, _) => Found::Invalid,
        (outcome::SLOT, _) => Found::Unreadable(ReadStep::Variable),
        (outcome::MOVED, _) => Found::Unreadable(ReadStep::Resolve),
        _ => Found::NotPublished,
    }
}

/// `enum event_flag`.
pub(crate) mod flag {
    pub(crate) const USER_MODE: u8 = 1;
    pub(crate) const NO_USER_STACK: u8 = 2;
    pub(crate) const CUT_STEPS: u8 = 4;
}

/// Marks a frame of a user stack that was interrupted, by the clock or by a signal.
pub(crate) const FRAME_INTERRUPTED: u64 = 1 << 63;

/// `enum part_kind`.
pub(crate) mod part {
    pub(crate) const RECORD: u16 = 1;
    pub(crate) const USER_STACK: u16 = 2;
    pub(crate) const KERNEL_STACK: u16 = 3;
    /// To which the step's number is added.
    pub(crate) const STEP: u16 = 256;
}

/// `enum step_outcome`.
pub(crate) mod step_outcome {
    pub(crate) const DONE: u16 = 0;
    #[cfg(test)]
    pub(crate) const ABSENT: u16 = 1;
    #[cfg(test)]
    pub(crate) const UNCONFIGURED: u16 = 3;
    pub(crate) const UNKNOWN_THREAD: u16 = 5;
}

/// `enum counter`.
pub(crate) mod counter {
    pub(crate) const SAMPLES: u32 = 0;
    pub(crate) const PROCESSES: u32 = 1;
    pub(crate) const OUTSIDE: u32 = 2;
    pub(crate) const TARGETS: u32 = 3;
}

/// `struct place`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) module: u64,
    pub(crate) generation: u64,
    pub(crate) slot: u64,
    pub(crate) slot_words: [u64; 2],
    pub(crate) storage: u32,
    pub(crate) reserved: u32,
}

/// `struct target`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) serial: u32,
    pub(crate) places: u32,
    pub(crate) steps: u32,
    pub(crate) reserved: u32,
    pub(crate) place: [Place; MAX_PLACES],
}

/// `struct step_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepKey {
    pub(crate) pid: u32,
    pub(crate) step: u32,
}

/// `struct thread_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ThreadKey {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) step: u32,
}

// SAFETY: integers without padding: `repr(C)`, and a test compares the layout with the objects.
unsafe impl Pod for Target {}
// SAFETY: as above.
unsafe impl Pod for StepKey {}
// SAFETY: as above.
unsafe impl Pod for ThreadKey {}
// SAFETY: as above.
unsafe impl Pod for Wanted {}
// SAFETY: as above.
unsafe impl Pod for EventHead {}
// SAFETY: as above.
unsafe impl Pod for PartHead {}
// SAFETY: integers without padding: `repr(C)`, and assertions compare the layouts.
unsafe impl Pod for StackHead {}
// SAFETY: as above.
unsafe impl Pod for StackThread {}
// SAFETY: as above.
unsafe impl Pod for StackPage {}

/// A step's configuration for a process, in the step's own layout (`STEP_CONFIGURATION_SIZE`).
pub(crate) type StepConfiguration = [u8; 384];

/// `struct wanted`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) pid: u32,
    pub(crate) reserved: u32,
    pub(crate) target: Target,
}

/// `struct target_filter`: a byte for each pid with the same lowest bits.
pub(crate) type TargetFilter = [u8; 1 << 15];

/// `SEGMENT_SIZE` and `SAMPLE_LIMIT`, in bytes.
pub(crate) const SEGMENT_SIZE: u64 = 65536;
pub(crate) const SAMPLE_LIMIT: u64 = 21568;

/// `struct segment`.
pub(crate) type Segment = [u8; SEGMENT_SIZE as usize];

/// `FEW_TARGETS`.
pub(crate) const FEW_TARGETS: usize = 8;

/// `struct cpu`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) head: u64,
    pub(crate) tail: u64,
    pub(crate) first: u32,
    pub(crate) segments: u32,
    pub(crate) pids: [u32; FEW_TARGETS],
    pub(crate) found: u64,
    pub(crate) unused: [u64; 8],
    pub(crate) read: u64,
    pub(crate) unused_too: [u64; 15],
}

/// `struct few_target`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FewTarget {
    pub(crate) pid: u32,
    pub(crate) reserved: u32,
    pub(crate) target: Target,
    pub(crate) unused: u64,
}

/// `struct few_targets`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct FewTargets {
    pub(crate) forks: u64,
    pub(crate) known_forks: u64,
    pub(crate) unused: [u64; 6],
    pub(crate) at: [FewTarget; FEW_TARGETS],
}

/// `struct event_head`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventHead {
    pub(crate) time: u64,
    pub(crate) detail: u64,
    pub(crate) cpu: u32,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) size: u32,
    pub(crate) kind: u8,
    pub(crate) outcome: u8,
    pub(crate) source: u8,
    pub(crate) flags: u8,
    pub(crate) serial: u32,
    pub(crate) comm: [u8; 16],
}

/// `struct part_head`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartHead {
    pub(crate) kind: u16,
    pub(crate) size: u16,
    pub(crate) room: u16,
    pub(crate) outcome: u16,
}

/// `enum copied_kind`.
pub(crate) mod stack_kind {
    pub(crate) const THREAD: u32 = 1;
    pub(crate) const PAGE: u32 = 2;
}

/// `struct copied_head`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackHead {
    pub(crate) number: u64,
    pub(crate) cpu: u32,
    pub(crate) kind: u32,
}

/// `struct copied_thread`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackThread {
    pub(crate) head: StackHead,
    pub(crate) registers: [u64; 40],
    pub(crate) code_before: u64,
    pub(crate) code_behind: u64,
    pub(crate) code: [u8; 64],
}

/// `struct copied_page`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackPage {
    pub(crate) head: StackHead,
    pub(crate) address: u64,
    pub(crate) bytes: [u8; 4096],
}

// `copy.h` asserts the same: the objects' type information does not have them.
const _: () = assert!(size_of::<StackHead>() == 16);
const _: () = assert!(offset_of!(StackThread, code_before) == 336);
const _: () = assert!(size_of::<StackThread>() == 416);
const _: () = assert!(offset_of!(StackPage, bytes) == 24);
const _: () = assert!(size_of::<StackPage>() == 4120);

/// Splits an event into its head and its parts. `None` if it is shorter than its announced size.
pub(crate) fn event(bytes: &[u8]) -> Option<(EventHead, Parts<'_>)> {
    let (head, rest) = take::<EventHead>(bytes)?;
    let parts = rest.get(..head.size as usize)?;
    Some((head, Parts { rest: parts }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) kind: u16,
    /// The outcome of a step, the end of a user stack, or the variable that points to a record.
    pub(crate) outcome: u16,
    pub(crate) bytes: &'a [u8],
}

#[derive(Clone, Debug)]
pub(crate) struct Parts<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = take::<PartHead>(self.rest)?;
        let bytes = rest.get(..usize::from(head.size))?;
        self.rest = rest.get(usize::from(head.room)..).unwrap_or_default();
        Some(Part {
            kind: head.kind,
            outcome: head.outcome,
            bytes,
        })
    }
}

/// Splits a head of integers off.
pub(crate) fn take<T: Pod>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<T>())?;
    // SAFETY: `head` has the size of T; `Pod` says that every bit pattern is a T.
    let value = unsafe { head.as_ptr().cast::<T>().read_unaligned() };
    Some((value, rest))
}

#[cfg(test)]
mod tests;
