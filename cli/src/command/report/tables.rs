//! A report as text.

use std::path::Path;
use std::time::{Duration, SystemTime};

use otelctx_profile::report::{
    Cost, Function, FunctionCost, GroupCost, Report, TraceCost, TreeNode,
};

pub(in crate::command) use super::cells::{number, share, text, time};
use super::kinds::Kinds;
use super::{Sort, TraceOrder};
use crate::command::record::gil::GilSamples;
use crate::output::clock;
use crate::output::names::short;
use crate::output::table::Table;
use crate::output::terminal::{Style, Terminal, escape};
use crate::output::text::{argument, count, grouped, own_name};

/// Smallest share, as a part of this many, for which functions without names have a line.
const MIN_UNNAMED: u64 = 20;

/// Number of samples of the costliest trace from which on traces are shown by default.
const MIN_SAMPLES: u64 = 3;

/// Width from which on tables have all columns.
const WIDE: usize = 110;

/// Greatest indentation in a tree, in levels.
pub(in crate::command) const MAX_INDENT: usize = 60;

/// A report, and how to show it.
pub(super) struct Shown<'r> {
    pub(super) report: &'r Report,
    pub(super) file: &'r Path,
    pub(super) by: &'r [String],
    pub(super) kinds: Kinds,
    /// Maximum rows per table.
    pub(super) rows: usize,
    pub(super) sort: Sort,
    pub(super) traces: Option<TraceOrder>,
    /// The user has not named the file.
    pub(super) is_chosen: bool,
    /// Number of its files.
    pub(super) files: usize,
    /// A tree of functions was asked for.
    pub(super) wants_tree: bool,
}

/// A row of a table, with text below it.
struct Section<'t> {
    terminal: &'t Terminal,
    rows: usize,
    text: String,
}

impl Section<'_> {
    fn add(&mut self, head: &str, all: usize, table: &str) {
        let head = self.terminal.paint(Style::Bold, head);
        self.text += &format!("\n{head}\n{table}");
        if all > self.rows {
            let more = grouped(all - self.rows);
            self.text += &format!("  and {more} more; -n 0 shows all\n");
        }
    }
}

