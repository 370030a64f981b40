//! Moves samples from the sampler to the window.

use std::collections::HashMap;

use otelctx_profile::sample::format::record;
use otelctx_profile::sample::{
    Catalog, ContextId, Counts, Event, Found, OffCpu, ProcessFacts, Reason, ReasonId, Rotation,
    Sample, ThreadId,
};
use otelctx_sampler::{IncompleteSteps, Sampler, WaitFacts, monotonic};

use super::shared::Shared;
use super::time::Wait;
use super::window::{Cell, Context, NameKind, Process, Stacks, Thread, Window, Work};
use crate::command::attribute_filter::AttributeFilter;
use crate::command::filter::{Filter, ROUTE};
use crate::command::node_contexts::NodeContexts;
use crate::command::record::waits::less_often;
use crate::output::attributes;
use crate::output::counts::{incomplete_stacks, most_frequent_end, share};
use crate::output::terminal::escape;
use crate::output::text::{count, grouped};

/// A catalog that takes more memory than this is replaced, in bytes.
const MAX_CATALOG: usize = 16 << 20;
/// A catalog is not replaced before it has served this many samples: of 127 new frames each, these
/// take 20 MB.
const MIN_SAMPLES: u64 = 2_000;
/// Maximum length of a process's name, in characters.
const MAX_NAME: usize = 256;
/// The time after which the sampler passes on what it knows of a wait that goes on, in nanoseconds, and what that may take.
const WAIT_INTERVAL: u64 = 1_000_000_000;
const WAIT_DELAY: u64 = 100_000_000;

/// Moves samples from the sampler into a window.
pub(super) struct Feed<'c> {
    pub(super) sampler: Sampler,
    filter: &'c Filter,
    /// CPU time that one sample stands for, in nanoseconds.
    period: u64,
    /// Scans for waiting threads in a second that were asked for, if they were.
    wall: Option<u32>,
    pub(super) catalog: Catalog,
    /// Takes new samples while the view is paused, as the other catalog has the stacks in view.
    aside: Option<Catalog>,
    pub(super) generation: u32,
    rotation: Rotation,
    pub(super) window: Window,
    /// The counters when the slice began.
    counts: Counts,
    interned: Interned,
}

/// Entries of the catalog that were used in this slice. Looked up again in each slice, because a
/// process may publish more later.
#[derive(Default)]
struct Interned {
    threads: HashMap<ThreadId, Shared<Thread>>,
    contexts: HashMap<ContextId, Shared<Context>>,
    reasons: HashMap<ReasonId, Shared<Reason>>,
}

impl<'c> Feed<'c> {
    /// Creates a feed whose window has `length` nanoseconds, of samples that stand for `period` each. `wall` is how many scans for
    /// waiting threads in a second were asked for, if they were.
    pub(super) fn new(
        sampler: Sampler,
        filter: &'c Filter,
        length: u64,
        period: u64,
        wall: Option<u32>,
    ) -> Self {
        let mut feed = Self {
            // The first samples are older than this call.
            window: Window::new(length, sampler.started()),
            sampler,
            filter,
            period,
            wall,
            catalog: Catalog::new(),
            aside: None,
            generation: 0,
            rotation: Rotation::new(MAX_CATALOG, MIN_SAMPLES),
            counts: Counts::default(),
            interned: Interned::default(),
        };
        feed.settle();
        feed
    }

    /// Sets how long slices wait until they are shown: until every wait in them was passed on. A scan can be half the time
    /// between two scans late.
    fn settle(&mut self) {
        let Some(asked) = self.wall else { return };
        let frequency = self.sampler.waits().map_or(0, |facts| facts.frequency);
        let frequency = if frequency == 0 { asked } else { frequency };
        let scans = 2_000_000_000 / u64::from(frequency.max(1));
        self.window.settling = WAIT_INTERVAL + WAIT_DELAY + scans;
    }

    /// Returns how many scans for waiting threads in a second were asked for, and how they are, if any were.
    pub(super) fn scans(&self) -> Option<(u32, WaitFacts)> {
        self.wall.zip(self.sampler.waits())
    }

    /// Returns what is missing of the scans for waiting threads, if anything is.
    pub(super) fn fewer_scans(&self) -> Option<String> {
        let (asked, facts) = self.scans()?;
        let lost = (facts.lost > 0).then(|| {
            let lost = grouped(facts.lost as usize);
            format!("{lost} samples of waits lost since the start")
        });
        let texts: Vec<String> = less_often(asked, &facts).into_iter().chain(lost).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }

