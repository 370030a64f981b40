//! Sampling with ptrace, if eBPF is not permitted: at each tick, running threads are stopped one
//! after another while record and stack are read.
//!
//! A worker thread takes the samples. The recorder determines where processes keep their contexts,
//! and passes that to the worker, as to the kernel program with eBPF.

mod account;
mod code;
mod stack;
mod target;
mod waits;
mod worker;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use otelctx_reader as reader;
use otelctx_sample::format::record;
use otelctx_sample::{Catalog, Found, Sample};
use otelctx_track::ThreadStatus;
use reader::remote::stop::{Late, check_traceable, take_late};
use reader::remote::{Error as RemoteError, Process};

use crate::backend::Backend;
use crate::observation::{Observation, Record};
use crate::options::WaitMethod;
use crate::process::check_target;
use crate::processes::Processes;
use crate::waits::{WaitEvent, WaitFacts};
use crate::{Error, Options, Targets, monotonic};
use target::{Configuration, Reading};
use worker::{Message, STOP_TIMEOUT, Worker};

/// Maximum number of messages from the worker in the queue.
const QUEUE: usize = 16 * 1024;

pub(crate) struct Recorder {
    processes: Processes,
    messages: Receiver<Message>,
    shared: Arc<Shared>,
    worker: Option<JoinHandle<Late>>,
    /// Time when sampling started.
    started: u64,
    /// Number of the newest configuration.
    serial: u32,
    lost: u64,
    scans_waits: bool,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    lost: AtomicU64,
    /// See [`otelctx_sample::Counts::not_traceable`].
    not_traceable: AtomicU64,
    /// A message about a process was lost.
    lost_process: AtomicBool,
    targets: AtomicUsize,
    /// Number of copied stacks in the queue.
    copies: AtomicUsize,
    waits: WaitCounters,
    /// By process ID.
    configurations: Mutex<HashMap<i32, Arc<Configuration>>>,
}

/// See [`WaitFacts`].
#[derive(Default)]
struct WaitCounters {
    /// In nanoseconds.
    period: AtomicU64,
    threads: AtomicU64,
    read: AtomicU64,
    torn: AtomicU64,
    lost: AtomicU64,
}

impl Shared {
    fn configurations(&self) -> MutexGuard<'_, HashMap<i32, Arc<Configuration>>> {
        let configurations = self.configurations.lock();
        configurations.unwrap_or_else(PoisonError::into_inner)
    }
}

struct WorkerSample {
    cpu: u32,
    pid: i32,
    tid: i32,
    /// The configuration under which the record was read.
    serial: u32,
    reading: Reading,
}

impl WorkerSample {
    fn is_copied(&self) -> bool {
        let stack = self.reading.stack.as_ref();
        stack.is_some_and(|stack| stack.copied.is_some())
    }
}

impl Recorder {
    pub(crate) fn start(
        options: &Options,
        mut reader_options: reader::Options,
        scan_timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        reader_options.stop_timeout = STOP_TIMEOUT;
        let max_record = reader_options
            .max_record
            .clamp(record::HEADER_SIZE, record::MAX_SIZE);
        let shared = Arc::new(Shared::default());
        let (sender, messages) = sync_channel(QUEUE);
        let mut recorder = Self {
            processes: Processes::new(options, reader_options, scan_timeout),
            messages,
            shared: shared.clone(),
            worker: None,
            started: 0,
            serial: 0,
            lost: 0,
            scans_waits: options.wall_frequency.is_some(),
        };
        let mut opened = Vec::new();
        let configured = match &options.targets {
            Targets::All => recorder.processes.following.find_publishers()?,
            Targets::Processes(pids) => {
                for pid in pids {
                    let process = Process::open(*pid)?;
                    check_target(&process)?;
                    check_traceable(&process).map_err(reader::Error::from)?;
                    recorder.processes.add(*pid)?;
                    recorder.processes.scan(*pid);
                    opened.push(process);
                }
                pids.clone()
            }
        };
        for pid in configured {
            recorder.configure(pid);
        }
        let worker = Worker::new(options, max_record, sender, shared);
        let mut worker = worker.map_err(RemoteError::NoOwnThread)?;
        for process in opened {
            worker.add(process, options)?;
        }
        worker.survey();
        recorder.started = monotonic();
        let thread = std::thread::Builder::new()
            .name("otelctx-ptrace".into())
            .spawn(move || {
                worker.run();
                take_late()
            })
            .map_err(RemoteError::NoOwnThread)?;
        recorder.worker = Some(thread);
        Ok(recorder)
    }

    fn configure(&mut self, pid: i32) {
        let Some(tracked) = self.processes.get_mut(pid) else {
            return;
        };
        let runtimes = tracked.process.runtimes().clone();
        let variables = match tracked.process.threads() {
            ThreadStatus::Readable(variables) => Some(variables.clone()),
            _ => None,
        };
        if variables.is_none() && runtimes.is_empty() {
            self.shared.configurations().remove(&pid);
            return;
        }
        self.serial = self.serial.wrapping_add(1).max(1);
        let serial = self.serial;
        if let Some(variables) = &variables {
            tracked.data.keys.set(serial, variables.keys.clone());
        }
        let configuration = Configuration {
            serial,
            variables,
            runtimes,
            walkers: self.processes.walkers(pid),
        };
        self.shared
            .configurations()
            .insert(pid, Arc::new(configuration));
    }

