//! The sampled processes, and the conversion of observed threads to samples.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_sample::format::record::{self, Context};
use otelctx_sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, GilState, ModuleFiles, ReadStep, Sample,
    StackEnd, StackId,
};
use otelctx_track::{Budget, Change, ThreadStatus, Tracked, TrackedProcess, Tracker};
use reader::runtime::{Present, RuntimeError, RuntimeProcess, RuntimeReading, ThreadView, choose};

use crate::code::{CodeMappings, MemoryChange, Modules, Report};
use crate::generated::{self, Unread};
use crate::incomplete::Places;
use crate::incomplete_steps::Reasons;
use crate::process::SampledProcess;

/// Budget for polling tracked processes between two drains. Slow scans must not delay samples until
/// the ring is full.
const BUDGET: Budget = Budget {
    processes: 32,
    time: Duration::from_millis(20),
};
/// Time limit of the first scan of all processes: the ring holds the samples of one second.
/// Processes beyond it are scanned when they are sampled.
const FIRST_SCAN: Duration = Duration::from_millis(500);

/// Maximum number of processes that are not sampled and whose mappings are kept. Those of others are
/// read when they are sampled.
const MAX_PENDING: usize = 4096;

/// Maximum number of children whose parents are kept: the end of a child may go unreported.
const MAX_PARENTS: usize = 16_384;

/// The sampled processes.
#[derive(Debug)]
pub(crate) struct Processes {
    tracker: Tracker<SampledProcess>,
    modules: Modules,
    /// The mappings that the kernel has reported of processes that are not tracked: they may be later.
    pending: HashMap<i32, CodeMappings, RandomState>,
    /// Those of them that have ended. Samples of them may still come in the current drain.
    ended: Vec<i32>,
    /// The processes that children were forked from, until they execute another program or end.
    parents: HashMap<i32, i32, RandomState>,
    whole_machine: bool,
    /// What is left of the budget for processes that are sampled for the first time, until the next poll.
    first_scans: Budget,
    /// What these scans have found.
    found: Changes,
    pub(crate) counts: Counts,
    /// Where incomplete stacks end.
    pub(crate) places: Places,
    /// Why samples lack what runtimes add.
    pub(crate) reasons: Reasons,
}

/// An observed thread.
#[derive(Debug)]
pub(crate) struct Observation<'a> {
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    /// The thread's name.
    pub(crate) comm: &'a str,
    /// [`Found::NotPublished`] if the observer does not know the process.
    pub(crate) context: Found<Record<'a>>,
    /// The readings of language runtimes.
    pub(crate) runtimes: Vec<RuntimeReading>,
    /// It was not known whether the process has a runtime.
    pub(crate) is_early: bool,
    pub(crate) user_stack: &'a [Frame],
    /// Why it ended; `None` if there is no stack.
    pub(crate) stack_end: Option<StackEnd>,
    pub(crate) kernel_stack: &'a [Frame],
}

/// An attached record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The configuration under which it was read.
    pub(crate) serial: u32,
    pub(crate) bytes: &'a [u8],
}

/// Processes that changed since the last poll.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Processes whose threads may have to be read in another way.
    pub(crate) changed: Vec<i32>,
    /// Processes that have ended.
    pub(crate) ended: Vec<i32>,
}

impl Changes {
    fn add(&mut self, event: &otelctx_track::Event) {
        let pids = match event.change {
            Change::Ended => &mut self.ended,
            _ => &mut self.changed,
        };
        if pids.last() != Some(&event.pid) {
            pids.push(event.pid);
        }
    }
}

impl Processes {
    /// Creates an empty set. With a `scan_timeout`, all processes on the machine are sampled, and
    /// most of them must be cheap.
    pub(crate) fn new(options: reader::Options, scan_timeout: Option<Duration>) -> Self {
        let mut tracking = otelctx_track::Options::default();
        tracking.reader = options;
        tracking.threads = true;
        tracking.trust_sizes = scan_timeout.is_some();
        tracking.scan_timeout = scan_timeout;
        Self {
            tracker: Tracker::new(tracking),
            modules: Modules::default(),
            pending: HashMap::default(),
            parents: HashMap::default(),
            ended: Vec::new(),
            whole_machine: scan_timeout.is_some(),
            first_scans: BUDGET,
            found: Changes::default(),
            counts: Counts::default(),
            places: Places::default(),
            reasons: Reasons::default(),
        }
    }

    /// Whether there are others than these.
    pub(crate) fn any_but(&self, pids: &[i32]) -> bool {
        let mut tracked = self.tracker.iter();
        tracked.any(|it| !pids.contains(&it.process.pid()))
    }

    /// Whether all threads of all processes have ended.
    pub(crate) fn have_ended(&self) -> bool {
        let mut processes = self.tracker.iter().map(|tracked| &tracked.process);
        processes.all(otelctx_track::TrackedProcess::has_ended)
    }

    pub(crate) fn get_mut(&mut self, pid: i32) -> Option<&mut Tracked<SampledProcess>> {
        self.tracker.get_mut(pid)
    }

