//! Reads OTLP profiles (`opentelemetry/proto/profiles/v1development/profiles.proto`) of any producer.
//! The samples of a message refer to its dictionary: it is decoded first, wherever it stands.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as proto;
use opentelemetry_proto::tonic::resource::v1::Resource;
use otelctx_sample::GilState;
use prost::Message;

use super::tables::{
    Context, Function, Group, Id, Kind, Line, Mapping, NONE, Process, Sink, Tables, Thread, add,
};
use super::values::{attribute_of, entry, id};
use super::wire::fields;
use crate::attributes::{GIL, THREAD_ID, THREAD_NAME, UPSTREAM_PREFIX};
use crate::messages::Messages;

/// Attributes of samples, mappings and frames that this crate writes.
const CPU: &str = "cpu.logical_number";
const TRACE_ID: &str = "trace_id";
const SPAN_ID: &str = "span_id";
const FRAME_TYPE: &str = "profile.frame.type";
const BUILD_ID: &str = "process.executable.build_id.gnu";
const HTLHASH: &str = "process.executable.build_id.htlhash";

/// Reads all messages of a file.
pub(super) fn read(file: &[u8], tables: &mut Tables, sink: &mut dyn Sink) -> Result<(), String> {
    for message in Messages::new(file) {
        Reader::new(message?, tables)?.read(sink)?;
    }
    Ok(())
}

/// Field number of samples in `Profile`. Other fields may be before or after them.
const SAMPLES: u32 = 2;

/// An attribute of samples.
#[derive(Clone, Copy)]
enum Attribute {
    ThreadId(i64),
    ThreadName(Id),
    Cpu(u32),
    Gil(GilState),
    /// For an ID without the other one: a link needs both.
    TraceId(Id),
    SpanId([u8; 8]),
    /// Of the context: name and value.
    Context(Id, Id),
    Other,
}

/// A number that is found when it is needed first.
const UNKNOWN: Id = Id::MAX;

