//! The Firefox Profiler's JSON: threads as tracks, spans as markers.

mod json;

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use foldhash::fast::RandomState;
use indexmap::{IndexMap, IndexSet};
use otelctx_sample::{ContextId, FrameKind, GilState, ThreadId};

use super::room::{OTHER, Room};
use crate::attributes::{attribute, attributes};
use crate::{Clock, Identity, Kind, Location, LocationIndex, Options, Place, Profile};

/// Maximum number of samples in a file: of a longer recording, each represents several.
const MAX_SAMPLES: u64 = 500_000;
/// Maximum memory of tracks, stacks and the text of spans, in bytes (estimated).
const MAX_MEMORY: usize = 64 << 20;
/// Estimated memory of a track without samples and spans, and of an entry of one of its tables, in
/// bytes.
const TRACK: usize = 2048;
const ENTRY: usize = 64;

/// An index of one of the tables.
type Index = u32;
type Table<T> = IndexSet<T, RandomState>;

/// A profile to which the parts of a recording are added.
#[derive(Debug)]
pub(super) struct Firefox {
    /// The attribute that names spans.
    by: Option<String>,
    categories: Categories,
    libraries: Table<Library>,
    processes: IndexMap<ProcessKey, Process, RandomState>,
    /// Tracks by process and thread ID.
    tracks: IndexMap<(Index, i32), Track, RandomState>,
    strings: Table<String>,
    room: Room,
    clock: Clock,
    period: u64,
    /// Number of a thread's samples that each shown one represents.
    stride: usize,
}

/// ID, start time and program.
type ProcessKey = (i32, u64, String);

#[derive(Debug)]
struct Process {
    name: String,
    /// Its ID, followed by a number if another process had it before.
    id: String,
}

/// A program or library.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Library {
    path: String,
    build_id: Vec<u8>,
}

#[derive(Debug, Default)]
struct Track {
    name: String,
    is_main: bool,
    /// Lines of functions: the lowest that was sampled.
    functions: IndexMap<Function, u32, RandomState>,
    frames: Table<Frame>,
    /// Callers and innermost frame.
    stacks: Table<(Option<Index>, Index)>,
    samples: Vec<Sample>,
    spans: Vec<Span>,
    /// The span of the last sample.
    span: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Function {
    name: Index,
    /// Of the strings.
    file: Option<Index>,
    library: Option<Index>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    function: Index,
    /// The offset in the library's file.
    address: Option<u64>,
    /// 0 for the function at the address, more for functions that are inlined there.
    inline_depth: u32,
    category: Index,
    line: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    time: u64,
    stack: Option<Index>,
    count: u32,
}

/// A span, with the times of its first and last sample.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    name: Index,
    /// Trace ID, span ID and attributes.
    texts: [Index; 3],
    start: u64,
    end: u64,
}

struct TrackSample<'p> {
    time: u64,
    stack: &'p [LocationIndex],
    context: Option<ContextId>,
}

impl Firefox {
    /// Creates a profile of a recording with this many samples, in all its parts.
    pub(super) fn new(options: &Options, clock: Clock, samples: u64) -> Self {
        Self {
            by: options.by.clone(),
            categories: Categories::new(),
            libraries: Table::default(),
            processes: IndexMap::default(),
            tracks: IndexMap::default(),
            strings: Table::default(),
            room: Room::new(MAX_MEMORY),
            clock,
            period: 1,
            stride: samples.div_ceil(MAX_SAMPLES).max(1) as usize,
        }
    }

