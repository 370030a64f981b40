//! pprof's `profile.proto` (github.com/google/pprof, proto/profile.proto); only the fields in use.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use foldhash::fast::RandomState;
use otelctx_sample::format::hexadecimal;
use prost::Message;

use crate::attributes::{attributes, beside};
use crate::{Group, Kind, LocationIndex, Place, Profile};

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_ids: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    labels: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    lines: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The fields of `Profile` itself, which is written piece by piece.
mod field {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const MAPPING: u32 = 3;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const DURATION_NANOS: u32 = 10;
    pub(super) const PERIOD_TYPE: u32 = 11;
    pub(super) const PERIOD: u32 = 12;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

#[derive(Default)]
struct Strings {
    table: Vec<String>,
    known: HashMap<String, i64, RandomState>,
}

impl Strings {
    fn id(&mut self, text: &str) -> i64 {
        if let Some(id) = self.known.get(text) {
            return *id;
        }
        let id = self.table.len() as i64;
        self.table.push(text.to_owned());
        self.known.insert(text.to_owned(), id);
        id
    }
}

pub(super) fn write(profile: &Profile, writer: &mut dyn Write) -> io::Result<()> {
    let mut out = Out {
        gzip: GzEncoder::new(writer, Compression::fast()),
        buffer: Vec::new(),
    };
    let mut strings = Strings::default();
    // String 0 is empty by definition.
    strings.id("");
    let (samples, count) = (strings.id("samples"), strings.id("count"));
    let (cpu, off_cpu) = (strings.id("cpu"), strings.id("off_cpu"));
    let nanoseconds = strings.id("nanoseconds");
    let value_type = |kind, unit| ValueType { kind, unit };
    let has_off_cpu = profile.groups().any(|group| group.kind == Kind::OffCpu);
    out.message(field::SAMPLE_TYPE, &value_type(samples, count))?;
    out.message(field::SAMPLE_TYPE, &value_type(cpu, nanoseconds))?;
    if has_off_cpu {
        out.message(field::SAMPLE_TYPE, &value_type(off_cpu, nanoseconds))?;
    }
    for group in profile.groups() {
        let time = i64::try_from(group.nanoseconds(profile.period())).unwrap_or(i64::MAX);
        let mut values = match group.kind {
            Kind::OnCpu => vec![group.samples.len() as i64, time, 0],
            Kind::OffCpu => vec![0, 0, time],
        };
        values.truncate(if has_off_cpu { 3 } else { 2 });
        out.message(
            field::SAMPLE,
            &Sample {
                location_ids: group.stack.iter().copied().map(location_id).collect(),
                values,
                labels: labels(profile, &group, &mut strings),
            },
        )?;
    }
    write_locations(profile, &mut strings, &mut out)?;
    for text in &strings.table {
        out.field(|buffer| prost::encoding::string::encode(field::STRING_TABLE, text, buffer))?;
    }
    let clock = profile.clock();
    let numbers = [
        (field::TIME_NANOS, clock.unix(clock.start)),
        (field::DURATION_NANOS, clock.duration()),
        (field::PERIOD, profile.period().get()),
        (field::DEFAULT_SAMPLE_TYPE, cpu as u64),
    ];
    for (tag, number) in numbers {
        out.field(|buffer| prost::encoding::uint64::encode(tag, &number, buffer))?;
    }
    out.message(field::PERIOD_TYPE, &value_type(cpu, nanoseconds))?;
    out.gzip.finish().map(drop)
}

/// Ids start at 1.
fn location_id(index: LocationIndex) -> u64 {
    index.index() as u64 + 1
}

/// Keys of labels that are not a record's attributes.
const PROCESS: &str = "process";
const PID: &str = "pid";
const THREAD: &str = "thread";
const TID: &str = "tid";
const TRACE_ID: &str = "trace_id";
const SPAN_ID: &str = "span_id";
const OWN: [&str; 6] = [PROCESS, PID, THREAD, TID, TRACE_ID, SPAN_ID];

fn labels(profile: &Profile, group: &Group<'_>, strings: &mut Strings) -> Vec<Label> {
    let (process, thread) = (profile.process(group.process), profile.thread(group.thread));
    let mut labels = Vec::new();
    let mut text = |key: &str, value: &str| {
        let (key, text) = (strings.id(key), strings.id(value));
        labels.push(Label {
            key,
            text,
            number: 0,
        });
    };
    text(PROCESS, &process.comm);
    text(THREAD, &thread.name);
    if let Some(context) = group.context {
        let context = profile.context(context);
        if !context.trace_id.is_zero() {
            text(TRACE_ID, &context.trace_id.to_string());
        }
        if !context.span_id.is_zero() {
            text(SPAN_ID, &context.span_id.to_string());
        }
        for (name, value) in attributes(context) {
            text(&beside(&OWN, name), value);
        }
    }
    for (key, number) in [(PID, process.pid), (TID, thread.tid)] {
        labels.push(Label {
            key: strings.id(key),
            text: 0,
            number: number.into(),
        });
    }
    labels
}

fn write_locations(profile: &Profile, strings: &mut Strings, out: &mut Out<'_>) -> io::Result<()> {
    let mut mappings: HashMap<Place, Mapping, RandomState> = HashMap::default();
    let mut functions: HashMap<Function, u64, RandomState> = HashMap::default();
    for (index, location) in profile.locations().iter().enumerate() {
        let mut mapping_id = 0;
        if !matches!(location.place, Place::Unknown | Place::Runtime(_)) {
            let id = mappings.len() as u64 + 1;
            let mapping = mappings
                .entry(location.place)
                .or_insert_with(|| mapping(profile, location.place, id, strings));
            let named = !location.functions.is_empty();
            mapping.has_functions |= named;
            mapping.has_filenames |= named;
            mapping.has_line_numbers |= named;
            mapping.has_inline_frames |= named;
            mapping_id = mapping.id;
        }
        let mut lines = Vec::new();
        for function in &location.functions {
            let entry = Function {
                id: 0,
                name: strings.id(&function.name),
                system_name: strings.id(match function.system_name.as_str() {
                    "" => &function.name,
                    name => name,
                }),
                filename: strings.id(&function.file),
            };
            let next = functions.len() as u64 + 1;
            lines.push(Line {
                function_id: *functions.entry(entry).or_insert(next),
                line: function.line.into(),
            });
        }
        out.message(
            field::LOCATION,
            &Location {
                id: index as u64 + 1,
                mapping_id,
                address: location.address,
                lines,
            },
        )?;
    }
    // The first mapping is the main program's (profile.proto, Profile.mapping).
    let main = strings.id(main_program(profile));
    let mut mappings: Vec<_> = mappings.into_values().collect();
    mappings.sort_unstable_by_key(|mapping| (mapping.filename != main, mapping.id));
    for mapping in &mappings {
        out.message(field::MAPPING, mapping)?;
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_unstable_by_key(|(_, id)| *id);
    for (function, id) in functions {
        out.message(field::FUNCTION, &Function { id, ..function })?;
    }
    Ok(())
}

/// The executable with the most samples.
fn main_program(profile: &Profile) -> &str {
    let mut samples: HashMap<_, usize, RandomState> = HashMap::default();
    for group in profile.groups() {
        *samples.entry(group.process).or_default() += group.samples.len();
    }
    let most = samples.into_iter().max_by_key(|(_, samples)| *samples);
    most.map_or("", |(process, _)| &profile.process(process).executable)
}

fn mapping(profile: &Profile, place: Place, id: u64, strings: &mut Strings) -> Mapping {
    let module = profile.module_of(place);
    let path = module.map_or("", |module| &profile.catalog().module_facts(module).path);
    let identity = module.and_then(|module| profile.identity(module));
    let build_id = identity.map_or(String::new(), |identity| hexadecimal(&identity.build_id));
    let (memory_start, memory_limit, file_offset) = super::range(place);
    Mapping {
        id,
        memory_start,
        memory_limit,
        file_offset,
        filename: strings.id(path),
        build_id: strings.id(&build_id),
        ..Mapping::default()
    }
}

/// Writes messages as fields of the enclosing message.
struct Out<'w> {
    gzip: GzEncoder<&'w mut dyn Write>,
    buffer: Vec<u8>,
}

impl Out<'_> {
    fn message(&mut self, tag: u32, message: &impl Message) -> io::Result<()> {
        self.field(|buffer| prost::encoding::message::encode(tag, message, buffer))
    }

    fn field(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.buffer.clear();
        encode(&mut self.buffer);
        self.gzip.write_all(&self.buffer)
    }
}
