//! What samples are divided by in flame graphs and pages, below their services.

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_sample::GilState;
use otelctx_sample::format::hexadecimal;

use super::select::resource_text;
use super::tables::{Group, Id, Kind, NONE, Tables};
use crate::attributes::GIL;
use crate::report::Level;

/// The value of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    None,
    /// A number of [`Levels::texts`].
    Text(u32),
    /// The process's name, which is known once all samples were read.
    Process(Id),
}

/// Thread, context, state of the lock, and wait of samples that follow each other.
pub(super) type Run = (Id, Id, Option<GilState>, Option<Id>);

/// Returns what the values of all levels depend on: some may be attributes of waits.
pub(super) fn run_of(group: &Group<'_>) -> Run {
    let wait = (group.kind != Kind::Running).then_some(group.wait);
    (group.thread, group.context, group.gil, wait)
}

/// Levels, outermost first, and the values of samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Levels {
    levels: Vec<Level>,
    texts: IndexSet<String, RandomState>,
}

impl Levels {
    pub(super) fn new(names: &[String]) -> Self {
        Self {
            levels: names.iter().map(|name| Level::of(name)).collect(),
            texts: IndexSet::default(),
        }
    }

    /// Returns the value of each level.
    pub(super) fn values(&mut self, tables: &Tables, group: &Group<'_>) -> Box<[Value]> {
        let levels = std::mem::take(&mut self.levels);
        let value = |level: &Level| match (level, self.text(tables, group, level)) {
            (Level::Process, _) => Value::Process(tables.thread(group.thread).process),
            (_, Some(text)) => Value::Text(self.texts.insert_full(text).0 as u32),
            (_, None) => Value::None,
        };
        let values = levels.iter().map(value).collect();
        self.levels = levels;
        values
    }

    /// Returns the text of a value.
    pub(super) fn shown(&self, tables: &Tables, value: Value) -> Option<String> {
        match value {
            Value::None => None,
            Value::Text(index) => Some(self.texts[index as usize].clone()),
            Value::Process(process) => Some(tables.processes[process as usize].name(tables)),
        }
    }

    fn text(&self, tables: &Tables, group: &Group<'_>, level: &Level) -> Option<String> {
        let (_, process) = tables.process_of(group.thread);
        let context = &tables.contexts[group.context as usize];
        let name = match level {
            // Services are above, and functions below.
            Level::Service | Level::Process => return None,
            Level::Function | Level::File | Level::Line => return None,
            Level::Thread => {
                return match tables.text(tables.thread(group.thread).name) {
                    "" => None,
                    // A graph has no room for a box of each.
                    name => Some(pool_of(name)),
                };
            }
            Level::Trace => {
                let trace = (context.trace != NONE).then(|| &tables.traces[context.trace as usize]);
                return trace.map(|trace| hexadecimal(trace));
            }
            Level::Attribute(name) => &name[..],
        };
        if name == GIL {
            return group.gil.map(|state| state.name().to_owned());
        }
        if let Some(text) = group.of_wait(tables, name) {
            return Some(text.to_owned()).filter(|text| !text.is_empty());
        }
        let value = tables.find_text(name);
        let value = value.and_then(|name| tables.attribute(context.attributes, name));
        match value {
            Some(value) => Some(tables.text(value).to_owned()),
            None => resource_text(process, name),
        }
    }
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
