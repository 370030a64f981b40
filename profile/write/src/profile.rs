//! A recording with its frames resolved and equal samples grouped.

use std::borrow::Cow;
use std::collections::HashMap;
use std::iter::repeat_n;
use std::num::NonZeroU64;

use indexmap::IndexSet;
use otelctx_sample::format::record::DecodedContext;
use otelctx_sample::{
    Catalog, ContextId, Counts, Event, Found, FrameKind, GilState, Module, ModuleId, OffCpuState,
    ProcessFacts, ProcessId, ReasonId, Sample, StackEnd, StackId, ThreadFacts, ThreadId,
};

use crate::attributes::attributes;
use crate::location::{Location, LocationIndex, Locator, Place, Remappings, Resolved};
use crate::report::{LANGUAGES, Selection};
use crate::{Clock, Identity, Recording, Symbolizer};

/// A recording with its frames resolved and equal samples grouped.
#[derive(Debug)]
pub struct Profile {
    catalog: Catalog,
    /// Sorted by their [`Key`] and time.
    samples: Vec<Sample>,
    /// The keys of the samples, each with the number of samples.
    keys: Vec<(Key, usize)>,
    clock: Clock,
    period: NonZeroU64,
    counts: Counts,
    kernel: ModuleId,
    locations: Vec<Location>,
    stacks: IndexSet<Box<[LocationIndex]>, foldhash::fast::RandomState>,
    identities: HashMap<ModuleId, Identity>,
}

/// Identifies a resolved stack: addresses depend on the process, and on its epoch.
#[derive(PartialEq, Eq, Hash)]
struct StackKey {
    process: ProcessId,
    /// [`Remappings::epoch`].
    epoch: usize,
    user: StackId,
    end: Option<StackEnd>,
    kernel: StackId,
}

/// The kind of time that a sample stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Time on a CPU: each sample stands for [`Profile::period`] nanoseconds.
    OnCpu,
    /// Time off-CPU: each sample has its own nanoseconds.
    OffCpu,
}

/// Samples that differ only in their time.
#[derive(Clone, Copy, Debug)]
pub struct Group<'p> {
    /// The kind of time.
    pub kind: Kind,
    /// The process.
    pub process: ProcessId,
    /// The thread.
    pub thread: ThreadId,
    /// The CPU, from 0.
    pub cpu: u32,
    /// The attached context, if there is one.
    pub context: Option<ContextId>,
    /// The state of the interpreter's lock.
    pub gil: Option<GilState>,
    /// What kept the thread off the CPU, and why, if something did.
    pub off_cpu: Option<(OffCpuState, Option<ReasonId>)>,
    /// The stack, innermost frame first: the kernel's frames, then those in the process.
    pub stack: &'p [LocationIndex],
    /// The samples, at least one, sorted by time.
    pub samples: &'p [Sample],
}

impl Group<'_> {
    /// Returns the time of all samples, in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self, period: NonZeroU64) -> u64 {
        let each = |sample: &Sample| match sample.event {
            Event::OffCpu(off) => off.nanoseconds,
            _ => period.get(),
        };
        self.samples.iter().map(each).fold(0, u64::saturating_add)
    }
}

/// The common data of equal samples, in the order by which they are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    process: ProcessId,
    kind: Kind,
    thread: ThreadId,
    context: Option<ContextId>,
    gil: Option<GilState>,
    off_cpu: Option<(OffCpuState, Option<ReasonId>)>,
    stack: usize,
    cpu: u32,
}

/// Maps each context, by index, to the first one that every format writes identically: flags, order
/// of attributes, and attributes that [`attributes`] drops may differ. A context without IDs and
/// attributes counts as none.
fn distinct_contexts(catalog: &Catalog) -> Vec<Option<ContextId>> {
    let mut first: HashMap<_, ContextId, foldhash::fast::RandomState> = HashMap::default();
    let contexts = catalog.contexts();
    let same = contexts.map(|(id, context)| {
        let (trace, span) = (context.trace_id, context.span_id);
        if trace.is_zero() && span.is_zero() && context.attributes.is_empty() {
            return None;
        }
        let written = (trace.to_bytes(), span.to_bytes(), attributes(context));
        Some(*first.entry(written).or_insert(id))
    });
    same.collect()
}

fn kind_of(sample: &Sample) -> Kind {
    match sample.event {
        Event::OffCpu(_) => Kind::OffCpu,
        _ => Kind::OnCpu,
    }
}

fn off_cpu(sample: &Sample) -> Option<(OffCpuState, Option<ReasonId>)> {
    match sample.event {
        Event::OffCpu(off) => Some((off.state, off.reason)),
        _ => None,
    }
}

