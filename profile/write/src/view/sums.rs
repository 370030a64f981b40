//! Sums of a recording's samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_sample::GilState;
use otelctx_sample::format::hexadecimal;

use super::fold::{Folded, Folding};
use super::select::resource_text;
use super::tables::{Group, Id, NONE, Sink, Tables};
use super::tree::Trees;
use crate::attributes::{GIL, THREAD_NAME};
use crate::report::{
    Cost, Function, FunctionCost, GroupCost, NO_ATTRIBUTE, Report, ReportOptions, Trace, TraceCost,
};

type Map<K, V> = HashMap<K, V, RandomState>;

/// What samples are grouped by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Level {
    /// The attribute with this name, of the context or the resource.
    Attribute(String),
    Service,
    Process,
    Thread,
    Trace,
    /// The innermost function.
    Function,
    /// Its file.
    File,
    /// The innermost function's line.
    Line,
}

impl Level {
    fn of(name: &str) -> Self {
        match name {
            "service" => Self::Service,
            "process" => Self::Process,
            "thread" => Self::Thread,
            "trace" => Self::Trace,
            "function" => Self::Function,
            "file" => Self::File,
            "line" => Self::Line,
            name => Self::Attribute(name.to_owned()),
        }
    }
}

/// Returns true if `name` is something to group by that every recording has.
pub(crate) fn is_level(name: &str) -> bool {
    !matches!(Level::of(name), Level::Attribute(_))
}

/// The value of a [`Level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Value {
    None,
    Text(Id),
    /// Of [`Sums::own_texts`].
    OwnText(Id),
    Process(Id),
    Trace(Id),
    /// A function's file, and the line in it.
    Line(Id, u32),
}

/// Sums up samples.
pub(super) struct Sums<'o> {
    options: &'o ReportOptions,
    levels: Vec<Level>,
    total: Cost,
    with_trace: Cost,
    by_gil: [Cost; GilState::ALL.len()],
    /// The values of each group.
    groups: IndexSet<Box<[Value]>, RandomState>,
    /// The values of the sample that is being added.
    values: Vec<Value>,
    /// Values of attributes, by level, attributes and process.
    known_values: Map<(usize, Id, Id), Value>,
    /// Texts that the recording does not have as such.
    own_texts: IndexSet<String, RandomState>,
    /// By group and stack.
    cells: Map<(u32, Id), Cost>,
    traces: Map<Id, TraceSum>,
    processes: Map<Id, Cost>,
    /// Attributes of contexts that samples have.
    attributes: Vec<bool>,
    /// States of a lock and names of threads that samples have.
    gil_states: BTreeSet<&'static str>,
    thread_names: BTreeSet<Id>,
}

#[derive(Default)]
struct TraceSum {
    cost: Cost,
    /// The first and the last sample.
    span: Option<(u64, u64)>,
    threads: BTreeSet<Id>,
    /// Samples by group.
    groups: Vec<(u32, u64)>,
}

/// Maximum number of threads of a trace that are counted.
const MAX_THREADS: usize = 1024;

impl<'o> Sums<'o> {
    pub(super) fn new(options: &'o ReportOptions) -> Self {
        Self {
            options,
            levels: options.by.iter().map(|name| Level::of(name)).collect(),
            total: Cost::default(),
            with_trace: Cost::default(),
            by_gil: Default::default(),
            groups: IndexSet::default(),
            values: Vec::new(),
            known_values: Map::default(),
            own_texts: IndexSet::default(),
            cells: Map::default(),
            traces: Map::default(),
            processes: Map::default(),
            attributes: Vec::new(),
            gil_states: BTreeSet::new(),
            thread_names: BTreeSet::new(),
        }
    }

    fn group(&mut self, tables: &Tables, sample: &Group<'_>) -> u32 {
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
            Level::Service => {
                let text = facts.service(tables);
                Value::OwnText(own(&mut self.own_texts, &text))
            }
            Level::Process => Value::Process(process),
            Level::Thread => Value::Text(tables.thread(sample.thread).name),
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
            Level::Attribute(name) if name == THREAD_NAME => {
                match tables.thread(sample.thread).name {
                    NONE => Value::None,
                    name => Value::Text(name),
                }
            }
            Level::Attribute(name) if name == GIL => sample.gil.map_or(Value::None, |state| {
                Value::OwnText(own(&mut self.own_texts, state.name()))
            }),
            Level::Attribute(name) => {
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
            Value::Trace(trace) => hexadecimal(&tables.traces[trace as usize]),
            Value::Line(file, line) => match tables.text(file) {
                "" => NO_ATTRIBUTE.to_owned(),
                file => format!("{file}:{line}"),
            },
        }
    }

