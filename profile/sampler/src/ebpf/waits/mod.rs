//! Scans threads that are off the CPU, at the ticks of a clock, without stopping them (`bpf/waits.bpf.c`).

pub(super) mod abi;
mod iterator;
mod reader;
mod scanner;

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, MapData};
use aya::programs::Iter;
use aya::{Btf, Ebpf, EbpfLoader};

use super::abi::{RECORD_LIMIT, Target};
use super::namespace;
use super::object::{find, map};
use crate::options::WaitMethod;
use crate::refusal::Refusal;
use crate::second_walk::PAGE;
use crate::waits::{STACK_ROOM, ThreadId, WaitEvent, WaitFacts};
use crate::{Options, Targets, signals};
use abi::{DEFAULT_STACK, LONG_STACK, WaitTarget};
use iterator::Link;
use otelctx_reader::format::record;
use reader::MemoryReader;
pub(super) use reader::Reader;
use scanner::{LongCopies, Output, Scanner, Shared};

/// The compiled program; built by `cargo xtask bpf`.
#[cfg(target_arch = "x86_64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/waits.x86_64.o");
#[cfg(target_arch = "aarch64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/waits.aarch64.o");

/// The program that reads no memory of processes.
#[cfg(target_arch = "x86_64")]
static WALKS: &[u8] = aya::include_bytes_aligned!("../../../bpf/walks.x86_64.o");
#[cfg(target_arch = "aarch64")]
static WALKS: &[u8] = aya::include_bytes_aligned!("../../../bpf/walks.aarch64.o");

/// The oldest supported kernel.
const MIN_LINUX: (u32, u32) = (5, 10);
/// The first kernel with `bpf_copy_from_user_task`.
const READS_MEMORY: (u32, u32) = (5, 18);
/// The first kernel whose iterators visit the threads of one process alone.
const BY_PROCESS: (u32, u32) = (6, 1);
/// Maximum number of processes that have a link of their own: of more, all threads are visited.
const MAX_LINKS: usize = 64;
/// Maximum number of processes of which the recorder reads something itself: of more, waits have no frames of runtimes, nor, with
/// two walks, contexts.
const MAX_READERS: usize = 1024;
/// Scans that wait for the recorder at most.
const MAX_QUEUED: usize = 256;
/// The longest time for which other samples wait for the waits of a scan, in nanoseconds: a fifth of what the rings have room for.
const MAX_DELAY: u64 = 200_000_000;
/// Time between two readings of waits of a process because a stack was not walked: at first, and at most.
const FIRST_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(256);
const PROGRAM: &str = "scan_thread";

/// The scans of waiting threads.
pub(super) struct Waits {
    programs: Ebpf,
    targets: HashMap<MapData, u32, WaitTarget>,
    /// What the map has.
    known: BTreeMap<u32, WaitTarget>,
    shared: Arc<Shared>,
    events: Receiver<Vec<WaitEvent>>,
    /// What was taken over from there.
    pending: VecDeque<WaitEvent>,
    scanner: Option<JoinHandle<()>>,
    method: WaitMethod,
    /// All threads are visited.
    visits_all: bool,
    version: u32,
    /// The processes with stacks that are longer than their copies, and how much to copy of these, in bytes.
    cut: BTreeMap<i32, u32>,
    /// When waits of a process may be read again because of a stack that was not walked, and the interval after that.
    walked_again: BTreeMap<i32, (Instant, Duration)>,
}

