//! The flame graph as SVG. It is a picture without its script, which zooms and searches.

use std::fmt::Write as _;
use std::io::{self, Write};

use otelctx_page::{clean, escape};

use super::colours::{LANGUAGES, shade_of, style};
use super::layout::{Content, Placed, WIDTH, boxes};
use super::{Frame, Graph, Label};
use crate::names::short_name;
use crate::report::{Cost, TimeKind};

/// Height of a row, and of the space above the first one, in pixels.
const ROW: usize = 19;
const TOP: usize = 56;
/// Width of a character, and the space around a text, in tenths of a pixel.
const CHARACTER: u64 = 72;
const SPACE: u64 = 80;
/// Maximum number of bytes of all names together; of more, each is cut to its share.
const MAX_NAMES: usize = 16 << 20;
/// Maximum number of services in the title.
const MAX_SERVICES: usize = 3;
/// Maximum number of bytes of a service or an attribute in the title.
const MAX_TITLE_PART: usize = 80;

/// Facts about the recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// What services are divided by, outermost first, and whether the graph has each of them.
    pub(crate) by: Vec<String>,
    pub(crate) wanted: Vec<bool>,
    /// The time that is shown.
    pub(crate) kinds: Kinds,
    /// Nanoseconds that a sample on a CPU stands for; 0 if unknown.
    pub(crate) period: u64,
    /// Nanoseconds of the recording, with the start in nanoseconds since 1970 if it is known.
    pub(crate) time: Option<(u64, Option<u64>)>,
}

/// Kinds of time that a graph shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds(Vec<TimeKind>);

impl Kinds {
    /// The selected kinds; if there are none, time on a CPU, or `other` time.
    pub(crate) fn of(selected: &[TimeKind], is_other: bool) -> Self {
        let off_cpu = [TimeKind::Queued, TimeKind::Waiting];
        Self(if is_other { &off_cpu } else { selected }.to_vec())
    }

    fn are(&self, kinds: &[TimeKind]) -> bool {
        let is_same = |kind| self.0.contains(kind) && kinds.contains(kind);
        self.0.iter().all(is_same) && kinds.iter().all(is_same)
    }

    fn name(&self) -> &'static str {
        match () {
            () if self.0.is_empty() || self.are(&[TimeKind::Running]) => "CPU",
            () if self.are(&[TimeKind::Queued]) => "time queued",
            () if self.are(&[TimeKind::Waiting]) => "waiting",
            () if self.are(&[TimeKind::Queued, TimeKind::Waiting]) => "time off the CPU",
            () => "time",
        }
    }
}

/// Writes the graph.
pub(crate) fn write(graph: &Graph, facts: &Facts, writer: &mut dyn Write) -> io::Result<()> {
    let placed = boxes(graph);
    let rows = placed.last().map_or(0, |last| last.row + 1);
    let height = TOP + rows * ROW + 10;
    let width = WIDTH / 10;
    let (title, subtitle) = (title(graph, facts), subtitle(graph, facts));
    write!(
        writer,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
        <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
        font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\" font-size=\"12\">\n\
        <style>\n{}{STYLE}</style>\n\
        <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n\
        <text class=\"title\" x=\"10\" y=\"22\">{}</text>\n\
        <text x=\"10\" y=\"42\">{}</text>\n",
        style(),
        escape(&title),
        escape(&subtitle),
    )?;
    writer.write_all(CONTROLS.as_bytes())?;
    let text = Text::new(graph, facts, placed.len());
    for placed in &placed {
        writer.write_all(text.of_box(placed).as_bytes())?;
    }
    let script = SCRIPT.replace("]]>", "]]&gt;");
    write!(writer, "<script><![CDATA[\n{script}]]></script>\n</svg>\n")
}

const STYLE: &str = "\
.title{font-size:15px;font-weight:bold}\n\
.box{cursor:pointer}\n\
.found rect{fill:rgb(230,0,230)}\n\
.hidden{display:none}\n\
.control{cursor:pointer;text-decoration:underline}\n";

/// Shown by the script: without it, they do nothing.
const CONTROLS: &str = "\
<text id=\"matched\" x=\"100%\" y=\"42\" dx=\"-10\" text-anchor=\"end\"></text>\n\
<text id=\"search\" class=\"control hidden\" x=\"100%\" y=\"22\" dx=\"-10\" text-anchor=\"end\">Search</text>\n\
<text id=\"reset\" class=\"control hidden\" x=\"100%\" y=\"22\" dx=\"-120\" text-anchor=\"end\">Reset zoom</text>\n";

const SCRIPT: &str = include_str!("script.js");

/// What is written into boxes.
struct Text<'g> {
    graph: &'g Graph,
    by: &'g [String],
    all: Cost,
    /// Maximum number of bytes of a name.
    limit: usize,
}

impl<'g> Text<'g> {
    fn new(graph: &'g Graph, facts: &'g Facts, boxes: usize) -> Self {
        let share = MAX_NAMES / boxes.max(1);
        Self {
            graph,
            by: &facts.by,
            all: graph.nodes[0].cost,
            limit: share.clamp(64, otelctx_page::MAX_NAME_BYTES),
        }
    }

