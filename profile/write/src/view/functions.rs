//! Sums by function.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::fold::{Folded, Folding, Frame};
use crate::report::{Cost, Function, FunctionCost, ReportOptions};

type Map<K, V> = HashMap<K, V, RandomState>;

/// Functions of the costliest groups.
pub(super) struct Details {
    /// The position of each group among those with functions.
    positions: Map<u32, usize>,
    /// Costs by function.
    functions: Vec<Map<Folded, FunctionCost>>,
}

impl Details {
    pub(super) fn new(order: &[(usize, Cost)], options: &ReportOptions, functions: usize) -> Self {
        let wants = options.functions_of_group > 0 && functions > 0;
        let most = if wants { options.detailed_groups } else { 0 };
        let top = order.iter().take(most).enumerate();
        let positions: Map<u32, usize> = top.map(|(at, (group, _))| (*group as u32, at)).collect();
        Self {
            functions: vec![Map::default(); positions.len()],
            positions,
        }
    }

    pub(super) fn add(&mut self, group: u32, frames: &[Frame], cost: Cost) {
        let Some(position) = self.positions.get(&group) else {
            return;
        };
        let functions = &mut self.functions[*position];
        for (depth, frame) in frames.iter().enumerate() {
            add_frame(
                functions.entry(frame.function).or_default(),
                depth,
                *frame,
                cost,
            );
        }
    }

    pub(super) fn of(
        &self,
        group: usize,
        most: usize,
        by_total: bool,
    ) -> Vec<(Folded, FunctionCost)> {
        let position = self.positions.get(&(group as u32));
        let functions = position.map(|position| self.functions[*position].iter());
        let functions = functions.into_iter().flatten();
        // Of what they are sorted by, others have none.
        let any = functions.filter(|(_, cost)| by_total || cost.own.samples > 0);
        let any = any.map(|(id, cost)| (*id, *cost)).collect();
        costliest(any, most, by_total)
    }
}

/// Adds the cost of a stack to its functions, to each once.
pub(super) fn add_frames(functions: &mut [FunctionCost], frames: &[Frame], cost: Cost) {
    for (depth, frame) in frames.iter().enumerate() {
        add_frame(&mut functions[frame.function as usize], depth, *frame, cost);
    }
}

fn add_frame(sum: &mut FunctionCost, depth: usize, frame: Frame, cost: Cost) {
    if depth == 0 {
        sum.own.add(cost);
    }
    if frame.is_first {
        sum.total.add(cost);
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
