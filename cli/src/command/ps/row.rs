//! The row of one process.

use std::sync::Arc;

use otelctx_reader::runtime::Present;
use otelctx_reader::sweep::{Sweep, ThreadReading};
use otelctx_reader::{Broken, Error, Found, Process, ProcessContext, ThreadSupport, Unreadable};
use serde::{Deserialize, Serialize};

use crate::command::partial::PartialJson;
use crate::command::runtimes::RuntimesJson;
use crate::error::MORE_TIME;
use crate::output::attributes::{detected_service, language, string};
use crate::output::table::Align;
use crate::output::terminal::{self, escape};
use crate::output::text::own_name;

/// A process that publishes something, or that was asked for (docs/json.md).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Row {
    pub(super) pid: i32,
    pub(super) comm: String,
    pub(super) service: Option<String>,
    /// `service` is from the process's environment, because it publishes nothing readable.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) service_detected: bool,
    pub(super) language: Option<String>,
    pub(super) schema: Option<String>,
    /// Number of names in the key map.
    pub(super) keys: Option<usize>,
    pub(super) threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) threads_with_trace: Option<usize>,
    /// Only present if some threads were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) partial: Option<Box<PartialJson>>,
    /// The reason if the process context, or the threads' contexts, cannot be read.
    pub(super) unreadable: Option<String>,
    /// It announces no contexts of threads, and has no variable for them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) process_context_only: bool,
    /// The threads' contexts were found although they are not in `.dynsym`: other readers may fail.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) not_exported: bool,
    /// The language runtimes that it has, with their facts.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub(super) runtimes: serde_json::Map<String, serde_json::Value>,
    /// Processes that run in the memory of this one, and so show the same context.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) shares_memory_with: Vec<i32>,
}

/// Heading and alignment of each of [`Row::cells`].
pub(super) const COLUMNS: [(&str, Align); 6] = [
    ("PID", Align::Right),
    ("SERVICE", Align::Left),
    ("LANGUAGE", Align::Left),
    ("SCHEMA", Align::Left),
    ("KEYS", Align::Right),
    ("THREADS", Align::Left),
];

impl Row {
    pub(super) fn published(
        process: &mut Process,
        context: &ProcessContext,
    ) -> Result<Self, Error> {
        let running = process.running()?;
        let mut row = Self {
            comm: comm(process)?,
            threads: running.status()?.threads,
            ..Self::of_context(running.pid(), context)
        };
        let present = match process.runtimes() {
            Ok(present) => present,
            Err(Error::Deadline { .. }) => Arc::default(),
            Err(error) => return Err(error),
        };
        row.runtimes = object(&present);
        match process.thread_support() {
            Ok(ThreadSupport::Readable(threads)) => {
                let mut variables = threads.resolution.variables.iter();
                row.not_exported = !variables.any(|variable| variable.exported);
            }
            Ok(ThreadSupport::Unreadable(Unreadable::UnsupportedSchema(schema)))
                if present.iter().any(|it| it.reads_schema(&schema)) => {}
            Ok(ThreadSupport::Unreadable(Unreadable::NoSchema)) if !has_variable(process)? => {
                row.process_context_only = true;
            }
            Ok(ThreadSupport::Unreadable(why)) => row.unreadable = Some(why.to_string()),
            // The process context was already read.
            Err(why @ Error::Deadline { .. }) => row.unreadable = Some(why.to_string()),
            Err(error) => return Err(error),
        }
        Ok(row)
    }

    /// Creates the row of a process whose context cannot be read.
    pub(super) fn broken(process: &Process, why: &Broken) -> Result<Self, Error> {
        Ok(Self {
            unreadable: Some(format!("broken process context: {why}")),
            ..Self::detected(process)?
        })
    }

    /// Creates the row of a process that publishes nothing, from its environment.
    pub(super) fn detected(process: &Process) -> Result<Self, Error> {
        let detected = process.detected()?;
        let service = detected_service(&detected.resource);
        Ok(Self {
            pid: process.running()?.pid(),
            comm: comm(process)?,
            service: service.map(Into::into),
            service_detected: service.is_some(),
            threads: process.running()?.status()?.threads,
            ..Self::default()
        })
    }

    /// Creates a row of what the context alone contains.
    pub(super) fn of_context(pid: i32, context: &ProcessContext) -> Self {
        let resource = &context.payload.resource;
        Self {
            pid,
            service: string(resource, "service.name").map(Into::into),
            language: language(resource).map(Into::into),
            schema: context.schema.as_ref().map(ToString::to_string),
            keys: match &context.keys {
                Ok(Some(keys)) => Some(keys.names().len()),
                _ => None,
            },
            ..Self::default()
        }
    }

