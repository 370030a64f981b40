//! OTLP profiles: one `ProfilesData` of `opentelemetry.proto.profiles.v1development`. The first
//! pass fills the tables and computes sizes, the second writes the bytes: one sample's message is
//! in memory at a time.

mod messages;
mod tables;

pub use messages::OtlpMessages;

use std::io::{self, Write};

use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::profiles::v1development as proto;
use opentelemetry_proto::tonic::resource::v1::Resource;
use otelctx_sample::format::THREADLOCAL;
use otelctx_sample::format::process_context::Value;
use otelctx_sample::{Event, ProcessFacts, ProcessId, Sample};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::attributes::{DETECTED, SERVICE_NAME, UNKNOWN_SERVICE};
use crate::{Group, Kind, Options, Profile};
use tables::Tables;

/// The version of the semantic conventions that define the attributes written here.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.42.0";

/// The name of the scope of every profile.
pub(crate) const SCOPE: &str = "otelctx";

/// Field numbers of `ProfilesData` (two), `ResourceProfiles`, `ScopeProfiles` and `Profile`.
mod field {
    pub(super) const RESOURCE_PROFILES: u32 = 1;
    pub(super) const DICTIONARY: u32 = 2;
    pub(super) const SCOPE_PROFILES: u32 = 2;
    pub(super) const PROFILES: u32 = 2;
    pub(super) const SAMPLES: u32 = 2;
}

pub(super) fn write(
    profile: &Profile,
    options: &Options,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let groups: Vec<Group<'_>> = profile.groups().collect();
    write_groups(profile, &groups, Order::Similar, options, writer)
}

/// The order of a dictionary's stacks and locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As samples have them.
    Samples,
    /// Similar ones beside each other, of which compression leaves less.
    Similar,
}

/// Writes a message of these groups, sorted by process and kind, with a dictionary for them.
fn write_groups<'p>(
    profile: &'p Profile,
    groups: &[Group<'p>],
    order: Order,
    options: &'p Options,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let mut tables = Tables::new(profile, &options.attribute_prefix);
    if order == Order::Similar {
        tables.add_stacks(groups.iter().map(|it| it.stack));
    }
    let mut out = Out {
        writer,
        buffer: Vec::new(),
    };
    let mut sample = proto::Sample::default();
    for of_process in groups.chunk_by(|one, other| one.process == other.process) {
        let process = of_process[0].process;
        let scope_head = scope_message().encode_to_vec();
        let mut profiles = Vec::new();
        let mut scope_size = scope_head.len();
        for of_kind in of_process.chunk_by(|one, other| one.kind == other.kind) {
            let head = profile_message(profile, of_kind[0].kind, &mut tables).encode_to_vec();
            let mut size = head.len();
            for group in of_kind {
                fill(&mut sample, profile, group, &mut tables);
                size += field_size(field::SAMPLES, sample.encoded_len());
            }
            scope_size += field_size(field::PROFILES, size);
            profiles.push((head, size, of_kind));
        }
        let resource_head = resource_message(profile, process, options).encode_to_vec();
        let size = resource_head.len() + field_size(field::SCOPE_PROFILES, scope_size);
        out.start(field::RESOURCE_PROFILES, size)?;
        out.writer.write_all(&resource_head)?;
        out.start(field::SCOPE_PROFILES, scope_size)?;
        out.writer.write_all(&scope_head)?;
        for (head, size, of_kind) in profiles {
            out.start(field::PROFILES, size)?;
            out.writer.write_all(&head)?;
            for group in of_kind {
                fill(&mut sample, profile, group, &mut tables);
                out.entry(field::SAMPLES, &sample)?;
            }
        }
    }
    out.start(field::DICTIONARY, tables.encoded_len())?;
    tables.write(&mut out)
}

/// Returns the size of a field whose content has `size` bytes, with its key and length.
fn field_size(tag: u32, size: usize) -> usize {
    key_len(tag) + encoded_len_varint(size as u64) + size
}

