//! The window's samples, grouped into rows.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use otelctx_profile::GIL_ATTRIBUTE as GIL;
use otelctx_profile::report::Level;
use otelctx_reader::format::hexadecimal;

use super::shared::Shared;
use super::time::{Kinds, Present, Time, Wait};
use super::window::{Cell, Context, NameKind, OTHERS, Stacks, Thread, Work};
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
        match Level::of(word) {
            Level::Service => Self::Service,
            Level::Process => Self::Process,
            Level::Thread => Self::Thread,
            Level::Trace => Self::Trace,
            Level::Function => Self::Function,
            Level::File => Self::File,
            Level::Line => Self::Line,
            Level::Attribute(name) => Self::Attribute(name),
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

    /// Returns true if a row has samples of one thread alone.
    pub(super) fn is_of_threads(&self) -> bool {
        match self {
            Self::Thread => true,
            Self::Levels(levels) => levels.contains(&Self::Thread),
            _ => false,
        }
    }

    /// Returns the key of samples; `function` finds that of their innermost function.
    pub(super) fn key(&self, cell: &Cell, function: &mut FunctionKey<'_>) -> Key {
        match self {
            Self::Function | Self::File | Self::Line => {
                let stacks = cell.stacks.as_ref();
                // The kernel's functions in which threads wait are the same for all.
                let stacks = stacks.map(|stacks| match cell.wait {
                    Some(_) => stacks.without_kernel(),
                    None => *stacks,
                });
                stacks.map_or(Key::Others, |stacks| function(self, &stacks))
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
    Queue,
    /// Waits with a context first, so that idle threads come last.
    Wait,
    Name,
    Threads,
    Traces,
}

impl Sort {
    /// Returns the orders of rows with these kinds of time, the usual one first.
    pub(super) fn all(kinds: Kinds) -> Vec<Self> {
        let orders: &[Self] = match (kinds.running, kinds.waits) {
            (_, false) => &[Self::Cpu],
            (true, true) => &[Self::Cpu, Self::Queue, Self::Wait],
            (false, true) => &[Self::Wait, Self::Queue],
        };
        [orders, &[Self::Name, Self::Threads, Self::Traces]].concat()
    }

    pub(super) fn next(self, kinds: Kinds) -> Self {
        let all = Self::all(kinds);
        let at = all.iter().position(|it| *it == self).unwrap_or(0);
        all[(at + 1) % all.len()]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Queue => "queue",
            Self::Wait => "wait",
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
    pub(super) time: Time,
    /// What its threads waited for longest, if that is known of any.
    pub(super) wait: Option<Wait>,
    /// Of a thread: the wait that goes on.
    pub(super) present: Option<Present>,
    /// The thread with most of the row's samples, or of their time if there are waits.
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
pub(super) type Samples<'w> = [(&'w Cell, Time)];

/// Returns the number of samples with a context.
pub(super) fn attached(samples: &Samples<'_>) -> u64 {
    let attached = samples
        .iter()
        .filter(|(cell, _)| cell.work.context().is_some());
    attached.map(|(_, time)| time.samples).sum()
}

/// Returns all time of samples.
pub(super) fn sum(samples: &Samples<'_>) -> Time {
    let mut all = Time::default();
    samples.iter().for_each(|(_, time)| all += *time);
    all
}

/// Leaves out waits of threads without a context, unless rows are threads. Returns their time, in nanoseconds.
pub(super) fn hide_idle(samples: &mut Vec<(&Cell, Time)>, by: &By) -> u64 {
    if by.is_of_threads() {
        return 0;
    }
    let mut hidden: u64 = 0;
    samples.retain(|(cell, time)| {
        let is_idle = cell.is_idle();
        if is_idle {
            hidden = hidden.saturating_add(time.waiting);
        }
        !is_idle
    });
    hidden
}

/// Groups samples into rows.
pub(super) fn rows(
    samples: &Samples<'_>,
    by: &By,
    attribute: &str,
    function: &mut FunctionKey<'_>,
) -> Vec<Row> {
    let mut groups: HashMap<Key, Group<'_>> = HashMap::new();
    for (cell, time) in samples {
        let key = by.key(cell, function);
        let group = groups.entry(key).or_default();
        group.time += *time;
        *group.threads.entry(cell.thread.clone()).or_default() += time.all();
        *group.works.entry(cell.work.clone()).or_default() += time.all();
        if let Some(value) = cell.value(attribute) {
            *group.values.entry(value).or_default() += time.all();
        }
        if let Some(wait) = cell.wait.as_ref().filter(|wait| wait.is_waiting()) {
            *group.waits.entry(wait).or_default() += time.waiting;
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
                Sort::Queue => row.time.queued,
                Sort::Wait => row.time.waiting_with_context,
                _ => row.time.samples,
            };
            let time = row.time;
            let waiting = (time.waiting_with_context, time.waiting, time.queued);
            let ties = match sort {
                Sort::Wait => (0, waiting),
                _ => (time.samples, waiting),
            };
            (Reverse((number, ties)), name(row))
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
    time: Time,
    /// Time by value of the chosen attribute.
    values: HashMap<&'w str, u64>,
    /// Time by what threads waited for.
    waits: HashMap<&'w Wait, u64>,
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
        let works = self.works.iter().map(|(work, time)| (work, *time));
        let known = |wait: &&Wait| !wait.text().is_empty();
        let waits = self.waits.into_iter().filter(|(wait, _)| known(wait));
        let attached = works.filter(|(work, _)| work.context().is_some());
        Row {
            key,
            time: self.time,
            wait: most(waits, |wait| wait.text()).cloned(),
            present: None,
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

/// Returns the item with the most samples, or time; of several, the last in `order`.
fn most<T, O: Ord>(of: impl Iterator<Item = (T, u64)>, order: impl Fn(&T) -> O) -> Option<T> {
    of.max_by_key(|(thing, samples)| (*samples, order(thing)))
        .map(|(thing, _)| thing)
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::{Counts, GilState};

    use otelctx_profile::sample::OffCpuState::{Asleep, Disk, Queued};

    use super::super::window::Window;
    use super::super::window::tests::{add, add_wait, context, thread};
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
        assert_eq!(all.iter().map(|row| row.time.samples).sum::<u64>(), 15);
        all.into_iter()
            .map(|row| {
                let samples = row.time.samples;
                (row.name(), samples, row.threads, row.traces, row.value)
            })
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
                wait: None,
            };
            (0..samples).for_each(|_| window.add(cell.clone(), 1));
        }
        window.close(2_000_000_000, Counts::default());
        assert_eq!(attribute_keys(&window.all()), ["http.route", GIL]);
        let of = |by: &By| -> Vec<(String, u64, Option<String>)> {
            let rows = rows(&window.all(), by, GIL, &mut |_, _| Key::Nothing).into_iter();
            rows.map(|row| (row.name(), row.time.samples, row.value))
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
            own.map(|row| row.time.samples).sum::<u64>()
        };
        for row in rows(&window.all(), &By::Process, "", &mut |_, _| Key::Nothing) {
            assert_eq!(row.time.samples, sum(row.thread.process.pid));
        }
    }

    /// A second of a service: one thread of a route runs and waits, one waits for long, and two wait in no context.
    fn waiting() -> Window {
        const MS: u64 = 1_000_000;
        let mut window = Window::new(0, 0);
        let mut add_waits = |tid, route: Option<&str>, waits: &[(_, &str, u64)]| {
            for (state, reason, milliseconds) in waits {
                let context = route.map(|it| context(tid as u64, it));
                let times = [1000 * MS, milliseconds * MS];
                add_wait(
                    &mut window,
                    thread(1, tid),
                    context,
                    (*state, *reason),
                    times,
                );
            }
        };
        let sql = "recv from 127.0.0.1:5432 (postgres)";
        let a = [
            (Asleep, sql, 400),
            (Disk, "read /var/log/x", 300),
            (Queued, "", 200),
        ];
        add_waits(11, Some("/a"), &a);
        add_waits(12, Some("/b"), &[(Asleep, "futex", 950)]);
        add_waits(13, None, &[(Asleep, "futex", 999), (Queued, "", 1)]);
        add_waits(14, None, &[(Disk, "fsync", 1000)]);
        add(&mut window, thread(1, 11), Some(context(11, "/a")), 10);
        add(&mut window, thread(1, 12), Some(context(12, "/b")), 5);
        window.close(1000 * MS, Counts::default());
        window
    }

    #[test]
    fn waits_without_a_context_are_left_out_unless_rows_are_threads() {
        let window = waiting();
        let of = |by: &By| {
            let mut samples = window.all();
            let hidden = hide_idle(&mut samples, by);
            let rows = rows(&samples, by, "http.route", &mut |_, _| Key::Nothing);
            let all: u64 = rows.iter().map(|row| row.time.waiting).sum();
            assert_eq!(sum(&samples).waiting, all);
            assert_eq!(all + hidden, 3_649_000_000, "all of it is accounted for");
            let row = |row: &Row| {
                let Time {
                    samples,
                    queued,
                    waiting,
                    ..
                } = row.time;
                let reason = row.wait.as_ref().map_or(String::new(), Wait::text);
                let times = (samples, queued / 1_000_000, waiting / 1_000_000);
                (row.name(), times, row.threads, reason)
            };
            (rows.iter().map(row).collect::<Vec<_>>(), hidden / 1_000_000)
        };
        let row = |name: &str, times, threads, reason: &str| {
            (name.to_owned(), times, threads, reason.to_owned())
        };
        let sql = "recv from 127.0.0.1:5432 (postgres)";
        let by_thread = vec![
            row("thread-11", (10, 200, 700), 1, sql),
            row("thread-12", (5, 0, 950), 1, "futex"),
            row("thread-14", (0, 0, 1000), 1, "disk: fsync"),
            row("thread-13", (0, 1, 999), 1, "futex"),
        ];
        assert_eq!(of(&By::Thread), (by_thread, 0));
        let levels = By::Levels(vec![By::Service, By::Thread]);
        assert_eq!(of(&levels).1, 0, "these rows are threads, too");
        // Time in the queue is not idle.
        let by_route = vec![
            row("/a", (10, 200, 700), 1, sql),
            row("/b", (5, 0, 950), 1, "futex"),
            row("(none)", (0, 1, 0), 1, ""),
        ];
        assert_eq!(of(&By::Attribute("http.route".into())), (by_route, 1999));
        let by_process = vec![row("service-1", (15, 201, 1650), 3, "futex")];
        assert_eq!(of(&By::Process), (by_process.clone(), 1999));
        assert_eq!(of(&By::Service), (by_process, 1999));
    }

    #[test]
    fn rows_are_ordered_by_queue_and_by_waits_with_a_context_first() {
        let window = waiting();
        let names = |by| {
            let mut rows = rows(&window.all(), &By::Thread, "", &mut |_, _| Key::Nothing);
            sort(&mut rows, by, false);
            let tids = rows.iter().map(|row| row.thread.tid);
            tids.collect::<Vec<_>>()
        };
        assert_eq!(names(Sort::Cpu), [11, 12, 14, 13]);
        assert_eq!(names(Sort::Wait), [12, 11, 14, 13]);
        assert_eq!(names(Sort::Queue)[..2], [11, 13]);
        let orders = |running, waits| Sort::all(Kinds { running, waits });
        assert_eq!(
            orders(true, true)[..4],
            [Sort::Cpu, Sort::Queue, Sort::Wait, Sort::Name]
        );
        assert_eq!(
            orders(false, true)[..3],
            [Sort::Wait, Sort::Queue, Sort::Name]
        );
        assert_eq!(orders(true, false)[..2], [Sort::Cpu, Sort::Name]);
        let kinds = Kinds {
            running: true,
            waits: true,
        };
        assert_eq!(Sort::Cpu.next(kinds), Sort::Queue);
        assert_eq!(Sort::Traces.next(kinds), Sort::Cpu);
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
            sort = sort.next(Kinds::RUNNING);
        }
        assert_eq!(sort, Sort::Cpu);
    }
}
