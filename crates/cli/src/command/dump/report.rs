//! What one look at a process found, and its JSON (docs/json.md).

use std::ffi::{OsStr, OsString};

use otelctx_reader::format::record::{Context, LeftOut};
use otelctx_reader::remote::tls::TlsVariable;
use otelctx_reader::{
    ContextState, Detected, Error, Outcome, ProcessContext, SYMBOL, ThreadSupport, ThreadVariables,
    Unreadable,
};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::core::CoreReport;
use crate::output::json::{AttributeMap, OrError};
use crate::output::words;

/// Everything that was found.
#[derive(Debug)]
pub(super) struct Report {
    /// Known of every process, but not of every core file.
    pub(super) pid: Option<i32>,
    pub(super) comm: OsString,
    /// The process is no more: this is its core file.
    pub(super) core: Option<CoreReport>,
    /// `--force` was given.
    pub(super) forced: bool,
    pub(super) context: ContextState,
    /// What could be told of a process that says nothing readable of itself.
    pub(super) detected: Option<Detected>,
    pub(super) support: ThreadSupport,
    pub(super) looks: Vec<Look>,
}

/// One thread.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) tid: i32,
    /// Core files do not tell it.
    pub(super) name: Option<OsString>,
    pub(super) outcome: Result<Outcome, Error>,
}

/// Why a record that is attached was not read.
pub(super) const NOT_VALID: &str = "the record is marked as not valid: it is being rewritten";

impl Report {
    /// Whether something is published that can't be read. That nothing is published is no problem.
    pub(super) fn has_problem(&self) -> bool {
        let missing = self.core.as_ref().map_or(0, |core| core.missing.len());
        missing > 0
            || matches!(self.context, ContextState::Broken(_))
            || match &self.support {
                ThreadSupport::Readable(_) => self.looks.iter().any(|look| look.outcome.is_err()),
                ThreadSupport::Unreadable(why) => !publishes_nothing(why),
            }
    }

    pub(super) fn to_json(&self) -> impl Serialize + '_ {
        let (process_context, second_contexts) = match &self.context {
            ContextState::Published(context) => (
                Some(OrError::Value(ProcessContextJson::of(context))),
                context.others.iter().map(|at| format!("{at:#x}")).collect(),
            ),
            ContextState::Absent => (None, Vec::new()),
            ContextState::Broken(why) => (Some(OrError::error(why)), Vec::new()),
        };
        let thread_context = match &self.support {
            ThreadSupport::Readable(variables) => Some(OrError::Value(ThreadContextJson::of(
                variables,
                self.forced,
            ))),
            ThreadSupport::Unreadable(why) if publishes_nothing(why) => None,
            ThreadSupport::Unreadable(why) => Some(OrError::error(why)),
        };
        DumpJson {
            pid: self.pid,
            comm: lossy(&self.comm),
            core: self.core.as_ref(),
            process_context,
            second_contexts,
            detected: self.detected.as_ref().map(|detected| DetectedJson {
                resource: AttributeMap(detected.resource.clone()),
            }),
            thread_context,
            threads: self.looks.iter().map(|look| self.thread(look)).collect(),
        }
    }

    fn thread(&self, look: &Look) -> ThreadJson {
        let context = match (&look.outcome, &self.support) {
            (Ok(Outcome::Attached(context)), _) => Some(OrError::Value(ContextJson::of(context))),
            (Ok(Outcome::NotValid), _) => Some(OrError::error(&NOT_VALID)),
            (Err(_), ThreadSupport::Unreadable(why)) if publishes_nothing(why) => None,
            (Err(_), ThreadSupport::Unreadable(why)) => Some(OrError::error(why)),
            (Err(error), _) => Some(OrError::error(error)),
            (Ok(_), _) => None,
        };
        ThreadJson {
            tid: look.tid,
            name: look.name.as_deref().map(lossy),
            context,
        }
    }
}

/// Whether the threads have no context because the process does not say that they have one.
pub(super) fn publishes_nothing(why: &Unreadable) -> bool {
    matches!(why, Unreadable::NoProcessContext | Unreadable::NoSchema)
}

fn lossy(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

#[derive(Serialize)]
struct DumpJson<'r> {
    pid: Option<i32>,
    comm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<&'r CoreReport>,
    process_context: Option<OrError<ProcessContextJson>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    second_contexts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detected: Option<DetectedJson>,
    thread_context: Option<OrError<ThreadContextJson>>,
    threads: Vec<ThreadJson>,
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
            // The only one there is: a header of another version is not accepted.
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
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    forced: bool,
}

impl ThreadContextJson {
    fn of(variables: &ThreadVariables, forced: bool) -> Self {
        let mut all = variables.resolution.variables.iter().map(VariableJson::of);
        let announced = variables
            .schema
            .as_ref()
            .is_some_and(otelctx_reader::format::Schema::is_thread_local_record);
        Self {
            schema: variables.schema.as_ref().map(ToString::to_string),
            symbol: SYMBOL,
            variable: all.next(),
            keys: variables.keys.names().to_vec(),
            other_variables: all.collect(),
            forced: forced && !announced,
        }
    }
}

#[derive(Serialize)]
struct VariableJson {
    module: String,
    access: &'static str,
    storage: &'static str,
    /// Only told when it is not.
    #[serde(skip_serializing_if = "bool::clone")]
    exported: bool,
}

impl VariableJson {
    fn of(variable: &TlsVariable) -> Self {
        Self {
            module: lossy(&variable.module),
            access: words::access(variable.access),
            storage: words::storage(variable.storage()),
            exported: variable.exported,
        }
    }
}

#[derive(Serialize)]
struct ThreadJson {
    tid: i32,
    name: Option<String>,
    context: Option<OrError<ContextJson>>,
}

#[derive(Serialize)]
struct ContextJson {
    trace_id: Option<String>,
    span_id: Option<String>,
    trace_flags: u8,
    attributes: RecordAttributes,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutJson>,
}

impl ContextJson {
    fn of(context: &Context) -> Self {
        Self {
            trace_id: (!context.trace_id.is_zero()).then(|| context.trace_id.to_string()),
            span_id: (!context.span_id.is_zero()).then(|| context.span_id.to_string()),
            trace_flags: context.trace_flags.0,
            attributes: RecordAttributes(context.attributes.clone()),
            left_out: (!context.left_out.is_empty()).then(|| LeftOutJson::of(&context.left_out)),
        }
    }
}

/// The attributes of a record: texts, each name once.
struct RecordAttributes(Vec<(String, String)>);

impl Serialize for RecordAttributes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct LeftOutJson {
    unknown_key: u32,
    not_utf8: u32,
    incomplete_bytes: usize,
}

impl LeftOutJson {
    fn of(left_out: &LeftOut) -> Self {
        Self {
            unknown_key: left_out.unknown_key,
            not_utf8: left_out.not_utf8,
            incomplete_bytes: left_out.incomplete_bytes,
        }
    }
}
