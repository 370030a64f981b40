//! From the sampler to the window.

use std::collections::HashMap;

use otelctx_profile::sample::format::record;
use otelctx_profile::sample::{Catalog, ContextId, Found, ProcessFacts, Sample, ThreadId};
use otelctx_sampler::{Sampler, monotonic};

use super::window::{Cell, Context, Process, Shared, Stacks, Thread, Window, Work};
use crate::command::filter::Filter;
use crate::output::attributes;

/// Maximum number of entries of one kind before the catalog is replaced: 20,000 stacks of 127 frames take
/// 20 MB.
const MOST_OF_A_KIND: usize = 20_000;
/// Number of distinct frames that count as one of a kind: 80,000 that a runtime has named take about
/// 24 MB.
const FRAMES_OF_A_STACK: usize = 4;
/// Maximum size of the processes' resources in the catalog, in bytes.
const MOST_RESOURCES: usize = 16 << 20;
/// Maximum length of a process's name, in characters.
const LONGEST_NAME: usize = 256;
/// Start of the specification's name for a service without a name.
const UNKNOWN_SERVICE: &str = "unknown_service";

/// Moves samples from the sampler into a window.
pub(super) struct Feed<'c> {
    sampler: Sampler,
    filter: &'c Filter,
    pub(super) catalog: Catalog,
    /// Takes new samples while the view is paused, as the other catalog has the stacks in view.
    aside: Option<Catalog>,
    /// The catalog's number, counted from 0.
    pub(super) generation: u32,
    /// See [`MOST_OF_A_KIND`].
    most: usize,
    pub(super) window: Window,
    /// Samples lost before the slice began.
    lost: u64,
    known: Known,
}

/// Entries of the catalog that were used in this slice. Looked up anew in each slice, because a process may
/// publish more later.
#[derive(Default)]
struct Known {
    threads: HashMap<ThreadId, Shared<Thread>>,
    contexts: HashMap<ContextId, Shared<Context>>,
}

impl<'c> Feed<'c> {
    /// With a window of `length` nanoseconds.
    pub(super) fn new(sampler: Sampler, filter: &'c Filter, length: u64) -> Self {
        Self {
            sampler,
            filter,
            catalog: Catalog::new(),
            aside: None,
            generation: 0,
            most: MOST_OF_A_KIND,
            window: Window::new(length, monotonic()),
            lost: 0,
            known: Known::default(),
        }
    }

    pub(super) fn has_targets(&self) -> bool {
        self.sampler.has_targets()
    }

    /// Takes the samples that have arrived.
    pub(super) fn drain(&mut self) {
        let mut samples = Vec::new();
        self.sampler
            .drain(&mut self.catalog, &mut |sample| samples.push(sample));
        for sample in samples {
            if self.filter.keeps(&self.catalog, &sample) {
                let cell =
                    self.known
                        .cell(&self.catalog, self.generation, &sample, &mut self.window);
                self.window.add(cell);
            }
        }
    }

    /// Takes the samples that have arrived and discards them. [`Feed::restart`] starts counting again.
    pub(super) fn skip(&mut self) {
        let aside = match &mut self.aside {
            Some(aside) => {
                renew(&mut self.sampler, aside, &mut self.most);
                aside
            }
            None => {
                self.sampler.reset_catalog();
                self.aside.insert(Catalog::new())
            }
        };
        self.sampler.drain(aside, &mut |_| {});
    }

    /// Takes the samples that have arrived, and ends the slice.
    pub(super) fn close(&mut self) {
        self.drain();
        let lost = self.sampler.counts().lost;
        self.window.close(monotonic(), lost - self.lost);
        self.lost = lost;
        self.known = Known::default();
    }

    /// Replaces the catalog if it has grown too large. The stacks of earlier slices cannot be named after
    /// that.
    pub(super) fn renew(&mut self) {
        if renew(&mut self.sampler, &mut self.catalog, &mut self.most) {
            self.generation += 1;
            self.known = Known::default();
        }
    }

    /// Discards all samples up to now.
    pub(super) fn restart(&mut self) {
        self.skip();
        self.catalog = self.aside.take().unwrap_or_default();
        self.generation += 1;
        self.known = Known::default();
        self.window.restart(monotonic());
        self.lost = self.sampler.counts().lost;
    }
}

/// Replaces a catalog that has more than `most` entries of a kind. Returns whether it did.
fn renew(sampler: &mut Sampler, catalog: &mut Catalog, most: &mut usize) -> bool {
    let size = size(catalog);
    if size <= *most {
        return false;
    }
    sampler.reset_catalog();
    *catalog = Catalog::new();
    // Entries in use alone may exceed the limit.
    *most = MOST_OF_A_KIND.max(size.min(2 * *most));
    true
}

