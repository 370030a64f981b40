//! The thread that makes messages of samples: resolves functions, bounds attributes, encodes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use otelctx_agent::{Cardinality, Queue};
use otelctx_profile::sample::format::process_context::Value;
use otelctx_profile::sample::{ModuleFiles, ProcessFacts};
use otelctx_profile::{Options, Profile, Recording};
use otelctx_sampler::monotonic;

use super::names::{BackgroundNames, NewSymbols};
use super::pods::Pods;
use super::settings::{Services, Settings};

/// Batches that may wait for the thread, beside the one that it works on.
const MAX_WAITING: usize = 1;
/// The resource attribute with the name of a service.
const SERVICE_NAME: &str = "service.name";
/// The time after which a batch takes too long: names are waited for for a part of an interval alone.
const STALLED: Duration = Duration::from_secs(120);
/// The part of an interval for which a batch waits for names of functions that are not known yet, and the maximum.
const WAIT_PART: f64 = 0.8;
const MAX_WAIT: Duration = Duration::from_secs(30);

/// What the thread has done.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Batches that were passed on and are not encoded yet.
    waiting: AtomicUsize,
    /// The time at which the thread has begun with a batch (`CLOCK_MONOTONIC`, nanoseconds); 0 while it has none.
    begun: AtomicU64,
    /// Samples that were passed on.
    pub(super) samples: AtomicU64,
    /// Samples that were dropped because the thread was busy.
    pub(super) dropped: AtomicU64,
    /// Samples of processes that are not to be recorded.
    pub(super) excluded: AtomicU64,
    /// Values that were replaced, and attributes that were removed, because there are too many.
    pub(super) limited_values: AtomicU64,
    pub(super) limited_attributes: AtomicU64,
}

impl Progress {
    /// Returns true if the thread works on a batch for longer than decoding the largest files takes, or has panicked.
    pub(super) fn has_stalled(&self) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        begun > 0 && monotonic().saturating_sub(begun) > STALLED.as_nanos() as u64
    }
}

/// The thread, from the recorder's side.
pub(super) struct Batches {
    sender: SyncSender<Recording>,
    pub(super) progress: Arc<Progress>,
    thread: JoinHandle<()>,
}

impl Batches {
    /// Starts the thread. No more functions are resolved once `is_ending` is true.
    pub(super) fn start(
        settings: Arc<Mutex<Arc<Settings>>>,
        files: ModuleFiles,
        queue: Queue,
        message_size: usize,
        is_ending: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_WAITING);
        let progress = Arc::new(Progress::default());
        let current = current(&settings);
        let names =
            BackgroundNames::start(new_symbols(&settings, &files, &is_ending), files, is_ending);
        let work = Work {
            names: names?,
            cardinality: Cardinality::new(current.cardinality),
            pods: current.pods(),
            in_force: current,
            settings,
            queue,
            message_size,
            progress: Arc::clone(&progress),
        };
        let thread = Builder::new().name("encoder".to_owned());
        let thread = thread.spawn(move || work.run(&receiver))?;
        Ok(Self {
            sender,
            progress,
            thread,
        })
    }

    /// Returns whether a batch can be added without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.progress.waiting.load(Ordering::Acquire) <= MAX_WAITING
    }

    /// Adds a batch.
    pub(super) fn add(&self, batch: Recording) {
        self.progress.waiting.fetch_add(1, Ordering::AcqRel);
        let samples = batch.samples.len() as u64;
        self.progress.samples.fetch_add(samples, Ordering::Relaxed);
        // If the thread has panicked, that was printed.
        let _ = self.sender.send(batch);
    }

    /// Counts samples that were dropped because there was no room.
    pub(super) fn count_dropped(&self, samples: u64) {
        self.progress.dropped.fetch_add(samples, Ordering::Relaxed);
    }

    /// Adds the last batch, and waits until all are encoded.
    pub(super) fn finish(self, last: Recording) {
        self.add(last);
        drop(self.sender);
        let _ = self.thread.join();
    }
}

/// Returns the settings that are in force.
pub(super) fn current(settings: &Mutex<Arc<Settings>>) -> Arc<Settings> {
    let settings = settings.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(&settings)
}

/// Returns what makes a symbolizer of the settings that are in force then.
fn new_symbols(
    settings: &Arc<Mutex<Arc<Settings>>>,
    files: &ModuleFiles,
    is_ending: &Arc<AtomicBool>,
) -> NewSymbols {
    let (settings, files) = (Arc::clone(settings), files.clone());
    let is_ending = Arc::clone(is_ending);
    let server = current(&settings).server();
    Box::new(move || current(&settings).symbols(server.clone(), &files, &is_ending))
}

struct Work {
    settings: Arc<Mutex<Arc<Settings>>>,
    /// The settings that the other fields were made of.
    in_force: Arc<Settings>,
    names: BackgroundNames,
    cardinality: Cardinality,
    pods: Pods,
    queue: Queue,
    message_size: usize,
    progress: Arc<Progress>,
}

impl Work {
    fn run(mut self, batches: &Receiver<Recording>) {
        for batch in batches {
            self.progress.begun.store(monotonic(), Ordering::Relaxed);
            self.encode(batch);
            self.progress.begun.store(0, Ordering::Relaxed);
            self.progress.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn encode(&mut self, mut batch: Recording) {
        let settings = current(&self.settings);
        if !Arc::ptr_eq(&settings, &self.in_force) {
            if settings.cardinality != self.in_force.cardinality {
                self.cardinality = Cardinality::new(settings.cardinality);
            }
            self.pods = settings.pods();
            self.in_force = Arc::clone(&settings);
        }
        let all = batch.samples.len();
        select(&settings.services, &mut batch);
        let excluded = (all - batch.samples.len()) as u64;
        self.progress
            .excluded
            .fetch_add(excluded, Ordering::Relaxed);
        self.pods.apply(&mut batch);
        settings.attributes.apply(&mut batch);
        let limited = self.cardinality.apply(&mut batch);
        let add = |counter: &AtomicU64, number| counter.fetch_add(number, Ordering::Relaxed);
        add(&self.progress.limited_values, limited.values);
        add(&self.progress.limited_attributes, limited.attributes);
        self.names
            .begin(settings.interval.mul_f64(WAIT_PART).min(MAX_WAIT));
        let profile = Profile::new(batch, &mut self.names);
        let mut options = Options::default();
        options
            .attribute_prefix
            .clone_from(&settings.attribute_prefix);
        options
            .dropped_attributes
            .clone_from(&settings.attributes.drop);
        let mut messages = profile.otlp_messages(&options, self.message_size);
        while let Some(message) = messages.next() {
            self.queue.push(message, messages.samples() as u64);
        }
    }
}

/// Removes the samples of processes that are not to be recorded.
fn select(services: &Services, batch: &mut Recording) {
    let processes = batch.catalog.processes();
    let recorded: Vec<bool> = processes
        .map(|(_, facts)| !facts.opted_out && services.include(service(facts)))
        .collect();
    if recorded.iter().all(|it| *it) {
        return;
    }
    let catalog = &batch.catalog;
    batch.samples.retain(|sample| {
        let process = catalog.thread_facts(sample.thread).process;
        recorded[process.index()]
    });
}

/// Returns the name of a process's service; empty if it has none.
fn service(facts: &ProcessFacts) -> &str {
    let mut resource = facts.resource.iter();
    let found = resource.find(|(key, _)| key == SERVICE_NAME);
    match found {
        Some((_, Value::String(name))) => name,
        _ => "",
    }
}
