//! Turns what was read into a flame graph.

use std::cmp::Reverse;
use std::mem::take;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_sample::GilState;
use otelctx_sample::format::hexadecimal;

use super::cells::Cells;
use super::fold::Folding;
use super::page::function_of;
use super::select::resource_text;
use super::tables::{Group, Id, Kind, NONE, Sink, Tables};
use crate::attributes::{GIL, UNKNOWN_SERVICE};
use crate::report::Selection;
use crate::write::flame_graph::{Frame, Graph, Graphs, Label};

/// What is above the frames of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Levels {
    /// Its service is known once all samples were read.
    process: Id,
    value: Value,
}

/// The value of [`Drawing::by`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Value {
    None,
    /// A number of [`Drawing::texts`].
    Text(u32),
    /// The process's name.
    Process,
}

/// Thread, context, state of the lock, and wait of samples that follow each other.
type Run = (Id, Id, Option<GilState>, Option<Id>);

/// Adds up stacks.
#[derive(Debug, Default)]
pub(super) struct Drawing {
    by: Option<String>,
    texts: IndexSet<String, RandomState>,
    levels: IndexSet<Levels, RandomState>,
    /// True if kinds of time are selected.
    has_kinds: bool,
    /// By stack, and position in `levels`: of all kinds that are selected, otherwise of time on a CPU.
    cells: Cells,
    /// Of other time, if no kinds are selected.
    others: Cells,
    /// The last samples' run, with their levels.
    last: Option<(Run, u32)>,
    /// A sample has a value of `by`.
    has_value: bool,
}

impl Drawing {
    pub(super) fn new(by: Option<&str>, selection: &Selection) -> Self {
        Self {
            by: by.map(str::to_owned),
            has_kinds: !selection.kinds.is_empty(),
            ..Self::default()
        }
    }

    /// Returns true if no sample was collected.
    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.others.is_empty()
    }

    /// Returns true if a sample has the attribute that the graph is divided by.
    pub(super) fn has_value(&self) -> bool {
        self.has_value
    }

    /// Adds everything to graphs, of selected or CPU time and of other time, and forgets it. Without
    /// `by`, nothing is between services and functions.
    pub(super) fn add_to(
        &mut self,
        graphs: &mut Graphs,
        tables: &Tables,
        plumbing: bool,
        by: bool,
    ) {
        let (cells, others) = (take(&mut self.cells), take(&mut self.others));
        for (cells, graph) in [(cells, &mut graphs.shown), (others, &mut graphs.others)] {
            self.add_cells(cells, graph, tables, plumbing, by);
        }
        self.above.clear();
        self.last = None;
    }

    fn add_cells(
        &self,
        cells: Cells,
        graph: &mut Graph,
        tables: &Tables,
        plumbing: bool,
        by: bool,
    ) {
        let mut folding = Folding::new(tables, plumbing);
        // The label of each function, once it is known; that is none if it has no room.
        let mut functions: Vec<Option<Option<u32>>> = vec![None; folding.len()];
        // Likewise of what is above functions.
        let mut known: Vec<Option<Path>> = vec![None; self.above.len()];
        let mut path = Path::new();
        for (above, stack, cost) in self.in_order(tables, cells) {
            path.clear();
            let new = || self.labels(&self.above[above as usize], graph, tables, wanted);
            path.extend_from_slice(known[above as usize].get_or_insert_with(new));
            for shown in folding.frames(stack).iter().rev() {
                let known = &mut functions[shown.function as usize];
                let new = || graph.label(Label::Frame(frame(tables, shown.function)));
                path.push((*known.get_or_insert_with(new), shown.through));
            }
            graph.add(&path, cost);
        }
    }

    /// Returns what is above stacks, the stacks and their costs: those next to each other that start alike,
        tables.sort_from_root(&mut stacks);
        let last = stacks.iter().max().map_or(0, |last| *last as usize + 1);
        let mut rank_of = vec![0_u32; last];
        for (rank, stack) in (0..).zip(&stacks) {
            rank_of[*stack as usize] = rank;
        }
        all.sort_unstable_by_key(|(above, stack, _)| {
            let total = totals[*above as usize].size();
            (Reverse(total), *above, rank_of[*stack as usize])
        });
        all
    /// what takes most time first, as the graph's memory is bounded.
    fn in_order(&self, tables: &Tables, cells: Cells) -> Vec<(u32, Id, Cost)> {
        let (mut all, mut stacks) = (Vec::new(), Vec::new());
        let mut totals = vec![Cost::default(); self.above.len()];
        cells.finish().each(|stack, cells| {
            let frames = folding.frames(stack).to_vec();
            for (levels, cost) in cells {
                let levels = self.levels[*levels as usize];
                path.clear();
                let service = service_of(tables, levels.process);
                path.push((graph.label(Label::Service(service)), 0));
                if by {
                    path.push((graph.label(Label::Value(value(levels))), 0));
                }
                for shown in frames.iter().rev() {
                    let known = &mut functions[shown.function as usize];
                    let new = || graph.label(Label::Frame(frame(tables, shown.function)));
                    path.push((*known.get_or_insert_with(new), shown.through));
                }
                graph.add(&path, *cost);
        let values = self.levels.values(tables, group);
        for (has_value, value) in self.has_value.iter_mut().zip(&values) {
            *has_value |= *value != Value::None;
        }
        let (process, _) = tables.process_of(group.thread);
        let above = Above { process, values };
        let above = self.above.insert_full(above).0 as u32;
        self.last = Some((run, above));
        above
            }
        });
    }

    /// Returns the labels of a service and of the values below it.
    fn labels(&self, above: &Above, graph: &mut Graph, tables: &Tables, wanted: &[bool]) -> Path {
        let service = Label::Service(service_of(tables, above.process));
        let mut labels = vec![(graph.label(service), 0)];
        let values = above.values.iter().zip(wanted).enumerate();
        for (level, (value, _)) in values.filter(|(_, (_, wanted))| **wanted) {
            let text = self.levels.shown(tables, *value);
            labels.push((graph.label(Label::Value(level as u32, text)), 0));
        }
        labels
    }

    fn above(&mut self, tables: &Tables, group: &Group<'_>) -> u32 {
        let run = run_of(group);
        match self.last {
            Some((known, above)) if known == run => return above,
            _ => {}
        }
    }
}

