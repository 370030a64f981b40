//! Selects the samples of a recording.

use std::fmt::{self, Display};
use std::ops::Range;

use otelctx_profile::report::{
    AttributeFilter, Condition, LANGUAGES, Moment, Report, ReportOptions, Selection, ThreadFilter,
    TimeKind,
};
use otelctx_profile::{Clock, Input};
use otelctx_reader::format::TraceId;
use serde::Serialize;

use crate::command::help;
use crate::command::seconds::span;
use crate::error::Error;
use crate::output::clock;
use crate::output::terminal::escape;
use crate::output::text::argument;

/// The selected samples; by default all on a CPU.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = help::SAMPLES)]
pub(super) struct Select {
    /// Keep only samples with this attribute of the context or the process's resource, such as
    /// http.route=/cart; KEY!=VALUE for others, KEY=PREFIX* for values that start like this, KEY for
    /// any value; of several, all must hold
    #[arg(long = "filter", value_name = "KEY=VALUE", value_parser = attribute)]
    filter: Vec<AttributeFilter>,
    /// Keep only samples of this trace: 32 hexadecimal digits; can be repeated
    #[arg(long = "trace", value_name = "ID", value_parser = trace)]
    trace: Vec<TraceId>,
    /// Keep only threads with this name or ID; a name may end in *
    #[arg(long = "thread", value_name = "NAME|TID", value_parser = thread)]
    thread: Vec<ThreadFilter>,
    /// Keep only processes with this ID
    #[arg(short = 'p', long = "pid", value_name = "PID")]
    pid: Vec<i64>,
    /// Keep only samples whose stack has a function with this text in its name or its file's
    #[arg(long = "function", value_name = "TEXT", value_parser = text)]
    function: Vec<String>,
    /// Keep only samples of this time: 14:03:00..14:04 (of the day on which the recording starts, in
    /// local time) or +10s..+20s after its start; either side may be left out
    #[arg(long, value_name = "FROM..TO", value_parser = TimeRange::parse, allow_hyphen_values = true)]
    time: Option<TimeRange>,
    /// Kind of time that samples stand for: running (on a CPU), queued (ready, without a CPU) or
    /// waiting; can be repeated [default: running in tables, with the others beside it, in flame graphs
    /// and folded stacks; all in other files]
    #[arg(long = "kind", value_name = "KIND", value_parser = kind)]
    kind: Vec<TimeKind>,
    /// Keep only frames of this language, such as python or kernel; can be repeated
    #[arg(long = "language", value_name = "LANGUAGE", value_parser = language)]
    language: Vec<String>,
    /// Sum up threads that wait without a context, too, such as idle ones of a pool
    #[arg(long)]
    idle: bool,
}

/// A condition of a selection as it was written (docs/json.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct GivenOption {
    /// The name of the option.
    option: &'static str,
    value: String,
}

impl GivenOption {
    pub(super) fn new(option: &'static str, value: impl Display) -> Self {
        let value = value.to_string();
        Self { option, value }
    }

    /// Returns it as it is written on a command line.
    pub(super) fn text(&self) -> String {
        match &self.value[..] {
            "" => format!("--{}", self.option),
            value => format!("--{} {}", self.option, escape(&argument(value))),
        }
    }
}

/// A range of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeRange {
    from: Side,
    to: Side,
}

impl TimeRange {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (from, to) = range(text)?;
        Ok(Self { from, to })
    }

    /// Returns the range in times of a recording's clock.
    pub(super) fn within(self, clock: Clock) -> Range<u64> {
        let moment = |side, open| match side {
            Side::Open => open,
            Side::AfterStart(time) => clock.start.saturating_add(time),
            Side::OfDay(time) => {
                let time = clock::on_day_of(clock.start_unix, time);
                let before = clock
                    .start
                    .saturating_sub(clock.start_unix.saturating_sub(time));
                before.saturating_add(time.saturating_sub(clock.start_unix))
            }
        };
        moment(self.from, 0)..moment(self.to, u64::MAX)
    }
}

