//! A recording aggregated over its parts, for formats with one file per recording.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use super::firefox::Firefox;
use super::folded;
use super::pprof::Pprof;
use super::room::{OTHER, Room};
use super::speedscope::Speedscope;
use crate::attributes::RECORDED;
use crate::report::is_level;
use crate::view::{FlameGraph, Page, ParquetFiles, Spans};
use crate::{Clock, DistinctCount, Error, Format, Kind, Options, Profile, file};

/// Maximum size of the text of stacks, in bytes.
const MAX_STACKS: usize = 64 << 20;

/// A recording aggregated over its parts, for formats with one file per recording
/// ([`Format::is_aggregate`]). The memory of each format is bounded.
#[derive(Debug)]
pub struct Aggregate {
    /// Of folded stacks.
    options: Options,
    stacks: Option<Stacks>,
    pprof: Option<Pprof>,
    firefox: Option<Firefox>,
    speedscope: Option<Speedscope>,
    page: Option<Page>,
    flame_graph: Option<FlameGraph>,
    parquet: Option<ParquetFiles>,
    parquet_folder: Option<ParquetFiles>,
    /// Processes by ID and start time.
    processes: DistinctCount,
    process: String,
    clock: Clock,
    period: NonZeroU64,
}

/// Stacks as text.
#[derive(Debug)]
struct Stacks {
    /// Each stack with its number of samples on a CPU, or time in nanoseconds, ordered by text.
    lines: BTreeMap<String, u64>,
    /// The same of time off the CPU, in nanoseconds.
    waits: BTreeMap<String, u64>,
    room: Room,
    /// Those whose stacks had no room.
    others: [u64; 2],
    /// A stack has a value of this level.
    has_value: Vec<bool>,
}

impl Aggregate {
    /// Creates an empty aggregate for these formats, with the clock and the maximum number of
    /// samples of the whole recording: of a long one, the Firefox Profiler and
    /// speedscope get a subset.
    #[must_use]
    pub fn new(options: &Options, formats: &[Format], clock: Clock, samples: u64) -> Self {
        let wants = |format| formats.contains(&format);
        let of = |format: Format| {
            let mut options = options.clone();
            options.by.retain(|name| !format.has_level(name));
            options
        };
        let parquet = |format| wants(format).then(|| ParquetFiles::new(options, format));
        let stacks = of(Format::Folded);
        Self {
            stacks: wants(Format::Folded).then(|| Stacks {
                lines: BTreeMap::new(),
                waits: BTreeMap::new(),
                room: Room::new(MAX_STACKS),
                others: [0; 2],
                has_value: vec![false; stacks.by.len()],
            }),
            options: stacks,
            pprof: wants(Format::Pprof).then(|| Pprof::new(&options.frame_rules)),
            firefox: wants(Format::Firefox)
                .then(|| Firefox::new(&of(Format::Firefox), clock, samples)),
            speedscope: wants(Format::Speedscope).then(|| Speedscope::new(options, clock, samples)),
            page: wants(Format::Page).then(|| Page::new(&of(Format::Page))),
            flame_graph: wants(Format::FlameGraph)
                .then(|| FlameGraph::new(&of(Format::FlameGraph))),
            parquet: parquet(Format::Parquet),
            parquet_folder: parquet(Format::ParquetFolder),
            processes: DistinctCount::default(),
            process: String::new(),
            clock,
            period: NonZeroU64::MIN,
        }
    }

    /// Shows these spans of traces in a page.
    pub fn set_spans(&mut self, spans: Arc<Spans>) {
        if let Some(page) = &mut self.page {
            page.set_spans(spans);
        }
    }

    /// Adds a part of a recording. Parts must be added in order.
    pub fn add(&mut self, part: &Profile) {
        if self.page.is_some() || self.flame_graph.is_some() {
            self.add_content(part);
        }
        if let Some(stacks) = &mut self.stacks {
            stacks.add(part, &self.options);
        }
        if let Some(pprof) = &mut self.pprof {
            pprof.add(part);
        }
        if let Some(firefox) = &mut self.firefox {
            firefox.add(part);
        }
        if let Some(speedscope) = &mut self.speedscope {
            speedscope.add(part);
        }
        let parquet = [&mut self.parquet, &mut self.parquet_folder];
        for files in parquet.into_iter().flatten() {
            files.add(part);
        }
        for group in part.groups() {
            let facts = part.process(group.process);
            self.processes.add((facts.pid, facts.start_ticks));
            if self.process.is_empty() {
                self.process = format!("{} {}", super::name_of(facts), facts.pid);
            }
        }
        self.period = part.period();
    }

