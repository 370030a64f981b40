//! Converts the program's events to samples.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_reader::remote::Process;
use otelctx_sample::{Catalog, Sample};
use otelctx_track::ThreadStatus;

use super::abi::{EventHead, Target, kind, part};
use super::decode::{Decoder, Stacks};
use super::load::{KernelCounts, Loaded};
use super::side_band::SideBand;
use super::steps::{configure_steps, forget_steps, steps_of};
use super::targets::{places_of, target};
use super::waits::{Reader, Waits};
use crate::backend::Backend;
use crate::process::check_target;
use crate::processes::{Needs, Processes};
use crate::refusal::Refusal;
use crate::waits::WaitFacts;
use crate::{Error, INTERVAL, Options, Targets, monotonic};

/// Time without changes after which the recorder wakes up less often.
const QUIET: Duration = Duration::from_secs(1);
/// How often to read the counters of lost events, and to check which CPUs are online.
const SURVEY_INTERVAL: Duration = Duration::from_secs(1);
/// How often to search for processes whose end was not reported.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) struct Recorder {
    loaded: Loaded,
    /// The scans of threads off the CPU.
    waits: Option<Waits>,
    processes: Processes,
    side_band: SideBand,
    without_reports: Option<io::Error>,
    whole_machine: bool,
    /// Number of the newest configuration.
    serial: u32,
    /// The program's counters at the last survey.
    counted: KernelCounts,
    survey: Instant,
    /// Time of the last drain with more than samples of native code.
    last_change: Instant,
    /// Time when the clocks were started.
    started: u64,
    stopped: bool,
    /// Number of consecutive surveys that found every target ended.
    idle_surveys: u32,
    /// Processes reported as exiting in the last drain and in this one: the last of their samples
    /// come with the next drain.
    exiting: [Vec<i32>; 2],
    /// Time of the next search for processes whose end was not reported.
    sweep: Instant,
    /// Processes that had ended at the last search.
    gone: HashSet<i32, RandomState>,
    /// CPUs that have sent samples since the last survey.
    seen: HashSet<u32, RandomState>,
    stacks: Stacks,
}

