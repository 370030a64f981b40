//! Sums of a recording's samples.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_sample::GilState;
use otelctx_sample::format::hexadecimal;

use super::cells::Cells;
use super::fold::Folding;
use super::functions::{Details, add_frames, largest, rows};
use super::select::resource_text;
use super::tables::{Group, Id, Kind, NONE, Sink, Tables};
use super::tree::Trees;
use crate::attributes::{CALL, GIL, REASON, STATE};
use crate::report::{Cost, FunctionCost, KindCosts, Level, NO_ATTRIBUTE, Report, ReportOptions};

mod rows;

type Map<K, V> = HashMap<K, V, RandomState>;

/// The value of a [`Level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Value {
    None,
    Text(Id),
    /// Of [`Sums::own_texts`].
    OwnText(Id),
    Process(Id),
    /// The service of a process.
    Service(Id),
    Trace(Id),
    /// A function's file, and the line in it.
    Line(Id, u32),
}

/// Samples that follow each other, of one kind, thread, context, state of the lock and group.
struct Run {
    kind: Kind,
    /// What the thread waits for; [`NONE`] if the group does not depend on it.
    wait: Id,
    thread: Id,
    context: Id,
    gil: Option<GilState>,
    /// [`NONE`] if the group does not depend on it.
    stack: Id,
    group: u32,
    cost: Cost,
    /// The cost counts as that of the report, not beside it.
    is_main: bool,
    /// The first and the last time.
    span: Option<(u64, u64)>,
}

/// Sums up samples.
pub(super) struct Sums<'o> {
    options: &'o ReportOptions,
    levels: Vec<Level>,
    total: Cost,
    kinds: KindCosts,
    with_trace: Cost,
    by_gil: [Cost; GilState::ALL.len()],
    /// The values of each group.
    groups: IndexSet<Box<[Value]>, RandomState>,
    /// The values of the sample that is being added.
    values: Vec<Value>,
    /// The last samples, which are not in the sums yet; in the cells they are.
    run: Option<Run>,
    /// Samples of one thread and context may be in several groups.
    depends_on_stack: bool,
    depends_on_wait: bool,
    /// Groups say what threads wait for.
    has_reasons: bool,
    /// Values of attributes, by level, attributes and process.
    known_values: Map<(usize, Id, Id), Value>,
    /// Texts that the recording does not have as such.
    own_texts: IndexSet<String, RandomState>,
    /// By stack and group.
    cells: Cells,
    /// By the group's number.
    of_groups: Vec<Sum>,
    /// By the trace's number.
    traces: Vec<TraceSum>,
    /// By trace and group.
    trace_groups: Map<(Id, u32), Sum>,
    /// By trace and span, if asked for.
    spans: Map<(Id, [u8; 8]), Sum>,
    /// By the process's number.
    processes: Vec<Cost>,
    /// Attributes of contexts that samples have.
    attributes: Vec<bool>,
    /// States of a lock and names of threads that samples have.
    gil_states: BTreeSet<&'static str>,
    thread_names: BTreeSet<Id>,
    /// Samples off a CPU have a state, a call, a reason.
    has_waits: [bool; 3],
}

/// A cost, and what it is beside others.
#[derive(Clone, Copy, Default)]
struct Sum {
    cost: Cost,
    kinds: KindCosts,
}

impl Sum {
    fn add(&mut self, run: &Run) {
        self.kinds.add(run.kind.into(), run.cost);
        if run.is_main {
            self.cost.add(run.cost);
        }
    }

    fn add_all(&mut self, other: &Self) {
        self.cost.add(other.cost);
        self.kinds.add_all(&other.kinds);
    }
}

#[derive(Default)]
struct TraceSum {
    sum: Sum,
    /// The first and the last sample.
    span: Option<(u64, u64)>,
    threads: BTreeSet<Id>,
}

/// Maximum number of threads of a trace that are counted.
const MAX_THREADS: usize = 1024;

