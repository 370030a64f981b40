//! Reading threads and tasks with what runtimes know of them: of a running process, and of a core
//! file.

use std::sync::Arc;

use otelctx_format::record::{self, Context};
use otelctx_remote::core_file::CoreThread;
use otelctx_remote::{FileCache, Stopped, Target};
use otelctx_sample::Found;

use super::{Chosen, Present, RuntimeError, RuntimeReading, Scope, Task, ThreadView, choose};
use crate::{Core, Error, Process, Thread, ThreadSupport};

/// What was read of a thread at one moment.
#[derive(Debug)]
pub struct ThreadState {
    /// The native record; [`Found::NotPublished`] if the process publishes none.
    pub native: Result<Found<Context>, Error>,
    /// What runtimes say.
    pub runtimes: Vec<RuntimeReading>,
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
    /// if it was stopped already; else it is stopped for this.
    ///
    /// # Errors
    /// When it can't be stopped.
    pub fn state(
        &self,
        runtimes: &[Present],
        stopped: Option<&Stopped>,
    ) -> Result<ThreadState, Error> {
        let own;
        let stopped = match stopped {
            Some(stopped) => stopped,
            None => {
                let timeout = self.process().options().stop_timeout;
                own = Stopped::stop(self.process().target(), self.tid(), timeout)?;
                &own
            }
        };
        let pointer = stopped.thread_pointer();
        let readings = self.process().as_target().map_or_else(Vec::new, |target| {
            super::read_thread(&target, runtimes, ThreadView::new(self.tid(), pointer))
        });
        Ok(ThreadState {
            native: not_published(self.native_context(pointer)),
            runtimes: readings,
        })
    }

    fn native_context(&self, thread_pointer: u64) -> Result<Found<Context>, Error> {
        let variables = self.variables()?;
        let size = self.process().options().max_record;
        let mut buffer = vec![0; size.clamp(record::HEADER_SIZE, record::MAX_SIZE)];
        let size = match self.process().open_memory() {
            Some(memory) => variables.read(memory, self.tid(), thread_pointer, &mut buffer),
            None => {
                let memory = self.process().target().memory()?;
                variables.read(&memory, self.tid(), thread_pointer, &mut buffer)
            }
        }?;
        Ok(self.decode(variables, size.map(|size| &buffer[..size])))
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
        }
    }

    /// The tasks of its runtimes.
    #[must_use]
    pub fn tasks(&self, runtimes: &[Present]) -> Vec<TaskReading> {
        tasks(self.target(), runtimes)
    }
}
