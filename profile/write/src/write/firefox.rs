//! The Firefox Profiler's JSON: threads as tracks, spans as markers.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use foldhash::fast::RandomState;
use fxprof_processed_profile as fx;
use indexmap::IndexMap;
use otelctx_sample::{ContextId, FrameKind, GilState, ThreadId};

use super::folded::each_frame;
use super::room::{OTHER, Room};
use crate::attributes::{attribute, attributes};
use crate::{Clock, Kind, LocationIndex, Options, Place, Profile};

/// Maximum number of samples in a file: of a longer recording, each represents several.
const MAX_SAMPLES: u64 = 500_000;
/// Maximum memory of tracks, stacks and the text of spans, in bytes (estimated).
const MAX_MEMORY: usize = 32 << 20;
/// Estimated memory of a track without samples and spans, and of a frame, in bytes.
const TRACK: usize = 2048;
const FRAME: usize = 100;

/// A profile to which the parts of a recording are added.
#[derive(Debug)]
pub(super) struct Firefox {
    out: fx::Profile,
    /// The attribute that names spans.
    by: Option<String>,
    categories: Categories,
    /// Processes by ID, start time and program.
    processes: HashMap<(i32, u64, String), fx::ProcessHandle>,
    /// Tracks by process and thread ID.
    tracks: IndexMap<(fx::ProcessHandle, i32), Track>,
    strings: HashMap<String, fx::StringHandle>,
    /// Stacks by thread, callers and innermost frame.
    stacks: HashMap<StackKey, fx::StackHandle, RandomState>,
    room: Room,
    clock: Clock,
    /// Number of a thread's samples that each shown one represents.
    stride: usize,
}

type StackKey = (
    fx::ThreadHandle,
    Option<fx::StackHandle>,
    fx::StringHandle,
    fx::CategoryHandle,
);

#[derive(Debug)]
struct Track {
    thread: fx::ThreadHandle,
    /// The span of the last sample, with the times of its first and last sample.
    span: Option<(SpanMarker, u64, u64)>,
}

struct TrackSample<'p> {
    time: u64,
    stack: &'p [LocationIndex],
    context: Option<ContextId>,
}

impl Firefox {
    /// Creates a profile of a recording with this many samples, in all its parts.
    pub(super) fn new(options: &Options, clock: Clock, samples: u64) -> Self {
        let start = Duration::from_nanos(clock.unix(clock.start));
        let start = fx::ReferenceTimestamp::from_duration_since_unix_epoch(start);
        let mut out = fx::Profile::new("", start, fx::SamplingInterval::from_nanos(1));
        out.set_symbolicated(true);
        Self {
            categories: Categories::new(&mut out),
            out,
            by: options.by.clone(),
            processes: HashMap::new(),
            tracks: IndexMap::new(),
            strings: HashMap::new(),
            stacks: HashMap::default(),
            room: Room::new(MAX_MEMORY),
            clock,
            stride: samples.div_ceil(MAX_SAMPLES).max(1) as usize,
        }
    }

