//! Draws the view.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

use super::columns::{Share, columns, fit, line};
use super::opened::{Line, LineKind};
use super::rows::Row;
use super::state::State;
use super::time::Time;
use crate::output::terminal::{cut, escape};
use crate::output::text::{count, grouped, own_name};

/// The content of the view.
#[derive(Debug)]
pub(super) struct Shown {
    /// The rows that match the filter, in order.
    pub(super) rows: Vec<Row>,
    /// Times by value of the selected attribute, in descending order; empty if no context has it.
    pub(super) values: Vec<(String, Time)>,
    pub(super) share: Share,
    pub(super) cpus: usize,
    /// All time that is shown, and the time of hidden waits, in nanoseconds.
    pub(super) time: Time,
    pub(super) idle: u64,
    /// Samples with a context.
    pub(super) attached: u64,
    pub(super) lost: u64,
    /// Samples of processes that cannot be traced.
    pub(super) not_traceable: u64,
    /// The share of stacks that are incomplete, and the most frequent reason.
    pub(super) incomplete: Option<String>,
    /// The limits of sampling on this kernel; empty without any.
    pub(super) limits: String,
    /// What was opened, if something was, and its lines.
    pub(super) opened: Option<Opened>,
}

/// An opened row as lines.
#[derive(Debug)]
pub(super) struct Opened {
    /// Its name and its samples; `None` if it has none in this window.
    pub(super) row: Option<Row>,
    pub(super) lines: Vec<Line>,
}

impl Shown {
    /// Returns the lines of the opened row.
    pub(super) fn lines(&self) -> &[Line] {
        self.opened.as_ref().map_or(&[], |opened| &opened.lines)
    }
}

/// Positions of the parts of the screen.
struct Layout {
    head: u16,
    /// First row of the table, and number of rows.
    rows: (u16, u16),
    limits: Option<u16>,
    keys: Option<u16>,
}

impl Layout {
    fn new(area: Rect, shown: &Shown) -> Self {
        let height = area.height;
        let keys = (height > 3).then(|| height - 1);
        let mut bottom = keys.unwrap_or(height);
        let limits = (!shown.limits.is_empty() && height > 6).then(|| bottom - 1);
        bottom = limits.unwrap_or(bottom);
        // The values have their own line if there is room and the rows do not show them already.
        let head = match height {
            0..=1 => 0,
            2..=5 => 1,
            _ => 2,
        };
        let first = (head + 1).min(bottom);
        Self {
            head,
            rows: (first, bottom - first),
            limits,
            keys,
        }
    }
}

pub(super) fn page(area: Rect, shown: &Shown) -> usize {
    Layout::new(area, shown).rows.1.into()
}

/// Draws everything. Texts from targets have been escaped.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, state: &State, shown: &Shown, colours: bool) {
    let layout = Layout::new(area, shown);
    let mut paint = Paint {
        buffer,
        area,
        colours,
    };
    paint.text(0, &summary(state, shown), Modifier::BOLD.into());
    if shown.lost > 0 && area.height > 1 {
        let text = summary(state, shown);
        let from = text.find(&lost(shown)).map(|at| text[..at].width());
        let (from, red) = (from.unwrap_or(0), paint.coloured(Color::Red));
        paint.over(0, from, &lost(shown), red);
    }
    if layout.head > 1 {
        paint.text(1, &values(state, shown, area.width.into()), Style::new());
    }
    match &shown.opened {
        Some(opened) => paint.opened(&layout, state, shown, opened),
        None => paint.table(&layout, state, shown),
    }
    if let Some(at) = layout.limits {
        paint.text(at, &escape(&shown.limits), paint.coloured(Color::Yellow));
    }
    if let Some(at) = layout.keys {
        paint.text(at, &keys(state, area.width.into()), Modifier::DIM.into());
    }
    if state.help {
        paint.help(shown.share.kinds.waits);
    }
}

struct Paint<'b> {
    buffer: &'b mut Buffer,
    area: Rect,
    colours: bool,
}

