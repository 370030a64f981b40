//! Converts the program's events to samples.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, MapData};
use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_reader::runtime::{RuntimeError, ThreadView};
use otelctx_sample::{Catalog, Counts, Found, Frame, ModuleFiles, Sample, StackEnd};
use otelctx_track::ThreadStatus;

use super::abi::{
    self, EventHead, FRAME_INTERRUPTED, StepConfiguration, StepKey, Target, ThreadKey, flag, kind,
    part, step_outcome,
};
use super::load::{KernelCounts, Loaded};
use super::side_band::SideBand;
use super::targets::{numbers, places_of, steps_of, target};
use super::thread_words::{Lookup, ThreadWords};
use super::unwind::{Unwinding, stack_end};
use crate::process::check_target;
use crate::processes::{Observation, Processes, Record};
use crate::refusal::Refusal;
use crate::{Error, IncompleteStacks, IncompleteSteps, Options, Targets, monotonic};

/// After this time without changes, the recorder wakes up less often.
const QUIET: Duration = Duration::from_secs(1);
/// How often to read the counters of lost events, and to check which CPUs are online.
const SURVEY_INTERVAL: Duration = Duration::from_secs(1);
/// How often to search for processes whose end was not reported.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum time to wait for the rows of the requested processes before sampling starts: rows of the
/// largest programs take 100 ms. Stacks that are taken without them are incomplete.
const MAX_ROWS_WAIT: Duration = Duration::from_secs(1);

/// Maximum size of a stack that is walked by frame pointers, in bytes (`STACK_SIZE` in `stack.h`).
const MAX_UNCHECKED_STACK: usize = 127 * 8;

/// Sampling with eBPF.
pub(crate) struct Recorder {
    loaded: Loaded,
    processes: Processes,
    side_band: SideBand,
    /// Why the kernel does not report mappings, if it does not.
    without_reports: Option<io::Error>,
    whole_machine: bool,
    /// Number of the newest configuration.
    serial: u32,
    /// The program's counters at the last survey.
    counted: KernelCounts,
    /// When to read the counters of lost events next.
    survey: Instant,
    /// When a drain last had more than samples of native code.
    last_change: Instant,
    /// When the clocks were started.
    started: u64,
    stopped: bool,
    /// Number of consecutive surveys that found every target ended.
    idle_surveys: u32,
    /// Processes that the program has reported as exiting, in the last drain and in this one. Those of its
    /// samples that were taken before the program learned to leave it out come with the next drain.
    exiting: [Vec<i32>; 2],
    /// When to search for processes whose end was not reported.
    sweep: Instant,
    /// Processes that had ended at the last search.
    gone: HashSet<i32, RandomState>,
    /// CPUs that have sent samples since then.
    seen: HashSet<u32, RandomState>,
    /// The stacks of one event; the memory is reused for the next.
    stacks: [Vec<Frame>; 2],
}

impl Recorder {
    /// Loads the program, scans the requested processes, and starts the clocks: all of them are sampled
    /// from then on. Of a whole machine, everything is sampled while its publishers are searched for.
    pub(crate) fn start(
        options: &Options,
        reader_options: reader::Options,
        scan_timeout: Option<Duration>,
    ) -> Result<Result<Self, Refusal>, Error> {
        let loaded = match Loaded::load(options) {
            Ok(loaded) => loaded,
            Err(refusal) => return Ok(Err(refusal)),
        };
        // Without it, all mappings are read from /proc.
        let (side_band, without_reports) = match options.user_stacks.then(|| loaded.side_band()) {
            Some(Ok(side_band)) => (side_band, None),
            Some(Err(error)) => (SideBand::default(), Some(error)),
            None => (SideBand::default(), None),
        };
        let mut recorder = Self {
            loaded,
            side_band,
            without_reports,
            processes: Processes::new(reader_options, scan_timeout),
            whole_machine: options.targets == Targets::All,
            serial: 0,
            counted: KernelCounts::default(),
            survey: Instant::now() + SURVEY_INTERVAL,
            last_change: Instant::now(),
            started: 0,
            stopped: false,
            idle_surveys: 0,
            exiting: Default::default(),
            sweep: Instant::now() + SWEEP_INTERVAL,
            gone: HashSet::default(),
            seen: HashSet::default(),
            stacks: [Vec::new(), Vec::new()],
        };
        if let Targets::Processes(pids) = &options.targets {
            for pid in pids {
                let process = reader::remote::Process::open(*pid)?;
                check_target(&process)?;
                recorder.processes.add(*pid)?;
                recorder.loaded.unwinding.read(&process);
            }
            for pid in pids {
                recorder.processes.scan(*pid);
                recorder.configure(*pid);
            }
            recorder.loaded.unwinding.wait(MAX_ROWS_WAIT);
        }
        recorder.started = monotonic();
        recorder.loaded.clocks.start().map_err(Error::Clock)?;
        if recorder.whole_machine {
            for pid in recorder.processes.find_publishers()? {
                recorder.configure(pid);
            }
        }
        Ok(Ok(recorder))
    }

