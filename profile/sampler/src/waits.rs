//! Waits of threads, as they are seen from outside.

use std::sync::Arc;
use std::time::Duration;

use otelctx_reader::ThreadVariables;
use otelctx_reader::remote::{Memory, ProcessMemory};
use otelctx_reader::runtime::RuntimeReading;
use otelctx_sample::{Found, Frame, OffCpuState, ReadStep};
use otelctx_waits::Call;

use crate::options::WaitMethod;
use crate::second_walk::{BELOW_STACK, CopiedStack, PAGE};

/// Number of bytes that are copied of the stack of a thread off the CPU, as long as none was longer (`STACK_ROOM` in
/// `bpf/waits.h`).
pub(crate) const STACK_ROOM: usize = 5 * PAGE;
/// Maximum number of bytes that are copied of a stack.
pub(crate) const MAX_STACK: usize = 256 << 10;

/// A thread: its process, and its own ID.
pub(crate) type ThreadId = (i32, i32);

/// More time of a known wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// Times by state ([`OffCpuState::ALL`]), in nanoseconds.
    pub(crate) by_state: [u64; OffCpuState::ALL.len()],
    /// When the thread was last found in the wait.
    pub(crate) last: u64,
    /// The wait: how often the thread had been switched out.
    pub(crate) switches: u64,
}

/// What was seen of a thread that is off the CPU.
#[derive(Debug)]
pub(crate) enum WaitEvent {
    /// A wait that was not known.
    New {
        /// More time of the wait that was known before.
        former: Times,
        snapshot: Box<WaitSnapshot>,
    },
    /// More time of a wait that is known.
    Same {
        thread: ThreadId,
        time: u64,
        more: Times,
    },
    /// Time in the queue for a CPU, of which nothing else is known.
    Queued(Box<WaitSnapshot>),
}

impl WaitEvent {
    pub(crate) fn thread(&self) -> ThreadId {
        match self {
            Self::New { snapshot, .. } | Self::Queued(snapshot) => (snapshot.pid, snapshot.tid),
            Self::Same { thread, .. } => *thread,
        }
    }

    /// Its time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn time(&self) -> u64 {
        match self {
            Self::New { snapshot, .. } | Self::Queued(snapshot) => snapshot.time,
            Self::Same { time, .. } => *time,
        }
    }

    /// Returns about how much memory it takes, in bytes.
    pub(crate) fn size(&self) -> usize {
        let own = size_of::<Self>();
        match self {
            Self::Same { .. } => own,
            Self::New { snapshot, .. } | Self::Queued(snapshot) => {
                let stack = snapshot.stack.as_ref().map_or(0, |it| it.stack.1.len());
                own + size_of::<WaitSnapshot>() + stack + size_of_val(&snapshot.kernel_stack[..])
            }
        }
    }
}

/// A thread off the CPU, and what was read of it.
#[derive(Debug)]
pub(crate) struct WaitSnapshot {
    pub(crate) time: u64,
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) comm: String,
    /// How often it had been switched out.
    pub(crate) switches: u64,
    /// It went on meanwhile: nothing else that was read counts.
    pub(crate) is_torn: bool,
    /// Its process was executing another program.
    pub(crate) is_executing: bool,
    /// The configuration under which the record was read.
    pub(crate) serial: u32,
    /// The position of the variable that points to the record.
    pub(crate) variable: usize,
    pub(crate) context: Found<Vec<u8>>,
    pub(crate) call: Call,
    pub(crate) state: OffCpuState,
    /// Since when it is off the CPU; 0 if that is unknown.
    pub(crate) since: u64,
    /// The time that this snapshot stands for, in nanoseconds.
    pub(crate) weight: u64,
    /// What the call's arguments point to: addresses, and the bytes from there on.
    pub(crate) call_memory: Vec<(u64, Vec<u8>)>,
    pub(crate) stack: Option<Arc<CopiedStack>>,
    pub(crate) kernel_stack: Vec<Frame>,
    pub(crate) runtimes: Vec<RuntimeReading>,
}

impl WaitSnapshot {
    /// Creates a snapshot of which only the thread and its name are known.
    pub(crate) fn of((pid, tid): ThreadId, comm: String, time: u64) -> Self {
        Self {
            time,
            pid,
            tid,
            comm,
            switches: 0,
            is_torn: false,
            is_executing: false,
            serial: 0,
            variable: 0,
            context: Found::NotPublished,
            call: Call {
                number: -1,
                arguments: [0; 6],
            },
            state: OffCpuState::Asleep,
            since: 0,
            weight: 0,
            call_memory: Vec::new(),
            stack: None,
            kernel_stack: Vec::new(),
            runtimes: Vec::new(),
        }
    }
}

/// Reads the record of a thread that does not run. Returns the variable that leads to it, too.
pub(crate) fn read_record(
    variables: Option<&ThreadVariables>,
    memory: Option<&ProcessMemory>,
    (tid, thread_pointer): (i32, u64),
    max_record: usize,
) -> (Found<Vec<u8>>, usize) {
    let (variables, memory) = match (variables, memory) {
        (None, _) => return (Found::NotPublished, 0),
        (_, None) => return (Found::Unreadable(ReadStep::Memory), 0),
        (Some(variables), Some(memory)) => (variables, memory),
    };
    let mut record = vec![0; max_record];
    let read = variables.read(memory, tid, thread_pointer, &mut record);
    match read {
        // A library was unloaded: other data may have taken the place of its variable.
        _ if !variables.are_current(memory) => (Found::Unreadable(ReadStep::Resolve), 0),
        Ok(None) => (Found::Detached, 0),
        Ok(Some(read)) if read.size == 0 => (Found::Invalid, 0),
        Ok(Some(read)) => {
            record.truncate(read.size);
            (Found::Attached(record), read.variable)
        }
        Err(error) => (error.found(), 0),
    }
}

/// Copies the stack of a thread that does not run, from a little below its pointer, as far as it can be read, up to `limit`
/// bytes.
pub(crate) fn copy_stack(memory: &dyn Memory, stack_pointer: u64, limit: usize) -> (u64, Vec<u8>) {
    let from = stack_pointer.wrapping_sub(BELOW_STACK);
    let mut bytes = Vec::with_capacity(limit);
    while bytes.len() < limit {
        let at = from.wrapping_add(bytes.len() as u64);
        // To the end of a page: what can be read as a whole or not at all.
        let size = (PAGE - at as usize % PAGE).min(limit - bytes.len());
        let known = bytes.len();
        bytes.resize(known + size, 0);
        if memory.read(at, &mut bytes[known..]).is_err() {
            bytes.truncate(known);
            break;
        }
    }
    (from, bytes)
}

/// How threads off the CPU are scanned, and what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitFacts {
    /// The method.
    pub method: WaitMethod,
    /// Scans in a second at present: fewer than were asked for where there are many threads; 0 for less than one.
    pub frequency: u32,
    /// The time between two scans at present.
    pub interval: Duration,
    /// Threads at the last scan.
    pub threads: u64,
    /// Waits of which context and stack were read.
    pub read: u64,
    /// Waits that ended while they were read: their time counts, without context and stack.
    pub torn: u64,
    /// Scans of threads that were lost because the recorder was too slow.
    pub lost: u64,
}