    /// Returns the share of the window's stacks that are incomplete, and the most frequent reason.
    /// `None` with a filter: the counters are of all samples.
    pub(super) fn incomplete_stacks(&self) -> Option<String> {
        let counts = self.window.counts();
        if !self.filter.is_empty() {
            return None;
        }
        let share = incomplete_stacks(&counts)?;
        let reason = most_frequent_end(&counts)?;
        Some(format!("{share} of stacks incomplete (most: {reason})"))
    }

    /// Returns how many of the window's samples lack the part of a language runtime, and why. `None`
    /// with a filter, likewise.
    pub(super) fn incomplete_steps(&self) -> Option<String> {
        let counts = self.filter.is_empty().then(|| self.window.counts())?;
        let reasons = self.sampler.incomplete_steps();
        incomplete_steps(counts.incomplete_steps, self.window.samples(), &reasons)
    }

    /// Returns how many attributes of the window's samples have no names, because their processes
    /// have publishers that disagree on them. `None` with a filter, likewise.
    pub(super) fn contested_keys(&self) -> Option<String> {
        let counts = self.filter.is_empty().then(|| self.window.counts())?;
        let number = counts.contested_keys as usize;
        (number > 0).then(|| {
            let attributes = count(number, "attribute", "attributes");
            format!("{attributes} without a name (publishers disagree)")
        })
    }

    /// Returns what contexts of Node.js lack in the window. `None` with a filter, which may have dropped it.
    pub(super) fn node_contexts(&self) -> Option<String> {
        if !self.filter.is_empty() || !self.filter.attributes.keeps(ROUTE) {
            return None;
        }
        let mut contexts = NodeContexts::default();
        for (cell, time) in self.window.cells().filter(|(_, time)| time.samples > 0) {
            let stacks = cell.stacks.as_ref();
            let Some(stacks) = stacks.filter(|it| it.catalog == self.generation) else {
                continue;
            };
            let context = match &cell.work {
                Work::Attached(context) => Some(context.attribute(ROUTE).is_some()),
                Work::Nothing => None,
                Work::Unreadable | Work::Others => continue,
            };
            contexts.add(&self.catalog, stacks.thread, context, time.samples);
        }
        contexts.hint().map(str::to_owned)
    }

    pub(super) fn drain(&mut self) {
        let mut samples = Vec::new();
        let mut push = |sample| samples.push(sample);
        let now = monotonic();
        self.sampler.drain(&mut self.catalog, &mut push);
        self.rotation.count(samples.len() as u64);
        for sample in samples {
            let (window, generation) = (&mut self.window, self.generation);
            let attributes = &self.filter.attributes;
            let interned = &mut self.interned;
            if self.wall.is_some() {
                // Also of samples that are left out: its thread waits no longer.
                interned.note(&self.catalog, attributes, &sample, window);
            }
            if !self.filter.keeps(&self.catalog, &sample) {
                continue;
            }
            let cell = interned.cell(&self.catalog, attributes, generation, &sample, window);
            match sample.event {
                Event::OffCpu(off) => window.add_wait(&cell, sample.time, off),
                _ => window.add(cell, self.period),
            }
        }
        self.window.now = now;
    }

    /// Takes the samples that have arrived and discards them. [`Feed::restart`] counts again.
    pub(super) fn skip(&mut self) {
        let rotation = &mut self.rotation;
        let aside = match &mut self.aside {
            Some(aside) => {
                renew(&mut self.sampler, aside, rotation);
                aside
            }
            None => {
                self.sampler.reset_catalog();
                let aside = self.aside.insert(Catalog::new());
                rotation.rotate(aside);
                aside
            }
        };
        self.sampler.drain(aside, &mut |_| rotation.count(1));
    }

    /// Takes the samples that have arrived, and ends the slice.
    pub(super) fn close(&mut self) {
        self.drain();
        let counts = self.sampler.counts();
        let slice = counts.since(self.counts);
        self.settle();
        self.window.close(monotonic(), slice);
        self.counts = counts;
        self.interned = Interned::default();
    }

    /// Shows what has all of its waits by now. Returns whether there was anything.
    pub(super) fn reveal(&mut self) -> bool {
        let now = monotonic();
        let mut any = false;
        while self.window.reveal(now) {
            any = true;
        }
        any
    }

    /// Replaces the catalog if it has grown too large: the stacks of earlier slices get no names then.
    pub(super) fn renew(&mut self) {
        if renew(&mut self.sampler, &mut self.catalog, &mut self.rotation) {
            self.generation += 1;
            self.interned = Interned::default();
        }
    }

    pub(super) fn restart(&mut self) {
        self.skip();
        self.catalog = self.aside.take().unwrap_or_default();
        self.generation += 1;
        self.interned = Interned::default();
        self.window.restart(monotonic());
        self.counts = self.sampler.counts();
    }
}

