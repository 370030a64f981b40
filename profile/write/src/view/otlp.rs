//! Reads OTLP profiles (`opentelemetry/proto/profiles/v1development/profiles.proto`) of any producer.
//! The samples of a message refer to its dictionary: it is decoded first, wherever it stands.

mod entries;

use std::collections::HashMap;

use foldhash::fast::RandomState;
use opentelemetry_proto::tonic::profiles::v1development as proto;
use opentelemetry_proto::tonic::resource::v1::Resource;
use otelctx_sample::{GilState, OffCpuState};
use prost::Message;

use super::tables::{Context, Group, Id, Kind, NONE, Process, Sink, Tables, Thread, Wait, add};
use super::values::{attribute_of, entry};
use super::wire::{Field, fields};

/// Field number of samples in `Profile`. Other fields may be before or after them.
const SAMPLES: u32 = 2;

/// Types of time off a CPU: of this crate and OpenTelemetry's eBPF profiler, that of the latter's
/// earlier versions, and that of producers whose time may pass on a CPU, too.
const OFF_CPU: [&str; 3] = ["off_cpu", "events", "wall"];

/// An attribute of samples.
#[derive(Clone, Copy)]
enum Attribute {
    ThreadId(i64),
    ThreadName(Id),
    Cpu(u32),
    Gil(GilState),
    State(OffCpuState),
    Call(Id),
    Reason(Id),
    /// For an ID without the other one: a link needs both.
    TraceId(Id),
    SpanId([u8; 8]),
    /// Of the context: name and value.
    Context(Id, Id),
    Other,
}

/// Maximum number of lists of attributes whose meaning is kept.
const MAX_KNOWN: usize = 1 << 14;

/// A thread, and what it worked on.
#[derive(Clone, Copy)]
struct Worker {
    thread: Id,
    context: Id,
    gil: Option<GilState>,
    cpu: u32,
    /// What keeps it off the CPU, unless it runs.
    wait: Id,
}

/// A short list of numbers, as it is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Packed(u128);

impl Packed {
    /// `None` for a longer list.
    fn new(encoded: &[u8]) -> Option<Self> {
        let mut bytes = [0; 16];
        let (length, list) = bytes.split_first_mut()?;
        list.get_mut(..encoded.len())?.copy_from_slice(encoded);
        // Another list may end with zeros.
        *length = encoded.len() as u8;
        Some(Self(u128::from_ne_bytes(bytes)))
    }
}

/// The encoded profiles of a scope.
type Scope<'r> = Vec<&'r [u8]>;

/// Returns a resource of encoded profiles, and the profiles of each of its scopes.
fn scopes(of_resource: &[u8]) -> Result<(&[u8], Vec<Scope<'_>>), String> {
    let (mut resource, mut scopes) = (&[][..], Vec::new());
    for field in fields(of_resource) {
        match field? {
            (1, found) => resource = found.bytes()?,
            (2, scope) => {
                let mut profiles = Vec::new();
                for field in fields(scope.bytes()?) {
                    if let (2, profile) = field? {
                        profiles.push(profile.bytes()?);
                    }
                }
                scopes.push(profiles);
            }
            _ => {}
        }
    }
    Ok((resource, scopes))
}

/// A number that is found when it is needed first.
const UNKNOWN: Id = Id::MAX;

