//! An opened row: its functions as a tree, its traces, and what most of its samples have in common.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use otelctx_profile::report::{Cost, LiveSamples, Report, ReportOptions, TraceCost, TreeNode};
use otelctx_profile::sample::{Catalog, ProcessId, StackId};
use otelctx_sampler::calendar_time;

use super::names::Names;
use super::rows::{By, Key, Row, Samples, Sort, rows, sort};
use super::time::{Kinds, Time};
use super::window::{Cell, Stacks, Window};
use crate::command::report::tables::{MAX_INDENT, number, share, text, time, with_short_place};
use crate::output::clock;
use crate::output::table::Table;
use crate::output::terminal::{Terminal, escape};
use crate::output::text::{count, grouped};

/// Maximum number of traces that are listed.
const MAX_TRACES: usize = 1000;
/// Maximum number of reasons of waits that are listed.
const MAX_REASONS: usize = 20;

/// Maximum length of a file's name, in characters, so that lines have room for it in 80 columns.
const MAX_FILE: usize = 20;

/// What was opened: the samples with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) by: By,
    pub(super) key: Key,
    /// Index of the selected line.
    pub(super) at: usize,
    /// Index of the first line on the screen.
    pub(super) top: usize,
}

impl Open {
    pub(super) fn new(by: By, key: Key) -> Self {
        Self {
            by,
            key,
            at: 0,
            top: 0,
        }
    }
}

/// A line of an opened row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Escaped for a terminal.
    pub(super) text: String,
    pub(super) kind: LineKind,
}

/// What a line shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    Heading,
    Function,
    Wait,
    Trace([u8; 16]),
    Fact,
}

/// The samples of an opened row, summed up.
#[derive(Debug)]
pub(super) struct Opened {
    /// `None` if it has no samples in this window.
    pub(super) row: Option<Row>,
    report: Report,
    /// `None` if waits are not sampled.
    waits: Option<Waits>,
    /// Samples of which no stack is known (any more).
    without_stack: u64,
    /// The value of the chosen attribute of each trace.
    values: HashMap<[u8; 16], String>,
    /// CPU time per sample, in nanoseconds.
    period: u64,
}

/// The waits of an opened row.
#[derive(Debug)]
struct Waits {
    /// Each sample stands for 1 ns.
    report: Report,
    /// Times by what threads waited for, the longest first, in nanoseconds.
    by_reason: Vec<(String, u64)>,
    /// The time of each trace, the longest first, and when it was first sampled.
    by_trace: Vec<(Row, u64)>,
}

/// What is summed up.
#[derive(Clone, Copy)]
pub(super) struct Source<'w> {
    pub(super) window: &'w Window,
    pub(super) catalog: &'w Catalog,
    pub(super) samples: &'w Samples<'w>,
    /// The attribute to show of traces.
    pub(super) attribute: &'w str,
    /// Texts of functions from which trees begin; empty for whole stacks.
    pub(super) functions: &'w [String],
    /// CPU time per sample, in nanoseconds.
    pub(super) period: u64,
    pub(super) kinds: Kinds,
}

impl Waits {
    fn of(
        source: &Source<'_>,
        own: &[(&Cell, Time)],
        mut by_trace: Vec<Row>,
        stacks: &mut LiveStacks<'_>,
        options: &ReportOptions,
    ) -> Self {
        let waits = own.iter().filter(|(_, time)| time.waiting > 0);
        let live: Vec<LiveSamples> = waits
            .clone()
            .map(|(cell, time)| LiveSamples {
                stack: stacks.number(cell.stacks.as_ref()),
                samples: time.waiting,
                ..LiveSamples::default()
            })
            .collect();
        let mut by_reason: HashMap<String, u64> = HashMap::new();
        for (cell, time) in waits {
            let wait = cell.wait.as_ref();
            let text = wait.map_or(String::new(), |wait| wait.text());
            *by_reason.entry(text).or_default() += time.waiting;
        }
        let mut by_reason: Vec<(String, u64)> = by_reason.into_iter().collect();
        by_reason.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
        by_trace.retain(|row| matches!(row.key, Key::Trace(_)));
        sort(&mut by_trace, Sort::Wait, false);
        let first = |row: Row| {
            let first = match row.key {
                Key::Trace(id) => source.window.first_seen(id),
                _ => 0,
            };
            (row, calendar_time(first))
        };
        Self {
            report: Report::of_live(1, &stacks.all, &live, options),
            by_reason,
            by_trace: by_trace.into_iter().map(first).collect(),
        }
    }

