//! The readings of language runtimes: of a process, its threads and its tasks.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use otelctx_reader::format::process_context::Attributes;
use otelctx_reader::format::record::Context;
use otelctx_reader::remote::stop::{Stopped, StoppedProcess};
use otelctx_reader::remote::threads::ThreadFiles;
use otelctx_reader::runtime::{
    Present, RuntimeError, RuntimeReading, RuntimeThread, Scope, Task, TaskReading, ThreadState,
    choose, scope,
};
use otelctx_reader::sample::{NamedFrame, ReadStep};
use otelctx_reader::{Error, Found, Process, Thread, ThreadSupport, remote};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::inspection::InspectedThread;
use super::json::ContextJson;
use super::report::{MAX_CONTEXTS, Report, ThreadReport};
use crate::command::runtimes::sentence;
use crate::error::is_gone;
use crate::output::attributes::pairs;
use crate::output::json::{AttributeMap, OrError};
use crate::output::terminal::{Terminal, escape};
use crate::output::text::count;

/// The readings of runtimes, except those of threads.
#[derive(Debug, Default)]
pub(super) struct Runtimes {
    pub(super) present: Arc<[Present]>,
    pub(super) tasks: Vec<TaskReading>,
    /// Number of threads whose sources have contradictory contexts.
    pub(super) conflicts: usize,
}

/// Reads the threads of a process that contains runtimes.
pub(super) struct Reader<'p> {
    process: &'p Process,
    support: Arc<ThreadSupport>,
    present: Arc<[Present]>,
    /// The stopped process, if the runtimes need that.
    stopped: Option<StoppedProcess>,
}

impl<'p> Reader<'p> {
    /// Stops the whole process if necessary and permitted.
    pub(super) fn start(
        process: &'p Process,
        support: Arc<ThreadSupport>,
        present: Arc<[Present]>,
        until: Instant,
    ) -> Result<Self, Error> {
        let options = process.options();
        let timeout = options.stop_timeout;
        let is_whole = options.tasks || scope(&present) == Scope::Process;
        let stopped = match (is_whole, process.running()) {
            (true, Ok(running)) if !options.never_stop => {
                Some(StoppedProcess::stop(running, timeout, until)?)
            }
            _ => None,
        };
        Ok(Self {
            process,
            support,
            present,
            stopped,
        })
    }

    /// A thread of a process that was stopped as a whole.
    pub(super) fn stopped(&self, tid: i32) -> Option<&Stopped> {
        self.stopped.as_ref()?.thread(tid)
    }

    /// Reads a thread, which may be `stopped` already.
    pub(super) fn read(&self, thread: &Thread<'_>, stopped: Option<&Stopped>) -> InspectedThread {
        let stopped = stopped.or_else(|| self.stopped(thread.tid()));
        let state = thread.name().and_then(|name| {
            let state = thread.state(&self.present, stopped)?;
            Ok((name, state))
        });
        match state {
            Ok((name, state)) => InspectedThread::Read(report_of(thread.tid(), name, state)),
            Err(error) if is_gone(&error) => InspectedThread::Ended,
            Err(Error::Remote(remote::Error::KernelWorker { .. })) => InspectedThread::KernelWorker,
            Err(error @ Error::NotAsleep { .. }) => {
                let name = thread.name().ok().flatten();
                let runtimes = self.failed(&error.to_string());
                let result = ThreadReport::new(thread.tid(), name, Some(Err(error)));
                InspectedThread::Read(ThreadReport { runtimes, ..result })
            }
            Err(error) => {
                InspectedThread::Read(ThreadReport::new(thread.tid(), None, Some(Err(error))))
            }
        }
    }

    /// The readings for a thread that could not be read.
    fn failed(&self, why: &str) -> Vec<RuntimeReading> {
        let readable = self.present.iter().filter(|it| it.process.is_ok());
        let failed = |present: &Present| RuntimeReading {
            name: present.name,
            thread: Err(RuntimeError::new(why)),
        };
        readable.map(failed).collect()
    }

    /// Reads the tasks and resumes the process.
    pub(super) fn finish(self, reports: &[ThreadReport]) -> Runtimes {
        let tasks = self.tasks();
        Runtimes::of(self.present, tasks, reports)
    }

    fn tasks(&self) -> Vec<TaskReading> {
        let read = || self.process.tasks(&self.present, Some(&self.support));
        let running = self.stopped.as_ref().map(StoppedProcess::running);
        let never = self.process.running().is_ok() && self.process.options().never_stop;
        let why = match running {
            None if never => "the process has to be stopped for that".to_owned(),
            None | Some([]) => return read(),
            Some(running @ [(_, why), ..]) => match self.asleep_throughout(running, &read) {
                Some(tasks) => return tasks,
                None => why.to_string(),
            },
        };
        let is_asked = self.process.options().tasks;
        let failed = |present: &Present| {
            let process = present.process.as_ref().ok()?;
            let is_whole = is_asked || process.scope() == Scope::Process;
            is_whole.then(|| TaskReading::failed(present.name, why.clone()))
        };
        self.present.iter().filter_map(failed).collect()
    }

