//! A thread, which is read while it sleeps or is stopped.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_format::record::DecodedContext;
use otelctx_remote as remote;
use otelctx_sample::Found;
use remote::threads::Batch;
use remote::{Memory, Stopped};

use super::Process;
use super::subject::Subject;
use crate::sleeping::Asleep;
use crate::{Error, ReadRecord, ThreadSupport, ThreadVariables};

/// Minimum time to wait for a thread to stop: once requested, it happens even if it is not awaited.
const MIN_STOP_TIMEOUT: Duration = Duration::from_millis(20);

/// Attempts to stop a thread that exists but cannot be traced.
const MAX_TRIES: usize = 3;

/// A thread of a [`Process`].
#[derive(Debug)]
pub struct Thread<'p> {
    process: &'p Process,
    pub(crate) support: Arc<ThreadSupport>,
    tid: i32,
}

impl<'p> Thread<'p> {
    pub(crate) fn new(process: &'p Process, support: Arc<ThreadSupport>, tid: i32) -> Self {
        Self {
            process,
            support,
            tid,
        }
    }

    /// Its ID in the reader's PID namespace.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// The process to which it belongs.
    #[must_use]
    pub fn process(&self) -> &'p Process {
        self.process
    }

    /// Its current name, at most 15 bytes, chosen by the process: escape it before printing it.
    /// `None` if a core file does not contain it.
    ///
    /// # Errors
    /// If the thread has exited.
    pub fn name(&self) -> Result<Option<OsString>, Error> {
        self.process.subject.thread_name(self.tid)
    }

    /// Stops the thread until the result is dropped. ptrace ties the stop to the calling OS thread.
    ///
    /// # Errors
    /// If it cannot be stopped. What the process publishes does not matter.
    pub fn stop(&self) -> Result<StoppedThread<'_>, Error> {
        // Do as much as possible before the stop.
        let mut record = self.process.record_buffer();
        let variables = self.variables();
        let mut ahead = self.rehearse(|memory, pointer| {
            let variables = variables.as_ref().ok()?;
            variables.read(memory, self.tid, pointer, &mut record).ok()
        });
        Ok(StoppedThread {
            thread: self,
            stopped: self.stop_and_read(&mut ahead)?,
            ahead,
            record,
        })
    }

    /// Reads the thread while it runs, to predict which memory a read in a stop needs.
    fn rehearse<T>(&self, read: impl FnOnce(&dyn Memory, u64) -> T) -> Batch {
        let mut ahead = Batch::default();
        if let Subject::Running { process, memory } = &self.process.subject
            && let (Some(memory), Some(resolution)) = (memory, self.process.resolution())
            && let sleeping = &self.process.sleeping
            && let Some(pointer) = sleeping.pointer((process, memory), resolution, self.tid)
        {
            let noted = ahead.over_all(memory);
            read(&noted, pointer);
            let ranges = noted.into_ranges();
            ahead.add(&ranges);
        }
        ahead
    }

    /// Stops the thread, and immediately reads `ahead`.
    fn stop_and_read(&self, ahead: &mut Batch) -> Result<Stopped, Error> {
        let options = self.process.options();
        let timeout = match options.deadline {
            None => options.stop_timeout,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::Deadline {
                        pid: self.process.id(),
                        action: "stop a thread",
                    });
                }
                left.max(MIN_STOP_TIMEOUT).min(options.stop_timeout)
            }
        };
        let process = self.process.running()?;
        // After an exec, reading the memory or the registers fails, or `modules_unchanged` returns false.
        let read = || {
            if let Some(memory) = self.process.open_memory() {
                ahead.read(memory);
            }
        };
        Ok(Stopped::stop_then(process, self.tid, timeout, read)?)
    }

    /// Reads its context. [`Self::read`] also returns whether the thread was stopped.
    ///
    /// # Errors
    /// If it cannot be stopped or read.
    pub fn context(&self) -> Result<Found<DecodedContext>, Error> {
        self.read().outcome
    }

    /// Reads its context. A running thread is stopped for a few microseconds, as is a sleeping
    /// thread whose thread pointer cannot be found otherwise, unless that would restart the timeout
    /// of its system call ([`Error::WouldLengthen`]).
    #[must_use]
    pub fn read(&self) -> Reading {
        let mut stop = None;
        let outcome = self.variables().and_then(|variables| {
            let mut record = self.process.record_buffer();
            let read = self.with_pointer(&mut stop, |memory, pointer| {
                variables.read(memory, self.tid, pointer, &mut record)
            })??;
            Ok(self.decode(variables, read, &record))
        });
        Reading { outcome, stop }
    }

    /// Calls `read` with the memory and the thread pointer while the thread executes nothing: it
    /// sleeps, or is stopped for the reason in `stop`. Only the last result counts.
    ///
    /// # Errors
    /// If it must be stopped, but cannot be.
    pub(crate) fn with_pointer<T>(
        &self,
        stop: &mut Option<StopReason>,
        mut read: impl FnMut(&dyn Memory, u64) -> T,
    ) -> Result<T, Error> {
        let (process, memory) = match &self.process.subject {
            Subject::Running {
                process,
                memory: Some(memory),
            } => (process, memory),
            Subject::Running { process, .. } => {
                let pid = process.pid();
                return Err(remote::Error::NoSuchProcess { pid }.into());
            }
            Subject::Saved(target) => {
                let pointer = target.thread(self.tid)?.thread_pointer;
                let pointer = pointer.ok_or(Error::NoThreadPointer { tid: self.tid })?;
                return Ok(read(&**target, pointer));
            }
        };
        let sleeping = &self.process.sleeping;
        let pid = process.pid();
        let mut read_once = |is_last: bool| {
            let asleep = match self.process.resolution() {
                Some(resolution) => {
                    sleeping.read((process, memory), resolution, self.tid, &mut read)
                }
                None => Asleep::Unknown(None),
            };
            let reason = match asleep {
                Asleep::Read(result) => return Ok(Some(result)),
                asleep => self.stop_reason(&asleep)?,
            };
            let mut ahead = self.rehearse(&mut read);
            // It may have gone to sleep since then, and this process may have waited for a CPU.
            let call = sleeping.call(self.tid).filter(|_| !is_last);
            if call.is_some_and(|call| call.is_lengthened_by_a_stop(pid)) {
                return Ok(None);
            }
            let stopped = self.stop_and_read(&mut ahead)?;
            *stop = Some(reason);
            let pointer = stopped.thread_pointer();
            let result = read(&ahead.over_all(memory), pointer);
            stopped.resume()?;
            sleeping.learn(memory, self.tid, pointer);
            Ok(Some(result))
        };
        for left in (0..MAX_TRIES).rev() {
            match read_once(left == 0) {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => {}
                // The thread still exists, so it has not ended.
                Err(Error::Remote(remote::Error::NoSuchThread { .. })) if self.exists() => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::NotStopped { tid: self.tid })
    }

    /// Returns why the thread must be stopped, after an attempt to read it asleep.
    ///
    /// # Errors
    /// If the thread must not be stopped, or the stop would restart a timeout.
    fn stop_reason<T>(&self, asleep: &Asleep<T>) -> Result<StopReason, Error> {
        if self.process.options().never_stop {
            return Err(Error::NotAsleep { tid: self.tid });
        }
        match asleep {
            Asleep::Unknown(Some(call)) if call.is_lengthened_by_a_stop(self.process.id()) => {
                Err(Error::WouldLengthen { tid: self.tid })
            }
            Asleep::Unknown(_) => Ok(StopReason::ThreadPointer),
            // If it sleeps now, its timeout has hardly begun.
            Asleep::Read(_) | Asleep::Ran => Ok(StopReason::Running),
        }
    }

    /// Returns true if the thread exists, and is not a zombie.
    fn exists(&self) -> bool {
        let process = self.process.running().ok();
        match process.map(|process| process.thread_state(self.tid)) {
            Some(Ok(state)) => !matches!(state, 'Z' | 'X'),
            Some(Err(error)) => !matches!(error, remote::Error::NoSuchThread { .. }),
            None => false,
        }
    }

    pub(crate) fn variables(&self) -> Result<&ThreadVariables, Error> {
        match &*self.support {
            ThreadSupport::Readable(variables) => Ok(variables),
            ThreadSupport::Unreadable(why) => Err(Error::Unreadable {
                pid: self.process.id(),
                why: why.clone(),
            }),
        }
    }

    pub(crate) fn decode(
        &self,
        variables: &ThreadVariables,
        read: Option<ReadRecord>,
        buffer: &[u8],
    ) -> Found<DecodedContext> {
        // A key may have been registered since the key map was read.
        variables.decode(read, buffer, |keys| self.process.newer_keys(keys))
    }
}