    fn add_reasons(&self, lines: &mut Vec<Line>) {
        let all = self
            .by_reason
            .iter()
            .fold(0, |all: u64, it| all.saturating_add(it.1));
        let row = |(reason, time): &(String, u64)| {
            let reason = match &reason[..] {
                "" => "for an unknown reason",
                reason => reason,
            };
            let cost = nanoseconds(*time);
            let cells = [
                self::time(cost),
                share(cost, nanoseconds(all)),
                escape(reason),
            ];
            (cells, LineKind::Wait)
        };
        if self.by_reason.is_empty() {
            return;
        }
        let columns = [number("WAIT"), number("SHARE"), text("REASON")];
        let most = self.by_reason.iter().take(MAX_REASONS);
        add_table(lines, Table::new(columns), most.map(row));
        if self.by_reason.len() > MAX_REASONS {
            let more = grouped(self.by_reason.len() - MAX_REASONS);
            lines.push(fact(format!("  and {more} more")));
        }
    }

    fn add_traces(&self, lines: &mut Vec<Line>, period: u64) {
        if self.by_trace.is_empty() {
            return;
        }
        let row = |(row, first): &(Row, u64)| {
            let id = match row.key {
                Key::Trace(id) => id,
                _ => [0; 16],
            };
            let running = nanoseconds(row.time.samples.saturating_mul(period));
            let cells = [
                time(running),
                time(nanoseconds(row.time.queued)),
                time(nanoseconds(row.time.waiting)),
                clock::local(SystemTime::UNIX_EPOCH + Duration::from_nanos(*first)),
                row.threads.to_string(),
                row.name(),
                row.value.as_deref().map_or(String::new(), escape),
            ];
            (cells, LineKind::Trace(id))
        };
        let columns = [
            number("RUN"),
            number("QUEUE"),
            number("WAIT"),
            text("FIRST SEEN"),
            number("THREADS"),
            text("TRACE"),
            text("VALUE"),
        ];
        let most = self.by_trace.iter().take(MAX_TRACES);
        add_table(lines, Table::new(columns), most.map(row));
        if self.by_trace.len() > MAX_TRACES {
            let more = grouped(self.by_trace.len() - MAX_TRACES);
            lines.push(fact(format!("  and {more} more")));
        }
    }
}

/// A time that is measured, not sampled.
fn nanoseconds(nanoseconds: u64) -> Cost {
    Cost {
        samples: 0,
        nanoseconds,
    }
}

impl Opened {
    /// Sums up the samples that all of `path` has in common.
    pub(super) fn of(source: &Source<'_>, path: &[Open], names: &mut Names) -> Self {
        let Source {
            window, catalog, ..
        } = *source;
        let mut own = source.samples.to_vec();
        let mut function = |by: &By, stacks: &Stacks| names.key(by, catalog, stacks);
        for open in path {
            own.retain(|(cell, _)| open.by.key(cell, &mut function) == open.key);
        }
        let by = path.last().map(|open| open.by.clone()).unwrap_or_default();
        let row = rows(&own, &by, source.attribute, &mut function).pop();
        let of_traces = rows(&own, &By::Trace, source.attribute, &mut function);
        let values = of_traces.iter().filter_map(|row| match row.key {
            Key::Trace(id) => Some((id, row.value.clone()?)),
            _ => None,
        });
        let values = values.collect();
        let mut options = ReportOptions::by(&[]);
        options.with_plumbing = false;
        options.with_tree = true;
        options.selection.functions = source.functions.to_vec();
        let mut stacks = LiveStacks::new(catalog, names);
        let waits = source.kinds.waits;
        let waits = waits.then(|| Waits::of(source, &own, of_traces, &mut stacks, &options));
        let live: Vec<LiveSamples> = own
            .iter()
            .filter(|(_, time)| time.samples > 0)
            .map(|(cell, time)| {
                let trace = cell.work.context().filter(|it| it.trace_id().is_some());
                let trace = trace.map(|context| context.trace);
                let first = trace.map_or(0, |trace| window.first_seen(trace));
                let (pid, tid) = (cell.thread.process.pid, cell.thread.tid);
                LiveSamples {
                    stack: stacks.number(cell.stacks.as_ref()),
                    thread: i64::from(pid) << 32 | i64::from(tid),
                    trace,
                    time: calendar_time(first),
                    samples: time.samples,
                }
            })
            .collect();
        let stacks = stacks.all;
        let is_unknown = |it: &&LiveSamples| stacks.get(it.stack).is_none_or(Vec::is_empty);
        let without_stack = live.iter().filter(is_unknown).map(|it| it.samples).sum();
        Self {
            row,
            report: Report::of_live(source.period, &stacks, &live, &options),
            waits,
            without_stack,
            values,
            period: source.period,
        }
    }

