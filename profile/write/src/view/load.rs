//! Turns what was read into a [`Profile`], which all formats are written from.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_sample::format::process_context::Value;
use otelctx_sample::format::record::DecodedContext;
use otelctx_sample::format::{SpanId, TraceId};
use otelctx_sample::{
    Catalog, ContextId, Event, Found, FrameKind, Mapping, Module, ModuleId, OffCpu, ProcessFacts,
    ProcessId, Reason, ReasonId, Sample, StackId, ThreadId,
};

use super::tables::{
    self, Group, Id, Kind, Known, NONE, Process, Sink, Tables, UNKNOWN_TIME, known,
};
use crate::attributes::{DETECTED, RECORDED, SERVICE_NAME, UNKNOWN_SERVICE, UPSTREAM_PREFIX};
use crate::digits;
use crate::location::Resolved;
use crate::{Clock, Function, Identity, Location, LocationIndex, Place, Profile};

/// Kinds of frames of a file that this crate has no constant for.
const MAX_KINDS: usize = 64;
const MAX_KIND: usize = 64;

/// Collects samples.
pub(super) struct Loading {
    catalog: Catalog,
    /// Each with its stack, its number, and the nanoseconds of each.
    samples: Vec<(Sample, usize, u64, u64)>,
    processes: Known<ProcessId>,
    threads: Known<ThreadId>,
    contexts: Known<Found>,
    locations: Known<LocationIndex>,
    stacks: Known<usize>,
    resolved: Resolved,
    resolved_stacks: IndexSet<Box<[LocationIndex]>, RandomState>,
    kinds: HashMap<Id, FrameKind, RandomState>,
    no_stack: StackId,
    reasons: Known<Option<ReasonId>>,
    hides_idle: bool,
}

impl Loading {
    pub(super) fn new(hides_idle: bool) -> Self {
        let mut catalog = Catalog::new();
        let no_stack = catalog.stack(&[]);
        Self {
            catalog,
            samples: Vec::new(),
            processes: Vec::new(),
            threads: Vec::new(),
            contexts: Vec::new(),
            locations: Vec::new(),
            stacks: Vec::new(),
            resolved: Resolved {
                locations: Vec::new(),
                identities: HashMap::new(),
            },
            resolved_stacks: IndexSet::default(),
            kinds: HashMap::default(),
            no_stack,
            reasons: Vec::new(),
            hides_idle,
        }
    }

    /// Returns true if no sample was collected.
    pub(super) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns the profile of all samples that were collected.
    ///
    /// # Errors
    /// Returns a sentence if the formats cannot keep the samples' times.
    pub(super) fn finish(mut self, tables: &Tables) -> Result<Profile, String> {
        // The name of a process's command is that of its first thread, which may have come late.
        for (process, added) in tables.processes.iter().zip(&self.processes) {
            if let Some(added) = added {
                self.catalog.process_mut(*added).comm = facts(tables, process).comm;
            }
        }
        let (start, end) = tables.span.unwrap_or_default();
        let clock = Clock {
            start,
            end,
            start_unix: start,
        };
        let times = self.samples.iter().map(|(sample, ..)| sample.time);
        let clock = times.fold(clock, Clock::including);
        let (period, samples) = with_one_period(self.samples)?;
        Ok(Profile::from_resolved(
            self.catalog,
            samples,
            clock,
            period,
            self.resolved,
            self.resolved_stacks,
        ))
    }

    fn process(&mut self, tables: &Tables, id: Id) -> ProcessId {
        if let Some(known) = known(&mut self.processes, id) {
            return *known;
        }
        let facts = facts(tables, &tables.processes[id as usize]);
        let added = self.catalog.add_process(facts);
        *known(&mut self.processes, id).insert(added)
    }

    fn thread(&mut self, tables: &Tables, id: Id) -> ThreadId {
        if let Some(known) = known(&mut self.threads, id) {
            return *known;
        }
        let thread = tables.thread(id);
        let process = self.process(tables, thread.process);
        let tid = thread.tid.and_then(|tid| i32::try_from(tid).ok());
        let name = tables.text(thread.name);
        let added = self.catalog.thread(process, tid.unwrap_or(0), name);
        *known(&mut self.threads, id).insert(added)
    }

    fn context(&mut self, tables: &Tables, id: Id) -> Found {
        if let Some(known) = known(&mut self.contexts, id) {
            return *known;
        }
        let found = match context(tables, &tables.contexts[id as usize]) {
            Some(context) => Found::Attached(self.catalog.context(&context)),
            None => Found::<ContextId>::Detached,
        };
        *known(&mut self.contexts, id).insert(found)
    }

