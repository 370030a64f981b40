//! Scans threads off the CPU through their files in `/proc`, where eBPF is not permitted. None is stopped.
//!
//! A thread is read while its files prove that it sleeps ([`ThreadFiles`]). That takes some ten microseconds a thread, a hundred
//! times as long as the eBPF program, so that scans are rare, and spread over the ticks of the worker.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use otelctx_reader::ThreadVariables;
use otelctx_reader::remote::threads::{
    self, Call, Protocol, ThreadFiles, ThreadPointers, max_kept,
};
use otelctx_reader::remote::{LiveProcess, Machine, Process, ProcessMemory};
use otelctx_reader::runtime::{ThreadView, read_thread};
use otelctx_sample::{Found, OffCpuState, ReadStep};
use otelctx_unwind::Registers;

use super::target::{Configuration, ReadOptions};
use crate::monotonic;
use crate::second_walk::{CopiedStack, StackBytes};
use crate::waits::{STACK_ROOM, Times, WaitEvent, WaitSnapshot, copy_stack, read_record};

/// Maximum number of scans of a thread in a second.
const MAX_FREQUENCY: u32 = 5;
/// Maximum number of scans of threads in a second: about a hundredth of a CPU's time.
const MAX_SCANS: u64 = 1_000;
/// Time in the queue that is passed on, in nanoseconds.
const MIN_QUEUED: u64 = 1_000_000;
/// Maximum number of threads that the last round scans.
const MAX_LAST: usize = 2_000;

/// A process whose threads are scanned.
pub(super) struct Subject<'t> {
    pub(super) process: &'t Process,
    /// `None` if it cannot be read.
    pub(super) memory: Option<&'t ProcessMemory>,
    pub(super) configuration: Option<&'t Configuration>,
}

/// The scans of the threads of all processes.
#[derive(Debug)]
pub(super) struct Waits {
    processes: HashMap<i32, Watched, RandomState>,
    /// Threads that the current round has not come to.
    left: VecDeque<(i32, i32)>,
    /// Threads of the current round.
    round: usize,
    /// When the current round began, and the last one, in nanoseconds.
    begun: u64,
    last_begun: u64,
    /// The shortest time between two scans of a thread, in nanoseconds.
    shortest: u64,
    read_options: ReadOptions,
    /// Threads whose files are open.
    open: usize,
}

#[derive(Debug, Default)]
struct Watched {
    threads: HashMap<i32, Thread, RandomState>,
    /// Where threads have their variables, as the C library's list had them.
    pointers: ThreadPointers,
    /// The round in which the list was read, by its beginning.
    listed: u64,
}

#[derive(Debug)]
struct Thread {
    files: Option<ThreadFiles>,
    /// Its ID in the process's own PID namespace.
    inner: i32,
    /// When it was scanned, in nanoseconds.
    looked: u64,
    /// Its time in the queue at the last scan, and what of it was not passed on, in nanoseconds.
    queue_time: Option<u64>,
    queued: u64,
    /// The wait that is known: its state, and how often the thread had been switched out.
    wait: Option<(OffCpuState, u64)>,
}

/// What the scan of a thread has found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) events: Vec<WaitEvent>,
    pub(super) is_read: bool,
    pub(super) is_torn: bool,
}

impl Waits {
    pub(super) fn new(frequency: u32, read_options: ReadOptions) -> Self {
        let now = monotonic();
        Self {
            processes: HashMap::default(),
            left: VecDeque::new(),
            round: 0,
            begun: now,
            last_begun: now,
            shortest: 1_000_000_000 / u64::from(frequency.clamp(1, MAX_FREQUENCY)),
            read_options,
            open: 0,
        }
    }

    /// Returns the time between two scans of a thread, in nanoseconds.
    pub(super) fn period(&self) -> u64 {
        self.shortest
            .max(self.round as u64 * (1_000_000_000 / MAX_SCANS))
    }

    /// Returns the number of threads in the current round.
    pub(super) fn threads(&self) -> usize {
        self.round
    }

    /// Returns true if it is time to list the threads again ([`Self::begin`]).
    pub(super) fn is_round_due(&self) -> bool {
        self.left.is_empty() && monotonic().saturating_sub(self.begun) >= self.period()
    }