    /// Returns its lines, but of functions, traces and facts only those with this text, in upper or
    /// lower case.
    pub(super) fn lines(&self, search: &str) -> Vec<Line> {
        let mut lines = Vec::new();
        if let Some(waits) = &self.waits {
            waits.add_reasons(&mut lines);
            add_trees(&mut lines, "WAIT", &waits.report);
        }
        add_trees(&mut lines, "CPU", &self.report);
        if self.without_stack > 0 {
            let samples = count(self.without_stack as usize, "sample", "samples");
            lines.push(fact(format!("  and {samples} without a known stack")));
        }
        match &self.waits {
            Some(waits) => waits.add_traces(&mut lines, self.period),
            None => self.add_traces(&mut lines),
        }
        self.add_facts(&mut lines);
        let wanted = search.to_lowercase();
        let is_heading = |line: &Line| line.kind == LineKind::Heading;
        lines.retain(|line| is_heading(line) || line.text.to_lowercase().contains(&wanted));
        // Of a table without lines, no heading is left.
        let next: Vec<bool> = lines.iter().skip(1).map(is_heading).chain([true]).collect();
        let mut is_empty = next.into_iter();
        lines.retain(|line| !(is_empty.next().unwrap_or(false) && is_heading(line)));
        lines
    }

    fn add_traces(&self, lines: &mut Vec<Line>) {
        let traces = &self.report.by_trace;
        if traces.is_empty() {
            return;
        }
        let row = |it: &TraceCost| {
            let first = SystemTime::UNIX_EPOCH + Duration::from_nanos(it.first);
            let id: Option<otelctx_reader::format::TraceId> = it.trace.id.parse().ok();
            let id = id.unwrap_or_default().to_bytes();
            let cells = [
                time(it.cost),
                share(it.cost, self.report.total),
                clock::local(first),
                it.threads.to_string(),
                it.trace.id.clone(),
                self.values
                    .get(&id)
                    .map_or(String::new(), |value| escape(value)),
            ];
            (cells, LineKind::Trace(id))
        };
        let columns = [
            number("CPU"),
            number("SHARE"),
            text("FIRST SEEN"),
            number("THREADS"),
            text("TRACE"),
            text("VALUE"),
        ];
        add_table(
            lines,
            Table::new(columns),
            traces.iter().take(MAX_TRACES).map(row),
        );
        if traces.len() > MAX_TRACES {
            let more = grouped(traces.len() - MAX_TRACES);
            lines.push(fact(format!("  and {more} more")));
        }
    }

    /// Adds what most of the samples have in common.
    fn add_facts(&self, lines: &mut Vec<Line>) {
        let Some(row) = &self.row else {
            return;
        };
        lines.push(Line {
            text: "  MOST OF THEM".to_owned(),
            kind: LineKind::Heading,
        });
        let several = |number: usize, many: &str| match number {
            0 | 1 => String::new(),
            more => format!("  (of {} {many})", grouped(more)),
        };
        let (thread, process) = (&row.thread, &row.thread.process);
        if !thread.is_others() {
            let processes = several(row.processes, "processes");
            let name = escape(&process.label());
            lines.push(fact(format!(
                "  process     {name} {}{processes}",
                process.pid
            )));
            let threads = several(row.threads, "threads");
            let name = escape(&thread.name);
            lines.push(fact(format!(
                "  thread      {name} {}{threads}",
                thread.tid
            )));
        }
        if let Some(context) = row.context() {
            let id = |id: Option<String>| id.unwrap_or_else(|| "none".into());
            let trace = id(context.trace_id().map(|id| id.to_string()));
            let span = id(context.span_id().map(|id| id.to_string()));
            let (traces, spans) = (several(row.traces, "traces"), several(row.spans, "spans"));
            lines.push(fact(format!("  trace       {trace}{traces}")));
            lines.push(fact(format!("  span        {span}{spans}")));
            for (key, value) in &context.attributes {
                lines.push(fact(format!("  {:<10}  {}", escape(key), escape(value))));
            }
        }
    }
}

/// Adds the trees of a report of this kind of time.
fn add_trees(lines: &mut Vec<Line>, kind: &'static str, report: &Report) {
    let callers = &report.callers;
    if !callers.is_empty() {
        add_functions(lines, [kind, "CALLERS"], report.total, callers, false);
    }
    let head = if callers.is_empty() {
        "FUNCTION"
    } else {
        "CALLEES"
    };
    add_functions(lines, [kind, head], report.total, &report.tree, true);
}

