//! Spans of traces, from the file of a Collector or an SDK. It may be hostile: a worker process
//! decodes it.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::wire::{Defect, Field, fields};
use crate::Error;
use crate::digits;
use crate::messages::Messages;
use crate::recorded_file::{LIMITS, in_worker};
use crate::report::{Cost, FunctionCost, KindCosts, Report, TraceCost};
use otelctx_sample::format::hexadecimal;

/// Maximum size of a file, and of what is compressed in it, in bytes.
const MAX_FILE: u64 = 1 << 30;
/// Maximum number of spans that are kept.
const MAX_SPANS: usize = 1_000_000;
/// Maximum length of a name, in characters.
const MAX_NAME: usize = 256;

/// A span of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Span {
    /// Its trace's ID.
    pub trace: [u8; 16],
    /// Its ID.
    pub id: [u8; 8],
    /// The ID of the span that it is part of.
    pub parent: Option<[u8; 8]>,
    /// Its name.
    pub name: String,
    /// The name of its service; empty if there is none.
    pub service: String,
    /// Its start, in nanoseconds after 1970-01-01 UTC.
    pub start: u64,
    /// The time that it took, in nanoseconds.
    pub duration: u64,
}

/// Spans of traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Spans {
    /// Each once, in the order of the file; at most 1,000,000.
    pub all: Vec<Span>,
    /// Number of spans that were skipped because an ID has another length or is zero.
    pub invalid: u64,
    /// Number of spans that were skipped because their ID is that of an earlier one.
    pub duplicates: u64,
    /// Number of spans that were skipped because there are too many.
    pub omitted: u64,
    /// True if the file ends within a line or message, as one that is being written does: what is
    /// there of it was skipped.
    pub is_truncated: bool,
}

impl Spans {
    /// Reads spans in OTLP, as a Collector's file exporter writes them: lines of JSON, or protobuf
    /// messages with their sizes; or one message of either. It may be compressed with gzip.
    ///
    /// # Errors
    /// Returns [`Error::Read`], [`Error::TooLarge`] for more than 1 GiB, and [`Error::Spans`] for
    /// a file that was cut off, or has no spans.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let unreadable = |source| Error::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        // A pipe cannot be read by another process first.
        let mut content = Vec::new();
        let read = file.take(MAX_FILE + 1).read_to_end(&mut content);
        read.map_err(unreadable)?;
        if content.len() as u64 > MAX_FILE {
            return Err(Error::TooLarge {
                path: path.to_owned(),
                reason: format!("it has more than {} MiB", MAX_FILE >> 20),
            });
        }
        let spans = in_worker(path, LIMITS, |pipe| {
            Ok(serde_json::to_writer(pipe, &Self::of(&content))?)
        });
        spans.map_err(|error| match error {
            Error::Malformed { path, reason, .. } => Error::Spans { path, reason },
            error => error,
        })
    }

    /// Decodes the content of a file, or returns a sentence that names its defect. Not in a worker
    /// process: for tests.
    #[doc(hidden)]
    pub fn of(content: &[u8]) -> Result<Self, String> {
        let content = plain(content)?;
        let mut reading = Reading::default();
        match content.first() {
            None => return Err("it is empty".to_owned()),
            Some(b'{') => reading.add_json(&content)?,
            Some(_) => {
                for message in Messages::new(&content) {
                    let message = match message {
                        Err(_) if !reading.spans.all.is_empty() => {
                            reading.spans.is_truncated = true;
                            break;
                        }
                        message => message?,
                    };
                    let read = reading.add_message(message);
                    read.map_err(|_| "it was cut off, or has no spans".to_owned())?;
                }
            }
        }
        let spans = reading.spans;
        match spans.all.len() {
            0 if spans.invalid > 0 => Err("no span in it has valid IDs".to_owned()),
            0 => Err("it has no spans".to_owned()),
            _ => Ok(spans),
        }
    }
}

