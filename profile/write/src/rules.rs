//! The rules of the OTLP profiles data model that its messages alone do not enforce
//! (`opentelemetry/proto/profiles/v1development/profiles.proto`, the comments of its messages, and
//! the OpenTelemetry specification's profiles data model).

mod backends;

pub use backends::missed_by_backends;

use std::collections::HashSet;
use std::hash::Hash;

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Location, Mapping, Profile, ProfilesData, ProfilesDictionary,
    Sample, ValueType,
};
use otelctx_sample::format::THREADLOCAL;
use prost::Message;

/// The maximum number of reported violations: a broken file can have one for each entry.
const MAX_VIOLATIONS: usize = 20;

/// Describes each violation of a rule in `data`; empty for a valid file.
#[must_use]
pub fn violations(data: &ProfilesData) -> Vec<String> {
    let Some(dictionary) = &data.dictionary else {
        return vec!["there is no dictionary: the end of the file is missing".to_owned()];
    };
    let mut check = Check {
        dictionary,
        found: Vec::new(),
    };
    check.tables();
    for (index, resource) in data.resource_profiles.iter().enumerate() {
        let attributes = resource
            .resource
            .as_ref()
            .map(|found| &found.attributes[..]);
        check.resource(index, attributes.unwrap_or_default());
        for profile in resource
            .scope_profiles
            .iter()
            .flat_map(|scope| &scope.profiles)
        {
            check.profile(profile);
        }
    }
    check.found
}

struct Check<'d> {
    dictionary: &'d ProfilesDictionary,
    found: Vec<String>,
}

