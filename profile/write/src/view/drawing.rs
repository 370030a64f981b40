//! Turns what was read into a flame graph.

use std::cmp::Reverse;
use std::mem::take;

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use super::cells::Cells;
use super::fold::Folding;
use super::levels::{Levels, Run, Value, run_of};
use super::page::function_of;
use super::tables::{Group, Id, Kind, Sink, Tables};
use crate::attributes::UNKNOWN_SERVICE;
use crate::report::{Cost, Selection};
use crate::write::flame_graph::{Frame, Graph, Graphs, Label};

/// What is above the frames of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Above {
    /// Its service is known once all samples were read.
    process: Id,
    values: Box<[Value]>,
}

/// Labels from the service on, each with the number of frames that are left out above it. No label has no
/// room.
type Path = Vec<(Option<u32>, u32)>;

/// Adds up stacks.
#[derive(Debug, Default)]
pub(super) struct Drawing {
    levels: Levels,
    above: IndexSet<Above, RandomState>,
    /// True if kinds of time are selected.
    has_kinds: bool,
    /// By stack, and position in `above`: of all kinds that are selected, otherwise of time on a CPU.
    cells: Cells,
    /// Of other time, if no kinds are selected.
    others: Cells,
    /// The last samples' run, with the position in `above`.
    last: Option<(Run, u32)>,
    /// A sample has a value of this level.
    has_value: Vec<bool>,
}

impl Drawing {
    pub(super) fn new(by: &[String], selection: &Selection) -> Self {
        Self {
            levels: Levels::new(by),
            has_value: vec![false; by.len()],
            has_kinds: !selection.kinds.is_empty(),
            ..Self::default()
        }
    }

    /// Returns true if no sample was collected.
    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.others.is_empty()
    }

    /// Returns for each level that the graph is divided by, whether a sample has it.
    pub(super) fn has_values(&self) -> Vec<bool> {
        self.has_value.clone()
    }

    /// Adds everything to graphs, of selected or CPU time and of other time, and forgets it. Levels that
    /// are not `wanted` are left out.
    pub(super) fn add_to(
        &mut self,
        graphs: &mut Graphs,
        tables: &Tables,
        plumbing: bool,
        wanted: &[bool],
    ) {
        let (cells, others) = (take(&mut self.cells), take(&mut self.others));
        for (cells, graph) in [(cells, &mut graphs.shown), (others, &mut graphs.others)] {
            self.add_cells(cells, graph, tables, plumbing, wanted);
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
        wanted: &[bool],
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
    /// what takes most time first, as the graph's memory is bounded.
    fn in_order(&self, tables: &Tables, cells: Cells) -> Vec<(u32, Id, Cost)> {
        let (mut all, mut stacks) = (Vec::new(), Vec::new());
        let mut totals = vec![Cost::default(); self.above.len()];
        cells.finish().each(|stack, cells| {
            stacks.push(stack);
            for (above, cost) in cells {
                totals[*above as usize].add(*cost);
                all.push((*above, stack, *cost));
            }
        });
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
}

impl Sink for Drawing {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        let above = self.above(tables, group);
        let cells = match group.kind {
            _ if self.has_kinds => &mut self.cells,
            Kind::Running => &mut self.cells,
            _ => &mut self.others,
        };
        cells.add(group.shown_stack, above, group.cost());
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
