//! The readings of language runtimes, as JSON.

use otelctx_reader::Found;
use otelctx_reader::format::process_context::Attributes;
use otelctx_reader::format::record::DecodedContext;
use otelctx_reader::runtime::{RuntimeThread, Task, TaskReading};
use serde::Serialize;
use serde::ser::Serializer;

use super::super::model::{Report, ThreadReport};
use super::ContextJson;
use super::stacks::FrameJson;
use crate::output::json::{AttributeMap, OrError};

/// The readings of a thread, by the names of the runtimes.
pub(super) struct ThreadRuntimesJson<'r>(pub(super) &'r Report, pub(super) &'r ThreadReport);

impl Serialize for ThreadRuntimesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(report, thread) = self;
        serializer.collect_map(thread.runtimes.iter().map(|reading| {
            let value = match &reading.thread {
                Ok(found) => {
                    let facts = facts(report, reading.name);
                    OrError::Value(ThreadRuntimeJson::of(found, facts, thread))
                }
                Err(error) => OrError::error(error),
            };
            (reading.name, value)
        }))
    }
}

fn facts(report: &Report, runtime: &str) -> Attributes {
    let mut present = report.swept.runtimes.iter();
    let present = present.find(|present| present.name == runtime);
    let process = present.and_then(|present| present.process.as_ref().ok());
    process.map_or_else(Vec::new, |process| process.facts())
}

#[derive(Serialize)]
struct ThreadRuntimeJson<'r> {
    #[serde(flatten)]
    facts: AttributeMap,
    /// Only present if the thread's context is that of another source.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<ContextJson<'r>>,
    frames: Vec<FrameJson<'r>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl<'r> ThreadRuntimeJson<'r> {
    fn of(runtime: &'r RuntimeThread, mut facts: Attributes, thread: &ThreadReport) -> Self {
        // It may have another interpreter than most.
        facts.retain(|(name, _)| !runtime.facts.iter().any(|own| own.0 == *name));
        facts.extend(runtime.facts.iter().cloned());
        let is_other = |context: &&DecodedContext| match &thread.context {
            Ok(Found::Attached(chosen)) => chosen != *context,
            _ => true,
        };
        let context = runtime.context.attached().filter(is_other);
        Self {
            facts: AttributeMap(facts),
            context: context.map(ContextJson::of),
            frames: runtime.stack.frames().map(FrameJson::of_runtime).collect(),
            truncated: runtime.stack.is_truncated,
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
                Ok(tasks) => OrError::Value(Each(tasks)),
                Err(error) => OrError::error(error),
            };
            (reading.name, tasks)
        }))
    }
}

/// Tasks, of which one at a time is prepared for JSON.
struct Each<'r>(&'r [Task]);

impl Serialize for Each<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(TaskJson::of))
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
            frames: task.frames.iter().map(FrameJson::of_runtime).collect(),
            truncated: task.is_truncated,
        }
    }
}