impl Waits {
    /// Loads the program, and starts to scan threads of the whole machine, or of processes that are added.
    pub(super) fn start(options: &Options, frequency: u32) -> Result<Self, Refusal> {
        let best = if Refusal::is_before(READS_MEMORY) {
            WaitMethod::TwoWalks
        } else if Refusal::is_before(BY_PROCESS) {
            WaitMethod::AllThreads
        } else {
            WaitMethod::ByProcess
        };
        let method = options.wait_method.map_or(best, |forced| forced.max(best));
        let loaded = signals::blocked(|| load(options, method));
        let mut programs = loaded.map_err(|refusal| refusal.needing(MIN_LINUX))?;
        let (sender, events) = sync_channel(MAX_QUEUED);
        let shared = Arc::new(Shared::default());
        let scanner = Scanner {
            shared: shared.clone(),
            parameters: map(&mut programs, "scans")?,
            counts: map(&mut programs, "scan_counts")?,
            events: sender,
            frequency: frequency.max(1),
            memory: MemoryReader::new(
                method == WaitMethod::TwoWalks,
                options.max_record.clamp(record::HEADER_SIZE, RECORD_LIMIT),
                options.user_stacks,
            ),
            long_copies: match method {
                WaitMethod::TwoWalks => None,
                _ => Some(LongCopies::new(map(&mut programs, "stack_pieces")?)),
            },
            ended: 0,
            output: Output::default(),
        };
        let mut waits = Self {
            targets: map(&mut programs, "wait_targets")?,
            programs,
            known: BTreeMap::new(),
            shared,
            events,
            pending: VecDeque::new(),
            scanner: None,
            method,
            visits_all: false,
            version: 0,
            cut: BTreeMap::new(),
            walked_again: BTreeMap::new(),
        };
        // The kernel may accept the program and refuse to run it. The recorder's own threads are no targets.
        let is_by_process = method == WaitMethod::ByProcess;
        let own = is_by_process.then(|| std::process::id().cast_signed());
        let own = waits.link(own)?;
        let mut unused = [0; 64];
        let is_refused = |error: &std::io::Error| error.raw_os_error() != Some(libc::EAGAIN);
        match own.iterate().and_then(|mut file| file.read(&mut unused)) {
            Err(error) if is_refused(&error) => return Err(Refusal::of(error)),
            _ => {}
        }
        if options.targets == Targets::All || !is_by_process {
            waits.visit_all()?;
        }
        let thread = std::thread::Builder::new().name("otelctx-waits".into());
        waits.scanner = Some(thread.spawn(move || scanner.run()).map_err(Refusal::of)?);
        Ok(waits)
    }

    fn link(&self, pid: Option<i32>) -> Result<Link, Refusal> {
        let program = self.programs.program(PROGRAM);
        let Some(Ok(program)) = program.map(aya::programs::Program::fd) else {
            return Err(Refusal::other(format!(
                "the object has no program {PROGRAM}"
            )));
        };
        Link::attach(program.as_fd(), pid).map_err(Refusal::of)
    }

    fn visit_all(&mut self) -> Result<(), Refusal> {
        let link = self.link(None)?;
        self.shared.links(|it| {
            it.clear();
            it.insert(0, Arc::new(link));
        });
        self.visits_all = true;
        Ok(())
    }

    /// Adds a process, or updates the data about it.
    pub(super) fn insert(&mut self, pid: i32, target: Target, reader: Option<Reader>) {
        let stack_size = match self.method {
            // The recorder always copies all.
            WaitMethod::TwoWalks => STACK_ROOM as u32,
            _ => self.stack_size(pid),
        };
        self.set(pid, target, stack_size);
        let is_needed = |it: &Reader| self.method == WaitMethod::TwoWalks || it.has_runtimes();
        let reader = reader.filter(is_needed);
        self.shared.readers(|it| match reader {
            Some(reader) if it.len() < MAX_READERS || it.contains_key(&pid) => {
                it.insert(pid, Arc::new(reader));
            }
            _ => drop(it.remove(&pid)),
        });
        if self.visits_all {
            return;
        }
        if self.known.len() > MAX_LINKS && self.visit_all().is_ok() {
            return;
        }
        // It may have ended.
        if let Ok(link) = self.link(Some(pid)) {
            self.shared.links(|it| it.insert(pid, Arc::new(link)));
        }
    }

    /// Returns how much is copied of each stack of a process, in bytes.
    fn stack_size(&self, pid: i32) -> u32 {
        let known = self.known.get(&pid.cast_unsigned());
        known.map_or(DEFAULT_STACK, |it| it.stack_size)
    }

    fn set(&mut self, pid: i32, target: Target, stack_size: u32) {
        let pid = pid.cast_unsigned();
        self.version = self.version.wrapping_add(1).max(1);
        let new = WaitTarget {
            target,
            stack_size,
            version: self.version,
        };
        if self.targets.insert(pid, new, 0).is_ok() {
            self.known.insert(pid, new);
        }
    }

    /// Copies more of the stack of a thread from now on, and up to [`LONG_STACK`] of all stacks of its process: one was longer than
    /// its copy, which has `copied` bytes. What is known of waits of the process that go on is read again, by
    /// [`Self::read_again`].
    pub(super) fn copy_more(&mut self, (pid, tid): ThreadId, copied: usize) {
        let stack_size = self.stack_size(pid);
        // A copy ends with a page. A shorter one is of before the last change, or there is no more to read.
        if copied + PAGE <= stack_size as usize {
            return;
        }
        let longer = longer(stack_size).filter(|_| self.method != WaitMethod::TwoWalks);
        if let Some(longer) = longer {
            self.cut.insert(pid, longer);
        } else if self.shared.long_stacks(|it| it.insert((pid, tid))) {
            self.cut.insert(pid, stack_size);
        }
    }

