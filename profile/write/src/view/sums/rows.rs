//! The rows of a report.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_sample::format::hexadecimal;

use super::super::fold::Folding;
use super::super::functions::{Details, rows};
use super::super::tables::{Id, NONE, Process, Tables};
use super::{Map, Sum, Sums, largest_first};
use crate::attributes::{CALL, GIL, REASON, STATE, THREAD_NAME};
use crate::report::{Cost, GroupCost, KindCosts, NO_ATTRIBUTE, Trace, TraceCost};

impl Sums<'_> {
    /// Returns the number of traces of each group, and the cost of its samples with one.
    pub(super) fn traces_of_groups(&self, position: &[u32], groups: usize) -> Vec<(usize, Cost)> {
        let mut sums = vec![(0, Cost::default()); groups];
        let mut seen = vec![NONE; groups];
        let mut of_traces: Vec<_> = self.trace_groups.iter().collect();
        of_traces.sort_unstable_by_key(|((trace, _), _)| *trace);
        for ((trace, group), Sum { cost, .. }) in of_traces {
            // Traces that only waited have no time that others could be compared with.
            if cost.samples == 0 {
                continue;
            }
            let group = position[*group as usize] as usize;
            let is_first = std::mem::replace(&mut seen[group], *trace) != *trace;
            sums[group].0 += usize::from(is_first);
            sums[group].1.add(*cost);
        }
        sums
    }

    pub(super) fn groups(
        &self,
        folding: &Folding<'_>,
        values: &IndexSet<Vec<String>, RandomState>,
        sums: &[Sum],
        of_traces: &[(usize, Cost)],
        details: &Details,
    ) -> Vec<GroupCost> {
        let by_total = self.options.by_total;
        let sums = sums.iter().enumerate();
        let groups = sums.map(|(group, sum)| {
            let values = values[group].iter();
            let (traces, with_trace) = of_traces[group];
            let most = self.options.functions_of_group;
            let mut functions = rows(folding, details.of(group), by_total);
            functions.truncate(most);
            GroupCost {
                values: values.cloned().collect(),
                cost: sum.cost,
                kinds: sum.kinds,
                traces,
                with_trace,
                functions,
            }
        });
        let mut groups: Vec<GroupCost> = groups.collect();
        groups.sort_by(|one, other| {
            let size = |it: &GroupCost| size_of(it.cost, &it.kinds);
            let order = size(other).cmp(&size(one));
            order.then_with(|| one.values.cmp(&other.values))
        });
        groups
    }

    pub(super) fn by_process(
        &self,
        tables: &Tables,
        name: impl Fn(&Process) -> String,
    ) -> Vec<(String, Cost)> {
        let mut sums: BTreeMap<String, Cost> = BTreeMap::new();
        for (process, cost) in self.processes.iter().enumerate() {
            if cost.samples == 0 {
                continue;
            }
            let name = name(&tables.processes[process]);
            sums.entry(name).or_default().add(*cost);
        }
        largest_first(sums.into_iter())
    }

    pub(super) fn by_span(&self, tables: &Tables) -> Vec<([u8; 16], [u8; 8], Cost, KindCosts)> {
        let spans = self.spans.iter().map(|((trace, span), sum)| {
            let trace = tables.traces[*trace as usize];
            (trace, *span, sum.cost, sum.kinds)
        });
        spans.collect()
    }

    pub(super) fn by_trace(
        &self,
        tables: &Tables,
        values: &IndexSet<Vec<String>, RandomState>,
        position: &[u32],
    ) -> Vec<TraceCost> {
        // The group with most samples of each trace.
        let mut most: Map<Id, (u64, u64, Reverse<&[String]>)> = Map::default();
        for ((trace, group), sum) in &self.trace_groups {
            let values = &values[position[*group as usize] as usize];
            let all = sum.kinds.sum().samples;
            let candidate = (sum.cost.samples, all, Reverse(&values[..]));
            let known = most.entry(*trace).or_insert(candidate);
            *known = (*known).max(candidate);
        }
        let traces = (0..).zip(&self.traces);
        let traces = traces.filter(|(_, sum)| !sum.threads.is_empty());
        let traces = traces.map(|(trace, sum)| {
            let first = most.get(&trace).and_then(|(.., values)| values.0.first());
            let attribute = first.cloned();
            let (start, end) = sum.span.unwrap_or_default();
            TraceCost {
                trace: Trace {
                    id: hexadecimal(&tables.traces[trace as usize]),
                    attribute: attribute.unwrap_or_else(|| NO_ATTRIBUTE.to_owned()),
                },
                cost: sum.sum.cost,
                kinds: sum.sum.kinds,
                first: start,
                last: end,
                threads: sum.threads.len(),
            }
        });
        let mut traces: Vec<TraceCost> = traces.collect();
        traces.sort_by(|one, other| {
            let size = |it: &TraceCost| size_of(it.cost, &it.kinds);
            let order = size(other).cmp(&size(one));
            order.then_with(|| one.trace.cmp(&other.trace))
        });
        traces
    }

    /// Returns the names of all samples' attributes, and the names with several values.
    pub(super) fn attributes(&self, tables: &Tables) -> (BTreeSet<String>, BTreeSet<String>) {
        let mut first: BTreeMap<&str, Id> = BTreeMap::new();
        let mut varying = BTreeSet::new();
        let used = self.attributes.iter().enumerate();
        for (index, _) in used.filter(|(_, used)| **used) {
            for (name, value) in &tables.attributes[index] {
                let name = tables.text(*name);
                if *first.entry(name).or_insert(*value) != *value {
                    varying.insert(name.to_owned());
                }
            }
        }
        let mut names: BTreeSet<String> = first.into_keys().map(str::to_owned).collect();
        let own = [
            (GIL, self.gil_states.len()),
            (THREAD_NAME, self.thread_names.len()),
        ];
        for (name, values) in own {
            if values > 0 {
                names.insert(name.to_owned());
            }
            if values > 1 {
                varying.insert(name.to_owned());
            }
        }
        // They vary among waits, and samples on a CPU have none.
        let waits = [STATE, CALL, REASON].into_iter().zip(self.has_waits);
        names.extend(
            waits
                .filter(|(_, has)| *has)
                .map(|(name, _)| name.to_owned()),
        );
        (names, varying)
    }
}

/// Returns what rows are sorted by: those without a cost by what they have beside it.
fn size_of(cost: Cost, kinds: &KindCosts) -> impl Ord + use<> {
    let beside = if cost.samples == 0 {
        kinds.sum()
    } else {
        Cost::default()
    };
    (cost.size(), beside.size())
}
