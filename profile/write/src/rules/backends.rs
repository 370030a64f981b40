//! Expectations of backends beyond the rules of the data model.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    Location, Mapping, Profile, ProfilesData, Sample, ValueType,
};

use super::{Check, MAX_VIOLATIONS, entry, key, require, value};

/// Size of a head-tail hash, in bytes.
const HTLHASH_SIZE: usize = 16;

/// Describes what a backend would miss in `data`, which must not violate a rule
/// ([`super::violations`]); empty for every file that this crate writes:
///
/// - A profile counts samples with a period of CPU time, or off-CPU nanoseconds without a period:
///   what Pyroscope maps. Each sample has its times.
/// - A sample has `thread.name`, `thread.id` and `cpu.logical_number`.
/// - A resource has `service.name` and `process.pid`.
/// - A location has `profile.frame.type`, which may be another than the semantic conventions list;
///   it is `kernel` for locations in the kernel, and for no others.
/// - A mapping of a file has `process.executable.build_id.htlhash`, by which Elastic finds symbols;
///   IDs are hexadecimal digits. The GNU build ID is optional: not every file has one. A mapping
///   without a file (kernel, vDSO, generated code) or of a removed file can lack both.
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
            require!(check, keys.contains(&name), "a resource has no {name}");
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

    fn value(&self, indices: &[i32], name: &str) -> Option<&'d Value> {
        value(self.dictionary, indices, name)?.value.as_ref()
    }

    fn identity(&mut self, mapping: &Mapping) {
        let name = self.text(mapping.filename_strindex);
        let id = |check: &Self, name| check.value(&mapping.attribute_indices, name).cloned();
        let gnu = id(self, "process.executable.build_id.gnu");
        let hash = id(self, "process.executable.build_id.htlhash");
        // "//anon" is the kernel's name for memory without a file.
        let is_file = name.starts_with('/') && !name.starts_with("//");
        let may_be_read = is_file && !name.ends_with(" (deleted)");
        require!(
            self,
            hash.is_some() || !may_be_read,
            "the mapping of {name} has no head-tail hash"
        );
        for (id, size) in [(gnu, None), (hash, Some(HTLHASH_SIZE))] {
            let is_id = id.as_ref().is_none_or(|id| is_hexadecimal(id, size));
            require!(self, is_id, "the mapping of {name} has the id {id:?}");
        }
    }

    fn frame_type(&mut self, location: &Location) {
        let found = match self.value(&location.attribute_indices, "profile.frame.type") {
            Some(Value::StringValue(text)) => text,
            _ => "",
        };
        require!(self, !found.is_empty(), "a location has no frame type");
        let mapping = entry(&self.dictionary.mapping_table, location.mapping_index);
        let name = mapping.map_or("", |mapping| self.text(mapping.filename_strindex));
        let is_kernels = name == otelctx_sample::Module::kernel().path;
        require!(
            self,
            is_kernels == (found == "kernel"),
            "a location in {name:?} has the frame type {found}"
        );
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
        require!(
            self,
            is_known,
            "a profile has the types {kind:?} with the period {}",
            profile.period
        );
    }

    fn thread(&mut self, sample: &Sample) {
        let value = |name| self.value(&sample.attribute_indices, name);
        let (name, id) = (value("thread.name"), value("thread.id"));
        let has_cpu = matches!(value("cpu.logical_number"), Some(Value::IntValue(_)));
        let has_identity =
            matches!(name, Some(Value::StringValue(_))) && matches!(id, Some(Value::IntValue(_)));
        require!(
            self,
            has_identity,
            "a sample has the thread {name:?} with the id {id:?}"
        );
        require!(self, has_cpu, "a sample has no CPU");
        require!(
            self,
            !sample.timestamps_unix_nano.is_empty(),
            "a sample has no time"
        );
    }
}

/// Returns true for hexadecimal digits of `size` bytes, or of any number if that is `None`.
fn is_hexadecimal(value: &Value, size: Option<usize>) -> bool {
    let Value::StringValue(text) = value else {
        return false;
    };
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let length = text.len();
    let has_size = size.is_none_or(|size| length == 2 * size);
    text.bytes().all(is_digit) && length > 0 && length % 2 == 0 && has_size
}