    fn of_box(&self, placed: &Placed) -> String {
        let all = self.graph.weight(self.all);
        let share = |part: u64| part as f64 / all.max(1) as f64 * 100.0;
        let mut out = String::new();
        let (class, lines, texts) = match placed.content {
            Content::Node(node) => self.of_node(node),
            Content::Joined { boxes, cost } => {
                let lines = vec![
                    format!("{} frames that are too narrow", grouped(boxes)),
                    self.of_cost(cost),
                ];
                ("joined".to_owned(), lines, Vec::new())
            }
        };
        let lines: Vec<_> = lines.iter().map(|line| escape(line)).collect();
        let (x, width) = (share(placed.x), share(placed.width));
        let y = TOP + placed.row * ROW;
        let fitted = fit(&texts, placed.width, all);
        // What the script fits in when the box is wider.
        let texts: Vec<_> = texts.iter().filter(|text| **text != fitted).collect();
        let texts: String = ["a", "b"]
            .iter()
            .zip(texts)
            .map(|(name, text)| format!(" data-{name}=\"{}\"", escape(text)))
            .collect();
        // A box cuts what is wider than it is.
        let _ = writeln!(
            out,
            "<svg class=\"box {class}\" x=\"{x:.6}%\" y=\"{y}\" width=\"{width:.6}%\" height=\"{}\">\
            <title>{}</title><rect width=\"100%\" height=\"100%\"/><text x=\"4\" y=\"13\"{texts}>{}</text></svg>",
            ROW - 1,
            lines.join("\n"),
            escape(&fitted),
        );
        out
    }

    /// Returns the class of a node, the lines of its tooltip, and its texts, the longest first.
    fn of_node(&self, node: u32) -> (String, Vec<String>, Vec<String>) {
        let facts = self.graph.nodes[node as usize];
        let cost = self.of_cost(facts.cost);
        let text = |name: &str| clean(name, self.limit).into_owned();
        let with_time = |name: &str| match self.all.nanoseconds {
            0 => name.to_owned(),
            _ => format!("{name}\u{2003}{}", duration(facts.cost.nanoseconds)),
        };
        let level = |class: &str, name: String| {
            let shown = with_time(&name);
            (class.to_owned(), vec![name, cost.clone()], vec![shown])
        };
        let frame = match self.graph.label_of(node) {
            Label::All => return level("all", "All".to_owned()),
            Label::Service(name) => return level("service", text(name)),
            Label::Value(index, None) => {
                let by = self.by.get(*index as usize).map_or("", |it| it);
                return level("value", text(&format!("(no {by})")));
            }
            Label::Value(_, Some(value)) if value.is_empty() => {
                return level("value", "(empty)".to_owned());
            }
            Label::Value(_, Some(value)) => return level("value", text(value)),
            Label::Frame(frame) => frame,
        };
        let name = text(&frame.name);
        let mut lines = vec![name.clone()];
        lines.extend(self.place(frame));
        lines.push(cost);
        if facts.repeats > 1 {
            lines.push(format!(
                "calls itself, up to {} frames in one",
                facts.repeats
            ));
        }
        if facts.through > 0 {
            let frames = if facts.through == 1 {
                "frame"
            } else {
                "frames"
            };
            lines.push(format!(
                "called through up to {} {frames} of plumbing",
                facts.through
            ));
        }
        let times = |name: &str| match facts.repeats {
            0 | 1 => name.to_owned(),
            repeats => format!("{name} × {repeats}"),
        };
        let mut texts = vec![times(&name), times(&short_name(&name))];
        texts.dedup();
        (class_of(frame), lines, texts)
    }

    /// Returns file, line and language of a function.
    fn place(&self, frame: &Frame) -> Option<String> {
        let file = clean(&frame.file, self.limit);
        let place = match frame.line {
            0 => file.into_owned(),
            line if !file.is_empty() => format!("{file}:{line}"),
            _ => String::new(),
        };
        let language = frame
            .language
            .map_or("", |it| LANGUAGES[usize::from(it.0)].0);
        let parts = [&place[..], if language == "other" { "" } else { language }];
        let parts: Vec<&str> = parts.into_iter().filter(|it| !it.is_empty()).collect();
        (!parts.is_empty()).then(|| parts.join(" · "))
    }

    fn of_cost(&self, cost: Cost) -> String {
        let part = self.graph.weight(cost) as f64 / self.graph.weight(self.all).max(1) as f64;
        let plural = if cost.samples == 1 { "" } else { "s" };
        let samples = format!(
            "{:.1} % · {} sample{plural}",
            part * 100.0,
            grouped(cost.samples)
        );
        match self.all.nanoseconds {
            0 => samples,
            _ => format!("{} · {samples}", duration(cost.nanoseconds)),
        }
    }
}

fn class_of(frame: &Frame) -> String {
    let Some(language) = frame.language else {
        return "plumbing".to_owned();
    };
    let text = if frame.file.is_empty() {
        &frame.name
    } else {
        &frame.file
    };
    format!("l{}{}", language.0, shade_of(text))
}