    /// Returns all sums.
    pub(super) fn finish(mut self, tables: &Tables) -> Report {
        let mut folding = Folding::new(tables, self.options.with_plumbing, &self.options.languages);
        let mut functions: Map<Folded, FunctionCost> = Map::default();
        let mut unnamed: Map<Id, Cost> = Map::default();
        let cells = std::mem::take(&mut self.cells);
        let mut by_group = vec![Cost::default(); self.groups.len()];
        for ((group, stack), cost) in &cells {
            by_group[*group as usize].add(*cost);
            add_functions(&mut functions, &mut folding, *stack, *cost);
            let innermost = tables.stacks[*stack as usize].first();
            let innermost = innermost.map(|it| &tables.locations[*it as usize]);
            if let Some(location) = innermost.filter(|it| !it.is_named) {
                let mapping = &tables.mappings[location.mapping as usize];
                if mapping.file != NONE {
                    unnamed.entry(mapping.file).or_default().add(*cost);
                }
            }
        }
        let order = largest_first(by_group.iter().copied().enumerate());
        let top = order.iter().take(self.options.detailed_groups);
        let top: Vec<u32> = top.map(|(group, _)| *group as u32).collect();
        let mut of_group: Map<u32, Map<Folded, FunctionCost>> = Map::default();
        for ((group, stack), cost) in &cells {
            if top.contains(group) {
                let functions = of_group.entry(*group).or_default();
                add_functions(functions, &mut folding, *stack, *cost);
            }
        }
        let mut traces = vec![0; self.groups.len()];
        for (group, _) in self.traces.values().flat_map(|it| &it.groups) {
            traces[*group as usize] += 1;
        }
        let groups = order.into_iter().map(|(group, cost)| {
            let values = &self.groups[group];
            let functions = of_group.remove(&(group as u32)).unwrap_or_default();
            let mut functions = rows(&folding, functions, self.options.by_total);
            functions.truncate(self.options.functions_of_group);
            GroupCost {
                values: values.iter().map(|it| self.shown(tables, *it)).collect(),
                cost,
                traces: traces[group],
                functions,
            }
        });
        let mut groups: Vec<GroupCost> = groups.collect();
        groups.sort_by(|one, other| {
            let order = other.cost.size().cmp(&one.cost.size());
            order.then_with(|| one.values.cmp(&other.values))
        });
        let mut trees = Trees::new(&self.options.selection);
        if self.options.with_tree {
            for ((_, stack), cost) in &cells {
                trees.add(&mut folding, *stack, *cost);
            }
        }
        let names = |sums: Map<Id, Cost>| {
            let sums = sums.into_iter();
            largest_first(sums.map(|(text, cost)| (tables.text(text).to_owned(), cost)))
        };
        let (attributes, varying) = self.attributes(tables);
        Report {
            total: self.total,
            with_trace: self.with_trace,
            by_gil: self.by_gil,
            groups,
            attributes,
            varying,
            by_trace: self.by_trace(tables),
            tree: trees.down.nodes(&folding, self.total),
            callers: trees.up.nodes(&folding, self.total),
            by_function: rows(&folding, functions, self.options.by_total),
            unnamed: names(unnamed),
            by_process: self.by_process(tables, |process| process.name(tables)),
            by_service: self.by_process(tables, |process| process.service(tables).into_owned()),
            start: tables.span.map_or(0, |(first, _)| first),
            duration: tables.span.map_or(0, |(first, last)| last - first),
        }
    }

    fn by_process(
        &self,
        tables: &Tables,
        name: impl Fn(&super::tables::Process) -> String,
    ) -> Vec<(String, Cost)> {
        let mut sums: BTreeMap<String, Cost> = BTreeMap::new();
        for (process, cost) in &self.processes {
            let name = name(&tables.processes[*process as usize]);
            sums.entry(name).or_default().add(*cost);
        }
        largest_first(sums.into_iter())
    }