/// Returns what is compressed.
fn plain(content: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    // The Collector compresses each message, behind its size.
    let of_message = content.get(4..).unwrap_or_default();
    if content.starts_with(&ZSTD) || content.starts_with(&[0]) && of_message.starts_with(&ZSTD) {
        return Err(
            "it is compressed; configure the Collector's file exporter without `compression`"
                .to_owned(),
        );
    }
    if !content.starts_with(&GZIP) {
        return Ok(content.into());
    }
    let mut plain = Vec::new();
    let read = MultiGzDecoder::new(content).take(MAX_FILE + 1);
    let read = { read }.read_to_end(&mut plain);
    read.map_err(|_: io::Error| "it was cut off".to_owned())?;
    if plain.len() as u64 > MAX_FILE {
        return Err(format!("it has more than {} MiB", MAX_FILE >> 20));
    }
    Ok(plain.into())
}

/// A span as a file has it.
#[derive(Default)]
struct Raw<'f> {
    trace: Cow<'f, [u8]>,
    id: Cow<'f, [u8]>,
    parent: Cow<'f, [u8]>,
    name: Cow<'f, str>,
    start: u64,
    end: u64,
}

#[derive(Default)]
struct Reading {
    spans: Spans,
    known: HashSet<([u8; 16], [u8; 8]), RandomState>,
}

impl Reading {
    fn add(&mut self, service: &str, raw: &Raw<'_>) {
        let trace = raw.trace[..].try_into().ok();
        let id = raw.id[..].try_into().ok();
        let (Some(trace), Some(id)) = (
            trace.filter(|it| *it != [0; 16]),
            id.filter(|it| *it != [0; 8]),
        ) else {
            self.spans.invalid += 1;
            return;
        };
        if self.known.contains(&(trace, id)) {
            self.spans.duplicates += 1;
            return;
        }
        if self.spans.all.len() >= MAX_SPANS {
            self.spans.omitted += 1;
            return;
        }
        self.known.insert((trace, id));
        let parent: Option<[u8; 8]> = raw.parent[..].try_into().ok();
        self.spans.all.push(Span {
            trace,
            id,
            parent: parent.filter(|it| *it != [0; 8]),
            name: raw.name.chars().take(MAX_NAME).collect(),
            service: service.chars().take(MAX_NAME).collect(),
            start: raw.start,
            duration: raw.end.saturating_sub(raw.start),
        });
    }

    /// Adds one JSON object after the other.
    fn add_json(&mut self, content: &[u8]) -> Result<(), String> {
        let objects = serde_json::Deserializer::from_slice(content).into_iter::<Json<'_>>();
        for object in objects {
            let object = match object {
                Ok(object) => object,
                Err(error) if error.is_eof() && !self.spans.all.is_empty() => {
                    self.spans.is_truncated = true;
                    break;
                }
                Err(error) if error.is_eof() => return Err("it was cut off".to_owned()),
                Err(error) => return Err(format!("it is not OTLP: {error}")),
            };
            for resource in object.resource_spans {
                let mut attributes = resource.resource.attributes.iter();
                let service = attributes.find(|it| it.key == SERVICE_NAME);
                let service = service.and_then(|it| it.value.as_ref()?.string_value.clone());
                let scopes = resource.scope_spans.iter();
                for span in scopes.flat_map(|scope| &scope.spans) {
                    // Digits of another number are an ID of another length.
                    let bytes = |text: &str| Cow::Owned(digits::bytes(text).unwrap_or_default());
                    let raw = Raw {
                        trace: bytes(&span.trace_id),
                        id: bytes(&span.span_id),
                        parent: bytes(span.parent_span_id.as_deref().unwrap_or_default()),
                        name: Cow::Borrowed(&span.name),
                        start: span.start_time_unix_nano.number(),
                        end: span.end_time_unix_nano.number(),
                    };
                    self.add(service.as_deref().unwrap_or_default(), &raw);
                }
            }
        }
        Ok(())
    }

