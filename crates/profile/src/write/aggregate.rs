//! Stacks of a recording added up over its parts, for the formats that know stacks only.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::Path;

use super::{flame_graph, folded};
use crate::{Clock, Error, Format, Options, Profile, file};

/// The most text of stacks that is kept, in bytes. Where there is more, further stacks count as
/// [`OTHER`].
const MAX_TEXT: usize = 128 << 20;
/// Stands for all stacks that found no room.
const OTHER: &str = "(other)";

/// Stacks of a recording added up over its parts, for flame graphs and folded stacks.
#[derive(Debug)]
pub struct Aggregate {
    options: Options,
    /// Each stack with its samples, in the order of their text.
    lines: BTreeMap<String, usize>,
    /// Bytes of their text, and the most there may be.
    text: usize,
    max_text: usize,
    /// Samples whose stacks found no room.
    others: usize,
    /// By id and start.
    processes: HashSet<(i32, u64)>,
    /// The name of one of them.
    process: String,
    pub(super) clock: Option<Clock>,
    pub(super) period: NonZeroU64,
}

impl Aggregate {
    /// Nothing yet.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        Self {
            options: options.clone(),
            lines: BTreeMap::new(),
            text: 0,
            max_text: MAX_TEXT,
            others: 0,
            processes: HashSet::new(),
            process: String::new(),
            clock: None,
            period: NonZeroU64::MIN,
        }
    }

    /// Adds a part of a recording.
    pub fn add(&mut self, part: &Profile) {
        for (stack, samples) in folded::stacks(part, &self.options) {
            match self.lines.get_mut(&stack) {
                Some(count) => *count += samples,
                None if self.text + stack.len() > self.max_text => self.others += samples,
                None => {
                    self.text += stack.len();
                    self.lines.insert(stack, samples);
                }
            }
        }
        for group in part.groups() {
            let facts = part.process(group.process);
            if self.processes.insert((facts.pid, facts.start_ticks)) {
                self.process = super::name_of(facts);
            }
        }
        let clock = part.clock();
        let known = self.clock.get_or_insert(clock);
        known.end = known.end.max(clock.end);
        self.period = part.period();
    }

    /// Writes a flame graph or folded stacks to `path`, whichever its ending asks for.
    ///
    /// # Errors
    ///
    /// [`Error::Ending`] for another ending, [`Error::Write`].
    pub fn write_file(&self, path: &Path) -> Result<(), Error> {
        match Format::from_path(path)? {
            Format::FlameGraph => file::write(path, |writer| flame_graph::write(self, writer)),
            Format::Folded => file::write(path, |writer| self.write_folded(writer)),
            _ => Err(Error::Ending(path.to_owned())),
        }
    }

    pub(super) fn write_folded(&self, writer: &mut dyn Write) -> io::Result<()> {
        for (stack, count) in self.lines() {
            writeln!(writer, "{stack} {count}")?;
        }
        Ok(())
    }

    /// Each stack with its samples.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&str, usize)> {
        let lines = self.lines.iter().map(|(stack, count)| (&stack[..], *count));
        lines.chain((self.others > 0).then_some((OTHER, self.others)))
    }

    /// What was recorded: the service if it is one process, else how many there are.
    pub(super) fn title(&self) -> String {
        let what = match self.processes.len() {
            1 => self.process.clone(),
            processes => format!("{processes} processes"),
        };
        match &self.options.by {
            Some(name) => format!("{what}: CPU by {name}"),
            None => format!("{what}: CPU"),
        }
    }
}

#[cfg(test)]
mod tests {
    use otelctx_sample::{Catalog, Counts, Event, Found, ProcessFacts, Sample};

    use crate::{NoSymbols, Recording};

    use super::*;

    /// A part with one sample of each of these threads.
    fn part(threads: &[&str]) -> Profile {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts {
            pid: 7,
            comm: "shop".into(),
            ..ProcessFacts::default()
        });
        let stack = catalog.native_stack(&[]);
        let mut sample = |(tid, name): (usize, &&str)| Sample {
            time: 10,
            cpu: 0,
            thread: catalog.thread(process, tid as i32, name),
            event: Event::OnCpu,
            found: Found::Detached,
            user_stack: stack,
            kernel_stack: stack,
        };
        let samples = threads.iter().enumerate().map(&mut sample).collect();
        let recording = Recording {
            catalog,
            samples,
            clock: Clock {
                start: 0,
                end: 20,
                start_unix: 0,
            },
            period: NonZeroU64::MIN,
            counts: Counts::default(),
        };
        Profile::new(recording, &mut NoSymbols)
    }

    #[test]
    fn parts_are_added_up_and_what_finds_no_room_is_counted() {
        let mut all = Aggregate::new(&Options::default());
        all.max_text = "shop;a".len() * 2;
        all.add(&part(&["a", "b"]));
        all.add(&part(&["b", "c", "d"]));
        let mut text = Vec::new();
        all.write_folded(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "shop;a 1\nshop;b 2\n(other) 2\n");
        assert_eq!(all.title(), "shop 7: CPU");
    }
}
