//! Turns what was read into a flame graph.

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_sample::GilState;
use otelctx_sample::format::hexadecimal;

use super::cells::Cells;
use super::fold::Folding;
use super::page::function_of;
use super::select::resource_text;
use super::tables::{Group, Id, NONE, Sink, Tables};
use crate::attributes::{GIL, UNKNOWN_SERVICE};
use crate::report::Cost;
use crate::write::flame_graph::{Frame, Graph, Label};

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

/// Thread, context and state of the lock of samples that follow each other.
type Run = (Id, Id, Option<GilState>);

/// Adds up stacks.
#[derive(Debug, Default)]
pub(super) struct Drawing {
    by: Option<String>,
    texts: IndexSet<String, RandomState>,
    levels: IndexSet<Levels, RandomState>,
    /// By stack, and position in `levels`.
    cells: Cells,
    /// The last samples' run, with their levels.
    last: Option<(Run, u32)>,
    /// A sample has a value of `by`.
    has_value: bool,
}

impl Drawing {
    pub(super) fn new(by: Option<&str>) -> Self {
        Self {
            by: by.map(str::to_owned),
            ..Self::default()
        }
    }

    /// Returns true if no sample was collected.
    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns true if a sample has the attribute that the graph is divided by.
    pub(super) fn has_value(&self) -> bool {
        self.has_value
    }

    /// Adds everything to a graph, and forgets it. Without `by`, nothing is between services and
    /// functions.
    pub(super) fn add_to(&mut self, graph: &mut Graph, tables: &Tables, plumbing: bool, by: bool) {
        let mut folding = Folding::new(tables, plumbing, &[]);
        // The label of each function, once it is known; that is none if it has no room.
        let mut functions: Vec<Option<Option<u32>>> = vec![None; folding.len()];
        let mut path = Vec::new();
        let value = |levels: Levels| match levels.value {
            Value::None => None,
            Value::Text(index) => Some(self.texts[index as usize].clone()),
            Value::Process => Some(tables.processes[levels.process as usize].name(tables)),
        };
        std::mem::take(&mut self.cells)
            .finish()
            .each(|stack, cells| {
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
                }
            });
        *self = Self::new(self.by.as_deref());
    }

    fn level(&mut self, tables: &Tables, group: &Group<'_>) -> u32 {
        let key = (group.thread, group.context, group.gil);
        match self.last {
            Some((known, levels)) if known == key => return levels,
            _ => {}
        }
        let value = match self.by.as_deref() {
            Some("process") => Value::Process,
            _ => match self.value(tables, group) {
                Some(text) => Value::Text(self.texts.insert_full(text).0 as u32),
                None => Value::None,
            },
        };
        self.has_value |= value != Value::None;
        let (process, _) = tables.process_of(group.thread);
        let levels = Levels { process, value };
        let levels = self.levels.insert_full(levels).0 as u32;
        self.last = Some((key, levels));
        levels
    }

    fn value(&self, tables: &Tables, group: &Group<'_>) -> Option<String> {
        let by = self.by.as_deref()?;
        let (_, process) = tables.process_of(group.thread);
        let context = &tables.contexts[group.context as usize];
        match by {
            GIL => group.gil.map(|state| state.name().to_owned()),
            // The level above is the service.
            "service" | "process" | "function" | "file" | "line" => None,
            "thread" => match tables.text(tables.thread(group.thread).name) {
                "" => None,
                name => Some(pool_of(name)),
            },
            "trace" => {
                (context.trace != NONE).then(|| hexadecimal(&tables.traces[context.trace as usize]))
            }
            name => {
                let value = tables.find_text(name);
                let value = value.and_then(|name| tables.attribute(context.attributes, name));
                match value {
                    Some(value) => Some(tables.text(value).to_owned()),
                    None => resource_text(process, name),
                }
            }
        }
    }
}

impl Sink for Drawing {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        let levels = self.level(tables, group);
        let mut cost = Cost::default();
        group.each(|_, samples, nanoseconds| {
            cost.add(Cost {
                samples,
                nanoseconds,
            });
        });
        self.cells.add(group.stack, levels, cost);
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