    pub(super) fn add(&mut self, part: &Profile) {
        self.period = part.period().get();
        let mut threads: Vec<(ThreadId, Vec<TrackSample<'_>>)> = Vec::new();
        for group in part.groups().filter(|group| group.kind == Kind::OnCpu) {
            let samples = group.samples.iter().map(|sample| TrackSample {
                time: sample.time,
                stack: group.stack,
                context: group.context,
            });
            match threads.last_mut() {
                Some((thread, known)) if *thread == group.thread => known.extend(samples),
                _ => threads.push((group.thread, samples.collect())),
            }
        }
        for (thread, mut samples) in threads {
            samples.sort_unstable_by_key(|sample| sample.time);
            let track = self.track(part, thread);
            let shown = self.add_samples(part, track, &samples);
            self.add_spans(part, track, &shown);
        }
    }

    /// Returns the position of a thread's track, or of the shared track of threads without room.
    fn track(&mut self, part: &Profile, id: ThreadId) -> usize {
        let thread = part.thread(id);
        let facts = part.process(thread.process);
        let identity = (facts.pid, facts.start_ticks, facts.executable.clone());
        let process = self.processes.get_index_of(&identity);
        let known =
            process.and_then(|process| self.tracks.get_index_of(&(process as Index, thread.tid)));
        if let Some(position) = known {
            let track = &mut self.tracks[position];
            // A main thread goes by its process.
            if !track.is_main {
                thread.name.clone_into(&mut track.name);
            }
            return position;
        }
        let (identity, process, tid, name) = if self.room.take(TRACK) {
            let process = super::name_of(facts).into_owned();
            (identity, process, thread.tid, &thread.name[..])
        } else {
            ((0, 0, String::new()), OTHER.to_owned(), 0, OTHER)
        };
        let pid = identity.0;
        let before = self.processes.keys().filter(|other| other.0 == pid).count();
        let id = match before {
            0 => pid.to_string(),
            before => format!("{pid}.{before}"),
        };
        let entry = self.processes.entry(identity);
        let process_index = entry.index() as Index;
        let process = &entry.or_insert(Process { name: process, id }).name;
        let is_main = tid == pid && pid != 0;
        let name = if is_main { process } else { name };
        let entry = self.tracks.entry((process_index, tid));
        let position = entry.index();
        entry.or_insert_with(|| Track {
            name: name.to_owned(),
            is_main,
            ..Track::default()
        });
        position
    }

    /// Adds samples of a thread, and returns the shown ones.
    fn add_samples<'s, 'p>(
        &mut self,
        part: &Profile,
        track: usize,
        samples: &'s [TrackSample<'p>],
    ) -> Vec<&'s TrackSample<'p>> {
        let mut known: HashMap<&[LocationIndex], Option<Index>, RandomState> = HashMap::default();
        let mut shown = Vec::new();
        for chunk in samples.chunks(self.stride) {
            let sample = &chunk[0];
            let stack = known.entry(sample.stack);
            let stack = *stack.or_insert_with(|| self.stack(part, track, sample.stack));
            self.tracks[track].samples.push(Sample {
                time: sample.time.saturating_sub(self.clock.start),
                stack,
                count: u32::try_from(chunk.len()).unwrap_or(u32::MAX),
            });
            shown.push(sample);
        }
        shown
    }

    /// Interns a stack. Returns the one that represents others if there is no room.
    fn stack(&mut self, part: &Profile, track: usize, stack: &[LocationIndex]) -> Option<Index> {
        let (mut last, mut waits) = (None, false);
        for &index in stack.iter().rev() {
            let Some(inner) = self.location(part, track, part.location(index), last, &mut waits)
            else {
                return self.other(track);
            };
            last = Some(inner);
        }
        last
    }