    /// Begins a round with these threads, by process.
    pub(super) fn begin(&mut self, listed: impl Iterator<Item = (i32, Vec<i32>)>) {
        (self.last_begun, self.begun) = (self.begun, monotonic());
        let mut processes = HashSet::<i32, RandomState>::default();
        for (pid, tids) in listed {
            processes.insert(pid);
            if let Some(watched) = self.processes.get_mut(&pid)
                && watched.threads.len() > tids.len() / 2
            {
                let alive: HashSet<i32, RandomState> = tids.iter().copied().collect();
                watched.threads.retain(|tid, _| alive.contains(tid));
            }
            self.left.extend(tids.into_iter().map(|tid| (pid, tid)));
        }
        self.processes.retain(|pid, _| processes.contains(pid));
        let threads = self.processes.values().flat_map(|it| it.threads.values());
        self.open = threads.filter(|it| it.files.is_some()).count();
        self.round = self.left.len();
    }

    /// Returns the threads to scan in a tick, this many nanoseconds after the last one: all of a round within its period.
    pub(super) fn next(&mut self, tick: u64) -> Vec<(i32, i32)> {
        let share = self.round as u128 * u128::from(tick) / u128::from(self.period());
        let number = (share as usize + 1).min(self.left.len());
        self.left.drain(..number).collect()
    }

    /// Returns the threads to scan once more before the scans end.
    pub(super) fn last(&mut self) -> Vec<(i32, i32)> {
        let watched = self.processes.iter();
        let threads = watched.flat_map(|(pid, it)| it.threads.keys().map(|tid| (*pid, *tid)));
        threads.take(MAX_LAST).collect()
    }

    /// Forgets a process that has ended or executes another program.
    pub(super) fn forget(&mut self, pid: i32) {
        self.processes.remove(&pid);
    }

    /// Scans a thread.
    pub(super) fn scan(&mut self, subject: &Subject<'_>, tid: i32) -> Seen {
        let watched = self.processes.entry(subject.process.pid()).or_default();
        let known = watched.threads.remove(&tid);
        let Some(mut thread) = known.or_else(|| Thread::new(subject.process, tid, self.last_begun))
        else {
            return Seen::default();
        };
        let was_open = thread.files.is_some();
        let mut files = match thread.files.take() {
            Some(files) => files,
            None => match ThreadFiles::open(subject.process, tid) {
                Ok(files) => files,
                // It has ended.
                Err(_) => return Seen::default(),
            },
        };
        let mut snapshot = ThreadScan {
            subject,
            tid,
            now: monotonic(),
            read_options: self.read_options,
            watched: &mut *watched,
            round: self.begun,
        };
        // It has ended.
        let Ok(seen) = snapshot.thread(&mut thread, &mut files) else {
            self.open -= usize::from(was_open);
            return Seen::default();
        };
        if was_open || self.open < max_kept() {
            self.open += usize::from(!was_open);
            thread.files = Some(files);
        }
        watched.threads.insert(tid, thread);
        seen
    }
}

impl Thread {
    /// `None` if it has ended. Its time counts from `since` on.
    fn new(process: &Process, tid: i32, since: u64) -> Option<Self> {
        let inner = *process.thread_status(tid).ok()?.namespace_pids.last()?;
        Some(Self {
            files: None,
            inner,
            looked: since,
            queue_time: None,
            queued: 0,
            wait: None,
        })
    }
}

/// The scan of one thread.
struct ThreadScan<'l> {
    subject: &'l Subject<'l>,
    tid: i32,
    now: u64,
    read_options: ReadOptions,
    watched: &'l mut Watched,
    round: u64,
}

