//! Summarizes a recorded file: CPU time by attribute, by trace and by function.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Read;
use std::path::Path;

use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::profiles::v1development::{
    KeyValueAndUnit, Location, Profile, ProfilesData, ProfilesDictionary, Sample,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use otelctx_sample::GilState;
use otelctx_sample::format::hexadecimal;
use otelctx_worker::Limits;
use serde::{Deserialize, Serialize};

use crate::attributes::{DETECTED, GIL, THREAD_ID, THREAD_NAME, UNKNOWN_SERVICE, UPSTREAM_PREFIX};
use crate::error::Error;
use crate::recorded_file::{LIMITS, decode, in_worker, read, read_from};
use crate::rules::{self, entry};

/// The name for samples without the attribute.
pub const NO_ATTRIBUTE: &str = "(none)";
/// The name of a function in an unknown file.
const UNKNOWN: &str = "[unknown]";

/// Sums of CPU time over a recorded file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// All samples.
    pub total: Cost,
    /// Samples with a trace.
    pub with_trace: Cost,
    /// Samples by the state of the interpreter's lock, in the order of [`GilState::ALL`].
    pub by_gil: [Cost; GilState::ALL.len()],
    /// Costs by value of the requested attribute, or [`NO_ATTRIBUTE`].
    pub by_attribute: Vec<(String, Cost)>,
    /// The names of all samples' attributes whose values are text.
    pub attributes: BTreeSet<String>,
    /// Those of them that have more than one value.
    pub varying: BTreeSet<String>,
    /// Costs by trace.
    pub by_trace: Vec<(Trace, Cost)>,
    /// Costs by function; of an unknown one by file, or `[unknown]`.
    pub by_function: Vec<(String, FunctionCost)>,
    /// Costs by file of samples whose innermost function is unknown.
    pub unnamed: Vec<(String, Cost)>,
    /// Costs by service name and process ID. Without a service name, the command name takes its
    /// place, or without samples of the first thread the program's name.
    pub by_process: Vec<(String, Cost)>,
    /// Time from the first recorded time to the last, in nanoseconds.
    pub duration: u64,
}

/// A trace in a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Trace {
    /// Its ID, 32 hexadecimal digits.
    pub id: String,
    /// The attribute's value in most of its samples; [`NO_ATTRIBUTE`] if there is none.
    pub attribute: String,
}

/// Samples, and the CPU time that they stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// The number of samples.
    pub samples: u64,
    /// CPU time, in nanoseconds.
    pub nanoseconds: u64,
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.samples = self.samples.saturating_add(other.samples);
        self.nanoseconds = self.nanoseconds.saturating_add(other.nanoseconds);
    }
}

/// The cost of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCost {
    /// Cost of the function itself.
    pub own: Cost,
    /// Cost of the function and the functions that it called.
    pub total: Cost,
}

/// Decodes and summarizes a file in a worker process: two bytes of a hostile file can encode a
/// message of a hundred. The memory limit includes the file.
fn sum_up(bytes: &[u8], path: &Path, by: &str, limits: Limits) -> Result<Report, Error> {
    in_worker(path, limits, |pipe| {
        let report = decode(bytes).map(|data| Report::of_all(&data, by));
        Ok(serde_json::to_writer(pipe, &report)?)
    })
}

impl Report {
    /// Reads and summarizes an OTLP file by the attribute `by`. The file is a single message, as by
    /// this crate, or several messages preceded by their sizes, as by the OpenTelemetry Collector's
    /// file exporter with `format: proto`.
    ///
    /// # Errors
    /// Returns the errors of [`Report::read_from`].
    pub fn read(path: &Path, by: &str) -> Result<Self, Error> {
        sum_up(&read(path)?, path, by, LIMITS)
    }

    /// Reads from a source other than a file; errors name it `path`.
    ///
    /// # Errors
    /// Returns [`Error::Read`], [`Error::TooLarge`] for more than 1 GiB, or 4 GiB of memory, and
    /// [`Error::Malformed`] for a truncated file or one that violates a rule of the format.
    pub fn read_from(source: impl Read, path: &Path, by: &str) -> Result<Self, Error> {
        sum_up(&read_from(source, path)?, path, by, LIMITS)
    }

    /// Summarizes `data`, which must not violate a rule ([`rules::violations`]).
    #[must_use]
    pub fn of(data: &ProfilesData, by: &str) -> Self {
        Self::of_all(std::slice::from_ref(data), by)
    }

    fn of_all(messages: &[ProfilesData], by: &str) -> Self {
        let mut sums = Sums::default();
        for data in messages {
            sums.add_message(data, by);
        }
        sums.finish()
    }
}

