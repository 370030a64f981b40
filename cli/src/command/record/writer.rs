//! Writes a recording part by part, and says what was recorded.

use std::io::{self, Write};
use std::path::PathBuf;

use otelctx_profile::report;
use otelctx_profile::sample::ModuleFiles;
use otelctx_profile::{Clock, Format, Kind, Options, Parts, Profile, Recording, Spans};
use otelctx_symbolize::{SharedServer, Symbols};

use super::Arguments;
use super::cached_symbols::CachedSymbols;
use super::empty_recording::{Before, Contexts};
use super::gil::GilSamples;
use super::keep::{Done, Report, Work, with_time};
use super::output::{self, Finished, Outputs, Written};
use super::send::{Collector, Delivery};
use super::summary::{Removed, Summary};
use super::unsent;
use crate::command::filter::levels;
use crate::command::wall::{is_on_cpu, samples_on_cpu};
use crate::error::Error;
use crate::interrupt;
use crate::output::json;
use crate::output::terminal;
use crate::output::text::{argument, own_name};

/// Writes and sends a recording part by part, and keeps the facts for its closing lines.
pub(super) struct Writer<'a> {
    arguments: &'a Arguments,
    /// The files to write.
    paths: Vec<PathBuf>,
    /// True if recording goes on: what cannot be written is not kept elsewhere.
    goes_on: bool,
    /// The processes that were chosen; none for the whole machine.
    pub(super) targets: Vec<i32>,
    before: Before,
    contexts: Contexts,
    summary: Summary,
    /// `None` before the first part.
    outputs: Option<Outputs>,
    /// The format of standard output, if the recording is written there.
    pub(super) standard_output: Option<Format>,
    pub(super) collector: Option<Collector>,
    sent: Option<Delivery>,
    pub(super) failed: Vec<Error>,
    /// What was written before, of a recording that is kept.
    pub(super) kept: Option<Report>,
    /// The time span of all parts; `None` before the first one.
    clock: Option<Clock>,
}

impl<'a> Writer<'a> {
    /// Creates a writer of a recording that has ended.
    pub(super) fn new(arguments: &'a Arguments, paths: Vec<PathBuf>, summary: Summary) -> Self {
        Self {
            arguments,
            paths,
            goes_on: false,
            targets: Vec::new(),
            before: Before::default(),
            contexts: Contexts::default(),
            summary,
            outputs: None,
            standard_output: None,
            collector: None,
            sent: None,
            failed: Vec::new(),
            kept: None,
            clock: None,
        }
    }

    fn done(&self, clock: Clock, written: Vec<Written>) -> Done {
        Done {
            end_unix: clock.unix(clock.end),
            duration_ns: clock.duration(),
            samples: self.summary.kept(),
            written,
            is_sent: self.sent.is_some(),
            failed: self.failed.iter().map(ToString::to_string).collect(),
        }
    }

    /// Filters, writes and sends the parts, until one cannot be read back.
    pub(super) fn add_all(&mut self, parts: Parts, symbols: &mut CachedSymbols) {
        let (clock, samples) = (parts.clock(), parts.samples());
        self.clock = Some(clock);
        for part in parts {
            let mut part = match part {
                Ok(part) => part,
                Err(error) => return self.failed.push(Error::Spool(error)),
            };
            let (clock_of_part, removed) = (part.clock, self.select(&mut part, clock));
            let mut profile = Profile::new(part, symbols);
            self.select_by_function(&mut profile, clock_of_part, removed);
            self.summary
                .without_symbols
                .add(&profile, symbols.symbols());
            let arguments = self.arguments;
            let outputs = self.outputs.get_or_insert_with(|| {
                let mut options = Options::default();
                options.by = levels(&arguments.by);
                options.kinds.clone_from(&arguments.filter.kinds);
                options
                    .attribute_prefix
                    .clone_from(&arguments.attribute_prefix);
                let dropped = &arguments.filter.attributes.drop;
                options.dropped_attributes.clone_from(dropped);
                options.host = output::host();
                let standard_output = self.standard_output;
                let paths = &self.paths;
                let outputs = Outputs::new(options, paths, standard_output, clock, samples);
                if self.goes_on {
                    outputs.without_fallback()
                } else {
                    outputs
                }
            });
            outputs.add(&profile);
            let Some(collector) = &mut self.collector else {
                continue;
            };
            match (collector.send(&profile, &outputs.options), &mut self.sent) {
                (Ok(delivery), Some(sent)) => sent.add(&delivery),
                (Ok(delivery), sent) => *sent = Some(delivery),
                (Err(error), _) => {
                    self.failed.push(error);
                    if self.paths.is_empty() && !self.goes_on {
                        outputs.add_file(&profile, &unsent::name());
                    }
                }
            }
        }
    }

    /// Leaves out the samples and attributes of a part that were not requested. `clock` is that of the
    /// whole recording.
    fn select(&mut self, part: &mut Recording, clock: Clock) -> Removed {
        let arguments = self.arguments;
        self.before.add(part, arguments);
        let numbers = |part: &Recording| {
            let on_cpu = part.samples.iter().filter(|it| is_on_cpu(it)).count();
            (on_cpu, part.samples.len() - on_cpu)
        };
        let (samples, waits) = numbers(part);
        arguments.filter.keep(part);
        if let Some(time) = &arguments.time {
            let selected = time.within(clock);
            part.samples
                .retain(|sample| selected.contains(&sample.time));
        }
        let (kept, kept_waits) = numbers(part);
        Removed {
            gil: GilSamples::default(),
            not_selected: samples - kept,
            not_selected_waits: waits - kept_waits,
            attributes: arguments.filter.attributes.apply(part),
        }
    }