/// Formats the share of samples that lack the part of a runtime. The reason is the most frequent one
/// since sampling began: reasons are not counted by window, and some samples have none.
fn incomplete_steps(missing: u64, samples: u64, reasons: &[IncompleteSteps]) -> Option<String> {
    // A sample counts once for each runtime that cannot be read.
    let share = (missing > 0).then(|| share(missing, samples.max(missing)))?;
    let most = reasons.first().map(|most| {
        let (runtime, reason) = (most.runtime, escape(&most.reason));
        format!(" (most since the start: {runtime}: {reason})")
    });
    let most = most.unwrap_or_default();
    Some(format!("{share} of samples without a runtime's part{most}"))
}

/// Replaces a catalog that has grown too large. Returns whether it did.
fn renew(sampler: &mut Sampler, catalog: &mut Catalog, rotation: &mut Rotation) -> bool {
    let is_due = rotation.is_due(catalog);
    if is_due {
        sampler.reset_catalog();
        rotation.rotate(catalog);
    }
    is_due
}

impl Interned {
    fn thread(
        &mut self,
        catalog: &Catalog,
        attributes: &AttributeFilter,
        thread: ThreadId,
        window: &mut Window,
    ) -> Shared<Thread> {
        let known = self.threads.entry(thread).or_insert_with(|| {
            let facts = catalog.thread_facts(thread);
            window.threads.get(Thread {
                process: process(catalog.process(facts.process), attributes),
                tid: facts.tid,
                name: facts.name.clone(),
            })
        });
        known.clone()
    }

    fn wait(&mut self, catalog: &Catalog, off: OffCpu, window: &mut Window) -> Wait {
        let reason = off.reason.map(|id| {
            let known = self.reasons.entry(id);
            let reason = || window.reasons.get(catalog.reason_facts(id).clone());
            known.or_insert_with(reason).clone()
        });
        Wait {
            state: off.state,
            reason,
        }
    }

    /// Notes what was seen last of a sample's thread.
    fn note(
        &mut self,
        catalog: &Catalog,
        attributes: &AttributeFilter,
        sample: &Sample,
        window: &mut Window,
    ) {
        let thread = self.thread(catalog, attributes, sample.thread, window);
        let wait = match sample.event {
            Event::OffCpu(off) => Some((self.wait(catalog, off, window), off.since)),
            _ => None,
        };
        let wait = wait.as_ref().map(|(wait, since)| (wait, *since));
        window.newest.note(thread.id(), sample.time, wait);
    }

    fn cell(
        &mut self,
        catalog: &Catalog,
        attributes: &AttributeFilter,
        generation: u32,
        sample: &Sample,
        window: &mut Window,
    ) -> Cell {
        let thread = self.thread(catalog, attributes, sample.thread, window);
        let wait = match sample.event {
            Event::OffCpu(off) => Some(self.wait(catalog, off, window)),
            _ => None,
        };
        let work = match sample.found {
            Found::Attached(id) => {
                let context = self.contexts.entry(id);
                let facts = || context_of(catalog.context_facts(id), attributes);
                let known = context
                    .or_insert_with(|| window.contexts.get(facts()))
                    .clone();
                if known.trace_id().is_some() {
                    window.note_trace(known.trace, sample.time);
                }
                Work::Attached(known)
            }
            Found::Detached | Found::NotPublished => Work::Nothing,
            _ => Work::Unreadable,
        };
        Cell {
            thread,
            gil: sample.gil,
            work,
            wait,
            stacks: Some(Stacks {
                catalog: generation,
                thread: sample.thread,
                user: sample.user_stack,
                kernel: Some(sample.kernel_stack),
            }),
        }
    }
}

fn context_of(context: &record::DecodedContext, filter: &AttributeFilter) -> Context {
    let kept = context.attributes.iter();
    let kept = kept.filter(|(name, _)| filter.keeps(name)).cloned();
    Context {
        trace: context.trace_id.to_bytes(),
        span: context.span_id.to_bytes(),
        attributes: kept.collect(),
    }
}

