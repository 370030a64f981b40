//! The dictionary's tables. Entry 0 of each is the zero value, and no entry occurs twice.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;

use foldhash::fast::RandomState;
use indexmap::{Equivalent, IndexSet};
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as proto;
use otelctx_sample::format::hexadecimal;
use otelctx_sample::{ContextId, GilState, ThreadId};
use prost::Message;

use super::super::range;
use super::{Out, field_size};
use crate::attributes::{
    CALL, GIL, REASON, STATE, THREAD_ID, THREAD_NAME, UPSTREAM_PREFIX, attributes, beside,
};
use crate::rules::to_index;
use crate::wait::Wait;
use crate::{LocationIndex, Place, Profile};

/// The attribute of samples with the number of the CPU.
const CPU: &str = "cpu.logical_number";
/// Attributes for an ID without the other one: a link needs both.
const TRACE_ID: &str = "trace_id";
const SPAN_ID: &str = "span_id";
const OWN: [&str; 9] = [
    THREAD_ID,
    THREAD_NAME,
    CPU,
    TRACE_ID,
    SPAN_ID,
    GIL,
    STATE,
    CALL,
    REASON,
];

/// Field numbers of `ProfilesDictionary`.
mod field {
    pub(super) const MAPPING: u32 = 1;
    pub(super) const LOCATION: u32 = 2;
    pub(super) const FUNCTION: u32 = 3;
    pub(super) const LINK: u32 = 4;
    pub(super) const STRING: u32 = 5;
    pub(super) const ATTRIBUTE: u32 = 6;
    pub(super) const STACK: u32 = 7;
}

/// The tables of a dictionary. Each lookup adds the entry if it is new.
pub(super) struct Tables<'p> {
    profile: &'p Profile,
    attribute_prefix: &'p str,
    strings: Table<String>,
    attributes: Table<Attribute>,
    links: Table<proto::Link>,
    mappings: Table<proto::Mapping>,
    functions: Table<proto::Function>,
    locations: Table<Location>,
    stacks: Table<proto::Stack>,
    /// Entries for each context, thread, location and stack.
    of_context: HashMap<ContextId, (i32, Vec<i32>), RandomState>,
    of_thread: HashMap<ThreadId, [i32; 2], RandomState>,
    of_location: HashMap<LocationIndex, i32, RandomState>,
    of_stack: HashMap<&'p [LocationIndex], i32, RandomState>,
}

struct Table<T> {
    entries: IndexSet<T, RandomState>,
    /// Size of all entries in the dictionary's message, in bytes.
    bytes: usize,
}

trait Entry: Hash + Eq + Default {
    /// Its size in the dictionary's message, in bytes.
    fn size(&self) -> usize;
}

impl<T: Entry> Default for Table<T> {
    fn default() -> Self {
        let zero = T::default();
        Self {
            bytes: zero.size(),
            entries: IndexSet::from_iter([zero]),
        }
    }
}

impl<T: Entry> Table<T> {
    fn add(&mut self, entry: T) -> i32 {
        let (index, is_new) = self.entries.insert_full(entry);
        if is_new {
            self.bytes += self.entries[index].size();
        }
        to_index(index)
    }

    fn find<Q: Hash + Equivalent<T> + ?Sized>(&self, entry: &Q) -> Option<i32> {
        self.entries.get_index_of(entry).map(to_index)
    }
}

/// Implements [`Entry`] for a type: its field, and the size of its content, in bytes.
macro_rules! entry {
    ($type:ty, $field:ident, |$entry:ident| $size:expr) => {
        impl Entry for $type {
            fn size(&self) -> usize {
                let $entry = self;
                field_size(field::$field, $size)
            }
        }
    };
}
entry!(String, STRING, |entry| entry.len());
entry!(Attribute, ATTRIBUTE, |entry| entry.message().encoded_len());
entry!(Location, LOCATION, |entry| entry.message().encoded_len());
entry!(proto::Link, LINK, |entry| entry.encoded_len());
entry!(proto::Mapping, MAPPING, |entry| entry.encoded_len());
entry!(proto::Function, FUNCTION, |entry| entry.encoded_len());
entry!(proto::Stack, STACK, |entry| entry.encoded_len());

#[derive(Default, PartialEq, Eq, Hash)]
struct Attribute {
    key: i32,
    value: AttributeValue,
}

#[derive(Default, PartialEq, Eq, Hash)]
enum AttributeValue {
    #[default]
    None,
    Text(String),
    Number(i64),
}

impl Attribute {
    fn message(&self) -> proto::KeyValueAndUnit {
        let value = match &self.value {
            AttributeValue::None => None,
            AttributeValue::Text(text) => Some(any_value::Value::StringValue(text.clone())),
            AttributeValue::Number(number) => Some(any_value::Value::IntValue(*number)),
        };
        proto::KeyValueAndUnit {
            key_strindex: self.key,
            value: value.map(|value| AnyValue { value: Some(value) }),
            unit_strindex: 0,
        }
    }
}

