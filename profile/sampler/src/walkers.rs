//! The runtimes of a sampled process that walk the code that they have generated.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use otelctx_reader::remote::{LiveProcess, Memory, MemoryError, Process, ProcessMemory};
use otelctx_reader::runtime::{GeneratedWalkers, Present};
use otelctx_sample::{Frame, StackEnd};
use otelctx_track::TrackedProcess;

use crate::user_stack;

/// How long to wait until runtimes are asked again whether they have generated code.
const INTERVAL: Duration = Duration::from_millis(100);
/// The longest time until then, where nothing reports changes: memory can become executable that was mapped before.
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// Size of what counts as a stack, from its stack pointer on, while its mapping is not known, in bytes: the usual limit of a main
/// thread's.
const MAX_UNKNOWN_STACK: u64 = 8 << 20;

/// The walkers of a process, and its memory.
#[derive(Debug)]
pub(crate) struct LiveWalkers {
    pub(crate) walkers: GeneratedWalkers,
    process: Process,
    memory: ProcessMemory,
    mappings: Mutex<Mappings>,
}

/// The writable mappings of a process, in address order, and when they were read.
#[derive(Debug, Default)]
struct Mappings {
    ranges: Vec<Range<u64>>,
    read: Option<Instant>,
}

impl LiveWalkers {
    /// `None` if no runtime has generated code, or the process cannot be read.
    pub(crate) fn of(pid: i32, runtimes: &[Present]) -> Option<Arc<Self>> {
        if runtimes.is_empty() {
            return None;
        }
        let walkers = Self::all_of(pid, runtimes)?;
        (!walkers.walkers.walkers().is_empty()).then(|| Arc::new(walkers))
    }

    pub(crate) fn all_of(pid: i32, runtimes: &[Present]) -> Option<Self> {
        let process = Process::open(pid).ok()?;
        let memory = process.memory().ok()?;
        let walkers = GeneratedWalkers::of(runtimes, &LiveProcess::new(&process, &memory));
        Some(Self {
            walkers,
            process,
            memory,
            mappings: Mutex::default(),
        })
    }

    /// Returns the addresses of the stack with this stack pointer: its mapping. Mappings are read at most once in [`INTERVAL`].
    pub(crate) fn stack(&self, pointer: u64) -> Range<u64> {
        let mut known = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.at(pointer) {
            return found;
        }
        if known.read.is_none_or(|read| read.elapsed() >= INTERVAL) {
            let mut ranges = Vec::new();
            let read = self.process.mappings(&mut |mapping| {
                if mapping.permissions.write {
                    ranges.push(mapping.start..mapping.end);
                }
                ControlFlow::Continue(())
            });
            *known = Mappings {
                ranges: read.map(|_| ranges).unwrap_or_default(),
                read: Some(Instant::now()),
            };
        }
        let unknown = pointer..pointer.saturating_add(MAX_UNKNOWN_STACK);
        known.at(pointer).unwrap_or(unknown)
    }

    /// Converts the frames of a walk, innermost first. Those in generated code have their functions: see
    /// [`user_stack::frames`] for `end`.
    pub(crate) fn frames(&self, found: &[otelctx_unwind::Frame], end: &mut StackEnd) -> Vec<Frame> {
        let target = LiveProcess::new(&self.process, &self.memory);
        user_stack::frames(found, end, &|address, found| {
            let (walker, record) = (found.walker, &found.record);
            self.walkers.frames(&target, walker, address, record)
        })
    }
}

impl Mappings {
    fn at(&self, address: u64) -> Option<Range<u64>> {
        let behind = self.ranges.partition_point(|it| it.start <= address);
        let found = self.ranges.get(behind.checked_sub(1)?)?;
        found.contains(&address).then(|| found.clone())
    }
}

impl Memory for LiveWalkers {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, buffer)
    }
}

/// The newest walkers of a process.
#[derive(Debug)]
pub(crate) struct KnownWalkers {
    live: Option<Arc<LiveWalkers>>,
    /// The runtimes that were asked, and the number of changes to the process's executable memory then.
    runtimes: Arc<[Present]>,
    changes: u64,
    next: Instant,
    /// How long to wait without changes.
    interval: Duration,
    poll: Instant,
}

impl Default for KnownWalkers {
    fn default() -> Self {
        Self {
            live: None,
            runtimes: Arc::default(),
            changes: 0,
            next: Instant::now(),
            interval: INTERVAL,
            poll: Instant::now(),
        }
    }
}

impl KnownWalkers {
    /// Returns the walkers of a process. Asks its runtimes again if these, or its executable memory, have changed; without
    /// reports of that, less and less often.
    pub(crate) fn get(
        &mut self,
        process: &TrackedProcess,
        changes: u64,
    ) -> Option<&Arc<LiveWalkers>> {
        let runtimes = process.runtimes();
        let now = Instant::now();
        let is_new = !Arc::ptr_eq(&self.runtimes, runtimes);
        let is_changed = self.changes != changes;
        if is_new || now >= self.next && (is_changed || now >= self.poll) {
            self.live = LiveWalkers::of(process.pid(), runtimes);
            self.runtimes = runtimes.clone();
            self.changes = changes;
            self.next = now + INTERVAL;
            self.interval = if is_new || is_changed {
                INTERVAL
            } else {
                (2 * self.interval).min(MAX_INTERVAL)
            };
            self.poll = now + self.interval;
        }
        self.live.as_ref()
    }
}