/// Creates a `ResourceProfiles` without its scopes.
fn resource_message(
    profile: &Profile,
    process: ProcessId,
    options: &Options,
) -> proto::ResourceProfiles {
    proto::ResourceProfiles {
        resource: Some(resource(profile, process, options)),
        // The version of the conventions of a process's own attributes is unknown.
        schema_url: if profile.process(process).resource.is_empty() {
            SCHEMA_URL.to_owned()
        } else {
            String::new()
        },
        ..proto::ResourceProfiles::default()
    }
}

/// Creates a `ScopeProfiles` without its profiles.
fn scope_message() -> proto::ScopeProfiles {
    proto::ScopeProfiles {
        scope: Some(InstrumentationScope {
            name: SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        }),
        schema_url: SCHEMA_URL.to_owned(),
        ..proto::ScopeProfiles::default()
    }
}

/// Creates a `Profile` without its samples.
fn profile_message(profile: &Profile, kind: Kind, tables: &mut Tables<'_>) -> proto::Profile {
    let mut value_type = |kind, unit| {
        Some(proto::ValueType {
            type_strindex: tables.string(kind),
            unit_strindex: tables.string(unit),
        })
    };
    let clock = profile.clock();
    let mut message = proto::Profile {
        time_unix_nano: clock.unix(clock.start),
        duration_nano: clock.duration(),
        ..proto::Profile::default()
    };
    match kind {
        Kind::OnCpu => {
            message.sample_type = value_type("samples", "count");
            message.period_type = value_type("cpu", "nanoseconds");
            message.period = i64::try_from(profile.period().get()).unwrap_or(i64::MAX);
        }
        Kind::OffCpu => message.sample_type = value_type("off_cpu", "nanoseconds"),
    }
    message
}

fn fill<'p>(
    sample: &mut proto::Sample,
    profile: &Profile,
    group: &Group<'p>,
    tables: &mut Tables<'p>,
) {
    let clock = profile.clock();
    let times = group.samples.iter().map(|one| clock.unix(one.time));
    sample.timestamps_unix_nano.clear();
    sample.timestamps_unix_nano.extend(times);
    sample.values.clear();
    sample.values.extend(group.samples.iter().filter_map(value));
    sample.stack_index = tables.stack(group.stack);
    let indices = &mut sample.attribute_indices;
    indices.clear();
    indices.extend(tables.thread(group.thread));
    indices.push(tables.cpu(group.cpu));
    indices.extend(group.gil.map(|state| tables.gil(state)));
    indices.extend(profile.wait(group).iter().flat_map(|it| tables.off_cpu(it)));
    let (link, attributes) = tables.context(group.context);
    indices.extend(attributes);
    sample.link_index = link;
}

/// Returns the value of a sample off-CPU. Others need none: a time alone stands for 1
/// (`profiles.proto`, `Sample`).
fn value(sample: &Sample) -> Option<i64> {
    match sample.event {
        Event::OffCpu(off) => Some(i64::try_from(off.nanoseconds).unwrap_or(i64::MAX)),
        _ => None,
    }
}

/// Returns the resource that the process publishes, supplemented by detected attributes.
fn resource(profile: &Profile, process: ProcessId, options: &Options) -> Resource {
    let facts = profile.process(process);
    let mut attributes: Vec<KeyValue> = Vec::new();
    // Attributes that describe how contexts are shared are not telemetry.
    let published = facts.resource.iter();
    let published = published.filter(|(key, _)| !key.starts_with(THREADLOCAL));
    let published = published.map(|(key, value)| (key.as_str(), any_value(value)));
    let names_service = super::service_of(facts).is_some();
    let is_detected = (names_service && !facts.published).then(|| {
        let value = Some(any_value::Value::BoolValue(true));
        (DETECTED, AnyValue { value })
    });
    for (key, value) in published.chain(is_detected).chain(detected(facts)) {
        // Backends need a name of the service: the one for a service without a name stays.
        let is_dropped =
            key != SERVICE_NAME && options.dropped_attributes.iter().any(|it| it == key);
        // Published attributes take precedence over detected ones; each key occurs once.
        if !key.is_empty() && !is_dropped && attributes.iter().all(|attribute| attribute.key != key)
        {
            attributes.push(KeyValue {
                key: key.to_owned(),
                value: Some(value),
                ..KeyValue::default()
            });
        }
    }
    Resource {
        attributes,
        ..Resource::default()
    }
}