/// Returns a process, named after its service if that has a name.
fn process(facts: &ProcessFacts, filter: &AttributeFilter) -> Process {
    let service = if !filter.keeps("service.name") {
        None
    } else if facts.published {
        attributes::string(&facts.resource, "service.name")
    } else {
        attributes::detected_service(&facts.resource)
    };
    let name = service.unwrap_or(&facts.comm);
    Process {
        pid: facts.pid,
        start_ticks: facts.start_ticks,
        name_kind: match service {
            None => NameKind::Command,
            Some(_) if facts.published => NameKind::Service,
            Some(_) => NameKind::Detected,
        },
        name: name.chars().take(MAX_NAME).collect(),
    }
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::format::process_context::Value;
    use otelctx_sampler::{Options, Targets};

    use super::*;

    #[test]
    fn a_process_is_called_by_its_service_or_else_by_its_program() {
        let named = |service: &str, published| {
            let facts = ProcessFacts {
                comm: "sh".into(),
                published,
                resource: vec![("service.name".into(), Value::from(service))],
                ..ProcessFacts::default()
            };
            process(&facts, &AttributeFilter::default()).label()
        };
        assert_eq!(named("shop", true), "shop");
        assert_eq!(named("shop", false), "(shop)", "detected");
        assert_eq!(named("unknown_service:sh", false), "[sh]", "a command");
        assert_eq!(named("unknown_service:sh", true), "unknown_service:sh");
        assert_eq!(named(&"x".repeat(1 << 16), true), "x".repeat(MAX_NAME));
        assert_eq!(
            process(&ProcessFacts::default(), &AttributeFilter::default()).name,
            ""
        );
    }

    /// Stacks that make a catalog too large.
    const FILLED: usize = 2_000;

    /// A sampler of a process that has ended.
    fn sampler() -> Sampler {
        let mut child = std::process::Command::new("sleep").arg("600").spawn();
        let child = child.as_mut().unwrap();
        let mut options = Options::new(Targets::Processes(vec![child.id() as i32]));
        options.without_ebpf = true;
        let sampler = Sampler::start(&options);
        child.kill().unwrap();
        child.wait().unwrap();
        sampler.unwrap()
    }

    /// It began later than the first samples: two CPUs were shown as used by 230 %.
    #[test]
    fn the_first_window_begins_when_sampling_does() {
        let (filter, sampler) = (Filter::default(), sampler());
        let started = sampler.started();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut feed = Feed::new(sampler, &filter, 0, 1, None);
        let least = monotonic() - started;
        feed.close();
        assert!(feed.window.wall() >= least);
    }

    /// Of a service that was filtered out, half of the stacks may be incomplete.
    #[test]
    fn the_share_of_incomplete_stacks_is_not_shown_with_a_filter() {
        let traces = vec![otelctx_reader::format::TraceId::from_bytes([1; 16])];
        let filters = [
            Filter::default(),
            Filter {
                traces,
                ..Filter::default()
            },
        ];
        let shown = filters.map(|filter| {
            let mut feed = Feed::new(sampler(), &filter, 0, 1, None);
            let mut counts = Counts::default();
            (counts.complete_stacks, counts.incomplete_stacks[0]) = (1, 1);
            feed.window.close(monotonic(), counts);
            feed.incomplete_stacks()
        });
        let all = "50.0 % of stacks incomplete (most: walked by frame pointers)";
        assert_eq!(shown, [Some(all.to_owned()), None]);
    }

    #[test]
    fn the_share_of_samples_without_a_runtimes_part_has_the_most_frequent_reason_if_one_is_known() {
        let reasons = [("version 4.0.0 is not supported", 30), ("another", 2)];
        let reasons =
            reasons.map(|(reason, number)| IncompleteSteps::new("cpython", reason, number));
        let share = "25.0 % of samples without a runtime's part";
        let reason = "(most since the start: cpython: version 4.0.0 is not supported)";
        assert_eq!(
            incomplete_steps(1, 4, &reasons),
            Some(format!("{share} {reason}"))
        );
        assert_eq!(incomplete_steps(1, 4, &[]), Some(share.to_owned()));
        assert_eq!(incomplete_steps(0, 4, &reasons), None);
    }

    #[test]
    fn a_paused_view_keeps_its_stacks_and_new_samples_are_bounded() {
        let (filter, sampler) = (Filter::default(), sampler());
        let mut feed = Feed::new(sampler, &filter, 0, 1, None);
        feed.catalog.native_stack(&[1]);
        let before = feed.catalog.stack_count();
        feed.rotation = Rotation::new(100_000, 0);
        let fill = |catalog: &mut Catalog| {
            for address in 0..FILLED as u64 {
                catalog.native_stack(&[address]);
            }
        };
        feed.skip();
        fill(feed.aside.as_mut().unwrap());
        feed.skip();
        assert!(feed.aside.as_ref().unwrap().stack_count() < FILLED);
        assert_eq!((feed.catalog.stack_count(), feed.generation), (before, 0));
        feed.restart();
        assert_eq!(feed.generation, 1);
        assert!(feed.aside.is_none() && feed.catalog.stack_count() < before);
        fill(&mut feed.catalog);
        feed.close();
        assert!(feed.catalog.stack_count() >= FILLED, "to be shown");
        feed.renew();
        assert_eq!(feed.generation, 2);
        assert!(feed.catalog.stack_count() < before);
    }
}