/// The size of a catalog: its largest number of entries of one kind.
fn size(catalog: &Catalog) -> usize {
    let processes = catalog.processes().map(|(_, facts)| facts);
    let mappings: usize = processes.map(|facts| 1 + facts.mappings.len()).sum();
    let names = |facts: &ProcessFacts| -> usize {
        let size = |(name, value): &(String, _)| name.len() + attributes::text(value).len();
        facts.resource.iter().map(size).sum()
    };
    let resources: usize = catalog.processes().map(|(_, facts)| names(facts)).sum();
    let sizes = [
        mappings,
        resources * MOST_OF_A_KIND / MOST_RESOURCES,
        catalog.threads().len(),
        catalog.contexts().len(),
        catalog.stack_count(),
        catalog.frame_count() / FRAMES_OF_A_STACK,
        catalog.modules().len(),
    ];
    sizes.into_iter().max().unwrap_or(0)
}

impl Known {
    fn cell(
        &mut self,
        catalog: &Catalog,
        generation: u32,
        sample: &Sample,
        window: &mut Window,
    ) -> Cell {
        let thread = self.threads.entry(sample.thread).or_insert_with(|| {
            let facts = catalog.thread_facts(sample.thread);
            window.thread(Thread {
                process: process(catalog.process(facts.process)),
                tid: facts.tid,
                name: facts.name.clone(),
            })
        });
        let work = match sample.found {
            Found::Attached(id) => {
                let context = self.contexts.entry(id);
                let known = context
                    .or_insert_with(|| window.context(context_of(catalog.context_facts(id))));
                Work::Attached(known.clone())
            }
            Found::Detached | Found::NotPublished => Work::Nothing,
            _ => Work::Unreadable,
        };
        Cell {
            thread: thread.clone(),
            work,
            stacks: Some(Stacks {
                catalog: generation,
                thread: sample.thread,
                user: sample.user_stack,
                kernel: sample.kernel_stack,
            }),
        }
    }
}

fn context_of(context: &record::Context) -> Context {
    Context {
        trace: context.trace_id.to_bytes(),
        span: context.span_id.to_bytes(),
        attributes: context.attributes.clone(),
    }
}

/// A process, named after its service if that has a name.
fn process(facts: &ProcessFacts) -> Process {
    let service = attributes::string(&facts.resource, "service.name");
    let service = service.filter(|name| facts.published || !name.starts_with(UNKNOWN_SERVICE));
    Process {
        pid: facts.pid,
        start_ticks: facts.start_ticks,
        name: service
            .unwrap_or(&facts.comm)
            .chars()
            .take(LONGEST_NAME)
            .collect(),
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
            process(&facts).name
        };
        assert_eq!(named("shop", true), "shop");
        assert_eq!(named("shop", false), "shop");
        assert_eq!(named("unknown_service:sh", false), "sh");
        assert_eq!(named("unknown_service:sh", true), "unknown_service:sh");
        assert_eq!(named(&"x".repeat(1 << 16), true), "x".repeat(LONGEST_NAME));
        assert_eq!(process(&ProcessFacts::default()).name, "");
    }

    #[test]
    fn a_paused_view_keeps_its_stacks_and_new_samples_are_bounded() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn();
        let child = child.as_mut().unwrap();
        let mut options = Options::new(Targets::Processes(vec![child.id() as i32]));
        options.without_ebpf = true;
        let sampler = Sampler::start(&options);
        child.kill().unwrap();
        child.wait().unwrap();
        let filter = Filter::default();
        let mut feed = Feed::new(sampler.unwrap(), &filter, 0);
        feed.catalog.native_stack(&[1]);
        let before = feed.catalog.stack_count();
        let fill = |catalog: &mut Catalog, most| {
            for address in 0..=most as u64 {
                catalog.native_stack(&[address]);
            }
        };
        feed.skip();
        fill(feed.aside.as_mut().unwrap(), MOST_OF_A_KIND);
        feed.skip();
        assert!(feed.aside.as_ref().unwrap().stack_count() < MOST_OF_A_KIND);
        assert_eq!((feed.catalog.stack_count(), feed.generation), (before, 0));
        feed.restart();
        assert_eq!(feed.generation, 1);
        assert!(feed.aside.is_none() && feed.catalog.stack_count() < before);
        fill(&mut feed.catalog, feed.most);
        feed.close();
        assert!(feed.catalog.stack_count() > MOST_OF_A_KIND, "to be shown");
        feed.renew();
        assert_eq!(feed.generation, 2);
        assert!(feed.catalog.stack_count() < before);
    }

    #[test]
    fn the_size_of_a_catalog_is_that_of_its_largest_part() {
        let mut catalog = Catalog::new();
        assert_eq!(size(&catalog), 0);
        catalog.add_process(ProcessFacts {
            resource: vec![("service.name".into(), Value::from("x".repeat(1 << 20)))],
            ..ProcessFacts::default()
        });
        assert_eq!(size(&catalog), MOST_OF_A_KIND / 16);
        for address in 0..MOST_OF_A_KIND as u64 {
            catalog.native_stack(&[address]);
        }
        assert_eq!(size(&catalog), MOST_OF_A_KIND);
    }
}
