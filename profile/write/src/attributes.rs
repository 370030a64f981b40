//! A record's attributes as all formats write them: each name once, and none that the format uses.

use std::borrow::Cow;

use otelctx_sample::format::process_context::Value;
use otelctx_sample::format::record::DecodedContext;

/// The prefix that the OpenTelemetry eBPF profiler adds to the names of record attributes. Here it
/// marks names that are empty, start with it, or are used by the profile, such as `thread.name`.
pub(crate) const UPSTREAM_PREFIX: &str = "process.context.label.";

pub(crate) const SERVICE_NAME: &str = "service.name";
/// Start of the specification's [`SERVICE_NAME`] for a service without a name.
pub(crate) const UNKNOWN_SERVICE: &str = "unknown_service";

/// Marks an unpublished resource from a process's environment. Not a semantic convention.
pub(crate) const DETECTED: &str = "otelctx.resource.detected";

pub(crate) const THREAD_ID: &str = "thread.id";
pub(crate) const THREAD_NAME: &str = "thread.name";

/// The attribute of samples with the state of the interpreter's lock
/// ([`GilState::name`](otelctx_sample::GilState::name)). Not a semantic convention.
pub const GIL: &str = "gil.state";

/// Attributes of samples off a CPU: what kept the thread from running
/// ([`OffCpuState::name`](otelctx_sample::OffCpuState::name)), and for a thread that waits the call,
/// and the reason in words. Not semantic conventions.
pub const STATE: &str = "thread.state";
/// See [`STATE`].
pub const CALL: &str = "wait.call";
/// See [`STATE`].
pub const REASON: &str = "wait.reason";

/// Attributes of samples that a recorder found out, in formats that can tell them from a context's.
pub(crate) const RECORDED: [&str; 4] = [GIL, STATE, CALL, REASON];

/// Returns a context's attributes, sorted by name. Of several with the same name, the last counts,
/// as for a repeated key in a record.
pub(crate) fn attributes(context: &DecodedContext) -> Vec<(&str, &str)> {
    let last_first = context.attributes.iter().rev();
    let attributes = last_first.map(|(name, value)| (name.as_str(), value.as_str()));
    let mut attributes: Vec<_> = attributes.collect();
    attributes.sort_by_key(|(name, _)| *name);
    attributes.dedup_by_key(|(name, _)| *name);
    attributes
}

/// Returns the value of one of [`attributes`].
pub(crate) fn attribute<'c>(context: &'c DecodedContext, name: &str) -> Option<&'c str> {
    let mut last_first = context.attributes.iter().rev();
    let found = last_first.find(|(found, _)| found == name);
    found.map(|(_, value)| value.as_str())
}

/// Returns the value of a resource's attribute as text; `None` for lists and bytes.
pub(crate) fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    Some(match value {
        Value::String(text) => text.into(),
        Value::Int(number) => number.to_string().into(),
        Value::Bool(value) => value.to_string().into(),
        Value::Double(value) => value.to_string().into(),
        _ => return None,
    })
}

/// Prefixes the name of an attribute if it is one of `own`. Distinct names stay distinct.
pub(crate) fn beside<'n>(own: &[&str], name: &'n str) -> Cow<'n, str> {
    let is_taken = name.is_empty() || own.contains(&name) || name.starts_with(UPSTREAM_PREFIX);
    if is_taken {
        format!("{UPSTREAM_PREFIX}{name}").into()
    } else {
        name.into()
    }
}