impl Sink for Drawing {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        let levels = self.level(tables, group);
        let cells = match group.kind {
            _ if self.has_kinds => &mut self.cells,
            Kind::Running => &mut self.cells,
            _ => &mut self.others,
        };
        cells.add(group.shown_stack, levels, group.cost());
    }

    fn hides_idle(&self) -> bool {
        true
    }

    fn needs_start(&self) -> bool {
        false
    }
}

fn service_of(tables: &Tables, process: Id) -> String {
    let service = tables.processes[process as usize].service(tables);
    // SDKs name a service so if nobody else did; what follows is the command.
    let command = service.strip_prefix(UNKNOWN_SERVICE);
    let command = command.and_then(|rest| rest.strip_prefix(':'));
    command.unwrap_or(&service).to_owned()
}

/// Returns what stands for a thread's pool: its name with `*` in place of its last number, as in
/// `worker-*` for `worker-12`.
fn pool_of(name: &str) -> String {
    let is_digit = |it: char| it.is_ascii_digit();
    let Some(end) = name.rfind(is_digit) else {
        return name.to_owned();
    };
    let start = name[..end].trim_end_matches(is_digit).len();
    format!("{}*{}", &name[..start], &name[end + 1..])
}

fn frame(tables: &Tables, id: Id) -> Frame {
    let function = match tables.functions.get_index(id as usize) {
        Some(function) => function_of(tables, id, function),
        None => return Frame::plumbing(super::fold::plumbing_name(tables, id)),
    };
    Frame {
        name: function.name,
        file: function.file,
        line: function.line,
        language: Some(function.language.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_pool_have_one_name() {
        for (name, pool) in [
            ("worker-1", "worker-*"),
            ("ThreadPoolExecutor-0_12", "ThreadPoolExecutor-0_*"),
            ("Thread-5 (run)", "Thread-* (run)"),
            ("7", "*"),
            ("main", "main"),
            ("é9é", "é*é"),
        ] {
            assert_eq!(pool_of(name), pool);
        }
    }
}
