//! The processes that are known, and how a look at one of their threads becomes a sample.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_sample::format::record::{self, Context};
use otelctx_sample::{Catalog, Counts, Event, Found, Frame, ReadStep, Sample};
use reader::FileCache;

use crate::process::{Known, Modules, Publishing};

/// Processes that are looked at again between two drains; what is left has its turn after the
/// next.
const LOOKS_A_DRAIN: usize = 32;
/// So is what is left when looking has taken this long: those that are dear to look at must not keep
/// samples waiting for longer than the ring has room.
const LOOKING: Duration = Duration::from_millis(20);
/// How often those are forgotten that said they end and are gone; and one time in so many, all that
/// are gone: where ptrace looks none says so, and what the kernel tells can get lost.
const SWEEP: Duration = Duration::from_millis(200);
const SWEEP_ALL: u32 = 50;

/// The processes that are known, by their ids.
#[derive(Debug)]
pub(crate) struct Processes {
    known: HashMap<u32, Known, RandomState>,
    options: reader::Options,
    /// How long a look at one of them may take.
    scan_timeout: Option<Duration>,
    modules: Modules,
    shared_modules: FileCache,
    sweep: Instant,
    sweeps: u32,
    pub(crate) counts: Counts,
}

/// A look at a thread.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) comm: &'a str,
    pub(crate) context: Found<Record<'a>>,
    pub(crate) user_stack: &'a [Frame],
    pub(crate) kernel_stack: &'a [Frame],
}

