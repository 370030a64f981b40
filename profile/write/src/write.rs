//! The output formats.

mod aggregate;
mod firefox;
pub(crate) mod flame_graph;
mod folded;
mod otlp;
pub(crate) mod parquet;
mod pprof;
mod room;
mod speedscope;

pub use aggregate::Aggregate;
pub use flame_graph::utc;
pub use otlp::OtlpMessages;
pub(crate) use otlp::SCOPE;

use std::borrow::Cow;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use otelctx_sample::format::process_context::Value;
use otelctx_sample::{Event, OffCpuState, ProcessFacts, Sample};

use crate::attributes::{SERVICE_NAME, UNKNOWN_SERVICE};
use crate::report::{Level, TimeKind};
use crate::view::Spans;
use crate::{Error, Group, Place, Profile, file};

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// OTLP profiles: one `ProfilesData` message of `opentelemetry.proto.profiles.v1development`.
    Otlp,
    /// pprof's `profile.proto`, compressed with gzip.
    Pprof,
    /// The "processed profile" JSON of the Firefox Profiler, compressed with gzip.
    Firefox,
    /// An HTML page for a browser, which needs no network.
    Page,
    /// A flame graph in SVG.
    FlameGraph,
    /// speedscope's JSON: a profile for each thread.
    Speedscope,
    /// Folded stacks: frames from the root, separated by `;`, and a count.
    Folded,
    /// Parquet, with one row for each sample.
    Parquet,
    /// A folder of Parquet files, one for each hour and service. Its path ends in `/`.
    ParquetFolder,
}

impl Format {
    /// All formats of single files.
    pub const ALL: [Self; 8] = [
        Self::Otlp,
        Self::Pprof,
        Self::Firefox,
        Self::Page,
        Self::FlameGraph,
        Self::Speedscope,
        Self::Folded,
        Self::Parquet,
    ];

    /// Returns the format for a path's extension, in upper or lower case.
    ///
    /// # Errors
    /// Returns [`Error::Ending`] for any other extension.
    pub fn from_path(path: &Path) -> Result<Self, Error> {
        let name = path.as_os_str().to_string_lossy().to_ascii_lowercase();
        let mut formats = Self::ALL.into_iter().chain([Self::ParquetFolder]);
        let format = formats.find(|it| name.ends_with(it.extension()));
        format.ok_or_else(|| Error::Ending(path.to_owned()))
    }

    /// Returns the extension of its files, with the dot before it; of a folder `/`.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Otlp => ".otlp",
            Self::Pprof => ".pb.gz",
            Self::Firefox => ".json.gz",
            Self::Page => ".html",
            Self::FlameGraph => ".svg",
            Self::Speedscope => ".speedscope.json",
            Self::Folded => ".folded",
            Self::Parquet => ".parquet",
            Self::ParquetFolder => "/",
        }
    }

    /// Returns its name: the extension of its files without the first dot.
    #[must_use]
    pub fn name(self) -> &'static str {
        &self.extension()[1..]
    }

    /// Returns the format with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns true if its files are no text.
    #[must_use]
    pub fn is_binary(self) -> bool {
        match self {
            Self::Otlp | Self::Pprof | Self::Firefox | Self::Parquet | Self::ParquetFolder => true,
            Self::Page | Self::FlameGraph | Self::Speedscope | Self::Folded => false,
        }
    }

    /// Returns the path of a part of a recording, for formats with one file per part: part 1 has
    /// `path` itself, part 2 of `a/b.otlp` has `a/b.2.otlp`.
    #[must_use]
    pub fn part_path(path: &Path, part: usize) -> PathBuf {
        match (part, path.file_stem(), path.extension()) {
            (2.., Some(stem), Some(ending)) => {
                let mut name = stem.to_owned();
                name.push(format!(".{part}."));
                name.push(ending);
                path.with_file_name(name)
            }
            _ => path.to_owned(),
        }
    }

    /// Removes the parts of an earlier recording with the name of a new one, which has `parts` of its
    /// own: they would be read as further parts of it.
    ///
    /// # Errors
    /// Returns [`Error::Write`] for a part that cannot be removed.
    pub fn remove_further_parts(path: &Path, parts: usize) -> Result<(), Error> {
        for part in parts + 1.. {
            let further = Self::part_path(path, part);
            // Not a link, whose target is elsewhere.
            let is_file = further.symlink_metadata().is_ok_and(|it| it.is_file());
            if !is_file || further == path {
                break;
            }
            fs::remove_file(&further).map_err(|source| Error::Write {
                path: further,
                source,
            })?;
        }
        Ok(())
    }

    /// Returns true if its files have this level in any case, wherever they show it: they are not divided
    /// by it.
    #[must_use]
    pub fn has_level(self, name: &str) -> bool {
        match Level::of(name) {
            Level::Function | Level::File | Level::Line => true,
            // Services are above all else.
            Level::Service => self != Self::Folded,
            // Tracks are.
            Level::Process | Level::Thread | Level::Trace => self == Self::Firefox,
            Level::Attribute(_) => false,
        }
    }

    /// Returns true if this format has one file for all parts of a recording ([`Aggregate`]). OTLP
    /// has one file per part.
    #[must_use]
    pub fn is_aggregate(self) -> bool {
        self != Self::Otlp
    }
}