    /// What `read` returns, if the threads that were not stopped sleep meanwhile: an event loop sleeps in a
    /// system call whose timeout a stop would restart. `None` if one runs each time.
    fn asleep_throughout(
        &self,
        running: &[(i32, remote::Error)],
        read: &dyn Fn() -> Vec<TaskReading>,
    ) -> Option<Vec<TaskReading>> {
        let would_lengthen =
            |(_, why): &(i32, remote::Error)| matches!(why, remote::Error::WouldLengthen { .. });
        if running.len() > MAX_SLEEPING || !running.iter().all(would_lengthen) {
            return None;
        }
        let process = self.process.running().ok()?;
        let open = |(tid, _): &(i32, remote::Error)| ThreadFiles::open(process, *tid).ok();
        let mut files: Vec<ThreadFiles> = running.iter().map(open).collect::<Option<_>>()?;
        (0..MAX_READS).find_map(|_| all_asleep(&mut files, read))
    }

    /// Reads `threads` while they sleep, until `until` and up to [`MAX_CONTEXTS`]. Beyond that,
    /// each thread's reading says what is missing. `around` is called with what reads a thread of this ID, and
    /// returns the result.
    pub(super) fn asleep(
        self,
        threads: &[Thread<'_>],
        until: Instant,
        around: &mut dyn FnMut(i32, &mut dyn FnMut() -> InspectedThread) -> InspectedThread,
    ) -> Asleep {
        let mut kept = 0;
        let mut read = HashMap::new();
        for thread in threads {
            let tid = thread.tid();
            let pid = self.process.pid().unwrap_or_default();
            if let Some(why) = exceeded(pid, kept, until) {
                read.insert(tid, self.failed(&why));
            } else if let InspectedThread::Read(result) =
                around(tid, &mut || self.read(thread, None))
            {
                kept += size(&result.runtimes);
                read.insert(tid, result.runtimes);
            }
        }
        Asleep {
            tasks: self.tasks(),
            present: self.present,
            read,
        }
    }
}

/// Maximum number of threads that are not stopped, but have to sleep while tasks are read.
const MAX_SLEEPING: usize = 64;
/// Maximum number of times to read tasks, if one of these threads runs each time.
const MAX_READS: usize = 8;

/// What `read` returns, if all of these threads sleep meanwhile.
fn all_asleep<T>(threads: &mut [ThreadFiles], read: &dyn Fn() -> T) -> Option<T> {
    match threads.split_first_mut() {
        None => Some(read()),
        Some((first, others)) => first.read_asleep(|| all_asleep(others, read)).ok()??,
    }
}

/// The limit that keeps another thread from being read, if any: readings of `kept` bytes are kept.
fn exceeded(pid: i32, kept: usize, until: Instant) -> Option<String> {
    if kept > MAX_CONTEXTS {
        let limit = MAX_CONTEXTS >> 20;
        return Some(format!(
            "not read: what runtimes know of other threads takes more than {limit} MiB"
        ));
    }
    let action = "read what runtimes know of all threads";
    (Instant::now() >= until).then(|| Error::Deadline { pid, action }.to_string())
}

/// The readings of runtimes if no thread may be stopped.
pub(super) struct Asleep {
    present: Arc<[Present]>,
    tasks: Vec<TaskReading>,
    /// By thread ID.
    read: HashMap<i32, Vec<RuntimeReading>>,
}

impl Asleep {
    /// Adds the readings to the results of reading the threads by other means.
    pub(super) fn add_to(mut self, reports: &mut [ThreadReport]) -> Runtimes {
        for result in &mut *reports {
            let Some(runtimes) = self.read.remove(&result.tid) else {
                continue;
            };
            let (native, error) = match result.outcome.take() {
                Some(Ok(found)) => (found, None),
                // The failed step does not matter here.
                Some(Err(error)) => (Found::Unreadable(ReadStep::Record), Some(error)),
                None => (Found::NotPublished, None),
            };
            let chosen = choose(native, &runtimes);
            result.is_conflict = chosen.is_conflict;
            result.outcome = Some(match (error, chosen.context) {
                (Some(error), context) if context.attached().is_none() => Err(error),
                (_, context) => Ok(context),
            });
            result.runtimes = runtimes;
        }
        Runtimes::of(self.present, self.tasks, reports)
    }
}

impl Runtimes {
    fn of(present: Arc<[Present]>, tasks: Vec<TaskReading>, reports: &[ThreadReport]) -> Self {
        Self {
            present,
            tasks,
            conflicts: reports.iter().filter(|result| result.is_conflict).count(),
        }
    }

