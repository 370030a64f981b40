//! Tasks, which no thread executes now.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use otelctx_format::process_context::{Attributes, Value};
use otelctx_format::record::DecodedContext;
use otelctx_remote::Target;
use otelctx_sample::{Found, NamedFrame};

use super::{RuntimeError, RuntimeProcess};

/// Maximum number of tasks kept of one runtime in one process.
pub const MAX_TASKS: usize = 128 * 1024;
/// Maximum memory of these, in bytes: about 120,000 tasks with four attributes each that share their stacks, or 16,384 with
/// twenty frames each of their own.
pub const MAX_TASK_BYTES: usize = 96 << 20;

/// A context that no thread is executing now, and where its task will resume.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Task {
    /// The runtime's number for the task.
    pub id: u64,
    /// Its context.
    pub context: Found<DecodedContext>,
    /// The address of the native record (OTEP 4947) that threads publish while they execute the
    /// task, if any: the reader decodes it to `context`.
    pub record: Option<u64>,
    /// Other facts about the task: its name, its state, what it waits for.
    pub facts: Attributes,
    /// Its frames, innermost first. Many tasks wait in the same place: a runtime can share their frames.
    pub frames: Arc<[NamedFrame]>,
    /// Frames are missing.
    pub is_truncated: bool,
}

impl Task {
    /// Creates a task without frames, which publishes nothing.
    #[must_use]
    pub fn new(id: u64) -> Self {
        Self {
            id,
            context: Found::NotPublished,
            record: None,
            facts: Vec::new(),
            frames: Arc::default(),
            is_truncated: false,
        }
    }

    /// Estimated memory, in bytes. Frames that are shared count for who has made them.
    pub(crate) fn memory(&self) -> usize {
        let context = self.context.attached().map_or(0, |context| {
            let texts = context.attributes.iter();
            texts.map(|(key, value)| 48 + key.len() + value.len()).sum()
        });
        let frames = match Arc::strong_count(&self.frames) {
            1 => self.frames.iter().map(NamedFrame::memory).sum(),
            _ => 0,
        };
        let text = |value: &Value| match value {
            Value::String(text) => text.len(),
            _ => 0,
        };
        let facts = self.facts.iter().map(|(key, value)| {
            let value = match value {
                Value::Array(items) => items.iter().map(|it| size_of::<Value>() + text(it)).sum(),
                value => text(value),
            };
            size_of::<(String, Value)>() + key.len() + value
        });
        size_of::<Self>() + context + frames + facts.sum::<usize>()
    }
}

/// The tasks of a runtime.
#[derive(Debug)]
#[non_exhaustive]
pub struct TaskReading {
    /// [`Runtime::name`](super::Runtime::name).
    pub name: &'static str,
    /// Its tasks, or the reason why they could not be read.
    pub tasks: Result<Vec<Task>, RuntimeError>,
    /// The reason if other tasks than these could not be read.
    pub missing: Option<RuntimeError>,
    /// There are more than [`MAX_TASKS`] or [`MAX_TASK_BYTES`], or the deadline passed.
    pub is_truncated: bool,
}

impl TaskReading {
    /// Tasks that could not be read.
    pub fn failed(name: &'static str, why: impl Into<String>) -> Self {
        Self {
            name,
            tasks: Err(RuntimeError::new(why)),
            missing: None,
            is_truncated: false,
        }
    }

    pub(crate) fn of(
        name: &'static str,
        process: &dyn RuntimeProcess,
        target: &dyn Target,
        decode: &mut dyn FnMut(u64) -> Found<DecodedContext>,
    ) -> Self {
        let mut tasks = Vec::new();
        let mut bytes = 0;
        let mut is_truncated = false;
        let is_late = || target.deadline().is_some_and(|end| Instant::now() >= end);
        let visited = process.tasks(target, &mut |mut task| {
            if let Some(record) = task.record {
                task.context = decode(record);
            }
            bytes += task.memory();
            is_truncated = tasks.len() == MAX_TASKS || bytes > MAX_TASK_BYTES || is_late();
            if is_truncated {
                return ControlFlow::Break(());
            }
            tasks.push(task);
            ControlFlow::Continue(())
        });
        let (tasks, missing) = match visited {
            Err(error) if tasks.is_empty() => (Err(error), None),
            visited => (Ok(tasks), visited.err()),
        };
        Self {
            name,
            tasks,
            missing,
            is_truncated,
        }
    }
}
