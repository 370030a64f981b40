//! Reading threads and tasks with what runtimes know of them: of a running process, and of a core
//! file.

use std::sync::Arc;

use otelctx_format::record::Context;
use otelctx_remote::core_file::CoreThread;
use otelctx_remote::{FileCache, Stopped, Target};
use otelctx_sample::Found;

use super::{Chosen, Present, RuntimeError, RuntimeReading, Scope, Task, ThreadView, choose};
use crate::sleeping::Asleep;
use crate::{Core, Error, Process, StopReason, Thread, ThreadSupport};

/// What was read of a thread at one moment.
#[derive(Debug)]
pub struct ThreadState {
    /// The native record; [`Found::NotPublished`] if the process publishes none.
    pub native: Result<Found<Context>, Error>,
    /// What runtimes say.
    pub runtimes: Vec<RuntimeReading>,
    /// Why the thread was stopped; `None` if it was not.
    pub stop: Option<StopReason>,
}

impl ThreadState {
    /// What the thread works on, of all sources. An error of the native record counts only if no
    /// runtime has a context.
    ///
    /// # Errors
    /// That of the native record.
    pub fn choose(&self) -> Result<Chosen, &Error> {
        let native = match &self.native {
            Ok(found) => found.clone(),
            Err(error) => error.found(),
        };
        let chosen = choose(native, &self.runtimes);
        match (&self.native, chosen.context.attached()) {
            (Err(error), None) => Err(error),
            _ => Ok(chosen),
        }
    }
}

/// Tasks of one runtime.
#[derive(Debug)]
pub struct TaskReading {
    /// [`Runtime::name`](super::Runtime::name).
    pub name: &'static str,
    /// Its tasks, or why they could not be read.
    pub tasks: Result<Vec<Task>, RuntimeError>,
}

/// Whether the whole process has to be stopped for these.
#[must_use]
pub fn scope(runtimes: &[Present]) -> Scope {
    let is_whole = |present: &Present| {
        let process = present.process.as_ref();
        process.is_ok_and(|process| process.scope() == Scope::Process)
    };
    match runtimes.iter().any(is_whole) {
        true => Scope::Process,
        false => Scope::Thread,
    }
}

/// Reads the tasks of runtimes whose scope is the process.
fn tasks(target: &dyn Target, runtimes: &[Present]) -> Vec<TaskReading> {
    let read = |present: &Present| {
        let process = present.process.as_ref().ok()?;
        (process.scope() == Scope::Process).then(|| TaskReading {
            name: present.name,
            tasks: process.tasks(target),
        })
    };
    runtimes.iter().filter_map(read).collect()
}

fn not_published(result: Result<Found<Context>, Error>) -> Result<Found<Context>, Error> {
    match result {
        Err(error) if error.found::<()>() == Found::NotPublished => Ok(Found::NotPublished),
        result => result,
    }
}

impl Process {
    /// The tasks of its runtimes. The process must be stopped.
    #[must_use]
    pub fn tasks(&self, runtimes: &[Present]) -> Vec<TaskReading> {
        let target = self.as_target();
        target.map_or_else(Vec::new, |target| tasks(&target, runtimes))
    }
}

impl Thread<'_> {
    /// Reads the native context of the thread and what runtimes know of it. `stopped` is the thread,
    /// if it was stopped already. Else it is read as by [`Thread::read`]: a thread that sleeps is not
    /// stopped.
    ///
    /// # Errors
    /// When it has to be stopped, and can't be.
    pub fn state(
        &self,
        runtimes: &[Present],
        stopped: Option<&Stopped>,
    ) -> Result<ThreadState, Error> {
        let (process, tid) = (self.process(), self.tid());
        let target = process.as_target();
        let variables = self.variables();
        let mut record = self.buffer();
        let mut read = |pointer: u64| {
            let Some(target) = &target else {
                return (Ok(None), Vec::new());
            };
            let native = match &variables {
                Ok(variables) => variables.read(target, tid, pointer, &mut record),
                Err(_) => Ok(None),
            };
            let view = ThreadView::new(tid, pointer);
            (native, super::read_thread(target, runtimes, view))
        };
        let ((native, runtimes), stop) = match stopped {
            Some(stopped) => (read(stopped.thread_pointer()), Some(StopReason::Runtime)),
            None => {
                let asleep = process.resolution().map(|resolution| {
                    let sleeping = process.sleeping();
                    sleeping.read(process, resolution, tid, |_, pointer| read(pointer))
                });
                match asleep.unwrap_or(Asleep::Unknown(None)) {
                    Asleep::Read(found) => (found, None),
                    asleep => {
                        let reason = self.stop_reason(&asleep)?;
                        (read(self.stop()?.thread_pointer()), Some(reason))
                    }
                }
            }
        };
        let native = match variables {
            Ok(variables) => {
                native.map(|size| self.decode(variables, size.map(|size| &record[..size])))
            }
            Err(error) => Err(error),
        };
        Ok(ThreadState {
            native: not_published(native),
            runtimes,
            stop,
        })
    }
}

impl Core {
    /// The language runtimes of [`Options::runtimes`](crate::Options::runtimes) that the process had.
    ///
    /// # Errors
    /// When the core cannot be read.
    pub fn runtimes(&self) -> Result<Arc<[Present]>, Error> {
        let runtimes = &self.options().runtimes;
        Ok(runtimes.probe(self.target(), &FileCache::new())?.into())
    }

    /// Reads the native context of one of its threads and what runtimes know of it.
    #[must_use]
    pub fn thread_state(
        &self,
        support: &ThreadSupport,
        runtimes: &[Present],
        thread: &CoreThread,
    ) -> ThreadState {
        let view = |pointer| ThreadView::new(thread.tid, pointer);
        let view = thread.thread_pointer.map(view);
        ThreadState {
            native: not_published(self.thread_context(support, thread)),
            runtimes: view.map_or_else(Vec::new, |view| {
                super::read_thread(self.target(), runtimes, view)
            }),
            stop: None,
        }
    }

    /// The tasks of its runtimes.
    #[must_use]
    pub fn tasks(&self, runtimes: &[Present]) -> Vec<TaskReading> {
        tasks(self.target(), runtimes)
    }
}
