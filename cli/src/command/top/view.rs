//! Draws the view.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

use super::columns::{Share, columns, fit, line};
use super::rows::{By, Row};
use super::state::State;
use crate::output::terminal::{cut, escape};
use crate::output::text::{count, grouped, own_name};

/// The content of the view.
#[derive(Debug)]
pub(super) struct Shown {
    /// The rows that match the filter, in order.
    pub(super) rows: Vec<Row>,
    /// Samples by value of the selected attribute, in descending order; empty if no context has it.
    pub(super) values: Vec<(String, u64)>,
    pub(super) share: Share,
    pub(super) cpus: usize,
    pub(super) samples: u64,
    /// Samples with a context.
    pub(super) attached: u64,
    pub(super) lost: u64,
    /// Samples of processes that cannot be traced.
    pub(super) not_traceable: u64,
    /// The share of stacks that are incomplete, and the most frequent reason.
    pub(super) incomplete: Option<String>,
    /// The limits of sampling on this kernel; empty without any.
    pub(super) limits: String,
    /// Innermost frames of the selected row's most frequent stack, and its number of samples.
    pub(super) stack: Option<(Vec<String>, u64)>,
}

/// Positions of the parts of the screen.
struct Layout {
    head: u16,
    /// First row of the table, and number of rows.
    rows: (u16, u16),
    details: (u16, u16),
    limits: Option<u16>,
    keys: Option<u16>,
}

impl Layout {
    fn new(area: Rect, state: &State, shown: &Shown, details: usize) -> Self {
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
        let wanted = if state.details { details as u16 } else { 0 };
        let details = wanted.min((bottom - first) / 2);
        Self {
            head,
            rows: (first, bottom - first - details),
            details: (bottom - details, details),
            limits,
            keys,
        }
    }
}

pub(super) fn page(area: Rect, state: &State, shown: &Shown) -> usize {
    let details = details(state, shown).len();
    Layout::new(area, state, shown, details).rows.1.into()
}

/// Draws everything. Texts from targets have been escaped.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, state: &State, shown: &Shown, colours: bool) {
    let details = details(state, shown);
    let layout = Layout::new(area, state, shown, details.len());
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
    paint.table(&layout, state, shown);
    for (at, text) in details.iter().take(layout.details.1.into()).enumerate() {
        let style = match at {
            0 => Modifier::BOLD.into(),
            _ => Style::new(),
        };
        paint.text(layout.details.0 + at as u16, text, style);
    }
    if let Some(at) = layout.limits {
        paint.text(at, &escape(&shown.limits), paint.coloured(Color::Yellow));
    }
    if let Some(at) = layout.keys {
        paint.text(at, &keys(state, area.width.into()), Modifier::DIM.into());
    }
    if state.help {
        paint.help();
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

    fn help(&mut self) {
        let width = HELP.iter().map(|text| text.width()).max().unwrap_or(0);
        let margin = 2.min(usize::from(self.area.width).saturating_sub(width) / 2);
        let width = ((width + 2 * margin) as u16).min(self.area.width);
        let border = usize::from(usize::from(self.area.height) >= HELP.len() + 2);
        let height = ((HELP.len() + 2 * border) as u16).min(self.area.height);
        let left = self.area.x + (self.area.width - width) / 2;
        let top = self.area.y + (self.area.height - height) / 2;
        for (at, y) in (top..top + height).enumerate() {
            let text = at.checked_sub(border).and_then(|at| HELP.get(at));
            let full = " ".repeat(margin) + text.copied().unwrap_or_default();
            let full = cut(&full, width.into());
            let padding = " ".repeat(usize::from(width).saturating_sub(full.width()));
            self.buffer
                .set_stringn(left, y, full + &padding, width.into(), Modifier::REVERSED);
        }
    }
}

const HELP: [&str; 14] = [
    "g Tab  by thread, each attribute,",
    "       trace, process, function; G back",
    "s r    sort by the next; reverse",
    "↑↓ kj  select a row; PgUp PgDn Home End",
    "Enter  its details: full IDs, a stack",
    "/      show only rows with a text",
    "space  pause the view",
    "Esc    back; q, Ctrl-C quit",
    "",
    "CPU %  100 is one CPU, fully used",
    "TRACE  of several, the one with the most",
    "       samples; likewise other columns",
    "TRACES those sampled, which can be fewer",
    "       than there were",
];

