//! Why threads wait, in words.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_reader::remote::{Memory, MemoryError, Process, ProcessMemory, threads};
use otelctx_sample::{Frame, OffCpuState, Reason};
use otelctx_waits::{Options, Resolver, State, Waiting};

use crate::monotonic;
use crate::second_walk::CopiedStack;
use crate::waits::WaitSnapshot;

/// Time for which a reason that a descriptor determines is taken for known, in nanoseconds: meanwhile, it may become
/// another one.
const MAX_AGE: u64 = 1_000_000_000;
/// Maximum number of known reasons; all are dropped when there are more.
const MAX_KNOWN: usize = 4096;
/// Frames that decide whether a thread waits for a lock.
const FRAMES: usize = 8;

/// A reason, and the thread that holds the lock which is waited for.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) reason: Reason,
    pub(super) holder: Option<i32>,
}

impl From<Reason> for Found {
    fn from(reason: Reason) -> Self {
        Self {
            reason,
            holder: None,
        }
    }
}

/// Finds the reasons of waits.
#[derive(Debug)]
pub(super) struct Reasons {
    resolver: Resolver,
    /// Reasons of calls whose words depend on a descriptor alone, by process, call and descriptor, and when they were found.
    known: HashMap<(i32, i64, i32), (u64, Reason), RandomState>,
}

impl Reasons {
    pub(super) fn new() -> Self {
        Self {
            resolver: Resolver::new(Options::default()),
            known: HashMap::default(),
        }
    }

    /// Returns the reason of a wait, as far as it is certain: the words say what its call's arguments meant by the memory that
    /// was read with it, or by the process's, if the thread is still in the same wait once that is read. Descriptors are looked
    /// up soon after.
    pub(super) fn reason(
        &mut self,
        snapshot: &WaitSnapshot,
        process: Option<&Process>,
        frames: &[Frame],
        stack: Option<&CopiedStack>,
    ) -> Option<Found> {
        let state = match snapshot.state {
            OffCpuState::Asleep => State::Asleep,
            OffCpuState::Disk => State::Disk,
            _ => return None,
        };
        if snapshot.is_torn {
            return None;
        }
        let descriptor = snapshot.call.only_descriptor();
        let key = descriptor.map(|it| (snapshot.pid, snapshot.call.number, it));
        let now = monotonic();
        if let Some((found, reason)) = key.as_ref().and_then(|it| self.known.get(it))
            && now.saturating_sub(*found) < MAX_AGE
        {
            return Some(reason.clone().into());
        }
        let addresses = frames.iter().filter_map(Frame::address).take(FRAMES);
        let addresses: Vec<u64> = addresses.collect();
        let process = process?;
        let memory = NotedMemory {
            snapshot,
            stack,
            process,
            memory: OnceCell::new(),
            is_complete: Cell::new(true),
        };
        let thread = Waiting {
            tid: snapshot.tid,
            call: snapshot.call,
            state,
            frames: &addresses,
            memory: Some(&memory),
            since: Some(snapshot.since).filter(|since| *since != 0),
            now,
        };
        let found = self.resolver.reason(process, thread);
        let reason = Reason {
            text: found.text,
            call: found.call.into_owned(),
        };
        let is_certain = || {
            let is_same = || threads::is_still_asleep(process, snapshot.tid, snapshot.switches);
            memory.is_complete.get() || is_same().unwrap_or(false)
        };
        if reason.text == reason.call {
            return Some(reason.into());
        }
        if !is_certain() {
            let reason = Reason {
                text: reason.call.clone(),
                ..reason
            };
            return Some(reason.into());
        }
        if let Some(key) = key {
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert(key, (now, reason.clone()));
        }
        Some(Found {
            reason,
            holder: found.holder,
        })
    }

    /// Forgets a process that has ended or executes another program.
    pub(super) fn remove(&mut self, pid: i32) {
        self.known.retain(|(of, ..), _| *of != pid);
    }
}

/// Memory as it was when a call was read, and elsewhere the process's as it is.
struct NotedMemory<'m> {
    snapshot: &'m WaitSnapshot,
    stack: Option<&'m CopiedStack>,
    process: &'m Process,
    /// The process's memory, once it is needed; `None` if it cannot be read.
    memory: OnceCell<Option<ProcessMemory>>,
    /// Nothing was read of the process's.
    is_complete: Cell<bool>,
}

impl Memory for NotedMemory<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        for (start, bytes) in &self.snapshot.call_memory {
            let skip = address
                .checked_sub(*start)
                .and_then(|it| usize::try_from(it).ok());
            if let Some(noted) = skip.and_then(|it| bytes.get(it..)?.get(..length)) {
                buffer.copy_from_slice(noted);
                return Ok(());
            }
        }
        if let Some(stack) = self.stack
            && stack.read(address, buffer).is_ok()
        {
            return Ok(());
        }
        self.is_complete.set(false);
        match self.memory.get_or_init(|| self.process.memory().ok()) {
            Some(memory) => memory.read(address, buffer),
            None => Err(MemoryError::Unmapped { address, length }),
        }
    }
}