/// Returns each of the sorted keys with the number of times that it occurs.
fn counted(sorted: impl Iterator<Item = Key>) -> Vec<(Key, usize)> {
    let mut keys: Vec<(Key, usize)> = Vec::new();
    for key in sorted {
        match keys.last_mut() {
            Some((last, count)) if *last == key => *count += 1,
            _ => keys.push((key, 1)),
        }
    }
    keys
}

impl Profile {
    /// Resolves a recording's frames with `symbolizer`.
    pub fn new(recording: Recording, symbolizer: &mut dyn Symbolizer) -> Self {
        let Recording {
            mut catalog,
            mut samples,
            mut clock,
            period,
            counts,
        } = recording;
        for sample in &samples {
            clock = clock.including(sample.time);
        }
        let contexts = distinct_contexts(&catalog);
        let kernel = catalog.module(Module::kernel());
        let remappings = Remappings::of(&catalog);
        let mut locator = Locator::default();
        let mut stacks = IndexSet::default();
        let mut known: HashMap<StackKey, usize, foldhash::fast::RandomState> = HashMap::default();
        let mut key = |sample: &Sample| {
            let process = catalog.thread_facts(sample.thread).process;
            let epoch = remappings.epoch(process, sample.time);
            let stack = StackKey {
                process,
                epoch,
                user: sample.user_stack,
                end: sample.stack_end,
                kernel: sample.kernel_stack,
            };
            let stack = *known.entry(stack).or_insert_with(|| {
                let stack = locator.stack(&catalog, kernel, process, epoch, sample);
                stacks.insert_full(stack).0
            });
            let context = match sample.found {
                Found::Attached(context) => contexts[context.index()],
                _ => None,
            };
            Key {
                process,
                kind: kind_of(sample),
                thread: sample.thread,
                context,
                gil: sample.gil,
                off_cpu: off_cpu(sample),
                stack,
                cpu: sample.cpu,
            }
        };
        samples.sort_by_cached_key(|sample| (key(sample), sample.time));
        let keys = counted(samples.iter().map(&mut key));
        let resolved = locator.resolve(&catalog, symbolizer);
        Self {
            catalog,
            samples,
            keys,
            clock,
            period,
            counts,
            kernel,
            locations: resolved.locations,
            stacks,
            identities: resolved.identities,
        }
    }

    /// Creates a profile from samples whose stacks are resolved: each has the index of one.
    pub(crate) fn from_resolved(
        mut catalog: Catalog,
        mut samples: Vec<(Sample, usize)>,
        clock: Clock,
        period: NonZeroU64,
        resolved: Resolved,
        stacks: IndexSet<Box<[LocationIndex]>, foldhash::fast::RandomState>,
    ) -> Self {
        let contexts = distinct_contexts(&catalog);
        let kernel = catalog.module(Module::kernel());
        let key = |(sample, stack): &(Sample, usize)| Key {
            process: catalog.thread_facts(sample.thread).process,
            kind: kind_of(sample),
            thread: sample.thread,
            context: sample.found.attached().and_then(|it| contexts[it.index()]),
            gil: sample.gil,
            off_cpu: off_cpu(sample),
            stack: *stack,
            cpu: sample.cpu,
        };
        samples.sort_by_cached_key(|sample| (key(sample), sample.0.time));
        let keys = counted(samples.iter().map(key));
        Self {
            samples: samples.into_iter().map(|(sample, _)| sample).collect(),
            keys,
            clock,
            period,
            counts: Counts::default(),
            kernel,
            locations: resolved.locations,
            stacks,
            identities: resolved.identities,
            catalog,
        }
    }

    /// Returns the data that samples refer to.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns the time that the recording spans: each sample lies in `[start, end)`.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the sampling period, in nanoseconds of CPU time.
    #[must_use]
    pub fn period(&self) -> NonZeroU64 {
        self.period
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns true if there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns all locations, in the order of their indices.
    #[must_use]
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// Returns the location with this index.
    #[must_use]
    pub fn location(&self, index: LocationIndex) -> &Location {
        &self.locations[index.index()]
    }

    /// Returns the process of a group.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> &ProcessFacts {
        self.catalog.process(id)
    }

    /// Returns the thread of a group.
    #[must_use]
    pub fn thread(&self, id: ThreadId) -> &ThreadFacts {
        self.catalog.thread_facts(id)
    }

    /// Returns the context of a group.
    #[must_use]
    pub fn context(&self, id: ContextId) -> &DecodedContext {
        self.catalog.context_facts(id)
    }

    /// Returns the module that a place belongs to.
    #[must_use]
    pub fn module_of(&self, place: Place) -> Option<ModuleId> {
        match place {
            Place::Kernel => Some(self.kernel),
            Place::Mapped(mapping) => Some(mapping.module),
            Place::Unknown | Place::Runtime(_) => None,
        }
    }