    fn by_trace(&self, tables: &Tables) -> Vec<TraceCost> {
        let traces = self.traces.iter().map(|(trace, sum)| {
            let group = sum.groups.iter().max_by(|(one, most), (other, more)| {
                let name = |group: &u32| {
                    let values = &self.groups[*group as usize];
                    values.first().map(|value| self.shown(tables, *value))
                };
                most.cmp(more).then_with(|| name(other).cmp(&name(one)))
            });
            let first = group.and_then(|(group, _)| self.groups[*group as usize].first());
            let attribute = first.map(|value| self.shown(tables, *value));
            let (start, end) = sum.span.unwrap_or_default();
            TraceCost {
                trace: Trace {
                    id: hexadecimal(&tables.traces[*trace as usize]),
                    attribute: attribute.unwrap_or_else(|| NO_ATTRIBUTE.to_owned()),
                },
                cost: sum.cost,
                first: start,
                last: end,
                threads: sum.threads.len(),
            }
        });
        let mut traces: Vec<TraceCost> = traces.collect();
        traces.sort_by(|one, other| {
            let order = other.cost.size().cmp(&one.cost.size());
            order.then_with(|| one.trace.cmp(&other.trace))
        });
        traces
    }

    /// Returns the names of all samples' attributes, and the names with several values.
    fn attributes(&self, tables: &Tables) -> (BTreeSet<String>, BTreeSet<String>) {
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
        (names, varying)
    }
}

impl Sink for Sums<'_> {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        let (mut cost, mut span) = (Cost::default(), None::<(u64, u64)>);
        group.each(|time, samples, nanoseconds| {
            cost.add(Cost {
                samples,
                nanoseconds,
            });
            if let Some(time) = time {
                let (first, last) = span.unwrap_or((time, time));
                span = Some((first.min(time), last.max(time)));
            }
        });
        self.total.add(cost);
        let state = GilState::ALL.iter().position(|it| group.gil == Some(*it));
        if let Some(state) = state {
            self.by_gil[state].add(cost);
            self.gil_states.insert(GilState::ALL[state].name());
        }
        let index = self.group(tables, group);
        let cell = self.cells.entry((index, group.stack)).or_default();
        cell.add(cost);
        let context = &tables.contexts[group.context as usize];
        let used = context.attributes as usize;
        if self.attributes.len() <= used {
            self.attributes.resize(used + 1, false);
        }
        self.attributes[used] = true;
        let thread = tables.thread(group.thread);
        if thread.name != NONE && self.thread_names.len() < 2 {
            self.thread_names.insert(thread.name);
        }
        let process = self.processes.entry(thread.process).or_default();
        process.add(cost);
        if context.trace == NONE {
            return;
        }
        self.with_trace.add(cost);
        let sum = self.traces.entry(context.trace).or_default();
        sum.cost.add(cost);
        if let Some((first, last)) = span {
            let (start, end) = sum.span.unwrap_or((first, last));
            sum.span = Some((start.min(first), end.max(last)));
        }
        if sum.threads.len() < MAX_THREADS {
            sum.threads.insert(group.thread);
        }
        match sum.groups.iter_mut().find(|(known, _)| *known == index) {
            Some((_, samples)) => *samples = samples.saturating_add(cost.samples),
            None => sum.groups.push((index, cost.samples)),
        }
    }
}

fn own(texts: &mut IndexSet<String, RandomState>, text: &str) -> Id {
    match texts.get_index_of(text) {
        Some(index) => index as Id,
        None => texts.insert_full(text.to_owned()).0 as Id,
    }
}

/// Adds the cost of a stack to its functions, to each once.
fn add_functions(
    functions: &mut Map<Folded, FunctionCost>,
    folding: &mut Folding<'_>,
    stack: Id,
    cost: Cost,
) {
    let frames = folding.functions(stack);
    for (depth, function) in frames.iter().enumerate() {
        let sum = functions.entry(*function).or_default();
        if depth == 0 {
            sum.own.add(cost);
        }
        if !frames[..depth].contains(function) {
            sum.total.add(cost);
        }
    }
}

/// Returns functions, costliest first.
fn rows(
    folding: &Folding<'_>,
    functions: Map<Folded, FunctionCost>,
    by_total: bool,
) -> Vec<(Function, FunctionCost)> {
    let rows = functions.into_iter();
    let mut rows: Vec<_> = rows
        .map(|(function, cost)| (folding.function(function), cost))
        .collect();
    rows.sort_by(|(one, cost), (other, more)| {
        let size = |it: &FunctionCost| match (it.own.size(), it.total.size()) {
            (own, total) if by_total => (total, own),
            sizes => sizes,
        };
        let order = size(more).cmp(&size(cost));
        order.then_with(|| one.cmp(other))
    });
    rows
}

fn largest_first<T: Ord>(sums: impl Iterator<Item = (T, Cost)>) -> Vec<(T, Cost)> {
    let mut sums: Vec<_> = sums.collect();
    sums.sort_by(|(one_name, one), (other_name, other)| {
        let order = other.size().cmp(&one.size());
        order.then_with(|| one_name.cmp(other_name))
    });
    sums
}