/// An attached record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record<'a> {
    /// Its bytes, and the configuration that they were read under.
    Bytes { serial: u32, bytes: &'a [u8] },
    /// What it says.
    Context(&'a Context),
}

impl Processes {
    pub(crate) fn new(options: reader::Options, scan_timeout: Option<Duration>) -> Self {
        Self {
            known: HashMap::default(),
            options,
            scan_timeout,
            modules: Modules::default(),
            shared_modules: FileCache::default(),
            sweep: Instant::now() + SWEEP,
            sweeps: 0,
            counts: Counts::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether nothing of any of them runs any longer.
    pub(crate) fn have_ended(&self) -> bool {
        self.known.values().all(Known::has_ended)
    }

    pub(crate) fn get_mut(&mut self, pid: u32) -> Option<&mut Known> {
        self.known.get_mut(&pid)
    }

    /// Adds a process, not yet looked at.
    pub(crate) fn add(&mut self, pid: u32) -> Result<&mut Known, reader::Error> {
        let known = Known::open(
            pid as i32,
            self.options.clone(),
            self.shared_modules.clone(),
            self.scan_timeout,
        )?;
        Ok(self.known.entry(pid).insert_entry(known).into_mut())
    }

    pub(crate) fn remove(&mut self, pid: u32) {
        self.known.remove(&pid);
    }

    /// Notes that a process ends. It stays known for as long as the kernel has it: until then there
    /// may be more samples of it, and its id is no other's.
    pub(crate) fn exits(&mut self, pid: u32) {
        if let Some(known) = self.known.get_mut(&pid) {
            known.exits = true;
        }
    }

    /// Notes that a process executes another program.
    pub(crate) fn executed(&mut self, pid: u32) {
        self.forget_if_gone(pid);
        if let Some(known) = self.known.get_mut(&pid) {
            known.executed();
        }
    }

    /// The id of one that has ended may be another's by now.
    fn forget_if_gone(&mut self, pid: u32) {
        let known = self.known.get(&pid);
        if known.is_some_and(|known| known.exits && !known.exists()) {
            self.known.remove(&pid);
        }
    }

    /// Has all that are gone forgotten with the next look at processes: something was missed.
    pub(crate) fn sweep_soon(&mut self) {
        (self.sweep, self.sweeps) = (Instant::now(), 0);
    }

    /// The processes that are gone, if it is time to see to that.
    fn gone(&mut self, now: Instant) -> Vec<u32> {
        if now < self.sweep {
            return Vec::new();
        }
        let all = self.sweeps.is_multiple_of(SWEEP_ALL);
        (self.sweep, self.sweeps) = (now + SWEEP, self.sweeps.wrapping_add(1));
        let gone = |(_, known): &(&u32, &Known)| (all || known.exits) && !known.exists();
        let gone = self.known.iter().filter(gone);
        gone.map(|(pid, _)| *pid).collect()
    }

    /// Looks how a process publishes.
    pub(crate) fn look(&mut self, pid: u32) {
        if let Some(known) = self.known.get_mut(&pid) {
            known.look();
        }
    }

    /// Looks at all of them again soon: something was missed.
    pub(crate) fn look_soon(&mut self) {
        self.known.values_mut().for_each(Known::look_soon);
    }

    /// Another catalog comes, which knows none of them.
    pub(crate) fn reset_catalog(&mut self) {
        self.known.values_mut().for_each(Known::reset_catalog);
        self.modules = Modules::default();
    }

    /// Looks again at processes that may have begun to publish or changed where they keep it, and
    /// returns those that have, and those that have ended.
    pub(crate) fn look_again(&mut self, catalog: &mut Catalog) -> (Vec<u32>, Vec<u32>) {
        let now = Instant::now();
        let mut ended = self.gone(now);
        let wanting = |(_, known): &(&u32, &mut Known)| known.wants_look(now);
        let due = self.known.iter_mut().filter(wanting).take(LOOKS_A_DRAIN);
        let mut changed = Vec::new();
        for (pid, known) in due {
            if now.elapsed() > LOOKING {
                break;
            }
            if !known.exists() {
                ended.push(*pid);
            } else if known.look() {
                known.describe(catalog);
                changed.push(*pid);
            }
        }
        for pid in &ended {
            self.known.remove(pid);
        }
        (changed, ended)
    }

    /// Makes a sample of a look.
    pub(crate) fn sample(&mut self, look: &Look<'_>, catalog: &mut Catalog) -> Sample {
        self.forget_if_gone(look.pid);
        let known = self.known.entry(look.pid).or_insert_with(|| {
            let pid = look.pid as i32;
            let modules = self.shared_modules.clone();
            Known::open(pid, self.options.clone(), modules, self.scan_timeout)
                .unwrap_or_else(|_| Known::ended(pid))
        });
        let process = known.id(catalog, look.comm);
        known.sampled();
        let found = found(known, look.context, &mut self.counts, catalog);
        self.counts.add(found);
        let addresses = look.user_stack.iter().filter_map(Frame::address);
        known.explain(catalog, addresses, &mut self.modules);
        Sample {
            time: look.time,
            cpu: look.cpu,
            thread: catalog.thread(process, look.tid as i32, look.comm),
            event: Event::OnCpu,
            found,
            user_stack: catalog.stack(look.user_stack),
            kernel_stack: catalog.stack(look.kernel_stack),
        }
    }
}

/// The outcome of a look at the thread's context, with the context in the catalog.
fn found(
    known: &mut Known,
    read: Found<Record<'_>>,
    counts: &mut Counts,
    catalog: &mut Catalog,
) -> Found {
    let found = read.and_then(|record| {
        let decoded;
        let context = match record {
            // It was read before the process executed another program.
            Record::Bytes { serial, .. } if known.keys(serial).is_none() => {
                return Found::Unreadable(ReadStep::Resolve);
            }
            Record::Bytes { serial, bytes } => match decode(known, serial, bytes) {
                Some(context) => {
                    decoded = context;
                    &decoded
                }
                None => return Found::Unreadable(ReadStep::Record),
            },
            Record::Context(context) => context,
        };
        counts.add_skipped(&context.skipped);
        Found::Attached(catalog.context(context))
    });
    match found {
        Found::NotPublished if !known.looked => Found::Unreadable(ReadStep::Resolve),
        Found::NotPublished => match known.publishing {
            Publishing::Nothing => Found::NotPublished,
            Publishing::Threads(_) => Found::Unreadable(ReadStep::Resolve),
            Publishing::Unreadable => Found::Unreadable(ReadStep::Access),
        },
        Found::Unreadable(ReadStep::Resolve) => {
            known.look_soon();
            found
        }
        found => found,
    }
}

/// What a record says. A key may have been registered since the key map was read.
fn decode(known: &mut Known, serial: u32, bytes: &[u8]) -> Option<Context> {
    let record = record::decode(bytes).ok()?;
    let context = record.resolve(known.keys(serial)?);
    if context.skipped.unknown_key == 0 || !known.refresh_keys(serial) {
        return Some(context);
    }
    Some(record.resolve(known.keys(serial)?))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Ended with this, also by a test that fails.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            let mut command = Command::new("sleep");
            Self(command.arg("600").stdin(Stdio::null()).spawn().unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // Both fail only when it has ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn look(pid: u32) -> Look<'static> {
        Look {
            time: 1,
            cpu: 0,
            pid,
            tid: pid,
            comm: "sleep",
            context: Found::NotPublished,
            user_stack: &[],
            kernel_stack: &[],
        }
    }

    #[test]
    fn a_process_that_ends_unnoticed_is_forgotten() {
        let mut processes = Processes::new(reader::Options::default(), None);
        let child = Sleeper::start();
        let pid = child.0.id();
        processes.add(pid).unwrap();
        let mut catalog = Catalog::new();
        processes.sweep_soon();
        processes.look_again(&mut catalog);
        assert!(!processes.is_empty());
        drop(child);
        processes.sweep_soon();
        let (_, ended) = processes.look_again(&mut catalog);
        assert_eq!(ended, [pid]);
        assert!(processes.is_empty());
    }

    #[test]
    fn samples_of_a_process_that_ends_are_still_its_own() {
        let mut processes = Processes::new(reader::Options::default(), None);
        let mut catalog = Catalog::new();
        let child = Sleeper::start();
        let pid = child.0.id();
        let first = processes.sample(&look(pid), &mut catalog);
        // The kernel tells so first, and takes its memory away then, which is sampled, too.
        processes.exits(pid);
        let second = processes.sample(&look(pid), &mut catalog);
        assert_eq!(second.thread, first.thread);
        assert_eq!(catalog.processes().len(), 1);
        drop(child);
        // Whoever has its id now is another.
        processes.sample(&look(pid), &mut catalog);
        assert_eq!(catalog.processes().len(), 2);
    }
}