    /// Leaves out samples and frames that were not requested, and counts the others.
    fn select_by_function(&mut self, part: &mut Profile, clock: Clock, mut removed: Removed) {
        let arguments = self.arguments;
        if !arguments.filter.functions.is_empty() {
            let (samples, waits) = numbers_of(part);
            part.keep_functions(&arguments.filter.functions);
            let (kept, kept_waits) = numbers_of(part);
            removed.not_selected += samples - kept;
            removed.not_selected_waits += waits - kept_waits;
        }
        removed.gil = GilSamples::of_part(part, Kind::OnCpu);
        if arguments.gil {
            self.before.add_gil(removed.gil);
            self.before.add_gil(GilSamples::of_part(part, Kind::OffCpu));
            part.keep_gil_holders();
        }
        if !arguments.filter.languages.is_empty() {
            part.keep_languages(&arguments.filter.languages);
        }
        self.contexts.add(part);
        self.summary.add(part, clock, removed);
    }

    /// Writes the files of all parts.
    fn close(&mut self) -> Finished {
        let mut outputs = self.outputs.take();
        if let (Some(path), Some(outputs)) = (&self.arguments.spans, &mut outputs) {
            match Spans::read(path) {
                Ok(spans) => outputs.set_spans(spans),
                Err(error) => self.failed.push(error.into()),
            }
        }
        let mut finished = outputs.map(Outputs::finish).unwrap_or_default();
        self.failed.append(&mut finished.failed);
        finished
    }

    /// Writes the files of all parts, and prints the closing lines: on standard error if standard
    /// output is a command's.
    pub(super) fn finish(&mut self, is_command: bool) -> Result<(), Error> {
        let arguments = self.arguments;
        let finished = self.close();
        interrupt::report_loss(false);
        let written = &finished.written;
        if let (Some(mut kept), Some(clock)) = (self.kept.take(), self.clock) {
            kept.end(self.done(clock, finished.written.clone()));
            self.kept = Some(kept);
        }
        let is_attribute = |name: &&String| !report::is_level(name);
        let mut asked = arguments.by.iter().filter(is_attribute);
        let lacking = || asked.find_map(|name| self.contexts.lacking(Some(name)));
        let kept_samples = self.summary.kept();
        let explanation = self
            .before
            .explanation(kept_samples, arguments, &self.targets);
        let explanation = explanation.or_else(lacking);
        let text = if arguments.json {
            let kept = self.kept.as_ref();
            json::render(&self.summary.json(written, self.sent.as_ref(), kept))
        } else {
            let line = Written::line;
            let files = written.iter().filter(|it| it.has_content()).map(line);
            let sent = self.sent.as_ref().map(Delivery::line).unwrap_or_default();
            let kept = self.kept.as_ref().map(Report::line).unwrap_or_default();
            self.summary.text() + &files.collect::<String>() + &sent + &kept
        };
        let printed = if (is_command || self.standard_output.is_some()) && !arguments.json {
            // Standard output may be a pipe to another program. A failure cannot be reported.
            let _ = io::stderr().write_all(text.as_bytes());
            Ok(())
        } else {
            terminal::print(&text).map_err(Error::Output)
        };
        if let [file, ..] = &written[..]
            && arguments.no_symbols
            && self.summary.kept() > 0
            && output::take_names_later(&arguments.output, self.standard_output)
        {
            let message = "functions in files have no names yet";
            let (program, file) = (own_name(), argument(&file.path));
            let hint = format!("`{program} symbolize {file}` adds them");
            terminal::complain(message, Some(&hint));
        }
        if let Some(explanation) = explanation {
            terminal::complain(&explanation.message, Some(&explanation.hint));
        }
        if let Some(line) = finished.kept_line() {
            terminal::complain(&line, None);
        }
        for error in &self.failed {
            terminal::complain(&error.to_string(), error.hint().as_deref());
        }
        printed
    }
}

/// Returns the number of samples of threads that ran, and of waits.
fn numbers_of(part: &Profile) -> (usize, usize) {
    let on_cpu = samples_on_cpu(part);
    (on_cpu, part.len() - on_cpu)
}

/// Writes what is kept of a recording that goes on.
pub(super) struct KeptWriter<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) method: &'static str,
    pub(super) server: Option<SharedServer>,
    /// The files of the sampled code.
    pub(super) files: ModuleFiles,
    pub(super) symbols: CachedSymbols,
    pub(super) collector: Option<Collector>,
}

impl KeptWriter<'_> {
    /// Returns what resolves functions that are not known, with what was found missing before forgotten.
    fn new_symbols(&self) -> Symbols {
        let (server, files) = (self.server.clone(), self.files.clone());
        self.arguments.symbols(server, files)
    }
}

impl Work for KeptWriter<'_> {
    fn write(&mut self, parts: Parts) -> Done {
        let clock = parts.clock();
        let paths = with_time(&self.arguments.output, clock.unix(clock.end));
        let summary = Summary::new(self.method, Vec::new(), Vec::new(), Vec::new());
        let mut writer = Writer::new(self.arguments, paths, summary);
        writer.goes_on = true;
        writer.collector = self.collector.take();
        self.symbols.renew(self.new_symbols());
        writer.add_all(parts, &mut self.symbols);
        let finished = writer.close();
        self.collector = writer.collector.take();
        writer.done(clock, finished.written)
    }

    fn resolve(&mut self, parts: Parts) {
        self.symbols.renew(self.new_symbols());
        // What cannot be read is not written, either, and reported then.
        for part in parts.map_while(Result::ok) {
            drop(Profile::new(part, &mut self.symbols));
        }
    }
}