impl Display for TimeRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}..{}", self.from, self.to)
    }
}

/// One side of a range of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Open,
    /// Nanoseconds after the recording's start.
    AfterStart(u64),
    /// Milliseconds after midnight.
    OfDay(u64),
}

impl Display for Side {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => Ok(()),
            Self::AfterStart(time) => write!(formatter, "+{}s", *time as f64 / 1e9),
            Self::OfDay(time) => {
                let (seconds, milliseconds) = (time / 1000, time % 1000);
                let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
                write!(formatter, "{hours:02}:{minutes:02}:{:02}", seconds % 60)?;
                match milliseconds {
                    0 => Ok(()),
                    _ => write!(formatter, ".{milliseconds:03}"),
                }
            }
        }
    }
}

impl Select {
    /// Returns the selection as it was written.
    pub(super) fn described(&self) -> Vec<GivenOption> {
        let filters = self.filter.iter().map(|it| GivenOption::new("filter", it));
        let traces = self.trace.iter().map(|it| GivenOption::new("trace", it));
        let threads = self.thread.iter().map(|it| GivenOption::new("thread", it));
        let processes = self.pid.iter().map(|it| GivenOption::new("pid", it));
        let functions = self.function.iter();
        let functions = functions.map(|it| GivenOption::new("function", it));
        let time = self.time.map(|it| GivenOption::new("time", it));
        let kinds = self.kind.iter();
        let kinds = kinds.map(|kind| GivenOption::new("kind", kind_names(&[*kind])));
        let idle = self.idle.then(|| GivenOption::new("idle", ""));
        let all = filters.chain(traces).chain(threads).chain(processes);
        let languages = self.language.iter();
        let languages = languages.map(|it| GivenOption::new("language", it));
        let all = all.chain(functions).chain(time).chain(kinds);
        all.chain(idle).chain(languages).collect()
    }

    /// Returns the selection in a recording, which is read if a time of day needs its start.
    pub(super) fn within(&self, input: &Input) -> Result<Selection, Error> {
        let start = if self.needs_start() {
            Report::read(input, &ReportOptions::by(&[]))?.start
        } else {
            0
        };
        Ok(self.of_recording(start))
    }

    /// Returns the selection in a recording that starts at this time, in nanoseconds after
    /// 1970-01-01 UTC.
    fn of_recording(&self, start: u64) -> Selection {
        let moment = |side: Side| match side {
            Side::Open => None,
            Side::AfterStart(time) => Some(Moment::AfterStart(time)),
            Side::OfDay(time) => Some(Moment::Unix(clock::on_day_of(start, time))),
        };
        let mut selection = Selection::default();
        selection.attributes.clone_from(&self.filter);
        selection.traces = self.trace.iter().map(|id| id.to_bytes()).collect();
        selection.threads.clone_from(&self.thread);
        selection.processes.clone_from(&self.pid);
        selection.functions.clone_from(&self.function);
        selection.time = self.time.map(|it| (moment(it.from), moment(it.to)));
        selection.kinds.clone_from(&self.kind);
        selection.languages.clone_from(&self.language);
        selection.with_idle = self.idle;
        selection
    }

    /// Returns true if a time of day was given, which needs the recording's start.
    fn needs_start(&self) -> bool {
        let is_of_day = |side: &Side| matches!(side, Side::OfDay(_));
        self.time
            .is_some_and(|it| [it.from, it.to].iter().any(is_of_day))
    }

    /// Returns the names of attributes with a condition.
    pub(super) fn attributes(&self) -> impl Iterator<Item = &str> {
        self.filter.iter().map(|filter| &filter.name[..])
    }

    /// Returns true if traces are selected.
    pub(super) fn has_traces(&self) -> bool {
        !self.trace.is_empty()
    }

    /// Returns true if functions are selected.
    pub(super) fn has_functions(&self) -> bool {
        !self.function.is_empty()
    }

    /// Returns true if threads are selected.
    pub(super) fn has_threads(&self) -> bool {
        !self.thread.is_empty()
    }

