//! The thread that stops running threads at each tick, one after another: ptrace ties a stopped
//! thread to the thread that stopped it. If the tracer dies, the kernel resumes its tracees.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, atomic::Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader::remote::process::{TICK, processes};
use otelctx_reader::remote::stop::resume_late;
use otelctx_reader::remote::{self, Process};
use otelctx_sample::StackEnd;

use super::account::EndedThreads;
use super::code::CodeReader;
use super::target::{DueThread, ReadOptions, Target, start_ticks};
use super::waits::{Subject, Waits};
use super::{Shared, WorkerSample};
use crate::waits::WaitEvent;
use crate::{Options, Targets, nanoseconds};

/// Time between two surveys: which processes exist, and which of them have run.
const SURVEY_INTERVAL: Duration = Duration::from_millis(250);
/// Time limit for a thread to stop. A running thread stops within microseconds; a thread that waits
/// for a CPU stops when it gets one.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_millis(20);
/// Time between two checks for threads that stop after the time limit.
const LATE_INTERVAL: Duration = Duration::from_millis(1);
/// Time limit for stopping threads in one tick. Samples of the others stay owed, and are lost if
/// many threads wait for a CPU.
const TICK_BUDGET: Duration = Duration::from_millis(50);

/// Maximum number of copied stacks on the way to the recorder, 64 KiB each.
const MAX_COPIES: usize = 256;

/// Number of samples that count as lost if processes or threads cannot be read, for example without
/// descriptors. The true number is unknown: the count says that samples are missing.
const UNKNOWN_LOSS: u64 = 1;

pub(super) enum Message {
    Sample(WorkerSample),
    Wait(WaitEvent),
    Exec(i32),
    Exited(i32),
}