/// Returns the number of characters that have room in a box.
fn characters(width: u64, all: u64) -> u64 {
    let tenths = u128::from(width) * u128::from(WIDTH) / u128::from(all.max(1));
    u64::try_from(tenths).unwrap_or(WIDTH).saturating_sub(SPACE) / CHARACTER
}

/// Returns the first text that a box has room for, or as much of the last one.
fn fit(texts: &[String], width: u64, all: u64) -> String {
    let room = characters(width, all) as usize;
    let fitting = texts.iter().find(|text| text.chars().count() <= room);
    match (fitting, texts.last(), room) {
        (Some(text), ..) => text.clone(),
        (None, Some(last), 3..) => last.chars().take(room - 1).chain(['…']).collect(),
        _ => String::new(),
    }
}

/// Names the services, and what they are divided by.
fn title(graph: &Graph, facts: &Facts) -> String {
    let services = graph.services();
    let named = services.iter().take(MAX_SERVICES);
    let named: Vec<_> = named.map(|name| clean(name, MAX_TITLE_PART)).collect();
    let more = services.len() - named.len();
    let mut title = match (&named[..], more) {
        ([], _) => "No samples.".to_owned(),
        (all, 0) => match all.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => all.join(""),
        },
        (some, more) => format!("{} and {} more", some.join(", "), grouped(more as u64)),
    };
    if !named.is_empty() {
        title += &format!(": {}", facts.kinds.name());
        let by = facts.by.iter().zip(&facts.wanted);
        let by: Vec<_> = by
            .filter(|(_, wanted)| **wanted)
            .map(|(by, _)| clean(by, MAX_TITLE_PART))
            .collect();
        if !by.is_empty() {
            title += &format!(" by {}", by.join(", "));
        }
    }
    title
}

/// Names the number of samples, their frequency, and the time of the recording.
fn subtitle(graph: &Graph, facts: &Facts) -> String {
    let cost = graph.nodes[0].cost;
    let mut parts = vec![format!("{} samples", grouped(cost.samples))];
    if facts.period > 0 && facts.kinds.name() == "CPU" {
        let frequency = (1e9 / facts.period as f64).round();
        parts[0] += &format!(" at {frequency} Hz");
    }
    if cost.nanoseconds > 0 {
        parts.push(duration(cost.nanoseconds));
    }
    if let Some((duration, start)) = facts.time {
        let mut time = format!("{:.1} s", duration as f64 / 1e9);
        if let Some(start) = start {
            time += &format!(" from {} UTC", utc(start / 1_000_000_000));
        }
        parts.push(time);
    }
    parts.join(", ")
}

/// Formats a number with commas between thousands: `12,345`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    String::from_utf8_lossy(&groups.join(&b',')).into_owned()
}

/// Formats nanoseconds as the page does (`duration` in `text.js`).
fn duration(nanoseconds: u64) -> String {
    let milliseconds = nanoseconds as f64 / 1e6;
    match milliseconds {
        ..=0.0 => "0 ms".to_owned(),
        10_000.0.. => format!("{} s", grouped((milliseconds / 1000.0).round() as u64)),
        100.0.. => format!("{} ms", grouped(milliseconds.round() as u64)),
        1.0.. => format!("{milliseconds:.1} ms"),
        _ => format!("{milliseconds:.2} ms"),
    }
}

/// Formats a date and the time of day in UTC as `2026-11-21 06:42:09`, `seconds` after 1970-01-01.
#[must_use]
pub fn utc(seconds: u64) -> String {
    const DAY: u64 = 86_400;
    // If years start in March, the leap day is the last day of the year, and each five months have
    // 153 days. Days count from 1 March of year 0, in eras of 400 years.
    let days = seconds / DAY + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let of_day = seconds % DAY;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_like_those_of_the_page() {
        assert_eq!([0, 999, 1000].map(grouped), ["0", "999", "1,000"]);
        for (nanoseconds, expected) in [
            (0, "0 ms"),
            (123_456, "0.12 ms"),
            (12_345_678, "12.3 ms"),
            (1_234_567_890, "1,235 ms"),
            (12_345_678_900, "12 s"),
            (u64::MAX, "18,446,744,074 s"),
        ] {
            assert_eq!(duration(nanoseconds), expected);
        }
    }

    #[test]
    fn a_text_is_cut_to_its_box() {
        let texts = ["shop::Cart::total".to_owned(), "Cart::total".to_owned()];
        let of = |width| fit(&texts, width, 1200);
        assert_eq!(of(1200), "shop::Cart::total");
        // 17 characters of 7.2 pixels, and 8.
        assert_eq!(of(131), "shop::Cart::total");
        assert_eq!(of(130), "Cart::total");
        assert_eq!(of(88), "Cart::total");
        assert_eq!(of(87), "Cart::tot…");
        assert_eq!(of(30), "Ca…");
        assert_eq!(of(29), "");
    }

    /// The expected values are from `date -u -d @SECONDS`.
    #[test]
    fn a_time_is_formatted_by_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_868_799, "2000-02-29 23:59:59"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (1_735_689_599, "2024-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }
}
