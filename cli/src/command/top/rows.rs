//! The window's samples, grouped into rows.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use otelctx_profile::GIL_ATTRIBUTE as GIL;
use otelctx_reader::format::hexadecimal;

use super::window::{Cell, Context, NameKind, OTHERS, Shared, Stacks, Thread, Work};
use crate::command::filter::ROUTE;

/// The property that rows are grouped by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    #[default]
    Thread,
    /// The values of this attribute.
    Attribute(String),
    Trace,
    Process,
    Service,
    /// The innermost function.
    Function,
    /// Its file.
    File,
    /// Its file and the line in it.
    Line,
    /// All of these.
    Levels(Vec<By>),
}

impl By {
    /// Returns the level that a word of `--by` means.
    pub(super) fn of(word: &str) -> Self {
        match word {
            "service" => Self::Service,
            "process" => Self::Process,
            "thread" => Self::Thread,
            "trace" => Self::Trace,
            "function" => Self::Function,
            "file" => Self::File,
            "line" => Self::Line,
            // As in `otelctx_profile::report::is_level`.
            name => Self::Attribute(name.to_owned()),
        }
    }

    /// Returns the words of `--by` that mean it.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Thread => "thread".to_owned(),
            Self::Attribute(name) => name.clone(),
            Self::Trace => "trace".to_owned(),
            Self::Process => "process".to_owned(),
            Self::Service => "service".to_owned(),
            Self::Function => "function".to_owned(),
            Self::File => "file".to_owned(),
            Self::Line => "line".to_owned(),
            Self::Levels(levels) => {
                let words: Vec<String> = levels.iter().map(Self::words).collect();
                words.join(",")
            }
        }
    }

    /// Returns the key of samples; `function` finds that of their innermost function.
    pub(super) fn key(&self, cell: &Cell, function: &mut FunctionKey<'_>) -> Key {
        match self {
            Self::Function | Self::File | Self::Line => {
                let stacks = cell.stacks.as_ref();
                stacks.map_or(Key::Others, |stacks| function(self, stacks))
            }
            Self::Thread => thread_key(&cell.thread),
            Self::Process => process_key(&cell.thread),
            Self::Service if cell.thread.is_others() => Key::Others,
            Self::Service => {
                let process = &cell.thread.process;
                Key::Service(process.name_kind, process.name.clone())
            }
            Self::Attribute(name) => match cell.value(name) {
                Some(value) => Key::Value(value.to_owned()),
                None if name == GIL && !cell.thread.is_others() => Key::Nothing,
                None => work_key(&cell.work, |_| None),
            },
            Self::Trace => work_key(&cell.work, |context| {
                context.trace_id().map(|_| Key::Trace(context.trace))
            }),
            Self::Levels(levels) => {
                let keys = levels.iter().map(|level| level.key(cell, function));
                Key::Levels(keys.collect())
            }
        }
    }
}

/// Finds the key of stacks by their innermost function.
pub(super) type FunctionKey<'f> = dyn FnMut(&By, &Stacks) -> Key + 'f;

/// The value that the samples of a row have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// Process, its start time, thread.
    Thread(i32, u64, i32),
    Value(String),
    Trace([u8; 16]),
    /// Process, its start time.
    Process(i32, u64),
    Service(NameKind, String),
    /// A function, a file, or a line.
    Function(String),
    Levels(Vec<Key>),
    /// They have no context, or no such attribute.
    Nothing,
    /// Their context could not be read.
    Unreadable,
    /// They are counted together, see [`Thread::others`].
    Others,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Cpu,
    Name,
    Threads,
    Traces,
}

impl Sort {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Cpu => Self::Name,
            Self::Name => Self::Threads,
            Self::Threads => Self::Traces,
            Self::Traces => Self::Cpu,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Name => "name",
            Self::Threads => "threads",
            Self::Traces => "traces",
        }
    }
}

/// Samples with the same key.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) samples: u64,
    /// The thread with most of the row's samples.
    pub(super) thread: Shared<Thread>,
    pub(super) work: Work,
    /// The value of the chosen attribute that most of its samples have, if any has one.
    pub(super) value: Option<String>,
    /// Numbers of distinct ones.
    pub(super) threads: usize,
    pub(super) processes: usize,
    pub(super) traces: usize,
    pub(super) spans: usize,
    /// All threads and all contexts of its samples, in no order.
    pub(super) all_threads: Vec<Shared<Thread>>,
    pub(super) all_works: Vec<Work>,
}

