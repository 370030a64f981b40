//! Views of recordings: read as a stream, selected, and summed up, drawn or written again.

mod cells;
mod drawing;
mod fold;
mod functions;
mod input;
mod levels;
mod live;
mod load;
mod messages;
mod otlp;
mod page;
mod parquet;
mod plumbing;
mod pprof;
mod rows;
mod select;
mod spans;
mod sums;
mod tables;
mod text;
mod tree;
mod values;
mod wire;

pub use input::Input;
pub(crate) use parquet::ParquetFiles;
pub use spans::{Span, SpanReport, SpanTime, SpannedTrace, Spans, awaited};

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;
use crate::report::{self, Report, ReportOptions, Selection};
use crate::write::flame_graph::{self, Facts, Graphs, Kinds};
use crate::{Clock, Format, Options, Profile, file};
use drawing::Drawing;
use load::Loading;
use page::Paging;
use select::Selecting;
use sums::Sums;
use tables::Tables;

impl Report {
    /// Reads and sums up a recording, in a worker process.
    ///
    /// # Errors
    /// Returns [`Error::Read`], [`Error::TooLarge`] for more than 1 GiB in a file, or 4 GiB of memory,
    /// [`Error::OtherFormat`], and [`Error::Malformed`] for a file that was cut off or whose entries
    /// refer to others that are not there.
    pub fn read(input: &Input, options: &ReportOptions) -> Result<Self, Error> {
        input.in_worker(|files| {
            // The worker process ends: that frees them faster.
            let mut tables = ManuallyDrop::new(Tables::of(&options.selection));
            let mut sums = Sums::new(options);
            let mut selecting = Selecting::new(&options.selection, &mut sums);
            files.read(&mut tables, &mut selecting)?;
            let idle = selecting.idle;
            let mut report = sums.finish(&tables);
            report.idle = idle;
            Ok(report)
        })
    }

    /// Sums up the content of a file, or returns a sentence that names its defect. Not in a worker
    /// process: for tests and the fuzz target.
    #[doc(hidden)]
    pub fn of(content: &[u8], options: &ReportOptions) -> Result<Self, String> {
        let mut tables = Tables::of(&options.selection);
        let mut sums = Sums::new(options);
        let mut selecting = Selecting::new(&options.selection, &mut sums);
        input::read_content(content, Path::new("content"), &mut tables, &mut selecting)?;
        let idle = selecting.idle;
        let mut report = sums.finish(&tables);
        report.idle = idle;
        Ok(report)
    }
}

/// Loads the content of a file. Not in a worker process: for tests and the fuzz target.
///
/// # Errors
/// Returns a sentence that names the defect of the content.
#[doc(hidden)]
pub fn load(content: &[u8], selection: &Selection) -> Result<Profile, String> {
    let mut tables = Tables::of(selection);
    let mut loading = Loading::new(false);
    messages::read(
        content,
        &mut tables,
        &mut Selecting::new(selection, &mut loading),
    )?;
    loading.finish(&tables)
}

/// Writes a recording's selected samples to `path`, in a format. Returns false if no sample is
/// selected: then nothing is written.
///
/// # Errors
/// Returns the errors of [`Report::read`], and [`Error::Write`]: the file is as it was before.
pub fn convert(
    input: &Input,
    selection: &Selection,
    format: Format,
    options: &Options,
    path: &Path,
) -> Result<bool, Error> {
    if matches!(format, Format::Parquet | Format::ParquetFolder) {
        return parquet::convert(input, selection, format, options, path);
    }
    let content = converted(input, selection, format, options)?;
    if let Some(content) = &content {
        file::write(path, |writer| writer.write_all(content))?;
        if format == Format::Otlp {
            Format::remove_further_parts(path, 1)?;
        }
    }
    Ok(content.is_some())
}

/// Returns a recording's selected samples in a format of a single file; `None` if no sample is selected.
///
/// # Errors
/// Returns the errors of [`Report::read`].
pub fn converted(
    input: &Input,
    selection: &Selection,
    format: Format,
    options: &Options,
) -> Result<Option<Vec<u8>>, Error> {
    if matches!(format, Format::Parquet | Format::ParquetFolder) {
        return parquet::converted(input, selection, options);
    }
    input.bytes_of_worker(|files, pipe| {
        let mut tables = Tables::of(selection);
        if format == Format::Page {
            let mut paging = Paging::new(&options.by);
            files.read(&mut tables, &mut Selecting::new(selection, &mut paging))?;
            if paging.is_empty() {
                return Ok(Ok(false));
            }
            let spans = options.spans.as_deref();
            let recording = paging.finish(&input.name(), &tables, spans);
            return Ok(otelctx_page::write(&recording, pipe).map(|()| true));
        }
        if format == Format::FlameGraph {
            let mut drawing = Drawing::new(&options.by, selection);
            files.read(&mut tables, &mut Selecting::new(selection, &mut drawing))?;
            if drawing.is_empty() {
                return Ok(Ok(false));
            }
            let (wanted, graphs) = drawn(&mut drawing, &tables, options);
            let (graph, is_other) = graphs.chosen();
            let facts = Facts {
                by: options.by.clone(),
                wanted,
                kinds: Kinds::of(&selection.kinds, is_other),
                period: tables.period,
                time: tables.span.map(|(start, end)| {
                    (end.saturating_sub(start), tables.has_date.then_some(start))
                }),
            };
            return Ok(flame_graph::write(graph, &facts, pipe).map(|()| true));
        }
        let sums_up = matches!(format, Format::Folded | Format::Speedscope);
        let mut loading = Loading::new(sums_up);
        files.read(&mut tables, &mut Selecting::new(selection, &mut loading))?;
        if loading.is_empty() {
            return Ok(Ok(false));
        }
        let mut options = options.clone();
        // What is not selected is not there.
        options.with_idle = true;
        options.kinds.clone_from(&selection.kinds);
        // Without an attribute, nothing is at the root for it.
        options
            .by
            .retain(|name| report::is_level(name) || tables.has_attribute(name));
        options.frame_rules = tables.frame_rules.clone();
        let profile = loading.finish(&tables).map_err(input::malformed)?;
        Ok(profile.write(format, &options, pipe).map(|()| true))
    })
}