impl Recorder {
    /// Loads the program, scans the requested processes, and starts the clocks. Of a whole machine,
    /// everything is sampled while its publishers are searched for.
    pub(crate) fn start(
        options: &Options,
        reader_options: reader::Options,
        scan_timeout: Option<Duration>,
    ) -> Result<Result<Self, Refusal>, Error> {
        let loaded = match Loaded::load(options) {
            Ok(loaded) => loaded,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let waits = options
            .wall_frequency
            .map(|frequency| Waits::start(options, frequency));
        let waits = waits.transpose().map_err(Error::Waits)?;
        // Without reports, all mappings are read from /proc.
        let (mut side_band, mut without_reports) = (SideBand::default(), None);
        if options.user_stacks {
            match loaded.side_band() {
                Ok(started) => side_band = started,
                Err(error) => without_reports = Some(error),
            }
        }
        let mut recorder = Self {
            loaded,
            waits,
            side_band,
            without_reports,
            processes: Processes::new(options, reader_options, scan_timeout),
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
            stacks: Stacks::default(),
        };
        if let Targets::Processes(pids) = &options.targets {
            for pid in pids {
                let process = reader::remote::Process::open(*pid)?;
                check_target(&process)?;
                recorder.processes.add(*pid)?;
                recorder.processes.read_code(*pid);
                recorder.loaded.unwinding.read(&process);
            }
            for pid in pids {
                recorder.processes.scan(*pid);
                recorder.configure(*pid);
            }
            recorder.add_new_children(pids, options);
        }
        if options.user_stacks {
            recorder.read_ahead(&options.code_files, Options::MAX_READ_AHEAD);
        }
        recorder.started = monotonic();
        if options.on_cpu {
            recorder.loaded.clocks.start().map_err(Error::Clock)?;
        }
        if recorder.whole_machine {
            for pid in recorder.processes.following.find_publishers()? {
                recorder.configure(pid);
            }
        }
        Ok(Ok(recorder))
    }

    /// Adds the children that targets have started since they were chosen, and theirs. From now on, the kernel reports new ones.
    fn add_new_children(&mut self, pids: &[i32], options: &Options) {
        let mut parents = pids.to_vec();
        while let Some(parent) = parents.pop() {
            let process = reader::remote::Process::open(parent);
            for child in process.map_or_else(|_| Vec::new(), |it| it.children()) {
                if !options.is_new_child(child) || self.processes.follows(child) {
                    continue;
                }
                // It may have ended, or its memory may not be readable.
                let added = reader::remote::Process::open(child).map_err(Error::from);
                let added = added.and_then(|process| {
                    check_target(&process)?;
                    self.processes.add(child)?;
                    self.processes.read_code(child);
                    self.loaded.unwinding.read(&process);
                    Ok(())
                });
                if added.is_ok() {
                    self.processes.scan(child);
                    self.configure(child);
                    parents.push(child);
                }
            }
        }
    }

    /// Waits for the rows of the requested processes, or of all running ones, and of these files, at most this long.
    fn read_ahead(&mut self, code_files: &[PathBuf], limit: Duration) {
        let end = Instant::now() + limit;
        for path in code_files {
            self.loaded.unwinding.expect_file(path);
        }
        if self.whole_machine {
            let running = reader::remote::process::processes().unwrap_or_default();
            for pid in running {
                // It may have ended.
                if let Ok(process) = reader::remote::Process::open(pid) {
                    self.loaded.unwinding.expect_process(&process, end);
                }
                // Before their ring is full.
                self.pass_on_reports(monotonic());
            }
        }
        while self.loaded.unwinding.awaits_rows() && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            self.loaded.unwinding.wait(left.min(INTERVAL));
            self.pass_on_reports(monotonic());
        }
    }

    /// Passes the kernel's new reports until this time, which are of all processes, on to all that follow processes'
    /// memory. Returns true if any was of a process that is followed.
    fn pass_on_reports(&mut self, until: u64) -> bool {
        let mut any = false;
        for report in self.side_band.read(until) {
            self.loaded.unwinding.note(&report);
            any |= self.processes.follows(report.pid);
            self.processes.report(report);
        }
        any
    }

    fn forget(&mut self, pid: i32) {
        if let Some(waits) = &mut self.waits {
            waits.remove(pid);
        }
        let pid = pid as u32;
        self.loaded.targets.remove(pid);
        forget_steps(&mut self.loaded.configurations, &self.loaded.steps, pid);
        self.loaded.words.forget(pid);
    }

