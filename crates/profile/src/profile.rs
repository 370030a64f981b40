//! A recording with its frames resolved and equal samples grouped.

use std::collections::HashMap;
use std::num::NonZeroU64;

use otelctx_sample::format::record::Context;
use otelctx_sample::{
    Catalog, ContextId, Counts, Event, Found, Module, ModuleId, ProcessFacts, ProcessId, Sample,
    StackId, ThreadFacts, ThreadId,
};

use crate::attributes::attributes;
use crate::location::{Location, LocationIndex, Locator, Place};
use crate::{Clock, Identity, Recording, Symbolizer};

/// A recording with its frames resolved and equal samples grouped.
#[derive(Debug)]
pub struct Profile {
    catalog: Catalog,
    /// Sorted by [`key`].
    samples: Vec<Sample>,
    /// By context index: the context that represents it in all formats.
    contexts: Vec<Option<ContextId>>,
    clock: Clock,
    period: NonZeroU64,
    counts: Counts,
    kernel: ModuleId,
    locations: Vec<Location>,
    stacks: HashMap<StackKey, Box<[LocationIndex]>, foldhash::fast::RandomState>,
    /// By module.
    identities: HashMap<ModuleId, Identity>,
}

/// Addresses have a meaning in their process only.
type StackKey = (ProcessId, StackId, StackId);

/// Whether a sample is of time on a CPU or off-CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// On a CPU: each sample stands for [`Profile::period`] nanoseconds.
    OnCpu,
    /// Off-CPU: each sample has its own nanoseconds.
    OffCpu,
}

/// Samples that differ only in their time.
#[derive(Clone, Copy, Debug)]
pub struct Group<'p> {
    /// On a CPU or off-CPU.
    pub kind: Kind,
    /// The process.
    pub process: ProcessId,
    /// The thread.
    pub thread: ThreadId,
    /// The attached context, if there is one.
    pub context: Option<ContextId>,
    /// The stack, innermost frame first: the kernel's frames, then those in the process.
    pub stack: &'p [LocationIndex],
    /// The samples, at least one, sorted by time.
    pub samples: &'p [Sample],
}

impl Group<'_> {
    /// The time of all samples, in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self, period: NonZeroU64) -> u64 {
        let each = |sample: &Sample| match sample.event {
            Event::OffCpu { nanoseconds } => nanoseconds,
            _ => period.get(),
        };
        self.samples.iter().map(each).fold(0, u64::saturating_add)
    }
}

type Key = (
    ProcessId,
    Kind,
    ThreadId,
    Option<ContextId>,
    StackId,
    StackId,
);

/// Maps each context, by index, to the first one that every format writes identically: they may
/// differ in flags, in the order of attributes, and in attributes that [`attributes`] drops. A
/// context without IDs and attributes counts as none.
fn distinct_contexts(catalog: &Catalog) -> Vec<Option<ContextId>> {
    let mut first: HashMap<_, ContextId, foldhash::fast::RandomState> = HashMap::default();
    let contexts = catalog.contexts();
    let same = contexts.map(|(id, context)| {
        let (trace, span) = (context.trace_id, context.span_id);
        if trace.is_zero() && span.is_zero() && context.attributes.is_empty() {
            return None;
        }
        let said = (trace.to_bytes(), span.to_bytes(), attributes(context));
        Some(*first.entry(said).or_insert(id))
    });
    same.collect()
}

fn key(catalog: &Catalog, contexts: &[Option<ContextId>], sample: &Sample) -> Key {
    let kind = match sample.event {
        Event::OffCpu { .. } => Kind::OffCpu,
        _ => Kind::OnCpu,
    };
    let context = match sample.found {
        Found::Attached(context) => contexts[context.index()],
        _ => None,
    };
    (
        catalog.thread_facts(sample.thread).process,
        kind,
        sample.thread,
        context,
        sample.user_stack,
        sample.kernel_stack,
    )
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
        samples.sort_unstable_by_key(|sample| (key(&catalog, &contexts, sample), sample.time));
        let kernel = catalog.module(Module::kernel());
        let mut profile = Self {
            catalog,
            samples,
            contexts,
            clock,
            period,
            counts,
            kernel,
            locations: Vec::new(),
            stacks: HashMap::default(),
            identities: HashMap::new(),
        };
        let mut locator = Locator::default();
        for sample in &profile.samples {
            let process = profile.catalog.thread_facts(sample.thread).process;
            let key = (process, sample.user_stack, sample.kernel_stack);
            let stack = || locator.stack(&profile.catalog, kernel, process, sample);
            profile.stacks.entry(key).or_insert_with(stack);
        }
        (profile.locations, profile.identities) = locator.name(&profile.catalog, symbolizer);
        profile
    }

    /// The data that samples refer to.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The time that the recording spans: each sample lies in `[start, end)`.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The sampling period, in nanoseconds of CPU time.
    #[must_use]
    pub fn period(&self) -> NonZeroU64 {
        self.period
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// All locations, in the order of their indices.
    #[must_use]
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// The location with this index.
    #[must_use]
    pub fn location(&self, index: LocationIndex) -> &Location {
        &self.locations[index.index()]
    }

    /// The process of a group.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> &ProcessFacts {
        self.catalog.process(id)
    }

    /// The thread of a group.
    #[must_use]
    pub fn thread(&self, id: ThreadId) -> &ThreadFacts {
        self.catalog.thread_facts(id)
    }

    /// The context of a group.
    #[must_use]
    pub fn context(&self, id: ContextId) -> &Context {
        self.catalog.context_facts(id)
    }

    /// The module that a place belongs to.
    #[must_use]
    pub fn module_of(&self, place: Place) -> Option<ModuleId> {
        match place {
            Place::Kernel => Some(self.kernel),
            Place::Mapped(mapping) => Some(mapping.module),
            Place::Unknown | Place::Runtime(_) => None,
        }
    }

    /// The identity of a module that a location belongs to.
    #[must_use]
    pub fn identity(&self, module: ModuleId) -> Option<&Identity> {
        self.identities.get(&module)
    }

    fn key(&self, sample: &Sample) -> Key {
        key(&self.catalog, &self.contexts, sample)
    }

    /// Groups of equal samples, sorted by process, kind and thread.
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let alike = |one: &Sample, other: &Sample| self.key(one) == self.key(other);
        self.samples.chunk_by(alike).map(|samples| {
            let (process, kind, thread, context, user, kernel) = self.key(&samples[0]);
            Group {
                kind,
                process,
                thread,
                context,
                stack: &self.stacks[&(process, user, kernel)],
                samples,
            }
        })
    }
}