    pub(super) fn add(&mut self, part: &Profile) {
        let interval = fx::SamplingInterval::from_nanos(part.period().get());
        self.out.set_interval(interval);
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
            let row = self.tracks[track].thread;
            let shown = self.add_samples(part, row, &samples);
            self.add_spans(part, track, &shown);
        }
    }

    /// Returns the position of a thread's track, or of the shared track of threads without room.
    fn track(&mut self, part: &Profile, id: ThreadId) -> usize {
        let thread = part.thread(id);
        let facts = part.process(thread.process);
        let identity = (facts.pid, facts.start_ticks, facts.executable.clone());
        let process = self.processes.get(&identity);
        let known = process.and_then(|process| self.tracks.get_index_of(&(*process, thread.tid)));
        if let Some(position) = known {
            let track = self.tracks[position].thread;
            self.out.set_thread_name(track, &thread.name);
            return position;
        }
        let (identity, process, tid, name) = if self.room.take(TRACK) {
            let process = super::name_of(facts);
            (identity, process, thread.tid, &thread.name[..])
        } else {
            ((0, 0, String::new()), OTHER.into(), 0, OTHER)
        };
        let start = fx::Timestamp::from_nanos_since_reference(0);
        let (out, pid) = (&mut self.out, identity.0);
        let new = || out.add_process(&process, pid.unsigned_abs(), start);
        let process = *self.processes.entry(identity).or_insert_with(new);
        let entry = self.tracks.entry((process, tid));
        let position = entry.index();
        entry.or_insert_with(|| {
            let thread = out.add_thread(process, tid.unsigned_abs(), start, tid == pid);
            out.set_thread_name(thread, name);
            out.set_thread_show_markers_in_timeline(thread, true);
            Track { thread, span: None }
        });
        position
    }

    /// Adds samples of a thread, and returns the shown ones.
    fn add_samples<'s, 'p>(
        &mut self,
        part: &Profile,
        thread: fx::ThreadHandle,
        samples: &'s [TrackSample<'p>],
    ) -> Vec<&'s TrackSample<'p>> {
        let mut known: HashMap<&[LocationIndex], Option<fx::StackHandle>> = HashMap::new();
        let mut shown = Vec::new();
        for chunk in samples.chunks(self.stride) {
            let sample = &chunk[0];
            let stack = known.entry(sample.stack);
            let stack = *stack.or_insert_with(|| self.stack(part, thread, sample.stack));
            let cpu = part.period().get().saturating_mul(chunk.len() as u64);
            let cpu = fx::CpuDelta::from_nanos(cpu);
            let weight = i32::try_from(chunk.len()).unwrap_or(i32::MAX);
            let time = self.timestamp(sample.time);
            self.out.add_sample(thread, time, stack, cpu, weight);
            shown.push(sample);
        }
        shown
    }

    /// Interns a stack. Returns the one that represents others if there is no room.
    fn stack(
        &mut self,
        part: &Profile,
        thread: fx::ThreadHandle,
        stack: &[LocationIndex],
    ) -> Option<fx::StackHandle> {
        let (mut last, mut is_whole, mut waits) = (None, true, false);
        for &index in stack.iter().rev() {
            let location = part.location(index);
            let category = self.categories.of(&mut self.out, location.place);
            let is_named = matches!(location.place, Place::Runtime(_));
            each_frame(part, location, |name| {
                waits |= is_named && name == GilState::WAITING_FRAME;
                let waiting = waits.then(|| self.categories.waiting(&mut self.out));
                let frame = self.frame(thread, last, name, waiting.unwrap_or(category));
                is_whole &= frame.is_some();
                last = frame.or(last);
            });
        }
        if is_whole {
            return last;
        }
        let room = std::mem::replace(&mut self.room, Room::new(usize::MAX));
        let other = self.frame(thread, None, OTHER, self.categories.user);
        self.room = room;
        other
    }

    /// Interns a frame with its callers. `None` if there is no room.
    fn frame(
        &mut self,
        thread: fx::ThreadHandle,
        callers: Option<fx::StackHandle>,
        name: &str,
        category: fx::CategoryHandle,
    ) -> Option<fx::StackHandle> {
        let name = self.string(name)?;
        let key = (thread, callers, name, category);
        if let Some(stack) = self.stacks.get(&key) {
            return Some(*stack);
        }
        if !self.room.take(FRAME) {
            return None;
        }
        let info = fx::FrameInfo {
            frame: fx::Frame::Label(name),
            category_pair: category.into(),
            flags: fx::FrameFlags::empty(),
        };
        let frame = self.out.intern_frame(thread, info);
        let stack = self.out.intern_stack(thread, callers, frame);
        self.stacks.insert(key, stack);
        Some(stack)
    }

    /// Interns a string. `None` if there is no room.
    fn string(&mut self, text: &str) -> Option<fx::StringHandle> {
        if let Some(known) = self.strings.get(text) {
            return Some(*known);
        }
        if !self.room.take(2 * text.len()) {
            return None;
        }
        let string = self.out.intern_string(text);
        self.strings.insert(text.to_owned(), string);
        Some(string)
    }

    /// Extends the track's span, or ends it and starts another one. A span becomes a marker from
    /// its first sample to the end of the time of its last one, possibly in the next part.
    fn add_spans(&mut self, part: &Profile, track: usize, shown: &[&TrackSample<'_>]) {
        for run in shown.chunk_by(|one, other| one.context == other.context) {
            let (start, end) = (run[0].time, run[run.len() - 1].time);
            let period = part.period().get().saturating_mul(self.stride as u64);
            let end = end.saturating_add(period);
            let marker = run[0].context.map(|id| self.marker(part, id));
            match (&mut self.tracks[track].span, marker) {
                (Some((last, _, until)), Some(marker)) if *last == marker => *until = end,
                (_, marker) => {
                    self.end_span(track);
                    self.tracks[track].span = marker.map(|marker| (marker, start, end));
                }
            }
        }
    }

    fn marker(&mut self, part: &Profile, id: ContextId) -> SpanMarker {
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
        let mut strings = texts.map(|text| self.string(text));
        if strings.contains(&None) {
            let other = self.out.intern_string(OTHER);
            strings = [Some(other); 4];
        }
        let [name, fields @ ..] = strings.map(|it| it.expect("none is missing"));
        SpanMarker {
            category: self.categories.span,
            name,
            fields,
        }
    }

    fn end_span(&mut self, track: usize) {
        let track = &mut self.tracks[track];
        let Some((marker, start, end)) = track.span.take() else {
            return;
        };
        let thread = track.thread;
        let end = self.timestamp(end.min(self.clock.end));
        let timing = fx::MarkerTiming::Interval(self.timestamp(start), end);
        self.out.add_marker(thread, timing, marker);
    }

    fn timestamp(&self, time: u64) -> fx::Timestamp {
        fx::Timestamp::from_nanos_since_reference(time.saturating_sub(self.clock.start))
    }

    pub(super) fn write(&mut self, subject: &str, writer: &mut dyn Write) -> io::Result<()> {
        for track in 0..self.tracks.len() {
            self.end_span(track);
        }
        self.out.set_product(subject);
        let mut gzip = GzEncoder::new(writer, Compression::fast());
        serde_json::to_writer(&mut gzip, &self.out)?;
        gzip.finish().map(drop)
    }
}