    fn insert(&mut self, pid: i32, target: Target) {
        self.loaded.targets.insert(pid as u32, target);
    }

    fn forget(&mut self, pid: i32) {
        let pid = pid as u32;
        self.loaded.targets.remove(pid);
        forget_steps(&mut self.loaded.configurations, &self.loaded.steps, pid);
        self.loaded.words.forget(pid);
    }

    /// Updates the program's data about a process: where its threads keep their contexts, and the
    /// configurations of its steps.
    fn configure(&mut self, pid: i32) {
        let Some(tracked) = self.processes.get_mut(pid) else {
            return;
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        let mut target = target(self.serial, &places_of(tracked.process.threads()));
        let steps = steps_of(tracked.process.runtimes(), &self.loaded.steps);
        target.steps = configure_steps(&mut self.loaded.configurations, pid as u32, &steps);
        for (step, _) in &steps {
            // If the kernel refuses it, each sample that needs it says so (`step_outcome::ABSENT`).
            let _ = self.loaded.load_step(*step);
        }
        let is_empty = target.places == 0 && target.steps == 0;
        if let ThreadStatus::Readable(variables) = tracked.process.threads() {
            tracked.data.keys.set(self.serial, variables.keys.clone());
        }
        if is_empty && self.whole_machine {
            self.forget(pid);
            return;
        }
        self.insert(pid, target);
        let tracked = self.processes.get_mut(pid);
        if !is_empty && tracked.is_some_and(|it| !it.process.has_same_modules()) {
            // It has executed another program, is loading a library, or has ended.
            if self.whole_machine {
                self.forget(pid);
            } else {
                self.insert(pid, Target::default());
            }
            self.processes.request_now(pid);
        }
    }

    /// Passes on the samples taken since the last call.
    pub(crate) fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut dyn FnMut(Sample)) {
        // Otherwise, a recorder that gets too little CPU time would never finish.
        let until = monotonic();
        self.loaded.events.begin();
        self.loaded.words.begin();
        // Before the events: their mappings are as new as they are.
        let (side_band, processes) = (&mut self.side_band, &mut self.processes);
        let mut has_changes = pass_on(side_band, &mut self.loaded.unwinding, processes);
        while let Some((head, parts)) = self.loaded.events.next(until) {
            has_changes |= head.kind != kind::ON_CPU;
            match head.kind {
                kind::ON_CPU => {
                    has_changes |= parts.clone().any(|part| part.kind >= part::STEP);
                    self.seen.insert(head.cpu);
                    let stacks = &mut self.stacks;
                    let steps = (&self.loaded.steps, &mut self.loaded.words);
                    let unwinding = &mut self.loaded.unwinding;
                    let processes = &mut self.processes;
                    let sample = sample(processes, unwinding, stacks, steps, &head, parts, catalog);
                    on_sample(sample);
                }
                // If it ended immediately, there is an event for that, too.
                kind::FORK => {
                    let pid = head.pid as i32;
                    self.loaded.targets.forked(head.pid);
                    // An earlier process had its ID.
                    for pids in &mut self.exiting {
                        pids.retain(|exiting| *exiting != pid);
                    }
                    self.processes.add_child(pid, head.detail as i32);
                }
                kind::EXEC => {
                    let pid = head.pid as i32;
                    self.processes.exec(pid, head.time);
                    // It had its parent's, or its former program's.
                    let configurations = &mut self.loaded.configurations;
                    forget_steps(configurations, &self.loaded.steps, head.pid);
                    self.loaded.unwinding.forget(pid);
                    self.loaded.words.forget(head.pid);
                    // Its rows are ready sooner than if its first sample asks for them.
                    if let Some(process) = self.processes.running(pid) {
                        self.loaded.unwinding.read(process);
                    }
                }
                kind::EXIT => {
                    self.exiting[1].push(head.pid as i32);
                    self.loaded.targets.remove(head.pid);
                }
                _ => {}
            }
        }
        self.processes.forget_ended();
        self.end_exiting();
        self.loaded.unwinding.poll();
        let now = Instant::now();
        if has_changes {
            self.last_change = now;
        }
        if now >= self.survey || self.stopped {
            self.survey(now);
        }
        let changes = self.processes.poll(catalog);
        for pid in changes.ended {
            self.loaded.unwinding.forget(pid);
            self.forget(pid);
        }
        for pid in changes.changed {
            self.configure(pid);
        }
    }

