//! What language runtimes say of a process, its threads and its tasks.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use otelctx_reader::format::process_context::Attributes;
use otelctx_reader::format::record::Context;
use otelctx_reader::remote::stop::StoppedProcess;
use otelctx_reader::runtime::{
    Present, RuntimeError, RuntimeReading, RuntimeThread, Scope, Task, TaskReading, ThreadState,
    choose, scope,
};
use otelctx_reader::sample::{NamedFrame, ReadStep};
use otelctx_reader::{Error, Found, Process, Thread, remote};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::inspection::ThreadOutcome;
use super::json::ContextJson;
use super::report::{Look, MOST_CONTEXTS, Report};
use crate::command::runtimes::sentence;
use crate::error::is_gone;
use crate::output::attributes::pairs;
use crate::output::json::{AttributeMap, OrError};
use crate::output::terminal::{Terminal, escape};

/// What runtimes say, beside what they say of each thread.
#[derive(Debug, Default)]
pub(super) struct Runtimes {
    pub(super) present: Arc<[Present]>,
    pub(super) tasks: Vec<TaskReading>,
    /// Threads with contexts of several sources that contradict each other.
    pub(super) conflicts: usize,
}

/// Reads the threads of a process that has runtimes.
pub(super) struct Reader<'p> {
    process: &'p Process,
    present: Arc<[Present]>,
    /// If the runtimes want that.
    stopped: Option<StoppedProcess>,
}

impl<'p> Reader<'p> {
    /// Stops the whole process if that is necessary, and permitted.
    pub(super) fn start(
        process: &'p Process,
        present: Arc<[Present]>,
        until: Instant,
    ) -> Result<Self, Error> {
        let options = process.options();
        let timeout = options.stop_timeout;
        let stopped = match (scope(&present), process.running()) {
            (Scope::Process, Ok(running)) if !options.never_stop => {
                Some(StoppedProcess::stop(running, timeout, until)?)
            }
            _ => None,
        };
        Ok(Self {
            process,
            present,
            stopped,
        })
    }

    /// Reads a thread.
    pub(super) fn look(&self, thread: &Thread<'_>) -> ThreadOutcome {
        let stopped = self.stopped.as_ref();
        let stopped = stopped.and_then(|process| process.thread(thread.tid()));
        let state = thread.name().and_then(|name| {
            let state = thread.state(&self.present, stopped)?;
            Ok((name, state))
        });
        match state {
            Ok((name, state)) => ThreadOutcome::Read(look(thread.tid(), name, state)),
            Err(error) if is_gone(&error) => ThreadOutcome::Ended,
            Err(Error::Remote(remote::Error::KernelWorker { .. })) => ThreadOutcome::KernelWorker,
            Err(error @ Error::NotAsleep { .. }) => {
                let name = thread.name().ok().flatten();
                let runtimes = self.failed(&error);
                let look = Look::new(thread.tid(), name, Some(Err(error)));
                ThreadOutcome::Read(Look { runtimes, ..look })
            }
            Err(error) => ThreadOutcome::Read(Look::new(thread.tid(), None, Some(Err(error)))),
        }
    }

    /// What the runtimes say of a thread that could not be read.
    fn failed(&self, error: &Error) -> Vec<RuntimeReading> {
        let readable = self.present.iter().filter(|it| it.process.is_ok());
        let failed = |present: &Present| RuntimeReading {
            name: present.name,
            thread: Err(RuntimeError::new(error.to_string())),
        };
        readable.map(failed).collect()
    }

    /// Reads the tasks and resumes the process.
    pub(super) fn finish(self, looks: &[Look]) -> Runtimes {
        let tasks = self.tasks();
        Runtimes::of(self.present, tasks, looks)
    }

    fn tasks(&self) -> Vec<TaskReading> {
        let running = self.stopped.as_ref().map(StoppedProcess::running);
        let never = self.process.running().is_ok() && self.process.options().never_stop;
        let why = match running {
            None if never => "the process has to be stopped for that".to_owned(),
            None | Some([]) => return self.process.tasks(&self.present),
            Some([(_, why), ..]) => why.to_string(),
        };
        let failed = |present: &Present| {
            let process = present.process.as_ref().ok()?;
            let is_whole = process.scope() == Scope::Process;
            is_whole.then(|| TaskReading::failed(present.name, why.clone()))
        };
        self.present.iter().filter_map(failed).collect()
    }