/// A location, hashable.
#[derive(Default, PartialEq, Eq, Hash)]
struct Location {
    mapping: i32,
    address: u64,
    lines: Vec<proto::Line>,
    attributes: Vec<i32>,
}

impl Location {
    fn message(&self) -> proto::Location {
        proto::Location {
            mapping_index: self.mapping,
            address: self.address,
            lines: self.lines.clone(),
            attribute_indices: self.attributes.clone(),
        }
    }
}

impl<'p> Tables<'p> {
    pub(super) fn new(profile: &'p Profile, attribute_prefix: &'p str) -> Self {
        Self {
            profile,
            attribute_prefix,
            strings: Table::default(),
            attributes: Table::default(),
            links: Table::default(),
            mappings: Table::default(),
            functions: Table::default(),
            locations: Table::default(),
            stacks: Table::default(),
            of_context: HashMap::default(),
            of_thread: HashMap::default(),
            of_location: HashMap::default(),
            of_stack: HashMap::default(),
        }
    }

    pub(super) fn string(&mut self, text: &str) -> i32 {
        match self.strings.find(text) {
            Some(index) => index,
            None => self.strings.add(text.to_owned()),
        }
    }

    fn text(&mut self, key: &str, value: &str) -> i32 {
        let key = self.string(key);
        let value = AttributeValue::Text(value.to_owned());
        self.attributes.add(Attribute { key, value })
    }

    fn number(&mut self, key: &str, value: i64) -> i32 {
        let key = self.string(key);
        let value = AttributeValue::Number(value);
        self.attributes.add(Attribute { key, value })
    }

    pub(super) fn thread(&mut self, id: ThreadId) -> [i32; 2] {
        if let Some(indices) = self.of_thread.get(&id) {
            return *indices;
        }
        let thread = self.profile.thread(id);
        let indices = [
            self.text(THREAD_NAME, &thread.name),
            self.number(THREAD_ID, thread.tid.into()),
        ];
        self.of_thread.insert(id, indices);
        indices
    }

    pub(super) fn cpu(&mut self, number: u32) -> i32 {
        self.number(CPU, number.into())
    }

    /// Returns the attribute of the samples with this state of the interpreter's lock.
    pub(super) fn gil(&mut self, state: GilState) -> i32 {
        self.text(GIL, state.name())
    }

    /// Returns the known attributes of samples that something kept off the CPU.
    pub(super) fn off_cpu(&mut self, off_cpu: &Wait<'_>) -> impl Iterator<Item = i32> + use<> {
        let known = off_cpu.attributes().into_iter().flatten();
        let indices: Vec<i32> = known.map(|(key, value)| self.text(key, value)).collect();
        indices.into_iter()
    }

    /// Returns the link of a context's samples, 0 for none, and their attributes.
    pub(super) fn context(&mut self, id: Option<ContextId>) -> (i32, &[i32]) {
        let Some(id) = id else { return (0, &[]) };
        if !self.of_context.contains_key(&id) {
            let entries = self.add_context(id);
            self.of_context.insert(id, entries);
        }
        let (link, attributes) = &self.of_context[&id];
        (*link, attributes)
    }

    fn add_context(&mut self, id: ContextId) -> (i32, Vec<i32>) {
        let context = self.profile.context(id);
        let (trace, span) = (context.trace_id, context.span_id);
        let mut indices = Vec::new();
        let mut link = 0;
        if !trace.is_zero() && !span.is_zero() {
            link = self.links.add(proto::Link {
                trace_id: trace.to_bytes().to_vec(),
                span_id: span.to_bytes().to_vec(),
            });
        } else if !trace.is_zero() {
            indices.push(self.text(TRACE_ID, &trace.to_string()));
        } else if !span.is_zero() {
            indices.push(self.text(SPAN_ID, &span.to_string()));
        }
        for (name, value) in attributes(context) {
            let name = self.name(name);
            indices.push(self.text(&name, value));
        }
        (link, indices)
    }

    /// Returns the name of a record's attribute on a sample, unique and not empty.
    fn name(&self, name: &str) -> String {
        let name = format!("{}{name}", self.attribute_prefix);
        match self.attribute_prefix {
            UPSTREAM_PREFIX => name,
            _ => beside(&OWN, &name).into_owned(),
        }
    }

    /// Adds stacks: those with the same outer frames beside each other, their locations by address, and so functions by where a
    /// compiler has put them. Compression leaves 6 % less of messages with many stacks, and it takes no further pass.
    pub(super) fn add_stacks(&mut self, stacks: impl Iterator<Item = &'p [LocationIndex]>) {
        let stacks: IndexSet<&[LocationIndex], RandomState> = stacks.collect();
        let used: IndexSet<LocationIndex, RandomState> =
            stacks.iter().copied().flatten().copied().collect();
        let place = |index: &LocationIndex| {
            let location = self.profile.location(*index);
            (self.mapping(location.place), self.address(location))
        };
        let mut locations: Vec<_> = used.into_iter().collect();
        locations.sort_by_cached_key(place);
        for index in locations {
            self.location(index);
        }
        let mut stacks: Vec<_> = stacks.into_iter().collect();
        let of_location = &self.of_location;
        stacks.sort_by_cached_key(|stack| -> Vec<i32> {
            stack.iter().rev().map(|index| of_location[index]).collect()
        });
        for stack in stacks {
            self.stack(stack);
        }
    }

