//! The rules of the OTLP profiles data model that its messages alone do not enforce
//! (`opentelemetry/proto/profiles/v1development/profiles.proto`, the comments of its messages, and
//! the OpenTelemetry specification's profiles data model).

mod backends;

pub use backends::missed_by_backends;

use std::collections::HashSet;
use std::hash::Hash;

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development::{
    KeyValueAndUnit, Line, Location, Mapping, Profile, ProfilesData, ProfilesDictionary, Sample,
};
use otelctx_sample::format::THREADLOCAL;
use prost::Message;

/// The maximum number of reported violations: a broken file can have one for each entry.
const MAX_VIOLATIONS: usize = 20;

/// Describes the violations of rules in `data`; empty for a valid file.
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
        let attributes = resource.resource.as_ref();
        check.resource(index, attributes.map_or(&[][..], |it| &it.attributes));
        let scopes = resource.scope_profiles.iter();
        for profile in scopes.flat_map(|scope| &scope.profiles) {
            check.profile(profile);
        }
    }
    check.found
}

struct Check<'d> {
    dictionary: &'d ProfilesDictionary,
    found: Vec<String>,
}

/// Adds a violation, formatted like by `format!`, to a check unless the condition holds.
macro_rules! require {
    ($check:expr, $holds:expr, $($violation:tt)+) => {
        if !$holds && $check.found.len() < MAX_VIOLATIONS {
            $check.found.push(format!($($violation)+));
        }
    };
}
use require;

