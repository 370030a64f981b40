//! Sums by function.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::fold::{Folded, Folding, Frame};
use crate::report::{Cost, Function, FunctionCost, ReportOptions};

type Map<K, V> = HashMap<K, V, RandomState>;

/// Functions of the costliest groups.
pub(super) struct Details {
    /// The position of each group of cells among those with functions, and of each as it is shown.
    positions: Vec<Option<usize>>,
    of_shown: Vec<Option<usize>>,
    /// Number of functions of each group that are wanted.
    most: usize,
    by_total: bool,
    /// Costs by function.
    functions: Vec<Map<Folded, FunctionCost>>,
    /// Functions that some group has.
    is_wanted: Vec<bool>,
}

impl Details {
    /// `order` has all groups as they are shown, the costliest first, and `shown` the number there of
    /// each group of cells.
    pub(super) fn new(
        order: &[(usize, Cost)],
        shown: &[u32],
        options: &ReportOptions,
        functions: usize,
    ) -> Self {
        let most = options.functions_of_group;
        let groups = if most > 0 { options.detailed_groups } else { 0 };
        let mut of_shown = vec![None; order.len()];
        for (position, (group, _)) in order.iter().take(groups).enumerate() {
            of_shown[*group] = Some(position);
        }
        let positions = shown.iter().map(|group| of_shown[*group as usize]);
        Self {
            positions: positions.collect(),
            of_shown,
            most,
            by_total: options.by_total,
            functions: vec![Map::default(); groups.min(order.len())],
            is_wanted: vec![false; functions],
        }
    }

    /// Adds a stack to what the functions of groups are chosen by.
    pub(super) fn add(&mut self, frames: &[Frame], groups: &[(u32, Cost)]) {
        let wanted = if self.by_total { frames.len() } else { 1 };
        for (group, cost) in groups {
            let Some(position) = self.positions[*group as usize] else {
                continue;
            };
            for (depth, frame) in frames.iter().take(wanted).enumerate() {
                let sum = self.functions[position].entry(frame.function).or_default();
                if depth == 0 {
                    sum.own.add(*cost);
                }
                if self.by_total && frame.is_first {
                    sum.total.add(*cost);
                }
            }
        }
    }

    /// Chooses the functions of each group, the costliest. Returns true if their totals are missing:
    /// then all stacks are added again, by [`Self::add_totals`].
    pub(super) fn choose(&mut self) -> bool {
        for functions in &mut self.functions {
            // Of what they are sorted by, others have none.
            let any = functions.drain();
            let any = any.filter(|(_, cost)| self.by_total || cost.own.samples > 0);
            let chosen = costliest(any.collect(), self.most, self.by_total);
            for (function, _) in &chosen {
                self.is_wanted[*function as usize] = true;
            }
            functions.extend(chosen);
        }
        !self.by_total && !self.functions.is_empty()
    }

    /// Adds the totals of a stack's functions to the groups that it occurs in. This costs less than
    /// totals of all functions.
    pub(super) fn add_totals(&mut self, frames: &[Frame], groups: &[(u32, Cost)]) {
        let wanted = |frame: &&Frame| frame.is_first && self.is_wanted[frame.function as usize];
        for frame in frames.iter().filter(wanted) {
            for (group, cost) in groups {
                if let Some(position) = self.positions[*group as usize]
                    && let Some(sum) = self.functions[position].get_mut(&frame.function)
                {
                    sum.total.add(*cost);
                }
            }
        }
    }

    /// Returns the functions that were chosen for a group.
    pub(super) fn of(&self, group: usize) -> Vec<(Folded, FunctionCost)> {
        let functions = self.of_shown[group].map(|position| &self.functions[position]);
        let functions = functions.into_iter().flatten();
        functions.map(|(id, cost)| (*id, *cost)).collect()
    }
}

/// Adds the cost of a stack to its functions, to each once.
pub(super) fn add_frames(functions: &mut [FunctionCost], frames: &[Frame], cost: Cost) {
    for (depth, frame) in frames.iter().enumerate() {
        let sum = &mut functions[frame.function as usize];
        if depth == 0 {
            sum.own.add(cost);
        }
        if frame.is_first {
            sum.total.add(cost);
        }
    }
}

pub(super) fn largest(
    all: &[FunctionCost],
    most: usize,
    by_total: bool,
) -> Vec<(Folded, FunctionCost)> {
    let all = all.iter().enumerate();
    let any = all.filter(|(_, cost)| cost.total.samples > 0);
    costliest(
        any.map(|(id, cost)| (id as Folded, *cost)).collect(),
        most,
        by_total,
    )
}

fn size_of(cost: &FunctionCost, by_total: bool) -> impl Ord + use<> {
    match (cost.own.size(), cost.total.size()) {
        (own, total) if by_total => (total, own),
        sizes => sizes,
    }
}

/// Returns the costliest functions: of a few, not the costs of all are sorted.
fn costliest(
    mut functions: Vec<(Folded, FunctionCost)>,
    most: usize,
    by_total: bool,
) -> Vec<(Folded, FunctionCost)> {
    if most < functions.len() {
        // More than wanted: those of equal cost are sorted by name later.
        let key = |(_, cost): &(Folded, FunctionCost)| std::cmp::Reverse(size_of(cost, by_total));
        let (_, (_, last), _) = functions.select_nth_unstable_by_key(most, key);
        let least = size_of(last, by_total);
        functions.retain(|(_, cost)| size_of(cost, by_total) >= least);
    }
    functions
}

/// Returns functions, costliest first.
pub(super) fn rows(
    folding: &Folding<'_>,
    functions: Vec<(Folded, FunctionCost)>,
    by_total: bool,
) -> Vec<(Function, FunctionCost)> {
    let rows = functions.into_iter();
    let mut rows: Vec<_> = rows
        .map(|(function, cost)| (folding.function(function), cost))
        .collect();
    rows.sort_by(|(one, cost), (other, more)| {
        let order = size_of(more, by_total).cmp(&size_of(cost, by_total));
        order.then_with(|| one.cmp(other))
    });
    rows
}
