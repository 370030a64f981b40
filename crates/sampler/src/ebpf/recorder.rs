//! From the program's events to samples.

use std::collections::HashMap;
use std::time::Instant;

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_sample::format::record;
use otelctx_sample::{Catalog, Counts, Event, Found, Sample, Unread};
use reader::remote::ModuleCache;

use super::abi::{self, EventHead, MAX_PLACES, Target, kind, outcome};
use super::load::{Loaded, Lost};
use crate::process::{Known, Modules, Publishing, places};
use crate::refusal::Refusal;
use crate::{Error, Options, Targets};

/// Looks at processes that may begin to publish, between two drains: more are done in the next.
const LOOKS_A_DRAIN: usize = 32;

/// Looking with eBPF.
pub(crate) struct Recorder {
    loaded: Loaded,
    processes: HashMap<u32, Known, RandomState>,
    reader_options: reader::Options,
    whole_machine: bool,
    modules: Modules,
    module_cache: ModuleCache,
    serial: u32,
    counts: Counts,
    lost_processes: u64,
    /// Addresses of one stack, kept for the next.
    addresses: Vec<u64>,
}

impl Recorder {
    /// Loads the program, looks at the targets and starts the clocks.
    pub(crate) fn start(options: &Options) -> Result<Result<Self, Refusal>, Error> {
        let loaded = match Loaded::load(options) {
            Ok(loaded) => loaded,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut reader_options = reader::Options::default();
        reader_options.max_record = options.max_record;
        let mut recorder = Self {
            loaded,
            processes: HashMap::default(),
            reader_options,
            whole_machine: options.targets == Targets::All,
            modules: Modules::default(),
            module_cache: ModuleCache::new(),
            serial: 0,
            counts: Counts::default(),
            lost_processes: 0,
            addresses: Vec::new(),
        };
        match &options.targets {
            Targets::All => recorder.find_publishers()?,
            Targets::Processes(pids) => {
                for pid in pids {
                    recorder.add_target(*pid)?;
                }
            }
        }
        for clock in &recorder.loaded.clocks {
            clock.start().map_err(Error::Clock)?;
        }
        Ok(Ok(recorder))
    }

    /// Looks at every process that runs now. Those that publish nothing are looked at again when
    /// they are sampled.
    fn find_publishers(&mut self) -> Result<(), Error> {
        for pid in reader::remote::process::processes()? {
            let Ok(mut known) = Known::open(pid, self.reader_options.clone()) else {
                continue;
            };
            if let Publishing::Nothing = known.look(&mut self.module_cache) {
                continue;
            }
            let pid = pid as u32;
            self.processes.insert(pid, known);
            self.configure(pid);
        }
        Ok(())
    }

    fn add_target(&mut self, pid: i32) -> Result<(), Error> {
        let mut known = Known::open(pid, self.reader_options.clone())?;
        if known.reader.target().status()?.kernel_thread {
            return Err(Error::KernelThread { pid });
        }
        known.look(&mut self.module_cache);
        let pid = pid as u32;
        self.processes.insert(pid, known);
        self.configure(pid);
        Ok(())
    }

    /// Tells the program what is known of a process.
    fn configure(&mut self, pid: u32) {
        let Some(known) = self.processes.get_mut(&pid) else {
            return;
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        let mut target = Target {
            serial: self.serial,
            ..Target::default()
        };
        if let Publishing::Threads(variables) = &known.publishing {
            let places = places(&variables.resolution.variables);
            target.places = places.len().min(MAX_PLACES) as u32;
            for (to, from) in target.place.iter_mut().zip(places) {
                *to = from;
            }
            let keys = variables.keys.clone();
            known.set_keys(self.serial, keys);
        }
        // A full map leaves the process without contexts: its samples say so.
        let _ = self.loaded.targets.insert(pid, target, 0);
        // It may have executed another program just before, and then this is of the old one.
        if target.places > 0 && known.reader.modules_unchanged().is_ok_and(|same| same) {
            return;
        }
        if target.places > 0 {
            let nothing = Target::default();
            let _ = self.loaded.targets.insert(pid, nothing, 0);
            known.look_soon();
        }
    }

    /// Passes on what has come since the last time.
    pub(crate) fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut dyn FnMut(Sample)) {
        // Taken out, so that its items can be borrowed while the rest of this changes.
        while let Some(item) = self.loaded.events.next() {
            let Some((head, parts)) = abi::event(&item) else {
                continue;
            };
            let mut event = Borrowed {
                processes: &mut self.processes,
                reader_options: &self.reader_options,
                modules: &mut self.modules,
                counts: &mut self.counts,
                addresses: &mut self.addresses,
                catalog,
            };
            match head.kind {
                kind::ON_CPU => {
                    if let Some(sample) = event.sample(&head, parts) {
                        on_sample(sample);
                    }
                }
                kind::FORK => event.forked(head.pid),
                kind::EXEC => event.executed(head.pid),
                kind::EXIT => {
                    self.processes.remove(&head.pid);
                }
                _ => {}
            }
        }
        let Lost { samples, processes } = self.loaded.lost();
        self.counts.lost = samples;
        if processes != self.lost_processes {
            self.lost_processes = processes;
            self.processes.values_mut().for_each(Known::look_soon);
        }
        self.look_again(catalog);
    }

    /// Looks at processes again that may have begun to publish or changed where they keep it.
    fn look_again(&mut self, catalog: &mut Catalog) {
        let now = Instant::now();
        let due: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, known)| known.wants_look(now))
            .map(|(pid, _)| *pid)
            .take(LOOKS_A_DRAIN)
            .collect();
        for pid in due {
            let Some(known) = self.processes.get_mut(&pid) else {
                continue;
            };
            if !known.reader.target().exists() {
                self.processes.remove(&pid);
                let _ = self.loaded.targets.remove(&pid);
                continue;
            }
            let before = known.looked.then(|| known.places());
            known.look(&mut self.module_cache);
            if before.as_deref() == Some(&known.places()[..]) {
                continue;
            }
            known.describe(catalog);
            if self.whole_machine && matches!(known.publishing, Publishing::Nothing) {
                let _ = self.loaded.targets.remove(&pid);
                continue;
            }
            self.configure(pid);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether any target still runs.
    pub(crate) fn has_targets(&self) -> bool {
        self.whole_machine || !self.processes.is_empty()
    }

    /// Stops the clocks. What has come until then can still be drained.
    pub(crate) fn stop(&mut self) {
        for clock in &self.loaded.clocks {
            // A clock that can't be stopped stops when it is closed.
            let _ = clock.stop();
        }
    }
}

/// What it takes to understand one event.
struct Borrowed<'a> {
    processes: &'a mut HashMap<u32, Known, RandomState>,
    reader_options: &'a reader::Options,
    modules: &'a mut Modules,
    counts: &'a mut Counts,
    addresses: &'a mut Vec<u64>,
    catalog: &'a mut Catalog,
}