    /// Returns the identity of a module that a location belongs to.
    #[must_use]
    pub fn identity(&self, module: ModuleId) -> Option<&Identity> {
        self.identities.get(&module)
    }

    /// Visits names, files, and lines with columns of a location's functions, outermost first. Without functions, its
    /// file stands for them.
    pub(crate) fn each_function(
        &self,
        location: &Location,
        mut each: impl FnMut(&str, &str, [u32; 2]),
    ) {
        for function in location.functions.iter().rev() {
            each(
                &function.name,
                &function.file,
                [function.line, function.column],
            );
        }
        if location.functions.is_empty() {
            let (name, path) = self.unnamed(location.place);
            each(&name, path, [0; 2]);
        }
    }

    /// Returns the name for all unnamed functions of a file, and its path: a frame for each address
    /// would be noise.
    fn unnamed(&self, place: Place) -> (Cow<'_, str>, &str) {
        let Some(module) = self.module_of(place) else {
            return ("[unknown]".into(), "");
        };
        let path = &self.catalog.module_facts(module).path;
        let name = path.rsplit('/').next().unwrap_or(path);
        let path = if path.starts_with('/') { path } else { "" };
        (format!("[{}]", name.trim_matches(['[', ']'])).into(), path)
    }

    /// Keeps only the samples whose stack has a function with one of these texts in its name or its
    /// file's, in upper or lower case. Returns how many it has removed.
    pub fn keep_functions(&mut self, texts: &[String]) -> usize {
        let selection = Selection {
            functions: texts.to_vec(),
            ..Selection::default()
        };
        let is_wanted = |location: &LocationIndex| {
            let (location, mut is_found) = (&self.locations[location.index()], false);
            self.each_function(location, |name, file, _| {
                is_found |= selection.has_function(name, file);
            });
            is_found
        };
        let stacks = self.stacks.iter();
        let kept: Vec<bool> = stacks.map(|stack| stack.iter().any(is_wanted)).collect();
        self.retain(|key| kept[key.stack])
    }

    /// Keeps only samples of threads that hold a global interpreter lock.
    pub fn keep_gil_holders(&mut self) {
        self.retain(|key| key.gil == Some(GilState::Held));
    }

    /// Keeps only samples with some keys, and returns how many it has removed.
    fn retain(&mut self, is_kept: impl Fn(&Key) -> bool) -> usize {
        let before = self.samples.len();
        let counts = self.keys.iter();
        let mut kept = counts.flat_map(|(key, count)| repeat_n(is_kept(key), *count));
        self.samples.retain(|_| kept.next().unwrap_or(false));
        drop(kept);
        self.keys.retain(|(key, _)| is_kept(key));
        before - self.samples.len()
    }

    /// Keeps only the frames of these languages, of [`LANGUAGES`].
    pub fn keep_languages(&mut self, languages: &[String]) {
        let all = LANGUAGES.into_iter();
        let kinds = all.filter(|(name, _)| languages.iter().any(|it| it == name));
        let kinds: Vec<&str> = kinds.map(|(_, kind)| kind).collect();
        let is_wanted = |location: &LocationIndex| {
            kinds.contains(&match self.locations[location.index()].place {
                Place::Kernel => "kernel",
                Place::Mapped(_) | Place::Unknown => FrameKind::NATIVE.name(),
                Place::Runtime(kind) => kind.name(),
            })
        };
        let mut stacks = IndexSet::default();
        let mut stack = |stack: &[LocationIndex]| {
            let left: Box<[_]> = stack.iter().copied().filter(is_wanted).collect();
            stacks.insert_full(left).0
        };
        let moved: Vec<usize> = self.stacks.iter().map(|it| stack(it)).collect();
        let keys = self.keys.iter().flat_map(|(key, count)| {
            let stack = moved[key.stack];
            repeat_n(Key { stack, ..*key }, *count)
        });
        // Groups may have become equal.
        let mut all: Vec<(Key, Sample)> = keys.zip(self.samples.iter().copied()).collect();
        all.sort_by_key(|(key, sample)| (*key, sample.time));
        self.keys = counted(all.iter().map(|(key, _)| *key));
        self.samples = all.into_iter().map(|(_, sample)| sample).collect();
        self.stacks = stacks;
    }

    /// Returns groups of equal samples, sorted by process, kind and thread.
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let mut samples = &self.samples[..];
        self.keys.iter().map(move |(key, count)| {
            let (group, rest) = samples.split_at(*count);
            samples = rest;
            Group {
                kind: key.kind,
                process: key.process,
                thread: key.thread,
                cpu: key.cpu,
                context: key.context,
                gil: key.gil,
                off_cpu: key.off_cpu,
                stack: &self.stacks[key.stack],
                samples: group,
            }
        })
    }
}