/// Adds a tree with these headings; `with_own` if each function's own time is that of its samples.
fn add_functions(
    lines: &mut Vec<Line>,
    [kind, head]: [&'static str; 2],
    total: Cost,
    nodes: &[TreeNode],
    with_own: bool,
) {
    let row = |node: &TreeNode| {
        // One column a level: stacks are deep.
        let indent = " ".repeat(node.depth.min(MAX_INDENT));
        [
            time(node.cost.total),
            share(node.cost.total, total),
            match node.cost.own.samples {
                1.. if with_own => time(node.cost.own),
                _ => String::new(),
            },
            format!("{indent}{}", with_short_place(&node.function, MAX_FILE)),
        ]
    };
    let columns = [number(kind), number("SHARE"), number("SELF"), text(head)];
    let rows = nodes.iter().map(|node| (row(node), LineKind::Function));
    add_table(lines, Table::new(columns), rows);
}

fn fact(text: String) -> Line {
    let kind = LineKind::Fact;
    Line { text, kind }
}

/// Adds a table with its heading.
fn add_table<const N: usize>(
    lines: &mut Vec<Line>,
    mut table: Table<N>,
    rows: impl Iterator<Item = ([String; N], LineKind)>,
) {
    let rows: Vec<_> = rows.collect();
    rows.iter().for_each(|(cells, _)| table.fit(cells));
    let terminal = Terminal::with_width(None);
    let line = |text: String, kind| Line {
        text: text.trim_end().to_owned(),
        kind,
    };
    lines.push(line(table.head(&terminal), LineKind::Heading));
    let rows = rows
        .iter()
        .map(|(cells, kind)| line(table.row(cells, &terminal), *kind));
    lines.extend(rows);
}

/// The stacks of samples, each once.
struct LiveStacks<'n> {
    catalog: &'n Catalog,
    names: &'n mut Names,
    numbers: HashMap<(u32, ProcessId, StackId, Option<StackId>), usize>,
    all: Vec<Vec<otelctx_profile::report::LiveFrame>>,
}

impl<'n> LiveStacks<'n> {
    fn new(catalog: &'n Catalog, names: &'n mut Names) -> Self {
        Self {
            catalog,
            names,
            numbers: HashMap::new(),
            all: Vec::new(),
        }
    }