impl Borrowed<'_> {
    fn sample(&mut self, head: &EventHead, parts: abi::Parts<'_>) -> Option<Sample> {
        if !self.processes.contains_key(&head.pid) {
            let known = Known::open(head.pid as i32, self.reader_options.clone());
            // It has ended, and all that could be said of it with it.
            self.processes.insert(head.pid, known.ok()?);
        }
        let known = self.processes.get_mut(&head.pid)?;
        let comm = name(&head.comm);
        let process = known.id(self.catalog, &comm);
        let thread = self.catalog.thread(process, head.tid as i32, &comm);
        let (mut bytes, mut user, mut kernel) = (None, None, None);
        for (kind, part) in parts {
            match kind {
                abi::part::RECORD => bytes = Some(part),
                abi::part::USER_STACK => user = Some(part),
                abi::part::KERNEL_STACK => kernel = Some(part),
                _ => {}
            }
        }
        known.sampled();
        let found = found(known, head, bytes, self.counts, self.catalog);
        self.counts.add(found);
        self.counts.truncated_stacks += u64::from(head.flags & abi::flag::TRUNCATED_STACK != 0);
        self.counts.missing_stacks += u64::from(head.flags & abi::flag::NO_USER_STACK != 0);
        read_stack(self.addresses, user);
        let addresses = self.addresses.iter().copied();
        known.explain(self.catalog, addresses, self.modules);
        let user_stack = self.catalog.stack(self.addresses);
        read_stack(self.addresses, kernel);
        let kernel_stack = self.catalog.stack(self.addresses);
        Some(Sample {
            time: head.time,
            cpu: head.cpu,
            thread,
            event: Event::OnCpu,
            found,
            user_stack,
            kernel_stack,
        })
    }

    fn forked(&mut self, pid: u32) {
        if let Ok(known) = Known::open(pid as i32, self.reader_options.clone()) {
            self.processes.insert(pid, known);
        }
    }

    fn executed(&mut self, pid: u32) {
        if let Some(known) = self.processes.get_mut(&pid) {
            known.executed();
        }
    }
}

/// What a sample says of the thread's context.
fn found(
    known: &mut Known,
    head: &EventHead,
    bytes: Option<&[u8]>,
    counts: &mut Counts,
    catalog: &mut Catalog,
) -> Found {
    let why = match head.outcome {
        outcome::ATTACHED => {
            let record = bytes.and_then(|bytes| record::decode(bytes).ok());
            let (Some(record), Some(keys)) = (record, known.keys(head.serial)) else {
                return Found::Unread(Unread::Record);
            };
            let mut context = record.resolve(keys);
            if context.left_out.unknown_key > 0
                && known.refresh_keys(head.serial)
                && let Some(keys) = known.keys(head.serial)
            {
                context = record.resolve(keys);
            }
            counts.unknown_keys += u64::from(context.left_out.unknown_key);
            return Found::Attached(catalog.context(&context));
        }
        outcome::DETACHED => return Found::Detached,
        outcome::NOT_VALID => Unread::NotValid,
        outcome::SLOT => Unread::Slot,
        outcome::RECORD => Unread::Record,
        outcome::MOVED => {
            known.look_soon();
            Unread::Unresolved
        }
        _ => match known.publishing {
            _ if !known.looked => Unread::Unresolved,
            Publishing::Nothing => return Found::NotPublished,
            Publishing::Threads(_) => Unread::Unresolved,
            Publishing::Unreadable => Unread::Unsupported,
        },
    };
    Found::Unread(why)
}

/// A thread's name, as the kernel keeps it: up to a zero.
fn name(comm: &[u8; 16]) -> String {
    let end = comm.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&comm[..end.unwrap_or(comm.len())]).into_owned()
}

fn read_stack(to: &mut Vec<u64>, bytes: Option<&[u8]>) {
    to.clear();
    let words = bytes.unwrap_or_default().chunks_exact(8);
    to.extend(words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))));
}