    /// Adds a protobuf message: a `TracesData`, or an `ExportTraceServiceRequest`, which are encoded
    /// alike.
    fn add_message(&mut self, message: &[u8]) -> Result<(), String> {
        for resource_spans in parts(message, 1) {
            let resource_spans = resource_spans?;
            let mut service = None;
            for resource in parts(resource_spans, 1) {
                for attribute in parts(resource?, 1) {
                    service = service.or(service_name(attribute?)?);
                }
            }
            for scope in parts(resource_spans, 2) {
                for span in parts(scope?, 2) {
                    let raw = raw(span?)?;
                    self.add(service.unwrap_or_default(), &raw);
                }
            }
        }
        Ok(())
    }
}

/// Name of the resource attribute with the service.
const SERVICE_NAME: &str = crate::attributes::SERVICE_NAME;

/// Returns the messages in a field.
fn parts(message: &[u8], number: u32) -> impl Iterator<Item = Result<&[u8], Defect>> {
    fields(message).filter_map(move |field| match field {
        Ok((found, field)) => (found == number).then(|| field.bytes()),
        Err(reason) => Some(Err(reason)),
    })
}

/// Returns the value of a `KeyValue` whose key is [`SERVICE_NAME`].
fn service_name(attribute: &[u8]) -> Result<Option<&str>, String> {
    let is_name = |key: Result<&[u8], Defect>| key.is_ok_and(|key| key == SERVICE_NAME.as_bytes());
    if !parts(attribute, 1).any(is_name) {
        return Ok(None);
    }
    for value in parts(attribute, 2) {
        if let Some(text) = parts(value?, 1).next() {
            return Ok(str::from_utf8(text?).ok());
        }
    }
    Ok(None)
}

fn raw(span: &[u8]) -> Result<Raw<'_>, String> {
    let mut raw = Raw::default();
    for field in fields(span) {
        match field? {
            (1, Field::Bytes(id)) => raw.trace = id.into(),
            (2, Field::Bytes(id)) => raw.id = id.into(),
            (4, Field::Bytes(id)) => raw.parent = id.into(),
            (5, Field::Bytes(name)) => raw.name = String::from_utf8_lossy(name),
            (7, Field::Number(time)) => raw.start = time,
            (8, Field::Number(time)) => raw.end = time,
            _ => {}
        }
    }
    Ok(raw)
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Json<'f> {
    #[serde(borrow)]
    resource_spans: Vec<JsonResourceSpans<'f>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct JsonResourceSpans<'f> {
    resource: JsonResource,
    #[serde(borrow)]
    scope_spans: Vec<JsonScopeSpans<'f>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonResource {
    attributes: Vec<JsonAttribute>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonAttribute {
    key: String,
    value: Option<JsonValue>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct JsonValue {
    string_value: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonScopeSpans<'f> {
    #[serde(borrow)]
    spans: Vec<JsonSpan<'f>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct JsonSpan<'f> {
    #[serde(borrow)]
    trace_id: Cow<'f, str>,
    #[serde(borrow)]
    span_id: Cow<'f, str>,
    parent_span_id: Option<String>,
    #[serde(borrow)]
    name: Cow<'f, str>,
    start_time_unix_nano: JsonTime,
    end_time_unix_nano: JsonTime,
}

/// 64-bit numbers are strings in protobuf's JSON; some writers have numbers.
#[derive(Deserialize, Default)]
#[serde(untagged)]
enum JsonTime {
    Text(String),
    Number(u64),
    #[default]
    None,
}

impl JsonTime {
    fn number(&self) -> u64 {
        match self {
            Self::Text(text) => text.parse().unwrap_or(0),
            Self::Number(number) => *number,
            Self::None => 0,
        }
    }
}

/// The spans of traces of a report, with the CPU time of its samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanReport {
    /// Traces, those whose longest span took the longest first.
    pub traces: Vec<SpannedTrace>,
    /// Their spans, the slowest first.
    pub spans: Vec<SpanTime>,
    /// Number of traces without a sample, and of the spans of these.
    pub unseen: (usize, usize),
}

/// A trace with its longest span.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpannedTrace {
    /// Its longest span.
    pub longest: Span,
    /// Number of its spans.
    pub spans: usize,
    /// CPU time of all its samples.
    pub cost: Cost,
    /// The time of all its samples by kind.
    pub kinds: KindCosts,
    /// Number of its threads.
    pub threads: usize,
}

/// A span with its CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanTime {
    /// The span.
    pub span: Span,
    /// CPU time of samples in it, and in the spans below it.
    pub cost: FunctionCost,
    /// The time of all these samples by kind.
    pub kinds: KindCosts,
}