    pub(super) fn stack(&mut self, stack: &'p [LocationIndex]) -> i32 {
        if stack.is_empty() {
            return 0;
        }
        if let Some(index) = self.of_stack.get(stack) {
            return *index;
        }
        let location_indices = stack.iter().map(|index| self.location(*index)).collect();
        let index = self.stacks.add(proto::Stack { location_indices });
        self.of_stack.insert(stack, index);
        index
    }

    fn location(&mut self, id: LocationIndex) -> i32 {
        if let Some(index) = self.of_location.get(&id) {
            return *index;
        }
        let profile = self.profile;
        let location = profile.location(id);
        let frame_type = match location.place {
            Place::Kernel => "kernel",
            Place::Mapped(_) | Place::Unknown => "native",
            Place::Runtime(kind) => kind.name(),
        };
        let lines = location.functions.iter().map(|function| {
            let entry = proto::Function {
                name_strindex: self.string(&function.name),
                system_name_strindex: self.string(&function.system_name),
                filename_strindex: self.string(&function.file),
                start_line: 0,
            };
            proto::Line {
                function_index: self.functions.add(entry),
                line: function.line.into(),
                column: function.column.into(),
            }
        });
        let lines = lines.collect();
        let entry = Location {
            mapping: self.mapping(location.place),
            address: self.address(location),
            lines,
            attributes: vec![self.text("profile.frame.type", frame_type)],
        };
        let index = self.locations.add(entry);
        self.of_location.insert(id, index);
        index
    }

    /// Returns true if addresses of this place are relative to its file, as if that were mapped at
    /// address 0: then all processes that map it share its entries.
    fn is_relative(&self, place: Place) -> bool {
        let profile = self.profile;
        let module = profile.module_of(place);
        module.is_some_and(|module| profile.catalog().module_facts(module).has_file())
    }

    fn address(&self, location: &crate::Location) -> u64 {
        match location.place {
            Place::Mapped(mapping) if self.is_relative(location.place) => {
                // The target chooses both: the sum may overflow.
                let within = location.address.saturating_sub(mapping.start);
                within.saturating_add(mapping.offset)
            }
            _ => location.address,
        }
    }

    fn mapping(&mut self, place: Place) -> i32 {
        let profile = self.profile;
        let Some(module) = profile.module_of(place) else {
            return 0;
        };
        let mut attributes = Vec::new();
        if let Some(identity) = profile.identity(module) {
            if !identity.build_id.is_empty() {
                let build_id = hexadecimal(&identity.build_id);
                attributes.push(self.text("process.executable.build_id.gnu", &build_id));
            }
            if let Some(hash) = identity.htlhash.map(|hash| hexadecimal(&hash)) {
                attributes.push(self.text("process.executable.build_id.htlhash", &hash));
            }
        }
        let (start, end, file_offset) = range(place);
        let is_relative = self.is_relative(place);
        let memory_start = if is_relative { file_offset } else { start };
        let memory_limit = memory_start.saturating_add(end.saturating_sub(start));
        let entry = proto::Mapping {
            memory_start,
            memory_limit,
            file_offset,
            filename_strindex: self.string(&profile.catalog().module_facts(module).path),
            attribute_indices: attributes,
        };
        self.mappings.add(entry)
    }

    /// Returns the size of the dictionary, in bytes.
    pub(super) fn encoded_len(&self) -> usize {
        self.mappings.bytes
            + self.locations.bytes
            + self.functions.bytes
            + self.links.bytes
            + self.strings.bytes
            + self.attributes.bytes
            + self.stacks.bytes
    }

    pub(super) fn write(&self, out: &mut Out<'_>) -> io::Result<()> {
        for entry in &self.mappings.entries {
            out.entry(field::MAPPING, entry)?;
        }
        for entry in &self.locations.entries {
            out.entry(field::LOCATION, &entry.message())?;
        }
        for entry in &self.functions.entries {
            out.entry(field::FUNCTION, entry)?;
        }
        for entry in &self.links.entries {
            out.entry(field::LINK, entry)?;
        }
        for entry in &self.strings.entries {
            out.string(field::STRING, entry)?;
        }
        for entry in &self.attributes.entries {
            out.entry(field::ATTRIBUTE, &entry.message())?;
        }
        for entry in &self.stacks.entries {
            out.entry(field::STACK, entry)?;
        }
        Ok(())
    }
}