impl Check<'_> {
    fn violated(&mut self, rule: impl FnOnce() -> String) {
        if self.found.len() < MAX_VIOLATIONS {
            self.found.push(rule());
        }
    }

    fn require(&mut self, holds: bool, rule: impl FnOnce() -> String) {
        if !holds {
            self.violated(rule);
        }
    }

    fn tables(&mut self) {
        let dictionary = self.dictionary;
        self.table("mapping", &dictionary.mapping_table, Mapping::encode_to_vec);
        self.table(
            "location",
            &dictionary.location_table,
            Location::encode_to_vec,
        );
        self.table(
            "function",
            &dictionary.function_table,
            |entry: &Function| *entry,
        );
        self.table("link", &dictionary.link_table, |entry| entry);
        self.table("string", &dictionary.string_table, |entry| entry);
        let attributes = &dictionary.attribute_table;
        self.unique("attribute", attributes, KeyValueAndUnit::encode_to_vec);
        // The OpenTelemetry Collector writes it with an empty value.
        let mut first = attributes.first().cloned();
        if let Some(entry) = &mut first {
            entry.value = entry.value.take().filter(|value| value.value.is_some());
        }
        self.zero("attribute", first.as_ref());
        self.table("stack", &dictionary.stack_table, |entry| entry);
        for link in dictionary.link_table.iter().skip(1) {
            let sizes = (link.trace_id.len(), link.span_id.len());
            self.require(sizes == (16, 8), || {
                format!("a link has ids of {sizes:?} bytes")
            });
            let zero = |id: &[u8]| id.iter().all(|byte| *byte == 0);
            let has_zero = zero(&link.trace_id) || zero(&link.span_id);
            self.require(!has_zero, || "a link has an all-zero ID".to_owned());
        }
        for attribute in dictionary.attribute_table.iter().skip(1) {
            self.string("an attribute's name", attribute.key_strindex);
            self.string("an attribute's unit", attribute.unit_strindex);
            self.require(attribute.key_strindex != 0, || {
                "an attribute has no name".to_owned()
            });
            self.require(attribute.value.is_some(), || {
                "an attribute has no value".to_owned()
            });
        }
        for mapping in dictionary.mapping_table.iter().skip(1) {
            self.mapping(mapping);
        }
        for function in dictionary.function_table.iter().skip(1) {
            self.string("a function's name", function.name_strindex);
            self.string("a function's system name", function.system_name_strindex);
            self.string("a function's file", function.filename_strindex);
        }
        for location in dictionary.location_table.iter().skip(1) {
            self.location(location);
        }
        for stack in dictionary.stack_table.iter().skip(1) {
            for &index in &stack.location_indices {
                self.index("a stack's location", index, dictionary.location_table.len());
                self.require(index != 0, || "a stack has location 0".to_owned());
            }
        }
    }

    /// The rules of every table: entry 0 is the zero value, and no entry occurs twice.
    fn table<'t, T: Default + PartialEq, K: Hash + Eq>(
        &mut self,
        name: &str,
        entries: &'t [T],
        key: impl Fn(&'t T) -> K,
    ) {
        self.zero(name, entries.first());
        self.unique(name, entries, key);
    }

    fn zero<T: Default + PartialEq>(&mut self, name: &str, first: Option<&T>) {
        self.require(first == Some(&T::default()), || {
            format!("entry 0 of the {name} table is not the zero value")
        });
    }

    fn unique<'t, T, K: Hash + Eq>(
        &mut self,
        name: &str,
        entries: &'t [T],
        key: impl Fn(&'t T) -> K,
    ) {
        let mut seen = HashSet::new();
        for (index, entry) in entries.iter().enumerate() {
            self.require(seen.insert(key(entry)), || {
                format!("entry {index} of the {name} table occurs twice")
            });
        }
    }

    fn mapping(&mut self, mapping: &Mapping) {
        self.string("a mapping's file name", mapping.filename_strindex);
        self.require(mapping.memory_start < mapping.memory_limit, || {
            "a mapping has no size".to_owned()
        });
        self.attributes("a mapping", &mapping.attribute_indices);
    }

    fn location(&mut self, location: &Location) {
        let mappings = &self.dictionary.mapping_table;
        self.index(
            "a location's mapping",
            location.mapping_index,
            mappings.len(),
        );
        if location.mapping_index != 0
            && let Some(mapping) = entry(mappings, location.mapping_index)
        {
            // A return address may be the first address after the mapping.
            let within = mapping.memory_start..=mapping.memory_limit;
            self.require(within.contains(&location.address), || {
                format!("address {:#x} is not in its mapping", location.address)
            });
        }
        for &Line { function_index, .. } in &location.lines {
            let functions = self.dictionary.function_table.len();
            self.index("a line's function", function_index, functions);
        }
        self.attributes("a location", &location.attribute_indices);
    }

    fn resource(&mut self, index: usize, attributes: &[KeyValue]) {
        let mut seen = HashSet::new();
        for attribute in attributes {
            let key = key(self.dictionary, attribute);
            self.require(!key.is_empty(), || {
                format!("resource {index} has an empty key")
            });
            self.require(seen.insert(key), || {
                format!("resource {index} has {key} twice")
            });
            self.require(!key.starts_with(THREADLOCAL), || {
                format!("resource {index} has {key}, which is not telemetry")
            });
        }
    }

    fn profile(&mut self, profile: &Profile) {
        let value_type = |check: &mut Self, found: Option<ValueType>| {
            let ValueType {
                type_strindex,
                unit_strindex,
            } = found.unwrap_or_default();
            check.string("a value's type", type_strindex);
            check.string("a value's unit", unit_strindex);
        };
        self.require(profile.sample_type.is_some(), || {
            "a profile has no sample type".to_owned()
        });
        value_type(self, profile.sample_type);
        value_type(self, profile.period_type);
        self.require(profile.period_type.is_none() || profile.period > 0, || {
            "a profile has a period type and no period".to_owned()
        });
        self.attributes("a profile", &profile.attribute_indices);
        let mut seen = HashSet::new();
        for sample in &profile.samples {
            self.sample(profile, sample);
            let mut attributes = sample.attribute_indices.clone();
            attributes.sort_unstable();
            let identity = (sample.stack_index, sample.link_index, attributes);
            self.require(seen.insert(identity), || {
                "two samples of a profile differ only in time".to_owned()
            });
        }
    }

    fn sample(&mut self, profile: &Profile, sample: &Sample) {
        let dictionary = self.dictionary;
        self.index(
            "a sample's stack",
            sample.stack_index,
            dictionary.stack_table.len(),
        );
        self.index(
            "a sample's link",
            sample.link_index,
            dictionary.link_table.len(),
        );
        self.attributes("a sample", &sample.attribute_indices);
        let (values, times) = (sample.values.len(), sample.timestamps_unix_nano.len());
        self.require(values + times > 0, || {
            "a sample has no value and no time".to_owned()
        });
        self.require(values == 0 || times == 0 || values == times, || {
            format!("a sample has {values} values at {times} times")
        });
        let start = profile.time_unix_nano;
        let span = start..start.saturating_add(profile.duration_nano);
        for time in &sample.timestamps_unix_nano {
            self.require(span.contains(time), || {
                format!("a sample's time {time} is not in the profile's {span:?}")
            });
        }
    }

    fn string(&mut self, what: &str, index: i32) {
        self.index(what, index, self.dictionary.string_table.len());
    }

    fn index(&mut self, what: &str, index: i32, length: usize) {
        let within = usize::try_from(index).is_ok_and(|index| index < length);
        self.require(within, || format!("{what} is entry {index} of {length}"));
    }

    fn attributes(&mut self, what: &str, indices: &[i32]) {
        let table = &self.dictionary.attribute_table;
        let mut keys = HashSet::new();
        for &index in indices {
            self.index(&format!("{what}'s attribute"), index, table.len());
            let Some(entry) = entry(table, index) else {
                continue;
            };
            self.require(keys.insert(entry.key_strindex), || {
                format!("{what} has one attribute twice")
            });
        }
    }
}

/// The entry of a table at an index.
pub(crate) fn entry<T>(table: &[T], index: i32) -> Option<&T> {
    table.get(usize::try_from(index).ok()?)
}

/// An attribute's name, which may be in the dictionary's string table.
pub(crate) fn key<'d>(dictionary: &'d ProfilesDictionary, attribute: &'d KeyValue) -> &'d str {
    match attribute.key_strindex {
        0 => &attribute.key,
        index => entry(&dictionary.string_table, index).map_or("", String::as_str),
    }
}

/// An attribute's value, if it is a string, which may be in the dictionary's string table.
pub(crate) fn text<'d>(
    dictionary: &'d ProfilesDictionary,
    value: Option<&'d AnyValue>,
) -> Option<&'d str> {
    match value?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text),
        any_value::Value::StringValueStrindex(index) => {
            entry(&dictionary.string_table, *index).map(String::as_str)
        }
        _ => None,
    }
}