/// The result of reading a thread's context.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reading {
    /// The outcome.
    pub outcome: Result<Found<DecodedContext>, Error>,
    /// The reason if the thread was stopped.
    pub stop: Option<StopReason>,
}

/// The reason for stopping a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// It was running.
    Running,
    /// It was not running, but its thread pointer cannot be found without stopping it.
    ThreadPointer,
    /// A language runtime is read with it.
    Runtime,
    /// It was asleep, but its stack cannot be walked without all of its registers.
    Stack,
}

/// A stopped thread. Dropping this resumes it.
#[derive(Debug)]
pub struct StoppedThread<'t> {
    thread: &'t Thread<'t>,
    stopped: Stopped,
    /// Memory that was read together with the stop.
    ahead: Batch,
    record: Vec<u8>,
}

impl StoppedThread<'_> {
    /// Reads the thread's context.
    ///
    /// # Errors
    /// If its variable or record cannot be read, or the process publishes no thread contexts.
    pub fn context(&mut self) -> Result<Found<DecodedContext>, Error> {
        let variables = self.thread.variables()?;
        let (tid, thread_pointer) = (self.thread.tid, self.stopped.thread_pointer());
        let process = self.thread.process;
        // It was opened when the variables were resolved.
        let memory = process.open_memory().ok_or_else(|| {
            let pid = process.id();
            remote::Error::NoSuchProcess { pid }
        })?;
        let memory = self.ahead.over_all(memory);
        let read = variables.read(&memory, tid, thread_pointer, &mut self.record)?;
        Ok(self.thread.decode(variables, read, &self.record))
    }

    /// The thread pointer: fs base on x86-64, `TPIDR_EL0` on aarch64.
    #[must_use]
    pub fn thread_pointer(&self) -> u64 {
        self.stopped.thread_pointer()
    }

    /// The stopped thread, for its registers.
    #[must_use]
    pub fn stopped(&self) -> &Stopped {
        &self.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_process_s_memory_no_thread_is_detached() {
        let flags = ["-DLINKED", "-rdynamic"];
        let compiler = otelctx_fixtures::Compiler::gcc();
        let Some(program) = compiler.program(&["threads.c", "variable.c"], &flags) else {
            return;
        };
        let mut program = std::process::Command::new(program);
        let target = otelctx_fixtures::Target::spawn(&mut program);
        let options = crate::Options {
            any_schema: true,
            ..crate::Options::default()
        };
        let open = || Process::with_options(target.pid(), options.clone()).unwrap();
        let support = Arc::new(open().thread_support().unwrap());
        assert!(matches!(*support, ThreadSupport::Readable(_)));
        // Nothing was resolved through this one, so it has opened no memory.
        let process = open();
        let thread = Thread::new(&process, support, target.pid());
        let stopped = thread.stop().unwrap().context();
        for outcome in [stopped, thread.context()] {
            let Err(Error::Remote(remote::Error::NoSuchProcess { pid })) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(pid, target.pid());
        }
    }
}
