//! What OTLP messages say, one line a sample and time, with nothing left as an index: so what was
//! sent in several messages can be compared with what was sent in one.

#![allow(dead_code)]

use std::collections::BTreeSet;

use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    Location, Profile, ProfilesData, ProfilesDictionary, Sample, ValueType,
};

/// All lines, sorted.
pub(crate) fn lines<'d>(messages: impl IntoIterator<Item = &'d ProfilesData>) -> Vec<String> {
    let mut lines = Vec::new();
    for data in messages {
        add(data, &mut lines);
    }
    lines.sort();
    lines
}

fn add(data: &ProfilesData, lines: &mut Vec<String>) {
    let dictionary = data.dictionary.as_ref().expect("a dictionary");
    for resource in &data.resource_profiles {
        let attributes = &resource.resource.as_ref().expect("a resource").attributes;
        let mut of_resource: Vec<String> = attributes
            .iter()
            .map(|attribute| {
                let key = match attribute.key_strindex {
                    0 => &attribute.key,
                    index => string(dictionary, index),
                };
                format!("{key}={}", value(dictionary, attribute.value.as_ref()))
            })
            .collect();
        of_resource.sort();
        for scope in &resource.scope_profiles {
            let name = &scope.scope.as_ref().expect("a scope").name;
            for profile in &scope.profiles {
                let head = format!("{of_resource:?} {name} {}", head(dictionary, profile));
                for sample in &profile.samples {
                    let body = body(dictionary, sample);
                    let times = &sample.timestamps_unix_nano;
                    // On-CPU samples have no values, others have one for each time.
                    let count = sample.values.len();
                    assert!(count == 0 || count == times.len(), "{sample:?}");
                    lines.extend(times.iter().enumerate().map(|(index, time)| {
                        let value = sample.values.get(index);
                        format!("{head} {body} {value:?} at {time}")
                    }));
                }
            }
        }
    }
}

/// A Collector refers to the dictionary's strings also where they may stand for themselves.
fn value(dictionary: &ProfilesDictionary, value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => format!("{text:?}"),
        Some(Value::StringValueStrindex(index)) => format!("{:?}", string(dictionary, *index)),
        other => format!("{other:?}"),
    }
}

fn string(dictionary: &ProfilesDictionary, index: i32) -> &str {
    &dictionary.string_table[index as usize]
}

fn head(dictionary: &ProfilesDictionary, profile: &Profile) -> String {
    let types = |found: Option<ValueType>| {
        let ValueType {
            type_strindex,
            unit_strindex,
        } = found.unwrap_or_default();
        let kind = string(dictionary, type_strindex);
        format!("{kind}/{}", string(dictionary, unit_strindex))
    };
    format!(
        "{} period {} {} from {} for {}",
        types(profile.sample_type),
        types(profile.period_type),
        profile.period,
        profile.time_unix_nano,
        profile.duration_nano,
    )
}

fn body(dictionary: &ProfilesDictionary, sample: &Sample) -> String {
    let link = &dictionary.link_table[sample.link_index as usize];
    let stack = &dictionary.stack_table[sample.stack_index as usize];
    let locations: Vec<String> = stack
        .location_indices
        .iter()
        .map(|index| location(dictionary, &dictionary.location_table[*index as usize]))
        .collect();
    format!(
        "{:?} {:x?}/{:x?} {locations:?}",
        attributes(dictionary, &sample.attribute_indices),
        link.trace_id,
        link.span_id,
    )
}

fn attributes(dictionary: &ProfilesDictionary, indices: &[i32]) -> BTreeSet<String> {
    let text = |index: &i32| {
        let attribute = &dictionary.attribute_table[*index as usize];
        let key = string(dictionary, attribute.key_strindex);
        format!("{key}={}", value(dictionary, attribute.value.as_ref()))
    };
    indices.iter().map(text).collect()
}

fn location(dictionary: &ProfilesDictionary, location: &Location) -> String {
    let mapping = &dictionary.mapping_table[location.mapping_index as usize];
    let lines: Vec<String> = location
        .lines
        .iter()
        .map(|line| {
            let function = &dictionary.function_table[line.function_index as usize];
            format!(
                "{} {} {}:{}",
                string(dictionary, function.name_strindex),
                string(dictionary, function.system_name_strindex),
                string(dictionary, function.filename_strindex),
                line.line,
            )
        })
        .collect();
    format!(
        "{:#x} {:?} in {} {:#x}-{:#x}+{:#x} {:?} {lines:?}",
        location.address,
        attributes(dictionary, &location.attribute_indices),
        string(dictionary, mapping.filename_strindex),
        mapping.memory_start,
        mapping.memory_limit,
        mapping.file_offset,
        attributes(dictionary, &mapping.attribute_indices),
    )
}

/// Entries, beside each table's first, that nothing in the message uses: empty for a good one.
pub(crate) fn unused(data: &ProfilesData) -> Vec<String> {
    let dictionary = data.dictionary.as_ref().expect("a dictionary");
    let mut used: [BTreeSet<i32>; 7] = Default::default();
    let [
        mappings,
        locations,
        functions,
        links,
        strings,
        attributes,
        stacks,
    ] = &mut used;
    let profiles = data
        .resource_profiles
        .iter()
        .flat_map(|resource| &resource.scope_profiles)
        .flat_map(|scope| &scope.profiles);
    for profile in profiles {
        for types in [profile.sample_type, profile.period_type] {
            let types = types.unwrap_or_default();
            strings.extend([types.type_strindex, types.unit_strindex]);
        }
        for sample in &profile.samples {
            stacks.insert(sample.stack_index);
            links.insert(sample.link_index);
            attributes.extend(&sample.attribute_indices);
        }
    }
    for stack in stacks.iter() {
        locations.extend(&dictionary.stack_table[*stack as usize].location_indices);
    }
    for location in locations.iter() {
        let location = &dictionary.location_table[*location as usize];
        mappings.insert(location.mapping_index);
        attributes.extend(&location.attribute_indices);
        functions.extend(location.lines.iter().map(|line| line.function_index));
    }
    for mapping in mappings.iter() {
        let mapping = &dictionary.mapping_table[*mapping as usize];
        strings.insert(mapping.filename_strindex);
        attributes.extend(&mapping.attribute_indices);
    }
    for function in functions.iter() {
        let function = &dictionary.function_table[*function as usize];
        strings.extend([
            function.name_strindex,
            function.system_name_strindex,
            function.filename_strindex,
        ]);
    }
    for attribute in attributes.iter() {
        let attribute = &dictionary.attribute_table[*attribute as usize];
        strings.extend([attribute.key_strindex, attribute.unit_strindex]);
    }
    let tables = [
        ("mapping", dictionary.mapping_table.len()),
        ("location", dictionary.location_table.len()),
        ("function", dictionary.function_table.len()),
        ("link", dictionary.link_table.len()),
        ("string", dictionary.string_table.len()),
        ("attribute", dictionary.attribute_table.len()),
        ("stack", dictionary.stack_table.len()),
    ];
    let unused = tables.iter().zip(&used).flat_map(|((name, length), used)| {
        let entries = 1..i32::try_from(*length).expect("a table's length");
        entries
            .filter(|index| !used.contains(index))
            .map(move |index| format!("{name} {index}"))
    });
    unused.collect()
}