/// Returns the part of a duration in which no thread worked on it, in nanoseconds: exact if one thread
/// at a time did, otherwise the least.
#[must_use]
pub fn awaited(duration: u64, kinds: &KindCosts) -> u64 {
    duration.saturating_sub(kinds.sum().nanoseconds)
}

impl Spans {
    /// Returns the spans of the traces of a report, which was made with [`ReportOptions::with_spans`].
    ///
    /// [`ReportOptions::with_spans`]: crate::report::ReportOptions::with_spans
    #[must_use]
    pub fn within(&self, report: &Report) -> SpanReport {
        let traces = report.by_trace.iter();
        let seen: HashMap<&str, &TraceCost> = traces.map(|it| (&it.trace.id[..], it)).collect();
        let mut ids: HashMap<[u8; 16], Option<&TraceCost>> = HashMap::new();
        let mut unseen = 0;
        let mut times = Vec::new();
        for span in &self.all {
            let find = || seen.get(&hexadecimal(&span.trace)[..]).copied();
            match ids.entry(span.trace).or_insert_with(find) {
                Some(_) => times.push(SpanTime {
                    span: span.clone(),
                    cost: FunctionCost::default(),
                    kinds: KindCosts::default(),
                }),
                None => unseen += 1,
            }
        }
        add_costs(&mut times, report);
        let mut traces: HashMap<[u8; 16], SpannedTrace> = HashMap::new();
        for time in &times {
            let span = &time.span;
            let Some(Some(trace)) = ids.get(&span.trace) else {
                continue;
            };
            let known = traces.entry(span.trace).or_insert_with(|| SpannedTrace {
                longest: span.clone(),
                spans: 0,
                cost: trace.cost,
                kinds: trace.kinds,
                threads: trace.threads,
            });
            known.spans += 1;
            if span.duration > known.longest.duration {
                known.longest = span.clone();
            }
        }
        let mut traces: Vec<_> = traces.into_values().collect();
        let order = |span: &Span| (Reverse(span.duration), span.start, span.trace, span.id);
        traces.sort_by_key(|trace| order(&trace.longest));
        times.sort_by_key(|time| order(&time.span));
        SpanReport {
            traces,
            spans: times,
            unseen: (ids.values().filter(|it| it.is_none()).count(), unseen),
        }
    }
}

/// Adds the cost of each span to it, and to the spans above it; not to those of a circle of parents.
fn add_costs(times: &mut [SpanTime], report: &Report) {
    let spans = times.iter().enumerate();
    let at: HashMap<([u8; 16], [u8; 8]), usize> = spans
        .map(|(index, time)| ((time.span.trace, time.span.id), index))
        .collect();
    for (trace, span, cost, kinds) in &report.by_span {
        if let Some(index) = at.get(&(*trace, *span)) {
            times[*index].cost.own.add(*cost);
            times[*index].cost.total.add(*cost);
            times[*index].kinds.add_all(kinds);
        }
    }
    let parent = |time: &SpanTime| {
        let parent = time.span.parent?;
        at.get(&(time.span.trace, parent)).copied()
    };
    let parents: Vec<Option<usize>> = times.iter().map(parent).collect();
    let mut below = vec![0_usize; times.len()];
    for parent in parents.iter().flatten() {
        below[*parent] += 1;
    }
    // From the innermost spans out. Where parents lead in a circle, it does not come to them.
    let mut complete: Vec<usize> = (0..times.len()).filter(|it| below[*it] == 0).collect();
    while let Some(index) = complete.pop() {
        let Some(parent) = parents[index] else {
            continue;
        };
        let (total, kinds) = (times[index].cost.total, times[index].kinds);
        times[parent].cost.total.add(total);
        times[parent].kinds.add_all(&kinds);
        below[parent] -= 1;
        if below[parent] == 0 {
            complete.push(parent);
        }
    }
}
