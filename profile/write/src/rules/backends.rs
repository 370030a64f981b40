//! What backends expect of a file beyond the rules of the data model.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    Location, Mapping, Profile, ProfilesData, Sample, ValueType,
};

use super::{Check, entry, key};

/// Size of a head-tail hash, in bytes.
const HTLHASH_SIZE: usize = 16;

/// Describes what a backend would miss in `data`, which must not violate a rule
/// ([`super::violations`]); empty for every file that this crate writes:
///
/// - A profile counts samples with a period of CPU time, or off-CPU nanoseconds without a period:
///   what Pyroscope maps. Each sample has its times.
/// - A sample has `thread.name`, `thread.id` and `cpu.logical_number`, a resource `service.name` and `process.pid`.
/// - A location has `profile.frame.type`, which may be one that the semantic conventions do not list;
///   it is `kernel` for locations in the kernel, and for no others.
/// - A mapping of a file has `process.executable.build_id.htlhash`, by which Elastic finds symbols, and
///   ids are hexadecimal digits. The GNU build id is optional: not every file has one. A mapping
///   without a file (the kernel, the vDSO, just-in-time compiled code) and one of a removed file, which
///   may be unreadable, can have neither.
#[must_use]
pub fn missed_by_backends(data: &ProfilesData) -> Vec<String> {
    let Some(dictionary) = &data.dictionary else {
        return Vec::new();
    };
    let mut check = Check {
        dictionary,
        found: Vec::new(),
    };
    for mapping in dictionary.mapping_table.iter().skip(1) {
        check.identity(mapping);
    }
    for location in dictionary.location_table.iter().skip(1) {
        check.frame_type(location);
    }
    for resource in &data.resource_profiles {
        let attributes = resource.resource.iter().flat_map(|it| &it.attributes);
        let keys: Vec<&str> = attributes.map(|it| key(dictionary, it)).collect();
        for name in ["service.name", "process.pid"] {
            check.require(keys.contains(&name), || format!("a resource has no {name}"));
        }
        let scopes = &resource.scope_profiles;
        for profile in scopes.iter().flat_map(|scope| &scope.profiles) {
            check.kind(profile);
            for sample in &profile.samples {
                check.thread(sample);
            }
        }
    }
    check.found
}

impl<'d> Check<'d> {
    fn text(&self, index: i32) -> &'d str {
        entry(&self.dictionary.string_table, index).map_or("", String::as_str)
    }

    /// An attribute's value.
    fn value(&self, indices: &[i32], name: &str) -> Option<&'d Value> {
        let table = &self.dictionary.attribute_table;
        let mut entries = indices.iter().filter_map(|index| entry(table, *index));
        let named = entries.find(|entry| self.text(entry.key_strindex) == name);
        named?.value.as_ref()?.value.as_ref()
    }

    fn identity(&mut self, mapping: &Mapping) {
        let name = self.text(mapping.filename_strindex);
        let id = |check: &Self, name| check.value(&mapping.attribute_indices, name).cloned();
        let gnu = id(self, "process.executable.build_id.gnu");
        let hash = id(self, "process.executable.build_id.htlhash");
        // "//anon" is the kernel's name for memory without a file.
        let is_file = name.starts_with('/') && !name.starts_with("//");
        let may_be_read = is_file && !name.ends_with(" (deleted)");
        self.require(hash.is_some() || !may_be_read, || {
            format!("the mapping of {name} has no head-tail hash")
        });
        for (id, size) in [(gnu, None), (hash, Some(HTLHASH_SIZE))] {
            let is_id = id.as_ref().is_none_or(|id| is_hexadecimal(id, size));
            self.require(is_id, || format!("the mapping of {name} has the id {id:?}"));
        }
    }

    fn frame_type(&mut self, location: &Location) {
        let found = self.value(&location.attribute_indices, "profile.frame.type");
        let found = match found {
            Some(Value::StringValue(text)) => text,
            _ => "",
        };
        self.require(!found.is_empty(), || {
            "a location has no frame type".to_owned()
        });
        let mapping = entry(&self.dictionary.mapping_table, location.mapping_index);
        let name = mapping.map_or("", |mapping| self.text(mapping.filename_strindex));
        let is_kernels = name == otelctx_sample::Module::kernel().path;
        self.require(is_kernels == (found == "kernel"), || {
            format!("a location in {name:?} has the frame type {found}")
        });
    }

    fn kind(&mut self, profile: &Profile) {
        let words = |found: Option<ValueType>| {
            found.map(|it| (self.text(it.type_strindex), self.text(it.unit_strindex)))
        };
        let kind = (words(profile.sample_type), words(profile.period_type));
        let is_known = match kind {
            (Some(("samples", "count")), Some(("cpu", "nanoseconds"))) => profile.period > 0,
            (Some(("off_cpu", "nanoseconds")), None) => profile.period == 0,
            _ => false,
        };
        self.require(is_known, || {
            format!(
                "a profile has the types {kind:?} with the period {}",
                profile.period
            )
        });
    }

    fn thread(&mut self, sample: &Sample) {
        let value = |name| self.value(&sample.attribute_indices, name);
        let (name, id) = (value("thread.name"), value("thread.id"));
        let has_cpu = matches!(value("cpu.logical_number"), Some(Value::IntValue(_)));
        let has_identity =
            matches!(name, Some(Value::StringValue(_))) && matches!(id, Some(Value::IntValue(_)));
        self.require(has_identity, || {
            format!("a sample has the thread {name:?} with the id {id:?}")
        });
        self.require(has_cpu, || "a sample has no CPU".to_owned());
        self.require(!sample.timestamps_unix_nano.is_empty(), || {
            "a sample has no time".to_owned()
        });
    }
}

/// Whether this is the hexadecimal text of `size` bytes, or of any number if that is `None`.
fn is_hexadecimal(value: &Value, size: Option<usize>) -> bool {
    let Value::StringValue(text) = value else {
        return false;
    };
    let digits = |text: &str| {
        text.bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let length = text.len();
    digits(text) && length > 0 && length % 2 == 0 && size.is_none_or(|size| length == 2 * size)
}