    /// Interns the functions at a location. Returns the stack that ends in the innermost one; `None`
    /// if there is no room.
    fn location(
        &mut self,
        part: &Profile,
        track: usize,
        location: &Location,
        callers: Option<Index>,
        waits: &mut bool,
    ) -> Option<Index> {
        let category = self.categories.of(location.place);
        let is_named = matches!(location.place, Place::Runtime(_));
        let library = self.library(part, location.place);
        let address = match location.place {
            Place::Mapped(mapping) => location
                .address
                .checked_sub(mapping.start)
                .and_then(|inside| inside.checked_add(mapping.offset)),
            _ => None,
        };
        let (mut last, mut inline_depth, mut has_room) = (callers, 0, true);
        part.each_function(location, |name, file, line| {
            if !has_room {
                return;
            }
            *waits |= is_named && name == GilState::WAITING_FRAME;
            let category = if *waits {
                self.categories.waiting()
            } else {
                category
            };
            let mut intern = || {
                let function = Function {
                    name: self.string(name)?,
                    file: match file {
                        "" => None,
                        file => Some(self.string(file)?),
                    },
                    library,
                };
                let function = self.function(track, function, line)?;
                let frame = Frame {
                    function,
                    address,
                    inline_depth,
                    category,
                    line,
                };
                self.frame(track, last, frame)
            };
            match intern() {
                Some(inner) => last = Some(inner),
                None => has_room = false,
            }
            inline_depth += 1;
        });
        if has_room { last } else { None }
    }

    /// Returns the library that a place belongs to; `None` as well if there is no room for it.
    fn library(&mut self, part: &Profile, place: Place) -> Option<Index> {
        let module = part.module_of(place)?;
        let identity = part.identity(module);
        let build_id = identity.map(|Identity { build_id, .. }| build_id.clone());
        let library = Library {
            path: part.catalog().module_facts(module).path.clone(),
            build_id: build_id.unwrap_or_default(),
        };
        let size = ENTRY + 2 * library.path.len() + library.build_id.len();
        if !self.libraries.contains(&library) && !self.room.take(size) {
            return None;
        }
        Some(self.libraries.insert_full(library).0 as Index)
    }

    fn function(&mut self, track: usize, function: Function, line: u32) -> Option<Index> {
        let functions = &mut self.tracks[track].functions;
        if !functions.contains_key(&function) && !self.room.take(ENTRY) {
            return None;
        }
        let entry = functions.entry(function);
        let index = entry.index();
        let known = entry.or_insert(line);
        if line > 0 && (*known == 0 || line < *known) {
            *known = line;
        }
        Some(index as Index)
    }

    /// Interns a frame with its callers. `None` if there is no room.
    fn frame(&mut self, track: usize, callers: Option<Index>, frame: Frame) -> Option<Index> {
        let Track { frames, stacks, .. } = &mut self.tracks[track];
        if !frames.contains(&frame) && !self.room.take(ENTRY) {
            return None;
        }
        let frame = frames.insert_full(frame).0 as Index;
        let stack = (callers, frame);
        if !stacks.contains(&stack) && !self.room.take(ENTRY) {
            return None;
        }
        Some(stacks.insert_full(stack).0 as Index)
    }

    /// Returns the stack that represents those without room.
    fn other(&mut self, track: usize) -> Option<Index> {
        let room = std::mem::replace(&mut self.room, Room::new(usize::MAX));
        let function = Function {
            name: self.string(OTHER)?,
            file: None,
            library: None,
        };
        let frame = Frame {
            function: self.function(track, function, 0)?,
            address: None,
            inline_depth: 0,
            category: Categories::USER,
            line: 0,
        };
        let stack = self.frame(track, None, frame);
        self.room = room;
        stack
    }

    /// Interns a string. `None` if there is no room.
    fn string(&mut self, text: &str) -> Option<Index> {
        if let Some(known) = self.strings.get_index_of(text) {
            return Some(known as Index);
        }
        let size = size_of::<String>() + text.len();
        let new = || self.strings.insert_full(text.to_owned()).0 as Index;
        self.room.take(size).then(new)
    }

