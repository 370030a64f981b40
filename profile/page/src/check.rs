//! Refuses recordings whose indexes are out of range, so that no other code has to.

use std::fmt::Display;
use std::io;

use crate::Recording;

/// The most samples of a page, whose columns have 32-bit positions.
const MAX_SAMPLES: usize = u32::MAX as usize;

/// Checks every index of a recording.
///
/// # Errors
///
/// Says which element has which index of what.
pub(crate) fn indexes(recording: &Recording) -> io::Result<()> {
    let recorded = recording;
    within("samples", recorded.samples.len(), MAX_SAMPLES)?;
    within("tree nodes", recorded.nodes.len(), MAX_SAMPLES)?;
    for (index, function) in recorded.functions.iter().enumerate() {
        let kind = function.plumbing.map(u32::from);
        optional(
            ("function", index),
            "kind of plumbing",
            kind,
            recorded.plumbing.len(),
        )?;
    }
    for (index, node) in recorded.nodes.iter().enumerate().skip(1) {
        required(
            ("node", index),
            "parent that precedes it",
            node.parent,
            index,
        )?;
        required(
            ("node", index),
            "function",
            node.function,
            recorded.functions.len(),
        )?;
    }
    for (index, context) in recorded.contexts.iter().enumerate() {
        optional(
            ("context", index),
            "trace",
            context.trace,
            recorded.traces.len(),
        )?;
        optional(
            ("context", index),
            "route",
            context.route,
            recorded.routes.len(),
        )?;
    }
    for (index, thread) in recorded.threads.iter().enumerate() {
        required(
            ("thread", index),
            "service",
            thread.service,
            recorded.services.len(),
        )?;
    }
    // The root is there even if the recording has no nodes.
    let nodes = recorded.nodes.len().max(1);
    for (index, sample) in recorded.samples.iter().enumerate() {
        required(
            ("sample", index),
            "thread",
            sample.thread,
            recorded.threads.len(),
        )?;
        required(("sample", index), "node", sample.node, nodes)?;
        optional(
            ("sample", index),
            "context",
            sample.context,
            recorded.contexts.len(),
        )?;
    }
    for (index, span) in recorded.spans.iter().enumerate() {
        required(("span", index), "trace", span.trace, recorded.traces.len())?;
        required(
            ("span", index),
            "service",
            span.service,
            recorded.services.len(),
        )?;
        optional(("span", index), "parent", span.parent, recorded.spans.len())?;
    }
    Ok(())
}

/// An element: what it is, and its index.
type Element = (&'static str, usize);

fn optional(element: Element, what: &str, index: Option<u32>, length: usize) -> io::Result<()> {
    index.map_or(Ok(()), |index| required(element, what, index, length))
}

fn required((name, at): Element, what: &str, index: u32, length: usize) -> io::Result<()> {
    if (index as usize) < length {
        return Ok(());
    }
    invalid(format!(
        "{name} {at} of the recording refers to {what} {index}, but there are {length}"
    ))
}

fn within(what: &str, count: usize, limit: usize) -> io::Result<()> {
    if count < limit {
        return Ok(());
    }
    invalid(format!(
        "the recording has {count} {what}; a page can have {limit}"
    ))
}

fn invalid(why: impl Display) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::InvalidData, why.to_string()))
}
