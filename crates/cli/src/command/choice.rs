//! What `record` and `top` look at: which processes, which of their samples, which attribute.

use std::collections::HashSet;

use otelctx_profile::Recording;
use otelctx_profile::sample::{Catalog, Counts, Found, ProcessFacts, ProcessId, Sample};
use otelctx_reader::format::TraceId;

use crate::output::attributes;

/// The attribute that tells requests apart where none is asked for.
pub(super) const ROUTE: &str = "http.route";
/// What asks for no attribute.
pub(super) const NONE: &str = "none";

/// Which samples were asked for; nothing keeps everything.
pub(super) struct Choice<'a> {
    pub(super) resource: &'a [(String, String)],
    pub(super) trace: Option<TraceId>,
}

impl Choice<'_> {
    /// Drops the other samples. Only now, because a process may have told its resource late.
    pub(super) fn keep(&self, recording: &mut Recording) {
        if self.resource.is_empty() && self.trace.is_none() {
            return;
        }
        let catalog = &recording.catalog;
        let processes = catalog.processes();
        let wanted: HashSet<ProcessId> = processes
            .filter(|(_, facts)| self.takes(facts))
            .map(|(id, _)| id)
            .collect();
        let mut counts = Counts::default();
        recording.samples.retain(|sample| {
            let process = catalog.thread_facts(sample.thread).process;
            let kept = wanted.contains(&process) && self.is_of_trace(catalog, sample);
            if kept {
                counts.add(sample.found);
            }
            kept
        });
        counts.lost = recording.counts.lost;
        recording.counts = counts;
    }

    fn is_of_trace(&self, catalog: &Catalog, sample: &Sample) -> bool {
        match (self.trace, sample.found) {
            (None, _) => true,
            (Some(trace), Found::Attached(id)) => catalog.context_facts(id).trace_id == trace,
            (Some(_), _) => false,
        }
    }

    fn takes(&self, facts: &ProcessFacts) -> bool {
        self.resource.iter().all(|(key, value)| {
            let found = facts.resource.iter().find(|(name, _)| name == key);
            found.is_some_and(|(_, found)| attributes::text(found) == *value)
        })
    }
}

/// The id of a process.
pub(super) fn pid(text: &str) -> Result<i32, String> {
    match text.trim().parse() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err("the id of a process is a number from 1 on".to_owned()),
    }
}

/// `KEY=VALUE`
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a resource attribute and its value, such as service.name=shop".to_owned()),
    }
}

/// A trace id in hexadecimal digits.
pub(super) fn trace(text: &str) -> Result<TraceId, String> {
    text.parse()
        .ok()
        .filter(|id: &TraceId| !id.is_zero())
        .ok_or_else(|| "a trace id has 32 hexadecimal digits, not all of them 0".to_owned())
}