impl Shown<'_> {
    pub(super) fn text(&self, terminal: &Terminal) -> String {
        let report = self.report;
        if report.total.samples == 0 {
            let idle = self.kinds.lines(report);
            return format!("the recording has no samples\n{idle}");
        }
        let mut section = Section {
            terminal,
            rows: self.rows,
            text: self.summary(),
        };
        if self.wants_tree && report.tree.is_empty() {
            section.text += "\nthe selected functions are left out: --plumbing shows them\n";
            return section.text;
        }
        if self.wants_tree {
            if !report.callers.is_empty() {
                let table = self.tree(&report.callers, false, terminal);
                section.add("Callers", 0, &table);
            }
            section.add("Callees", 0, &self.tree(&report.tree, true, terminal));
            return section.text;
        }
        if self.traces.is_some() {
            self.add_traces(&mut section, true);
            return section.text;
        }
        if report.by_service.len() > 1 {
            let table = self.named("SERVICE", &report.by_service, terminal);
            section.add("By service", report.by_service.len(), &table);
        }
        if !self.by.is_empty() {
            let head = escape(&format!("By {}", self.by.join(", ")));
            section.add(&head, report.groups.len(), &self.groups(terminal));
        }
        match report.by_trace.first() {
            // They are in no order.
            Some(first) if first.kinds.sum().samples < MIN_SAMPLES => {
                let number = count(report.by_trace.len(), "trace", "traces");
                let most = count(first.kinds.sum().samples as usize, "sample", "samples");
                section.text += &format!(
                    "\n{number}, none with more than {most}: record with -F 999 to compare requests\n"
                );
            }
            Some(_) => self.add_traces(&mut section, false),
            None => {}
        }
        if !report.by_function.is_empty() {
            let table = self.functions(terminal);
            section.add("By function", report.functions, &table);
        }
        if report.by_process.len() > 1 {
            let table = self.named("PROCESS", &report.by_process, terminal);
            section.add("By process", report.by_process.len(), &table);
        }
        section.text
    }

    /// Formats what the recording is, and how much of it is selected.
    pub(super) fn summary(&self) -> String {
        let report = self.report;
        let mut text = String::new();
        if self.is_chosen || self.files > 1 {
            text += &escape(&self.file.to_string_lossy());
            if self.files > 1 {
                text += &format!(
                    " and {}",
                    count(self.files - 1, "further file", "further files")
                );
            }
            text += ": ";
        }
        let seconds = report.duration as f64 / 1e9;
        let from = match report.start {
            0 => String::new(),
            start => {
                let start = SystemTime::UNIX_EPOCH + Duration::from_nanos(start);
                format!(" from {}", clock::local_with_offset(start))
            }
        };
        let samples = count(report.total.samples as usize, "sample", "samples");
        let traced = share(report.with_trace, report.total);
        text += &match report.total.nanoseconds {
            0 => format!("{samples}, of unknown time\n"),
            _ => format!(
                "{samples} in {seconds:.1} s{from}, {} of {}, {traced} with a trace\n",
                time(report.total),
                self.kinds.noun(),
            ),
        };
        text += &self.kinds.lines(report);
        if let Some(line) = GilSamples::of_report(report).line() {
            text += &format!("{line}\n");
        }
        if let Some(line) = self.unnamed() {
            text += &format!("{line}\n");
        }
        text
    }

    fn of_all(&self, cost: Cost) -> String {
        share(cost, self.report.total)
    }

    fn named(&self, head: &'static str, rows: &[(String, Cost)], terminal: &Terminal) -> String {
        let row = |(name, cost): &(String, Cost)| [time(*cost), self.of_all(*cost), escape(name)];
        Table::new([number(self.kinds.head()), number("SHARE"), text(head)])
            .render(rows.iter().take(self.rows).map(row), terminal)
    }

    /// Formats the costliest values, each with its costliest functions.
    fn groups(&self, terminal: &Terminal) -> String {
        let rows = self.report.groups.iter().take(self.rows);
        let rows = rows.flat_map(|group: &GroupCost| {
            let values = escape(&group.values.join("  "));
            let [cpu, queued, waiting] = Kinds::cells(&group.kinds);
            let (cost, share) = (time(group.cost), self.of_all(group.cost));
            let head = [cost, share, cpu, queued, waiting, values];
            let functions = own_first(&group.functions).map(|(function, cost)| {
                let cost = self.sorted_by(cost);
                let name = format!("    {}", with_place(function));
                let [cpu, queued, waiting] = Default::default();
                [time(cost), self.of_all(cost), cpu, queued, waiting, name]
            });
            std::iter::once(head).chain(functions.filter(|_| self.report.groups.len() > 1))
        });
        let [cpu, queued, waiting] = Kinds::columns();
        let (head, share) = (number(self.kinds.head()), number("SHARE"));
        let hidden = self.kinds.hidden();
        Table::new([head, share, cpu, queued, waiting, text("VALUE")])
            .hide([false, false, hidden[0], hidden[1], hidden[2], false])
            .render(rows, terminal)
    }

    fn sorted_by(&self, cost: &FunctionCost) -> Cost {
        match self.sort {
            Sort::Own => cost.own,
            Sort::Total => cost.total,
        }
    }

    fn functions(&self, terminal: &Terminal) -> String {
        let row = |(function, cost): &(Function, FunctionCost)| {
            [
                time(cost.own),
                self.of_all(cost.own),
                time(cost.total),
                escape(&shown(&function.name)),
                place(function, MAX_FILE),
            ]
        };
        let rows = self.report.by_function.iter().take(self.rows);
        let rows: Vec<_> = rows.collect();
        let rows = own_first(rows).map(row);
        Table::new([
            number("SELF"),
            number("SHARE"),
            number("TOTAL"),
            text("FUNCTION"),
            text("FILE"),
        ])
        .render(rows, terminal)
    }

    /// Formats functions, indented by their depth.
    fn tree(&self, nodes: &[TreeNode], with_own: bool, terminal: &Terminal) -> String {
        let (step, file) = match terminal.is_narrower_than(WIDE) {
            true => (" ", MAX_FILE / 2),
            false => ("  ", MAX_FILE),
        };
        let row = |node: &TreeNode| {
            let indent = step.repeat(node.depth.min(MAX_INDENT));
            [
                time(node.cost.total),
                self.of_all(node.cost.total),
                match node.cost.own.samples {
                    1.. if with_own => time(node.cost.own),
                    _ => String::new(),
                },
                format!("{indent}{}", with_short_place(&node.function, file)),
            ]
        };
        Table::new([
            number("TOTAL"),
            number("SHARE"),
            number("SELF"),
            text("FUNCTION"),
        ])
        .render(nodes.iter().map(row), terminal)
    }

    fn seen_for(&self, trace: &TraceCost) -> String {
        // The last sample stands for a period.
        let lasted = trace.last - trace.first + self.report.period;
        format!("{:.1} ms", lasted as f64 / 1e6)
    }

    fn add_traces(&self, section: &mut Section<'_>, with_times: bool) {
        let mut traces: Vec<&TraceCost> = self.report.by_trace.iter().collect();
        if self.traces == Some(TraceOrder::Span) {
            traces.sort_by_key(|it| std::cmp::Reverse(it.last - it.first));
        }
        let traces = traces.into_iter().take(self.rows);
        let row = |it: &TraceCost| {
            let [cpu, queued, waiting] = Kinds::cells(&it.kinds);
            [
                time(it.cost),
                self.of_all(it.cost),
                cpu,
                queued,
                waiting,
                first_seen(it),
                self.seen_for(it),
                it.threads.to_string(),
                it.trace.id.clone(),
                escape(&it.trace.attribute),
            ]
        };
        let [cpu, queued, waiting] = Kinds::columns();
        let table = Table::new([
            number(self.kinds.head()),
            number("SHARE"),
            cpu,
            queued,
            waiting,
            text("FIRST SEEN"),
            number("FOR"),
            number("THREADS"),
            text("TRACE"),
            text("VALUE"),
        ]);
        let is_narrow = with_times && section.terminal.is_narrower_than(WIDE);
        let [cpu, queued, waiting] = self.kinds.hidden();
        let mut hidden = [false; 10];
        (hidden[1], hidden[7]) = (is_narrow, is_narrow || !with_times);
        (hidden[2], hidden[3], hidden[4]) = (cpu, queued, waiting);
        (hidden[5], hidden[6]) = (!with_times, !with_times);
        let table = table.hide(hidden).render(traces.map(row), section.terminal);
        section.add("By trace", self.report.by_trace.len(), &table);
    }

    /// Formats a line about the file with most samples whose functions have no names, if these are
    /// many.
    fn unnamed(&self) -> Option<String> {
        // The kernel's names for other memory are no paths.
        let is_file = |name: &str| name.starts_with('/') && !name.starts_with("//");
        let (name, cost) = self.report.unnamed.iter().find(|it| is_file(&it.0))?;
        if MIN_UNNAMED * cost.nanoseconds.max(1) < self.report.total.nanoseconds {
            return None;
        }
        let file = match self.file.to_string_lossy() {
            name if name == "-" => "FILE".to_owned(),
            name => escape(&argument(&name)),
        };
        Some(format!(
            "{} of {} in {}, whose functions have no names: `{} symbolize {file} --debug-dir DIRECTORY` adds them",
            self.of_all(*cost),
            self.kinds.noun(),
            escape(name),
            own_name(),
        ))
    }
}