impl Row {
    pub(super) fn context(&self) -> Option<&Context> {
        self.work.context()
    }

    /// Returns the name that is shown.
    pub(super) fn name(&self) -> String {
        self.name_of(&self.key)
    }

    /// Returns the name of each level.
    pub(super) fn names(&self) -> Vec<String> {
        match &self.key {
            Key::Levels(keys) => keys.iter().map(|key| self.name_of(key)).collect(),
            key => vec![self.name_of(key)],
        }
    }

    fn name_of(&self, key: &Key) -> String {
        match key {
            Key::Thread(..) => self.thread.name.clone(),
            Key::Process(..) => self.thread.process.label(),
            Key::Service(kind, name) => kind.label(name),
            // No level has levels.
            Key::Levels(_) => self.names().join("  "),
            Key::Value(text) | Key::Function(text) => text.clone(),
            Key::Trace(id) => hexadecimal(id),
            Key::Nothing => "(none)".into(),
            Key::Unreadable => "(unreadable)".into(),
            Key::Others => OTHERS.into(),
        }
    }
}

/// Samples of a window; a cell occurs once in each slice.
pub(super) type Samples<'w> = [(&'w Cell, u64)];

/// Returns the number of samples with a context.
pub(super) fn attached(samples: &Samples<'_>) -> u64 {
    let attached = samples
        .iter()
        .filter(|(cell, _)| cell.work.context().is_some());
    attached.map(|(_, samples)| samples).sum()
}

/// Groups samples into rows.
pub(super) fn rows(
    samples: &Samples<'_>,
    by: &By,
    attribute: &str,
    function: &mut FunctionKey<'_>,
) -> Vec<Row> {
    let mut groups: HashMap<Key, Group<'_>> = HashMap::new();
    for (cell, samples) in samples {
        let key = by.key(cell, function);
        let group = groups.entry(key).or_default();
        group.samples += samples;
        *group.threads.entry(cell.thread.clone()).or_default() += samples;
        *group.works.entry(cell.work.clone()).or_default() += samples;
        if let Some(value) = cell.value(attribute) {
            *group.values.entry(value).or_default() += samples;
        }
    }
    let rows = groups.into_iter().map(|(key, group)| group.row(key));
    let mut rows: Vec<Row> = rows.collect();
    sort(&mut rows, Sort::Cpu, false);
    rows
}

/// Sorts rows: largest number first, or by name.
pub(super) fn sort(rows: &mut [Row], sort: Sort, reversed: bool) {
    let name = |row: &Row| (row.name(), row.key.clone());
    match sort {
        Sort::Name => rows.sort_by_cached_key(name),
        _ => rows.sort_by_cached_key(|row| {
            let number = match sort {
                Sort::Threads => row.threads as u64,
                Sort::Traces => row.traces as u64,
                _ => row.samples,
            };
            (Reverse((number, row.samples)), name(row))
        }),
    }
    if reversed {
        rows.reverse();
    }
}

/// Returns the attribute keys of samples: the route first, then in alphabetical order, and the
/// state of interpreters' locks last.
pub(super) fn attribute_keys(samples: &Samples<'_>) -> Vec<String> {
    let contexts = samples.iter().filter_map(|(cell, _)| cell.work.context());
    let keys: HashSet<&str> = contexts
        .flat_map(|context| &context.attributes)
        .map(|(key, _)| key.as_str())
        .collect();
    let mut keys: Vec<String> = keys.into_iter().map(str::to_owned).collect();
    keys.sort_unstable_by(|one, other| (one != ROUTE, one).cmp(&(other != ROUTE, other)));
    if samples.iter().any(|(cell, _)| cell.gil.is_some()) {
        keys.retain(|key| key != GIL);
        keys.push(GIL.into());
    }
    keys
}

fn thread_key(thread: &Thread) -> Key {
    if thread.is_others() {
        Key::Others
    } else {
        Key::Thread(thread.process.pid, thread.process.start_ticks, thread.tid)
    }
}