fn is_on_cpu(profile: &Profile, dictionary: &ProfilesDictionary) -> bool {
    let kind = profile.sample_type.unwrap_or_default().type_strindex;
    entry(&dictionary.string_table, kind).is_some_and(|kind| kind == "samples")
}

struct Process<'d> {
    service: Cow<'d, str>,
    pid: Option<i64>,
    /// The name of its program, if it has not published the name of its service.
    program: Option<&'d str>,
}

impl<'d> Process<'d> {
    fn of(dictionary: &'d ProfilesDictionary, resource: Option<&'d Resource>) -> Self {
        let attributes = resource.map_or(&[][..], |resource| &resource.attributes);
        let find = |key: &str| {
            let mut attributes = attributes.iter().enumerate();
            attributes.find(|(_, it)| rules::key(dictionary, it) == key)
        };
        let service = find("service.name").and_then(|(index, found)| {
            let text = rules::text(dictionary, found.value.as_ref())?;
            Some((index, text))
        });
        let pid = find("process.pid").and_then(|(index, found)| {
            match found.value.as_ref()?.value.as_ref()? {
                any_value::Value::IntValue(pid) => Some((index, *pid)),
                _ => None,
            }
        });
        // The recorder adds the name after the process ID.
        let is_from_environment = find(DETECTED).is_some();
        let is_detected = matches!((service, pid), (Some((name, _)), Some((id, _))) if name > id);
        let service = service.map_or(UNKNOWN_SERVICE, |(_, service)| service);
        let shown = if is_from_environment {
            format!("({service})").into()
        } else {
            service.into()
        };
        let program = service.strip_prefix(UNKNOWN_SERVICE);
        Self {
            service: shown,
            pid: pid.map(|(_, pid)| pid),
            program: program
                .and_then(|program| program.strip_prefix(':'))
                .filter(|_| is_detected),
        }
    }

    /// Returns the command name, the name of the first thread, if this is one of its samples.
    fn command_name(&self, dictionary: &'d ProfilesDictionary, sample: &Sample) -> Option<&'d str> {
        let find = |name| rules::value(dictionary, &sample.attribute_indices, name);
        match find(THREAD_ID)?.value.as_ref()? {
            any_value::Value::IntValue(tid) if Some(*tid) == self.pid => {
                rules::text(dictionary, find(THREAD_NAME))
            }
            _ => None,
        }
    }

    fn with_pid(&self, name: &str) -> String {
        match self.pid {
            Some(pid) => format!("{name} {pid}"),
            None => name.to_owned(),
        }
    }
}

#[derive(Default)]
struct ProcessSum {
    cost: Cost,
    /// The command name with the process ID, if the process has not published its service's name.
    command: Option<String>,
    /// The program's name with the process ID, in the same case.
    program: Option<String>,
}

#[derive(Default)]
struct Sums<'d> {
    /// The first and the last recorded time, in nanoseconds after 1970-01-01 UTC.
    span: Option<(u64, u64)>,
    total: Cost,
    with_trace: Cost,
    by_gil: [Cost; GilState::ALL.len()],
    by_attribute: HashMap<&'d str, Cost>,
    /// The names of attributes, each with its first value.
    attributes: BTreeMap<&'d str, &'d str>,
    varying: BTreeSet<&'d str>,
    /// The attributes of the current message's dictionary that a sample uses.
    used: Vec<bool>,
    by_trace: HashMap<&'d [u8], (Cost, HashMap<&'d str, u64>)>,
    by_function: HashMap<&'d str, FunctionCost>,
    unnamed: HashMap<&'d str, Cost>,
    /// Sums by service name and process ID.
    by_process: HashMap<String, ProcessSum>,
}

impl<'d> Sums<'d> {
    fn add_message(&mut self, data: &'d ProfilesData, by: &str) {
        let Some(dictionary) = &data.dictionary else {
            return;
        };
        self.used.clear();
        self.used.resize(dictionary.attribute_table.len(), false);
        for resource in &data.resource_profiles {
            let process = Process::of(dictionary, resource.resource.as_ref());
            // Resources without samples have no row.
            let mut sum: Option<ProcessSum> = None;
            let scopes = resource.scope_profiles.iter();
            let profiles = scopes.flat_map(|scope| &scope.profiles);
            for profile in profiles.filter(|profile| is_on_cpu(profile, dictionary)) {
                let start = profile.time_unix_nano;
                let end = start.saturating_add(profile.duration_nano);
                let (first, last) = self.span.unwrap_or((start, end));
                self.span = Some((first.min(start), last.max(end)));
                for sample in &profile.samples {
                    let cost = self.add(dictionary, profile, sample, by);
                    let sum = sum.get_or_insert_default();
                    sum.cost.add(cost);
                    if process.program.is_some() && sum.command.is_none() {
                        let name = process.command_name(dictionary, sample);
                        sum.command = name.map(|name| process.with_pid(name));
                    }
                }
            }
            if let Some(sum) = sum {
                let all = self.by_process.entry(process.with_pid(&process.service));
                let all = all.or_default();
                all.cost.add(sum.cost);
                // A sample from before an exec may have the next program's facts, not its name.
                all.command = sum.command.or(all.command.take());
                let program = || process.program.map(|name| process.with_pid(name));
                all.program = all.program.take().or_else(program);
            }
        }
        let table = dictionary.attribute_table.iter().zip(&self.used);
        let used = table.filter(|(_, used)| **used);
        for (name, value) in used.filter_map(|(entry, _)| named_text(dictionary, entry)) {
            if *self.attributes.entry(name).or_insert(value) != value {
                self.varying.insert(name);
            }
        }
    }