fn first_seen(trace: &TraceCost) -> String {
    clock::local(SystemTime::UNIX_EPOCH + Duration::from_nanos(trace.first))
}

/// Returns functions, boxes of plumbing last.
fn own_first<'r>(
    rows: impl IntoIterator<Item = &'r (Function, FunctionCost)>,
) -> impl Iterator<Item = &'r (Function, FunctionCost)> + Clone {
    let stands_for_plumbing = |(function, _): &&(Function, FunctionCost)| {
        function.kind.is_empty() && function.file.is_empty()
    };
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(stands_for_plumbing);
    rows.into_iter()
}

/// Longest name in a table, in characters.
const MAX_NAME: usize = 200;

/// Shortens a function's name. Of a file that stands for its functions, only the name is shown.
fn shown(name: &str) -> String {
    let name = match name.rsplit_once('/') {
        Some((_, file)) if name.starts_with('/') => format!("[{file}]"),
        _ => short(name),
    };
    match name.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

/// Maximum length of a file's name in a table.
const MAX_FILE: usize = 40;

/// Formats a function's file and line; of a path with more than `most` characters, its end.
fn place(function: &Function, most: usize) -> String {
    if function.file.is_empty() {
        return String::new();
    }
    let characters = function.file.chars().count();
    let file = match characters.checked_sub(most) {
        Some(more) if more > 0 => {
            let end: String = function.file.chars().skip(more).collect();
            let whole = end.find('/').map_or(0, |slash| slash + 1);
            format!("…/{}", &end[whole..])
        }
        _ => function.file.clone(),
    };
    match function.line {
        0 => escape(&file),
        line => escape(&format!("{file}:{line}")),
    }
}

pub(in crate::command) fn with_place(function: &Function) -> String {
    with_short_place(function, MAX_FILE)
}

/// Formats a function's name with its file and line; of a path with more than `most` characters, its
/// end.
pub(in crate::command) fn with_short_place(function: &Function, most: usize) -> String {
    let name = escape(&shown(&function.name));
    match place(function, most) {
        place if place.is_empty() => name,
        place => format!("{name}  {place}"),
    }
}
