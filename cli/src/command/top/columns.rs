//! Rows as cells, in columns that fit a width.

use std::collections::HashSet;

use unicode_width::UnicodeWidthStr;

use super::rows::{By, Row};
use super::time::{Kinds, Wait};
use crate::output::table::{Align, MAX_WIDTH};
use crate::output::terminal::{cut, escape};
use crate::output::text;

const GAP: usize = 2;
/// Widths that texts are cut to: first, and if that is not enough.
const PREFERRED_WIDTH: usize = 12;
const MIN_WIDTH: usize = 8;
/// Columns that are expendable by at least this are dropped before others are cut to less than
/// [`PREFERRED_WIDTH`].
const EXTRA: u8 = 6;
/// Widths that what a thread waits for is cut to.
const PREFERRED_REASON: usize = 36;
const MIN_REASON: usize = 20;
/// Maximum length of a bar, in columns.
const BAR: usize = 10;

#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) head: String,
    pub(super) align: Align,
    /// Escaped for a terminal, one per row.
    pub(super) cells: Vec<String>,
    pub(super) width: usize,
    /// Widths that it may be cut to before and after the columns of at least [`EXTRA`] are dropped.
    preferred: usize,
    minimum: usize,
    /// The column with the largest value is dropped first; 0 is never dropped.
    expendable: u8,
}

/// Converts samples, and times, to a share of the window's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    /// CPU time per sample, in nanoseconds.
    pub(super) period: u64,
    /// Length of the window, in nanoseconds.
    pub(super) wall: u64,
    pub(super) kinds: Kinds,
}

impl Share {
    /// Returns 1 for one CPU, fully used.
    pub(super) fn of(self, samples: u64) -> f64 {
        samples as f64 * self.period as f64 / self.wall.max(1) as f64
    }

    pub(super) fn percent(self, samples: u64) -> String {
        format!("{:.1}", self.of(samples) * 100.0)
    }

    /// Returns 1 for one thread, all the time.
    pub(super) fn of_time(self, nanoseconds: u64) -> f64 {
        nanoseconds as f64 / self.wall.max(1) as f64
    }

    pub(super) fn percent_of_time(self, nanoseconds: u64) -> String {
        format!("{:.1}", self.of_time(nanoseconds) * 100.0)
    }
}

/// Returns the columns for rows grouped by `by`, in their order on the line.
pub(super) fn columns(rows: &[Row], by: &By, attribute: &str, share: Share) -> Vec<Column> {
    let text = |head: &str, expendable, cell: &dyn Fn(&Row) -> String| {
        column(head, Align::Left, expendable, rows, cell)
    };
    let number = |head: &str, expendable, cell: &dyn Fn(&Row) -> String| {
        column(head, Align::Right, expendable, rows, cell)
    };
    let times = times(rows, share);
    let reason = share.kinds.waits.then(|| reasons(rows, by));
    let service = |expendable| text("SERVICE", expendable, &service);
    let value = |row: &Row| row.value.clone().unwrap_or_default();
    // A truncated ID cannot be searched.
    let whole = |column: Column| Column {
        preferred: column.width,
        ..column
    };
    let trace = || whole(text("TRACE", 4, &|row| trace(row)));
    let span = || whole(text("SPAN", 8, &|row| span(row)));
    let threads = || number("THREADS", 3, &|row| row.threads.to_string());
    let traces = |expendable| number("TRACES", expendable, &|row| row.traces.to_string());
    let with_value = |mut columns: Vec<Column>, at: usize| {
        if !attribute.is_empty() {
            columns.insert(at, text(attribute, 1, &value));
        }
        columns
    };
    let others = match by {
        By::Thread => {
            let tid = number("TID", 5, &|row| id(row.thread.tid));
            let pid = number("PID", 6, &|row| id(row.thread.process.pid));
            let name = text("THREAD", 0, &|row| row.name());
            let columns = vec![pid, tid, name, service(3), traces(7), trace(), span()];
            with_value(columns, 4)
        }
        By::Attribute(name) => {
            let name = text(name, 0, &|row| row.name());
            vec![name, threads(), traces(2), service(5), trace()]
        }
        By::Trace => {
            let name = whole(text("TRACE", 0, &|row| row.name()));
            let spans = number("SPANS", 7, &|row| row.spans.to_string());
            with_value(vec![name, threads(), spans, service(5)], 1)
        }
        By::Process => {
            let name = text("SERVICE", 0, &|row| row.name());
            let pid = number("PID", 2, &|row| id(row.thread.process.pid));
            let columns = vec![pid, name, threads(), traces(4), trace()];
            with_value(columns, 4)
        }
        By::Service => {
            let name = text("SERVICE", 0, &|row| row.name());
            let processes = number("PROCESSES", 6, &|row| row.processes.to_string());
            let columns = vec![name, processes, threads(), traces(4), trace()];
            with_value(columns, 4)
        }
        By::Function | By::File | By::Line => {
            let name = text(&by.words().to_uppercase(), 0, &|row| row.name());
            with_value(vec![name, threads(), traces(4), service(5)], 1)
        }
        By::Levels(levels) => {
            let name = |level: &usize| levels[*level].words();
            let levels = (0..levels.len())
                .map(|level| text(&name(&level), 0, &move |row| row.names().swap_remove(level)));
            let more = [threads(), traces(4), service(5)];
            levels.chain(more).collect()
        }
    };
    times.into_iter().chain(others).chain(reason).collect()
}

