//! The thread that makes messages of samples: resolves functions, bounds attributes, encodes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use otelctx_agent::{Cardinality, Liveness, LivenessGuard, Queue};
use otelctx_profile::sample::ModuleFiles;
use otelctx_profile::{Options, Profile, Recording};
use otelctx_sampler::monotonic;

use super::names::BackgroundNames;
use super::parquet::Tables;
use super::pods::Pods;
use super::settings::{Recorded, Settings, current};
use super::symbols::SymbolSource;

/// Batches that may wait for the thread, beside the one that it works on.
const MAX_WAITING: usize = 1;
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
    /// Samples that are in no Parquet file, although there should be one.
    pub(super) without_table: AtomicU64,
    /// CPU time of the thread that resolves functions, in nanoseconds.
    pub(super) resolving: Arc<AtomicU64>,
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
    sender: SyncSender<Vec<Recording>>,
    pub(super) progress: Arc<Progress>,
    /// Whether the thread still runs, and that which resolves functions.
    pub(super) encoder: Liveness,
    pub(super) resolver: Liveness,
    thread: JoinHandle<()>,
}

impl Batches {
    /// Starts the thread. No more functions are resolved once `is_ending` is true.
    pub(super) fn start(
        settings: Arc<Mutex<Arc<Settings>>>,
        files: ModuleFiles,
        queue: Queue,
        message_size: usize,
        tables: Tables,
        is_ending: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_WAITING);
        let progress = Arc::new(Progress::default());
        let current = current(&settings);
        let (guard, encoder) = Liveness::pair();
        let (of_resolver, resolver) = Liveness::pair();
        let source = SymbolSource::new(Arc::clone(&settings), files, Arc::clone(&is_ending));
        let time = Arc::clone(&progress.resolving);
        let work = Work {
            names: BackgroundNames::start(source, is_ending, time, of_resolver)?,
            cardinality: Cardinality::new(current.cardinality),
            pods: current.pods(),
            in_force: current,
            settings,
            queue,
            message_size,
            tables,
            progress: Arc::clone(&progress),
            _guard: guard,
        };
        let thread = Builder::new().name("encoder".to_owned());
        let thread = thread.spawn(move || work.run(&receiver))?;
        Ok(Self {
            sender,
            progress,
            encoder,
            resolver,
            thread,
        })
    }

    /// Returns whether a batch can be added without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.progress.waiting.load(Ordering::Acquire) <= MAX_WAITING
    }

    /// Adds a batch, in parts with a sampling period each.
    pub(super) fn add(&self, batch: Vec<Recording>) {
        self.progress.waiting.fetch_add(1, Ordering::AcqRel);
        let samples = batch.iter().map(|it| it.samples.len() as u64).sum();
        self.progress.samples.fetch_add(samples, Ordering::Relaxed);
        // If the thread has panicked, that was printed.
        let _ = self.sender.send(batch);
    }

    /// Counts samples that were dropped because there was no room.
    pub(super) fn count_dropped(&self, samples: u64) {
        self.progress.dropped.fetch_add(samples, Ordering::Relaxed);
    }

    /// Adds the last batch, and waits until all are encoded.
    pub(super) fn finish(self, last: Vec<Recording>) {
        self.add(last);
        drop(self.sender);
        let _ = self.thread.join();
    }
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
    tables: Tables,
    progress: Arc<Progress>,
    _guard: LivenessGuard,
}

impl Work {
    fn run(mut self, batches: &Receiver<Vec<Recording>>) {
        for batch in batches {
            self.progress.begun.store(monotonic(), Ordering::Relaxed);
            // One time for all parts: together they have an interval.
            let interval = current(&self.settings).interval;
            self.names.begin(interval.mul_f64(WAIT_PART).min(MAX_WAIT));
            batch.into_iter().for_each(|part| self.encode(part));
            let discarded = self.tables.write_if_due();
            let counter = &self.progress.without_table;
            counter.fetch_add(discarded, Ordering::Relaxed);
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
        // By these, too, processes are selected.
        self.pods.apply(&mut batch);
        let all = batch.samples.len();
        select(&settings.recorded, &mut batch);
        let excluded = (all - batch.samples.len()) as u64;
        self.progress
            .excluded
            .fetch_add(excluded, Ordering::Relaxed);
        settings.attributes.apply(&mut batch);
        let limited = self.cardinality.apply(&mut batch);
        let add = |counter: &AtomicU64, number| counter.fetch_add(number, Ordering::Relaxed);
        add(&self.progress.limited_values, limited.values);
        add(&self.progress.limited_attributes, limited.attributes);
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
            let samples = messages.samples() as u64;
            let discarded = self.tables.add(&message, samples);
            add(&self.progress.without_table, discarded);
            self.queue.push(message, samples);
        }
    }
}

/// Removes the samples of processes that are not to be recorded.
fn select(selected: &Recorded, batch: &mut Recording) {
    let processes = batch.catalog.processes();
    let recorded: Vec<bool> = processes
        .map(|(_, facts)| selected.includes(facts))
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