    fn facts(&self, name: &str) -> Attributes {
        let mut present = self.present.iter();
        let runtime = present.find(|present| present.name == name);
        let process = runtime.and_then(|present| present.process.as_ref().ok());
        process.map_or_else(Vec::new, |process| process.facts())
    }
}

/// The result of reading a thread.
pub(super) fn report_of(tid: i32, name: Option<OsString>, state: ThreadState) -> ThreadReport {
    let (outcome, is_conflict) = match state.choose() {
        Ok(chosen) => (Ok(chosen.context), chosen.is_conflict),
        Err(error) => (Err(error.to_string()), false),
    };
    ThreadReport {
        tid,
        name,
        outcome: Some(outcome),
        is_conflict,
        stop: state.stop,
        runtimes: state.runtimes,
        stack: None,
    }
}

/// Estimated memory of a thread's readings, in bytes.
pub(super) fn size(readings: &[RuntimeReading]) -> usize {
    let of = |reading: &RuntimeReading| match &reading.thread {
        Ok(thread) => thread.stack.frames().map(NamedFrame::memory).sum(),
        Err(error) => error.to_string().len(),
    };
    readings.iter().map(of).sum()
}

/// The readings of a thread, by the names of the runtimes.
pub(super) struct ThreadRuntimesJson<'r> {
    runtimes: &'r Runtimes,
    result: &'r ThreadReport,
}

impl<'r> ThreadRuntimesJson<'r> {
    pub(super) fn of(report: &'r Report, result: &'r ThreadReport) -> Self {
        Self {
            runtimes: &report.runtimes,
            result,
        }
    }
}

impl Serialize for ThreadRuntimesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for reading in &self.result.runtimes {
            let value = match &reading.thread {
                Ok(thread) => {
                    let facts = self.runtimes.facts(reading.name);
                    OrError::Value(ThreadRuntimeJson::of(thread, facts, self.result))
                }
                Err(error) => OrError::error(error),
            };
            map.serialize_entry(reading.name, &value)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct ThreadRuntimeJson<'r> {
    #[serde(flatten)]
    facts: AttributeMap,
    /// If another source has a context of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<ContextJson<'r>>,
    frames: Vec<FrameJson<'r>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl<'r> ThreadRuntimeJson<'r> {
    fn of(thread: &'r RuntimeThread, mut facts: Attributes, result: &ThreadReport) -> Self {
        // It may have another interpreter than most.
        facts.retain(|(name, _)| !thread.facts.iter().any(|own| own.0 == *name));
        facts.extend(thread.facts.iter().cloned());
        let is_other = |context: &&Context| match &result.outcome {
            Some(Ok(Found::Attached(chosen))) => chosen != *context,
            _ => true,
        };
        let context = thread.context.attached().filter(is_other);
        Self {
            facts: AttributeMap(facts),
            context: context.map(ContextJson::of),
            frames: thread.stack.frames().map(FrameJson::of).collect(),
            truncated: thread.stack.is_truncated,
        }
    }
}

#[derive(Serialize)]
struct FrameJson<'r> {
    function: &'r str,
    #[serde(skip_serializing_if = "str::is_empty")]
    qualname: &'r str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl<'r> FrameJson<'r> {
    fn of(frame: &'r NamedFrame) -> Self {
        Self {
            function: &frame.function,
            qualname: &frame.qualified_name,
            file: &frame.file,
            line: (frame.line > 0).then_some(frame.line),
        }
    }
}

/// Contexts that no thread is executing.
pub(super) struct TasksJson<'r>(pub(super) &'r [TaskReading]);

impl Serialize for TasksJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let readings = self.0.iter();
        serializer.collect_map(readings.map(|reading| {
            let tasks = match &reading.tasks {
                Ok(tasks) => OrError::Value(tasks.iter().map(TaskJson::of).collect::<Vec<_>>()),
                Err(error) => OrError::error(error),
            };
            (reading.name, tasks)
        }))
    }
}

#[derive(Serialize)]
struct TaskJson<'r> {
    id: u64,
    #[serde(flatten)]
    facts: AttributeMap,
    context: Option<OrError<ContextJson<'r>>>,
    frames: Vec<FrameJson<'r>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl<'r> TaskJson<'r> {
    fn of(task: &'r Task) -> Self {
        Self {
            id: task.id,
            facts: AttributeMap(task.facts.clone()),
            context: match &task.context {
                Found::Attached(context) => Some(OrError::Value(ContextJson::of(context))),
                Found::Unreadable(step) => Some(OrError::error(step)),
                _ => None,
            },
            frames: task.frames.iter().map(FrameJson::of).collect(),
            truncated: task.is_truncated,
        }
    }
}