impl<'o> Sums<'o> {
    pub(super) fn new(options: &'o ReportOptions) -> Self {
        Self {
            options,
            levels: options.by.iter().map(|name| Level::of(name)).collect(),
            total: Cost::default(),
            kinds: KindCosts::default(),
            with_trace: Cost::default(),
            by_gil: Default::default(),
            groups: IndexSet::default(),
            values: Vec::new(),
            run: None,
            depends_on_stack: options
                .by
                .iter()
                .any(|name| matches!(&name[..], "function" | "file" | "line")),
            depends_on_wait: options
                .by
                .iter()
                .any(|name| [STATE, CALL, REASON].contains(&&name[..])),
            has_reasons: options.by.iter().any(|name| name == REASON),
            known_values: Map::default(),
            own_texts: IndexSet::default(),
            cells: Cells::default(),
            of_groups: Vec::new(),
            traces: Vec::new(),
            trace_groups: Map::default(),
            spans: Map::default(),
            processes: Vec::new(),
            attributes: Vec::new(),
            gil_states: BTreeSet::new(),
            thread_names: BTreeSet::new(),
            has_waits: [false; 3],
        }
    }

    /// Adds samples that followed each other to all sums but the cells.
    fn end_run(&mut self, tables: &Tables, run: Option<Run>) {
        let Some(run) = run else { return };
        let cost = if run.is_main {
            run.cost
        } else {
            Cost::default()
        };
        self.total.add(cost);
        self.kinds.add(run.kind.into(), run.cost);
        place(&mut self.of_groups, run.group).add(&run);
        let state = GilState::ALL.iter().position(|it| run.gil == Some(*it));
        if let Some(state) = state.filter(|_| run.is_main) {
            self.by_gil[state].add(cost);
            self.gil_states.insert(GilState::ALL[state].name());
        }
        let context = &tables.contexts[run.context as usize];
        *place(&mut self.attributes, context.attributes) = true;
        let thread = tables.thread(run.thread);
        if thread.name != NONE && self.thread_names.len() < 2 {
            self.thread_names.insert(thread.name);
        }
        place(&mut self.processes, thread.process).add(cost);
        if context.trace == NONE {
            return;
        }
        self.with_trace.add(cost);
        if self.options.with_spans {
            let of_span = self.spans.entry((context.trace, context.span));
            of_span.or_default().add(&run);
        }
        let sum = place(&mut self.traces, context.trace);
        sum.sum.add(&run);
        if let Some((first, last)) = run.span {
            let (start, end) = sum.span.unwrap_or((first, last));
            sum.span = Some((start.min(first), end.max(last)));
        }
        if sum.threads.len() < MAX_THREADS {
            sum.threads.insert(run.thread);
        }
        let of_group = self.trace_groups.entry((context.trace, run.group));
        of_group.or_default().add(&run);
    }

    fn find_group(&mut self, tables: &Tables, sample: &Group<'_>) -> u32 {
        self.values.clear();
        for level in 0..self.levels.len() {
            let value = self.value(level, tables, sample);
            self.values.push(value);
        }
        match self.groups.get_index_of(&self.values[..]) {
            Some(index) => index as u32,
            None => self.groups.insert_full(self.values[..].into()).0 as u32,
        }
    }

    fn value(&mut self, level: usize, tables: &Tables, sample: &Group<'_>) -> Value {
        let (process, facts) = tables.process_of(sample.thread);
        let context = &tables.contexts[sample.context as usize];
        let innermost = || tables.frames(sample.stack).next();
        match &self.levels[level] {
            Level::Service => Value::Service(process),
            Level::Process => Value::Process(process),
            Level::Thread => thread_name(tables, sample.thread),
            Level::Trace if context.trace == NONE => Value::None,
            Level::Trace => Value::Trace(context.trace),
            Level::Function => innermost().map_or(Value::None, |line| {
                Value::Text(tables.functions[line.function as usize].name)
            }),
            Level::File => innermost().map_or(Value::None, |line| {
                match tables.functions[line.function as usize].file {
                    NONE => Value::None,
                    file => Value::Text(file),
                }
            }),
            Level::Line => innermost().map_or(Value::None, |line| {
                let file = tables.functions[line.function as usize].file;
                Value::Line(file, line.line)
            }),
            Level::Attribute(name) if name == GIL => sample.gil.map_or(Value::None, |state| {
                Value::OwnText(own(&mut self.own_texts, state.name()))
            }),
            Level::Attribute(name) => {
                match sample.of_wait(tables, name) {
                    None => {}
                    Some("") => return Value::None,
                    Some(text) => return Value::OwnText(own(&mut self.own_texts, text)),
                }
                let key = (level, context.attributes, process);
                if let Some(known) = self.known_values.get(&key) {
                    return *known;
                }
                let found = tables.find_text(name);
                let found = found.and_then(|name| tables.attribute(context.attributes, name));
                let value = match (found, resource_text(facts, name)) {
                    (Some(value), _) => Value::Text(value),
                    (None, Some(text)) => Value::OwnText(own(&mut self.own_texts, &text)),
                    (None, None) => Value::None,
                };
                self.known_values.insert(key, value);
                value
            }
        }
    }