impl ThreadScan<'_> {
    fn thread(&mut self, thread: &mut Thread, files: &mut ThreadFiles) -> std::io::Result<Seen> {
        let mut seen = Seen::default();
        let weight = self.now.saturating_sub(thread.looked);
        thread.looked = self.now;
        if let Some(total) = files.queue_time()? {
            thread.queued += total - thread.queue_time.unwrap_or(total).min(total);
            thread.queue_time = Some(total);
            if thread.queued >= MIN_QUEUED {
                let mut snapshot =
                    self.snapshot(OffCpuState::Queued, std::mem::take(&mut thread.queued));
                snapshot.is_torn = true;
                seen.events.push(WaitEvent::Queued(Box::new(snapshot)));
            }
        }
        if let Some(wait) = thread.wait
            && files.has_stayed_asleep()?
        {
            // Else it is ready to run: its time in the queue says so later.
            if files.call()?.is_some() {
                seen.events.push(self.same(wait, weight));
            }
            return Ok(seen);
        }
        let known = thread.wait.take();
        let snapshot = match files.protocol() {
            Protocol::Schedstat => {
                if !files.is_asleep()? {
                    return Ok(seen);
                }
                let snapshot = files
                    .call()?
                    .and_then(|call| self.read(&call, thread, weight));
                seen.is_torn = !files.has_stayed_asleep()?;
                snapshot
            }
            Protocol::Status => {
                let read = |call: &Call| self.read(call, thread, weight);
                files.read_call_asleep(read)?.flatten()
            }
        };
        if seen.is_torn {
            let mut snapshot = self.snapshot(OffCpuState::Asleep, weight);
            snapshot.is_torn = true;
            seen.events.push(new(snapshot));
        } else if let Some(snapshot) = snapshot {
            let wait = (snapshot.state, snapshot.switches);
            thread.wait = Some(wait);
            seen.is_read = true;
            seen.events.push(if known == Some(wait) {
                self.same(wait, weight)
            } else {
                new(snapshot)
            });
        }
        Ok(seen)
    }

    fn same(&self, (state, switches): (OffCpuState, u64), weight: u64) -> WaitEvent {
        let states = OffCpuState::ALL;
        let by_state = states.map(|it| if it == state { weight } else { 0 });
        WaitEvent::Same {
            thread: (self.subject.process.pid(), self.tid),
            time: self.now,
            more: Times {
                by_state,
                last: self.now,
                switches,
            },
        }
    }

    /// A snapshot of which only the time is known.
    fn snapshot(&self, state: OffCpuState, weight: u64) -> WaitSnapshot {
        let process = self.subject.process;
        let name = process.thread_name(self.tid).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let mut snapshot = WaitSnapshot::of((process.pid(), self.tid), name, monotonic());
        snapshot.serial = self.subject.configuration.map_or(0, |it| it.serial);
        (snapshot.state, snapshot.weight) = (state, weight);
        snapshot
    }

    /// Reads a sleeping thread. `None` if it is ready to run by now.
    fn read(&mut self, call: &Call, thread: &Thread, weight: u64) -> Option<WaitSnapshot> {
        let process = self.subject.process;
        let state = match process.thread_stat(self.tid).ok()?.state() {
            'R' => return None,
            'D' => OffCpuState::Disk,
            'T' | 't' => OffCpuState::Stopped,
            _ => OffCpuState::Asleep,
        };
        let mut snapshot = self.snapshot(state, weight);
        snapshot.switches = threads::switches(process, self.tid).ok()??;
        snapshot.call = otelctx_waits::Call {
            number: call.number,
            arguments: call.arguments,
        };
        let (pointer, stack_pointer) = (call.instruction_pointer, call.stack_pointer);
        if self.read_options.user_stacks
            && let Some(memory) = self.subject.memory
            && let Some(registers) = Registers::new(Machine::own(), pointer, stack_pointer)
        {
            let (start, bytes) = copy_stack(memory, stack_pointer, STACK_ROOM);
            let stack = (start, StackBytes::Own(bytes));
            snapshot.stack = Some(Arc::new(CopiedStack::of_bytes(registers, stack)));
        }
        let configuration = self.subject.configuration;
        let variables = configuration.and_then(|it| it.variables.as_ref());
        if let Some(variables) = variables {
            (snapshot.context, snapshot.variable) = match self.pointer(variables, thread.inner) {
                Some(pointer) => read_record(
                    Some(variables),
                    self.subject.memory,
                    (self.tid, pointer),
                    self.read_options.max_record,
                ),
                None => (Found::Unreadable(ReadStep::Thread), 0),
            };
        }
        if let (Some(configuration), Some(memory)) = (configuration, self.subject.memory)
            && !configuration.runtimes.is_empty()
        {
            let pointer = variables.and_then(|it| self.pointer(it, thread.inner));
            let target = LiveProcess::new(process, memory);
            let view = ThreadView::new(self.tid, pointer.unwrap_or(0));
            snapshot.runtimes = read_thread(&target, &configuration.runtimes, view);
        }
        Some(snapshot)
    }

    /// Finds the thread pointer in the C library's list, which is read once in a round at most.
    fn pointer(&mut self, variables: &ThreadVariables, inner: i32) -> Option<u64> {
        let memory = self.subject.memory?;
        let process = self.subject.process;
        let of = |pointers: &ThreadPointers| {
            let found = pointers.get(inner);
            found
                .filter(|it| it.is_of(memory, inner))
                .map(|it| it.address)
        };
        if let Some(pointer) = of(&self.watched.pointers) {
            return Some(pointer);
        }
        if self.watched.listed == self.round {
            return None;
        }
        self.watched.listed = self.round;
        let leader = *process.status().ok()?.namespace_pids.last()?;
        let count = process.thread_ids().map_or(0, |it| it.len());
        let target = LiveProcess::new(process, memory);
        let lists = &variables.resolution.threads;
        self.watched.pointers = ThreadPointers::find(lists, &target, leader, count);
        of(&self.watched.pointers)
    }
}

fn new(snapshot: WaitSnapshot) -> WaitEvent {
    WaitEvent::New {
        former: Times::default(),
        snapshot: Box::new(snapshot),
    }
}