/// Returns the columns of times, with a bar for the first one.
fn times(rows: &[Row], share: Share) -> Vec<Column> {
    let Kinds { running, waits } = share.kinds;
    let number =
        |head: &str, cell: &dyn Fn(&Row) -> String| column(head, Align::Right, 0, rows, cell);
    let for_bar = |row: &Row| match running {
        true => row.time.samples,
        false => row.time.waiting,
    };
    let most = rows.iter().map(for_bar).max().unwrap_or(0);
    let bar = column("", Align::Left, 9, rows, &|row| bar(for_bar(row), most));
    let head = if waits { "RUN %" } else { "CPU %" };
    let cpu = || number(head, &|row| share.percent(row.time.samples));
    let queue = || number("QUEUE %", &|row| share.percent_of_time(row.time.queued));
    let wait = || number("WAIT %", &|row| share.percent_of_time(row.time.waiting));
    match (running, waits) {
        (_, false) => vec![cpu(), bar],
        (true, true) => vec![cpu(), bar, queue(), wait()],
        (false, true) => vec![wait(), bar, queue()],
    }
}

/// Returns the column of what threads wait for.
fn reasons(rows: &[Row], by: &By) -> Column {
    let column = column("WAITING", Align::Left, 2, rows, &|row| reason(row, by));
    Column {
        preferred: column.width.min(PREFERRED_REASON),
        minimum: column.width.min(MIN_REASON),
        ..column
    }
}

/// Returns what a thread waits for at present, or what the threads of other rows waited for longest.
fn reason(row: &Row, by: &By) -> String {
    match by {
        By::Thread => {
            let present = row.present.as_ref();
            present.map_or(String::new(), |it| it.text())
        }
        _ => row.wait.as_ref().map_or(String::new(), Wait::text),
    }
}

fn column(
    head: &str,
    align: Align,
    expendable: u8,
    rows: &[Row],
    cell: &dyn Fn(&Row) -> String,
) -> Column {
    let cells: Vec<String> = rows.iter().map(|row| escape(&cell(row))).collect();
    let head = escape(head);
    let widths = cells.iter().map(|cell| cell.width());
    let widest = widths.filter(|it| *it <= MAX_WIDTH).max();
    let width = widest.unwrap_or(0).max(head.width().min(MAX_WIDTH));
    let at_most = |limit| match align {
        // A number that is cut is another number.
        Align::Right => width,
        Align::Left => width.min(limit),
    };
    Column {
        head,
        align,
        cells,
        width,
        preferred: at_most(PREFERRED_WIDTH),
        minimum: at_most(MIN_WIDTH),
        expendable,
    }
}