    /// A process, if it is running and may be read. It is tracked from then on.
    pub(crate) fn running(&mut self, pid: i32) -> Option<&reader::remote::Process> {
        self.tracker.remove_if_gone(pid);
        let tracked = self.tracker.get_or_add(pid);
        tracked.process.reader()?.running().ok()
    }

    /// Total number of polls.
    #[cfg(test)]
    pub(crate) fn polls(&self) -> u64 {
        self.tracker.polls()
    }

    /// Tracks a process. It is scanned when it is sampled or [`Processes::scan`] is called.
    pub(crate) fn add(&mut self, pid: i32) -> Result<(), reader::Error> {
        self.tracker.add(pid)?;
        self.take_pending(pid);
        Ok(())
    }

    /// Tracks a child of a tracked process.
    pub(crate) fn add_child(&mut self, pid: i32, parent: i32) {
        // If it has ended, its samples add it.
        drop(self.add(pid));
        if self.parents.len() >= MAX_PARENTS {
            self.parents.clear();
        }
        self.parents.insert(pid, parent);
    }

    /// The files of modules that samples lie in.
    pub(crate) fn files(&self) -> &ModuleFiles {
        self.modules.files()
    }

    /// Whether reports of the process's mappings are followed.
    pub(crate) fn follows(&self, pid: i32) -> bool {
        self.whole_machine || self.tracker.get(pid).is_some() || self.pending.contains_key(&pid)
    }

    /// Notes what the kernel has reported about a process's memory, in the order of the times.
    pub(crate) fn report(&mut self, report: Report) {
        let Report { time, pid, change } = report;
        match change {
            MemoryChange::Forked { parent } => {
                let is_wanted = self.whole_machine
                    || self.tracker.get(parent).is_some()
                    || self.pending.contains_key(&parent);
                if is_wanted && self.pending.len() < MAX_PENDING {
                    let pending = self.pending.get(&parent).filter(|it| it.is_small());
                    let code = pending
                        .map_or_else(|| CodeMappings::forked(parent, time), CodeMappings::fork);
                    self.pending.insert(pid, code);
                    // An earlier process had its ID.
                    self.ended.retain(|ended| *ended != pid);
                } else {
                    self.counts.lost_mappings += u64::from(is_wanted);
                }
                return;
            }
            MemoryChange::Exit => {
                if self.pending.contains_key(&pid) {
                    self.ended.push(pid);
                }
                return;
            }
            _ => {}
        }
        let is_kept = if let Some(pending) = self.pending.get_mut(&pid) {
            let process = reader::remote::Process::open(pid).ok();
            pending.apply(time, change, process.as_ref(), &mut self.modules)
        } else if let Some(Tracked { process, data }) = self.tracker.get_mut(pid) {
            let process = process.reader().and_then(|it| it.running().ok());
            data.code.apply(time, change, process, &mut self.modules)
        } else if self.whole_machine && self.pending.len() < MAX_PENDING {
            let pending = self.pending.entry(pid).or_default();
            let process = reader::remote::Process::open(pid).ok();
            pending.apply(time, change, process.as_ref(), &mut self.modules)
        } else {
            // Without room; another process is not sampled.
            !(self.whole_machine && matches!(change, MemoryChange::Mapped(_)))
        };
        self.counts.lost_mappings += u64::from(!is_kept);
    }

    /// Moves the pending mappings of a process to the process, which is tracked now.
    fn take_pending(&mut self, pid: i32) {
        let Some(mut code) = self.pending.remove(&pid) else {
            return;
        };
        code.inherit(|parent| {
            let tracked = self.tracker.get(parent).map(|it| &it.data.code);
            tracked.or_else(|| self.pending.get(&parent))
        });
        if let Some(tracked) = self.tracker.get_mut(pid) {
            tracked.data.code = code;
        }
    }

    /// Forgets the pending mappings of ended processes: all their samples have come.
    pub(crate) fn forget_ended(&mut self) {
        for pid in self.ended.drain(..) {
            self.pending.remove(&pid);
        }
    }

    /// The processes that are not sampled yet, whose mappings are kept.
    pub(crate) fn pending(&self) -> impl Iterator<Item = i32> {
        self.pending.keys().copied()
    }

    /// Forgets the pending mappings of a process that has ended.
    pub(crate) fn forget_pending(&mut self, pid: i32) {
        self.pending.remove(&pid);
    }

    /// Scans a process to determine how it publishes.
    pub(crate) fn scan(&mut self, pid: i32) {
        self.tracker.poll(pid, &mut |_| {});
    }

