//! pprof's `profile.proto` (github.com/google/pprof, proto/profile.proto); only the fields in use.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io::{self, BufWriter, Write};

use flate2::write::GzEncoder;
use foldhash::fast::RandomState;
use indexmap::{Equivalent, IndexMap, IndexSet};
use otelctx_sample::format::hexadecimal;
use otelctx_sample::{ContextId, GilState, OffCpuState, ProcessId, ReasonId, ThreadId};
use prost::Message;

use super::FrameRules;
use super::room::{OTHER, Room};
use crate::attributes::{CALL, GIL, REASON, SERVICE_NAME, STATE, attributes, beside};
use crate::{Clock, Group, Kind, Place, Profile};

/// Maximum memory of all samples, in bytes (estimated).
const MAX_MEMORY: usize = 80 << 20;
/// Reserved memory for samples without trace and span IDs: once the other memory is used up,
/// samples have [`OTHER`] as their trace.
const WITHOUT_IDS: usize = 28 << 20;

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
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

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
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

#[derive(Clone, PartialEq, Eq, Hash, Message)]
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

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
    #[prost(int64, tag = "3")]
    column: i64,
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

/// The fields of `Profile` itself, which is written incrementally.
mod field {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const MAPPING: u32 = 3;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const DROP_FRAMES: u32 = 7;
    pub(super) const KEEP_FRAMES: u32 = 8;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const DURATION_NANOS: u32 = 10;
    pub(super) const PERIOD_TYPE: u32 = 11;
    pub(super) const PERIOD: u32 = 12;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
    pub(super) const DOC_URL: u32 = 15;
}

/// Distinct entries. An ID is a position in its table.
type Table<T> = IndexSet<T, RandomState>;

/// Samples aggregated over the parts of a recording.
#[derive(Debug)]
pub(super) struct Pprof {
    strings: Table<String>,
    /// Mappings without IDs and flags, with true if a location in it has a function.
    mappings: IndexMap<Mapping, bool, RandomState>,
    functions: Table<Function>,
    locations: Table<Location>,
    stacks: Table<Vec<u64>>,
    samples: IndexMap<Key, Values, RandomState>,
    /// Values of samples for which there was no room.
    others: Values,
    /// Samples by executable.
    executables: BTreeMap<i64, usize>,
    rules: FrameRules,
    room: Room,
}

/// What the samples of a group have their labels of, and whether these have IDs.
type Labelled = (
    ProcessId,
    ThreadId,
    Option<ContextId>,
    Option<GilState>,
    OffCpu,
    bool,
);
/// What kept a thread off the CPU.
type OffCpu = Option<(OffCpuState, Option<ReasonId>)>;

/// What was found for groups of a part: many have the same stack or labels.
#[derive(Default)]
struct Known {
    /// By the address of the part's list of locations.
    stacks: HashMap<usize, usize, RandomState>,
    /// The last group's.
    labels: Option<(Labelled, Box<[Label]>)>,
}

/// Stack and labels.
type Key = (usize, Box<[Label]>);
/// Samples, nanoseconds on a CPU and off-CPU.
type Values = [u64; 3];

impl Pprof {
    pub(super) fn new(rules: &FrameRules) -> Self {
        Self {
            rules: rules.clone(),
            ..Self::bounded(MAX_MEMORY)
        }
    }

    fn bounded(bytes: usize) -> Self {
        Self {
            // String 0 is empty by definition.
            strings: Table::from_iter([String::new()]),
            mappings: IndexMap::default(),
            functions: Table::default(),
            locations: Table::default(),
            stacks: Table::default(),
            samples: IndexMap::default(),
            others: Values::default(),
            executables: BTreeMap::new(),
            rules: FrameRules::default(),
            room: Room::new(bytes),
        }
    }