    /// Adds a part to views, which show what its file has.
    fn add_content(&mut self, part: &Profile) {
        let mut content = Vec::new();
        let written = part.write(Format::Otlp, &Options::default(), &mut content);
        let content = written.map(|()| content).map_err(|error| error.to_string());
        if let Some(page) = &mut self.page {
            page.add(content.as_deref());
        }
        if let Some(graph) = &mut self.flame_graph {
            graph.add(content.as_deref());
        }
    }

    /// Writes `path` in the format of its extension.
    ///
    /// # Errors
    /// Returns [`Error::Ending`] for a format that was not requested, or [`Error::Write`].
    pub fn write_file(&mut self, path: &Path) -> Result<(), Error> {
        let format = Format::from_path(path)?;
        let is_there = match format {
            Format::Pprof => self.pprof.is_some(),
            Format::Firefox => self.firefox.is_some(),
            Format::Speedscope => self.speedscope.is_some(),
            Format::Page => self.page.is_some(),
            Format::FlameGraph => self.flame_graph.is_some(),
            Format::Folded => self.stacks.is_some(),
            Format::Parquet => self.parquet.is_some(),
            Format::ParquetFolder => self.parquet_folder.is_some(),
            Format::Otlp => false,
        };
        if !is_there {
            return Err(Error::Ending(path.to_owned()));
        }
        match (format, &mut self.parquet_folder) {
            (Format::ParquetFolder, Some(files)) => files.write_folder(path),
            _ => file::write(path, |writer| self.write(format, writer)),
        }
    }

    /// Writes a format that was requested.
    ///
    /// # Errors
    /// Returns the errors of `writer`.
    pub fn write(&mut self, format: Format, writer: &mut dyn Write) -> io::Result<()> {
        let (title, clock) = (self.subject(), self.clock);
        match (format, &mut self.pprof, &mut self.firefox) {
            (Format::Pprof, Some(pprof), _) => pprof.write(clock, self.period.get(), writer),
            (Format::Firefox, _, Some(firefox)) => firefox.write(&title, writer),
            (Format::Page, ..) => match &self.page {
                Some(page) => page.write(&title, writer),
                None => Ok(()),
            },
            (Format::Speedscope, ..) => match &self.speedscope {
                Some(speedscope) => speedscope.write(&title, writer),
                None => Ok(()),
            },
            (Format::Parquet, ..) => match &mut self.parquet {
                Some(files) => files.write(writer),
                None => Ok(()),
            },
            (Format::ParquetFolder, ..) => Err(io::Error::other("it is a folder of files")),
            (Format::FlameGraph, ..) => match &self.flame_graph {
                Some(graph) => graph.write(clock, self.period.get(), writer),
                None => Ok(()),
            },
            _ => {
                let mut lines = self.lines();
                lines.try_for_each(|(stack, count)| writeln!(writer, "{stack} {count}"))
            }
        }
    }

    fn lines(&self) -> impl Iterator<Item = (Cow<'_, str>, u64)> {
        self.stacks
            .iter()
            .flat_map(|stacks| stacks.lines(&self.options))
    }

    /// Returns the service of a single process, otherwise the number of processes.
    fn subject(&self) -> String {
        match self.processes.get() {
            1 => self.process.clone(),
            processes if self.processes.has_more() => format!("more than {processes} processes"),
            processes => format!("{processes} processes"),
        }
    }
}

impl Stacks {
    fn add(&mut self, part: &Profile, options: &Options) {
        let joins_kinds = options.kinds.len() > 1;
        for stack in folded::stacks(part, options, &mut self.has_value) {
            let is_main = stack.kind == Kind::OnCpu || joins_kinds;
            let value = match stack.kind {
                Kind::OnCpu if !joins_kinds => stack.samples,
                _ => stack.nanoseconds,
            };
            let (lines, others) = match is_main {
                true => (&mut self.lines, &mut self.others[0]),
                false => (&mut self.waits, &mut self.others[1]),
            };
            match lines.get_mut(&stack.text) {
                Some(sum) => *sum = sum.saturating_add(value),
                None if !self.room.take(stack.text.len()) => *others = others.saturating_add(value),
                None => drop(lines.insert(stack.text, value)),
            }
        }
    }

    /// Returns stacks of time on a CPU, or if there are none, of time off it.
    fn lines(&self, options: &Options) -> impl Iterator<Item = (Cow<'_, str>, u64)> {
        let is_off_cpu = self.lines.is_empty() && self.others[0] == 0;
        let (lines, others) = match is_off_cpu {
            true => (&self.waits, self.others[1]),
            false => (&self.lines, self.others[0]),
        };
        let divisor = if is_off_cpu || options.kinds.len() > 1 {
            1000
        } else {
            1
        };
        let left_out = self.left_out(options);
        let lines = lines.iter();
        let lines = lines.map(move |(stack, value)| (without_levels(stack, &left_out), *value));
        let lines = lines.chain((others > 0).then_some((OTHER.into(), others)));
        // Tools read no 0.
        lines.map(move |(stack, value)| (stack, (value / divisor).max(1)))
    }