    /// Scans all processes on the machine, within the time limit, and returns the ones that publish or
    /// contain a runtime. The others are tracked only when they are sampled, to save descriptors.
    pub(crate) fn find_publishers(&mut self) -> Result<Vec<i32>, reader::Error> {
        let end = Instant::now() + FIRST_SCAN;
        let mut publishers = Vec::new();
        for pid in reader::remote::process::processes()? {
            if Instant::now() >= end {
                break;
            }
            if self.tracker.add(pid).is_err() {
                continue;
            }
            self.scan(pid);
            let tracked = self.tracker.get(pid);
            let publishes = tracked.is_some_and(|Tracked { process, .. }| {
                let status = process.threads();
                matches!(
                    status,
                    ThreadStatus::Readable(_) | ThreadStatus::Unreadable(_)
                ) || !process.runtimes().is_empty()
            });
            if publishes {
                publishers.push(pid);
            } else {
                self.tracker.remove(pid);
            }
        }
        Ok(publishers)
    }

    /// Decodes what the kernel step with this name added to a sample of a process. `None` if the
    /// runtime does not know the thread, or is no longer in the process.
    pub(crate) fn decode(&mut self, pid: i32, step: &str, part: &[u8]) -> Option<RuntimeReading> {
        let of = |pid| decode_part(&self.tracker.get(pid)?.process, step, part);
        let reading = of(pid);
        if reading.as_ref().is_some_and(|it| unnamed(it) == 0) {
            return reading;
        }
        // If its memory is gone: what it had when it was forked is in its parent's, too, as a rule. A runtime checks that
        // names are those of what was sampled.
        let by_parent = self.parents.get(&pid).and_then(|parent| of(*parent));
        reading.into_iter().chain(by_parent).min_by_key(unnamed)
    }

    /// Whether a process's runtimes are known. A child has its parent's steps from the start on, and is scanned when it is
    /// sampled first.
    pub(crate) fn knows_runtimes(&mut self, pid: i32) -> bool {
        self.scan_first(pid);
        let process = self.tracker.get(pid).map(|tracked| &tracked.process);
        let is_scanned = |it: &TrackedProcess| !matches!(it.threads(), ThreadStatus::Unknown);
        process.is_some_and(|it| it.reader().is_some() && is_scanned(it))
    }

    /// Decodes the records that runtimes have found.
    pub(crate) fn decode_records(&mut self, pid: i32, readings: &mut [RuntimeReading]) {
        let process = self.tracker.get(pid).map(|tracked| &tracked.process);
        if let Some(reader) = process.and_then(TrackedProcess::reader) {
            readings.iter_mut().for_each(|it| reader.decode_record(it));
        }
    }

    /// The word that the kernel step with this name needs of a thread. `None` if the runtime does not know the
    /// thread, or is no longer in the process.
    pub(crate) fn thread_word(
        &mut self,
        pid: i32,
        step: &str,
        thread: ThreadView,
    ) -> Result<Option<u64>, RuntimeError> {
        let process = self.tracker.get(pid).map(|tracked| &tracked.process);
        let found = process.and_then(|process| {
            let (_, runtime) = with_step(process, step)?;
            Some((runtime, process.reader()?.as_target()?))
        });
        match found {
            Some((runtime, target)) => runtime.thread_word(&*target, thread),
            None => Ok(None),
        }
    }

    pub(crate) fn remove(&mut self, pid: i32) {
        self.parents.remove(&pid);
        self.finish_generated(pid);
        self.tracker.remove(pid);
    }

    /// Notes that a process exits. It stays tracked as long as the kernel has it: until then there
    /// may be more samples of it, and its ID is not reused.
    pub(crate) fn exiting(&mut self, pid: i32) {
        self.parents.remove(&pid);
        self.finish_generated(pid);
        self.tracker.exiting(pid);
    }

    /// Notes that a process has executed another program, at `time` or before.
    pub(crate) fn exec(&mut self, pid: i32, time: u64) {
        self.parents.remove(&pid);
        self.tracker.remove_if_gone(pid);
        self.finish_generated(pid);
        if let Some(tracked) = self.tracker.exec(pid) {
            tracked.data.exec(time);
        } else if let Some(pending) = self.pending.get_mut(&pid) {
            pending.exec(time);
        }
    }

    /// Handles lost events about processes: requests polls of all processes, and the removal of
    /// exited ones.
    pub(crate) fn request_all(&mut self) {
        self.tracker.request_all_now();
        for Tracked { data, .. } in self.tracker.iter_mut() {
            data.exec_if_reported();
        }
    }

    /// Requests a poll of a process, ignoring its back-off.
    pub(crate) fn request_now(&mut self, pid: i32) {
        self.tracker.request_now(pid);
    }

    /// Notes that the next catalog is empty.
    pub(crate) fn reset_catalog(&mut self) {
        let processes = self.tracker.iter_mut();
        processes.for_each(|tracked| tracked.data.reset_catalog());
        self.modules.clear();
    }

    /// Polls processes that were sampled and may have started to publish or changed how they
    /// publish.
    pub(crate) fn poll(&mut self, catalog: &mut Catalog) -> Changes {
        self.first_scans = BUDGET;
        let mut changes = std::mem::take(&mut self.found);
        self.tracker
            .poll_due(BUDGET, &mut |event| changes.add(&event));
        for pid in &changes.changed {
            if let Some(tracked) = self.tracker.get_mut(*pid) {
                tracked.data.describe(&tracked.process, catalog);
            }
        }
        changes
    }

