//! Reads pprof's `profile.proto` (github.com/google/pprof, proto/profile.proto) of any producer.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_sample::OffCpuState;
use otelctx_sample::format::process_context::Value;

use super::tables::{
    Context, Function, Group, Id, Kind, Line, Mapping, NONE, Process, Sink, Tables, Thread, Wait,
    add,
};
use super::values::id;
use super::wire::fields;
use crate::attributes::{CALL, REASON, SERVICE_NAME, STATE};
use crate::write::FrameRules;

type Map<K, V> = HashMap<K, V, RandomState>;

/// Labels with a meaning: of this crate's files, and of other producers.
const TRACE_ID: [&str; 3] = ["trace_id", "trace id", "traceID"];
const SPAN_ID: [&str; 3] = ["span_id", "span id", "spanID"];
const PROCESS: [&str; 2] = ["process", "comm"];
const THREAD: [&str; 3] = ["thread", "thread name", "thread_name"];
const PID: [&str; 2] = ["pid", "process id"];
const TID: [&str; 3] = ["tid", "thread id", "thread_id"];

/// Names of time off a CPU, and of time that passes on one, too.
const OFF_CPU: [&str; 3] = ["off_cpu", "off-cpu", DELAY];
const WALL: [&str; 2] = ["wall", "wall-time"];
/// Of Go's profiles of blocking and of mutexes: the time for which goroutines were blocked.
const DELAY: &str = "delay";

/// A value of samples that is read.
#[derive(Clone, Copy)]
struct Read {
    position: usize,
    kind: Kind,
    /// Nanoseconds of a value of 1.
    unit: u64,
    counts_samples: bool,
    /// The value that counts samples, if this one is a time.
    samples: Option<usize>,
    /// The time on a CPU that this time includes: its position and unit.
    includes: Option<(usize, u64)>,
}

/// What samples have that a label tells.
struct Labels {
    thread: Id,
    context: Id,
    wait: Id,
}

/// Returns true if this is such a file, without its compression: OTLP's `ProfilesData` has two
/// fields, this has a table of strings, of which the first is empty. Go's runtime writes the time first.
pub(super) fn is_profile(file: &[u8]) -> bool {
    const STRING_TABLE: u32 = 6;
    let mut fields = fields(file).map_while(Result::ok);
    let first = fields.find(|(number, _)| *number == STRING_TABLE);
    first.is_some_and(|(_, field)| field.bytes().is_ok_and(<[u8]>::is_empty))
}

/// Reads a file, without its compression.
pub(super) fn read(file: &[u8], tables: &mut Tables, sink: &mut dyn Sink) -> Result<(), String> {
    Reader::new(file, tables)?.read(sink)
}

struct Reader<'m, 't> {
    tables: &'t mut Tables,
    strings: Vec<&'m str>,
    /// Kind and unit of each value.
    types: Vec<(u64, u64)>,
    samples: Vec<&'m [u8]>,
    locations: Map<u64, Id>,
    start: u64,
    duration: u64,
    period: u64,
    period_type: (u64, u64),
    default_type: u64,
    processes: Map<(String, String, i64), Id>,
}

/// Returns the numbers of the first fields of a message.
fn numbers<const N: usize>(message: &[u8]) -> Result<[u64; N], String> {
    let mut found = [0; N];
    for field in fields(message) {
        let (number, field) = field?;
        if let Some(place) = found.get_mut((number as usize).wrapping_sub(1))
            && let Ok(value) = field.number()
        {
            *place = value;
        }
    }
    Ok(found)
}

impl<'m, 't> Reader<'m, 't> {
    fn new(file: &'m [u8], tables: &'t mut Tables) -> Result<Self, String> {
        let mut reader = Self {
            tables,
            strings: Vec::new(),
            types: Vec::new(),
            samples: Vec::new(),
            locations: Map::default(),
            start: 0,
            duration: 0,
            period: 0,
            period_type: (0, 0),
            default_type: 0,
            processes: Map::default(),
        };
        reader.tables.messages += 1;
        let (mut mappings, mut locations, mut functions) = (Vec::new(), Vec::new(), Vec::new());
        let mut rules = [0; 3];
        for field in fields(file) {
            let (number, field) = field?;
            match number {
                1 => {
                    let [kind, unit] = numbers(field.bytes()?)?;
                    reader.types.push((kind, unit));
                }
                2 => reader.samples.push(field.bytes()?),
                3 => mappings.push(field.bytes()?),
                4 => locations.push(field.bytes()?),
                5 => functions.push(field.bytes()?),
                6 => {
                    let text = str::from_utf8(field.bytes()?);
                    let text = text.map_err(|_| "a string is not UTF-8".to_owned())?;
                    reader.strings.push(text);
                }
                7 => rules[0] = field.number()?,
                8 => rules[1] = field.number()?,
                15 => rules[2] = field.number()?,
                9 => reader.start = field.number()?,
                10 => reader.duration = field.number()?,
                11 => {
                    let [kind, unit] = numbers(field.bytes()?)?;
                    reader.period_type = (kind, unit);
                }
                12 => reader.period = field.number()?,
                14 => reader.default_type = field.number()?,
                _ => {}
            }
        }
        reader.add_locations(&mappings, &locations, &functions)?;
        reader.add_rules(rules)?;
        Ok(reader)
    }

