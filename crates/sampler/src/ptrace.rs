//! Looking with ptrace, where eBPF is not permitted: at each tick the threads that run are stopped,
//! one after another, for as long as it takes to read record and stack.
//!
//! A sample stands for one period of processor time here as well. A thread that waits for a
//! processor looks like one that has it, so each thread is owed as many samples as the kernel says
//! that it has run, and gets no more.
//!
//! It looks from a thread of its own, which alone may touch what it traces. A tracer that dies lets
//! its tracees run on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_sample::format::record::Context;
use otelctx_sample::{Catalog, Counts, Found, Frame, Sample};
use reader::remote::process::processes;
use reader::remote::stop::{on_own_thread, resume_late};
use reader::remote::{Error as RemoteError, Memory, ProcessMemory, Stopped};

use crate::process::may_be_looked_at;
use crate::processes::{Look, Processes, Record};
use crate::{Error, Options, Targets, monotonic, nanoseconds};
use otelctx_track::stat::{Stat, TICK};

/// Looks that wait to be drained.
const QUEUE: usize = 16 * 1024;
/// How often it is seen to which processes there are, and which of them have run.
const SURVEY: Duration = Duration::from_millis(250);
/// How long to wait for a thread to stop. Those that run stop within microseconds, unless the
/// machine is busy.
const STOP_TIMEOUT: Duration = Duration::from_millis(50);
/// Frames that are kept of a stack, as many as the kernel keeps
/// (`kernel.perf_event_max_stack`).
const MOST_FRAMES: usize = 127;
/// Periods that a thread can be owed. Where more pass before it is found running, they are lost:
/// later looks would show something else.
const MOST_OWED: u64 = 8;

/// Looking with ptrace.
pub(crate) struct Recorder {
    processes: Processes,
    looks: Receiver<Owned>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    lost: u64,
}

/// What both threads know.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    lost: AtomicU64,
    /// Processes that are looked at.
    targets: AtomicUsize,
}

/// A look on its way.
struct Owned {
    time: u64,
    cpu: u32,
    pid: u32,
    tid: u32,
    comm: String,
    context: Found<Context>,
    stack: Vec<Frame>,
}

impl Recorder {
    pub(crate) fn start(
        options: &Options,
        reader_options: reader::Options,
        scan_timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let mut reader_options = reader_options;
        reader_options.stop_timeout = STOP_TIMEOUT;
        let mut looker = Looker {
            targets: HashMap::default(),
            all: options.targets == Targets::All,
            children: options.children,
            user_stacks: options.user_stacks,
            begin: nanoseconds(libc::CLOCK_BOOTTIME) / TICK,
            older: HashSet::default(),
            options: reader_options.clone(),
        };
        if let Targets::Processes(pids) = &options.targets {
            for pid in pids {
                let target = reader::Process::with_options(*pid, reader_options.clone())?;
                may_be_looked_at(target.target())?;
                may_be_stopped(target.target())?;
                let mut older = Vec::new();
                children(*pid, &mut older);
                looker
                    .older
                    .extend(older.into_iter().map(|pid| (pid, start(pid))));
                looker
                    .targets
                    .insert(*pid, Target::new(target, looker.begin));
            }
        }
        looker.survey();
        let shared = Arc::new(Shared::default());
        shared
            .targets
            .store(looker.targets.len(), Ordering::Relaxed);
        let (sender, looks) = sync_channel(QUEUE);
        let (for_thread, period) = (shared.clone(), Duration::from_nanos(options.period()));
        let thread = std::thread::Builder::new()
            .name("otelctx-ptrace".into())
            .spawn(move || looker.run(period, &sender, &for_thread))
            .map_err(Error::Clock)?;
        Ok(Self {
            processes: Processes::new(reader_options, scan_timeout),
            looks,
            shared,
            thread: Some(thread),
            lost: 0,
        })
    }

