//! Counters of samples, as JSON.

use otelctx_profile::sample::{Counts, ReadStep, StackEnd};
use serde::Serialize;
use serde::ser::Serializer;

/// Serializes all counters, in the order of docs/json.md.
#[derive(Serialize)]
#[serde(remote = "Counts")]
pub(crate) struct CountsJson {
    attached: u64,
    detached: u64,
    not_published: u64,
    invalid: u64,
    #[serde(serialize_with = "by_step")]
    unreadable: [u64; ReadStep::ALL.len()],
    lost: u64,
    not_traceable: u64,
    outside_namespace: u64,
    truncated_records: u64,
    unknown_keys: u64,
    contested_keys: u64,
    not_utf8: u64,
    dropped_processes: u64,
    lost_mappings: u64,
    complete_stacks: u64,
    #[serde(serialize_with = "by_end")]
    incomplete_stacks: [u64; StackEnd::INCOMPLETE.len()],
    dropped_names: u64,
    damaged_jit_dumps: u64,
    unread_name_files: u64,
    stale_name_files: u64,
    dropped_files: u64,
    truncated_stacks: u64,
    truncated_runtime_stacks: u64,
    unnamed_functions: u64,
    missing_stacks: u64,
    incomplete_steps: u64,
    unresolved_threads: u64,
    context_conflicts: u64,
}

/// Formats the share of stacks that are incomplete, such as `2.0 %`; `None` if there are none.
pub(crate) fn incomplete_stacks(counts: &Counts) -> Option<String> {
    let incomplete = counts.all_incomplete_stacks();
    (incomplete > 0).then(|| share(incomplete, counts.all_stacks()))
}

/// Returns the most frequent reason why stacks are incomplete, if any are.
pub(crate) fn most_frequent_end(counts: &Counts) -> Option<StackEnd> {
    let ends = counts.incomplete_stacks.iter().zip(StackEnd::INCOMPLETE);
    let (number, end) = ends.max_by_key(|(number, _)| **number)?;
    (*number > 0).then_some(end)
}

pub(crate) fn share(number: u64, all: u64) -> String {
    match 100.0 * number as f64 / all as f64 {
        percent if percent < 0.1 => "<0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

fn by_step<S: Serializer>(counts: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    named(&ReadStep::ALL.map(ReadStep::name), counts, serializer)
}

fn by_end<S: Serializer>(counts: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    let names = StackEnd::INCOMPLETE.map(StackEnd::name);
    named(&names, counts, serializer)
}

fn named<S: Serializer>(names: &[&str], counts: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(names.iter().zip(counts))
}