    /// Forgets the processes that were reported as exiting in the last drain. Those of a whole machine are
    /// forgotten when the kernel has freed them.
    fn end_exiting(&mut self) {
        self.exiting.swap(0, 1);
        for pid in std::mem::take(&mut self.exiting[1]) {
            if self.whole_machine {
                self.processes.exiting(pid);
            } else {
                self.loaded.unwinding.forget(pid);
                self.processes.remove(pid);
                // It may have been added again after the process had ended.
                self.forget(pid);
            }
        }
    }

    /// Counts lost events, and follows CPUs that come online or go offline.
    fn survey(&mut self, now: Instant) {
        self.survey = now + SURVEY_INTERVAL;
        let counts = self.loaded.counts();
        let before = std::mem::replace(&mut self.counted, counts);
        self.processes.counts.lost += counts.lost_samples - before.lost_samples;
        self.processes.counts.outside_namespace +=
            counts.outside_namespace - before.outside_namespace;
        if !self.whole_machine {
            self.processes.counts.dropped_processes +=
                counts.dropped_processes - before.dropped_processes;
        }
        let lost_reports = std::mem::take(&mut self.side_band.lost);
        self.processes.counts.lost_mappings += lost_reports;
        if now >= self.sweep || lost_reports > 0 {
            self.sweep = now + SWEEP_INTERVAL;
            self.sweep();
        }
        if counts.lost_processes != before.lost_processes {
            self.processes.request_all();
        }
        self.loaded.targets.poll();
        self.loaded.words.check_next();
        let is_idle = !self.whole_machine && self.processes.have_ended();
        self.idle_surveys = if is_idle { self.idle_surveys + 1 } else { 0 };
        if !self.stopped {
            self.loaded.follow_cpus(&self.seen, &mut self.side_band);
            self.seen.clear();
        }
    }

    /// Forgets processes whose end was not reported, or was reported before their start: each CPU's reports come in a
    /// ring of its own. A process that has ended since the last search may still have samples.
    fn sweep(&mut self) {
        let Ok(existing) = reader::remote::process::processes() else {
            return;
        };
        let existing: HashSet<i32, RandomState> = existing.into_iter().collect();
        let pids = self.processes.pending();
        let pids = pids.chain(self.loaded.unwinding.processes());
        let gone = pids.filter(|pid| !existing.contains(pid)).collect();
        let before = std::mem::replace(&mut self.gone, gone);
        for pid in before.intersection(&self.gone) {
            self.processes.forget_pending(*pid);
            self.loaded.unwinding.forget(*pid);
        }
    }

    pub(crate) fn reset_catalog(&mut self) {
        self.processes.reset_catalog();
    }

