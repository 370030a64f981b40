//! The report as JSON (docs/json.md).

mod runtimes;
mod stacks;
mod waits;

use std::collections::BTreeMap;
use std::ffi::OsStr;

use otelctx_reader::format::Schema;
use otelctx_reader::format::record::{DecodedContext, Skipped};
use otelctx_reader::remote::tls::TlsVariable;
use otelctx_reader::{ContextState, Found, ProcessContext, SYMBOL, ThreadVariables};
use serde::Serialize;
use serde::ser::Serializer;

use self::runtimes::{TasksJson, ThreadRuntimesJson};
use self::stacks::StackJson;
use self::waits::WaitJson;
use super::model::{CoreReport, Report, Support, ThreadReport};
use crate::command::partial::PartialJson;
use crate::command::runtimes::RuntimesJson;
use crate::output::json::{AttributeMap, OrError};
use crate::output::text;

/// Returns a view of the report that serializes without copying its threads.
pub(super) fn of(report: &Report) -> impl Serialize + '_ {
    let (process_context, second_contexts) = match &report.context {
        ContextState::Published(context) => (
            Some(OrError::Value(ProcessContextJson::of(context))),
            context.others.iter().map(|at| format!("{at:#x}")).collect(),
        ),
        ContextState::Absent => (None, Vec::new()),
        ContextState::Broken(why) => (Some(OrError::error(why)), Vec::new()),
    };
    let thread_context = match report.support() {
        Support::Readable(variables) => {
            Some(OrError::Value(ThreadContextJson::of(variables, report)))
        }
        Support::Unpublished | Support::ByRuntime(..) => None,
        Support::Unreadable(why) => Some(OrError::error(why)),
        Support::Unknown(error) => Some(OrError::error(error)),
    };
    let conflicts = report.conflicts();
    let present = &*report.swept.runtimes;
    let tasks = &report.swept.tasks;
    let truncated = tasks.iter();
    let truncated = truncated.filter(|it| it.is_truncated || it.missing.is_some());
    let missing = tasks.iter().filter_map(|reading| {
        let missing = reading.missing.as_ref()?;
        Some((reading.name, missing.to_string()))
    });
    DumpJson {
        pid: report.pid,
        comm: lossy(&report.comm),
        asked_thread: report.asked_thread,
        shares_memory_with: report.shares_memory_with,
        core: report.core.as_ref(),
        process_context,
        second_contexts,
        contested_keys: contested_keys(&report.context),
        detected: report.detected.as_ref().map(|detected| DetectedJson {
            resource: AttributeMap(detected.resource.clone()),
        }),
        thread_context,
        stopped: !report.running,
        threads_stopped: report.stopped_threads().map(|(stopped, _)| stopped),
        kernel_workers: report.swept.kernel_workers,
        partial: report.swept.partial.as_ref().map(PartialJson::of),
        runtimes: (!present.is_empty()).then_some(RuntimesJson(present)),
        context_conflicts: (conflicts > 0).then_some(conflicts),
        threads: ThreadsJson(report),
        tasks: (!tasks.is_empty()).then_some(TasksJson(tasks)),
        tasks_truncated: truncated.map(|reading| reading.name).collect(),
        tasks_missing: missing.collect(),
    }
}