    pub(super) fn add(&mut self, part: &Profile) {
        self.room.reserved = 0;
        let locations = part.locations().iter();
        let locations = locations.map(|location| self.location(part, location));
        let locations: Vec<Option<u64>> = locations.collect();
        let mut known = Known::default();
        for group in part.groups() {
            let executable = self.string(&part.process(group.process).executable);
            *self.executables.entry(executable.unwrap_or(0)).or_default() += group.samples.len();
            let time = group.nanoseconds(part.period());
            let values = match group.kind {
                Kind::OnCpu => [group.samples.len() as u64, time, 0],
                Kind::OffCpu => [0, 0, time],
            };
            let mut key = None;
            for (has_ids, reserved) in [(true, WITHOUT_IDS), (false, 0)] {
                self.room.reserved = reserved.min(self.room.size / 3);
                key = key.or_else(|| self.key(part, &group, &locations, has_ids, &mut known));
            }
            let sums = match key {
                Some(key) => self.samples.entry(key).or_default(),
                None => &mut self.others,
            };
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = sum.saturating_add(value);
            }
        }
    }

    /// Returns the key of a group of samples; `None` if there is no room for its data.
    fn key(
        &mut self,
        part: &Profile,
        group: &Group<'_>,
        locations: &[Option<u64>],
        has_ids: bool,
        known: &mut Known,
    ) -> Option<Key> {
        let address = group.stack.as_ptr().addr();
        let stack = match known.stacks.get(&address) {
            Some(stack) => *stack,
            None => {
                let stack = group.stack.iter().map(|index| locations[index.index()]);
                let stack: Vec<u64> = stack.collect::<Option<_>>()?;
                let size = size_of_val(&stack[..]);
                let stack = intern(&mut self.stacks, &stack, size, &mut self.room)?;
                known.stacks.insert(address, stack);
                stack
            }
        };
        let (process, thread, off_cpu) = (group.process, group.thread, group.off_cpu);
        let labelled = (process, thread, group.context, group.gil, off_cpu, has_ids);
        let labels = match &known.labels {
            Some((same, labels)) if *same == labelled => labels.clone(),
            _ => {
                let labels: Box<[Label]> = self.labels(part, group, has_ids)?.into();
                known.labels = Some((labelled, labels.clone()));
                labels
            }
        };
        let size = size_of::<(Key, Values)>() + size_of_val(&labels[..]);
        let key = (stack, labels);
        (self.samples.contains_key(&key) || self.room.take(size)).then_some(key)
    }

    fn labels(&mut self, part: &Profile, group: &Group<'_>, has_ids: bool) -> Option<Vec<Label>> {
        let (process, thread) = (part.process(group.process), part.thread(group.thread));
        let mut labels = Vec::new();
        let mut text = |key: &str, value: &str| {
            let (key, text) = (self.string(key)?, self.string(value)?);
            labels.push(Label {
                key,
                text,
                number: 0,
            });
            Some(())
        };
        text(PROCESS, &process.comm)?;
        if let Some(service) = super::service_of(process) {
            text(SERVICE_NAME, &service)?;
        }
        text(THREAD, &thread.name)?;
        if let Some(state) = group.gil {
            text(GIL, state.name())?;
        }
        if let Some(wait) = part.wait(group) {
            for (key, value) in wait.attributes().into_iter().flatten() {
                text(key, value)?;
            }
        }
        if let Some(context) = group.context {
            let context = part.context(context);
            let (trace, span) = (context.trace_id, context.span_id);
            if !has_ids {
                text(TRACE_ID, OTHER)?;
            }
            if has_ids && !trace.is_zero() {
                text(TRACE_ID, &trace.to_string())?;
            }
            if has_ids && !span.is_zero() {
                text(SPAN_ID, &span.to_string())?;
            }
            for (name, value) in attributes(context) {
                text(&beside(&OWN, name), value)?;
            }
        }
        for (key, number) in [(PID, process.pid), (TID, thread.tid)] {
            labels.push(Label {
                key: self.string(key)?,
                text: 0,
                number: number.into(),
            });
        }
        Some(labels)
    }

    fn string(&mut self, text: &str) -> Option<i64> {
        let index = intern(&mut self.strings, text, text.len(), &mut self.room)?;
        Some(index as i64)
    }

    /// Returns the ID of a location, from 1.
    fn location(&mut self, part: &Profile, location: &crate::Location) -> Option<u64> {
        let mut lines = Vec::new();
        for function in location.functions.iter() {
            let name = self.string(&function.name)?;
            let entry = Function {
                id: 0,
                name,
                system_name: match function.system_name.as_str() {
                    "" => name,
                    system_name => self.string(system_name)?,
                },
                filename: self.string(&function.file)?,
            };
            let index = intern(&mut self.functions, &entry, 0, &mut self.room)?;
            lines.push(Line {
                function_id: index as u64 + 1,
                line: function.line.into(),
                column: function.column.into(),
            });
        }
        let location = Location {
            id: 0,
            mapping_id: self.mapping(part, location.place, !lines.is_empty())?,
            address: location.address,
            lines,
        };
        let size = size_of_val(&location.lines[..]);
        let index = intern(&mut self.locations, &location, size, &mut self.room)?;
        Some(index as u64 + 1)
    }

    /// Returns the ID of a mapping, from 1; 0 if there is none.
    fn mapping(&mut self, part: &Profile, place: Place, is_named: bool) -> Option<u64> {
        if matches!(place, Place::Unknown | Place::Runtime(_)) {
            return Some(0);
        }
        let module = part.module_of(place);
        let path = module.map_or("", |module| &part.catalog().module_facts(module).path);
        let identity = module.and_then(|module| part.identity(module));
        let build_id = identity.map_or(String::new(), |identity| hexadecimal(&identity.build_id));
        let (memory_start, memory_limit, file_offset) = super::range(place);
        let mapping = Mapping {
            memory_start,
            memory_limit,
            file_offset,
            filename: self.string(path)?,
            build_id: self.string(&build_id)?,
            ..Mapping::default()
        };
        if !self.mappings.contains_key(&mapping) && !self.room.take(size_of::<Mapping>()) {
            return None;
        }
        let entry = self.mappings.entry(mapping);
        let index = entry.index();
        *entry.or_default() |= is_named;
        Some(index as u64 + 1)
    }

    pub(super) fn write(
        &mut self,
        clock: Clock,
        period: u64,
        writer: &mut dyn Write,
    ) -> io::Result<()> {
        let mut out = Out {
            gzip: super::compressed(writer),
            buffer: Vec::new(),
        };
        self.room = Room::new(usize::MAX);
        let rules = self.rules.clone();
        let mut string = |text: &str| self.string(text).unwrap_or_default();
        let (samples, count) = (string("samples"), string("count"));
        let (cpu, off_cpu) = (string("cpu"), string("off_cpu"));
        let nanoseconds = string("nanoseconds");
        let url = match &rules.url[..] {
            "" => string(REPOSITORY),
            url => string(url),
        };
        let (drop_frames, keep_frames) = (string(&rules.drop), string(&rules.keep));
        if self.others != Values::default() {
            self.add_others();
        }
        let value_type = |kind, unit| ValueType { kind, unit };
        let has_off_cpu = self.samples.values().any(|values| values[2] > 0);
        let has_samples = self.samples.values().any(|values| values[0] > 0);
        let shown = if has_off_cpu && !has_samples {
            off_cpu
        } else {
            cpu
        };
        out.message(field::SAMPLE_TYPE, &value_type(samples, count))?;
        out.message(field::SAMPLE_TYPE, &value_type(cpu, nanoseconds))?;
        if has_off_cpu {
            out.message(field::SAMPLE_TYPE, &value_type(off_cpu, nanoseconds))?;
        }
        for ((stack, labels), values) in &self.samples {
            let number = |value: &u64| i64::try_from(*value).unwrap_or(i64::MAX);
            let values = values[..if has_off_cpu { 3 } else { 2 }].iter().map(number);
            out.message(
                field::SAMPLE,
                &Sample {
                    location_ids: self.stacks[*stack].clone(),
                    values: values.collect(),
                    labels: labels.to_vec(),
                },
            )?;
        }
        self.write_tables(&mut out)?;
        let numbers = [
            (field::DROP_FRAMES, drop_frames as u64),
            (field::KEEP_FRAMES, keep_frames as u64),
            (field::TIME_NANOS, clock.unix(clock.start)),
            (field::DURATION_NANOS, clock.duration()),
            (field::PERIOD, period),
            (field::DEFAULT_SAMPLE_TYPE, shown as u64),
            (field::DOC_URL, url as u64),
        ];
        for (tag, number) in numbers {
            out.field(|buffer| prost::encoding::uint64::encode(tag, &number, buffer))?;
        }
        out.message(field::PERIOD_TYPE, &value_type(cpu, nanoseconds))?;
        out.gzip.into_inner()?.finish().map(drop)
    }

    /// Adds a sample that represents all samples without room.
    fn add_others(&mut self) {
        let name = self.string(OTHER).unwrap_or_default();
        let function = Function {
            name,
            system_name: name,
            ..Function::default()
        };
        let line = Line {
            function_id: self.functions.insert_full(function).0 as u64 + 1,
            line: 0,
            column: 0,
        };
        let location = Location {
            lines: vec![line],
            ..Location::default()
        };
        let location = self.locations.insert_full(location).0 as u64 + 1;
        let stack = self.stacks.insert_full(vec![location]).0;
        let others = std::mem::take(&mut self.others);
        self.samples.insert((stack, Box::default()), others);
    }

    fn write_tables(&self, out: &mut Out<'_>) -> io::Result<()> {
        for (id, location) in (1..).zip(&self.locations) {
            let location = Location {
                id,
                ..location.clone()
            };
            out.message(field::LOCATION, &location)?;
        }
        // The first mapping must be the main program's (profile.proto, Profile.mapping): of the
        // executable with the most samples.
        let main = self.executables.iter().max_by_key(|(_, samples)| **samples);
        let main = main.map_or(0, |(executable, _)| *executable);
        let mut mappings: Vec<_> = (1..).zip(&self.mappings).collect();
        mappings.sort_by_key(|(_, (mapping, _))| mapping.filename != main);
        for (id, (mapping, is_named)) in mappings {
            let mapping = Mapping {
                id,
                has_functions: *is_named,
                has_filenames: *is_named,
                has_line_numbers: *is_named,
                has_inline_frames: *is_named,
                ..*mapping
            };
            out.message(field::MAPPING, &mapping)?;
        }
        for (id, function) in (1..).zip(&self.functions) {
            out.message(field::FUNCTION, &Function { id, ..*function })?;
        }
        for text in &self.strings {
            out.field(|buffer| prost::encoding::string::encode(field::STRING_TABLE, text, buffer))?;
        }
        Ok(())
    }
}