    fn shown(&self, tables: &Tables, value: Value) -> String {
        match value {
            Value::None => NO_ATTRIBUTE.to_owned(),
            Value::Text(text) => tables.text(text).to_owned(),
            Value::OwnText(index) => self.own_texts[index as usize].clone(),
            Value::Process(process) => tables.processes[process as usize].name(tables),
            Value::Service(process) => {
                let process = &tables.processes[process as usize];
                process.service(tables).into_owned()
            }
            Value::Trace(trace) => hexadecimal(&tables.traces[trace as usize]),
            Value::Line(file, line) => match tables.text(file) {
                "" => NO_ATTRIBUTE.to_owned(),
                file => format!("{file}:{line}"),
            },
        }
    }

    /// Returns the values of groups as they are shown, and the position there of each group: what is
    /// shown alike is one group.
    fn shown_groups(&self, tables: &Tables) -> (IndexSet<Vec<String>, RandomState>, Vec<u32>) {
        let mut shown = IndexSet::default();
        let positions = self.groups.iter().map(|values| {
            let values = values.iter().map(|it| self.shown(tables, *it));
            shown.insert_full(values.collect::<Vec<_>>()).0 as u32
        });
        let positions = positions.collect();
        (shown, positions)
    }

    /// Returns all sums.
    pub(super) fn finish(mut self, tables: &Tables) -> Report {
        let run = self.run.take();
        self.end_run(tables, run);
        let mut folding = Folding::new(tables, self.options.with_plumbing);
        let (values, position) = self.shown_groups(tables);
        let cells = std::mem::take(&mut self.cells).finish();
        let of_traces = self.traces_of_groups(&position, values.len());
        let mut by_group = vec![Sum::default(); values.len()];
        for (position, sum) in position.iter().zip(&self.of_groups) {
            by_group[*position as usize].add_all(sum);
        }
        let costs = by_group.iter().map(|sum| sum.cost).enumerate();
        let order = largest_first(costs);
        let mut details = Details::new(&order, &position, self.options, folding.len());
        let mut all = vec![FunctionCost::default(); folding.len()];
        let mut unnamed: Map<Id, Cost> = Map::default();
        let mut trees = Trees::new(&self.options.selection);
        // Each stack is folded once, whatever groups it occurs in.
        cells.each(|stack, groups| {
            let mut cost = Cost::default();
            groups.iter().for_each(|(_, more)| cost.add(*more));
            let frames = folding.frames(stack);
            add_frames(&mut all, frames, cost);
            details.add(frames, groups);
            if self.options.with_tree {
                let frames = frames.to_vec();
                trees.add(&folding, &frames, cost);
            }
            let innermost = tables.stacks[stack as usize].first();
            let innermost = innermost.map(|it| &tables.locations[*it as usize]);
            if let Some(location) = innermost.filter(|it| !it.is_named) {
                let mapping = &tables.mappings[location.mapping as usize];
                if mapping.file != NONE {
                    unnamed.entry(mapping.file).or_default().add(cost);
                }
            }
        });
        if details.choose() {
            cells.each(|stack, groups| details.add_totals(folding.frames(stack), groups));
        }
        let names = |sums: Map<Id, Cost>| {
            let sums = sums.into_iter();
            largest_first(sums.map(|(text, cost)| (tables.text(text).to_owned(), cost)))
        };
        let (attributes, varying) = self.attributes(tables);
        let (by_total, most) = (self.options.by_total, self.options.functions);
        let mut by_function = rows(&folding, largest(&all, most, by_total), by_total);
        by_function.truncate(most);
        Report {
            total: self.total,
            kinds: self.kinds,
            idle: Cost::default(),
            with_trace: self.with_trace,
            by_gil: self.by_gil,
            groups: self.groups(&folding, &values, &by_group, &of_traces, &details),
            attributes,
            varying,
            by_trace: self.by_trace(tables, &values, &position),
            by_span: self.by_span(tables),
            tree: trees.down.nodes(&folding, self.total),
            callers: trees.up.nodes(&folding, self.total),
            functions: all.iter().filter(|it| it.total.samples > 0).count(),
            by_function,
            unnamed: names(unnamed),
            by_process: self.by_process(tables, |process| process.name(tables)),
            by_service: self.by_process(tables, |process| process.service(tables).into_owned()),
            start: tables
                .span
                .filter(|_| tables.has_date)
                .map_or(0, |(first, _)| first),
            duration: tables.span.map_or(0, |(first, last)| last - first),
            period: tables.period,
        }
    }
}