pub(super) struct Worker {
    targets: HashMap<i32, Target, RandomState>,
    whole_machine: bool,
    with_children: bool,
    read_options: ReadOptions,
    /// See [`TICK_BUDGET`].
    budget: Duration,
    /// Time when the recording started, in ticks since boot.
    start: u64,
    /// Earlier children of targets, which were not requested: process ID and start time.
    older_children: HashSet<(i32, Option<u64>), RandomState>,
    ended: EndedThreads,
    /// CPU time of processes that are not traceable, in nanoseconds, less the counted periods.
    skipped: u64,
    code: CodeReader,
    /// Threads that run are sampled.
    on_cpu: bool,
    waits: Option<Waits>,
    without_second_walk: bool,
    messages: SyncSender<Message>,
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) fn new(
        options: &Options,
        max_record: usize,
        messages: SyncSender<Message>,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let mut code = CodeReader::start(options.holds_rows)?;
        if let Targets::Processes(pids) = &options.targets
            && options.user_stacks
            && !options.holds_rows
        {
            code.read_ahead(pids, Options::MAX_READ_AHEAD);
        }
        let read_options = ReadOptions {
            user_stacks: options.user_stacks,
            max_record,
            period: options.period(),
        };
        let wall = options.wall_frequency;
        Ok(Self {
            targets: HashMap::default(),
            whole_machine: options.targets == Targets::All,
            with_children: options.children,
            read_options,
            on_cpu: options.on_cpu,
            waits: wall.map(|frequency| Waits::new(frequency, read_options)),
            budget: TICK_BUDGET,
            start: nanoseconds(libc::CLOCK_BOOTTIME) / TICK,
            older_children: HashSet::default(),
            ended: EndedThreads::default(),
            skipped: 0,
            code,
            without_second_walk: options.without_second_walk,
            messages,
            shared,
        })
    }

    /// Starts sampling a process, and the children that it starts from now on.
    pub(super) fn add(&mut self, process: Process, options: &Options) -> Result<(), remote::Error> {
        let pid = process.pid();
        let children = process.children().into_iter();
        let older = children.filter(|child| !options.is_new_child(*child));
        let older = older.filter_map(|child| {
            let process = Process::open(child).ok()?;
            Some((child, start_ticks(&process)))
        });
        self.older_children.extend(older);
        let mut target = Target::new(process, self.start)?;
        if options.before_exec {
            // An exec is seen by the end of the memory that was opened before.
            target.refresh_memory();
        }
        self.targets.insert(pid, target);
        Ok(())
    }

    /// Opens a process. `None` for an earlier child of a target.
    fn open(&self, pid: i32) -> Result<Option<Target>, remote::Error> {
        let process = Process::open(pid)?;
        let is_older = || self.older_children.contains(&(pid, start_ticks(&process)));
        if !self.older_children.is_empty() && is_older() {
            return Ok(None);
        }
        Target::new(process, self.start).map(Some)
    }

    pub(super) fn run(mut self) {
        let period = Duration::from_nanos(self.read_options.period);
        let mut tick = Instant::now();
        let mut surveyed = tick;
        while !self.is_stopped() {
            tick += period;
            let now = Instant::now();
            if now.saturating_duration_since(tick) > period {
                // CPU time since the last tick stays owed.
                tick = now;
            }
            sleep_until(tick);
            if surveyed.elapsed() >= SURVEY_INTERVAL {
                self.survey();
                surveyed = Instant::now();
            }
            if self.on_cpu {
                self.tick();
            }
            self.scan_waits();
        }
        self.scan_rest();
        self.close();
    }

    fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn count_lost(&mut self, lost: u64) {
        let lost = lost + self.ended.take_lost(self.read_options.period);
        self.shared.lost.fetch_add(lost, Ordering::Relaxed);
    }

    fn count_skipped(&mut self) {
        let samples = self.skipped / self.read_options.period;
        self.skipped %= self.read_options.period;
        let not_traceable = &self.shared.not_traceable;
        not_traceable.fetch_add(samples, Ordering::Relaxed);
    }

    fn close(&mut self) {
        if !self.on_cpu {
            return;
        }
        let mut due = Vec::new();
        let mut lost = 0;
        for target in self.targets.values_mut() {
            if target.is_traceable {
                lost += match target.note_run_times(
                    self.read_options.period,
                    &mut due,
                    &mut self.ended,
                ) {
                    Ok(lost) => lost,
                    Err(remote::Error::NoSuchProcess { .. }) => 0,
                    Err(_) => UNKNOWN_LOSS,
                };
            } else {
                target.survey(&mut self.skipped, &mut self.ended);
            }
            target.close(&mut self.ended);
        }
        self.count_lost(lost);
        self.count_skipped();
    }

    fn tick(&mut self) {
        let (mut due, mut lost) = (Vec::new(), 0);
        for target in self.targets.values_mut().filter(|target| target.runs) {
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let noted = target.note_run_times(self.read_options.period, &mut due, &mut self.ended);
            lost += noted.unwrap_or(0);
        }
        self.count_lost(lost);
        // A thread that has just run most likely still has a CPU, and stops at once. One that did
        // not stop last time comes last.
        due.sort_unstable_by_key(|due| (due.has_failed, std::cmp::Reverse(due.ran)));
        let end = Instant::now() + self.budget;
        for due in due {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_stopped() {
                break;
            }
            self.sample(due, left);
        }
    }

    fn sample(&mut self, due: DueThread, left: Duration) {
        let Some(target) = self.targets.get_mut(&due.pid) else {
            return;
        };
        if target.refresh_memory() {
            self.executed(due.pid);
        }
        let configuration = self.shared.configurations().get(&due.pid).cloned();
        let with_stack = self.read_options.user_stacks;
        let code = with_stack.then(|| self.code.of(due.pid)).flatten();
        let may_copy = with_stack && self.may_copy(due.pid);
        let Some(target) = self.targets.get_mut(&due.pid) else {
            return;
        };
        let reading = target.sample(
            due.tid,
            left.min(STOP_TIMEOUT),
            self.read_options,
            configuration.as_deref(),
            code.as_deref(),
            may_copy,
        );
        // Without a reading, the sample stays owed: of a thread that is traced by another process
        // or never stops, it is lost and counted later.
        let Ok(reading) = reading else {
            return;
        };
        let stack = reading.stack.as_ref();
        if stack.is_some_and(|it| it.copied.is_some()) {
            self.shared.copies.fetch_add(1, Ordering::Relaxed);
        }
        let end = stack.and_then(|stack| stack.end);
        if end == Some(StackEnd::NotExecutable) {
            self.code.refresh(due.pid);
        }
        self.send(Message::Sample(WorkerSample {
            cpu: due.cpu,
            pid: due.pid,
            tid: due.tid,
            serial: configuration.map_or(0, |it| it.serial),
            reading,
        }));
    }

    /// Forgets the former program of a process.
    fn executed(&mut self, pid: i32) {
        self.code.forget(pid);
        self.shared.configurations().remove(&pid);
        if let Some(waits) = &mut self.waits {
            waits.forget(pid);
        }
        self.send(Message::Exec(pid));
    }

    /// Scans some of the threads off the CPU.
    fn scan_waits(&mut self) {
        let Some(waits) = &mut self.waits else {
            return;
        };
        if waits.is_round_due() {
            let targets = self.targets.values().filter(|it| it.is_traceable);
            let threads = targets.map(|it| {
                (
                    it.process.pid(),
                    it.process.thread_ids().unwrap_or_default(),
                )
            });
            waits.begin(threads);
            let shared = &self.shared.waits;
            shared.period.store(waits.period(), Ordering::Relaxed);
            shared
                .threads
                .store(waits.threads() as u64, Ordering::Relaxed);
        }
        for (pid, tid) in waits.next(self.read_options.period) {
            self.scan_wait(pid, tid);
        }
    }

    /// Scans threads once more: else, the time since the last scan would be missing.
    fn scan_rest(&mut self) {
        let rest = self.waits.as_mut().map_or_else(Vec::new, Waits::last);
        for (pid, tid) in rest {
            self.scan_wait(pid, tid);
        }
    }

    fn scan_wait(&mut self, pid: i32, tid: i32) {
        let Some(target) = self.targets.get_mut(&pid) else {
            return;
        };
        if target.refresh_memory() {
            self.executed(pid);
        }
        let configuration = self.shared.configurations().get(&pid).cloned();
        let (Some(target), Some(waits)) = (self.targets.get(&pid), &mut self.waits) else {
            return;
        };
        let subject = Subject {
            process: &target.process,
            memory: target.memory.as_ref(),
            configuration: configuration.as_deref(),
        };
        let seen = waits.scan(&subject, tid);
        let shared = &self.shared.waits;
        shared
            .read
            .fetch_add(seen.is_read.into(), Ordering::Relaxed);
        shared
            .torn
            .fetch_add(seen.is_torn.into(), Ordering::Relaxed);
        for event in seen.events {
            self.send(Message::Wait(event));
        }
    }

    /// Returns true if a stack of this process may be copied: its code may be newer than the code map.
    fn may_copy(&self, pid: i32) -> bool {
        let waiting = self.shared.copies.load(Ordering::Relaxed);
        !self.without_second_walk && waiting < MAX_COPIES && self.code.may_be_old(pid)
    }

    fn send(&self, message: Message) {
        let sample = match &message {
            Message::Sample(sample) => Some(sample.is_copied()),
            _ => None,
        };
        let is_wait = matches!(message, Message::Wait(_));
        if self.messages.try_send(message).is_ok() {
            return;
        }
        if is_wait {
            self.shared.waits.lost.fetch_add(1, Ordering::Relaxed);
        } else if let Some(is_copied) = sample {
            self.shared
                .copies
                .fetch_sub(is_copied.into(), Ordering::Relaxed);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.lost_process.store(true, Ordering::Relaxed);
        }
    }

    /// Lists processes, and determines which of them have run since the last survey.
    pub(super) fn survey(&mut self) {
        let mut exited = Vec::new();
        self.targets.retain(|pid, target| {
            let is_running = target.survey(&mut self.skipped, &mut self.ended);
            if !is_running {
                target.close(&mut self.ended);
                exited.push(*pid);
            }
            is_running
        });
        for pid in exited {
            self.code.forget(pid);
            self.shared.configurations().remove(&pid);
            self.send(Message::Exited(pid));
        }
        let own = std::process::id() as i32;
        let (mut new, mut is_complete) = (Vec::new(), true);
        if self.whole_machine {
            match processes() {
                Ok(pids) => new = pids,
                Err(_) => is_complete = false,
            }
        } else if self.with_children {
            let targets = self.targets.values();
            new = targets.flat_map(|it| it.process.children()).collect();
        }
        for pid in new {
            if pid == own || self.targets.contains_key(&pid) {
                continue;
            }
            match self.open(pid) {
                Ok(Some(target)) => drop(self.targets.insert(pid, target)),
                Ok(None) | Err(remote::Error::NoSuchProcess { .. }) => {}
                Err(_) => is_complete = false,
            }
        }
        self.count_lost(if is_complete { 0 } else { UNKNOWN_LOSS });
        self.count_skipped();
        let targets = self.targets.len();
        self.shared.targets.store(targets, Ordering::Relaxed);
    }
}

/// Sleeps until a tick, and resumes threads that stop late meanwhile.
fn sleep_until(tick: Instant) {
    loop {
        let is_any_late = resume_late();
        let wait = tick.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return;
        }
        let limit = if is_any_late { LATE_INTERVAL } else { wait };
        std::thread::sleep(wait.min(limit));
    }
}

#[cfg(test)]
mod tests;