/// Returns the position of an entry. Adds a new one if there is room for it and for `size` bytes
/// outside the table.
fn intern<T, Q>(table: &mut Table<T>, entry: &Q, size: usize, room: &mut Room) -> Option<usize>
where
    T: Hash + Eq,
    Q: ?Sized + Hash + Equivalent<T> + ToOwned<Owned = T>,
{
    if let Some(index) = table.get_index_of(entry) {
        return Some(index);
    }
    let new = || table.insert_full(entry.to_owned()).0;
    room.take(size_of::<T>() + size).then(new)
}

/// Where pprof's pages link to for an explanation; empty while the project has no address.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// Keys of labels that are not a record's attributes.
const PROCESS: &str = "process";
const PID: &str = "pid";
const THREAD: &str = "thread";
const TID: &str = "tid";
const TRACE_ID: &str = "trace_id";
const SPAN_ID: &str = "span_id";
const OWN: [&str; 11] = [
    PROCESS,
    PID,
    SERVICE_NAME,
    THREAD,
    TID,
    GIL,
    STATE,
    CALL,
    REASON,
    TRACE_ID,
    SPAN_ID,
];

/// Writes messages as fields of the enclosing message.
struct Out<'w> {
    gzip: BufWriter<GzEncoder<&'w mut dyn Write>>,
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::num::NonZeroU64;

    use flate2::read::GzDecoder;
    use otelctx_sample::format::record::DecodedContext;
    use otelctx_sample::format::{SpanId, TraceId};
    use otelctx_sample::{Catalog, Counts, Event, Found, ProcessFacts};

    use crate::{NoSymbols, Recording};

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Decoded {
        #[prost(message, repeated, tag = "2")]
        samples: Vec<Sample>,
        #[prost(string, repeated, tag = "6")]
        strings: Vec<String>,
    }

    const CLOCK: Clock = Clock {
        start: 0,
        end: 10_000,
        start_unix: 0,
    };

    /// A part with samples at one address, each with its own trace.
    fn part(traces: std::ops::Range<u64>) -> Profile {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let sample = |trace: u64| {
            let mut context = DecodedContext::default();
            context.trace_id = TraceId::from_bytes(u128::from(trace + 1).to_be_bytes());
            context.span_id = SpanId::from_bytes([9; 8]);
            context.attributes = vec![("http.route".into(), "/cart".into())];
            otelctx_sample::Sample {
                time: trace,
                cpu: 0,
                thread: catalog.thread(process, 7, "worker"),
                event: Event::OnCpu,
                found: Found::Attached(catalog.context(&context)),
                gil: None,
                user_stack: catalog.native_stack(&[77]),
                stack_end: None,
                kernel_stack: catalog.native_stack(&[]),
            }
        };
        let samples = traces.map(sample).collect();
        let recording = Recording {
            catalog,
            samples,
            clock: CLOCK,
            period: NonZeroU64::MIN,
            counts: Counts::default(),
        };
        Profile::new(recording, &mut NoSymbols)
    }

    /// Samples with their traces, from a file that was written with this memory limit; and the file
    /// itself.
    fn written(room: usize, parts: [std::ops::Range<u64>; 2]) -> (Vec<(String, i64)>, Decoded) {
        let mut pprof = Pprof::bounded(room);
        for range in parts {
            pprof.add(&part(range));
        }
        let mut file = Vec::new();
        pprof.write(CLOCK, 1, &mut file).unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&file[..]).read_to_end(&mut bytes).unwrap();
        let decoded = Decoded::decode(&bytes[..]).unwrap();
        let string = |id: i64| decoded.strings[id as usize].clone();
        let trace = |sample: &Sample| {
            let trace = sample.labels.iter().find(|it| string(it.key) == TRACE_ID);
            (
                trace.map_or(String::new(), |it| string(it.text)),
                sample.values[0],
            )
        };
        (decoded.samples.iter().map(trace).collect(), decoded)
    }

    #[test]
    fn samples_that_find_no_room_lose_their_trace_first_and_none_gets_lost() {
        let (all, _) = written(MAX_MEMORY, [0..500, 300..1000]);
        assert_eq!(all.len(), 1000);
        assert_eq!(all.iter().filter(|(_, count)| *count == 2).count(), 200);
        let (bounded, decoded) = written(100_000, [0..500, 300..1000]);
        assert!(
            bounded.len() > 20 && bounded.len() < 300,
            "{}",
            bounded.len()
        );
        assert_eq!(bounded.iter().map(|(_, count)| count).sum::<i64>(), 1200);
        let others: Vec<_> = bounded.iter().filter(|(trace, _)| trace == OTHER).collect();
        assert_eq!(others.len(), 1);
        // It still has its location and its process.
        let id = |text: &str| decoded.strings.iter().position(|it| it == text).unwrap() as i64;
        let other = decoded
            .samples
            .iter()
            .find(|it| it.labels.iter().any(|it| it.text == id(OTHER)));
        let other = other.unwrap();
        assert_eq!(other.location_ids, decoded.samples[0].location_ids);
        assert!(other.labels.iter().any(|it| it.text == id("/cart")));
    }

    #[test]
    fn without_any_room_a_sample_stands_for_all_others() {
        let (samples, decoded) = written(0, [0..5, 5..10]);
        assert_eq!(samples, [(String::new(), 10)]);
        assert_eq!(decoded.samples[0].location_ids, [1]);
        assert!(decoded.strings.iter().any(|text| text == OTHER));
    }
}