fn lost(shown: &Shown) -> String {
    format!("{} lost", grouped(shown.lost as usize))
}

fn summary(state: &State, shown: &Shown) -> String {
    let mut parts = Vec::new();
    if state.paused {
        parts.push("PAUSED".to_owned());
    }
    parts.push(format!(
        "CPU {} % of {} %",
        shown.share.percent(shown.samples),
        shown.cpus * 100
    ));
    if shown.lost > 0 {
        parts.push(lost(shown));
    }
    let with_context = shown.attached * 100 / shown.samples.max(1);
    parts.push(format!("{with_context} % of it with a context"));
    parts.push(format!(
        "{} in {:.1} s",
        count(shown.samples as usize, "sample", "samples"),
        shown.share.wall as f64 / 1e9
    ));
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
        return match (shown.samples, shown.attached) {
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
    for (value, samples) in &shown.values {
        let value = cut(&escape(value), 32);
        let part = format!("  {value} {} %", shown.share.percent(*samples));
        if text.width() + part.width() > width {
            break;
        }
        text.push_str(&part);
    }
    text
}

fn keys(state: &State, width: usize) -> String {
    if state.typing {
        let filter = escape(&state.filter);
        return format!("filter: {filter}▏  Enter keeps it, Esc clears it");
    }
    let by = match &state.by {
        By::Thread => "thread".to_owned(),
        By::Attribute(key) => cut(&escape(key), 24),
        By::Trace => "trace".into(),
        By::Process => "process".into(),
        By::Function => "function".into(),
    };
    let order = state.sort.name();
    let reversed = if state.reversed { " reversed" } else { "" };
    let filter = if state.filter.is_empty() {
        "/ filter".to_owned()
    } else {
        format!("/ filter: {}", cut(&escape(&state.filter), 24))
    };
    let parts = [
        "q quit".to_owned(),
        format!("g by {by}"),
        "? help".into(),
        filter,
        format!("s order: {order}{reversed}"),
        "space pause".into(),
        "Enter details".into(),
    ];
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

fn details(state: &State, shown: &Shown) -> Vec<String> {
    if !state.details {
        return Vec::new();
    }
    let Some(row) = state.at.and_then(|at| shown.rows.get(at)) else {
        return vec!["the selected row has no samples in this window".into()];
    };
    let several = |number: usize, many: &str| match number {
        0 | 1 => String::new(),
        more => format!("  (most of {} {many})", grouped(more)),
    };
    let mut lines = vec![format!(
        "── {} ── {} % CPU, {}",
        escape(&row.name()),
        shown.share.percent(row.samples),
        count(row.samples as usize, "sample", "samples"),
    )];
    let (thread, process) = (&row.thread, &row.thread.process);
    if !thread.is_others() {
        lines.push(format!(
            "process     {} {}{}",
            escape(&process.label()),
            process.pid,
            several(row.processes, "processes")
        ));
        lines.push(format!(
            "thread      {} {}{}",
            escape(&thread.name),
            thread.tid,
            several(row.threads, "threads")
        ));
    }
    if let Some(context) = row.context() {
        let id = |id: Option<String>| id.unwrap_or_else(|| "none".into());
        let trace = id(context.trace_id().map(|id| id.to_string()));
        let span = id(context.span_id().map(|id| id.to_string()));
        let (traces, spans) = (several(row.traces, "traces"), several(row.spans, "spans"));
        lines.push(format!("trace       {trace}{traces}"));
        lines.push(format!("span        {span}{spans}"));
        for (key, value) in &context.attributes {
            lines.push(format!("{:<10}  {}", escape(key), escape(value)));
        }
    }
    if let Some((frames, samples)) = &shown.stack {
        let head = format!("stack       of {} of them:", grouped(*samples as usize));
        lines.push(head);
        lines.extend(frames.iter().map(|frame| format!("  {}", escape(frame))));
    }
    lines
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