    /// Updates the program's data about a process: where its threads keep their contexts, and the
    /// configurations of its steps.
    fn configure(&mut self, pid: i32) {
        self.note_walkers(pid);
        let Some(tracked) = self.processes.get_mut(pid) else {
            return;
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        let mut places = Vec::new();
        if let ThreadStatus::Readable(variables) = tracked.process.threads() {
            places = places_of(&variables.resolution.variables);
            tracked.data.keys.set(self.serial, variables.keys.clone());
        }
        let mut target = target(self.serial, &places);
        let steps = steps_of(tracked.process.runtimes(), &self.loaded.steps);
        target.steps = configure_steps(&mut self.loaded.configurations, pid as u32, &steps);
        for step in &steps {
            // If the kernel refuses it, each sample that needs it says so (`step_outcome::ABSENT`).
            let _ = self.loaded.load_step(step.number);
        }
        if let Some(waits) = &mut self.waits
            && let Some(reader) = tracked.process.reader()
        {
            let process = Process::open(pid).ok().filter(|_| reader.running().is_ok());
            let variables = match tracked.process.threads() {
                ThreadStatus::Readable(variables) => Some(variables.clone()),
                _ => None,
            };
            let runtimes = tracked.process.runtimes().clone();
            let reader = process.and_then(|it| Reader::new(it, self.serial, variables, runtimes));
            waits.insert(pid, target, reader);
        }
        let is_empty = target.places == 0 && target.steps == 0;
        if is_empty && self.whole_machine {
            self.forget(pid);
            return;
        }
        self.loaded.targets.insert(pid as u32, target);
        let tracked = self.processes.get_mut(pid);
        if !is_empty && tracked.is_some_and(|it| !it.process.has_same_modules()) {
            // It has executed another program, is loading a library, or has ended.
            if self.whole_machine {
                self.forget(pid);
            } else {
                self.loaded.targets.insert(pid as u32, Target::default());
            }
            self.processes.following.tracker.request_now(pid);
        }
    }

    /// Passes on which code runtimes of a process walk: its stacks are copied.
    fn note_walkers(&mut self, pid: i32) {
        let walkers = self.processes.walkers(pid);
        let ranges = walkers.as_ref().map_or(&[][..], |it| it.walkers.ranges());
        self.loaded.unwinding.set_walked(pid, ranges);
    }

    fn forked(&mut self, head: &EventHead) {
        let pid = head.pid as i32;
        self.loaded.targets.forked(head.pid);
        if let Some(waits) = &mut self.waits {
            waits.insert(pid, Target::default(), None);
        }
        // An earlier process had its ID.
        for pids in &mut self.exiting {
            pids.retain(|exiting| *exiting != pid);
        }
        self.processes.add_child(pid, head.detail as i32);
    }

    fn executed(&mut self, head: &EventHead) {
        let (pid, loaded) = (head.pid as i32, &mut self.loaded);
        self.processes.exec(pid, head.time);
        if let Some(waits) = &mut self.waits {
            waits.insert(pid, Target::default(), None);
        }
        // It had its parent's, or its former program's.
        forget_steps(&mut loaded.configurations, &loaded.steps, head.pid);
        loaded.unwinding.forget(pid);
        loaded.words.forget(head.pid);
        // So its rows are ready sooner than if its first sample asked for them.
        if let Some(process) = self.processes.running(pid) {
            loaded.unwinding.read(process);
        }
    }

    /// Forgets the processes that were reported as exiting in the last drain; of a whole machine,
    /// when the kernel has freed them.
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
        self.processes.tally.counts.lost += counts.lost_samples - before.lost_samples;
        self.processes.tally.counts.outside_namespace +=
            counts.outside_namespace - before.outside_namespace;
        if !self.whole_machine {
            self.processes.tally.counts.dropped_processes +=
                counts.dropped_processes - before.dropped_processes;
        }
        let lost_reports = std::mem::take(&mut self.side_band.lost);
        self.processes.tally.counts.lost_mappings += lost_reports;
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

    /// Forgets processes whose end was not reported, or was reported before their start, from
    /// another CPU. A process that has ended since the last search may still have samples.
    fn sweep(&mut self) {
        let Ok(existing) = reader::remote::process::processes() else {
            return;
        };
        let existing: HashSet<i32, RandomState> = existing.into_iter().collect();
        let pids = self.processes.untracked.processes.keys().copied();
        let pids = pids.chain(self.loaded.unwinding.processes());
        let gone = pids.filter(|pid| !existing.contains(pid)).collect();
        let before = std::mem::replace(&mut self.gone, gone);
        for pid in before.intersection(&self.gone) {
            self.processes.untracked.remove(*pid);
            self.loaded.unwinding.forget(*pid);
        }
    }
}

/// Passes on the waits that were seen until a time.
fn pass_on_waits(
    waits: &mut Waits,
    until: u64,
    processes: &mut Processes,
    catalog: &mut Catalog,
    on_sample: &mut dyn FnMut(Sample),
) {
    while let Some(event) = waits.next(until) {
        let thread = event.thread();
        if processes.is_before_exec(thread.0) {
            continue;
        }
        match processes.wait(event, catalog, on_sample) {
            Needs::Nothing => {}
            Needs::LongerStacks { copied } => waits.copy_more(thread, copied),
            Needs::AnotherWalk => waits.walk_again(thread.0),
        }
    }
}

impl Backend for Recorder {
    fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut dyn FnMut(Sample)) {
        // Without a limit, a recorder that gets too little CPU time would never finish.
        let now = monotonic();
        let until = self.waits.as_ref().map_or(now, |it| it.complete_until(now));
        self.loaded.events.begin();
        self.loaded.words.begin();
        self.processes.begin_drain();
        // Before the events, whose mappings are among these.
        let mut has_changes = self.pass_on_reports(until);
        if let Some(waits) = &mut self.waits {
            waits.begin();
        }
        while let Some((head, parts)) = self.loaded.events.next(until) {
            if let Some(waits) = &mut self.waits {
                pass_on_waits(waits, head.time, &mut self.processes, catalog, on_sample);
            }
            has_changes |= head.kind != kind::ON_CPU;
            match head.kind {
                kind::ON_CPU if self.processes.is_before_exec(head.pid as i32) => {}
                kind::ON_CPU => {
                    has_changes |= parts.clone().any(|part| part.kind >= part::STEP);
                    self.seen.insert(head.cpu);
                    let mut decoder = Decoder {
                        processes: &mut self.processes,
                        unwinding: &mut self.loaded.unwinding,
                        steps: &self.loaded.steps,
                        words: &mut self.loaded.words,
                        copies: &mut self.loaded.copies,
                        stacks: &mut self.stacks,
                    };
                    let sample = decoder.sample(&head, parts, catalog);
                    if self.waits.is_some() {
                        let thread = (head.pid as i32, head.tid as i32);
                        self.processes.waits.note_running(thread, &sample);
                    }
                    on_sample(sample);
                }
                // If it ended immediately, there is an event for that, too.
                kind::FORK => self.forked(&head),
                kind::EXEC => self.executed(&head),
                kind::EXIT => {
                    self.exiting[1].push(head.pid as i32);
                    self.loaded.targets.remove(head.pid);
                }
                _ => {}
            }
        }
        if let Some(waits) = &mut self.waits {
            pass_on_waits(waits, until, &mut self.processes, catalog, on_sample);
            waits.read_again();
        }
        self.processes.untracked.remove_ended();
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

    fn stop(&mut self) {
        self.loaded.clocks.stop();
        if let Some(waits) = &mut self.waits {
            waits.stop();
        }
        self.stopped = true;
    }

    fn set_period(&mut self, period: u64) -> bool {
        self.loaded.clocks.set_period(period);
        true
    }

    /// Two consecutive surveys must find no running target if an end was not reported: the event
    /// was lost, or the process ended before the program had it. A child may not be tracked yet.
    fn has_targets(&self) -> bool {
        self.whole_machine || self.idle_surveys < 2 && self.processes.any_but(&self.exiting[0])
    }

    fn started(&self) -> u64 {
        self.started
    }

    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn processes_mut(&mut self) -> &mut Processes {
        &mut self.processes
    }

    fn is_quiet(&self) -> bool {
        self.last_change.elapsed() > QUIET
    }

    fn max_frames(&self) -> usize {
        self.loaded.max_frames()
    }

    fn waits(&self) -> Option<WaitFacts> {
        self.waits.as_ref().map(Waits::facts)
    }

    fn without_loops(&self) -> Option<&Refusal> {
        self.loaded.sample.without_loops.as_ref()
    }

    fn without_tables(&self) -> Option<&Refusal> {
        self.loaded.sample.without_tables.as_ref()
    }

    fn without_reports(&self) -> Option<&io::Error> {
        self.without_reports.as_ref()
    }

    fn kernel_time(&self) -> Option<(Duration, u64)> {
        let info = self.loaded.info()?;
        (info.run_count() > 0).then(|| (info.run_time(), info.run_count()))
    }
}

#[cfg(test)]
mod tests;