    /// Adds a sample, and returns its cost.
    fn add(
        &mut self,
        dictionary: &'d ProfilesDictionary,
        profile: &Profile,
        sample: &'d Sample,
        by: &str,
    ) -> Cost {
        let samples = if sample.values.is_empty() {
            sample.timestamps_unix_nano.len() as u64
        } else {
            let values = sample.values.iter().map(|value| value.unsigned_abs());
            values.fold(0, u64::saturating_add)
        };
        let cost = Cost {
            samples,
            nanoseconds: samples.saturating_mul(profile.period.unsigned_abs()),
        };
        self.total.add(cost);
        let state = attribute(dictionary, sample, GIL);
        if let Some(index) = GilState::ALL.iter().position(|it| state == Some(it.name())) {
            self.by_gil[index].add(cost);
        }
        for index in &sample.attribute_indices {
            let used = usize::try_from(*index).ok();
            if let Some(used) = used.and_then(|index| self.used.get_mut(index)) {
                *used = true;
            }
        }
        let attribute = attribute(dictionary, sample, by).unwrap_or(NO_ATTRIBUTE);
        self.by_attribute.entry(attribute).or_default().add(cost);
        if let Some(link) = entry(&dictionary.link_table, sample.link_index)
            && sample.link_index != 0
        {
            self.with_trace.add(cost);
            let (sum, attributes) = self.by_trace.entry(&link.trace_id).or_default();
            sum.add(cost);
            let count = attributes.entry(attribute).or_default();
            *count = count.saturating_add(samples);
        }
        self.add_functions(dictionary, sample, cost);
        cost
    }

    fn add_functions(&mut self, dictionary: &'d ProfilesDictionary, sample: &Sample, cost: Cost) {
        let Some(stack) = entry(&dictionary.stack_table, sample.stack_index) else {
            return;
        };
        let mut seen = HashSet::new();
        let locations = stack.location_indices.iter();
        let locations = locations.filter_map(|index| entry(&dictionary.location_table, *index));
        let innermost = locations.clone().next();
        if let Some(innermost) = innermost.filter(|it| it.lines.is_empty())
            && let Some(file) = file(dictionary, innermost)
        {
            self.unnamed.entry(file).or_default().add(cost);
        }
        let names = locations.flat_map(|location| names(dictionary, location));
        for (depth, name) in names.enumerate() {
            let sum = self.by_function.entry(name).or_default();
            if depth == 0 {
                sum.own.add(cost);
            }
            // A recursive function occurs on the stack several times.
            if seen.insert(name) {
                sum.total.add(cost);
            }
        }
    }

    fn finish(self) -> Report {
        let traces = self.by_trace.into_iter().map(|(id, (cost, attributes))| {
            let attributes = attributes.into_iter();
            let most = attributes.max_by_key(|(name, count)| (*count, *name));
            let trace = Trace {
                id: hexadecimal(id),
                attribute: most.map_or(NO_ATTRIBUTE, |(name, _)| name).to_owned(),
            };
            (trace, cost)
        });
        let functions = self.by_function.into_iter();
        let functions = functions.map(|(name, cost)| (name.to_owned(), cost));
        let by_function = largest_first(functions, |cost: &FunctionCost| {
            (cost.own.nanoseconds, cost.total.nanoseconds)
        });
        let unnamed = self.unnamed.into_iter();
        let unnamed = unnamed.map(|(name, cost)| (name.to_owned(), cost));
        let attributes = self.by_attribute.into_iter();
        let attributes = attributes.map(|(name, cost)| (name.to_owned(), cost));
        let processes = self.by_process.into_iter().map(|(service, sum)| {
            let name = sum.command.or(sum.program).unwrap_or(service);
            (name, sum.cost)
        });
        let nanoseconds = |cost: &Cost| cost.nanoseconds;
        Report {
            total: self.total,
            with_trace: self.with_trace,
            by_gil: self.by_gil,
            by_attribute: largest_first(attributes, nanoseconds),
            attributes: self.attributes.into_keys().map(str::to_owned).collect(),
            varying: self.varying.into_iter().map(str::to_owned).collect(),
            by_trace: largest_first(traces, nanoseconds),
            by_function,
            unnamed: largest_first(unnamed, nanoseconds),
            by_process: largest_first(processes, nanoseconds),
            duration: self.span.map_or(0, |(first, last)| last - first),
        }
    }
}

