//! The Firefox Profiler's JSON: threads as tracks, spans and waits as markers.

mod categories;
mod json;

use std::collections::HashMap;
use std::io::{self, Write};

use foldhash::fast::RandomState;
use indexmap::{IndexMap, IndexSet};
use otelctx_sample::{ContextId, Event, GilState, OffCpuState, ProcessId, ThreadId};

use categories::Categories;

use super::folded::published_attribute;
use super::room::{OTHER, Room};
use super::start_and_time;
use crate::attributes::attributes;
use crate::wait::Wait;
use crate::{Clock, Identity, Location, LocationIndex, Options, Place, Profile};

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
    /// The attributes of contexts or resources that name spans.
    by: Vec<String>,
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
    waits: Vec<WaitMarker>,
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
    column: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    time: u64,
    stack: Option<Index>,
    /// In periods.
    count: u32,
    is_off_cpu: bool,
}

/// A time off the CPU.
#[derive(Clone, Copy, Debug)]
struct WaitMarker {
    /// The call, or the state.
    name: Index,
    /// State and reason.
    texts: [Index; 2],
    category: Index,
    start: u64,
    end: u64,
    /// [`otelctx_sample::OffCpu::since`].
    since: u64,
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

/// One or more samples of a thread.
#[derive(Clone, Copy)]
struct TrackSample<'p> {
    /// When the first one was taken: a wait ends then.
    time: u64,
    /// When its time began.
    start: u64,
    nanoseconds: u64,
    stack: &'p [LocationIndex],
    context: Option<ContextId>,
    wait: Option<Wait<'p>>,
    since: u64,
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
        // Samples on a CPU and others of each thread.
        let mut threads: IndexMap<ThreadId, [Vec<TrackSample<'_>>; 2]> = IndexMap::default();
        for group in part.groups() {
            let wait = part.wait(&group);
            let samples = group.samples.iter().map(|sample| {
                let (start, nanoseconds) = start_and_time(sample, self.period);
                TrackSample {
                    time: sample.time,
                    start,
                    nanoseconds,
                    stack: group.stack,
                    context: group.context,
                    wait,
                    since: match sample.event {
                        Event::OffCpu(off) => off.since,
                        _ => 0,
                    },
                }
            });
            let of_thread = threads.entry(group.thread).or_default();
            of_thread[usize::from(wait.is_some())].extend(samples);
        }
        for (thread, kinds) in threads {
            let track = self.track(part, thread);
            let mut shown = Vec::new();
            for mut samples in kinds {
                samples.sort_unstable_by_key(|sample| sample.time);
                shown.extend(samples.chunks(self.stride).map(joined));
            }
            shown.sort_by_key(|sample| sample.time);
            self.add_samples(part, track, &shown);
            self.add_waits(track, &shown);
            self.add_spans(part, track, part.thread(thread).process, &shown);
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

    fn add_samples(&mut self, part: &Profile, track: usize, samples: &[TrackSample<'_>]) {
        let mut known: HashMap<_, Option<Index>, RandomState> = HashMap::default();
        for sample in samples {
            let stack = known.entry((sample.stack, sample.wait));
            let stack = *stack.or_insert_with(|| self.stack(part, track, sample));
            let periods = sample.nanoseconds.saturating_add(self.period / 2) / self.period;
            self.tracks[track].samples.push(Sample {
                time: sample.time.saturating_sub(self.clock.start),
                stack,
                count: u32::try_from(periods.max(1)).unwrap_or(u32::MAX),
                is_off_cpu: sample.wait.is_some(),
            });
        }
    }

    /// Adds markers of waits. The parts of one are one marker.
    fn add_waits(&mut self, track: usize, samples: &[TrackSample<'_>]) {
        for sample in samples {
            let Some(wait) = sample.wait else { continue };
            let name = match (wait.state, wait.call) {
                (OffCpuState::Queued, _) | (_, "") => wait.state.name(),
                (_, call) => call,
            };
            let texts = [name, wait.state.name(), wait.reason].map(|text| self.string(text));
            let [Some(name), Some(state), Some(reason)] = texts else {
                continue;
            };
            let after_start = |time: u64| time.saturating_sub(self.clock.start);
            let end = after_start(sample.start.saturating_add(sample.nanoseconds));
            let texts = [state, reason];
            let waits = &mut self.tracks[track].waits;
            if let Some(last) = waits.last_mut()
                && sample.since != 0
                && (last.since, last.texts) == (sample.since, texts)
            {
                last.end = end;
                continue;
            }
            if !self.room.take(size_of::<WaitMarker>()) {
                continue;
            }
            waits.push(WaitMarker {
                name,
                texts,
                category: self.categories.off_cpu(wait.state),
                start: after_start(sample.start),
                end,
                since: sample.since,
            });
        }
    }

    /// Interns a stack. Returns the one that represents others if there is no room.
    fn stack(&mut self, part: &Profile, track: usize, sample: &TrackSample<'_>) -> Option<Index> {
        let (mut last, mut waits) = (None, false);
        for &index in sample.stack.iter().rev() {
            let Some(inner) = self.location(part, track, part.location(index), last, &mut waits)
            else {
                return self.other(track);
            };
            last = Some(inner);
        }
        let Some(wait) = sample.wait else { return last };
        let category = self.categories.off_cpu(wait.state);
        let frame = self.named_frame(track, last, &wait.frame(), category);
        frame.or_else(|| self.other(track))
    }

    /// Interns a frame that has nothing but a name. `None` if there is no room.
    fn named_frame(
        &mut self,
        track: usize,
        callers: Option<Index>,
        name: &str,
        category: Index,
    ) -> Option<Index> {
        let function = Function {
            name: self.string(name)?,
            file: None,
            library: None,
        };
        let frame = Frame {
            function: self.function(track, function, 0)?,
            address: None,
            inline_depth: 0,
            category,
            line: 0,
            column: 0,
        };
        self.frame(track, callers, frame)
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
        part.each_function(location, |name, file, [line, column]| {
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
                    column,
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
        let stack = self.named_frame(track, None, OTHER, Categories::USER);
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
    fn add_spans(
        &mut self,
        part: &Profile,
        track: usize,
        process: ProcessId,
        shown: &[TrackSample<'_>],
    ) {
        for run in shown.chunk_by(|one, other| one.context == other.context) {
            let period = self.period.saturating_mul(self.stride as u64);
            let ends = run.iter().map(|sample| match sample.wait {
                Some(_) => sample.time,
                None => sample.time.saturating_add(period),
            });
            let end = ends.max().unwrap_or(0).min(self.clock.end);
            let start = run[0].start;
            let after_start = |time: u64| time.saturating_sub(self.clock.start);
            let (start, end) = (after_start(start), after_start(end));
            let next = run[0].context.map(|id| {
                let (name, texts) = self.span(part, id, process);
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

    /// Returns the name of a span of a process, and its texts.
    fn span(&mut self, part: &Profile, id: ContextId, process: ProcessId) -> (Index, [Index; 3]) {
        let context = part.context(id);
        let text = attributes(context).into_iter();
        let text: Vec<_> = text.map(|(key, value)| format!("{key}={value}")).collect();
        // Markers with the same name share a row of the chart.
        let names = self.by.iter();
        let names = names.filter_map(|name| published_attribute(part, Some(id), process, name));
        let name = match names.collect::<Vec<_>>().join(" ") {
            none if none.is_empty() => "span".to_owned(),
            name => name,
        };
        let texts = [
            &name[..],
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
        let mut gzip = super::compressed(writer);
        json::write(self, subject, &mut gzip)?;
        gzip.into_inner()?.finish().map(drop)
    }
}

/// Returns what stands for samples that follow each other.
fn joined<'p>(samples: &[TrackSample<'p>]) -> TrackSample<'p> {
    let times = samples.iter().map(|sample| sample.nanoseconds);
    TrackSample {
        nanoseconds: times.fold(0, u64::saturating_add),
        ..samples[0]
    }
}