fn process_key(thread: &Thread) -> Key {
    if thread.is_others() {
        Key::Others
    } else {
        Key::Process(thread.process.pid, thread.process.start_ticks)
    }
}

fn work_key(work: &Work, key: impl FnOnce(&Context) -> Option<Key>) -> Key {
    match work {
        Work::Attached(context) => key(context).unwrap_or(Key::Nothing),
        Work::Nothing => Key::Nothing,
        Work::Unreadable => Key::Unreadable,
        Work::Others => Key::Others,
    }
}

/// A row in the making.
#[derive(Default)]
struct Group<'w> {
    samples: u64,
    /// Samples by value of the chosen attribute.
    values: HashMap<&'w str, u64>,
    threads: HashMap<Shared<Thread>, u64>,
    works: HashMap<Work, u64>,
}

impl Group<'_> {
    fn row(self, key: Key) -> Row {
        let (mut traces, mut spans) = (HashSet::new(), HashSet::new());
        for work in self.works.keys() {
            let Some(context) = work.context() else {
                continue;
            };
            traces.extend(context.trace_id().map(|_| context.trace));
            spans.extend(context.span_id().map(|_| (context.trace, context.span)));
        }
        let value = most(self.values.into_iter(), |value| (*value).to_owned()).map(str::to_owned);
        let order = |thread: &Shared<Thread>| (thread.process.pid, thread.tid);
        let processes: HashSet<Key> = self.threads.keys().map(|it| process_key(it)).collect();
        let threads: HashSet<Key> = self.threads.keys().map(|it| thread_key(it)).collect();
        // Ties are broken by a fixed order, so that the view is steady.
        let order_of_work = |work: &&Work| work.context().map(|it| (it.trace, it.span));
        // A context, if there is any: the counts show the rest.
        let works = self.works.iter().map(|(work, samples)| (work, *samples));
        let attached = works.filter(|(work, _)| work.context().is_some());
        Row {
            key,
            samples: self.samples,
            work: most(attached, order_of_work)
                .or_else(|| self.works.keys().next())
                .expect("a group has a sample")
                .clone(),
            all_works: self.works.into_keys().collect(),
            all_threads: self.threads.keys().cloned().collect(),
            thread: most(self.threads.into_iter(), order).expect("a group has a sample"),
            value,
            threads: threads.len(),
            processes: processes.len(),
            traces: traces.len(),
            spans: spans.len(),
        }
    }
}