    /// Names the frames in generated code by what the runtime has announced. `None` if there are none.
    fn name_generated(&mut self, seen: &Observation<'_>) -> Option<Vec<Frame>> {
        let code = &self.tracker.get(seen.pid)?.data.code;
        let in_generated = |frame: &Frame| {
            let address = frame.lookup_address()?;
            code.is_generated(address).then_some(address)
        };
        if !seen.user_stack.iter().any(|it| in_generated(it).is_some()) {
            return None;
        }
        let addresses: Vec<_> = seen.user_stack.iter().map(in_generated).collect();
        if self.tracker.get(seen.pid)?.data.generated.is_due() {
            self.update_generated(seen.pid);
        }
        let SampledProcess {
            code, generated, ..
        } = &self.tracker.get(seen.pid)?.data;
        let runtime = code.runtime();
        let frames = seen.user_stack.iter().zip(addresses);
        let named = frames.map(|(frame, address)| {
            let name = address.and_then(|address| generated.name(address, seen.time, runtime));
            name.unwrap_or_else(|| frame.clone())
        });
        Some(named.collect())
    }

    /// How many generated functions of a process are kept.
    fn max_functions(&self, pid: i32) -> usize {
        let tracked = self.tracker.iter();
        let others = tracked.filter(|it| it.process.pid() != pid);
        generated::max_functions(others.map(|it| it.data.generated.len()).sum())
    }

    fn count_unread(&mut self, unread: Unread) {
        self.counts.dropped_names += unread.names;
        self.counts.damaged_jit_dumps += unread.dumps;
        self.counts.unread_name_files += unread.files;
        self.counts.stale_name_files += unread.stale_files;
    }

    /// The counts up to now.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.counts;
        let tracked = self.tracker.iter();
        counts.unread_name_files += tracked
            .map(|it| it.data.generated.files_behind())
            .sum::<u64>();
        counts.dropped_files = self.modules.files().dropped();
        counts
    }

    /// Reads what a process's runtime has announced.
    fn update_generated(&mut self, pid: i32) {
        let limit = self.max_functions(pid);
        let Some(Tracked { process, data }) = self.tracker.get_mut(pid) else {
            return;
        };
        if let Some(running) = process.reader().and_then(|it| it.running().ok()) {
            if data.code.take_new_generated() {
                data.generated.search();
            }
            let dump = || data.code.open_jit_dump(running);
            let unread = data.generated.update(running, dump, limit);
            self.count_unread(unread);
        }
    }

    /// Reads the rest of what the runtime of a process has announced that ends, or executes another program.
    fn finish_generated(&mut self, pid: i32) {
        let is_read = |it: &Tracked<SampledProcess>| it.data.generated.has_files();
        if self.tracker.get(pid).is_none_or(|it| !is_read(it)) {
            return;
        }
        let limit = self.max_functions(pid);
        if let Some(Tracked { data, .. }) = self.tracker.get_mut(pid) {
            let unread = data.generated.finish(limit);
            self.count_unread(unread);
        }
    }

    /// Scans a process that is sampled for the first time, unless too many were: until then it is not
    /// known whether it publishes.
    fn scan_first(&mut self, pid: i32) {
        let Budget { processes, time } = self.first_scans;
        let is_known = |it: &Tracked<SampledProcess>| {
            !matches!(it.process.threads(), ThreadStatus::Unknown) || !it.process.exists()
        };
        if processes == 0 || time.is_zero() || self.tracker.get(pid).is_none_or(is_known) {
            return;
        }
        let start = Instant::now();
        let found = &mut self.found;
        self.tracker.poll(pid, &mut |event| found.add(&event));
        self.first_scans = Budget {
            processes: processes - 1,
            time: time.saturating_sub(start.elapsed()),
        };
    }

    /// Converts an observation to a sample.
    pub(crate) fn sample(&mut self, seen: &Observation<'_>, catalog: &mut Catalog) -> Sample {
        self.tracker.remove_if_gone(seen.pid);
        if self.pending.contains_key(&seen.pid) {
            self.tracker.get_or_add(seen.pid);
            self.take_pending(seen.pid);
        }
        let tracked = self.tracker.get_or_add(seen.pid);
        let process = tracked.data.id(&tracked.process, catalog, seen.comm);
        let running = tracked.process.reader().and_then(|it| it.running().ok());
        let (code, modules) = (&mut tracked.data.code, &mut self.modules);
        code.explain(process, running, seen.user_stack, modules, catalog);
        self.scan_first(seen.pid);
        let tracked = self.tracker.get_or_add(seen.pid);
        let has_step = |present: &Present| {
            let runtime = present.process.as_ref().ok();
            runtime.is_some_and(|it| it.kernel_step().is_some())
        };
        if seen.is_early && tracked.process.runtimes().iter().any(has_step) {
            self.counts.unresolved_threads += 1;
        }
        for present in tracked.process.runtimes().iter() {
            // Otherwise its threads have the reason.
            let has_reading = || seen.runtimes.iter().any(|it| it.name == present.name);
            if let Err(error) = &present.process
                && !has_reading()
            {
                self.counts.incomplete_steps += 1;
                self.reasons.add(present.name, error);
            }
        }
        let found = found(tracked, seen.context, &mut self.counts, catalog);
        let named = self.name_generated(seen);
        let stack = named.as_deref().unwrap_or(seen.user_stack);
        let own = self.own_frames(seen, stack);
        let stack = &stack[..own.unwrap_or(stack.len())];
        let stack_end = match own {
            Some(_) => seen.stack_end.map(|_| StackEnd::Start),
            None => seen.stack_end,
        };
        let (found, gil, user_stack) = if seen.runtimes.is_empty() {
            (found, None, catalog.stack(stack))
        } else {
            with_runtimes(
                found,
                seen,
                stack,
                &mut self.counts,
                &mut self.reasons,
                catalog,
            )
        };
        self.counts.add(found);
        if let Some(end) = stack_end {
            self.counts.add_stack(end);
            let place = (process, seen.time);
            let code = self.tracker.get(seen.pid).map(|it| &it.data.code);
            let generated_by = |address| {
                let code = code.filter(|it| it.is_generated(address))?;
                Some(code.runtime()?.label)
            };
            self.places
                .add(seen.user_stack, end, place, catalog, generated_by);
        }
        let tracked = self.tracker.get_or_add(seen.pid);
        let has_failed = matches!(tracked.process.threads(), ThreadStatus::Unreadable(_));
        if found == Found::Unreadable(ReadStep::Resolve) && !has_failed {
            self.tracker.request_now(seen.pid);
        } else {
            self.tracker.request(seen.pid);
        }
        Sample {
            time: seen.time,
            cpu: seen.cpu,
            thread: catalog.thread(process, seen.tid, seen.comm),
            event: Event::OnCpu,
            found,
            gil,
            user_stack,
            stack_end,
            kernel_stack: catalog.stack(seen.kernel_stack),
        }
    }

    /// How many frames of a stack are of the stack on which a runtime executes, if that is not the thread's own: it is
    /// complete then.
    fn own_frames(&self, seen: &Observation<'_>, stack: &[Frame]) -> Option<usize> {
        let of_runtimes = seen.runtimes.iter().filter_map(|reading| {
            let of_runtime = &reading.thread.as_ref().ok()?.stack;
            if of_runtime.switching_libraries.is_empty() {
                return None;
            }
            let code = &self.tracker.get(seen.pid)?.data.code;
            let libraries = code.mapped_files(|path| of_runtime.is_switching_library(path));
            if libraries.is_empty() {
                return None;
            }
            let switches = |address| libraries.iter().any(|library| library.contains(&address));
            of_runtime.own_native_frames(stack, switches)
        });
        of_runtimes.min()
    }
}