struct Reader<'m, 't> {
    message: &'m [u8],
    tables: &'t mut Tables,
    strings: Vec<&'m str>,
    /// The text of each string, location of each location, and so on; or [`UNKNOWN`].
    texts: Vec<Id>,
    mappings: Vec<&'m [u8]>,
    locations: Vec<(&'m [u8], Id)>,
    functions: Vec<&'m [u8]>,
    stacks: Vec<(&'m [u8], Id)>,
    links: Vec<(Id, [u8; 8])>,
    attributes: Vec<(&'m [u8], Option<Attribute>)>,
    contexts: HashMap<(Id, [u8; 8], Id), Id, RandomState>,
    threads: HashMap<(Id, Option<i64>, Id), Id, RandomState>,
    /// Attributes of the context of the sample that is being read.
    of_context: Vec<(Id, Id)>,
    /// Numbers of the stack that is being read.
    stack: Vec<Id>,
}

/// The data of a profile, without its samples.
#[derive(Default)]
struct Head {
    kind: Option<Kind>,
    counts_samples: bool,
    /// Nanoseconds of a value of 1.
    unit: u64,
}

impl<'m, 't> Reader<'m, 't> {
    /// Decodes what the dictionary's tables consist of. Entries are decoded when they are used.
    fn new(message: &'m [u8], tables: &'t mut Tables) -> Result<Self, String> {
        let mut reader = Self {
            message,
            tables,
            strings: Vec::new(),
            texts: Vec::new(),
            mappings: Vec::new(),
            locations: Vec::new(),
            functions: Vec::new(),
            stacks: Vec::new(),
            links: Vec::new(),
            attributes: Vec::new(),
            contexts: HashMap::default(),
            threads: HashMap::default(),
            of_context: Vec::new(),
            stack: Vec::new(),
        };
        reader.tables.messages += 1;
        let mut is_found = false;
        for field in fields(message) {
            if let (2, dictionary) = field? {
                is_found = true;
                reader.add_dictionary(dictionary.bytes()?)?;
            }
        }
        if !is_found {
            return Err("there is no dictionary: the end of the file is missing".to_owned());
        }
        reader.texts = vec![UNKNOWN; reader.strings.len()];
        Ok(reader)
    }

    fn add_dictionary(&mut self, dictionary: &'m [u8]) -> Result<(), String> {
        for field in fields(dictionary) {
            let (number, field) = field?;
            match number {
                1 => self.mappings.push(field.bytes()?),
                2 => self.locations.push((field.bytes()?, UNKNOWN)),
                3 => self.functions.push(field.bytes()?),
                4 => {
                    let link = self.link(field.bytes()?)?;
                    self.links.push(link);
                }
                5 => {
                    let text = str::from_utf8(field.bytes()?);
                    let text = text.map_err(|_| "a string is not UTF-8".to_owned())?;
                    self.strings.push(text);
                }
                6 => self.attributes.push((field.bytes()?, None)),
                7 => self.stacks.push((field.bytes()?, UNKNOWN)),
                _ => {}
            }
        }
        Ok(())
    }

    fn link(&mut self, link: &[u8]) -> Result<(Id, [u8; 8]), String> {
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        for field in fields(link) {
            let (number, field) = field?;
            let bytes = field.bytes()?;
            let size = || format!("a link has an ID of {} bytes", bytes.len());
            match number {
                1 => trace = bytes.try_into().map_err(|_| size())?,
                2 => span = bytes.try_into().map_err(|_| size())?,
                _ => {}
            }
        }
        Ok((add(&mut self.tables.traces, trace)?, span))
    }

    fn read(&mut self, sink: &mut dyn Sink) -> Result<(), String> {
        let message = self.message;
        // A time that is relative to the recording needs its start before the first sample.
        self.each_profile(message, |reader, _, profiles| {
            for profile in profiles {
                reader.add_span(profile)?;
            }
            Ok(())
        })?;
        self.each_profile(message, |reader, process, profiles| {
            let mut heads = Vec::new();
            for profile in profiles {
                heads.push((reader.head(profile)?, *profile));
            }
            // The same samples may be there as a number and as a time.
            let has_counts = heads.iter().any(|(head, _)| head.counts_samples);
            for (head, profile) in heads {
                if let Some(kind) = head.kind
                    && (head.counts_samples || kind == Kind::Waiting || !has_counts)
                {
                    reader.add_samples(process, kind, &head, profile, sink)?;
                }
            }
            Ok(())
        })
    }

    /// Calls `each` with the profiles of each scope and the resource's number.
    fn each_profile(
        &mut self,
        message: &'m [u8],
        mut each: impl FnMut(&mut Self, Id, &[&'m [u8]]) -> Result<(), String>,
    ) -> Result<(), String> {
        for field in fields(message) {
            let (1, resource) = field? else { continue };
            let (mut process, mut scopes) = (&[][..], Vec::new());
            for field in fields(resource.bytes()?) {
                match field? {
                    (1, resource) => process = resource.bytes()?,
                    (2, scope) => scopes.push(scope.bytes()?),
                    _ => {}
                }
            }
            let process = self.process(process)?;
            for scope in scopes {
                let mut profiles = Vec::new();
                for field in fields(scope) {
                    if let (2, profile) = field? {
                        profiles.push(profile.bytes()?);
                    }
                }
                each(self, process, &profiles)?;
            }
        }
        Ok(())
    }

    fn process(&mut self, encoded: &[u8]) -> Result<Id, String> {
        let strings = &self.strings;
        self.tables.add_process(encoded, || {
            let resource = Resource::decode(encoded);
            let resource = resource.map_err(|error| format!("a resource is damaged ({error})"))?;
            let attributes = resource.attributes.iter();
            let attributes = attributes.map(|it| attribute_of(strings, it));
            Ok(Process::new(attributes.collect::<Result<_, _>>()?))
        })
    }

    fn add_span(&mut self, profile: &[u8]) -> Result<(), String> {
        let (mut start, mut duration) = (0, 0);
        for field in fields(profile) {
            match field? {
                (3, time) => start = time.number()?,
                (4, time) => duration = time.number()?,
                // The samples follow, of which there may be many.
                (SAMPLES, _) if start > 0 && duration > 0 => break,
                _ => {}
            }
        }
        if start > 0 {
            self.tables.add_span(start, start.saturating_add(duration));
        }
        Ok(())
    }

    fn head(&mut self, profile: &[u8]) -> Result<Head, String> {
        let (mut value_type, mut period) = (&[][..], 0);
        for field in fields(profile) {
            match field? {
                (1, kind) => value_type = kind.bytes()?,
                (6, number) => period = number.number()?,
                (SAMPLES, _) if !value_type.is_empty() && period > 0 => break,
                _ => {}
            }
        }
        let value_type = proto::ValueType::decode(value_type);
        let value_type = value_type.map_err(|error| format!("a type is damaged ({error})"))?;
        let string = |index: i32| entry(&self.strings, index as u64, "a value's type").copied();
        let kind = string(value_type.type_strindex)?;
        let unit = string(value_type.unit_strindex)?;
        let head = match (kind, unit) {
            ("samples", _) => Head {
                kind: Some(Kind::Running),
                counts_samples: true,
                unit: period.cast_signed().unsigned_abs(),
            },
            ("cpu", "nanoseconds") => Head {
                kind: Some(Kind::Running),
                counts_samples: false,
                unit: 1,
            },
            ("off_cpu", "nanoseconds") => Head {
                kind: Some(Kind::Waiting),
                counts_samples: false,
                unit: 1,
            },
            (kind, unit) => {
                let other = format!("it has {kind} in {unit}, and no CPU time");
                self.tables.other_type.get_or_insert(other);
                Head::default()
            }
        };
        self.tables.has_cpu_time |= head.kind.is_some();
        if head.counts_samples && self.tables.period == 0 {
            self.tables.period = head.unit;
        }
        Ok(head)
    }

    fn add_samples(
        &mut self,
        process: Id,
        kind: Kind,
        head: &Head,
        profile: &'m [u8],
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        let (mut indices, mut values, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for field in fields(profile) {
            let (SAMPLES, sample) = field? else { continue };
            let (mut stack, mut link) = (0, 0);
            indices.clear();
            values.clear();
            times.clear();
            for field in fields(sample.bytes()?) {
                match field? {
                    (1, index) => stack = index.number()?,
                    (2, list) => list.numbers(|index| indices.push(index))?,
                    (3, index) => link = index.number()?,
                    (4, list) => list.numbers(|it| values.push(it.cast_signed().unsigned_abs()))?,
                    (5, list) => list.fixed_numbers(|time| times.push(time))?,
                    _ => {}
                }
            }
            if !values.is_empty() && !times.is_empty() && values.len() != times.len() {
                let (values, times) = (values.len(), times.len());
                return Err(format!("a sample has {values} values at {times} times"));
            }
            let mut group = self.group(process, link, &indices)?;
            group.kind = kind;
            group.stack = self.stack(stack)?;
            if self.tables.start.is_none() {
                times
                    .iter()
                    .for_each(|time| self.tables.add_span(*time, time.saturating_add(1)));
            }
            group.times = &times;
            group.values = &values;
            group.unit = head.unit;
            group.counts_samples = head.counts_samples;
            sink.add(self.tables, &group);
        }
        Ok(())
    }

    /// Returns thread and context of a sample.
    fn group(&mut self, process: Id, link: u64, indices: &[u64]) -> Result<Group<'static>, String> {
        let (mut trace, mut span) = match (link, self.links.is_empty()) {
            (0, true) => (NONE, [0; 8]),
            _ => *entry(&self.links, link, "a sample's link")?,
        };
        let (mut tid, mut name, mut cpu, mut gil) = (None, NONE, 0, None);
        self.of_context.clear();
        for index in indices {
            match self.attribute(*index)? {
                Attribute::ThreadId(id) => tid = Some(id),
                Attribute::ThreadName(text) => name = text,
                Attribute::Cpu(number) => cpu = number,
                Attribute::Gil(state) => gil = Some(state),
                Attribute::TraceId(id) => trace = id,
                Attribute::SpanId(id) => span = id,
                Attribute::Context(key, value) => self.of_context.push((key, value)),
                Attribute::Other => {}
            }
        }
        let known = self.threads.get(&(process, tid, name)).copied();
        let thread = match known {
            Some(thread) => thread,
            None => {
                let thread = self.tables.add_thread(Thread { process, tid, name })?;
                *self
                    .threads
                    .entry((process, tid, name))
                    .insert_entry(thread)
                    .get()
            }
        };
        let all = &self.tables.attributes;
        let attributes = match all.get_index_of(&self.of_context[..]) {
            Some(index) => index as Id,
            None => add(&mut self.tables.attributes, self.of_context[..].into())?,
        };
        let key = (trace, span, attributes);
        let known = self.contexts.get(&key).copied();
        let context = match known {
            Some(context) => context,
            None => {
                let context = Context {
                    trace,
                    span,
                    attributes,
                };
                let context = add(&mut self.tables.contexts, context)?;
                *self.contexts.entry(key).insert_entry(context).get()
            }
        };
        Ok(Group {
            kind: Kind::Running,
            thread,
            context,
            stack: NONE,
            gil,
            cpu,
            times: &[],
            values: &[],
            counts: &[],
            unit: 0,
            counts_samples: false,
        })
    }

    /// Returns the number of a string's text.
    fn text(&mut self, index: u64) -> Result<Id, String> {
        let text = *entry(&self.strings, index, "a string")?;
        let known = &mut self.texts[index as usize];
        if *known == UNKNOWN {
            *known = self.tables.add_text(text)?;
        }
        Ok(*known)
    }

    fn attribute(&mut self, index: u64) -> Result<Attribute, String> {
        let (encoded, known) = *entry(&self.attributes, index, "an attribute")?;
        if let Some(known) = known {
            return Ok(known);
        }
        let (key, value) = self.decoded_attribute(encoded)?;
        let attribute = self.classify(key, value)?;
        self.attributes[index as usize].1 = Some(attribute);
        Ok(attribute)
    }

    fn decoded_attribute(&self, encoded: &[u8]) -> Result<(&'m str, Option<AnyValue>), String> {
        let decoded = proto::KeyValueAndUnit::decode(encoded);
        let decoded = decoded.map_err(|error| format!("an attribute is damaged ({error})"))?;
        let key = entry(
            &self.strings,
            decoded.key_strindex as u64,
            "an attribute's name",
        )?;
        Ok((key, decoded.value))
    }

    fn classify(&mut self, key: &str, value: Option<AnyValue>) -> Result<Attribute, String> {
        use any_value::Value as Any;
        let text = match value.and_then(|value| value.value) {
            Some(Any::StringValue(text)) => text,
            Some(Any::StringValueStrindex(index)) => {
                (*entry(&self.strings, index as u64, "a value")?).to_owned()
            }
            Some(Any::IntValue(number)) => {
                return Ok(match key {
                    THREAD_ID => Attribute::ThreadId(number),
                    CPU => Attribute::Cpu(u32::try_from(number).unwrap_or(0)),
                    _ => self.of_context(key, &number.to_string())?,
                });
            }
            Some(Any::BoolValue(value)) => return self.of_context(key, &value.to_string()),
            Some(Any::DoubleValue(value)) => return self.of_context(key, &value.to_string()),
            _ => return Ok(Attribute::Other),
        };
        let known = match key {
            THREAD_NAME => Some(Attribute::ThreadName(self.tables.add_text(&text)?)),
            GIL => GilState::ALL
                .into_iter()
                .find(|it| it.name() == text)
                .map(Attribute::Gil),
            TRACE_ID => match id(&text) {
                Some(id) => Some(Attribute::TraceId(add(&mut self.tables.traces, id)?)),
                None => None,
            },
            SPAN_ID => id(&text).map(Attribute::SpanId),
            _ => None,
        };
        known.map_or_else(|| self.of_context(key, &text), Ok)
    }

    /// An attribute of the context, whose name may have a prefix.
    fn of_context(&mut self, key: &str, value: &str) -> Result<Attribute, String> {
        // With the prefix, this name is a context's attribute, not the state of the lock.
        let name = key.strip_prefix(UPSTREAM_PREFIX);
        let name = name.filter(|name| *name != GIL).unwrap_or(key);
        let name = self.tables.add_text(name)?;
        Ok(Attribute::Context(name, self.tables.add_text(value)?))
    }

    fn stack(&mut self, index: u64) -> Result<Id, String> {
        if index == 0 && self.stacks.is_empty() {
            return Ok(NONE);
        }
        let (encoded, known) = *entry(&self.stacks, index, "a sample's stack")?;
        if known != UNKNOWN {
            return Ok(known);
        }
        let mut indices = Vec::new();
        for field in fields(encoded) {
            if let (1, list) = field? {
                list.numbers(|index| indices.push(index))?;
            }
        }
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        for index in indices {
            stack.push(self.location(index)?);
        }
        let known = self.tables.add_stack(&stack)?;
        self.stack = stack;
        self.stacks[index as usize].1 = known;
        Ok(known)
    }

    fn location(&mut self, index: u64) -> Result<Id, String> {
        let (encoded, known) = *entry(&self.locations, index, "a stack's location")?;
        if known != UNKNOWN {
            return Ok(known);
        }
        let location = proto::Location::decode(encoded);
        let location = location.map_err(|error| format!("a location is damaged ({error})"))?;
        let kind = self.text_attribute(&location.attribute_indices, FRAME_TYPE)?;
        let mapping = self.mapping(location.mapping_index as u64)?;
        let mut lines = Vec::with_capacity(location.lines.len());
        for line in &location.lines {
            lines.push(Line {
                function: self.function(line.function_index as u64, kind)?,
                line: u32::try_from(line.line).unwrap_or(0),
            });
        }
        let address = location.address;
        let known = self.tables.complete(mapping, address, kind, lines)?;
        self.locations[index as usize].1 = known;
        Ok(known)
    }

    fn function(&mut self, index: u64, kind: Id) -> Result<Id, String> {
        let encoded = entry(&self.functions, index, "a line's function")?;
        let function = proto::Function::decode(*encoded);
        let function = function.map_err(|error| format!("a function is damaged ({error})"))?;
        let start = u32::try_from(function.start_line).unwrap_or(0);
        let function = Function {
            name: self.text(function.name_strindex as u64)?,
            system_name: self.text(function.system_name_strindex as u64)?,
            file: self.text(function.filename_strindex as u64)?,
            kind,
        };
        self.tables.add_function(function, start)
    }

    fn mapping(&mut self, index: u64) -> Result<Id, String> {
        let encoded = match (index, self.mappings.is_empty()) {
            (0, true) => return Ok(NONE),
            _ => *entry(&self.mappings, index, "a location's mapping")?,
        };
        let mapping = proto::Mapping::decode(encoded);
        let mapping = mapping.map_err(|error| format!("a mapping is damaged ({error})"))?;
        let mapping = Mapping {
            start: mapping.memory_start,
            limit: mapping.memory_limit,
            offset: mapping.file_offset,
            file: self.text(mapping.filename_strindex as u64)?,
            build_id: self.text_attribute(&mapping.attribute_indices, BUILD_ID)?,
            htlhash: self.text_attribute(&mapping.attribute_indices, HTLHASH)?,
        };
        add(&mut self.tables.mappings, mapping)
    }

    /// Returns the value of an attribute with this name; [`NONE`] if there is none.
    fn text_attribute(&mut self, indices: &[i32], name: &str) -> Result<Id, String> {
        for index in indices {
            let (encoded, _) = *entry(&self.attributes, *index as u64, "an attribute")?;
            let (key, value) = self.decoded_attribute(encoded)?;
            if key == name
                && let Some(any_value::Value::StringValue(text)) = value.and_then(|it| it.value)
            {
                return self.tables.add_text(&text);
            }
        }
        Ok(NONE)
    }
}