    pub(crate) fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut dyn FnMut(Sample)) {
        for look in self.looks.try_iter().take(QUEUE) {
            let context = look.context.as_ref();
            let context = context.and_then(|context| Found::Attached(Record::Context(context)));
            let look = Look {
                time: look.time,
                cpu: look.cpu,
                pid: look.pid,
                tid: look.tid,
                comm: &look.comm,
                context,
                user_stack: &look.stack,
                kernel_stack: &[],
            };
            on_sample(self.processes.sample(&look, catalog));
        }
        let lost = self.shared.lost.load(Ordering::Relaxed);
        self.processes.counts.lost += lost - self.lost;
        self.lost = lost;
        self.processes.look_again(catalog);
    }

    pub(crate) fn reset_catalog(&mut self) {
        self.processes.reset_catalog();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.processes.counts
    }

    pub(crate) fn has_targets(&self) -> bool {
        self.shared.targets.load(Ordering::Relaxed) > 0
    }

    /// Stops looking. What has come until then can still be drained.
    pub(crate) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say, and if it panicked it has said that.
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The right to read is the right to trace, unless a sandbox denies ptrace(2), or another traces
/// the process already.
fn may_be_stopped(process: &reader::remote::Process) -> Result<(), Error> {
    let stop = || Stopped::stop(process, process.pid(), STOP_TIMEOUT).map(drop);
    match on_own_thread(stop)? {
        Err(why @ (RemoteError::NotPermitted { .. } | RemoteError::AlreadyTraced { .. })) => {
            Err(reader::Error::from(why).into())
        }
        // It has ended, or does not stop just now.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// What the looking thread knows of a process.
struct Target {
    reader: reader::Process,
    memory: Option<ProcessMemory>,
    /// Ran since the survey before.
    runs: bool,
    /// Nanoseconds that it had run, at the survey.
    ran: Option<u64>,
    accounts: HashMap<i32, Account, RandomState>,
}

/// What a thread has run and has not been sampled for, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// In all its life.
    ran: u64,
    /// Below 0 after a sample in advance.
    owed: i64,
}

impl Account {
    /// What the thread runs counts from then on, when it had run so much.
    fn from(ran: u64) -> Self {
        Self { ran, owed: 0 }
    }

    /// Notes what the thread has run in all its life. Returns how many periods of it are lost.
    fn note(&mut self, ran: u64, period: u64) -> u64 {
        let new = ran.saturating_sub(self.ran);
        self.ran = ran;
        self.owed = self.owed.saturating_add_unsigned(new);
        let most = MOST_OWED * period;
        let excess = self.owed.saturating_sub_unsigned(most).max(0) as u64;
        let lost = excess / period;
        self.owed -= (lost * period) as i64;
        lost
    }

    fn is_due(&self) -> bool {
        self.owed > 0
    }

    fn sampled(&mut self, period: u64) {
        self.owed -= period as i64;
    }

    /// The sample did not come about: the thread is still owed it, or it will be lost and counted.
    fn missed(&mut self, period: u64) {
        self.owed += period as i64;
    }
}

impl Target {
    /// What its threads run from now on counts; if it started after `begin`, all that they have run.
    fn new(reader: reader::Process, begin: u64) -> Self {
        let pid = reader.target().pid();
        let mut accounts = HashMap::default();
        if start(pid).is_none_or(|start| start < begin) {
            let account = |tid| Some((tid, Account::from(run_time(pid, tid)?)));
            let threads = reader.target().thread_ids().unwrap_or_default();
            accounts.extend(threads.into_iter().filter_map(account));
        }
        Self {
            reader,
            memory: None,
            runs: true,
            ran: None,
            accounts,
        }
    }

    /// Sees whether it has run since the last time. False if it has ended.
    fn survey(&mut self) -> bool {
        let process = self.reader.target();
        let Some(stat) = Stat::of_process(process.pid()) else {
            return false;
        };
        let ran = stat.cpu_time();
        self.runs = ran != self.ran;
        self.ran = ran;
        // Its id may be another's.
        process.exists() && !stat.is_zombie()
    }
}

struct Looker {
    targets: HashMap<i32, Target, RandomState>,
    all: bool,
    children: bool,
    user_stacks: bool,
    /// When the recording began, in ticks since the machine did.
    begin: u64,
    /// What targets had started before, which was not asked for: process and start.
    older: HashSet<(i32, Option<u64>), RandomState>,
    options: reader::Options,
}

impl Looker {
    fn run(mut self, period: Duration, looks: &SyncSender<Owned>, shared: &Shared) {
        let mut tick = Instant::now();
        let mut surveyed = tick;
        while !shared.stop.load(Ordering::Relaxed) {
            tick += period;
            let now = Instant::now();
            if let Some(wait) = tick.checked_duration_since(now) {
                std::thread::sleep(wait);
            } else if now - tick > period {
                // What the threads have run meanwhile, they are owed.
                tick = now;
            }
            // Where no other runs, none would be stopped that lets go of it.
            resume_late();
            if surveyed.elapsed() >= SURVEY {
                self.survey();
                surveyed = Instant::now();
                shared.targets.store(self.targets.len(), Ordering::Relaxed);
            }
            for (pid, target) in &mut self.targets {
                if !target.runs {
                    continue;
                }
                let lost = target.look(*pid, self.user_stacks, period, &mut |look| {
                    if looks.try_send(look).is_err() {
                        shared.lost.fetch_add(1, Ordering::Relaxed);
                    }
                });
                shared.lost.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }

    /// Sees to which processes there are, and which of them have run since the last time.
    fn survey(&mut self) {
        let own = std::process::id() as i32;
        self.targets.retain(|_, target| target.survey());
        let mut new = Vec::new();
        if self.all {
            new = processes().unwrap_or_default();
        } else if self.children {
            self.targets.keys().for_each(|pid| children(*pid, &mut new));
        }
        for pid in new {
            if pid == own || self.targets.contains_key(&pid) {
                continue;
            }
            if self.older.contains(&(pid, start(pid))) {
                continue;
            }
            if let Ok(reader) = reader::Process::with_options(pid, self.options.clone()) {
                self.targets.insert(pid, Target::new(reader, self.begin));
            }
        }
    }
}

impl Target {
    /// Looks at each thread that runs and is owed a sample. Returns what is lost, in samples.
    fn look(
        &mut self,
        pid: i32,
        user_stacks: bool,
        period: Duration,
        found: &mut dyn FnMut(Owned),
    ) -> u64 {
        let period = period.as_nanos() as u64;
        let mut lost = 0;
        let Ok(threads) = self.reader.target().thread_ids() else {
            return lost;
        };
        if self.accounts.len() > threads.len() {
            let alive: HashSet<i32, RandomState> = threads.iter().copied().collect();
            self.accounts.retain(|tid, _| alive.contains(tid));
        }
        let mut running = Vec::new();
        for tid in threads {
            let Some(ran) = run_time(pid, tid) else {
                continue;
            };
            // It has started since the process was looked at first.
            let account = self.accounts.entry(tid).or_insert(Account::from(0));
            lost += account.note(ran, period);
            // Its processor, if it is running or waiting for one.
            if account.is_due()
                && let Some(cpu) = running_on(pid, tid)
            {
                account.sampled(period);
                running.push((tid, cpu));
            }
        }
        if running.is_empty() {
            return lost;
        }
        if user_stacks && self.memory.as_ref().is_none_or(is_gone) {
            self.memory = self.reader.target().memory().ok();
        }
        let memory = self.memory.as_ref();
        let Ok(threads) = self.reader.threads() else {
            return lost;
        };
        let mut missed = Vec::new();
        for (tid, cpu) in running {
            let Some(thread) = threads.iter().find(|thread| thread.tid() == tid) else {
                continue;
            };
            let (time, context, stack) = match thread.stop() {
                Ok(mut stopped) => {
                    let time = monotonic();
                    let stack = memory.filter(|_| user_stacks);
                    let stack = stack.map(|memory| walk(stopped.stopped(), memory));
                    let context = stopped.context().unwrap_or_else(|error| error.found());
                    (time, context, stack.unwrap_or_default())
                }
                Err(unreadable @ reader::Error::Unreadable { .. }) => {
                    let process = thread.process().target();
                    let stopped = Stopped::stop(process, tid, STOP_TIMEOUT);
                    let stopped = match stopped {
                        Ok(stopped) => stopped,
                        Err(why) => {
                            if matches!(why, RemoteError::StopTimeout { .. }) {
                                missed.push(tid);
                            }
                            continue;
                        }
                    };
                    let stack = memory.filter(|_| user_stacks);
                    let stack = stack.map(|memory| walk(&stopped, memory));
                    (monotonic(), unreadable.found(), stack.unwrap_or_default())
                }
                Err(reader::Error::Remote(RemoteError::StopTimeout { .. })) => {
                    missed.push(tid);
                    continue;
                }
                // It has ended.
                Err(_) => continue,
            };
            found(Owned {
                time,
                cpu,
                pid: pid as u32,
                tid: tid as u32,
                comm: thread
                    .name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                context,
                stack,
            });
        }
        for tid in missed {
            if let Some(account) = self.accounts.get_mut(&tid) {
                account.missed(period);
            }
        }
        lost
    }
}

fn is_gone(memory: &ProcessMemory) -> bool {
    let read = memory.read(0, &mut [0]);
    matches!(read, Err(reader::remote::MemoryError::Gone { .. }))
}

/// The stack by frame pointers: each frame begins with its caller's frame pointer, and the return
/// address lies behind it (x86-64 and aarch64 alike).
fn walk(stopped: &Stopped, memory: &ProcessMemory) -> Vec<Frame> {
    let registers = stopped.registers();
    let mut stack = vec![Frame::instruction(registers.instruction_pointer())];
    let mut frame = registers.frame_pointer();
    // Stacks grow down: a caller's frame lies above.
    let mut lowest = registers.stack_pointer();
    while stack.len() < MOST_FRAMES && frame >= lowest && frame.is_multiple_of(8) {
        let mut words = [0; 16];
        if memory.read(frame, &mut words).is_err() {
            break;
        }
        let (next, address) = words.split_at(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let (next, address) = (word(next), word(address));
        if address == 0 {
            break;
        }
        stack.push(Frame::return_address(address));
        lowest = frame + 16;
        frame = next;
    }
    stack
}

/// The processor of a thread that runs or is about to (fields 3 and 39 of its `stat`).
fn running_on(pid: i32, tid: i32) -> Option<u32> {
    let stat = Stat::of_thread(pid, tid)?;
    (stat.field(3)? == "R").then(|| stat.field(39)?.parse().ok())?
}

/// Nanoseconds that a thread has run (first field of its `schedstat`).
fn run_time(pid: i32, tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat"));
    let exact = |text: String| text.split_whitespace().next()?.parse().ok();
    match text.ok().and_then(exact) {
        // A kernel without CONFIG_SCHEDSTATS has no such file, or says 0.
        None | Some(0) => Stat::of_thread(pid, tid)?.cpu_time(),
        exact => exact,
    }
}

/// When a process started, in ticks since the machine did.
fn start(pid: i32) -> Option<u64> {
    Stat::of_process(pid)?.start()
}

/// Adds the processes that the threads of this one have started.
fn children(pid: i32, to: &mut Vec<i32>) {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for task in tasks.flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        to.extend(
            list.split_whitespace()
                .filter_map(|child| child.parse::<i32>().ok()),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 10;

    /// Looks once a period at a thread that is always found running or waiting, and has run so much
    /// in each. Returns the samples, and what is lost.
    fn looks(runs: &[u64]) -> (u64, u64) {
        let mut account = Account::from(7);
        let (mut ran, mut samples, mut lost) = (7, 0, 0);
        for run in runs {
            ran += run;
            lost += account.note(ran, PERIOD);
            if account.is_due() {
                account.sampled(PERIOD);
                samples += 1;
            }
        }
        (samples, lost)
    }

    #[test]
    fn waiting_for_a_processor_is_not_sampled() {
        assert_eq!(looks(&[PERIOD; 100]), (100, 0));
        // A quarter of a processor.
        assert_eq!(looks(&[3, 2, 3, 2].repeat(25)), (25, 0));
        assert_eq!(looks(&[0; 100]), (0, 0));
        // The kernel adds up late.
        assert_eq!(looks(&[0, 0, 0, 40].repeat(25)), (97, 0));
    }

    #[test]
    fn a_thread_that_never_stops_in_time_is_lost_and_counted() {
        let mut account = Account::from(0);
        let mut lost = 0;
        for ran in 1..=100 {
            lost += account.note(ran * PERIOD, PERIOD);
            assert!(account.is_due());
            account.sampled(PERIOD);
            account.missed(PERIOD);
        }
        assert_eq!(lost, 100 - MOST_OWED);
    }

    #[test]
    fn what_is_owed_for_long_is_lost_and_counted() {
        let mut runs = vec![0; 20];
        runs[0] = 100 * PERIOD;
        assert_eq!(looks(&runs), (MOST_OWED, 100 - MOST_OWED));
    }
}