/// The runtime of a process that has the kernel step with this name, and its own name.
fn with_step<'p>(
    process: &'p TrackedProcess,
    step: &str,
) -> Option<(&'static str, &'p Arc<dyn RuntimeProcess>)> {
    process.runtimes().iter().find_map(|present| {
        let runtime = present.process.as_ref().ok()?;
        (runtime.kernel_step()?.name == step).then_some((present.name, runtime))
    })
}

fn decode_part(process: &TrackedProcess, step: &str, part: &[u8]) -> Option<RuntimeReading> {
    let ((name, runtime), target) = (with_step(process, step)?, process.reader()?.as_target()?);
    let thread = runtime.decode(&*target, part).transpose()?;
    let mut reading = RuntimeReading { name, thread };
    process.reader()?.decode_record(&mut reading);
    Some(reading)
}

/// Number of frames whose function has no name; more than any number if there is no reading.
fn unnamed(reading: &RuntimeReading) -> usize {
    let thread = reading.thread.as_ref();
    thread.map_or(usize::MAX, |thread| {
        thread.stack.frames().filter(|it| it.is_unnamed()).count()
    })
}

/// The context, the state of the interpreter's lock, and the stack of a thread, merged with its runtimes' readings.
fn with_runtimes(
    native: Found,
    seen: &Observation<'_>,
    user_stack: &[Frame],
    counts: &mut Counts,
    reasons: &mut Reasons,
    catalog: &mut Catalog,
) -> (Found, Option<GilState>, StackId) {
    let native = native.and_then(|id| Found::Attached(catalog.context_facts(id).clone()));
    let chosen = choose(native, &seen.runtimes);
    counts.context_conflicts += u64::from(chosen.is_conflict);
    let found = chosen
        .context
        .and_then(|context| Found::Attached(catalog.context(&context)));
    let mut stack = user_stack.to_vec();
    let mut gil: Option<GilState> = None;
    for reading in &seen.runtimes {
        match &reading.thread {
            Ok(thread) => {
                counts.truncated_runtime_stacks += u64::from(thread.stack.is_truncated);
                counts.unnamed_functions += unnamed(reading) as u64;
                if let Some(lock) = &thread.gil {
                    let state = lock.state_in(&mut stack, FrameKind::new(reading.name));
                    gil = Some(gil.map_or(state, |other| other.min(state)));
                }
                stack = thread.stack.clone().in_native(stack);
            }
            Err(error) => {
                counts.incomplete_steps += 1;
                reasons.add(reading.name, error);
            }
        }
    }
    (found, gil, catalog.stack(&stack))
}