    /// When sampling started, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    pub(crate) fn files(&self) -> &ModuleFiles {
        self.processes.files()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.processes.counts()
    }

    pub(crate) fn incomplete_stacks(&self) -> Vec<IncompleteStacks> {
        self.processes.places.sorted()
    }

    pub(crate) fn incomplete_steps(&self) -> Vec<IncompleteSteps> {
        self.processes.reasons.sorted()
    }

    /// Why the kernel does not report mappings, if it does not.
    pub(crate) fn without_reports(&self) -> Option<&io::Error> {
        self.without_reports.as_ref()
    }

    /// Why stacks are walked by frame pointers alone, if they are.
    pub(crate) fn without_tables(&self) -> Option<&Refusal> {
        self.loaded.without_tables.as_ref()
    }

    /// Whether drains have had only samples of native code for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        self.last_change.elapsed() > QUIET
    }

    /// Why stacks have fewer frames, if they have.
    pub(crate) fn without_loops(&self) -> Option<&Refusal> {
        self.loaded.without_loops.as_ref()
    }

    /// Maximum number of frames of a user stack.
    pub(crate) fn max_frames(&self) -> usize {
        self.loaded.max_frames()
    }

    /// Time and runs of the program, if the kernel counts them.
    pub(crate) fn kernel_time(&self) -> Option<(Duration, u64)> {
        let info = self.loaded.info()?;
        (info.run_count() > 0).then(|| (info.run_time(), info.run_count()))
    }

    /// Whether any target is running. The program reports that a process has ended, unless it ended
    /// before the program knew it, or the event was lost. In that case, two consecutive surveys
    /// must find no running target: a child that it left behind may not be known yet.
    pub(crate) fn has_targets(&self) -> bool {
        self.whole_machine || self.idle_surveys < 2 && self.processes.any_but(&self.exiting[0])
    }

    /// Stops the clocks. Samples taken until then can still be drained.
    pub(crate) fn stop(&mut self) {
        self.loaded.clocks.stop();
        self.stopped = true;
    }
}

/// Configures the steps of a process. Returns their numbers, as a target has them.
fn configure_steps(
    configurations: &mut HashMap<MapData, StepKey, StepConfiguration>,
    pid: u32,
    steps: &[(u32, StepConfiguration)],
) -> u32 {
    for (step, configuration) in steps {
        let step = *step;
        // If the map is full, each sample says so (`step_outcome::UNCONFIGURED`).
        let _ = configurations.insert(StepKey { pid, step }, configuration, 0);
    }
    numbers(steps)
}

/// Removes the configurations of a process's steps.
fn forget_steps(
    configurations: &mut HashMap<MapData, StepKey, StepConfiguration>,
    steps: &BTreeMap<String, u32>,
    pid: u32,
) {
    for &step in steps.values() {
        // Most processes have none.
        let _ = configurations.remove(&StepKey { pid, step });
    }
}

/// Passes the kernel's new reports, which are of all processes, on to all that follow processes' memory. Whether
/// any was of a process that is followed.
fn pass_on(side_band: &mut SideBand, unwinding: &mut Unwinding, processes: &mut Processes) -> bool {
    let mut any = false;
    for report in side_band.read() {
        unwinding.note(&report);
        any |= processes.follows(report.pid);
        processes.report(report);
    }
    any
}

