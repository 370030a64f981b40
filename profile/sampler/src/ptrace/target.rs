//! A process that is sampled with ptrace: its threads, and the samples owed to each of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_reader::ThreadVariables;
use otelctx_sample::Found;
use reader::remote::{Error, LiveProcess, Memory, MemoryError, Process, ProcessMemory, Stopped};
use reader::runtime::{Present, RuntimeReading, ThreadView, read_thread};

use otelctx_unwind::CodeMap;

use super::account::{Account, EndedThreads};
use super::stack::{Stack, walk};
use crate::monotonic;
use crate::waits::read_record;
use crate::walkers::LiveWalkers;

/// The facts for reading the threads of a process, as the recorder has determined them.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) serial: u32,
    /// `None` if the process publishes no native contexts.
    pub(super) variables: Option<ThreadVariables>,
    pub(super) runtimes: Arc<[Present]>,
    /// The ones that walk the code that they have generated.
    pub(super) walkers: Option<Arc<LiveWalkers>>,
}

#[derive(Debug)]
pub(super) struct Target {
    pub(super) process: Process,
    pub(super) memory: Option<ProcessMemory>,
    /// Its threads may be stopped. Otherwise, its CPU time counts as not traceable.
    pub(super) is_traceable: bool,
    /// The process ran between the last two surveys.
    pub(super) runs: bool,
    /// CPU time at the last survey, in nanoseconds.
    cpu_time: Option<u64>,
    accounts: HashMap<i32, Account, RandomState>,
}

/// A thread that is owed a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueThread {
    pub(super) pid: i32,
    pub(super) tid: i32,
    /// CPU that it runs on or waits for.
    pub(super) cpu: u32,
    /// CPU time since the last tick, in nanoseconds.
    pub(super) ran: u64,
    pub(super) has_failed: bool,
}

#[derive(Debug)]
pub(super) struct Reading {
    pub(super) time: u64,
    pub(super) comm: String,
    pub(super) context: Found<Vec<u8>>,
    /// The position of the variable that points to the record.
    pub(super) variable: usize,
    pub(super) runtimes: Vec<RuntimeReading>,
    /// `None` if the memory cannot be read.
    pub(super) stack: Option<Stack>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOptions {
    pub(super) user_stacks: bool,
    /// Maximum size of a record, in bytes.
    pub(super) max_record: usize,
    /// CPU time that a sample stands for, in nanoseconds.
    pub(super) period: u64,
}

impl Target {
    /// Creates a target. The CPU time of its threads counts from now on, or entirely if it started
    /// after `start`. Fails if the threads cannot be listed: their earlier CPU time must not count.
    pub(super) fn new(process: Process, start: u64) -> Result<Self, Error> {
        let is_traceable = is_traceable(&process);
        let is_older = start_ticks(&process).is_none_or(|ticks| ticks < start);
        let accounts = if is_older && is_traceable {
            accounts(&process)?
        } else {
            HashMap::default()
        };
        let cpu_time = if is_traceable {
            None
        } else if is_older {
            process.stat().ok().and_then(|stat| stat.cpu_time())
        } else {
            Some(0)
        };
        Ok(Self {
            process,
            memory: None,
            is_traceable,
            runs: is_traceable,
            cpu_time,
            accounts,
        })
    }

    /// Determines whether it has run since the last call. Returns false if it has ended. If it was
    /// not traceable, adds the nanoseconds that it has run to `skipped`, and checks that again.
    pub(super) fn survey(&mut self, skipped: &mut u64, ended: &mut EndedThreads) -> bool {
        let stat = match self.process.stat() {
            Ok(stat) => stat,
            Err(Error::NoSuchProcess { .. }) => return false,
            // The next survey adds what it runs until then.
            Err(_) => return true,
        };
        let cpu_time = stat.cpu_time();
        let has_run = cpu_time != self.cpu_time;
        if !self.is_traceable
            && let (Some(old), Some(new)) = (self.cpu_time, cpu_time)
        {
            *skipped += new.saturating_sub(old);
        }
        self.cpu_time = cpu_time;
        // For example, it has given up privileges, or executed a program without.
        if !self.is_traceable
            && has_run
            && is_traceable(&self.process)
            && let Ok(accounts) = accounts(&self.process)
        {
            self.close(ended);
            (self.accounts, self.is_traceable) = (accounts, true);
        }
        self.runs = self.is_traceable && has_run;
        !stat.is_zombie()
    }

    /// Updates the CPU time of its threads, and adds the running ones that are owed a sample.
    /// Returns the number of lost samples. If this fails, the time counts at the next call.
    pub(super) fn note_run_times(
        &mut self,
        period: u64,
        due: &mut Vec<DueThread>,
        ended: &mut EndedThreads,
    ) -> Result<u64, Error> {
        let pid = self.process.pid();
        let threads = self.process.thread_ids()?;
        let mut lost = 0;
        for &tid in &threads {
            let Some(run_time) = self.process.thread_cpu_time(tid) else {
                continue;
            };
            // A new thread, which started after the process was added.
            let account = self.accounts.entry(tid).or_insert(Account::from(0));
            let ran = account.note(run_time, period);
            lost += ran.lost;
            if account.is_due()
                && let Some(cpu) = running_on(&self.process, tid)
            {
                due.push(DueThread {
                    pid,
                    tid,
                    cpu,
                    ran: ran.time,
                    has_failed: account.has_failed,
                });
            }
        }
        if self.accounts.len() > threads.len() {
            let alive: HashSet<i32, RandomState> = threads.into_iter().collect();
            self.accounts.retain(|tid, account| {
                let is_alive = alive.contains(tid);
                if !is_alive {
                    ended.add(account);
                }
                is_alive
            });
        }
        Ok(lost)
    }