    fn string(&self, index: u64) -> Result<&'m str, String> {
        let found = usize::try_from(index).ok();
        let found = found.and_then(|index| self.strings.get(index));
        found.copied().ok_or_else(|| {
            let length = self.strings.len();
            format!("a string is entry {index} of {length}")
        })
    }

    fn text(&mut self, index: u64) -> Result<Id, String> {
        let text = self.string(index)?;
        self.tables.add_text(text)
    }

    /// Keeps what the profile says of frames to drop and to keep, and its documentation; of several
    /// profiles, the first one's.
    fn add_rules(&mut self, [drop, keep, url]: [u64; 3]) -> Result<(), String> {
        let rules = FrameRules {
            drop: self.string(drop)?.to_owned(),
            keep: self.string(keep)?.to_owned(),
            url: self.string(url)?.to_owned(),
        };
        if self.tables.frame_rules == FrameRules::default() {
            self.tables.frame_rules = rules;
        }
        Ok(())
    }

    fn add_locations(
        &mut self,
        mappings: &[&[u8]],
        locations: &[&[u8]],
        functions: &[&[u8]],
    ) -> Result<(), String> {
        let mut known_mappings: Map<u64, Id> = Map::default();
        for mapping in mappings {
            let [id, start, limit, offset, file, build_id] = numbers(mapping)?;
            let mapping = Mapping {
                start,
                limit,
                offset,
                file: self.text(file)?,
                build_id: self.text(build_id)?,
                htlhash: NONE,
            };
            known_mappings.insert(id, add(&mut self.tables.mappings, mapping)?);
        }
        let mut known_functions = Map::default();
        for function in functions {
            let [id, name, system_name, file, start] = numbers::<5>(function)?;
            known_functions.insert(id, (name, system_name, file, start));
        }
        for encoded in locations {
            let [id, mapping, address] = numbers(encoded)?;
            let mapping = known_mappings.get(&mapping).copied().unwrap_or(NONE);
            let mapped = self
                .tables
                .text(self.tables.mappings[mapping as usize].file);
            let is_kernel = mapped.starts_with("[kernel");
            let (mut lines, mut kind) = (Vec::new(), "native");
            for field in fields(encoded) {
                let (4, line) = field? else { continue };
                let [function, line, column] = numbers(line.bytes()?)?;
                let Some((name, system_name, file, start)) = known_functions.get(&function) else {
                    return Err(format!("a line's function {function} is not there"));
                };
                kind = kind_of(is_kernel, self.string(*file)?);
                let function = Function {
                    name: self.text(*name)?,
                    // Producers write it twice.
                    system_name: match *system_name {
                        same if same == *name => NONE,
                        other => self.text(other)?,
                    },
                    file: self.text(*file)?,
                    kind: self.tables.add_text(kind)?,
                };
                let start = u32::try_from(*start).unwrap_or(0);
                lines.push(Line {
                    function: self.tables.add_function(function, start)?,
                    line: u32::try_from(line).unwrap_or(0),
                    column: u32::try_from(column).unwrap_or(0),
                });
            }
            let kind = self
                .tables
                .add_text(if is_kernel { "kernel" } else { kind })?;
            let location = self.tables.complete(mapping, address, kind, lines)?;
            self.locations.insert(id, location);
        }
        Ok(())
    }

    /// Returns the time between two samples; 0 if it is not a time.
    fn period_in_nanoseconds(&self) -> Result<u64, String> {
        let unit = time_unit(self.string(self.period_type.1)?);
        Ok(self.period.saturating_mul(unit.unwrap_or(0)))
    }

    /// Returns the values to read: of time on a CPU or samples, and of time off a CPU.
    fn values(&mut self) -> Result<Vec<Read>, String> {
        let mut types = Vec::new();
        for (kind, unit) in &self.types {
            types.push((self.string(*kind)?, self.string(*unit)?));
        }
        let default = self.string(self.default_type)?;
        let by_names = |names: &[&str]| types.iter().position(|(kind, _)| names.contains(kind));
        let samples = by_names(&["samples", "sample"]);
        let off_cpu = by_names(&OFF_CPU).or_else(|| by_names(&WALL));
        let off_cpu = off_cpu.filter(|it| time_unit(types[*it].1).is_some());
        let found = by_names(&["cpu"]).or_else(|| by_names(&["cpu-time"]));
        // Samples that have no other time than one off a CPU are no time on one.
        let found = found.or_else(|| by_names(&["samples"]).filter(|_| off_cpu.is_none()));
        let time = types.iter().position(|(_, unit)| unit.ends_with("seconds"));
        let found = found.or(time).or_else(|| by_names(&[default])).unwrap_or(0);
        let (kind, unit) = types.get(found).copied().ok_or("it has no type of value")?;
        let mut reads = Vec::new();
        if Some(found) != off_cpu {
            let counts_samples = matches!(kind, "samples" | "sample");
            let unit = match time_unit(unit) {
                _ if counts_samples => self.period_in_nanoseconds()?,
                Some(unit) => unit,
                None => return Err(format!("it has {kind} in {unit}, and no CPU time")),
            };
            reads.push(Read {
                position: found,
                kind: Kind::Running,
                unit,
                counts_samples,
                samples: samples.filter(|_| !counts_samples),
                includes: None,
            });
        }
        if let Some((position, unit)) = off_cpu.and_then(|it| Some((it, time_unit(types[it].1)?))) {
            let is_wall = WALL.contains(&types[position].0);
            self.tables.has_no_idle |= types[position].0 == DELAY;
            let on_cpu = reads.first().filter(|it| is_wall && !it.counts_samples);
            reads.push(Read {
                position,
                kind: Kind::Waiting,
                unit,
                counts_samples: false,
                samples: None,
                includes: on_cpu.map(|it| (it.position, it.unit)),
            });
        }
        Ok(reads)
    }

    fn read(&mut self, sink: &mut dyn Sink) -> Result<(), String> {
        let reads = self.values()?;
        self.tables.has_cpu_time = true;
        if self.tables.period == 0 {
            self.tables.period = match reads.first() {
                Some(read) if read.counts_samples => read.unit,
                Some(read) if read.kind == Kind::Running => self.period_in_nanoseconds()?,
                _ => 0,
            };
        }
        if self.start > 0 {
            let end = self.start.saturating_add(self.duration);
            self.tables.add_span(self.start, end);
        }
        let (mut stack, mut values) = (Vec::new(), Vec::new());
        for sample in std::mem::take(&mut self.samples) {
            stack.clear();
            values.clear();
            let mut labels = Vec::new();
            for field in fields(sample) {
                match field? {
                    (1, list) => list.numbers(|id| stack.push(id))?,
                    (2, list) => list.numbers(|it| values.push(it))?,
                    (3, label) => labels.push(label.bytes()?),
                    _ => {}
                }
            }
            let mut locations = Vec::with_capacity(stack.len());
            for id in &stack {
                let found = self.locations.get(id);
                locations.push(*found.ok_or_else(|| format!("location {id} is not there"))?);
            }
            let whole = self.tables.add_stack(&locations)?;
            let stacks = [self.tables.kept_stack(whole)?, whole];
            let mut known = None;
            for read in &reads {
                let value = read.value(&values)?;
                if value == 0 {
                    continue;
                }
                let labels = match &known {
                    Some(labels) => labels,
                    None => known.insert(self.labels(&labels)?),
                };
                let group = self.group(read, labels, stacks)?;
                let count = read.samples.and_then(|it| values.get(it));
                let group = Group {
                    values: &[value],
                    counts: count.map_or(&[], std::slice::from_ref),
                    ..group
                };
                sink.add(self.tables, &group);
            }
        }
        Ok(())
    }

    /// Returns samples without their values.
    fn group(
        &mut self,
        read: &Read,
        labels: &Labels,
        [stack, whole]: [Id; 2],
    ) -> Result<Group<'static>, String> {
        let mut group = Group {
            kind: read.kind,
            thread: labels.thread,
            context: labels.context,
            stack,
            wait: NONE,
            shown_stack: stack,
            whole_stack: whole,
            gil: None,
            cpu: 0,
            times: &[],
            values: &[],
            counts: &[],
            unit: read.unit,
            counts_samples: read.counts_samples,
        };
        if read.kind == Kind::Waiting {
            group.kind = self.tables.waits[labels.wait as usize].kind();
            group.wait = labels.wait;
            let stacks = self.tables.waiting_stacks([stack, whole], labels.wait)?;
            [group.shown_stack, group.whole_stack] = stacks;
        }
        Ok(group)
    }

    /// Returns what these labels of a sample tell.
    fn labels(&mut self, labels: &[&[u8]]) -> Result<Labels, String> {
        let (mut service, mut command) = (String::new(), String::new());
        let (mut pid, mut tid, mut name) = (0, None, NONE);
        let (mut trace, mut span, mut attributes) = (NONE, [0; 8], Vec::new());
        let mut wait = Wait::UNKNOWN;
        for label in labels {
            let [key, text, number] = numbers(label)?;
            let (key, text) = (self.string(key)?, self.string(text)?);
            let number = number.cast_signed();
            if TRACE_ID.contains(&key)
                && let Some(id) = id(text)
            {
                trace = add(&mut self.tables.traces, id)?;
                continue;
            }
            if SPAN_ID.contains(&key)
                && let Some(id) = id(text)
            {
                span = id;
                continue;
            }
            let state = OffCpuState::ALL.into_iter().find(|it| it.name() == text);
            match key {
                STATE if state.is_some() => wait.state = state.unwrap_or(wait.state),
                CALL => wait.call = self.tables.add_text(text)?,
                REASON => wait.reason = self.tables.add_text(text)?,
                SERVICE_NAME => text.clone_into(&mut service),
                _ if PROCESS.contains(&key) => text.clone_into(&mut command),
                _ if THREAD.contains(&key) => name = self.tables.add_text(text)?,
                _ if PID.contains(&key) => pid = number,
                _ if TID.contains(&key) => tid = Some(number),
                _ => {
                    let value = match text {
                        "" => &number.to_string(),
                        text => text,
                    };
                    attributes.push((self.tables.add_text(key)?, self.tables.add_text(value)?));
                }
            }
        }
        let process = self.process(service, command, pid)?;
        let thread = self.tables.add_thread(Thread { process, tid, name })?;
        let context = Context {
            trace,
            span,
            attributes: add(&mut self.tables.attributes, attributes.into())?,
        };
        Ok(Labels {
            thread,
            context: add(&mut self.tables.contexts, context)?,
            wait: add(&mut self.tables.waits, wait)?,
        })
    }

    fn process(&mut self, service: String, command: String, pid: i64) -> Result<Id, String> {
        let key = (service, command, pid);
        if let Some(known) = self.processes.get(&key) {
            return Ok(*known);
        }
        let (service, command, pid) = &key;
        let mut resource = Vec::new();
        if !service.is_empty() {
            resource.push((SERVICE_NAME.to_owned(), Value::String(service.clone())));
        }
        if *pid > 0 {
            resource.push(("process.pid".to_owned(), Value::Int(*pid)));
        }
        if service.is_empty() && !command.is_empty() {
            resource.push((SERVICE_NAME.to_owned(), Value::String(command.clone())));
        }
        let encoded = format!("pprof\0{service}\0{command}\0{pid}");
        let added = self
            .tables
            .add_process(encoded.as_bytes(), || Ok(Process::new(resource)))?;
        self.processes.insert(key, added);
        Ok(added)
    }
}