/// Returns the service with most of a row's samples, and how many others there are.
fn service(row: &Row) -> String {
    let name = row.thread.process.label();
    let services = row.all_threads.iter().map(|it| &it.process);
    let services: HashSet<_> = services.map(|it| (&it.name, it.name_kind)).collect();
    match services.len() {
        0 | 1 => name,
        all => format!("{name} +{}", all - 1),
    }
}

fn trace(row: &Row) -> String {
    let id = row.context().and_then(|context| context.trace_id());
    id.map_or(String::new(), |id| id.to_string())
}

fn span(row: &Row) -> String {
    let id = row.context().and_then(|context| context.span_id());
    id.map_or(String::new(), |id| id.to_string())
}

fn id(id: i32) -> String {
    match id {
        0 => String::new(),
        id => id.to_string(),
    }
}

/// Returns a bar, full for the row with the most samples, or time.
fn bar(samples: u64, most: u64) -> String {
    let eighths = (u128::from(samples) * 8 * BAR as u128).div_ceil(u128::from(most.max(1)));
    text::bar(eighths as usize)
}

/// Narrows and drops columns until they fit in `width`. Columns that are not expendable stay even if
/// they do not fit.
pub(super) fn fit(mut columns: Vec<Column>, width: usize) -> Vec<Column> {
    let sum = |columns: &[Column], width_of: &dyn Fn(&Column) -> usize| {
        let gaps = GAP * columns.len().saturating_sub(1);
        columns.iter().map(width_of).sum::<usize>() + gaps
    };
    let drop_columns = |columns: &mut Vec<Column>, width_of: &dyn Fn(&Column) -> usize, from| {
        while sum(columns, width_of) > width {
            let last = (0..columns.len()).max_by_key(|at| columns[*at].expendable);
            match last.filter(|at| columns[*at].expendable >= from) {
                Some(at) => drop(columns.remove(at)),
                None => return,
            }
        }
    };
    drop_columns(&mut columns, &|column| column.preferred, EXTRA);
    drop_columns(&mut columns, &|column| column.minimum, 1);
    let preferred = sum(&columns, &|column| column.preferred) <= width;
    for _ in 0..sum(&columns, &|column| column.width).saturating_sub(width) {
        let room = |column: &&mut Column| {
            if preferred {
                column.width > column.preferred
            } else {
                column.width > column.minimum
            }
        };
        let widest = columns.iter_mut().filter(room).max_by_key(|it| it.width);
        let Some(column) = widest else { break };
        column.width -= 1;
    }
    columns
}

/// Formats `row`, or the headings, cut to the columns' widths if `may_cut`.
pub(super) fn line(columns: &[Column], row: Option<usize>, may_cut: bool) -> String {
    let mut line = String::new();
    for (index, column) in columns.iter().enumerate() {
        let text = row.map_or(&column.head, |row| &column.cells[row]);
        let text = if may_cut {
            &cut(text, column.width)
        } else {
            text
        };
        let padding = " ".repeat(column.width.saturating_sub(text.width()));
        if index > 0 {
            line.extend(std::iter::repeat_n(' ', GAP));
        }
        match column.align {
            Align::Left => line.extend([text, padding.as_str()]),
            Align::Right => line.extend([padding.as_str(), text]),
        }
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::Counts;

    use super::super::rows::{Key, rows};
    use super::super::window::Window;
    use super::super::window::tests::{add, context, thread};
    use super::*;

    #[test]
    fn other_services_are_counted_and_not_their_processes() {
        let mut window = Window::new(0, 0);
        for (pid, samples) in [(1, 5), (2, 2), (3, 1), (4, 1)] {
            let mut thread = thread(pid, pid);
            let name = if pid == 4 { "cart" } else { "shop" };
            name.clone_into(&mut thread.process.name);
            add(&mut window, thread, Some(context(1, "/a")), samples);
        }
        window.close(1_000_000_000, Counts::default());
        let rows = rows(&window.all(), &By::Trace, "http.route", &mut |_, _| {
            Key::Nothing
        });
        assert_eq!(rows.iter().map(service).collect::<Vec<_>>(), ["shop +1"]);
    }
}
