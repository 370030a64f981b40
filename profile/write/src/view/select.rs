//! Selects samples.

use std::borrow::Cow;
use std::mem::take;

use super::tables::{Context, Group, Id, Kind, NONE, Process, Sink, Tables, Thread};
use crate::attributes::text_of;
use crate::report::{Cost, Moment, Selection, ThreadFilter};

/// A known answer for each entry of a table.
#[derive(Default)]
struct Answers(Vec<Option<bool>>);

impl Answers {
    fn get(&mut self, id: Id, find: impl FnOnce() -> bool) -> bool {
        let index = id as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        *self.0[index].get_or_insert_with(find)
    }
}

/// Passes on the samples that are selected.
pub(super) struct Selecting<'s> {
    selection: &'s Selection,
    sink: &'s mut dyn Sink,
    threads: Answers,
    traces: Answers,
    stacks: Answers,
    /// Answers for attributes, by process.
    attributes: Vec<Answers>,
    times: Vec<u64>,
    values: Vec<u64>,
    /// Selected time of waits that were left out because they have no context.
    pub(super) idle: Cost,
}

impl<'s> Selecting<'s> {
    pub(super) fn new(selection: &'s Selection, sink: &'s mut dyn Sink) -> Self {
        Self {
            selection,
            sink,
            threads: Answers::default(),
            traces: Answers::default(),
            stacks: Answers::default(),
            attributes: Vec::new(),
            times: Vec::new(),
            values: Vec::new(),
            idle: Cost::default(),
        }
    }

    fn accepts(&mut self, tables: &Tables, group: &Group<'_>) -> bool {
        let selection = self.selection;
        let kinds = &selection.kinds;
        let is_kind = kinds.is_empty() || kinds.contains(&group.kind.into());
        let (process, facts) = tables.process_of(group.thread);
        let context = &tables.contexts[group.context as usize];
        is_kind
            && self.threads.get(group.thread, || {
                is_thread(selection, tables, tables.thread(group.thread), facts)
            })
            && (selection.traces.is_empty()
                || self.traces.get(context.trace, || {
                    let id = &tables.traces[context.trace as usize];
                    context.trace != NONE && selection.traces.contains(id)
                }))
            && self.has_attributes(tables, process, facts, context)
            && (selection.functions.is_empty()
                || self
                    .stacks
                    .get(group.whole_stack, || has_function(selection, tables, group)))
    }

    fn has_attributes(
        &mut self,
        tables: &Tables,
        process: Id,
        facts: &Process,
        context: &Context,
    ) -> bool {
        let filters = &self.selection.attributes;
        if filters.is_empty() {
            return true;
        }
        let known = process as usize;
        if self.attributes.len() <= known {
            self.attributes.resize_with(known + 1, Answers::default);
        }
        self.attributes[known].get(context.attributes, || {
            filters.iter().all(|filter| {
                let name = tables.find_text(&filter.name);
                let value = name.and_then(|name| tables.attribute(context.attributes, name));
                let of_resource = || resource_text(facts, &filter.name);
                match value {
                    Some(value) => filter.condition.accepts(Some(tables.text(value))),
                    None => filter.condition.accepts(of_resource().as_deref()),
                }
            })
        })
    }

    /// Passes on samples that are shown, and sums up the others.
    fn pass(&mut self, tables: &Tables, group: &Group<'_>) {
        let may_be_idle = group.kind == Kind::Waiting && !tables.has_no_idle;
        let is_idle = may_be_idle && group.context == NONE;
        if is_idle && !self.selection.with_idle && self.sink.hides_idle() {
            self.idle.add(group.cost());
        } else {
            self.sink.add(tables, group);
        }
    }

    /// Passes on the samples of a group that lie in the selected time.
    fn add_within(&mut self, tables: &Tables, group: &Group<'_>, from: u64, to: u64) {
        self.times.clear();
        self.values.clear();
        for (index, time) in group.times.iter().enumerate() {
            if (from..to).contains(time) {
                self.times.push(*time);
                self.values.extend(group.values.get(index));
            }
        }
        if !self.times.is_empty() {
            let (times, values) = (take(&mut self.times), take(&mut self.values));
            let part = Group {
                times: &times,
                values: &values,
                ..*group
            };
            self.pass(tables, &part);
            (self.times, self.values) = (times, values);
        }
    }
}

impl Sink for Selecting<'_> {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        if !self.accepts(tables, group) {
            return;
        }
        let Some((from, to)) = self.selection.time else {
            return self.pass(tables, group);
        };
        let start = tables.start.unwrap_or(0);
        let unix = |moment: Moment| match moment {
            Moment::AfterStart(time) => start.saturating_add(time),
            Moment::Unix(time) => time,
        };
        let (from, to) = (from.map_or(0, unix), to.map_or(u64::MAX, unix));
        self.add_within(tables, group, from, to);
    }

    fn hides_idle(&self) -> bool {
        self.sink.hides_idle()
    }

    fn needs_start(&self) -> bool {
        self.selection.time.is_some() || self.sink.needs_start()
    }
}

fn is_thread(selection: &Selection, tables: &Tables, thread: &Thread, facts: &Process) -> bool {
    let name = tables.text(thread.name);
    let is_wanted = |wanted: &ThreadFilter| wanted.accepts(name, thread.tid);
    let is_process = |pid: &i64| facts.pid == Some(*pid);
    (selection.threads.is_empty() || selection.threads.iter().any(is_wanted))
        && (selection.processes.is_empty() || selection.processes.iter().any(is_process))
}

fn has_function(selection: &Selection, tables: &Tables, group: &Group<'_>) -> bool {
    tables.frames(group.whole_stack).any(|line| {
        let function = &tables.functions[line.function as usize];
        let (name, file) = (tables.text(function.name), tables.text(function.file));
        selection.has_function(name, file)
    })
}

/// Returns the value of a resource's attribute, as text.
pub(super) fn resource_text(process: &Process, name: &str) -> Option<String> {
    let mut resource = process.resource.iter();
    let (_, value) = resource.find(|(key, _)| key == name)?;
    text_of(value).map(Cow::into_owned)
}