    /// Returns the number of a stack; `usize::MAX` if there is none.
    fn number(&mut self, stacks: Option<&Stacks>) -> usize {
        let Some(stacks) = stacks.filter(|it| self.names.has(it)) else {
            return usize::MAX;
        };
        let process = self.catalog.thread_facts(stacks.thread).process;
        let key = (stacks.catalog, process, stacks.user, stacks.kernel);
        *self.numbers.entry(key).or_insert_with(|| {
            self.all.push(self.names.stack(self.catalog, stacks));
            self.all.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::{
        Counts, Frame, FrameKind, ModuleFiles, NamedFrame, ProcessFacts,
    };

    use super::super::window::tests::{context, thread};
    use super::super::window::{Cell, Work};
    use super::*;

    const PERIOD: u64 = 10_000_000;

    /// A window with samples of two traces of a thread, and their stacks.
    struct Shop {
        catalog: Catalog,
        window: Window,
    }

    impl Shop {
        fn new() -> Self {
            let mut catalog = Catalog::new();
            let process = catalog.add_process(ProcessFacts::default());
            let id = catalog.thread(process, 71, "worker");
            let python = |name: &str, line| {
                Frame::from(NamedFrame {
                    kind: FrameKind::CPYTHON,
                    function: name.into(),
                    file: "shop.py".into(),
                    line,
                    ..NamedFrame::default()
                })
            };
            let bootstrap = Frame::from(NamedFrame {
                kind: FrameKind::CPYTHON,
                function: "Thread._bootstrap".into(),
                file: "/usr/lib/python3/threading.py".into(),
                line: 9,
                ..NamedFrame::default()
            });
            let mut stack = |inner: &[Frame]| {
                let outer = [python("serve", 5), bootstrap.clone()];
                catalog.stack(&[inner, &outer].concat())
            };
            let total = stack(&[python("total", 22), python("cart", 12)]);
            let items = stack(&[python("items", 31), python("cart", 11)]);
            let rare = stack(&[python("rare", 41)]);
            let kernel = catalog.stack(&[]);
            let mut window = Window::new(0, 0);
            let cells = [
                (1, "/cart", total, 150),
                (2, "/cart", items, 49),
                (2, "/cart", rare, 1),
            ];
            for (trace, route, user, samples) in cells {
                let context = context(trace, route);
                window.note_trace(context.trace, trace * 1_000_000_000);
                let cell = Cell {
                    thread: window.threads.get(thread(7, 71)),
                    gil: None,
                    work: Work::Attached(window.contexts.get(context)),
                    stacks: Some(Stacks {
                        catalog: 0,
                        thread: id,
                        user,
                        kernel: Some(kernel),
                    }),
                    wait: None,
                };
                (0..samples).for_each(|_| window.add(cell.clone(), 1));
            }
            window.close(10_000_000_000, Counts::default());
            Self { catalog, window }
        }

        fn lines(&self, path: &[Open], functions: &[&str], search: &str) -> Vec<String> {
            let functions: Vec<String> = functions.iter().map(ToString::to_string).collect();
            let source = Source {
                window: &self.window,
                catalog: &self.catalog,
                samples: &self.window.all(),
                attribute: "http.route",
                functions: &functions,
                period: PERIOD,
                kinds: Kinds::RUNNING,
            };
            let mut names = Names::new(ModuleFiles::default(), &[]);
            let opened = Opened::of(&source, path, &mut names);
            let lines = opened.lines(search).into_iter();
            lines.map(|line| line.text).collect()
        }
    }

    fn cart() -> Open {
        let route = By::Attribute("http.route".into());
        Open::new(route, Key::Value("/cart".into()))
    }

    /// The function of less than 1 %, and the start of the thread, are left out.
    #[test]
    fn an_opened_row_has_a_tree_of_functions_and_its_traces() {
        let shop = Shop::new();
        let first = |trace: u64| {
            let time = calendar_time(trace * 1_000_000_000);
            clock::local(SystemTime::UNIX_EPOCH + Duration::from_nanos(time))
        };
        let id = |trace: u64| format!("{trace:032x}");
        let trace = |cpu, share, number| {
            let (first, id) = (first(number), id(number));
            format!("  {cpu}  {share}  {first}          1  {id}  /cart")
        };
        assert_eq!(
            shop.lines(&[cart()], &[], ""),
            [
                "       CPU    SHARE      SELF  FUNCTION".to_owned(),
                "  2,000 ms  100.0 %            serve  shop.py:5".to_owned(),
                "  1,990 ms   99.5 %             cart  shop.py:11".to_owned(),
                "  1,500 ms   75.0 %  1,500 ms    total  shop.py:22".to_owned(),
                "    490 ms   24.5 %    490 ms    items  shop.py:31".to_owned(),
                format!(
                    "       CPU   SHARE  FIRST SEEN  THREADS  {:<32}  VALUE",
                    "TRACE"
                ),
                trace("1,500 ms", "75.0 %", 1),
                trace("  500 ms", "25.0 %", 2),
                "  MOST OF THEM".to_owned(),
                "  process     service-7 7".to_owned(),
                "  thread      thread-71 71".to_owned(),
                format!("  trace       {}  (of 2 traces)", id(1)),
                "  span        0000000000000001  (of 2 spans)".to_owned(),
                "  http.route  /cart".to_owned(),
            ]
        );
        // A trace of it, opened.
        let context = context(2, "/cart");
        let lines = shop.lines(
            &[cart(), Open::new(By::Trace, Key::Trace(context.trace))],
            &[],
            "",
        );
        assert_eq!(lines[1], "  500 ms  100.0 %          serve  shop.py:5");
        assert_eq!(lines[2], "  490 ms   98.0 %           cart  shop.py:11");
        assert!(lines.iter().any(|line| line.ends_with("items  shop.py:31")));
        assert!(
            !lines.iter().any(|line| line.contains("total")),
            "{lines:#?}"
        );
        // From a selected function on, with its callers.
        assert_eq!(
            shop.lines(&[cart()], &["TOTAL"], "shop.py"),
            [
                "       CPU    SHARE  SELF  CALLERS",
                "  1,500 ms  100.0 %        total  shop.py:22",
                "  1,500 ms  100.0 %         cart  shop.py:11",
                "  1,500 ms  100.0 %          serve  shop.py:5",
                "       CPU    SHARE      SELF  CALLEES",
                "  1,500 ms  100.0 %  1,500 ms  total  shop.py:22",
            ]
        );
        assert_eq!(
            shop.lines(&[Open::new(By::Trace, Key::Nothing)], &[], ""),
            [""; 0]
        );
    }
}