    pub(super) fn count_traces(
        &mut self,
        process: &mut Process,
        sweep: Sweep<'_>,
    ) -> Result<(), Error> {
        if self.unreadable.is_some() {
            return Ok(());
        }
        let mut with_trace = 0;
        let sweep = sweep.unverified();
        let swept = sweep.run(process, &mut |thread: ThreadReading| {
            let context = thread.context.as_ref().ok().and_then(Found::attached);
            let has_trace = context.is_some_and(|context| !context.trace_id.is_zero());
            with_trace += usize::from(has_trace);
        })?;
        self.threads_with_trace = Some(with_trace);
        let partial = swept.partial.as_ref();
        self.partial = partial.map(|partial| Box::new(PartialJson::of(partial)));
        Ok(())
    }

    /// Reports on standard error what is missing, and how to get it.
    pub(super) fn explain(&self) {
        if let Some(partial) = &self.partial {
            let message = format!("process {}: {}", self.pid, partial.text);
            terminal::complain(&message, Some(MORE_TIME));
        }
    }

    /// Formats the row. `hint`: say how to find out what is wrong.
    pub(super) fn cells(&self, hint: bool) -> [String; COLUMNS.len()] {
        let or_none = |text: &Option<String>| text.as_deref().map_or("-".into(), escape);
        let keys = self.keys.map_or("-".into(), |keys| keys.to_string());
        let mut threads = self.threads.to_string();
        let hint = if hint {
            format!("; `{} check {}` says how to fix it", own_name(), self.pid)
        } else {
            String::new()
        };
        if let Some(why) = &self.unreadable {
            threads = format!("unreadable: {}{hint}", escape(why));
        } else {
            if let Some(with_trace) = self.threads_with_trace {
                threads += &format!(", {with_trace} with a trace");
            }
            if let Some(partial) = &self.partial {
                threads += &format!(" ({} of {} were read)", partial.read, partial.of);
            }
            if self.not_exported {
                threads += &format!("; not exported, so other readers fail{hint}");
            }
        }
        if self.process_context_only {
            threads += "; process context only";
        }
        for name in self.runtimes.keys() {
            threads += &format!("; runtime {name}");
        }
        let service = if self.service_detected {
            format!("({})", or_none(&self.service))
        } else {
            or_none(&self.service)
        };
        [
            self.pid.to_string(),
            service,
            or_none(&self.language),
            or_none(&self.schema),
            keys,
            threads,
        ]
    }
}

/// Returns whether a module of the process has the variable of threads, or it is unknown.
fn has_variable(process: &Process) -> Result<bool, Error> {
    let mut options = process.options().clone();
    options.any_schema = true;
    let pid = process.running()?.pid();
    let support = Process::with_files(pid, options, process.files().clone())?.thread_support();
    Ok(match support {
        Ok(ThreadSupport::Unreadable(Unreadable::NotFound { unreadable })) => {
            !unreadable.is_empty()
        }
        _ => true,
    })
}

fn object(present: &[Present]) -> serde_json::Map<String, serde_json::Value> {
    match serde_json::to_value(RuntimesJson(present)) {
        Ok(serde_json::Value::Object(object)) => object,
        // It is an object, and names are strings.
        _ => serde_json::Map::new(),
    }
}

fn comm(process: &Process) -> Result<String, Error> {
    Ok(process.comm()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use otelctx_reader::Options;
    use otelctx_reader::remote::{Modules, Target};
    use otelctx_reader::runtime::{Runtime, RuntimeError, RuntimeProcess, Runtimes};

    use super::*;

    #[derive(Debug)]
    struct Absent;

    impl Runtime for Absent {
        fn name(&self) -> &'static str {
            "absent"
        }

        fn is_candidate(&self, _: &[u8]) -> bool {
            true
        }

        fn probe(
            &self,
            _: &dyn Target,
            _: &Modules,
        ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
            Ok(None)
        }
    }

    /// Regression: the row was replaced by an error.
    #[test]
    fn a_deadline_that_passes_before_runtimes_are_known_leaves_the_row() {
        let mut options = Options::default();
        options.runtimes = Runtimes::new(vec![Arc::new(Absent)]);
        options.deadline = Some(Instant::now());
        let pid = nix::unistd::getpid().as_raw();
        let mut process = Process::with_options(pid, options).unwrap();
        let mut row = Row::default();
        let sweep = Sweep::within(Duration::ZERO);
        row.count_traces(&mut process, sweep).unwrap();
        assert_eq!(row.threads_with_trace, Some(0));
        assert_eq!(row.partial.unwrap().read, 0);
    }
}