    /// Returns true if processes are selected.
    pub(super) fn has_processes(&self) -> bool {
        !self.pid.is_empty()
    }

    /// Returns true if kinds of time are selected.
    pub(super) fn has_kinds(&self) -> bool {
        !self.kind.is_empty()
    }

    /// Returns true if a time is selected.
    pub(super) fn has_time(&self) -> bool {
        self.time.is_some()
    }

    /// Returns true if all samples are selected, but for idle ones.
    pub(super) fn is_all(&self) -> bool {
        let mut selection = self.of_recording(0);
        selection.with_idle = false;
        selection.languages.clear();
        selection == Selection::default()
    }
}

pub(super) fn attribute(text: &str) -> Result<AttributeFilter, String> {
    let (name, condition) = match (text.split_once("!="), text.split_once('=')) {
        (Some((name, value)), _) if !name.contains('=') => match value.strip_suffix('*') {
            Some(start) => (name, Condition::DoesNotStartWith(start.to_owned())),
            None => (name, Condition::IsNot(value.to_owned())),
        },
        (_, Some((name, value))) => match value.strip_suffix('*') {
            Some(start) => (name, Condition::StartsWith(start.to_owned())),
            None => (name, Condition::Is(value.to_owned())),
        },
        _ => (text, Condition::IsPresent),
    };
    if name.is_empty() {
        return Err("expected an attribute and its value, such as http.route=/cart".to_owned());
    }
    Ok(AttributeFilter {
        name: name.to_owned(),
        condition,
    })
}

/// Parses a trace ID in hexadecimal digits, in either case.
pub(super) fn trace(text: &str) -> Result<TraceId, String> {
    const DIGITS: usize = 32;
    let lower = text.to_ascii_lowercase();
    match lower.parse::<TraceId>() {
        Ok(id) if !id.is_zero() => Ok(id),
        Ok(_) => Err("a trace ID cannot be all zeros".to_owned()),
        Err(_) if lower.bytes().all(|byte| byte.is_ascii_hexdigit()) => Err(format!(
            "a trace ID has {DIGITS} hexadecimal digits, not {}",
            lower.len()
        )),
        Err(_) => Err(format!(
            "a trace ID consists of {DIGITS} hexadecimal digits"
        )),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "a value parser of clap")]
pub(super) fn thread(text: &str) -> Result<ThreadFilter, String> {
    Ok(match text.parse() {
        Ok(id) => ThreadFilter::Id(id),
        Err(_) => ThreadFilter::Name(text.to_owned()),
    })
}

pub(super) fn text(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected a part of a function's name".to_owned()),
        text => Ok(text.to_owned()),
    }
}

pub(super) fn language(text: &str) -> Result<String, String> {
    let names = LANGUAGES.map(|(name, _)| name);
    if names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("expected one of {}", names.join(", ")))
}

/// Kinds of time, with their names.
const KINDS: [(TimeKind, &str); 3] = [
    (TimeKind::Running, "running"),
    (TimeKind::Queued, "queued"),
    (TimeKind::Waiting, "waiting"),
];

/// Returns the names of kinds of time, with commas between.
pub(super) fn kind_names(kinds: &[TimeKind]) -> String {
    let named = KINDS.iter().filter(|(kind, _)| kinds.contains(kind));
    let names: Vec<&str> = named.map(|(_, name)| *name).collect();
    names.join(",")
}

pub(super) fn kind(text: &str) -> Result<TimeKind, String> {
    let known = KINDS.iter().find(|(_, name)| *name == text);
    let known = known.map(|(kind, _)| *kind);
    known.ok_or_else(|| "expected running, queued or waiting".to_owned())
}