    /// Returns for each level whether stacks are shown without it: attributes that none of them has.
    fn left_out(&self, options: &Options) -> Vec<bool> {
        let levels = options.by.iter().zip(&self.has_value);
        let is_left_out = |(name, has_value): (&String, &bool)| {
            !has_value && !is_level(name) && !RECORDED.contains(&&name[..])
        };
        levels.map(is_left_out).collect()
    }
}

/// Returns a stack without some of the levels at its root.
fn without_levels<'s>(stack: &'s str, left_out: &[bool]) -> Cow<'s, str> {
    if !left_out.contains(&true) {
        return stack.into();
    }
    let mut frames = stack.splitn(left_out.len() + 1, ';');
    let levels = left_out.iter().zip(&mut frames);
    let levels = levels.filter_map(|(is_left_out, level)| (!is_left_out).then_some(level));
    let mut kept: Vec<&str> = levels.collect();
    kept.extend(frames);
    kept.join(";").into()
}

#[cfg(test)]
mod tests {
    use otelctx_sample::{Catalog, Counts, Event, Found, ProcessFacts, Sample};

    use crate::{NoSymbols, Recording};

    use super::*;

    const CLOCK: Clock = Clock {
        start: 0,
        end: 20,
        start_unix: 0,
    };

    /// A part with one sample of each of these threads, which have IDs from 0 on.
    fn part(threads: &[&str]) -> Profile {
        let threads: Vec<_> = (0..).zip(threads.iter().copied()).collect();
        part_of(&threads)
    }

    fn part_of(threads: &[(i32, &str)]) -> Profile {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts {
            pid: 7,
            comm: "shop".into(),
            ..ProcessFacts::default()
        });
        let stack = catalog.native_stack(&[]);
        let sample = |(tid, name): &(i32, &str)| Sample {
            time: 10,
            cpu: 0,
            thread: catalog.thread(process, *tid, name),
            event: Event::OnCpu,
            found: Found::Detached,
            gil: None,
            user_stack: stack,
            stack_end: None,
            kernel_stack: stack,
        };
        let samples = threads.iter().map(sample).collect();
        let recording = Recording {
            catalog,
            samples,
            clock: CLOCK,
            period: NonZeroU64::MIN,
            counts: Counts::default(),
        };
        Profile::new(recording, &mut NoSymbols)
    }

    /// Three times as many samples as the formats have room for were announced.
    #[test]
    fn of_a_long_recording_each_sample_stands_for_several_and_the_sum_is_equal() {
        let formats = [Format::Firefox, Format::Speedscope];
        let mut all = Aggregate::new(&Options::default(), &formats, CLOCK, 1_500_000);
        all.add(&part_of(&[(7, "a"); 7]));
        let mut content = |format| {
            let mut bytes = Vec::new();
            all.write(format, &mut bytes).unwrap();
            bytes
        };
        let (firefox, speedscope) = (content(Format::Firefox), content(Format::Speedscope));
        let firefox: serde_json::Value =
            serde_json::from_reader(flate2::read::GzDecoder::new(&firefox[..])).unwrap();
        assert_eq!(
            firefox["meta"]["product"],
            "shop 7: one sample stands for 3"
        );
        let weights = &firefox["threads"][0]["samples"]["weight"];
        assert_eq!(*weights, serde_json::json!([3, 3, 1]));
        let speedscope: serde_json::Value = serde_json::from_slice(&speedscope).unwrap();
        assert_eq!(speedscope["name"], "shop 7: one sample stands for 3");
        // What comes before the first sample is no time of the thread.
        let profile = &speedscope["profiles"][0];
        assert_eq!(profile["samples"], serde_json::json!([[], [], [], []]));
        assert_eq!(profile["weights"], serde_json::json!([10, 3, 3, 1]));
    }

    #[test]
    fn parts_are_added_up_and_what_finds_no_room_is_counted() {
        let mut all = Aggregate::new(&Options::default(), &[Format::Folded], CLOCK, 5);
        all.stacks.as_mut().unwrap().room = Room::new(("shop;a".len() + Room::ENTRY) * 2);
        all.add(&part(&["a", "b"]));
        all.add(&part(&["b", "c", "d"]));
        let mut text = Vec::new();
        all.write(Format::Folded, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "shop;a 1\nshop;b 2\n(other) 2\n");
    }
}
