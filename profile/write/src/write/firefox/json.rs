//! The "processed profile" of the Firefox Profiler, version 56: its docs-developer/
//! processed-profile-format.md and CHANGELOG-formats.md. Tables are columns of one length.

use std::io::{self, Write};

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use serde_json::{Value, json};

use super::{Firefox, Index, Library, Track};

/// The version of the format: the strings of all threads are shared.
const VERSION: u32 = 56;
/// The version of the profiles of Firefox itself that this one is like.
const GECKO_VERSION: u32 = 24;
/// `resourceTypes.library`.
const LIBRARY: u32 = 1;
/// `MarkerPhase.Interval`.
const INTERVAL: u32 = 1;
/// The names of types of markers.
const SPAN: &str = "OpenTelemetrySpan";
const WAIT: &str = "Wait";

#[derive(Serialize)]
struct File<'f> {
    meta: Value,
    libs: Vec<Value>,
    pages: [u8; 0],
    counters: [u8; 0],
    #[serde(rename = "profilerOverhead")]
    overhead: [u8; 0],
    shared: Shared<'f>,
    threads: Threads<'f>,
}

#[derive(Serialize)]
struct Shared<'f> {
    #[serde(rename = "stringArray")]
    strings: Texts<'f>,
}

/// The names of libraries follow the other strings.
struct Texts<'f>(&'f Firefox);

impl Serialize for Texts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = self.0.libraries.iter().map(Library::name);
        serializer.collect_seq(self.0.strings.iter().map(String::as_str).chain(names))
    }
}

/// One thread's columns are in memory at a time.
struct Threads<'f>(&'f Firefox);

impl Serialize for Threads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tracks = &self.0.tracks;
        let mut list = serializer.serialize_seq(Some(tracks.len()))?;
        for ((process, tid), track) in tracks {
            list.serialize_element(&Thread {
                tables: thread(self.0, *process, *tid, track),
                samples: Samples::new(track, self.0.period),
            })?;
        }
        list.end()
    }
}