impl Paint<'_> {
    fn coloured(&self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    /// Draws a line, cut to the width.
    fn text(&mut self, y: u16, text: &str, style: Style) {
        if y < self.area.height {
            let text = cut(text, self.area.width.into());
            let (x, y, width) = (self.area.x, self.area.y + y, self.area.width.into());
            self.buffer.set_stringn(x, y, text, width, style);
        }
    }

    /// Draws a part of a line, from a column on.
    fn over(&mut self, y: u16, x: usize, text: &str, style: Style) {
        let width = usize::from(self.area.width);
        if x < width && y < self.area.height {
            let (left, y, width) = (self.area.x + x as u16, self.area.y + y, width - x);
            self.buffer
                .set_stringn(left, y, cut(text, width), width, style);
        }
    }

    fn table(&mut self, layout: &Layout, state: &State, shown: &Shown) {
        let (first, height) = layout.rows;
        let all = columns(&shown.rows, &state.by, &state.attribute, shown.share);
        let columns = fit(all, self.area.width.into());
        let head = line(&columns, None, true);
        if layout.head > 0 {
            let style = Style::from(Modifier::REVERSED);
            let full = format!("{head:<width$}", width = usize::from(self.area.width));
            self.text(layout.head, &full, style);
        }
        if shown.rows.is_empty() {
            let text = if !state.filter.is_empty() {
                "no row matches the filter"
            } else if shown.share.wall == 0 {
                "sampling …"
            } else if shown.share.kinds.waits {
                "nothing ran or waited with a context in this window"
            } else {
                "nothing ran in this window"
            };
            if height > 0 {
                self.text(first, text, Style::new());
            }
            return;
        }
        // The bar is the column without a heading.
        let bar = columns.iter().position(|column| column.head.is_empty());
        let bar = bar.map(|at| {
            let before = columns[..at].iter().map(|column| column.width + 2);
            (before.sum::<usize>(), at)
        });
        for at in 0..usize::from(height) {
            let row = state.top + at;
            if row >= shown.rows.len() {
                break;
            }
            let y = first + at as u16;
            let chosen = state.at == Some(row);
            let mut text = line(&columns, Some(row), true);
            let mut style = Style::new();
            if chosen {
                style = Modifier::REVERSED.into();
                let width = usize::from(self.area.width);
                text += &" ".repeat(width.saturating_sub(text.width()));
            }
            self.text(y, &text, style);
            if let Some((x, at)) = bar.filter(|_| !chosen) {
                let green = self.coloured(Color::Green);
                self.over(y, x, &columns[at].cells[row], green);
            }
        }
    }

    /// Draws an opened row.
    fn opened(&mut self, layout: &Layout, state: &State, shown: &Shown, opened: &Opened) {
        let (first, height) = layout.rows;
        let head = match &opened.row {
            Some(row) => format!("{}: {}", escape(&row.name()), times(row.time, shown.share)),
            None => "the opened row has no samples in this window".to_owned(),
        };
        if layout.head > 0 {
            let full = format!("{head:<width$}", width = usize::from(self.area.width));
            self.text(layout.head, &full, Modifier::REVERSED.into());
        }
        let (at, top) = state.opened.last().map_or((0, 0), |it| (it.at, it.top));
        let lines = opened.lines.iter().enumerate().skip(top);
        for ((number, line), y) in lines.zip(first..first + height) {
            let mut style = Style::new();
            let mut text = line.text.clone();
            if line.kind == LineKind::Heading {
                style = Modifier::BOLD.into();
            }
            if number == at {
                style = Modifier::REVERSED.into();
                let width = usize::from(self.area.width);
                text += &" ".repeat(width.saturating_sub(text.width()));
            }
            self.text(y, &text, style);
        }
    }

    fn help(&mut self, with_waits: bool) {
        let waits = if with_waits { HELP_WAITS } else { &[] };
        let lines = [HELP, waits].concat();
        let width = lines.iter().map(|text| text.width()).max().unwrap_or(0);
        let margin = 2.min(usize::from(self.area.width).saturating_sub(width) / 2);
        let width = ((width + 2 * margin) as u16).min(self.area.width);
        let border = usize::from(usize::from(self.area.height) >= lines.len() + 2);
        let height = ((lines.len() + 2 * border) as u16).min(self.area.height);
        let left = self.area.x + (self.area.width - width) / 2;
        let top = self.area.y + (self.area.height - height) / 2;
        for (at, y) in (top..top + height).enumerate() {
            let text = at.checked_sub(border).and_then(|at| lines.get(at));
            let full = " ".repeat(margin) + text.copied().unwrap_or_default();
            let full = cut(&full, width.into());
            let padding = " ".repeat(usize::from(width).saturating_sub(full.width()));
            self.buffer
                .set_stringn(left, y, full + &padding, width.into(), Modifier::REVERSED);
        }
    }
}

const HELP: &[&str] = &[
    "g Tab  by thread, each attribute,",
    "       trace, process, service,",
    "       function; G back",
    "s r    sort by the next; reverse",
    "↑↓ kj  select a row; PgUp PgDn Home End",
    "Enter  open it: functions, traces, IDs;",
    "       there, Enter opens a trace",
    "/      show only rows with a text",
    "space  pause the view",
    "Esc    back; q, Ctrl-C quit",
    "",
    "CPU %  100 is one CPU, fully used",
    "SERVICE (shop) is from the environment;",
    "       [sh] is a command, no service",
    "TRACE  of several, the one with the most",
    "       samples; likewise other columns",
    "TRACES those sampled, which can be fewer",
    "       than there were",
];

/// The same for threads that wait.
const HELP_WAITS: &[&str] = &[
    "",
    "RUN %  100 is one thread all the time, on",
    "       a CPU; QUEUE % ready, without one",
    "WAIT % asleep, at a disk, or stopped",
    "WAITING of a thread: since when, and for",
    "       what; else what took longest",
];