/// Returns the item with the most samples; of several, the last in `order`.
fn most<T, O: Ord>(of: impl Iterator<Item = (T, u64)>, order: impl Fn(&T) -> O) -> Option<T> {
    of.max_by_key(|(thing, samples)| (*samples, order(thing)))
        .map(|(thing, _)| thing)
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::{Counts, GilState};

    use super::super::window::Window;
    use super::super::window::tests::{add, context, thread};
    use super::*;

    fn window() -> Window {
        let mut window = Window::new(0, 0);
        add(&mut window, thread(1, 11), Some(context(1, "/a")), 5);
        add(&mut window, thread(1, 11), Some(context(2, "/b")), 2);
        add(&mut window, thread(1, 12), Some(context(1, "/a")), 4);
        add(&mut window, thread(2, 21), Some(context(3, "/b")), 3);
        add(&mut window, thread(2, 22), None, 1);
        window.close(1_000_000_000, Counts::default());
        window
    }

    fn summary(by: &By) -> Vec<(String, u64, usize, usize, Option<String>)> {
        let all = rows(&window().all(), by, "http.route", &mut |_, _| Key::Nothing);
        assert_eq!(all.iter().map(|row| row.samples).sum::<u64>(), 15);
        all.into_iter()
            .map(|row| (row.name(), row.samples, row.threads, row.traces, row.value))
            .collect()
    }

    #[test]
    fn every_sample_is_in_one_row_whatever_rows_are_grouped_by() {
        let row = |name: &str, samples, threads, traces, value: &str| {
            let value = (!value.is_empty()).then(|| value.to_owned());
            (name.to_owned(), samples, threads, traces, value)
        };
        assert_eq!(
            summary(&By::Thread),
            [
                row("thread-11", 7, 1, 2, "/a"),
                row("thread-12", 4, 1, 1, "/a"),
                row("thread-21", 3, 1, 1, "/b"),
                row("thread-22", 1, 1, 0, ""),
            ]
        );
        assert_eq!(
            summary(&By::Attribute("http.route".into())),
            [
                row("/a", 9, 2, 1, "/a"),
                row("/b", 5, 2, 2, "/b"),
                row("(none)", 1, 1, 0, ""),
            ]
        );
        assert_eq!(
            summary(&By::Process),
            [
                row("service-1", 11, 2, 2, "/a"),
                row("service-2", 4, 2, 1, "/b"),
            ]
        );
        let trace = |number: u8| format!("{number:032x}");
        assert_eq!(
            summary(&By::Trace),
            [
                row(&trace(1), 9, 2, 1, "/a"),
                row(&trace(3), 3, 1, 1, "/b"),
                row(&trace(2), 2, 1, 1, "/b"),
                row("(none)", 1, 1, 0, ""),
            ]
        );
        // They are of no interpreter.
        assert_eq!(
            summary(&By::Attribute(GIL.into())),
            [row("(none)", 15, 4, 3, "/a")]
        );
        // None of these samples has a stack.
        assert_eq!(summary(&By::Function), [row("(others)", 15, 4, 3, "/a")]);
        assert_eq!(attribute_keys(&window().all()), ["http.route"]);
    }

    #[test]
    fn the_state_of_the_lock_is_an_attribute_of_samples_of_interpreters() {
        let mut window = window();
        for (tid, gil, samples) in [
            (1, Some(GilState::Held), 5),
            (2, Some(GilState::Waiting), 3),
            (2, Some(GilState::Released), 2),
            (3, None, 1),
        ] {
            let cell = Cell {
                thread: window.threads.get(thread(1, tid)),
                gil,
                work: Work::Attached(window.contexts.get(context(1, "/a"))),
                stacks: None,
            };
            (0..samples).for_each(|_| window.add(cell.clone()));
        }
        window.close(2_000_000_000, Counts::default());
        assert_eq!(attribute_keys(&window.all()), ["http.route", GIL]);
        let of = |by: &By| -> Vec<(String, u64, Option<String>)> {
            let rows = rows(&window.all(), by, GIL, &mut |_, _| Key::Nothing).into_iter();
            rows.map(|row| (row.name(), row.samples, row.value))
                .collect()
        };
        let row = |name: &str, samples, value: Option<&str>| {
            (name.to_owned(), samples, value.map(str::to_owned))
        };
        let (held, waiting) = (Some("held"), Some("waiting"));
        assert_eq!(
            of(&By::Attribute(GIL.into())),
            [
                row("held", 5, held),
                row("waiting", 3, waiting),
                row("released", 2, Some("released")),
                row("(none)", 1, None),
            ]
        );
        assert_eq!(
            of(&By::Thread),
            [
                row("thread-1", 5, held),
                row("thread-2", 5, waiting),
                row("thread-3", 1, None),
            ]
        );
    }

    #[test]
    fn the_threads_of_a_process_sum_up_to_it() {
        let window = window();
        let sum = |pid| {
            let threads = rows(&window.all(), &By::Thread, "", &mut |_, _| Key::Nothing);
            let own = threads.iter().filter(|row| row.thread.process.pid == pid);
            own.map(|row| row.samples).sum::<u64>()
        };
        for row in rows(&window.all(), &By::Process, "", &mut |_, _| Key::Nothing) {
            assert_eq!(row.samples, sum(row.thread.process.pid));
        }
    }

    #[test]
    fn rows_are_ordered_as_asked_for() {
        let names = |by, reversed| {
            let mut rows = rows(&window().all(), &By::Process, "", &mut |_, _| Key::Nothing);
            sort(&mut rows, by, reversed);
            rows.iter().map(Row::name).collect::<Vec<_>>()
        };
        assert_eq!(names(Sort::Cpu, false), ["service-1", "service-2"]);
        assert_eq!(names(Sort::Cpu, true), ["service-2", "service-1"]);
        assert_eq!(names(Sort::Name, false), ["service-1", "service-2"]);
        assert_eq!(names(Sort::Traces, false), ["service-1", "service-2"]);
        assert_eq!(names(Sort::Threads, true), ["service-2", "service-1"]);
        let mut sort = Sort::Cpu;
        for _ in 0..4 {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::Cpu);
    }
}