    fn reason(&mut self, tables: &Tables, id: Id) -> Option<ReasonId> {
        if let Some(known) = known(&mut self.reasons, id) {
            return *known;
        }
        let wait = tables.waits[id as usize];
        let reason = (wait.call != NONE || wait.reason != NONE).then(|| {
            self.catalog.reason(&Reason {
                call: tables.text(wait.call).to_owned(),
                text: tables.text(wait.reason).to_owned(),
            })
        });
        *known(&mut self.reasons, id).insert(reason)
    }

    fn stack(&mut self, tables: &Tables, id: Id) -> usize {
        if let Some(known) = known(&mut self.stacks, id) {
            return *known;
        }
        let locations = tables.stacks[id as usize].iter();
        let locations = locations.map(|location| self.location(tables, *location));
        let stack: Box<[LocationIndex]> = locations.collect();
        let index = self.resolved_stacks.insert_full(stack).0;
        *known(&mut self.stacks, id).insert(index)
    }

    fn location(&mut self, tables: &Tables, id: Id) -> LocationIndex {
        if let Some(known) = known(&mut self.locations, id) {
            return *known;
        }
        let location = &tables.locations[id as usize];
        let functions = location.lines.iter().filter(|_| location.is_named);
        let functions = functions.map(|line| {
            let function = &tables.functions[line.function as usize];
            Function {
                name: tables.text(function.name).to_owned(),
                system_name: tables.text(function.system_name).to_owned(),
                file: tables.text(function.file).to_owned(),
                line: line.line,
                column: line.column,
            }
        });
        let resolved = Location {
            address: location.address,
            functions: functions.collect::<Arc<[_]>>(),
            place: self.place(tables, location),
        };
        let index = LocationIndex(self.resolved.locations.len() as u32);
        self.resolved.locations.push(resolved);
        *known(&mut self.locations, id).insert(index)
    }

    fn place(&mut self, tables: &Tables, location: &tables::Location) -> Place {
        let mapping = &tables.mappings[location.mapping as usize];
        match tables.text(location.kind) {
            "kernel" => {
                let kernel = self.catalog.module(Module::kernel());
                self.identify(tables, kernel, mapping);
                Place::Kernel
            }
            "native" | "" if location.mapping != NONE => {
                let module = self.catalog.module(Module {
                    path: tables.text(mapping.file).to_owned(),
                    build_id: digits::bytes(tables.text(mapping.build_id)).unwrap_or_default(),
                    ..Module::default()
                });
                self.identify(tables, module, mapping);
                Place::Mapped(Mapping {
                    start: mapping.start,
                    end: mapping.limit,
                    offset: mapping.offset,
                    module,
                    since: 0,
                })
            }
            "native" if location.address != 0 => Place::Unknown,
            _ => Place::Runtime(self.kind(tables, location.kind)),
        }
    }

    fn identify(&mut self, tables: &Tables, module: ModuleId, mapping: &tables::Mapping) {
        let identity = || Identity {
            build_id: digits::bytes(tables.text(mapping.build_id)).unwrap_or_default(),
            htlhash: digits::bytes(tables.text(mapping.htlhash)).and_then(|it| it.try_into().ok()),
        };
        let identities = &mut self.resolved.identities;
        identities.entry(module).or_insert_with(identity);
    }

    fn kind(&mut self, tables: &Tables, id: Id) -> FrameKind {
        if let Some(known) = self.kinds.get(&id) {
            return *known;
        }
        let name = tables.text(id);
        let all = [
            FrameKind::CPYTHON,
            FrameKind::V8JS,
            FrameKind::GO,
            FrameKind::JVM,
            FrameKind::DOTNET,
            FrameKind::RUBY,
            FrameKind::PHP,
            FrameKind::BEAM,
            FrameKind::NATIVE,
            FrameKind::ABORT_MARKER,
        ];
        let same = all.into_iter().find(|kind| kind.name() == name);
        let kind = match same {
            Some(kind) => kind,
            None if name.is_empty() || name.len() > MAX_KIND || self.kinds.len() >= MAX_KINDS => {
                FrameKind::NATIVE
            }
            // A worker process reads one recording: nothing adds up.
            None => FrameKind::new(Box::leak(name.into())),
        };
        self.kinds.insert(id, kind);
        kind
    }
}