/// Formats the times of an opened row.
fn times(time: Time, share: Share) -> String {
    let running = format!(
        "{} % CPU, {}",
        share.percent(time.samples),
        count(time.samples as usize, "sample", "samples"),
    );
    let off = format!(
        "{} % queued, {} % waiting",
        share.percent_of_time(time.queued),
        share.percent_of_time(time.waiting),
    );
    match (share.kinds.running, share.kinds.waits) {
        (_, false) => running,
        (true, true) => format!("{running}, {off}"),
        (false, true) => off,
    }
}

/// Formats the queued, waiting and hidden time of all rows, if waits are sampled.
pub(super) fn off_cpu(time: Time, idle: u64, share: Share) -> Option<String> {
    let hidden = match idle {
        0 => String::new(),
        idle => format!(
            " · {} % idle, hidden (--idle shows it)",
            share.percent_of_time(idle)
        ),
    };
    share.kinds.waits.then(|| {
        format!(
            "queued {} % · waiting {} %{hidden}",
            share.percent_of_time(time.queued),
            share.percent_of_time(time.waiting)
        )
    })
}

fn lost(shown: &Shown) -> String {
    format!("{} lost", grouped(shown.lost as usize))
}

fn summary(state: &State, shown: &Shown) -> String {
    let mut parts = Vec::new();
    if state.paused {
        parts.push("PAUSED".to_owned());
    }
    let samples = shown.time.samples;
    let running = shown.share.kinds.running;
    if running {
        parts.push(format!(
            "CPU {} % of {} %",
            shown.share.percent(samples),
            shown.cpus * 100
        ));
    }
    if shown.lost > 0 {
        parts.push(lost(shown));
    }
    if running {
        let with_context = shown.attached * 100 / samples.max(1);
        parts.push(format!("{with_context} % of it with a context"));
    }
    parts.extend(off_cpu(shown.time, shown.idle, shown.share));
    let wall = shown.share.wall as f64 / 1e9;
    parts.push(match running {
        true => format!(
            "{} in {wall:.1} s",
            count(samples as usize, "sample", "samples")
        ),
        false => format!("in {wall:.1} s"),
    });
    if shown.not_traceable > 0 {
        let samples = grouped(shown.not_traceable as usize);
        parts.push(format!("{samples} not traceable"));
    }
    if let Some(text) = &shown.incomplete {
        parts.push(text.clone());
    }
    parts.join(" · ")
}

/// Formats the second line: the values with the most CPU time.
fn values(state: &State, shown: &Shown, width: usize) -> String {
    if shown.values.is_empty() {
        let samples = shown.time.samples;
        return match (samples, shown.attached) {
            (0, _) => String::new(),
            (_, 0) => format!(
                "no context was attached: `{} ps` lists processes that publish",
                own_name()
            ),
            _ if state.attribute.is_empty() => String::new(),
            _ => format!("no context has {}", escape(&state.attribute)),
        };
    }
    let mut text = escape(&state.attribute);
    let share = shown.share;
    for (value, time) in &shown.values {
        let value = cut(&escape(value), 32);
        let waiting = share.percent_of_time(time.waiting);
        let running = share.percent(time.samples);
        let part = match (share.kinds.running, share.kinds.waits) {
            (_, false) => format!("  {value} {running} %"),
            (true, true) => format!("  {value} {running} % and {waiting} % waiting"),
            (false, true) => format!("  {value} {waiting} % waiting"),
        };
        if text.width() + part.width() > width {
            break;
        }
        text.push_str(&part);
    }
    text
}

fn keys(state: &State, width: usize) -> String {
    let is_opened = !state.opened.is_empty();
    let (what, text) = match is_opened {
        true => ("search", &state.search),
        false => ("filter", &state.filter),
    };
    if state.typing {
        let text = escape(text);
        return format!("{what}: {text}▏  Enter keeps it, Esc clears it");
    }
    let by = cut(&escape(&state.by.words()), 24);
    let order = state.sort.name();
    let reversed = if state.reversed { " reversed" } else { "" };
    let filter = if text.is_empty() {
        format!("/ {what}")
    } else {
        format!("/ {what}: {}", cut(&escape(text), 24))
    };
    let parts = if is_opened {
        vec![
            "Esc back".to_owned(),
            "? help".into(),
            filter,
            "↑↓ move".into(),
            "Enter opens a trace".into(),
            "space pause".into(),
        ]
    } else {
        vec![
            "q quit".to_owned(),
            format!("g by {by}"),
            "? help".into(),
            filter,
            format!("s order: {order}{reversed}"),
            "space pause".into(),
            "Enter open".into(),
        ]
    };
    let mut text = String::new();
    for part in parts {
        let gap = if text.is_empty() { "" } else { "  " };
        if text.width() + gap.len() + part.width() <= width {
            text.push_str(gap);
            text.push_str(&part);
        }
    }
    text
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