/// Returns the flame graph of a recording, which has the levels that it is divided by if samples have
/// them.
fn drawn(drawing: &mut Drawing, tables: &Tables, options: &Options) -> (Vec<bool>, Graphs) {
    let wanted = drawing.has_values();
    let mut graphs = Graphs::new();
    drawing.add_to(&mut graphs, tables, options.with_plumbing, &wanted);
    (wanted, graphs)
}

/// A flame graph of a recording, which is added part by part. Its memory is bounded.
#[derive(Debug)]
pub(crate) struct FlameGraph {
    options: Options,
    /// The kinds of time that are drawn.
    selection: Selection,
    graphs: Graphs,
    /// A sample has a value of this level.
    has_value: Vec<bool>,
    /// The reason why a part could not be added.
    problem: Option<String>,
}

impl FlameGraph {
    /// Creates an empty flame graph.
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            options: options.clone(),
            selection: Selection {
                kinds: options.kinds.clone(),
                ..Selection::default()
            },
            graphs: Graphs::new(),
            has_value: vec![false; options.by.len()],
            problem: None,
        }
    }

    /// Adds the content of a part's file.
    pub(crate) fn add(&mut self, content: Result<&[u8], &String>) {
        // Nothing is kept of a part but its sums.
        let mut tables = Tables::default();
        let mut drawing = Drawing::new(&self.options.by, &self.selection);
        let read = content.map_err(String::clone).and_then(|content| {
            let mut selecting = Selecting::new(&self.selection, &mut drawing);
            messages::read(content, &mut tables, &mut selecting)
        });
        for (has_value, of_part) in self.has_value.iter_mut().zip(drawing.has_values()) {
            *has_value |= of_part;
        }
        // A later part may have values of a level that this one has none of. Boxes without a value are left
        // out where a service has no others.
        let (plumbing, wanted) = (
            self.options.with_plumbing,
            vec![true; self.options.by.len()],
        );
        drawing.add_to(&mut self.graphs, &tables, plumbing, &wanted);
        self.problem = self.problem.take().or(read.err());
    }

    /// Writes the graph.
    ///
    /// # Errors
    /// Returns the errors of the writer, and fails if a part had more than can be referred to.
    pub(crate) fn write(
        &self,
        clock: Clock,
        period: u64,
        writer: &mut dyn Write,
    ) -> io::Result<()> {
        if let Some(problem) = &self.problem {
            return Err(io::Error::other(problem.clone()));
        }
        let (graph, is_other) = self.graphs.chosen();
        let facts = Facts {
            by: self.options.by.clone(),
            wanted: self.has_value.clone(),
            kinds: Kinds::of(&self.selection.kinds, is_other),
            period,
            time: Some((clock.duration(), Some(clock.unix(clock.start)))),
        };
        flame_graph::write(graph, &facts, writer)
    }
}

/// A page of a recording, which is added part by part.
#[derive(Debug)]
pub(crate) struct Page {
    tables: Tables,
    paging: Paging,
    spans: Option<Arc<Spans>>,
    /// The reason why a part could not be added.
    problem: Option<String>,
}

impl Page {
    /// Creates an empty page.
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            tables: Tables::default(),
            paging: Paging::new(&options.by),
            spans: options.spans.clone(),
            problem: None,
        }
    }

    /// Adds the content of a part's file.
    pub(crate) fn add(&mut self, content: Result<&[u8], &String>) {
        let read = content
            .map_err(String::clone)
            .and_then(|content| messages::read(content, &mut self.tables, &mut self.paging));
        self.problem = self.problem.take().or(read.err());
    }

    /// Shows these spans of its traces.
    pub(crate) fn set_spans(&mut self, spans: Arc<Spans>) {
        self.spans = Some(spans);
    }

    /// Writes the page.
    ///
    /// # Errors
    /// Returns the errors of the writer, and fails if a part had more than can be referred to.
    pub(crate) fn write(&self, title: &str, writer: &mut dyn Write) -> io::Result<()> {
        match &self.problem {
            Some(problem) => Err(io::Error::other(problem.clone())),
            None => {
                let spans = self.spans.as_deref();
                let recording = self.paging.finish(title, &self.tables, spans);
                otelctx_page::write(&recording, writer)
            }
        }
    }
}