impl Sink for Loading {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        let thread = self.thread(tables, group.thread);
        let found = self.context(tables, group.context);
        let stack = self.stack(tables, group.stack);
        let reason = self.reason(tables, group.wait);
        let start = tables.span.map_or(0, |(start, _)| start);
        group.each(|time, samples, nanoseconds| {
            let event = match group.kind {
                Kind::Running => Event::OnCpu,
                _ => Event::OffCpu(OffCpu {
                    state: tables.waits[group.wait as usize].state,
                    nanoseconds,
                    since: 0,
                    reason,
                }),
            };
            let sample = Sample {
                time: time.unwrap_or(start),
                cpu: group.cpu,
                thread,
                event,
                found,
                gil: group.gil,
                user_stack: self.no_stack,
                stack_end: None,
                kernel_stack: self.no_stack,
            };
            let Some(of_one) = nanoseconds.checked_div(samples) else {
                return;
            };
            let each = match group.kind {
                Kind::Running => of_one,
                _ => 0,
            };
            self.samples.push((sample, stack, samples, each));
        });
    }

    fn hides_idle(&self) -> bool {
        self.hides_idle
    }

    fn needs_start(&self) -> bool {
        true
    }
}

/// Maximum number of samples that a format other than the page is written of.
const MAX_SAMPLES: u64 = 20_000_000;

/// Returns samples that all stand for the same time on a CPU, and that time: of samples with several
/// times, their greatest common divisor.
fn with_one_period(
    samples: Vec<(Sample, usize, u64, u64)>,
) -> Result<(NonZeroU64, Vec<(Sample, usize)>), String> {
    let is_running = |sample: &Sample| sample.event == Event::OnCpu;
    let running = samples.iter().filter(|(sample, ..)| is_running(sample));
    let common = running.fold(0, |common, (.., each)| divisor(common, *each));
    let period = NonZeroU64::new(common).or(NonZeroU64::new(UNKNOWN_TIME));
    let period = period.unwrap_or(NonZeroU64::MIN);
    let number = |(sample, _, count, each): &(Sample, usize, u64, u64)| match *each / period {
        parts if is_running(sample) => count.saturating_mul(parts.max(1)),
        _ => 1,
    };
    let all = samples.iter().map(number).fold(0, u64::saturating_add);
    if all > MAX_SAMPLES {
        return Err(format!(
            "it has more than {} million samples of one period, which only a page can show",
            MAX_SAMPLES / 1_000_000
        ));
    }
    let each = samples.iter().flat_map(|entry| {
        let same = (entry.0, entry.1);
        (0..number(entry)).map(move |_| same)
    });
    Ok((period, each.collect()))
}

/// Returns the greatest common divisor of two numbers.
fn divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

fn context(tables: &Tables, context: &tables::Context) -> Option<DecodedContext> {
    let attributes = &tables.attributes[context.attributes as usize];
    if context.trace == NONE && context.span == [0; 8] && attributes.is_empty() {
        return None;
    }
    let text = |id: &Id| tables.text(*id).to_owned();
    // Readers keep the prefix of names that are the recorder's without it; formats add it again.
    let name = |id: &Id| {
        let name = tables.text(*id);
        let own = name.strip_prefix(UPSTREAM_PREFIX);
        own.filter(|own| RECORDED.contains(own))
            .unwrap_or(name)
            .to_owned()
    };
    let attributes = attributes.iter();
    let mut decoded = DecodedContext::default();
    decoded.trace_id = TraceId::from_bytes(tables.traces[context.trace as usize]);
    decoded.span_id = SpanId::from_bytes(context.span);
    decoded.attributes = attributes
        .map(|(key, value)| (name(key), text(value)))
        .collect();
    Some(decoded)
}

/// Returns the facts from which the resource is written again.
fn facts(tables: &Tables, process: &Process) -> ProcessFacts {
    let find = |name: &str| {
        let found = process.resource.iter().find(|(key, _)| key == name);
        match found {
            Some((_, Value::String(text))) => Some(text.clone()),
            _ => None,
        }
    };
    // What a recorder finds out itself, it writes again.
    let is_found = |(key, value): &&(String, Value)| match (&key[..], value) {
        (DETECTED | "process.pid" | "container.id" | "k8s.pod.uid", _) => true,
        ("process.executable.name" | "process.executable.path", _) => true,
        (SERVICE_NAME, Value::String(name)) => name.starts_with(UNKNOWN_SERVICE),
        _ => false,
    };
    let published = process.resource.iter().filter(|it| !is_found(it));
    let resource: Vec<_> = published.cloned().collect();
    let name = find("process.executable.name");
    let command = process
        .command
        .map(|(_, name)| tables.text(name).to_owned());
    ProcessFacts {
        pid: process.pid.and_then(|pid| pid.try_into().ok()).unwrap_or(0),
        comm: command.or(process.program.clone()).unwrap_or_default(),
        executable: find("process.executable.path").or(name).unwrap_or_default(),
        container_id: find("container.id"),
        pod_uid: find("k8s.pod.uid"),
        published: !process.is_detected && !resource.is_empty(),
        resource,
        ..ProcessFacts::default()
    }
}
