//! The Firefox Profiler's JSON: threads as tracks, spans as markers.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use fxprof_processed_profile as fx;
use otelctx_sample::{ContextId, FrameKind, ThreadId};

use super::folded::each_frame;
use crate::attributes::{attribute, attributes};
use crate::{Kind, LocationIndex, Options, Place, Profile};

pub(super) fn write(
    profile: &Profile,
    options: &Options,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let mut gzip = GzEncoder::new(writer, Compression::fast());
    serde_json::to_writer(&mut gzip, &convert(profile, options))?;
    gzip.finish().map(drop)
}

fn convert(profile: &Profile, options: &Options) -> fx::Profile {
    let clock = profile.clock();
    let reference = fx::ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(
        clock.unix(clock.start),
    ));
    let interval = fx::SamplingInterval::from_nanos(profile.period().get());
    let mut out = fx::Profile::new(&super::subject(profile), reference, interval);
    out.set_symbolicated(true);
    let categories = Categories::new(&mut out, profile);
    let mut threads: Vec<(ThreadId, Vec<TrackSample<'_>>)> = Vec::new();
    for group in profile.groups().filter(|group| group.kind == Kind::OnCpu) {
        if threads
            .last()
            .is_none_or(|(thread, _)| *thread != group.thread)
        {
            threads.push((group.thread, Vec::new()));
        }
        let (_, samples) = threads.last_mut().expect("one was just added");
        samples.extend(group.samples.iter().map(|sample| TrackSample {
            time: sample.time,
            stack: group.stack,
            context: group.context,
        }));
    }
    let mut processes = HashMap::new();
    for (id, mut samples) in threads {
        let thread = profile.thread(id);
        let facts = profile.process(thread.process);
        let start = timestamp(profile, clock.start);
        let process = *processes
            .entry(thread.process)
            .or_insert_with(|| out.add_process(&facts.comm, facts.pid.unsigned_abs(), start));
        let is_main = thread.tid == facts.pid;
        let track = out.add_thread(process, thread.tid.unsigned_abs(), start, is_main);
        out.set_thread_name(track, &thread.name);
        out.set_thread_show_markers_in_timeline(track, true);
        samples.sort_unstable_by_key(|sample| sample.time);
        add_samples(&mut out, profile, track, &samples, &categories);
        add_spans(&mut out, profile, options, track, &samples, &categories);
    }
    out
}

/// A sample in a track.
struct TrackSample<'p> {
    time: u64,
    stack: &'p [LocationIndex],
    context: Option<ContextId>,
}

struct Categories {
    user: fx::CategoryHandle,
    kernel: fx::CategoryHandle,
    span: fx::CategoryHandle,
    /// For frames that a runtime has named, by what executes them.
    runtimes: HashMap<FrameKind, fx::CategoryHandle>,
}

impl Categories {
    fn new(out: &mut fx::Profile, profile: &Profile) -> Self {
        let user = out.add_category("User", fx::CategoryColor::Yellow);
        let kernel = out.add_category("Kernel", fx::CategoryColor::Orange);
        let span = out.add_category("Span", fx::CategoryColor::Blue);
        let mut runtimes = HashMap::new();
        for location in profile.locations() {
            if let Place::Runtime(kind) = location.place {
                runtimes
                    .entry(kind)
                    .or_insert_with(|| out.add_category(kind.name(), fx::CategoryColor::Green));
            }
        }
        Self {
            user,
            kernel,
            span,
            runtimes,
        }
    }

    fn of(&self, place: Place) -> fx::CategoryHandle {
        match place {
            Place::Kernel => self.kernel,
            Place::Mapped(_) | Place::Unknown => self.user,
            Place::Runtime(kind) => self.runtimes[&kind],
        }
    }
}

fn timestamp(profile: &Profile, time: u64) -> fx::Timestamp {
    fx::Timestamp::from_nanos_since_reference(time.saturating_sub(profile.clock().start))
}

fn add_samples(
    out: &mut fx::Profile,
    profile: &Profile,
    track: fx::ThreadHandle,
    samples: &[TrackSample<'_>],
    categories: &Categories,
) {
    let mut known: HashMap<&[LocationIndex], Option<fx::StackHandle>> = HashMap::new();
    for sample in samples {
        let handle = *known.entry(sample.stack).or_insert_with(|| {
            let mut frames = Vec::new();
            for &index in sample.stack.iter().rev() {
                let location = profile.location(index);
                let category = categories.of(location.place);
                each_frame(profile, location, |name| {
                    frames.push(fx::FrameInfo {
                        frame: fx::Frame::Label(out.intern_string(name)),
                        category_pair: category.into(),
                        flags: fx::FrameFlags::empty(),
                    });
                });
            }
            out.intern_stack_frames(track, frames.into_iter())
        });
        let cpu = fx::CpuDelta::from_nanos(profile.period().get());
        out.add_sample(track, timestamp(profile, sample.time), handle, cpu, 1);
    }
}

/// Adds a marker for each run of samples of one span: from the first sample to one period after the
/// last.
fn add_spans(
    out: &mut fx::Profile,
    profile: &Profile,
    options: &Options,
    track: fx::ThreadHandle,
    samples: &[TrackSample<'_>],
    categories: &Categories,
) {
    for run in samples.chunk_by(|one, other| one.context == other.context) {
        let (Some(id), Some(last)) = (run[0].context, run.last()) else {
            continue;
        };
        let end = last.time.saturating_add(profile.period().get());
        let timing = fx::MarkerTiming::Interval(
            timestamp(profile, run[0].time),
            timestamp(profile, end.min(profile.clock().end)),
        );
        let marker = SpanMarker::new(out, profile, options, id, categories.span);
        out.add_marker(track, timing, marker);
    }
}

/// A span that a thread worked on.
struct SpanMarker {
    category: fx::CategoryHandle,
    name: fx::StringHandle,
    /// In the order of the schema's fields.
    fields: [fx::StringHandle; 3],
}

impl SpanMarker {
    fn new(
        out: &mut fx::Profile,
        profile: &Profile,
        options: &Options,
        id: ContextId,
        category: fx::CategoryHandle,
    ) -> Self {
        let context = profile.context(id);
        let text: Vec<_> = attributes(context)
            .into_iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let text = text.join(" ");
        // Markers of one name share a row of the chart.
        let by = options.by.as_deref();
        let name = by.and_then(|name| attribute(context, name));
        Self {
            category,
            name: out.intern_string(name.unwrap_or("span")),
            fields: [
                out.intern_string(&context.trace_id.to_string()),
                out.intern_string(&context.span_id.to_string()),
                out.intern_string(&text),
            ],
        }
    }
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
        Some("A span that the thread worked on, from the first sample to the last.");
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
