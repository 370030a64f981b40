//! Counters of samples, as JSON.

use otelctx_profile::sample::{Counts, ReadStep, StackEnd};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// All counters (docs/json.md).
#[derive(Debug, Serialize)]
pub(crate) struct CountsJson {
    attached: u64,
    detached: u64,
    not_published: u64,
    invalid: u64,
    unreadable: StepsJson,
    lost: u64,
    not_traceable: u64,
    outside_namespace: u64,
    truncated_records: u64,
    unknown_keys: u64,
    not_utf8: u64,
    dropped_processes: u64,
    lost_mappings: u64,
    complete_stacks: u64,
    incomplete_stacks: StackEndsJson,
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

/// The share of stacks that are incomplete, such as `2.0 %`; `None` if there are none.
pub(crate) fn incomplete_stacks(counts: &Counts) -> Option<String> {
    let incomplete = counts.all_incomplete_stacks();
    (incomplete > 0).then(|| share(incomplete, counts.all_stacks()))
}

/// The most frequent reason why stacks are incomplete, if there are any such.
pub(crate) fn most_frequent_end(counts: &Counts) -> Option<StackEnd> {
    let ends = counts.incomplete_stacks.iter().zip(StackEnd::INCOMPLETE);
    let (number, end) = ends.max_by_key(|(number, _)| **number)?;
    (*number > 0).then_some(end)
}

/// A share in percent.
pub(crate) fn share(number: u64, all: u64) -> String {
    match 100.0 * number as f64 / all as f64 {
        percent if percent < 0.1 => "<0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

impl CountsJson {
    pub(crate) fn of(counts: &Counts) -> Self {
        Self {
            attached: counts.attached,
            detached: counts.detached,
            not_published: counts.not_published,
            invalid: counts.invalid,
            unreadable: StepsJson(counts.unreadable),
            lost: counts.lost,
            not_traceable: counts.not_traceable,
            outside_namespace: counts.outside_namespace,
            truncated_records: counts.truncated_records,
            unknown_keys: counts.unknown_keys,
            not_utf8: counts.not_utf8,
            dropped_processes: counts.dropped_processes,
            lost_mappings: counts.lost_mappings,
            complete_stacks: counts.complete_stacks,
            incomplete_stacks: StackEndsJson(counts.incomplete_stacks),
            dropped_names: counts.dropped_names,
            damaged_jit_dumps: counts.damaged_jit_dumps,
            unread_name_files: counts.unread_name_files,
            stale_name_files: counts.stale_name_files,
            dropped_files: counts.dropped_files,
            truncated_stacks: counts.truncated_stacks,
            truncated_runtime_stacks: counts.truncated_runtime_stacks,
            unnamed_functions: counts.unnamed_functions,
            missing_stacks: counts.missing_stacks,
            incomplete_steps: counts.incomplete_steps,
            unresolved_threads: counts.unresolved_threads,
            context_conflicts: counts.context_conflicts,
        }
    }
}

/// A counter by the name of each step.
#[derive(Debug)]
struct StepsJson([u64; ReadStep::ALL.len()]);

impl Serialize for StepsJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = ReadStep::ALL.map(ReadStep::name);
        named(&names, &self.0, serializer)
    }
}

/// A counter by the name of each end of an incomplete stack.
#[derive(Debug)]
struct StackEndsJson([u64; StackEnd::INCOMPLETE.len()]);

impl Serialize for StackEndsJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = StackEnd::INCOMPLETE.map(StackEnd::name);
        named(&names, &self.0, serializer)
    }
}

fn named<S: Serializer>(names: &[&str], counts: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(counts.len()))?;
    for (name, count) in names.iter().zip(counts) {
        map.serialize_entry(name, count)?;
    }
    map.end()
}