/// Reads the samples of a message, whose dictionary it has.
pub(super) struct Reader<'m, 't> {
    tables: &'t mut Tables,
    strings: Vec<&'m str>,
    /// The text of each string, location of each location, and so on; or [`UNKNOWN`].
    texts: Vec<Id>,
    mappings: Vec<&'m [u8]>,
    locations: Vec<(&'m [u8], Id)>,
    functions: Vec<&'m [u8]>,
    stacks: Vec<&'m [u8]>,
    /// Apart from the stacks: each sample needs one.
    known_stacks: Vec<Id>,
    links: Vec<(Id, [u8; 8])>,
    attributes: Vec<(&'m [u8], Option<Attribute>)>,
    contexts: HashMap<(Id, [u8; 8], Id), Id, RandomState>,
    threads: HashMap<(Id, Option<i64>, Id), Id, RandomState>,
    /// What samples with the same process, link and encoded list of attributes have.
    known: HashMap<(Id, u64, Packed), Worker, RandomState>,
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
    pub(super) fn new(
        dictionaries: impl IntoIterator<Item = &'m [u8]>,
        tables: &'t mut Tables,
    ) -> Result<Self, String> {
        let mut reader = Self {
            tables,
            strings: Vec::new(),
            texts: Vec::new(),
            mappings: Vec::new(),
            locations: Vec::new(),
            functions: Vec::new(),
            stacks: Vec::new(),
            known_stacks: Vec::new(),
            links: Vec::new(),
            attributes: Vec::new(),
            contexts: HashMap::default(),
            threads: HashMap::default(),
            known: HashMap::default(),
            of_context: Vec::new(),
            stack: Vec::new(),
        };
        reader.tables.messages += 1;
        let mut is_found = false;
        for dictionary in dictionaries {
            is_found = true;
            reader.add_dictionary(dictionary)?;
        }
        if !is_found {
            return Err("there is no dictionary: the end of the file is missing".to_owned());
        }
        reader.texts = vec![UNKNOWN; reader.strings.len()];
        reader.known_stacks = vec![UNKNOWN; reader.stacks.len()];
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
                7 => self.stacks.push(field.bytes()?),
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
            if bytes.is_empty() {
                // The Collector writes an ID of zeros so.
                continue;
            }
            let size = || format!("a link has an ID of {} bytes", bytes.len());
            match number {
                1 => trace = bytes.try_into().map_err(|_| size())?,
                2 => span = bytes.try_into().map_err(|_| size())?,
                _ => {}
            }
        }
        Ok((add(&mut self.tables.traces, trace)?, span))
    }

    /// Reads the recorded time of a resource's profiles.
    pub(super) fn read_times(&mut self, resource: &[u8]) -> Result<(), String> {
        let mut profiles = scopes(resource)?.1.into_iter().flatten();
        profiles.try_for_each(|profile| self.add_span(profile))
    }

    /// Reads a resource's profiles.
    pub(super) fn read(&mut self, resource: &[u8], sink: &mut dyn Sink) -> Result<(), String> {
        let (process, scopes) = scopes(resource)?;
        let process = self.process(process)?;
        for profiles in scopes {
            let mut heads = Vec::new();
            for profile in profiles {
                self.add_span(profile)?;
                heads.push((self.head(profile)?, profile));
            }
            // The same samples may be there as a number and as a time.
            let mut counted = heads.iter().filter(|(head, _)| head.counts_samples);
            let counted: Vec<_> = counted.by_ref().map(|(head, _)| head.kind).collect();
            for (head, profile) in heads {
                if let Some(kind) = head.kind
                    && (head.counts_samples || !counted.contains(&head.kind))
                {
                    self.add_samples(process, kind, &head, profile, sink)?;
                }
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

    /// Returns the type and the unit of a value.
    fn value_type(&self, encoded: &[u8]) -> Result<(&'m str, &'m str), String> {
        let decoded = proto::ValueType::decode(encoded);
        let decoded = decoded.map_err(|error| format!("a type is damaged ({error})"))?;
        let string = |index: i32| match index {
            // Also without a table of strings.
            0 => Ok(""),
            index => entry(&self.strings, index as u64, "a value's type").copied(),
        };
        Ok((
            string(decoded.type_strindex)?,
            string(decoded.unit_strindex)?,
        ))
    }

    fn head(&mut self, profile: &[u8]) -> Result<Head, String> {
        let (mut value_type, mut period_type, mut period) = (&[][..], &[][..], 0);
        for field in fields(profile) {
            match field? {
                (1, kind) => value_type = kind.bytes()?,
                (5, kind) => period_type = kind.bytes()?,
                (6, number) => period = number.number()?,
                (SAMPLES, _) if !value_type.is_empty() && period > 0 => break,
                _ => {}
            }
        }
        let (kind, unit) = self.value_type(value_type)?;
        let (of_period, _) = self.value_type(period_type)?;
        let head = match (kind, unit) {
            ("samples", _) => Head {
                kind: Some(match OFF_CPU.contains(&of_period) {
                    true => Kind::Waiting,
                    false => Kind::Running,
                }),
                counts_samples: true,
                unit: period.cast_signed().unsigned_abs(),
            },
            ("cpu", "nanoseconds") => Head {
                kind: Some(Kind::Running),
                counts_samples: false,
                unit: 1,
            },
            (kind, "nanoseconds") if OFF_CPU.contains(&kind) => Head {
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
        if head.counts_samples && head.kind == Some(Kind::Running) && self.tables.period == 0 {
            self.tables.period = head.unit;
        }
        Ok(head)
    }

    fn add_samples(
        &mut self,
        process: Id,
        kind: Kind,
        head: &Head,
        profile: &[u8],
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        let (mut indices, mut values, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for field in fields(profile) {
            let (SAMPLES, sample) = field? else { continue };
            let (mut stack, mut link, mut packed) = (0, 0, &[][..]);
            indices.clear();
            values.clear();
            times.clear();
            for field in fields(sample.bytes()?) {
                match field? {
                    (1, index) => stack = index.number()?,
                    (2, Field::Bytes(list)) if packed.is_empty() && indices.is_empty() => {
                        packed = list;
                    }
                    // A list in several parts is allowed, too.
                    (2, list) => {
                        let first = Field::Bytes(std::mem::take(&mut packed));
                        first.numbers(|index| indices.push(index))?;
                        list.numbers(|index| indices.push(index))?;
                    }
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
            let worker = if indices.is_empty() {
                self.known_worker(process, link, packed)?
            } else {
                self.worker(process, link, &indices)?
            };
            let whole = self.stack(stack)?;
            let stack = self.tables.kept_stack(whole)?;
            let (kind, wait, [shown_stack, whole_stack]) = match kind {
                Kind::Running => (kind, NONE, [stack, whole]),
                _ => (
                    self.tables.waits[worker.wait as usize].kind(),
                    worker.wait,
                    self.tables.waiting_stacks([stack, whole], worker.wait)?,
                ),
            };
            if self.tables.start.is_none() {
                times
                    .iter()
                    .for_each(|time| self.tables.add_span(*time, time.saturating_add(1)));
            }
            let group = Group {
                kind,
                thread: worker.thread,
                context: worker.context,
                stack,
                wait,
                shown_stack,
                whole_stack,
                gil: worker.gil,
                cpu: worker.cpu,
                times: &times,
                values: &values,
                counts: &[],
                unit: head.unit,
                counts_samples: head.counts_samples,
            };
            sink.add(self.tables, &group);
        }
        Ok(())
    }

    /// Returns thread and context of a sample whose attributes are listed in `packed`.
    fn known_worker(&mut self, process: Id, link: u64, packed: &[u8]) -> Result<Worker, String> {
        let key = Packed::new(packed).map(|packed| (process, link, packed));
        if let Some(known) = key.and_then(|key| self.known.get(&key)) {
            return Ok(*known);
        }
        let mut indices = Vec::new();
        Field::Bytes(packed).numbers(|index| indices.push(index))?;
        let worker = self.worker(process, link, &indices)?;
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        if let Some(key) = key {
            self.known.insert(key, worker);
        }
        Ok(worker)
    }

    /// Returns thread and context of a sample.
    fn worker(&mut self, process: Id, link: u64, indices: &[u64]) -> Result<Worker, String> {
        let (mut trace, mut span) = match (link, self.links.is_empty()) {
            (0, true) => (NONE, [0; 8]),
            _ => *entry(&self.links, link, "a sample's link")?,
        };
        let (mut tid, mut name, mut cpu, mut gil) = (None, NONE, 0, None);
        let mut wait = Wait::UNKNOWN;
        self.of_context.clear();
        for index in indices {
            match self.attribute(*index)? {
                Attribute::ThreadId(id) => tid = Some(id),
                Attribute::ThreadName(text) => name = text,
                Attribute::Cpu(number) => cpu = number,
                Attribute::Gil(state) => gil = Some(state),
                Attribute::State(state) => wait.state = state,
                Attribute::Call(text) => wait.call = text,
                Attribute::Reason(text) => wait.reason = text,
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
        Ok(Worker {
            thread,
            context,
            gil,
            cpu,
            wait: add(&mut self.tables.waits, wait)?,
        })
    }
}