impl Sink for Sums<'_> {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        let stack = if self.depends_on_stack {
            group.stack
        } else {
            NONE
        };
        let wait = if self.depends_on_wait {
            group.wait
        } else {
            NONE
        };
        let is_same = |run: &Run| {
            (
                run.kind,
                run.wait,
                run.thread,
                run.context,
                run.gil,
                run.stack,
            ) == (
                group.kind,
                wait,
                group.thread,
                group.context,
                group.gil,
                stack,
            )
        };
        let mut run = match self.run.take() {
            Some(run) if is_same(&run) => run,
            other => {
                self.end_run(tables, other);
                Run {
                    kind: group.kind,
                    wait,
                    thread: group.thread,
                    context: group.context,
                    gil: group.gil,
                    stack,
                    group: self.find_group(tables, group),
                    cost: Cost::default(),
                    is_main: group.kind == Kind::Running
                        || !self.options.selection.kinds.is_empty(),
                    span: None,
                }
            }
        };
        let mut cost = Cost::default();
        group.each(|time, samples, nanoseconds| {
            cost.add(Cost {
                samples,
                nanoseconds,
            });
            if let Some(time) = time {
                let (first, last) = run.span.unwrap_or((time, time));
                run.span = Some((first.min(time), last.max(time)));
            }
        });
        if group.kind != Kind::Running {
            let facts = tables.waits[group.wait as usize];
            self.has_waits[0] = true;
            self.has_waits[1] |= facts.call != NONE;
            self.has_waits[2] |= facts.reason != NONE;
        }
        if run.is_main {
            let stack = match self.has_reasons {
                true => group.stack,
                false => group.shown_stack,
            };
            self.cells.add(stack, run.group, cost);
        }
        run.cost.add(cost);
        self.run = Some(run);
    }

    fn hides_idle(&self) -> bool {
        true
    }

    fn needs_start(&self) -> bool {
        false
    }
}

/// Returns the place of an entry in a list by its number, which is made longer as needed.
fn place<T: Default>(list: &mut Vec<T>, id: Id) -> &mut T {
    let index = id as usize;
    if list.len() <= index {
        list.resize_with(index + 1, T::default);
    }
    &mut list[index]
}

fn thread_name(tables: &Tables, thread: Id) -> Value {
    match tables.thread(thread).name {
        NONE => Value::None,
        name => Value::Text(name),
    }
}

fn own(texts: &mut IndexSet<String, RandomState>, text: &str) -> Id {
    match texts.get_index_of(text) {
        Some(index) => index as Id,
        None => texts.insert_full(text.to_owned()).0 as Id,
    }
}

fn largest_first<T: Ord>(sums: impl Iterator<Item = (T, Cost)>) -> Vec<(T, Cost)> {
    let mut sums: Vec<_> = sums.collect();
    sums.sort_by(|(one_name, one), (other_name, other)| {
        let order = other.size().cmp(&one.size());
        order.then_with(|| one_name.cmp(other_name))
    });
    sums
}