impl Read {
    /// Returns the value of a sample with these values.
    fn value(&self, values: &[u64]) -> Result<u64, String> {
        let at = |position: usize| {
            let value = values.get(position).copied().unwrap_or(0).cast_signed();
            u64::try_from(value)
                .map_err(|_| "it has negative values, as a difference of two profiles".to_owned())
        };
        let value = at(self.position)?;
        let Some((on_cpu, unit)) = self.includes else {
            return Ok(value);
        };
        let on_cpu = at(on_cpu)?.saturating_mul(unit);
        Ok(value.saturating_sub(on_cpu / self.unit))
    }
}

/// Returns the nanoseconds of a unit of time.
fn time_unit(unit: &str) -> Option<u64> {
    Some(match unit {
        "nanoseconds" => 1,
        "microseconds" => 1_000,
        "milliseconds" => 1_000_000,
        _ => return None,
    })
}

/// Guesses the kind of a frame, which this format does not have.
pub(super) fn kind_of(is_kernel: bool, file: &str) -> &'static str {
    let file = file.rsplit('/').next().unwrap_or(file);
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        _ if is_kernel => "kernel",
        "py" => "cpython",
        "js" | "mjs" | "cjs" | "ts" => "v8js",
        "java" | "kt" | "scala" => "jvm",
        "go" => "go",
        "rb" => "ruby",
        "php" => "php",
        _ => "native",
    }
}
