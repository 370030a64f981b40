//! The thread that stops others: at each tick the running ones, one after another.
//!
//! ptrace binds a stopped thread to the OS thread that stopped it. A tracer that dies lets its
//! tracees run on.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, atomic::Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader::remote::process::{TICK, processes};
use otelctx_reader::remote::stop::resume_late;
use otelctx_reader::remote::{self, Process};

use super::account::Ended;
use super::target::{Due, Reading, Target, What, start_ticks};
use super::{Shared, Taken};
use crate::{Options, Targets, nanoseconds};

/// How often to see which processes there are, and which of them have run.
const SURVEY_INTERVAL: Duration = Duration::from_millis(250);
/// How long to wait for a thread to stop. One that runs stops within microseconds; one that waits
/// for a CPU stops when it gets one.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_millis(20);
/// How long threads are stopped in one tick. On a machine where many wait for a CPU the others stay
/// owed, and are lost in the end.
const TICK_BUDGET: Duration = Duration::from_millis(50);

/// What the thread tells the recorder.
pub(super) enum Message {
    /// A sample.
    Sample(Taken),
    /// A process has executed another program.
    Exec(i32),
    /// A process has ended.
    Exited(i32),
}

/// The thread's state.
pub(super) struct Worker {
    targets: HashMap<i32, Target, RandomState>,
    all: bool,
    children: bool,
    what: What,
    /// Nanoseconds.
    period: u64,
    /// Time to stop threads in one tick.
    budget: Duration,
    /// When the recording began, in ticks since boot.
    start: u64,
    /// Children that targets had before, and that were not asked for: process and start.
    older: HashSet<(i32, Option<u64>), RandomState>,
    ended: Ended,
    messages: SyncSender<Message>,
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) fn new(
        options: &Options,
        max_record: usize,
        messages: SyncSender<Message>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            targets: HashMap::default(),
            all: options.targets == Targets::All,
            children: options.children,
            what: What {
                user_stacks: options.user_stacks,
                max_record,
            },
            period: options.period(),
            budget: TICK_BUDGET,
            start: nanoseconds(libc::CLOCK_BOOTTIME) / TICK,
            older: HashSet::default(),
            ended: Ended::default(),
            messages,
            shared,
        }
    }

    /// Samples a process from now on, and the children that it starts from now on.
    pub(super) fn add(&mut self, process: Process) {
        let pid = process.pid();
        let older = process.children().into_iter().filter_map(|child| {
            let process = Process::open(child).ok()?;
            Some((child, start_ticks(&process)))
        });
        self.older.extend(older);
        self.targets.insert(pid, Target::new(process, self.start));
    }

    pub(super) fn run(mut self) {
        let period = Duration::from_nanos(self.period);
        let mut tick = Instant::now();
        let mut surveyed = tick;
        while !self.is_stopped() {
            tick += period;
            let now = Instant::now();
            if let Some(wait) = tick.checked_duration_since(now) {
                std::thread::sleep(wait);
            } else if now - tick > period {
                // What the threads have run meanwhile, they are owed.
                tick = now;
            }
            // Where no other thread runs none would be stopped, which resumes it.
            resume_late();
            if surveyed.elapsed() >= SURVEY_INTERVAL {
                self.survey();
                surveyed = Instant::now();
            }
            self.tick();
        }
        self.close();
    }

    fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn count_lost(&mut self, lost: u64) {
        let lost = lost + self.ended.take_lost(self.period);
        self.shared.lost.fetch_add(lost, Ordering::Relaxed);
    }

    /// Counts as lost what is owed in the end.
    fn close(&mut self) {
        let mut due = Vec::new();
        let mut lost = 0;
        for target in self.targets.values_mut() {
            lost += target.note_run_times(self.period, &mut due, &mut self.ended);
            target.close(&mut self.ended);
        }
        self.count_lost(lost);
    }

    /// Samples the threads that are owed a sample and run.
    fn tick(&mut self) {
        let (mut due, mut lost) = (Vec::new(), 0);
        for target in self.targets.values_mut().filter(|target| target.runs) {
            if self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
            lost += target.note_run_times(self.period, &mut due, &mut self.ended);
        }
        self.count_lost(lost);
        // Who has just run most likely still has a CPU, and stops at once. Who did not stop last time
        // must not keep the others from being sampled.
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

    fn sample(&mut self, due: Due, left: Duration) {
        let Some(target) = self.targets.get_mut(&due.pid) else {
            return;
        };
        if target.refresh_memory() {
            self.shared.configure(due.pid, None);
            self.send(Message::Exec(due.pid));
        }
        let configuration = self.shared.configuration(due.pid);
        let Some(target) = self.targets.get_mut(&due.pid) else {
            return;
        };
        let reading = target.sample(
            due.tid,
            left.min(STOP_TIMEOUT),
            self.what,
            configuration.as_deref(),
            self.period,
        );
        // Without a reading the thread is still owed the sample. If it is traced by another process,
        // or never stops, it will be lost and counted.
        let Ok(reading) = reading else {
            return;
        };
        let Reading {
            time,
            comm,
            context,
            runtimes,
            stack,
        } = reading;
        self.send(Message::Sample(Taken {
            time,
            cpu: due.cpu,
            pid: due.pid,
            tid: due.tid,
            comm,
            serial: configuration.map_or(0, |it| it.serial),
            context,
            runtimes,
            stack,
        }));
    }

    fn send(&self, message: Message) {
        let is_sample = matches!(message, Message::Sample(_));
        if self.messages.try_send(message).is_err() {
            if is_sample {
                self.shared.lost.fetch_add(1, Ordering::Relaxed);
            } else {
                self.shared.lost_process.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Finds out which processes there are, and which of them have run since the last time.
    pub(super) fn survey(&mut self) {
        let mut exited = Vec::new();
        self.targets.retain(|pid, target| {
            let is_there = target.survey();
            if !is_there {
                target.close(&mut self.ended);
                exited.push(*pid);
            }
            is_there
        });
        for pid in exited {
            self.shared.configure(pid, None);
            self.send(Message::Exited(pid));
        }
        let own = std::process::id() as i32;
        let mut new = Vec::new();
        if self.all {
            new = processes().unwrap_or_default();
        } else if self.children {
            new = self.targets.values().flat_map(Target::children).collect();
        }
        for pid in new {
            if pid == own || self.targets.contains_key(&pid) {
                continue;
            }
            let process: Result<Process, remote::Error> = Process::open(pid);
            let Ok(process) = process else {
                continue;
            };
            if self.older.is_empty() || !self.older.contains(&(pid, start_ticks(&process))) {
                self.targets.insert(pid, Target::new(process, self.start));
            }
        }
        let targets = self.targets.len();
        self.shared.targets.store(targets, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