/// The runtimes of a process, one per line, and the number of threads with contradictory contexts.
pub(super) fn head(runtimes: &Runtimes, terminal: &Terminal) -> String {
    let mut text = String::new();
    for present in &*runtimes.present {
        text += &terminal.sentence("  runtime   ", &sentence(present));
    }
    if runtimes.conflicts > 0 {
        let sentence = format!(
            "{} contexts from several sources with different IDs; the native record is shown",
            count(runtimes.conflicts, "thread has", "threads have")
        );
        text += &terminal.sentence("  conflict  ", &sentence);
    }
    text
}

/// The frames of each thread that a runtime knows, unless they are part of its stack, and of each
/// task, with its context.
pub(super) fn frames(report: &Report) -> String {
    let mut text = String::new();
    for result in &report.reports {
        for reading in &result.runtimes {
            let (tid, name) = (result.tid, reading.name);
            match &reading.thread {
                // Its context is all that the runtime knows.
                Ok(thread) if thread.facts.is_empty() && thread.stack.calls.is_empty() => {}
                Ok(thread) => {
                    let facts = facts(&thread.facts);
                    let _ = write!(text, "\n  thread {tid}  {name}{facts}\n");
                    let is_in_stack = !thread.stack.interpreter.is_empty();
                    if !(is_in_stack && matches!(result.stack, Some(Ok(_)))) {
                        add_frames(&mut text, thread.stack.frames());
                    }
                    if thread.stack.is_truncated {
                        text += "    and more\n";
                    }
                }
                Err(error) => {
                    let error = escape(&error.to_string());
                    let _ = write!(text, "\n  thread {tid}  {name} can't be read: {error}\n");
                }
            }
        }
    }
    for reading in &report.runtimes.tasks {
        let name = reading.name;
        match &reading.tasks {
            Ok(tasks) => {
                for task in tasks {
                    let (context, facts) = (context(&task.context), facts(&task.facts));
                    let _ = write!(text, "\n  task {}  {name}{facts}  {context}\n", task.id);
                    add_frames(&mut text, task.frames.iter());
                    if task.is_truncated {
                        text += "    and more\n";
                    }
                }
                if tasks.is_empty() {
                    let _ = write!(text, "\n  no tasks of {name}\n");
                }
                if let Some(missing) = &reading.missing {
                    let missing = escape(&missing.to_string());
                    let _ = write!(text, "\n  other tasks of {name} can't be read: {missing}\n");
                }
                if reading.is_truncated {
                    let _ = write!(text, "\n  and more tasks of {name}\n");
                }
            }
            Err(error) => {
                let error = escape(&error.to_string());
                let _ = write!(text, "\n  tasks of {name} can't be read: {error}\n");
            }
        }
    }
    text
}

fn facts(facts: &Attributes) -> String {
    let facts = pairs(facts);
    facts.iter().map(|fact| format!("  {fact}")).collect()
}

fn context(found: &Found<Context>) -> String {
    match found.attached() {
        Some(context) => super::text::context_cells(context).join("  "),
        None if matches!(found, Found::Unreadable(_)) => "unreadable".to_owned(),
        None => "none attached".to_owned(),
    }
}

fn add_frames<'f>(text: &mut String, frames: impl Iterator<Item = &'f NamedFrame>) {
    for frame in frames {
        let place = match (frame.file.is_empty(), frame.line) {
            (true, _) => String::new(),
            (false, 0) => format!("  {}", frame.file),
            (false, line) => format!("  {}:{line}", frame.file),
        };
        let _ = writeln!(text, "    {}{}", escape(frame.name()), escape(&place));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Both were called the deadline.
    #[test]
    fn a_thread_that_is_not_read_says_which_limit_was_exceeded() {
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(exceeded(7, MAX_CONTEXTS, later), None);
        let memory = exceeded(7, MAX_CONTEXTS + 1, later).unwrap();
        assert!(memory.ends_with(" takes more than 24 MiB"), "{memory}");
        let time = exceeded(7, 0, Instant::now()).unwrap();
        assert!(time.contains("deadline"), "{time}");
    }

    #[test]
    fn conflicts_are_counted_in_the_singular_and_plural() {
        let head = |conflicts| {
            let runtimes = Runtimes {
                conflicts,
                ..Runtimes::default()
            };
            head(&runtimes, &Terminal::with_width(None))
        };
        assert!(head(1).starts_with("  conflict  1 thread has contexts from "));
        assert!(head(2).starts_with("  conflict  2 threads have contexts from "));
    }
}