#[derive(Debug)]
struct Categories {
    user: fx::CategoryHandle,
    kernel: fx::CategoryHandle,
    span: fx::CategoryHandle,
    /// Frames that wait for an interpreter's lock, once there are any.
    waiting: Option<fx::CategoryHandle>,
    /// Frames that a runtime has named.
    runtimes: HashMap<FrameKind, fx::CategoryHandle>,
}

impl Categories {
    fn new(out: &mut fx::Profile) -> Self {
        Self {
            user: out.add_category("User", fx::CategoryColor::Yellow),
            kernel: out.add_category("Kernel", fx::CategoryColor::Orange),
            span: out.add_category("Span", fx::CategoryColor::Blue),
            waiting: None,
            runtimes: HashMap::new(),
        }
    }

    fn waiting(&mut self, out: &mut fx::Profile) -> fx::CategoryHandle {
        let new = || out.add_category("Waiting for the GIL", fx::CategoryColor::Red);
        *self.waiting.get_or_insert_with(new)
    }

    fn of(&mut self, out: &mut fx::Profile, place: Place) -> fx::CategoryHandle {
        match place {
            Place::Kernel => self.kernel,
            Place::Mapped(_) | Place::Unknown | Place::Runtime(FrameKind::ABORT_MARKER) => {
                self.user
            }
            Place::Runtime(kind) => {
                let new = || out.add_category(kind.name(), fx::CategoryColor::Green);
                *self.runtimes.entry(kind).or_insert_with(new)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct SpanMarker {
    category: fx::CategoryHandle,
    name: fx::StringHandle,
    /// In the order of the schema's fields.
    fields: [fx::StringHandle; 3],
}

const fn field(key: &'static str, label: &'static str) -> fx::StaticSchemaMarkerField {
    fx::StaticSchemaMarkerField {
        key,
        label,
        format: fx::MarkerFieldFormat::String,
        flags: fx::MarkerFieldFlags::SEARCHABLE,
    }
}

impl fx::StaticSchemaMarker for SpanMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "OpenTelemetrySpan";
    const DESCRIPTION: Option<&'static str> =
        Some("A span that the thread was working on, from the first sample to the last.");
    const LOCATIONS: fx::MarkerLocations = fx::MarkerLocations::MARKER_CHART
        .union(fx::MarkerLocations::MARKER_TABLE)
        .union(fx::MarkerLocations::TIMELINE_OVERVIEW);
    const CHART_LABEL: Option<&'static str> = Some("{marker.name}");
    const TOOLTIP_LABEL: Option<&'static str> = Some("{marker.name}");
    const TABLE_LABEL: Option<&'static str> =
        Some("{marker.data.attributes} trace {marker.data.trace} span {marker.data.span}");
    const FIELDS: &'static [fx::StaticSchemaMarkerField] = &[
        field("trace", "Trace id"),
        field("span", "Span id"),
        field("attributes", "Attributes"),
    ];

    fn name(&self, _: &mut fx::Profile) -> fx::StringHandle {
        self.name
    }

    fn category(&self, _: &mut fx::Profile) -> fx::CategoryHandle {
        self.category
    }

    fn string_field_value(&self, index: u32) -> fx::StringHandle {
        self.fields[index as usize]
    }

    fn number_field_value(&self, _: u32) -> f64 {
        unreachable!("the schema has no numbers")
    }
}
