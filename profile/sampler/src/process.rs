//! A sampled process, and its entry in the catalog.

use std::time::{Duration, Instant};

use otelctx_reader::remote;
use otelctx_sample::format::process_context::Value;
use otelctx_sample::{Catalog, ProcessFacts, ProcessId};
use otelctx_track::{Facts, TrackedProcess};

use crate::Error;
use crate::code::CodeMappings;
use crate::generated::GeneratedCode;
use crate::key_maps::KeyMaps;
use crate::processes::OptedOut;
use crate::processes::ThreadNames;
use crate::walkers::KnownWalkers;

/// The time for which facts of a process are taken over when the catalog is reset: reading them takes a part of the time of
/// a recorder that resets it often. A process may change its name.
const FACTS_LIFETIME: Duration = Duration::from_secs(60);

/// Returns an error if a requested process cannot be sampled.
pub(crate) fn check_target(process: &remote::Process) -> Result<(), Error> {
    let pid = process.pid();
    if process.status()?.kernel_thread {
        return Err(Error::KernelThread { pid });
    }
    if process.has_ended() {
        return Err(remote::Error::NoSuchProcess { pid }.into());
    }
    process.memory()?;
    Ok(())
}

#[derive(Debug, Default)]
pub(crate) struct SampledProcess {
    /// Its ID in the catalog, once it has been sampled.
    id: Option<ProcessId>,
    /// Its facts without its resource, and when they were read.
    known: Option<(Instant, ProcessFacts)>,
    /// Whether it has opted out itself, by these facts.
    own_opt_out: Option<bool>,
    /// The process had another name by the time when its facts were read: it executes another program, most likely.
    is_replaced: bool,
    /// The resource detected from its environment, once it was needed.
    detected: Vec<(String, Value)>,
    pub(crate) keys: KeyMaps,
    /// Time of the last search for a second process context.
    pub(crate) other_searched: u64,
    /// Time before which there is none, because the last one took long.
    pub(crate) next_other_search: u64,
    pub(crate) code: CodeMappings,
    pub(crate) generated: GeneratedCode,
    pub(crate) thread_names: ThreadNames,
    pub(crate) walkers: KnownWalkers,
}

impl SampledProcess {
    /// Returns its ID in the catalog; adds it with its facts the first time. `thread` is the sampled thread, and its name.
    pub(crate) fn id(
        &mut self,
        process: &TrackedProcess,
        catalog: &mut Catalog,
        thread: (i32, &str),
        opted_out: &mut OptedOut,
    ) -> ProcessId {
        if let Some(id) = self.id {
            return id;
        }
        let known = self.known.as_ref();
        if let Some((_, facts)) = known.filter(|(read, _)| read.elapsed() < FACTS_LIFETIME) {
            let facts = ProcessFacts {
                opted_out: opted_out.of(process.pid(), self.own_opt_out),
                ..facts.clone()
            };
            let id = catalog.add_process(facts);
            self.id = Some(id);
            self.describe(process, catalog);
            return id;
        }
        let target = process.reader().and_then(|it| it.running().ok());
        let known = target.map_or(Facts::default(), Facts::of);
        self.own_opt_out = known.opted_out;
        let comm = match &known.comm {
            // The first thread's name is that of the process. By now, it may have executed another program.
            Some(comm) if thread.0 != process.pid() && !self.code.next_is_reported() => comm,
            _ => thread.1,
        };
        self.is_replaced = known.comm.as_ref().is_some_and(|known| known != comm);
        let known_name = known.executable.rsplit('/').next().unwrap_or_default();
        let executable = if self.is_replaced {
            self.code.path_of(comm).unwrap_or_default()
        } else if known_name.starts_with(comm) {
            known.executable
        } else {
            // It may have executed another program between the two readings.
            self.code.path_of(comm).unwrap_or(known.executable)
        };
        let facts = ProcessFacts {
            pid: process.pid(),
            comm: comm.to_owned(),
            start_ticks: known.start_ticks,
            executable,
            container_id: known.container_id,
            pod_uid: known.pod_uid,
            opted_out: opted_out.of(process.pid(), known.opted_out),
            ..ProcessFacts::default()
        };
        // What executes another program, or has ended, has other facts soon, or none that are worth keeping.
        let lasts = target.is_some() && !self.is_replaced;
        self.known = lasts.then(|| (Instant::now(), facts.clone()));
        let id = catalog.add_process(facts);
        self.id = Some(id);
        self.describe(process, catalog);
        id
    }

    pub(crate) fn describe(&mut self, process: &TrackedProcess, catalog: &mut Catalog) {
        let Some(id) = self.id else { return };
        let context = process.context();
        // A process without its earlier context is ending: its samples keep the resource.
        if catalog.process(id).published && context.is_none() {
            return;
        }
        let resource = match context {
            Some(context) => context.payload.resource.clone(),
            None => self.detected(process).to_vec(),
        };
        let facts = catalog.process_mut(id);
        facts.resource = resource;
        facts.published = context.is_some();
    }

    fn detected(&mut self, process: &TrackedProcess) -> &[(String, Value)] {
        // Only once: the environment of a process that is ending can no longer be read.
        if self.detected.is_empty() && !self.is_replaced {
            let detected = process.reader().and_then(|it| it.detected().ok());
            self.detected = detected.map_or_else(Vec::new, |detected| detected.resource);
        }
        &self.detected
    }

    /// Notes that the process has executed another program, at `time` or before, which gets a new
    /// entry in the catalog.
    pub(crate) fn exec(&mut self, time: u64) {
        (self.id, self.known) = (None, None);
        self.is_replaced = false;
        self.detected.clear();
        self.code.exec(time);
        self.generated = GeneratedCode::default();
        self.thread_names = ThreadNames::default();
        self.walkers = KnownWalkers::default();
        self.keys.clear();
    }

    /// Notes an exec that the kernel has reported, if its own event was lost.
    pub(crate) fn exec_if_reported(&mut self) {
        if self.code.next_is_reported() {
            self.exec(u64::MAX);
        }
    }

    pub(crate) fn reset_catalog(&mut self) {
        self.id = None;
        self.code.reset_catalog();
    }
}