fn range(text: &str) -> Result<(Side, Side), String> {
    let sides = text.split_once("..");
    let sides = sides.and_then(|(from, to)| Some((side(from)?, side(to)?)));
    match sides {
        None | Some((Side::Open, Side::Open)) => {
            Err("expected two times, such as 14:03:00..14:04 or +10s..+20s".to_owned())
        }
        Some(
            (Side::AfterStart(from), Side::AfterStart(to)) | (Side::OfDay(from), Side::OfDay(to)),
        ) if from >= to => Err("the range ends before it starts".to_owned()),
        Some(sides) => Ok(sides),
    }
}

fn side(text: &str) -> Option<Side> {
    if text.is_empty() {
        return Some(Side::Open);
    }
    if let Some(after) = text.strip_prefix('+') {
        return Some(Side::AfterStart((span(after)? * 1e9).round() as u64));
    }
    let (hours, rest) = text.split_once(':')?;
    let (minutes, seconds) = rest.split_once(':').unwrap_or((rest, "0"));
    let (hours, minutes) = (hours.parse::<u64>().ok()?, minutes.parse::<u64>().ok()?);
    let seconds = seconds.parse::<f64>().ok().filter(|it| *it >= 0.0)?;
    let is_time = hours <= 24 && minutes < 60 && seconds < 60.0;
    let milliseconds = (hours * 60 + minutes) * 60_000 + (seconds * 1e3).round() as u64;
    is_time.then_some(Side::OfDay(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_written_like_this() {
        let parsed = |text| attribute(text).map(|it| (it.name, it.condition));
        let named = |name: &str, condition| Ok((name.to_owned(), condition));
        let value = |text: &str| text.to_owned();
        assert_eq!(parsed("a=b"), named("a", Condition::Is(value("b"))));
        assert_eq!(parsed("a=b=c"), named("a", Condition::Is(value("b=c"))));
        assert_eq!(parsed("a=b!=c"), named("a", Condition::Is(value("b!=c"))));
        assert_eq!(parsed("a!=b"), named("a", Condition::IsNot(value("b"))));
        assert_eq!(
            parsed("a=/b*"),
            named("a", Condition::StartsWith(value("/b")))
        );
        let other = Condition::DoesNotStartWith(value("/b"));
        assert_eq!(parsed("a!=/b*"), named("a", other));
        assert_eq!(parsed("a"), named("a", Condition::IsPresent));
        assert_eq!(parsed("a="), named("a", Condition::Is(value(""))));
        for text in ["", "=a", "!=a"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_is_of_the_day_or_after_the_start() {
        let (open, start) = (Side::Open, |ms: u64| Side::AfterStart(ms * 1_000_000));
        let day = |hours: u64, minutes, ms| Side::OfDay((hours * 60 + minutes) * 60_000 + ms);
        for (text, expected) in [
            ("14:03:00..14:04", (day(14, 3, 0), day(14, 4, 0))),
            ("14:03:01.5..", (day(14, 3, 1500), open)),
            ("..24:00", (open, day(24, 0, 0))),
            ("+10s..+20s", (start(10_000), start(20_000))),
            ("+1m30s..+100", (start(90_000), start(100_000))),
            ("+0..+250ms", (start(0), start(250))),
        ] {
            assert_eq!(range(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "..",
            "10",
            "14:03",
            "14:60..",
            "25:00..",
            "a..b",
            "+..",
            "+-1..",
            "1..2",
            "+2..+1",
            "14:00..13:00",
        ] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_trace_id_may_be_written_in_either_case() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(trace(id).unwrap().to_string(), id);
        assert_eq!(trace(&id.to_uppercase()).unwrap().to_string(), id);
        let why = |text: &str| trace(text).unwrap_err();
        assert!(why(&id[1..]).ends_with("not 31"));
        assert!(why(&format!("{id}0")).ends_with("not 33"));
        assert!(why("").ends_with("not 0"));
        assert!(why(&"0".repeat(32)).ends_with("cannot be all zeros"));
        assert!(
            why("4bf92f35-77b34da6-a3ce929d-0e0e47").ends_with("consists of 32 hexadecimal digits")
        );
        assert!(why(&"é".repeat(16)).ends_with("consists of 32 hexadecimal digits"));
    }
}
