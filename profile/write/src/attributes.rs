//! A record's attributes, as all formats write them: each name once, and no name that the format
//! itself uses.

use std::borrow::Cow;

use otelctx_sample::format::record::DecodedContext;

/// The prefix that the OpenTelemetry eBPF profiler adds to the names of record attributes. Here it
/// marks an attribute whose name is used by the profile itself, such as `thread.name`, is empty, or
/// starts with this prefix.
pub(crate) const UPSTREAM_PREFIX: &str = "process.context.label.";

/// The attribute of a resource with the service's name.
pub(crate) const SERVICE_NAME: &str = "service.name";
/// Start of the specification's [`SERVICE_NAME`] for a service without a name.
pub(crate) const UNKNOWN_SERVICE: &str = "unknown_service";

/// The attribute of a resource that the process has not published: its environment has it. No semantic
/// convention defines one.
pub(crate) const DETECTED: &str = "otelctx.resource.detected";

/// The attribute of samples with the thread's ID.
pub(crate) const THREAD_ID: &str = "thread.id";
/// The attribute of samples with the thread's name.
pub(crate) const THREAD_NAME: &str = "thread.name";

/// The attribute of samples with the state of the interpreter's lock: [`GilState::name`]. No semantic
/// convention defines one.
///
/// [`GilState::name`]: otelctx_sample::GilState::name
pub const GIL: &str = "gil.state";

/// A context's attributes, sorted by name. The last of several with the same name counts, as for a
/// repeated key in a record.
pub(crate) fn attributes(context: &DecodedContext) -> Vec<(&str, &str)> {
    let last_first = context.attributes.iter().rev();
    let mut attributes: Vec<_> = last_first
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    attributes.sort_by_key(|(name, _)| *name);
    attributes.dedup_by_key(|(name, _)| *name);
    attributes
}

/// The value of one of [`attributes`].
pub(crate) fn attribute<'c>(context: &'c DecodedContext, name: &str) -> Option<&'c str> {
    let mut last_first = context.attributes.iter().rev();
    let found = last_first.find(|(found, _)| found == name);
    found.map(|(_, value)| value.as_str())
}

/// The name of an attribute if the names in `own` are taken. Distinct names stay distinct.
pub(crate) fn beside<'n>(own: &[&str], name: &'n str) -> Cow<'n, str> {
    let is_taken = name.is_empty() || own.contains(&name) || name.starts_with(UPSTREAM_PREFIX);
    if is_taken {
        format!("{UPSTREAM_PREFIX}{name}").into()
    } else {
        name.into()
    }
}