/// Converts an event to a sample.
fn sample(
    processes: &mut Processes,
    unwinding: &mut Unwinding,
    [user_stack, kernel_stack]: &mut [Vec<Frame>; 2],
    (steps, words): (&BTreeMap<String, u32>, &mut ThreadWords),
    head: &EventHead,
    parts: abi::Parts<'_>,
    catalog: &mut Catalog,
) -> Sample {
    let mut record = None;
    user_stack.clear();
    kernel_stack.clear();
    let mut incomplete = head.flags & flag::CUT_STEPS != 0;
    let mut unresolved = false;
    let mut runtimes = Vec::new();
    // Once the steps are configured, each sample has a part for each step.
    let mut is_early = !incomplete;
    let (mut end, mut is_checked, mut has_all_mappings) = (None, false, false);
    for part in parts {
        match part.kind {
            part::RECORD => record = Some(part.bytes),
            part::USER_STACK => {
                // Without tables, the program does not check what it reads.
                is_checked = part.outcome != stack_end::BY_FRAME_POINTERS;
                has_all_mappings = part.outcome & stack_end::ALL_MAPPINGS != 0;
                end = Some(match is_checked {
                    true => stack_end::of(part.outcome),
                    false if part.bytes.len() < MAX_UNCHECKED_STACK => StackEnd::FramePointers,
                    false => StackEnd::Limit,
                });
                read_user_stack(user_stack, part.bytes, is_checked);
            }
            part::KERNEL_STACK => read_stack(kernel_stack, part.bytes),
            kind if kind < part::STEP => {}
            kind => {
                is_early = false;
                let number = u32::from(kind - part::STEP);
                let step = steps.iter().find(|(_, known)| **known == number);
                let is_known = processes.knows_runtimes(head.pid as i32);
                match (part.outcome, step) {
                    (step_outcome::DONE, Some((name, _))) => {
                        let reading = processes.decode(head.pid as i32, name, part.bytes);
                        unresolved |= reading.is_none() && !is_known;
                        runtimes.extend(reading);
                    }
                    _ if !is_known => unresolved = true,
                    (step_outcome::UNKNOWN_THREAD, Some((name, _))) => {
                        let thread = ThreadKey {
                            pid: head.pid,
                            tid: head.tid,
                            step: number,
                        };
                        let find = || thread_word(processes, head, name, part.bytes);
                        match words.look_up(thread, head.time, find) {
                            Lookup::Late => unresolved = true,
                            Lookup::Without => {}
                            Lookup::Failed => incomplete = true,
                        }
                    }
                    (step_outcome::DONE, None) => {}
                    _ => incomplete = true,
                }
            }
        }
    }
    processes.counts.incomplete_steps += u64::from(incomplete);
    processes.counts.unresolved_threads += u64::from(unresolved);
    let context = abi::found(head.outcome, record);
    let context = context.and_then(|bytes| {
        let serial = head.serial;
        Found::Attached(Record { serial, bytes })
    });
    if let Some(end) = &mut end {
        let pid = head.pid as i32;
        if unwinding.lacks_mappings(pid, user_stack, *end)
            && let Some(process) = processes.running(pid)
        {
            unwinding.read(process);
        }
        *end = match is_checked {
            true => unwinding.explain(pid, user_stack, *end, head.time),
            false => unwinding.cut(pid, user_stack, *end),
        };
        if unwinding.lacks_room(pid, user_stack, *end, has_all_mappings) {
            *end = StackEnd::TooManyMappings;
        }
    }
    processes.counts.missing_stacks += u64::from(head.flags & flag::NO_USER_STACK != 0);
    let comm = name(&head.comm);
    let seen = Observation {
        time: head.time,
        cpu: head.cpu,
        pid: head.pid as i32,
        tid: head.tid as i32,
        comm: &comm,
        context,
        runtimes,
        is_early,
        user_stack,
        stack_end: end,
        kernel_stack,
    };
    processes.sample(&seen, catalog)
}

/// Finds the word that a step has asked for. `part` is the thread pointer.
fn thread_word(
    processes: &mut Processes,
    head: &EventHead,
    step: &str,
    part: &[u8],
) -> Result<Option<u64>, RuntimeError> {
    let pointer = part.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    let pointer = pointer.ok_or_else(|| RuntimeError::new("a step has asked for no thread"))?;
    let thread = ThreadView::new(head.tid as i32, pointer);
    processes.thread_word(head.pid as i32, step, thread)
}

/// A thread's name as the kernel stores it: NUL-terminated.
pub(super) fn name(comm: &[u8; 16]) -> std::borrow::Cow<'_, str> {
    let end = comm.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&comm[..end.unwrap_or(comm.len())])
}

/// Frames of a user stack whose interrupted ones are marked if `has_marks`.
fn read_user_stack(to: &mut Vec<Frame>, bytes: &[u8], has_marks: bool) {
    read_stack(to, bytes);
    if !has_marks {
        return;
    }
    for frame in &mut *to {
        if let Frame::Native { address, .. } = *frame
            && address & FRAME_INTERRUPTED != 0
        {
            *frame = Frame::instruction(address & !FRAME_INTERRUPTED);
        }
    }
    Frame::mark_signal_returns(to);
}

fn read_stack(to: &mut Vec<Frame>, bytes: &[u8]) {
    let frame = |(depth, word): (usize, &[u8])| {
        let address = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        Frame::native(depth, address)
    };
    to.extend(bytes.chunks_exact(8).enumerate().map(frame));
}

#[cfg(test)]
mod tests;