/// Converts the outcome of reading a thread's context, adding the context to the catalog.
fn found(
    tracked: &mut Tracked<SampledProcess>,
    read: Found<Record<'_>>,
    counts: &mut Counts,
    catalog: &mut Catalog,
) -> Found {
    let found = read.and_then(|record| {
        // Without a key map, it was read before the process executed another program.
        if tracked.data.keys.get(record.serial).is_none() {
            return Found::Unreadable(ReadStep::Resolve);
        }
        let Some(context) = decode(tracked, record) else {
            return Found::Unreadable(ReadStep::Record);
        };
        counts.add_skipped(&context.skipped);
        Found::Attached(catalog.context(&context))
    });
    match (found, tracked.process.threads()) {
        (Found::NotPublished, ThreadStatus::NotPublished) => Found::NotPublished,
        (Found::NotPublished, ThreadStatus::Unreadable(step)) => Found::Unreadable(*step),
        (Found::NotPublished, ThreadStatus::Unknown) if !tracked.process.exists() => {
            Found::Unreadable(ReadStep::Process)
        }
        // Not scanned yet, or the observer does not know it yet.
        (Found::NotPublished, _) => Found::Unreadable(ReadStep::Resolve),
        (found, _) => found,
    }
}

/// Decodes a record. A key may have been registered since the key map was read.
fn decode(tracked: &mut Tracked<SampledProcess>, record: Record<'_>) -> Option<Context> {
    let Record { serial, bytes } = record;
    let record = record::decode(bytes).ok()?;
    let keys = &mut tracked.data.keys;
    let context = record.resolve(keys.get(serial)?);
    if context.skipped.unknown_key == 0 || !keys.refresh(serial, &mut tracked.process) {
        return Some(context);
    }
    Some(record.resolve(keys.get(serial)?))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    use otelctx_fixtures::{Compiler, Target};

    use super::*;
    use crate::code::{FileId, Region};
    use crate::monotonic;

    /// A process without a context, which has loaded its libraries and sleeps. It is killed when dropped, also if a
    /// test fails.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            loop {
                let mut command = Command::new("cat");
                command.env("OTEL_SERVICE_NAME", "sleeper");
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
                let mut this = Self(command.spawn().unwrap());
                // It returns what it is given once it has started.
                let mut byte = *b"1";
                this.0.stdin.as_ref().unwrap().write_all(&byte).unwrap();
                this.0.stdout.take().unwrap().read_exact(&mut byte).unwrap();
                // Another process with this ID may have left it, even another user's.
                if !PerfMap::path(this.0.id() as i32).exists() {
                    return this;
                }
            }
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // Both fail only if it has ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn observation(pid: i32) -> Observation<'static> {
        Observation {
            time: 1,
            cpu: 0,
            pid,
            tid: pid,
            comm: "cat",
            context: Found::NotPublished,
            runtimes: Vec::new(),
            is_early: false,
            user_stack: &[],
            stack_end: None,
            kernel_stack: &[],
        }
    }

    #[test]
    fn samples_of_a_process_that_ends_are_still_its_own() {
        let mut processes = Processes::new(reader::Options::default(), None);
        let mut catalog = Catalog::new();
        let child = Sleeper::start();
        let pid = child.0.id() as i32;
        let first = processes.sample(&observation(pid), &mut catalog);
        // The kernel reports the exit before it frees the process's memory, which is sampled, too.
        processes.exiting(pid);
        let second = processes.sample(&observation(pid), &mut catalog);
        assert_eq!(second.thread, first.thread);
        assert_eq!(catalog.processes().len(), 1);
        drop(child);
        // The process that now has its ID is a different one.
        processes.sample(&observation(pid), &mut catalog);
        assert_eq!(catalog.processes().len(), 2);
    }

    #[test]
    fn a_process_that_is_ending_keeps_its_detected_name() {
        let mut processes = Processes::new(reader::Options::default(), None);
        let mut catalog = Catalog::new();
        let mut child = Sleeper::start();
        let pid = child.0.id() as i32;
        let name = |catalog: &Catalog| {
            let (_, process) = catalog.processes().next().unwrap();
            let mut attributes = process.resource.iter();
            let name = attributes.find(|(key, _)| key == "service.name");
            name.map(|(_, value)| value.clone())
        };
        processes.sample(&observation(pid), &mut catalog);
        assert_eq!(name(&catalog), Some("sleeper".into()));
        child.0.kill().unwrap();
        while !processes.have_ended() {
            std::thread::yield_now();
        }
        let tracked = processes.get_mut(pid).unwrap();
        tracked.data.describe(&tracked.process, &mut catalog);
        assert_eq!(name(&catalog), Some("sleeper".into()));
        // In the next part of a recording, too.
        catalog = Catalog::new();
        processes.reset_catalog();
        processes.sample(&observation(pid), &mut catalog);
        assert_eq!(name(&catalog), Some("sleeper".into()));
    }

    #[test]
    fn a_process_that_publishes_nothing_is_not_published_from_its_first_sample_on() {
        let mut processes = Processes::new(reader::Options::default(), None);
        let mut catalog = Catalog::new();
        // An emulator may take longer for the scans than there is time for.
        processes.first_scans.time = Duration::from_secs(60);
        let children = [(); 3].map(|()| Sleeper::start());
        for child in &children {
            let seen = observation(child.0.id() as i32);
            let sample = processes.sample(&seen, &mut catalog);
            assert_eq!(sample.found, Found::NotPublished);
        }
        assert_eq!(processes.counts.not_published, 3);
        // What these scans have found is for the next poll.
        let mut changed = processes.poll(&mut catalog).changed;
        changed.sort_unstable();
        let mut pids = children.each_ref().map(|it| it.0.id() as i32);
        pids.sort_unstable();
        assert_eq!(changed, pids);
    }

    #[test]
    fn reports_without_room_are_counted() {
        let mut processes = Processes::new(reader::Options::default(), Some(Duration::ZERO));
        // No process has such IDs.
        let fork = |processes: &mut Processes, number: usize| {
            processes.report(Report {
                time: 1,
                pid: i32::MAX - number as i32,
                change: MemoryChange::Forked { parent: 1 },
            });
        };
        for number in 0..MAX_PENDING {
            fork(&mut processes, number);
        }
        assert_eq!(processes.counts.lost_mappings, 0);
        fork(&mut processes, MAX_PENDING);
        assert_eq!(processes.counts.lost_mappings, 1);
        let mut report = |change| {
            processes.report(Report {
                time: 2,
                pid: i32::MAX - MAX_PENDING as i32,
                change,
            });
            processes.counts.lost_mappings
        };
        assert_eq!(report(MemoryChange::Exec), 1);
        assert_eq!(report(MemoryChange::Exit), 1);
        let region = Region {
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            file: FileId::BuildId(vec![1]),
            path: "/lib/a.so".to_owned(),
        };
        assert_eq!(report(MemoryChange::Mapped(region)), 2);
    }

    #[test]
    fn the_end_of_an_unknown_process_takes_no_room() {
        let mut processes = Processes::new(reader::Options::default(), Some(Duration::ZERO));
        processes.report(Report {
            time: 1,
            pid: i32::MAX,
            change: MemoryChange::Exit,
        });
        assert!(processes.pending.is_empty());
    }

    #[test]
    fn first_scans_are_bounded() {
        let mut processes = Processes::new(reader::Options::default(), None);
        let mut catalog = Catalog::new();
        let children = [(); 2].map(|()| Sleeper::start());
        processes.first_scans.processes = 1;
        let found = children.each_ref().map(|child| {
            let seen = observation(child.0.id() as i32);
            processes.sample(&seen, &mut catalog).found
        });
        assert_eq!(
            found,
            [Found::NotPublished, Found::Unreadable(ReadStep::Resolve)]
        );
        processes.poll(&mut catalog);
        let seen = observation(children[1].0.id() as i32);
        let second = processes.sample(&seen, &mut catalog);
        assert_eq!(second.found, Found::NotPublished);
    }

    fn workers() -> Option<Target> {
        let sources = ["threads.c", "variable.c", "publish.c"];
        let program = Compiler::gcc().program(&sources, &["-DLINKED", "-rdynamic"])?;
        Some(Target::spawn(&mut Command::new(program)))
    }

    #[test]
    fn the_resource_of_a_process_stays_when_it_has_ended() {
        let Some(mut target) = workers() else { return };
        let pid = target.pid();
        let mut processes = Processes::new(reader::Options::default(), None);
        let mut catalog = Catalog::new();
        processes.add(pid).unwrap();
        processes.scan(pid);
        let sample = processes.sample(&observation(pid), &mut catalog);
        let id = catalog.thread_facts(sample.thread).process;
        let before = catalog.process(id).clone();
        assert!(before.published);
        target.child().kill().unwrap();
        // It becomes a zombie, because nothing waits for it. A scan during its exit may still find
        // its context, but no threads.
        let start = Instant::now();
        while processes.get_mut(pid).unwrap().process.context().is_some() {
            assert!(start.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(1));
            processes.request_now(pid);
            processes.poll(&mut catalog);
            assert_eq!(*catalog.process(id), before);
        }
        assert!(processes.get_mut(pid).unwrap().process.exists());
    }

    #[test]
    fn another_program_is_another_process_of_the_catalog() {
        let Some(target) = workers() else { return };
        let pid = target.pid();
        let mut processes = Processes::new(reader::Options::default(), None);
        let mut catalog = Catalog::new();
        processes.add(pid).unwrap();
        let first = processes.sample(&observation(pid), &mut catalog);
        processes.exec(pid, u64::MAX);
        let second = processes.sample(&observation(pid), &mut catalog);
        assert_ne!(first.thread, second.thread);
        // Whether it publishes is unknown until it is scanned.
        assert_eq!(second.found, Found::Unreadable(ReadStep::Resolve));
    }

    /// A file that is removed when dropped.
    struct PerfMap(std::path::PathBuf);

    impl PerfMap {
        fn path(pid: i32) -> std::path::PathBuf {
            format!("/tmp/perf-{pid}.map").into()
        }

        fn write(pid: i32, text: &str) -> Self {
            let map = Self(Self::path(pid));
            std::fs::write(&map.0, text).unwrap();
            map
        }
    }

    impl Drop for PerfMap {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).unwrap();
        }
    }

    #[test]
    fn a_runtime_that_announces_its_code_late_is_found_with_its_next_code() {
        let mut processes = Processes::new(reader::Options::default(), None);
        let mut catalog = Catalog::new();
        let child = Sleeper::start();
        let pid = child.0.id() as i32;
        processes.add(pid).unwrap();
        // It had code before, whose names were searched for in vain.
        let generated = &mut processes.get_mut(pid).unwrap().data.generated;
        generated.put_off_search();
        let _map = PerfMap::write(pid, "10000 1000 late\n");
        processes.report(Report {
            time: 1,
            pid,
            change: MemoryChange::Mapped(Region {
                start: 0x1_0000,
                end: 0x2_0000,
                offset: 0,
                file: FileId::Inode(reader::remote::Device { major: 0, minor: 0 }, 0),
                path: String::new(),
            }),
        });
        let stack = [Frame::instruction(0x1_0010)];
        let seen = Observation {
            time: monotonic(),
            user_stack: &stack,
            ..observation(pid)
        };
        let sample = processes.sample(&seen, &mut catalog);
        let frame = catalog.frames(sample.user_stack).next().unwrap().clone();
        let Frame::Named(named) = &frame else {
            panic!("{frame:?}")
        };
        assert_eq!(named.function, "late");
    }

    #[test]
    fn names_of_one_process_leave_room_for_those_of_others() {
        // More than are kept of all processes.
        const MANY: u64 = 300_000;
        let mut processes = Processes::new(reader::Options::default(), None);
        let children = [(); 3].map(|()| Sleeper::start());
        let pids = children.each_ref().map(|it| it.0.id() as i32);
        let lines = [MANY, 1000, MANY];
        let maps = pids.iter().zip(lines).map(|(pid, lines)| {
            let line = |number| format!("{:x} 10 of_{pid}_{number}\n", 0x10_0000 + 0x10 * number);
            PerfMap::write(*pid, &(0..lines).map(line).collect::<String>())
        });
        let maps: Vec<_> = maps.collect();
        for pid in pids {
            processes.add(pid).unwrap();
            // 1 MiB at a time.
            for _ in 0..10 {
                processes.update_generated(pid);
            }
        }
        drop(maps);
        let total = 256 * 1024;
        let first = total / 2 * 3 / 4;
        let third = (total - first - 1000) / 2 * 3 / 4;
        for (pid, (lines, kept)) in
            pids.into_iter()
                .zip([(MANY, first), (1000, 1000), (MANY, third)])
        {
            let generated = &processes.get_mut(pid).unwrap().data.generated;
            assert_eq!(generated.len() as u64, kept);
            for number in [0, kept - 1, kept, lines - 1] {
                let name = generated.name(0x10_0000 + 0x10 * number, monotonic(), None);
                let Some(Frame::Named(named)) = &name else {
                    assert!(number >= kept && name.is_none());
                    continue;
                };
                assert!(number < kept);
                assert_eq!(named.function, format!("of_{pid}_{number}"));
            }
        }
        assert_eq!(processes.counts.dropped_names, 2 * MANY - first - third);
    }

    #[test]
    fn a_process_that_could_not_be_scanned_is_not_resolved() {
        let Some(target) = workers() else { return };
        let pid = target.pid();
        // There is not enough time for it.
        let timeout = Some(Duration::from_nanos(1));
        let mut processes = Processes::new(reader::Options::default(), timeout);
        let mut catalog = Catalog::new();
        processes.add(pid).unwrap();
        processes.scan(pid);
        let status = processes.get_mut(pid).unwrap().process.threads();
        assert!(matches!(status, ThreadStatus::Unreadable(_)), "{status:?}");
        let sample = processes.sample(&observation(pid), &mut catalog);
        assert_eq!(sample.found, Found::Unreadable(ReadStep::Resolve));
        let counted = processes.counts.unreadable[ReadStep::Resolve as usize];
        assert_eq!((counted, processes.counts.unreadable_samples()), (1, 1));
    }
}