    /// Passes on new walkers of generated code: a runtime may have just begun.
    fn note_walkers(&mut self, pid: i32) {
        let walkers = self.processes.walkers(pid);
        let known = self.shared.configurations().get(&pid).cloned();
        let known = known.map(|it| it.walkers.as_ref().map(Arc::as_ptr));
        if known.is_some_and(|known| known != walkers.as_ref().map(Arc::as_ptr)) {
            self.configure(pid);
        }
    }

    /// Passes on what was seen of a thread off the CPU.
    fn wait(
        &mut self,
        mut event: WaitEvent,
        catalog: &mut Catalog,
        on_sample: &mut dyn FnMut(Sample),
    ) {
        let (pid, _) = event.thread();
        if self.processes.is_before_exec(pid) {
            return;
        }
        if let WaitEvent::New { snapshot, .. } = &mut event {
            self.processes.search_other_context(pid, snapshot.time);
            self.processes.decode_records(pid, &mut snapshot.runtimes);
        }
        // Their stacks are copied up to `STACK_ROOM`, longer ones too.
        let _ = self.processes.wait(event, catalog, on_sample);
    }

    fn sample(&mut self, taken: WorkerSample, catalog: &mut Catalog) -> Sample {
        let WorkerSample {
            serial,
            mut reading,
            ..
        } = taken;
        if let Some(stack) = &mut reading.stack
            && let Some(copied) = stack.copied.take()
        {
            self.shared.copies.fetch_sub(1, Ordering::Relaxed);
            if let Some(walked) = self.processes.walk_again(taken.pid, reading.time, *copied) {
                (stack.frames, stack.end) = (walked.frames.to_vec(), Some(walked.end));
            }
        }
        self.note_walkers(taken.pid);
        let stack = reading.stack.as_ref();
        self.processes.tally.counts.missing_stacks += u64::from(stack.is_none());
        self.processes.search_other_context(taken.pid, reading.time);
        self.processes
            .decode_records(taken.pid, &mut reading.runtimes);
        let seen = Observation {
            time: reading.time,
            cpu: taken.cpu,
            pid: taken.pid,
            tid: taken.tid,
            comm: &reading.comm,
            context: reading.context.as_ref().and_then(|bytes| {
                Found::Attached(Record {
                    serial,
                    variable: reading.variable,
                    bytes,
                })
            }),
            runtimes: reading.runtimes,
            is_executing: false,
            is_early: false,
            user_stack: stack.map_or(&[], |stack| &stack.frames),
            stack_end: stack.and_then(|stack| stack.end),
            kernel_stack: &[],
        };
        self.processes.sample(&seen, catalog)
    }
}

impl Backend for Recorder {
    fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut dyn FnMut(Sample)) {
        self.processes.begin_drain();
        for _ in 0..QUEUE {
            match self.messages.try_recv() {
                Ok(Message::Sample(taken)) if self.processes.is_before_exec(taken.pid) => {
                    let copies = usize::from(taken.is_copied());
                    self.shared.copies.fetch_sub(copies, Ordering::Relaxed);
                }
                Ok(Message::Sample(taken)) => on_sample(self.sample(taken, catalog)),
                Ok(Message::Wait(event)) => self.wait(event, catalog, on_sample),
                Ok(Message::Exec(pid)) => self.processes.exec(pid, u64::MAX),
                Ok(Message::Exited(pid)) => self.processes.exiting(pid),
                Err(_) => break,
            }
        }
        let lost = self.shared.lost.load(Ordering::Relaxed);
        self.processes.tally.counts.lost += lost - self.lost;
        self.lost = lost;
        self.processes.tally.counts.not_traceable =
            self.shared.not_traceable.load(Ordering::Relaxed);
        if self.shared.lost_process.swap(false, Ordering::Relaxed) {
            self.processes.request_all();
        }
        let changes = self.processes.poll(catalog);
        for pid in changes.ended {
            self.shared.configurations().remove(&pid);
        }
        for pid in changes.changed {
            self.configure(pid);
        }
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            // A panic was already printed.
            let _ = worker.join();
        }
    }

    fn waits(&self) -> Option<WaitFacts> {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let waits = &self.shared.waits;
        let period = load(&waits.period);
        self.scans_waits.then(|| WaitFacts {
            method: WaitMethod::Files,
            frequency: 1_000_000_000_u64.checked_div(period).unwrap_or(0) as u32,
            interval: Duration::from_nanos(period),
            threads: load(&waits.threads),
            read: load(&waits.read),
            torn: load(&waits.torn),
            lost: load(&waits.lost),
        })
    }

    fn has_targets(&self) -> bool {
        self.shared.targets.load(Ordering::Relaxed) > 0
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
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