/// Options for the content of files.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Options {
    /// What flame graphs and pages divide services by, that folded stacks have at their root, and that
    /// names span markers in the Firefox Profiler, outermost first: attributes of the context or the
    /// resource, or `process`, `thread` (in flame graphs and pages, those of a pool are one) and `trace`; in
    /// folded stacks also `service`. A recorder's files ignore names of what their format shows in any case
    /// ([`Format::has_level`]).
    pub by: Vec<String>,
    /// Prefix for record attribute names in OTLP; the OpenTelemetry eBPF profiler writes
    /// `process.context.label.`.
    pub attribute_prefix: String,
    /// Show functions of interpreters, of the starts of threads and of system calls in flame graphs,
    /// too.
    pub with_plumbing: bool,
    /// Names of attributes that the recorder detected and that are omitted from resources in OTLP.
    pub dropped_attributes: Vec<String>,
    /// The spans of traces, for a page.
    pub spans: Option<Arc<Spans>>,
    /// True for waits without a context, too, in folded stacks and speedscope's files.
    pub with_idle: bool,
    /// The kinds of time that flame graphs and folded stacks show, if not all samples are of one: several
    /// together, folded stacks then in microseconds. Without any, they show time on a CPU, folded stacks as
    /// numbers of samples; or where there is none, other time.
    pub kinds: Vec<TimeKind>,
    /// What pprof says of frames.
    pub(crate) frame_rules: FrameRules,
    /// Name of the machine that was recorded, which Parquet has where the resource has no `host.name`.
    pub host: Option<String>,
}

/// What a profile of pprof says of its frames: regular expressions for the names of functions that its
/// readers drop with all that these call, and keep nevertheless; and a page that explains it. Each may be
/// empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct FrameRules {
    pub(crate) drop: String,
    pub(crate) keep: String,
    pub(crate) url: String,
}

impl Profile {
    /// Writes this profile to `path`, in the format of its extension. If this fails, or this
    /// process is killed, an existing file is unchanged.
    ///
    /// # Errors
    /// Returns [`Error::Ending`] or [`Error::Write`].
    pub fn write_file(&self, path: &Path, options: &Options) -> Result<(), Error> {
        let format = Format::from_path(path)?;
        file::write(path, |writer| self.write(format, options, writer))
    }

    /// Writes this profile in a format.
    ///
    /// # Errors
    /// Returns the errors of `writer`.
    pub fn write(
        &self,
        format: Format,
        options: &Options,
        writer: &mut dyn Write,
    ) -> io::Result<()> {
        if format == Format::Otlp {
            return otlp::write(self, options, writer);
        }
        let mut aggregate = Aggregate::new(options, &[format], self.clock(), self.len() as u64);
        aggregate.add(self);
        aggregate.write(format, writer)
    }
}

/// Compresses what is written. The encoder clears its whole buffer with each write, so it gets large ones.
fn compressed(writer: &mut dyn Write) -> BufWriter<GzEncoder<&mut dyn Write>> {
    BufWriter::with_capacity(1 << 16, GzEncoder::new(writer, Compression::fast()))
}

/// Returns the start of the time that a sample stands for, and that time, in nanoseconds: a wait ends
/// when it is sampled.
fn start_and_time(sample: &Sample, period: u64) -> (u64, u64) {
    match sample.event {
        Event::OffCpu(off) => (sample.time.saturating_sub(off.nanoseconds), off.nanoseconds),
        _ => (sample.time, period),
    }
}

/// Returns true for waits of a thread without a context.
fn is_idle(group: &Group<'_>) -> bool {
    let waits = |state| state != OffCpuState::Queued;
    group.context.is_none() && group.off_cpu.is_some_and(|(state, _)| waits(state))
}

/// Returns start and end of a place in memory, and its offset in the file.
fn range(place: Place) -> (u64, u64, u64) {
    match place {
        Place::Kernel => (1 << 63, u64::MAX, 0),
        Place::Mapped(mapping) => (mapping.start, mapping.end, mapping.offset),
        Place::Unknown | Place::Runtime(_) => (0, 0, 0),
    }
}

/// Returns the name of a process's service; in parentheses if it was not published.
fn service_of(process: &ProcessFacts) -> Option<Cow<'_, str>> {
    let service = process
        .resource
        .iter()
        .find_map(|(key, value)| match value {
            Value::String(text) if key == SERVICE_NAME && !text.is_empty() => Some(text),
            _ => None,
        })?;
    if process.published {
        return Some(service.into());
    }
    // For a service without a name, the command name is shown instead of the specification's.
    let is_unknown = service.starts_with(UNKNOWN_SERVICE);
    (!is_unknown).then(|| format!("({service})").into())
}

/// Returns the name of a process's service, or its command name.
fn name_of(process: &ProcessFacts) -> Cow<'_, str> {
    service_of(process).unwrap_or(Cow::Borrowed(&process.comm))
}