fn contested_keys(context: &ContextState) -> &[u8] {
    match context {
        ContextState::Published(context) => match &context.keys {
            Ok(Some(keys)) => keys.contested(),
            _ => &[],
        },
        _ => &[],
    }
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn lossy(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

#[derive(Serialize)]
struct DumpJson<'r> {
    pid: Option<i32>,
    comm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_thread: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shares_memory_with: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<&'r CoreReport>,
    process_context: Option<OrError<ProcessContextJson>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    second_contexts: Vec<String>,
    #[serde(skip_serializing_if = "<[u8]>::is_empty")]
    contested_keys: &'r [u8],
    #[serde(skip_serializing_if = "Option::is_none")]
    detected: Option<DetectedJson>,
    thread_context: Option<OrError<ThreadContextJson>>,
    /// Only present if they were not.
    #[serde(skip_serializing_if = "bool::clone")]
    stopped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    threads_stopped: Option<usize>,
    #[serde(skip_serializing_if = "is_zero")]
    kernel_workers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<PartialJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtimes: Option<RuntimesJson<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_conflicts: Option<usize>,
    threads: ThreadsJson<'r>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks: Option<TasksJson<'r>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tasks_truncated: Vec<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tasks_missing: BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
struct ProcessContextJson {
    mapping: String,
    version: u32,
    monotonic_published_at_ns: String,
    resource: AttributeMap,
    attributes: AttributeMap,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

impl ProcessContextJson {
    fn of(context: &ProcessContext) -> Self {
        Self {
            mapping: context.mapping.clone(),
            // There is only one: headers with another version are rejected.
            version: otelctx_reader::format::process_context::VERSION,
            monotonic_published_at_ns: context.monotonic_published_at_ns.to_string(),
            resource: AttributeMap(context.payload.resource.clone()),
            attributes: AttributeMap(context.payload.attributes.clone()),
            problems: context.problems.iter().map(ToString::to_string).collect(),
        }
    }
}

#[derive(Serialize)]
struct DetectedJson {
    resource: AttributeMap,
}

#[derive(Serialize)]
struct ThreadContextJson {
    schema: Option<String>,
    symbol: &'static str,
    #[serde(flatten)]
    variable: Option<VariableJson>,
    keys: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_variables: Vec<VariableJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable_modules: Vec<UnreadableModuleJson>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    forced: bool,
}

#[derive(Serialize)]
struct UnreadableModuleJson {
    module: String,
    error: String,
}

impl ThreadContextJson {
    fn of(variables: &ThreadVariables, report: &Report) -> Self {
        let all = variables.resolution.variables.iter().enumerate();
        let mut all = all.map(|(position, variable)| VariableJson {
            process_context: variables
                .keys
                .context_of_variable(position)
                .map(|address| format!("{address:#x}")),
            without_process_context: variables.keys.is_without_context(position),
            ..VariableJson::of(variable)
        });
        let unreadable = report.unreadable_modules().iter();
        let unreadable = unreadable.map(|(module, error)| UnreadableModuleJson {
            module: text::path(module),
            error: error.clone(),
        });
        let announced = variables.schema.as_ref();
        let announced = announced.is_some_and(Schema::is_thread_local_record);
        Self {
            schema: variables.schema.as_ref().map(ToString::to_string),
            symbol: SYMBOL,
            variable: all.next(),
            keys: variables.keys.all().names().to_vec(),
            other_variables: all.collect(),
            unreadable_modules: unreadable.collect(),
            forced: report.forced && !announced,
        }
    }
}

#[derive(Serialize)]
struct VariableJson {
    module: String,
    access: &'static str,
    storage: &'static str,
    /// Only present if it is not.
    #[serde(skip_serializing_if = "bool::clone")]
    exported: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_context: Option<String>,
    /// Only present if true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    without_process_context: bool,
}

impl VariableJson {
    fn of(variable: &TlsVariable) -> Self {
        Self {
            module: text::path(&variable.module),
            access: text::access(variable.access),
            storage: text::storage(variable.storage()),
            exported: variable.exported,
            process_context: None,
            without_process_context: false,
        }
    }
}

/// The threads, converted one by one as they are written.
struct ThreadsJson<'r>(&'r Report);

impl Serialize for ThreadsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What applies to all threads is reported once, in `thread_context`.
        let unreadable = match self.0.support() {
            Support::Readable(_) | Support::Unpublished | Support::ByRuntime(..) => None,
            Support::Unreadable(_) | Support::Unknown(_) => Some(NO_THREAD_READABLE),
        };
        let threads = self.0.threads.iter();
        serializer.collect_seq(threads.map(|thread| ThreadJson::of(self.0, thread, unreadable)))
    }
}

/// The error of each thread if `thread_context` is an error.
const NO_THREAD_READABLE: &str = "no thread's context can be read, see thread_context";

#[derive(Serialize)]
struct ThreadJson<'r> {
    tid: i32,
    name: Option<String>,
    context: Option<OrError<ContextJson<'r>>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    invalid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<OrError<StackJson<'r>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<WaitJson<'r>>,
    #[serde(flatten)]
    runtimes: ThreadRuntimesJson<'r>,
}

impl<'r> ThreadJson<'r> {
    fn of(report: &'r Report, thread: &'r ThreadReport, unreadable: Option<&str>) -> Self {
        let context = match &thread.context {
            Ok(Found::Attached(context)) => Some(OrError::Value(ContextJson::of(context))),
            Ok(Found::NotPublished | Found::Unreadable(_)) => {
                unreadable.map(|why| OrError::error(&why))
            }
            Ok(_) => None,
            Err(error) => Some(OrError::error(error)),
        };
        Self {
            tid: thread.tid,
            name: thread.name.as_deref().map(lossy),
            context,
            invalid: matches!(thread.context, Ok(Found::Invalid)),
            stack: (thread.stack.as_ref()).map(|it| StackJson::of(report, thread, it)),
            wait: thread.wait.as_ref().map(WaitJson::of),
            runtimes: ThreadRuntimesJson(report, thread),
        }
    }
}

#[derive(Serialize)]
struct ContextJson<'r> {
    trace_id: Option<String>,
    span_id: Option<String>,
    trace_flags: u8,
    #[serde(serialize_with = "serialize_pairs")]
    attributes: &'r [(String, String)],
    #[serde(with = "SkippedJson", skip_serializing_if = "Skipped::is_empty")]
    skipped: Skipped,
}

impl<'r> ContextJson<'r> {
    fn of(context: &'r DecodedContext) -> Self {
        Self {
            trace_id: (!context.trace_id.is_zero()).then(|| context.trace_id.to_string()),
            span_id: (!context.span_id.is_zero()).then(|| context.span_id.to_string()),
            trace_flags: context.trace_flags.0,
            attributes: &context.attributes,
            skipped: context.skipped,
        }
    }
}

/// Serializes the attributes of a record as an object: strings, each name once.
fn serialize_pairs<S: Serializer>(
    pairs: &[(String, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

#[derive(Serialize)]
#[serde(remote = "Skipped")]
struct SkippedJson {
    unknown_key: u32,
    contested_key: u32,
    not_utf8: u32,
    incomplete_bytes: usize,
}