    /// Reads `threads` while they sleep, until `until` and up to [`MOST_CONTEXTS`]. Beyond that, what
    /// is missing is said of each thread.
    pub(super) fn asleep(self, threads: &[Thread<'_>], until: Instant) -> Asleep {
        let mut kept = 0;
        let mut read = HashMap::new();
        for thread in threads {
            let tid = thread.tid();
            if Instant::now() >= until || kept > MOST_CONTEXTS {
                let pid = self.process.pid().unwrap_or_default();
                let action = "read what runtimes know of all threads";
                read.insert(tid, self.failed(&Error::Deadline { pid, action }));
            } else if let ThreadOutcome::Read(look) = self.look(thread) {
                kept += size(&look.runtimes);
                read.insert(tid, look.runtimes);
            }
        }
        Asleep {
            tasks: self.tasks(),
            present: self.present,
            read,
        }
    }
}

/// What runtimes say where no thread may be stopped.
pub(super) struct Asleep {
    present: Arc<[Present]>,
    tasks: Vec<TaskReading>,
    /// By thread.
    read: HashMap<i32, Vec<RuntimeReading>>,
}

impl Asleep {
    /// Adds this to what was read of the threads by other means.
    pub(super) fn add_to(mut self, looks: &mut [Look]) -> Runtimes {
        for look in &mut *looks {
            let Some(runtimes) = self.read.remove(&look.tid) else {
                continue;
            };
            let (native, error) = match look.outcome.take() {
                Some(Ok(found)) => (found, None),
                // Which step failed makes no difference here.
                Some(Err(error)) => (Found::Unreadable(ReadStep::Record), Some(error)),
                None => (Found::NotPublished, None),
            };
            let chosen = choose(native, &runtimes);
            look.is_conflict = chosen.is_conflict;
            look.outcome = Some(match (error, chosen.context) {
                (Some(error), context) if context.attached().is_none() => Err(error),
                (_, context) => Ok(context),
            });
            look.runtimes = runtimes;
        }
        Runtimes::of(self.present, self.tasks, looks)
    }
}

impl Runtimes {
    fn of(present: Arc<[Present]>, tasks: Vec<TaskReading>, looks: &[Look]) -> Self {
        Self {
            present,
            tasks,
            conflicts: looks.iter().filter(|look| look.is_conflict).count(),
        }
    }

    fn facts(&self, name: &str) -> Attributes {
        let mut present = self.present.iter();
        let runtime = present.find(|present| present.name == name);
        let process = runtime.and_then(|present| present.process.as_ref().ok());
        process.map_or_else(Vec::new, |process| process.facts())
    }
}

/// A thread by what was read of it.
fn look(tid: i32, name: Option<OsString>, state: ThreadState) -> Look {
    let (outcome, is_conflict) = match state.choose() {
        Ok(chosen) => (Ok(chosen.context), chosen.is_conflict),
        Err(error) => (Err(error.to_string()), false),
    };
    Look {
        tid,
        name,
        outcome: Some(outcome),
        is_conflict,
        stop: state.stop,
        runtimes: state.runtimes,
    }
}

/// About how many bytes what runtimes say of a thread takes.
pub(super) fn size(readings: &[RuntimeReading]) -> usize {
    let of = |reading: &RuntimeReading| match &reading.thread {
        Ok(thread) => thread.stack.frames().map(NamedFrame::memory).sum(),
        Err(error) => error.to_string().len(),
    };
    readings.iter().map(of).sum()
}

/// What runtimes say of a thread, by the names of the runtimes.
pub(super) struct ThreadRuntimesJson<'r> {
    runtimes: &'r Runtimes,
    look: &'r Look,
}

impl<'r> ThreadRuntimesJson<'r> {
    pub(super) fn of(report: &'r Report, look: &'r Look) -> Self {
        Self {
            runtimes: &report.runtimes,
            look,
        }
    }
}

impl Serialize for ThreadRuntimesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for reading in &self.look.runtimes {
            let value = match &reading.thread {
                Ok(thread) => {
                    let facts = self.runtimes.facts(reading.name);
                    OrError::Value(ThreadRuntimeJson::of(thread, facts, self.look))
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
    /// Where another source had one of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<ContextJson<'r>>,
    frames: Vec<FrameJson<'r>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl<'r> ThreadRuntimeJson<'r> {
    fn of(thread: &'r RuntimeThread, mut facts: Attributes, look: &Look) -> Self {
        facts.extend(thread.facts.iter().cloned());
        let is_other = |context: &&Context| match &look.outcome {
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

/// Contexts that no thread has.
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
    context: Option<ContextJson<'r>>,
    frames: Vec<FrameJson<'r>>,
}

impl<'r> TaskJson<'r> {
    fn of(task: &'r Task) -> Self {
        Self {
            id: task.id,
            context: task.context.attached().map(ContextJson::of),
            frames: task.frames.iter().map(FrameJson::of).collect(),
        }
    }
}

/// The runtimes of a process, a line each, and how many threads have contexts that contradict each other.
pub(super) fn head(runtimes: &Runtimes, terminal: &Terminal) -> String {
    let mut text = String::new();
    for present in &*runtimes.present {
        text += &terminal.sentence("  runtime   ", &sentence(present));
    }
    if runtimes.conflicts > 0 {
        let sentence = format!(
            "{} threads have contexts from several sources with different IDs; the native record \
             is shown",
            runtimes.conflicts
        );
        text += &terminal.sentence("  conflict  ", &sentence);
    }
    text
}

/// The frames of each thread that a runtime knows, and of each task with its context.
pub(super) fn frames(report: &Report) -> String {
    let mut text = String::new();
    for look in &report.looks {
        for reading in &look.runtimes {
            let (tid, name) = (look.tid, reading.name);
            match &reading.thread {
                Ok(thread) => {
                    let facts = facts(&thread.facts);
                    let _ = write!(text, "\n  thread {tid}  {name}{facts}\n");
                    add_frames(&mut text, thread.stack.frames());
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
                    let context = context(&task.context);
                    let _ = write!(text, "\n  task {}  {name}  {context}\n", task.id);
                    add_frames(&mut text, task.frames.iter());
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
