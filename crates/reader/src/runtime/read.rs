//! Reading threads and tasks with what runtimes know of them.

use otelctx_format::record::Context;
use otelctx_remote::{Memory, Stopped, Target};
use otelctx_sample::Found;

use super::{Chosen, Present, RuntimeError, RuntimeReading, Scope, Task, ThreadView, choose};
use crate::{Error, Process, StopReason, Thread};

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
    /// The tasks of its runtimes. The process must be stopped if it runs.
    #[must_use]
    pub fn tasks(&self, runtimes: &[Present]) -> Vec<TaskReading> {
        let target = self.as_target();
        target.map_or_else(Vec::new, |target| tasks(&*target, runtimes))
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
        let target = self.process().as_target();
        let variables = self.variables();
        let (Some(target), true) = (&target, variables.is_ok() || !runtimes.is_empty()) else {
            // There is nothing to read.
            return Ok(ThreadState {
                native: not_published(variables.map(|_| Found::Detached)),
                runtimes: Vec::new(),
                stop: None,
            });
        };
        let mut record = self.buffer();
        let mut read = |memory: &dyn Memory, pointer: u64| {
            let native = match &variables {
                Ok(variables) => variables.read(memory, self.tid(), pointer, &mut record),
                Err(_) => Ok(None),
            };
            let view = ThreadView::new(self.tid(), pointer);
            (native, super::read_thread(&**target, runtimes, view))
        };
        let mut stop = None;
        let read = match stopped {
            Some(stopped) => {
                stop = Some(StopReason::Runtime);
                Ok(read(&**target, stopped.thread_pointer()))
            }
            None => self.with_pointer(&mut stop, read),
        };
        let (native, runtimes) = match read {
            // What was saved of a thread may lack its registers.
            Err(error @ Error::NoThreadPointer { .. }) => (Err(error), Vec::new()),
            read => read?,
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
