//! Entries of a dictionary, each decoded when it is used first.

use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as proto;
use otelctx_sample::{GilState, OffCpuState};
use prost::Message;

use super::super::tables::{Function, Id, Line, Mapping, NONE, add};
use super::super::values::{entry, id};
use super::super::wire::fields;
use super::{Attribute, Reader, UNKNOWN};
use crate::attributes::{
    CALL, GIL, REASON, RECORDED, STATE, THREAD_ID, THREAD_NAME, UPSTREAM_PREFIX,
};

/// Attributes of samples, mappings and frames that this crate writes.
const CPU: &str = "cpu.logical_number";
const TRACE_ID: &str = "trace_id";
const SPAN_ID: &str = "span_id";
const FRAME_TYPE: &str = "profile.frame.type";
const BUILD_ID: &str = "process.executable.build_id.gnu";
const HTLHASH: &str = "process.executable.build_id.htlhash";

impl<'m> Reader<'m, '_> {
    /// Returns the number of a string's text.
    fn text(&mut self, index: u64) -> Result<Id, String> {
        let text = *entry(&self.strings, index, "a string")?;
        let known = &mut self.texts[index as usize];
        if *known == UNKNOWN {
            *known = self.tables.add_text(text)?;
        }
        Ok(*known)
    }

    pub(super) fn attribute(&mut self, index: u64) -> Result<Attribute, String> {
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
            STATE => OffCpuState::ALL
                .into_iter()
                .find(|it| it.name() == text)
                .map(Attribute::State),
            CALL => Some(Attribute::Call(self.tables.add_text(&text)?)),
            REASON => Some(Attribute::Reason(self.tables.add_text(&text)?)),
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
        // With the prefix, these names are a context's attributes, not what the recorder found.
        let name = key.strip_prefix(UPSTREAM_PREFIX);
        let name = name.filter(|name| !RECORDED.contains(name)).unwrap_or(key);
        let name = self.tables.add_text(name)?;
        Ok(Attribute::Context(name, self.tables.add_text(value)?))
    }

    pub(super) fn stack(&mut self, index: u64) -> Result<Id, String> {
        if index == 0 && self.stacks.is_empty() {
            return Ok(NONE);
        }
        let known = *entry(&self.known_stacks, index, "a sample's stack")?;
        if known != UNKNOWN {
            return Ok(known);
        }
        let encoded = self.stacks[index as usize];
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
        self.known_stacks[index as usize] = known;
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
                column: u32::try_from(line.column).unwrap_or(0),
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