    /// Returns true if the process has executed another program since its memory was opened.
    fn is_memory_gone(&self) -> bool {
        let gone = |memory: &ProcessMemory| {
            matches!(memory.read(0, &mut [0]), Err(MemoryError::Gone { .. }))
        };
        self.memory.as_ref().is_some_and(gone)
    }

    /// Opens the memory if necessary. Returns true if the process has executed another program.
    pub(super) fn refresh_memory(&mut self) -> bool {
        let is_gone = self.is_memory_gone();
        if is_gone || self.memory.is_none() {
            self.memory = self.process.memory().ok();
        }
        // For example, it has executed a set-user-ID program.
        if is_gone && self.memory.is_none() && !is_traceable(&self.process) {
            (self.is_traceable, self.runs) = (false, false);
            self.cpu_time = self.process.stat().ok().and_then(|stat| stat.cpu_time());
        }
        is_gone
    }

    /// Stops a thread, reads it, and resumes it. If that fails, the sample is still owed. If `may_copy`, a stack is copied whose
    /// tables are not ready.
    pub(super) fn sample(
        &mut self,
        tid: i32,
        timeout: Duration,
        options: ReadOptions,
        configuration: Option<&Configuration>,
        code: Option<&CodeMap>,
        may_copy: bool,
    ) -> Result<Reading, Error> {
        // Before the thread is stopped: afterwards, it may execute another program.
        let name = self.process.thread_name(tid).unwrap_or_default();
        let mut stopped = Stopped::stop(&self.process, tid, timeout);
        if stopped.is_ok() && self.is_memory_gone() {
            let pid = self.process.pid();
            stopped = Err(Error::NoSuchProcess { pid });
        }
        let account = self.accounts.get_mut(&tid);
        if let Some(account) = account {
            match &stopped {
                Ok(_) => account.sampled(options.period),
                Err(_) => account.has_failed = true,
            }
        }
        let stopped = stopped?;
        let time = monotonic();
        let memory = self.memory.as_ref();
        let walkers = configuration.and_then(|it| it.walkers.as_deref());
        let mut stack = if options.user_stacks {
            memory.map(|memory| walk(&stopped, memory, code, walkers, may_copy))
        } else {
            Some(Stack::default())
        };
        let thread_pointer = stopped.thread_pointer();
        let runtimes = match (configuration, memory) {
            (Some(Configuration { runtimes, .. }), Some(memory)) if !runtimes.is_empty() => {
                let target = LiveProcess::new(&self.process, memory);
                read_thread(&target, runtimes, ThreadView::new(tid, thread_pointer))
            }
            _ => Vec::new(),
        };
        let variables = configuration.and_then(|it| it.variables.as_ref());
        let thread = (tid, thread_pointer);
        let (context, variable) = read_record(variables, memory, thread, options.max_record);
        drop(stopped);
        if let Some(stack) = &mut stack {
            stack.name(walkers);
        }
        Ok(Reading {
            time,
            comm: name.to_string_lossy().into_owned(),
            context,
            variable,
            runtimes,
            stack,
        })
    }

    /// Adds the accounts of its threads when the process or the recording ends.
    pub(super) fn close(&self, ended: &mut EndedThreads) {
        for account in self.accounts.values() {
            ended.add(account);
        }
    }
}

/// Creates accounts of the threads of a process, whose CPU time counts from now on.
fn accounts(process: &Process) -> Result<HashMap<i32, Account, RandomState>, Error> {
    let account = |tid| Some((tid, Account::from(process.thread_cpu_time(tid)?)));
    let threads = process.thread_ids()?;
    Ok(threads.into_iter().filter_map(account).collect())
}

/// Returns true if ptrace may stop the threads of a process. False for a kernel thread.
fn is_traceable(process: &Process) -> bool {
    let is_kernel_thread = process.status().is_ok_and(|status| status.kernel_thread);
    // Reading the memory takes the same permission (proc_pid_mem(5)).
    let is_refused = || matches!(process.memory(), Err(Error::NotPermitted { .. }));
    !is_kernel_thread && !is_refused()
}

/// Returns the CPU of a thread that is running or runnable (fields 3 and 39 of its `stat`).
fn running_on(process: &Process, tid: i32) -> Option<u32> {
    let stat = process.thread_stat(tid).ok()?;
    (stat.state() == 'R').then(|| stat.field(39)?.parse().ok())?
}

/// Returns the time when a process started, in ticks since boot.
pub(super) fn start_ticks(process: &Process) -> Option<u64> {
    process.stat().ok()?.start()
}