impl Check<'_> {
    fn tables(&mut self) {
        let dictionary = self.dictionary;
        self.table("mapping", &dictionary.mapping_table, Mapping::encode_to_vec);
        let locations = &dictionary.location_table;
        self.table("location", locations, Location::encode_to_vec);
        self.table("function", &dictionary.function_table, |entry| entry);
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
            require!(self, sizes == (16, 8), "a link has ids of {sizes:?} bytes");
            let zero = |id: &[u8]| id.iter().all(|byte| *byte == 0);
            let has_zero = zero(&link.trace_id) || zero(&link.span_id);
            require!(self, !has_zero, "a link has an all-zero ID");
        }
        for attribute in dictionary.attribute_table.iter().skip(1) {
            self.string("an attribute's name", attribute.key_strindex);
            self.string("an attribute's unit", attribute.unit_strindex);
            require!(
                self,
                attribute.key_strindex != 0,
                "an attribute has no name"
            );
            require!(self, attribute.value.is_some(), "an attribute has no value");
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
                self.index("a stack's location", index, locations.len());
                require!(self, index != 0, "a stack has location 0");
            }
        }
    }

    /// Checks the rules of every table: entry 0 is the zero value, and no entry occurs twice.
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
        require!(
            self,
            first == Some(&T::default()),
            "entry 0 of the {name} table is not the zero value"
        );
    }

    fn unique<'t, T, K: Hash + Eq>(
        &mut self,
        name: &str,
        entries: &'t [T],
        key: impl Fn(&'t T) -> K,
    ) {
        let mut seen = HashSet::new();
        for (index, entry) in entries.iter().enumerate() {
            require!(
                self,
                seen.insert(key(entry)),
                "entry {index} of the {name} table occurs twice"
            );
        }
    }

    fn mapping(&mut self, mapping: &Mapping) {
        self.string("a mapping's file name", mapping.filename_strindex);
        require!(
            self,
            mapping.memory_start < mapping.memory_limit,
            "a mapping has no size"
        );
        self.attributes("a mapping", &mapping.attribute_indices);
    }

    fn location(&mut self, location: &Location) {
        let mappings = &self.dictionary.mapping_table;
        let index = location.mapping_index;
        self.index("a location's mapping", index, mappings.len());
        if index != 0
            && let Some(mapping) = entry(mappings, index)
        {
            // A return address may be the first address after the mapping.
            let within = mapping.memory_start..=mapping.memory_limit;
            require!(
                self,
                within.contains(&location.address),
                "address {:#x} is not in its mapping",
                location.address
            );
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
            require!(self, !key.is_empty(), "resource {index} has an empty key");
            require!(self, seen.insert(key), "resource {index} has {key} twice");
            require!(
                self,
                !key.starts_with(THREADLOCAL),
                "resource {index} has {key}, which is not telemetry"
            );
        }
    }

    fn profile(&mut self, profile: &Profile) {
        require!(
            self,
            profile.sample_type.is_some(),
            "a profile has no sample type"
        );
        for value_type in [profile.sample_type, profile.period_type] {
            let value_type = value_type.unwrap_or_default();
            self.string("a value's type", value_type.type_strindex);
            self.string("a value's unit", value_type.unit_strindex);
        }
        require!(
            self,
            profile.period_type.is_none() || profile.period > 0,
            "a profile has a period type and no period"
        );
        self.attributes("a profile", &profile.attribute_indices);
        let mut seen = HashSet::new();
        for sample in &profile.samples {
            self.sample(profile, sample);
            let mut attributes = sample.attribute_indices.clone();
            attributes.sort_unstable();
            let identity = (sample.stack_index, sample.link_index, attributes);
            require!(
                self,
                seen.insert(identity),
                "two samples of a profile differ only in time"
            );
        }
    }

    fn sample(&mut self, profile: &Profile, sample: &Sample) {
        let dictionary = self.dictionary;
        let (stacks, links) = (&dictionary.stack_table, &dictionary.link_table);
        self.index("a sample's stack", sample.stack_index, stacks.len());
        self.index("a sample's link", sample.link_index, links.len());
        self.attributes("a sample", &sample.attribute_indices);
        let (values, times) = (sample.values.len(), sample.timestamps_unix_nano.len());
        require!(
            self,
            values + times > 0,
            "a sample has no value and no time"
        );
        require!(
            self,
            values == 0 || times == 0 || values == times,
            "a sample has {values} values at {times} times"
        );
        let start = profile.time_unix_nano;
        let span = start..start.saturating_add(profile.duration_nano);
        for time in &sample.timestamps_unix_nano {
            require!(
                self,
                span.contains(time),
                "a sample's time {time} is not in the profile's {span:?}"
            );
        }
    }

    fn string(&mut self, what: &str, index: i32) {
        self.index(what, index, self.dictionary.string_table.len());
    }

    fn index(&mut self, what: &str, index: i32, length: usize) {
        let within = usize::try_from(index).is_ok_and(|index| index < length);
        require!(self, within, "{what} is entry {index} of {length}");
    }

    fn attributes(&mut self, what: &str, indices: &[i32]) {
        let table = &self.dictionary.attribute_table;
        let mut keys = HashSet::new();
        for &index in indices {
            self.index(&format!("{what}'s attribute"), index, table.len());
            let Some(entry) = entry(table, index) else {
                continue;
            };
            require!(
                self,
                keys.insert(entry.key_strindex),
                "{what} has one attribute twice"
            );
        }
    }
}

pub(crate) fn entry<T>(table: &[T], index: i32) -> Option<&T> {
    table.get(usize::try_from(index).ok()?)
}

/// Converts an index of a dictionary's table.
pub(crate) fn to_index(index: usize) -> i32 {
    i32::try_from(index).expect("a dictionary's table holds less than 2^31 entries")
}

/// Returns the value of the attribute with this name among entries of the attribute table.
pub(crate) fn value<'d>(
    dictionary: &'d ProfilesDictionary,
    indices: &[i32],
    name: &str,
) -> Option<&'d AnyValue> {
    let mut found = indices.iter();
    let found = found.find_map(|index| {
        let found = entry(&dictionary.attribute_table, *index)?;
        let key = entry(&dictionary.string_table, found.key_strindex)?;
        (key == name).then_some(found)
    });
    found?.value.as_ref()
}

/// Returns an attribute's name, which may be in the dictionary's string table.
pub(crate) fn key<'d>(dictionary: &'d ProfilesDictionary, attribute: &'d KeyValue) -> &'d str {
    match attribute.key_strindex {
        0 => &attribute.key,
        index => entry(&dictionary.string_table, index).map_or("", String::as_str),
    }
}

/// Returns an attribute's value, if it is a string, which may be in the dictionary's string table.
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