pub(super) fn write(profile: &Firefox, subject: &str, writer: &mut dyn Write) -> io::Result<()> {
    let file = File {
        meta: meta(profile, subject),
        libs: profile.libraries.iter().map(library).collect(),
        pages: [],
        counters: [],
        overhead: [],
        shared: Shared {
            strings: Texts(profile),
        },
        threads: Threads(profile),
    };
    Ok(serde_json::to_writer(writer, &file)?)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

fn meta(profile: &Firefox, subject: &str) -> Value {
    let clock = profile.clock;
    let categories =
        profile.categories.names.iter().map(
            |(name, colour)| json!({ "name": name, "color": colour, "subcategories": ["Other"] }),
        );
    let field = |key: &str, label: &str| json!({ "key": key, "label": label, "format": "unique-string", "searchable": true });
    let span = json!({
        "name": SPAN,
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "chartLabel": "{marker.name}",
        "tooltipLabel": "{marker.name}",
        "tableLabel":
            "{marker.data.attributes} trace {marker.data.trace} span {marker.data.span}",
        "description":
            "A span that the thread was working on, from the first sample to the last.",
        "fields": [
            field("trace", "Trace id"),
            field("span", "Span id"),
            field("attributes", "Attributes"),
        ],
    });
    let wait = json!({
        "name": WAIT,
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "chartLabel": "{marker.data.reason}",
        "tooltipLabel": "{marker.name}",
        "tableLabel": "{marker.data.state} {marker.data.reason}",
        "description": "A time in which the thread did not run.",
        "fields": [field("state", "State"), field("reason", "Reason")],
    });
    let has_waits = profile.tracks.values().any(|track| !track.waits.is_empty());
    let schemas: Vec<Value> = match has_waits {
        true => vec![span, wait],
        false => vec![span],
    };
    let product = match profile.stride {
        1 => subject.to_owned(),
        stride => format!("{subject}: one sample stands for {stride}"),
    };
    json!({
        "version": GECKO_VERSION,
        "preprocessedProfileVersion": VERSION,
        "product": product,
        "importedFrom": "otelctx",
        "interval": milliseconds(profile.period),
        "startTime": milliseconds(clock.unix(clock.start)),
        "processType": 0,
        "stackwalk": 1,
        "debug": false,
        "symbolicated": true,
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "extensions": { "length": 0, "id": [], "name": [], "baseURL": [] },
        "pausedRanges": [],
        "categories": categories.collect::<Vec<_>>(),
        "markerSchema": schemas,
    })
}

impl Library {
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

fn library(library: &Library) -> Value {
    let (name, path) = (library.name(), &library.path);
    let build_id = otelctx_sample::format::hexadecimal(&library.build_id);
    json!({
        "name": name,
        "path": path,
        "debugName": name,
        "debugPath": path,
        "breakpadId": debug_id(&library.build_id),
        "codeId": (!build_id.is_empty()).then_some(build_id),
        "arch": null,
    })
}

/// Returns the debug ID of a build ID as Breakpad has it: its first 16 bytes as a GUID, whose first
/// three fields are little-endian, and an age of 0.
fn debug_id(build_id: &[u8]) -> String {
    let mut bytes = [0; 16];
    for (byte, given) in bytes.iter_mut().zip(build_id) {
        *byte = *given;
    }
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    digits + "0"
}

fn thread(profile: &Firefox, process: Index, tid: i32, track: &Track) -> Value {
    let process = &profile.processes[process as usize];
    let (resources, resource_of) = resources(track);
    let first_name = profile.strings.len();
    let names: Vec<_> = resources
        .iter()
        .map(|it| first_name + *it as usize)
        .collect();
    let none = |length: usize| vec![Value::Null; length];
    let zeros = |length: usize| vec![0; length];
    let (frames, functions) = (&track.frames, &track.functions);
    let line = |line: u32| (line > 0).then_some(line);
    json!({
        "name": track.name,
        "isMainThread": track.is_main,
        "processType": "default",
        "processName": process.name,
        "processStartupTime": 0,
        "processShutdownTime": null,
        "registerTime": 0,
        "unregisterTime": null,
        "pausedRanges": [],
        "showMarkersInTimeline": true,
        "pid": process.id,
        "tid": tid.to_string(),
        "frameTable": {
            "length": frames.len(),
            "address": frames.iter().map(address).collect::<Vec<_>>(),
            "inlineDepth": frames.iter().map(|it| it.inline_depth).collect::<Vec<_>>(),
            "category": frames.iter().map(|it| it.category).collect::<Vec<_>>(),
            "subcategory": zeros(frames.len()),
            "func": frames.iter().map(|it| it.function).collect::<Vec<_>>(),
            "nativeSymbol": none(frames.len()),
            "innerWindowID": zeros(frames.len()),
            "line": frames.iter().map(|it| line(it.line)).collect::<Vec<_>>(),
            "column": frames.iter().map(|it| line(it.column)).collect::<Vec<_>>(),
        },
        "funcTable": {
            "length": functions.len(),
            "name": functions.keys().map(|it| it.name).collect::<Vec<_>>(),
            "isJS": vec![false; functions.len()],
            "relevantForJS": vec![false; functions.len()],
            "resource": functions.keys().map(|it| resource_of(it.library)).collect::<Vec<_>>(),
            "fileName": functions.keys().map(|it| it.file).collect::<Vec<_>>(),
            "lineNumber": functions.values().map(|it| line(*it)).collect::<Vec<_>>(),
            "columnNumber": none(functions.len()),
        },
        "resourceTable": {
            "length": resources.len(),
            "lib": &resources,
            "name": names,
            "host": none(resources.len()),
            "type": vec![LIBRARY; resources.len()],
        },
        "nativeSymbols":
            { "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [] },
        "stackTable": {
            "length": track.stacks.len(),
            "prefix": track.stacks.iter().map(|it| it.0).collect::<Vec<_>>(),
            "frame": track.stacks.iter().map(|it| it.1).collect::<Vec<_>>(),
        },
        "markers": markers(track),
    })
}

fn address(frame: &super::Frame) -> i64 {
    let address = frame.address.and_then(|it| i64::try_from(it).ok());
    address.unwrap_or(-1)
}

/// Returns the libraries of a thread's functions, and what finds their positions: −1 for none.
fn resources(track: &Track) -> (Vec<Index>, impl Fn(Option<Index>) -> i64 + use<>) {
    let mut libraries: Vec<Index> = track.functions.keys().filter_map(|it| it.library).collect();
    libraries.sort_unstable();
    libraries.dedup();
    let sorted = libraries.clone();
    let find = move |library: Option<Index>| {
        let found = library.and_then(|library| sorted.binary_search(&library).ok());
        found.map_or(-1, |index| index as i64)
    };
    (libraries, find)
}

/// A thread, with the columns that are longest in a type of their own: values would take more memory.
#[derive(Serialize)]
struct Thread {
    #[serde(flatten)]
    tables: Value,
    samples: Samples,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Samples {
    length: usize,
    weight_type: &'static str,
    stack: Vec<Option<Index>>,
    time_deltas: Vec<f64>,
    weight: Vec<u32>,
    #[serde(rename = "threadCPUDelta")]
    thread_cpu_delta: Vec<u64>,
}

impl Samples {
    fn new(track: &Track, period: u64) -> Self {
        let samples = &track.samples;
        let mut last = 0;
        let deltas = samples.iter().map(|sample| {
            let delta = sample.time as i64 - last as i64;
            last = sample.time;
            delta as f64 / 1e6
        });
        let microseconds = |sample: &super::Sample| match sample.is_off_cpu {
            true => 0,
            false => period.saturating_mul(sample.count.into()) / 1000,
        };
        Self {
            length: samples.len(),
            weight_type: "samples",
            stack: samples.iter().map(|it| it.stack).collect(),
            time_deltas: deltas.collect(),
            weight: samples.iter().map(|it| it.count).collect(),
            thread_cpu_delta: samples.iter().map(microseconds).collect(),
        }
    }
}

fn markers(track: &Track) -> Value {
    let spans = track.spans.iter().chain(&track.span).map(|span| {
        let [trace, id, attributes] = span.texts;
        let data = json!({ "type": SPAN, "trace": trace, "span": id, "attributes": attributes });
        (
            data,
            span.name,
            super::Categories::SPAN,
            span.start,
            span.end,
        )
    });
    let waits = track.waits.iter().map(|wait| {
        let [state, reason] = wait.texts;
        let data = json!({ "type": WAIT, "state": state, "reason": reason });
        (data, wait.name, wait.category, wait.start, wait.end)
    });
    let all: Vec<_> = spans.chain(waits).collect();
    json!({
        "length": all.len(),
        "category": all.iter().map(|it| it.2).collect::<Vec<_>>(),
        "data": all.iter().map(|it| &it.0).collect::<Vec<_>>(),
        "name": all.iter().map(|it| it.1).collect::<Vec<_>>(),
        "phase": vec![INTERVAL; all.len()],
        "startTime": all.iter().map(|it| milliseconds(it.3)).collect::<Vec<_>>(),
        "endTime": all.iter().map(|it| milliseconds(it.4)).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `dump_syms` prints it: `MODULE Linux x86_64 …`.
    #[test]
    fn a_debug_id_is_the_start_of_a_build_id() {
        let id = debug_id(&[
            0xde, 0xad, 0xbe, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x11, 0x22,
            0x33, 0x44, 0x55, 0x66,
        ]);
        assert_eq!(id, "EFBEADDE2301674589ABCDEF112233440");
        assert_eq!(debug_id(&[0xde, 0xad]), "0000ADDE0000000000000000000000000");
        assert_eq!(debug_id(&[]), "0".repeat(33));
    }
}
