//! The language runtimes of a process, which is stopped as a whole if they need that.

use std::sync::Arc;
use std::time::Instant;

use otelctx_remote as remote;
use remote::stop::{Stopped, StoppedProcess};
use remote::threads::ThreadFiles;

use crate::runtime::{Present, Scope, TaskReading, scope};
use crate::{Error, Process, ThreadSupport};

/// Maximum number of threads that are not stopped, but have to sleep while tasks are read.
const MAX_SLEEPING: usize = 64;
/// Maximum number of times to read tasks, if one of these threads runs each time.
const MAX_READS: usize = 8;

/// The runtimes, and the process, which is resumed when this is dropped.
#[derive(Default)]
pub(super) struct StoppedRuntimes {
    pub(super) present: Arc<[Present]>,
    /// The process, if it was stopped as a whole.
    stopped: Option<StoppedProcess>,
}

impl StoppedRuntimes {
    /// Stops the whole process if necessary and permitted.
    pub(super) fn start(
        process: &Process,
        present: Arc<[Present]>,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let options = process.options();
        let is_whole = !present.is_empty() && (options.tasks || scope(&present) == Scope::Process);
        let stopped = match process.running() {
            Ok(running) if is_whole && !options.never_stop => Some(StoppedProcess::stop(
                running,
                options.stop_timeout,
                deadline,
            )?),
            _ => None,
        };
        Ok(Self { present, stopped })
    }

    /// A thread of a process that was stopped as a whole.
    pub(super) fn thread(&self, tid: i32) -> Option<&Stopped> {
        self.stopped.as_ref()?.thread(tid)
    }

    pub(super) fn tasks(&self, process: &Process, support: &ThreadSupport) -> Vec<TaskReading> {
        if self.present.is_empty() {
            return Vec::new();
        }
        let read = || process.tasks(&self.present, Some(support));
        let running = self.stopped.as_ref().map(StoppedProcess::running);
        let never = process.running().is_ok() && process.options().never_stop;
        let why = match running {
            None if never => "the process has to be stopped for that".to_owned(),
            None | Some([]) => return read(),
            Some(running @ [(_, why), ..]) => match read_asleep(process, running, &read) {
                Some(tasks) => return tasks,
                None => why.to_string(),
            },
        };
        let is_asked = process.options().tasks;
        let failed = |present: &Present| {
            let process = present.process.as_ref().ok()?;
            let is_whole = is_asked || process.scope() == Scope::Process;
            is_whole.then(|| TaskReading::failed(present.name, why.clone()))
        };
        self.present.iter().filter_map(failed).collect()
    }
}

/// Calls `read` while the threads sleep that were not stopped, because a stop would restart a
/// timeout. `None` if one runs each time.
fn read_asleep<T>(
    process: &Process,
    running: &[(i32, remote::Error)],
    read: &dyn Fn() -> T,
) -> Option<T> {
    let would_lengthen =
        |(_, why): &(i32, remote::Error)| matches!(why, remote::Error::WouldLengthen { .. });
    if running.len() > MAX_SLEEPING || !running.iter().all(would_lengthen) {
        return None;
    }
    let process = process.running().ok()?;
    let open = |(tid, _): &(i32, remote::Error)| ThreadFiles::open(process, *tid).ok();
    let mut files: Vec<ThreadFiles> = running.iter().map(open).collect::<Option<_>>()?;
    (0..MAX_READS).find_map(|_| all_asleep(&mut files, read))
}

/// Calls `read`, if all of these threads sleep meanwhile.
fn all_asleep<T>(threads: &mut [ThreadFiles], read: &dyn Fn() -> T) -> Option<T> {
    match threads.split_first_mut() {
        None => Some(read()),
        Some((first, others)) => first.read_asleep(|| all_asleep(others, read)).ok()??,
    }
}