    /// Has the waits of a process read again, of which one has a stack that was not walked: after 1 s, 2 s, 4 s and so on, as
    /// there may have been no time for it, or there is no walk of it.
    pub(super) fn walk_again(&mut self, pid: i32) {
        let now = Instant::now();
        let first = (now, FIRST_RETRY_INTERVAL);
        let (due, interval) = self.walked_again.entry(pid).or_insert(first);
        if now < *due {
            return;
        }
        (*due, *interval) = (
            now + *interval,
            interval.saturating_mul(2).min(MAX_RETRY_INTERVAL),
        );
        let stack_size = self.stack_size(pid);
        self.cut.entry(pid).or_insert(stack_size);
    }

    /// Has waits read again of which stacks were cut, or not walked.
    pub(super) fn read_again(&mut self) {
        for (pid, stack_size) in std::mem::take(&mut self.cut) {
            let known = self.known.get(&pid.cast_unsigned());
            let target = known.map_or_else(Target::default, |it| it.target);
            self.set(pid, target, stack_size);
        }
    }

    pub(super) fn remove(&mut self, pid: i32) {
        // It may never have been added.
        let _ = self.targets.remove(&pid.cast_unsigned());
        self.known.remove(&pid.cast_unsigned());
        self.cut.remove(&pid);
        self.walked_again.remove(&pid);
        self.shared.long_stacks(|it| it.remove(pid));
        self.shared.readers(|it| drop(it.remove(&pid)));
        if !self.visits_all {
            self.shared.links(|it| drop(it.remove(&pid)));
        }
    }

    /// Returns until when the recorder can pass on what it has: `now`, or the time of waits that a scan has not passed on yet, but
    /// not long before. Else, a wait could be taken for one of the program that its process has executed since.
    pub(super) fn complete_until(&self, now: u64) -> u64 {
        let complete = self.shared.complete.load(Ordering::Acquire);
        now.min(complete).max(now.saturating_sub(MAX_DELAY))
    }

    /// Takes over what was seen since the last call.
    pub(super) fn begin(&mut self) {
        self.pending.extend(self.events.try_iter().flatten());
    }

    /// Returns the next event, if it is not later than `until` (`CLOCK_MONOTONIC`, in nanoseconds).
    pub(super) fn next(&mut self, until: u64) -> Option<WaitEvent> {
        let is_due = self.pending.front().is_some_and(|it| it.time() <= until);
        let event = is_due.then(|| self.pending.pop_front()).flatten()?;
        let queued = &self.shared.queued;
        queued.fetch_sub(event.size(), Ordering::Relaxed);
        Some(event)
    }

    pub(super) fn facts(&self) -> WaitFacts {
        let load = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
        let period = load(&self.shared.period);
        WaitFacts {
            method: self.method,
            frequency: 1_000_000_000_u64.checked_div(period).unwrap_or(0) as u32,
            interval: Duration::from_nanos(period),
            threads: load(&self.shared.threads),
            read: load(&self.shared.read),
            torn: load(&self.shared.torn),
            lost: load(&self.shared.lost),
        }
    }

    /// Ends the scans. What they have found can still be received.
    pub(super) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(scanner) = self.scanner.take() {
            // Its last scan has the times of all threads.
            while !scanner.is_finished() {
                self.begin();
                std::thread::sleep(Duration::from_millis(1));
            }
            // A panic was already printed.
            let _ = scanner.join();
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The next larger size of the program's copies.
fn longer(stack_size: u32) -> Option<u32> {
    let sizes = [STACK_ROOM as u32, LONG_STACK];
    sizes.into_iter().find(|size| *size > stack_size)
}

fn load(options: &Options, method: WaitMethod) -> Result<Ebpf, Refusal> {
    let inode = namespace::inode().map_err(|error| Refusal::other(error.to_string()))?;
    let btf = Btf::from_sys_fs().map_err(Refusal::of)?;
    let max_record = options.max_record.clamp(record::HEADER_SIZE, RECORD_LIMIT) as u32;
    let whole_machine = u32::from(options.targets == Targets::All);
    let (user_stacks, kernel_stacks) = (
        u32::from(options.user_stacks),
        u32::from(options.kernel_stacks),
    );
    let mut programs = EbpfLoader::new()
        .btf(Some(&btf))
        // aya has no type for storage of threads, which the program alone uses.
        .allow_unsupported_maps()
        .override_global("max_record", &max_record, true)
        .override_global("whole_machine", &whole_machine, true)
        .override_global("user_stacks", &user_stacks, true)
        .override_global("kernel_stacks", &kernel_stacks, true)
        .override_global("namespace_inode", &inode, true)
        .load(if method == WaitMethod::TwoWalks {
            WALKS
        } else {
            OBJECT
        })
        .map_err(Refusal::of)?;
    let program: &mut Iter = find(&mut programs, PROGRAM)?;
    program.load("task", &btf).map_err(Refusal::of)?;
    Ok(programs)
}