    /// Extends the track's span, or ends it and starts another one. A span becomes a marker from
    /// its first sample to the end of the time of its last one, possibly in the next part.
    fn add_spans(&mut self, part: &Profile, track: usize, shown: &[&TrackSample<'_>]) {
        for run in shown.chunk_by(|one, other| one.context == other.context) {
            let (start, end) = (run[0].time, run[run.len() - 1].time);
            let period = part.period().get().saturating_mul(self.stride as u64);
            let end = end.saturating_add(period).min(self.clock.end);
            let after_start = |time: u64| time.saturating_sub(self.clock.start);
            let (start, end) = (after_start(start), after_start(end));
            let next = run[0].context.map(|id| {
                let (name, texts) = self.span(part, id);
                Span {
                    name,
                    texts,
                    start,
                    end,
                }
            });
            let track = &mut self.tracks[track];
            match (&mut track.span, next) {
                (Some(last), Some(next)) if (last.name, last.texts) == (next.name, next.texts) => {
                    last.end = next.end;
                }
                (last, next) => {
                    track.spans.extend(*last);
                    *last = next;
                }
            }
        }
    }

    /// Returns the name of a span, and its texts.
    fn span(&mut self, part: &Profile, id: ContextId) -> (Index, [Index; 3]) {
        let context = part.context(id);
        let text = attributes(context).into_iter();
        let text: Vec<_> = text.map(|(key, value)| format!("{key}={value}")).collect();
        // Markers with the same name share a row of the chart.
        let name = self.by.as_deref().and_then(|name| attribute(context, name));
        let texts = [
            name.unwrap_or("span"),
            &context.trace_id.to_string(),
            &context.span_id.to_string(),
            &text.join(" "),
        ];
        let strings = texts.map(|text| self.string(text));
        if let [Some(name), Some(trace), Some(span), Some(attributes)] = strings {
            return (name, [trace, span, attributes]);
        }
        let other = self.strings.insert_full(OTHER.to_owned()).0 as Index;
        (other, [other; 3])
    }

    pub(super) fn write(&self, subject: &str, writer: &mut dyn Write) -> io::Result<()> {
        let mut gzip = GzEncoder::new(writer, Compression::fast());
        json::write(self, subject, &mut gzip)?;
        gzip.finish().map(drop)
    }
}

/// Categories with their colours: those of the languages resemble those of the page.
#[derive(Debug)]
struct Categories {
    names: Vec<(&'static str, &'static str)>,
    /// Frames that wait for an interpreter's lock, once there are any.
    waiting: Option<Index>,
    /// Frames that a runtime has named.
    runtimes: HashMap<FrameKind, Index>,
}

impl Categories {
    const USER: Index = 1;
    const KERNEL: Index = 2;
    const SPAN: Index = 3;
    /// Maximum number of runtimes with a category of their own.
    const MAX_RUNTIMES: usize = 64;

    fn new() -> Self {
        let names = [
            ("Other", "grey"),
            ("User", "green"),
            ("Kernel", "purple"),
            ("Span", "lightblue"),
        ];
        Self {
            names: names.to_vec(),
            waiting: None,
            runtimes: HashMap::new(),
        }
    }

    fn add(&mut self, name: &'static str, colour: &'static str) -> Index {
        self.names.push((name, colour));
        self.names.len() as Index - 1
    }

    fn waiting(&mut self) -> Index {
        match self.waiting {
            Some(known) => known,
            None => {
                let new = self.add("Waiting for the GIL", "red");
                *self.waiting.insert(new)
            }
        }
    }

    fn of(&mut self, place: Place) -> Index {
        let kind = match place {
            Place::Kernel => return Self::KERNEL,
            Place::Mapped(_) | Place::Unknown | Place::Runtime(FrameKind::ABORT_MARKER) => {
                return Self::USER;
            }
            Place::Runtime(kind) => kind,
        };
        if let Some(known) = self.runtimes.get(&kind) {
            return *known;
        }
        if self.runtimes.len() >= Self::MAX_RUNTIMES {
            return Self::USER;
        }
        let colour = match kind {
            FrameKind::CPYTHON => "blue",
            FrameKind::V8JS => "yellow",
            FrameKind::JVM => "orange",
            _ => "magenta",
        };
        let new = self.add(kind.name(), colour);
        self.runtimes.insert(kind, new);
        new
    }
}