/// Returns the name of a location's file, or the kernel's name for memory without one.
fn file<'d>(dictionary: &'d ProfilesDictionary, location: &Location) -> Option<&'d str> {
    let mapping = entry(&dictionary.mapping_table, location.mapping_index)?;
    let name = entry(&dictionary.string_table, mapping.filename_strindex)?;
    (!name.is_empty()).then_some(name)
}

/// Returns the functions at a location, innermost first, or its file, or [`UNKNOWN`].
fn names<'d>(
    dictionary: &'d ProfilesDictionary,
    location: &'d Location,
) -> impl Iterator<Item = &'d str> {
    let named = location.lines.iter().filter_map(|line| {
        let function = entry(&dictionary.function_table, line.function_index)?;
        entry(&dictionary.string_table, function.name_strindex)
    });
    let instead = location
        .lines
        .is_empty()
        .then(|| match file(dictionary, location) {
            // The kernel's name for memory without a file, such as generated code.
            Some("//anon") => "[anon]",
            Some(name) => name,
            None => UNKNOWN,
        });
    named.map(String::as_str).chain(instead)
}

fn attribute<'d>(
    dictionary: &'d ProfilesDictionary,
    sample: &Sample,
    name: &str,
) -> Option<&'d str> {
    sample.attribute_indices.iter().find_map(|index| {
        let found = entry(&dictionary.attribute_table, *index)?;
        let (found, value) = named_text(dictionary, found)?;
        (found == name).then_some(value)
    })
}

/// Returns the name of a sample's attribute in its record, and its value, if that is text.
fn named_text<'d>(
    dictionary: &'d ProfilesDictionary,
    attribute: &'d KeyValueAndUnit,
) -> Option<(&'d str, &'d str)> {
    let key = entry(&dictionary.string_table, attribute.key_strindex)?;
    // With the prefix, this name is a record's attribute, not the state of the lock.
    let record = key
        .strip_prefix(UPSTREAM_PREFIX)
        .filter(|name| *name != GIL);
    let value = rules::text(dictionary, attribute.value.as_ref())?;
    Some((record.unwrap_or(key), value))
}

fn largest_first<T: Ord, C, K: Ord>(
    sums: impl Iterator<Item = (T, C)>,
    size: impl Fn(&C) -> K,
) -> Vec<(T, C)> {
    let mut sums: Vec<_> = sums.collect();
    sums.sort_by(|(one_name, one), (other_name, other)| {
        let order = size(other).cmp(&size(one));
        order.then_with(|| one_name.cmp(other_name))
    });
    sums
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::profiles::v1development::Mapping;
    use prost::encoding::encode_varint;

    use super::*;

    /// Two million samples, which take two bytes each in the file, and more than a hundred in
    /// memory.
    #[test]
    fn a_file_that_takes_too_much_memory_is_refused_and_takes_down_nothing() {
        let mut file = [2 << 3 | 2, 0].repeat(2 << 20);
        // In a profile, in a scope, in a resource.
        for field in [2, 2, 1] {
            let mut head = vec![field << 3 | 2];
            encode_varint(file.len() as u64, &mut head);
            file = [head, file].concat();
        }
        let path = Path::new("a.otlp");
        let small = Limits {
            memory: 128 << 20,
            ..LIMITS
        };
        let error = sum_up(&file, path, "http.route", small).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
        let expected = "a.otlp: too large: decoding it takes more than 128 MiB of memory";
        assert!(error.to_string().starts_with(expected), "{error}");
        // With more memory, the missing dictionary is found.
        let error = sum_up(&file, path, "http.route", LIMITS).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error:?}");
    }

    /// `//anon` looked like a path.
    #[test]
    fn a_function_without_a_name_is_shown_as_its_file() {
        let texts = ["", "/lib/a.so", "//anon"].map(str::to_owned);
        let mapping = |filename_strindex| Mapping {
            filename_strindex,
            ..Mapping::default()
        };
        let dictionary = ProfilesDictionary {
            string_table: texts.to_vec(),
            mapping_table: (0..3).map(mapping).collect(),
            ..ProfilesDictionary::default()
        };
        let shown = [UNKNOWN, "/lib/a.so", "[anon]"];
        for (mapping_index, shown) in (0..).zip(shown) {
            let location = Location {
                mapping_index,
                ..Location::default()
            };
            assert!(names(&dictionary, &location).eq([shown]));
        }
    }
}