/// Returns the value of an attribute of a process that the recorder detected.
pub(super) fn detected_text(facts: &ProcessFacts, name: &str) -> Option<String> {
    let (_, value) = detected(facts).find(|(key, _)| *key == name)?;
    match value.value? {
        any_value::Value::StringValue(text) => Some(text),
        any_value::Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the attributes of a process that the recorder detected.
fn detected(facts: &ProcessFacts) -> impl Iterator<Item = (&str, AnyValue)> {
    let text = |text: &str| (!text.is_empty()).then(|| string(text));
    let name = facts.executable_name();
    // The convention is the executable's name; a kernel thread has none.
    let program = if name.is_empty() { &facts.comm } else { name };
    let pid = any_value::Value::IntValue(facts.pid.into());
    [
        ("process.pid", Some(AnyValue { value: Some(pid) })),
        // After the process ID, by which `report` distinguishes it from a published name.
        (SERVICE_NAME, text(&format!("{UNKNOWN_SERVICE}:{program}"))),
        ("process.executable.name", text(name)),
        ("process.executable.path", text(&facts.executable)),
        ("container.id", facts.container_id.as_deref().and_then(text)),
        ("k8s.pod.uid", facts.pod_uid.as_deref().and_then(text)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
}

fn string(text: &str) -> AnyValue {
    AnyValue {
        value: Some(any_value::Value::StringValue(text.to_owned())),
    }
}

fn any_value(value: &Value) -> AnyValue {
    use any_value::Value as Out;
    use opentelemetry_proto::tonic::common::v1::{ArrayValue, KeyValueList};
    let value = match value {
        Value::Empty => None,
        Value::String(text) => Some(Out::StringValue(text.clone())),
        Value::Bool(value) => Some(Out::BoolValue(*value)),
        Value::Int(value) => Some(Out::IntValue(*value)),
        Value::Double(value) => Some(Out::DoubleValue(*value)),
        Value::Bytes(bytes) => Some(Out::BytesValue(bytes.clone())),
        Value::Array(values) => Some(Out::ArrayValue(ArrayValue {
            values: values.iter().map(any_value).collect(),
        })),
        Value::Map(entries) => Some(Out::KvlistValue(KeyValueList {
            values: entries
                .iter()
                .map(|(key, value)| KeyValue {
                    key: key.clone(),
                    value: Some(any_value(value)),
                    ..KeyValue::default()
                })
                .collect(),
        })),
        // An unknown kind of value is written without a value.
        _ => None,
    };
    AnyValue { value }
}

struct Out<'w> {
    writer: &'w mut dyn Write,
    buffer: Vec<u8>,
}

impl Out<'_> {
    /// Writes the key and size of a field; its content follows.
    fn start(&mut self, tag: u32, size: usize) -> io::Result<()> {
        self.buffer.clear();
        encode_key(tag, WireType::LengthDelimited, &mut self.buffer);
        encode_varint(size as u64, &mut self.buffer);
        self.writer.write_all(&self.buffer)
    }

    /// Writes a message as a field.
    fn entry(&mut self, tag: u32, message: &impl Message) -> io::Result<()> {
        self.buffer.clear();
        prost::encoding::message::encode(tag, message, &mut self.buffer);
        self.writer.write_all(&self.buffer)
    }

    fn string(&mut self, tag: u32, text: &str) -> io::Result<()> {
        self.start(tag, text.len())?;
        self.writer.write_all(text.as_bytes())
    }
}
