//! From the program's events to samples.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_sample::{Catalog, Counts, Found, Frame, Sample};

use super::abi::{self, EventHead, Target, flag, kind, part, step_outcome};
use super::load::{Loaded, Lost};
use crate::process::{Publishing, may_be_looked_at, target};
use crate::processes::{Look, Processes, Record};
use crate::refusal::Refusal;
use crate::{Error, Options, Targets, monotonic};

/// How often to see what got lost, and which processors there are.
const SURVEY: Duration = Duration::from_secs(1);

/// Looking with eBPF.
pub(crate) struct Recorder {
    loaded: Loaded,
    processes: Processes,
    whole_machine: bool,
    /// Of the newest configuration.
    serial: u32,
    lost: Lost,
    /// When to see what got lost, and which processors there are.
    survey: Instant,
    stopped: bool,
    /// In a row, that found every target ended.
    idle_surveys: u32,
    /// Processors that samples have come from since then.
    seen: HashSet<u32, RandomState>,
    /// One event's stacks; the memory is reused for the next.
    stacks: [Vec<Frame>; 2],
}

impl Recorder {
    /// Loads the program, looks at the targets and starts the clocks.
    pub(crate) fn start(
        options: &Options,
        reader_options: reader::Options,
        scan_timeout: Option<Duration>,
    ) -> Result<Result<Self, Refusal>, Error> {
        let loaded = match Loaded::load(options) {
            Ok(loaded) => loaded,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut recorder = Self {
            loaded,
            processes: Processes::new(reader_options, scan_timeout),
            whole_machine: options.targets == Targets::All,
            serial: 0,
            lost: Lost::default(),
            survey: Instant::now() + SURVEY,
            stopped: false,
            idle_surveys: 0,
            seen: HashSet::default(),
            stacks: [Vec::new(), Vec::new()],
        };
        match &options.targets {
            Targets::All => recorder.find_publishers()?,
            Targets::Processes(pids) => {
                for pid in pids {
                    recorder.add_target(*pid)?;
                }
            }
        }
        recorder.loaded.clocks.start().map_err(Error::Clock)?;
        Ok(Ok(recorder))
    }

    /// Looks at every process that runs now. Those that publish nothing are looked at again when
    /// they have been sampled.
    fn find_publishers(&mut self) -> Result<(), Error> {
        for pid in reader::remote::process::processes()? {
            let pid = pid as u32;
            if self.processes.add(pid).is_err() {
                continue;
            }
            self.processes.look(pid);
            match self.processes.get_mut(pid).map(|known| &known.publishing) {
                // Its descriptors are better used for others.
                Some(Publishing::Nothing) => self.processes.remove(pid),
                _ => self.configure(pid),
            }
        }
        Ok(())
    }

    fn add_target(&mut self, pid: i32) -> Result<(), Error> {
        may_be_looked_at(&reader::remote::Process::open(pid)?)?;
        self.processes.add(pid as u32)?;
        self.processes.look(pid as u32);
        self.configure(pid as u32);
        Ok(())
    }

    /// Tells the program where the threads of a process keep their contexts.
    fn configure(&mut self, pid: u32) {
        let Some(known) = self.processes.get_mut(pid) else {
            return;
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        let target = target(self.serial, &known.places());
        if let Publishing::Threads(variables) = &known.publishing {
            let keys = variables.keys.clone();
            known.set_keys(self.serial, keys);
        }
        if target.places == 0 && self.whole_machine {
            let _ = self.loaded.targets.remove(&pid);
            return;
        }
        // Where the map is full the process stays without contexts, and its samples say so.
        let _ = self.loaded.targets.insert(pid, target, 0);
        if target.places > 0 && !known.is_as_looked_at() {
            // It has executed another program, loads a library just now, or has ended.
            let nothing = Target::default();
            let _ = if self.whole_machine {
                self.loaded.targets.remove(&pid)
            } else {
                self.loaded.targets.insert(pid, nothing, 0)
            };
            known.look_soon();
        }
    }

    /// Passes on what has come since the last time.
    pub(crate) fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut dyn FnMut(Sample)) {
        // A recorder that gets too little of a processor would never come to the end otherwise.
        let until = monotonic();
        while let Some(item) = self.loaded.events.next() {
            let Some((head, parts)) = abi::event(&item) else {
                continue;
            };
            match head.kind {
                kind::ON_CPU => {
                    self.seen.insert(head.cpu);
                    // The clocks are told to leave idle processors out (`exclude_idle`), and that of the
                    // first one has been seen not to.
                    if head.pid != 0 {
                        let stacks = &mut self.stacks;
                        on_sample(sample(&mut self.processes, stacks, &head, parts, catalog));
                    }
                }
                // One that ended at once has left an event of that, too.
                kind::FORK => drop(self.processes.add(head.pid)),
                kind::EXEC => self.processes.executed(head.pid),
                kind::EXIT if self.whole_machine => self.processes.exits(head.pid),
                kind::EXIT => {
                    self.processes.remove(head.pid);
                    // It may have been told of the process when that had ended already.
                    let _ = self.loaded.targets.remove(&head.pid);
                }
                _ => {}
            }
            if head.time > until {
                break;
            }
        }
        let now = Instant::now();
        if now >= self.survey || self.stopped {
            self.survey(now);
        }
        let (changed, ended) = self.processes.look_again(catalog);
        for pid in ended {
            let _ = self.loaded.targets.remove(&pid);
        }
        for pid in changed {
            self.configure(pid);
        }
    }

    /// Sees what got lost, and which processors there are.
    fn survey(&mut self, now: Instant) {
        self.survey = now + SURVEY;
        let lost = self.loaded.lost();
        self.processes.counts.lost += lost.samples - self.lost.samples;
        if lost.processes != self.lost.processes {
            self.processes.look_soon();
            self.processes.sweep_soon();
        }
        self.lost = lost;
        let is_idle = !self.whole_machine && self.processes.have_ended();
        self.idle_surveys = if is_idle { self.idle_surveys + 1 } else { 0 };
        if !self.stopped {
            self.loaded.follow_processors(&self.seen);
            self.seen.clear();
        }
    }

    pub(crate) fn reset_catalog(&mut self) {
        self.processes.reset_catalog();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.processes.counts
    }

    /// Time and runs of the program, if the kernel counts them.
    pub(crate) fn kernel_time(&self) -> Option<(Duration, u64)> {
        let info = self.loaded.info()?;
        (info.run_count() > 0).then(|| (info.run_time(), info.run_count()))
    }

    /// Whether any target still runs. A process tells of its end, unless it had ended before the
    /// program was told of it, or that was lost; then it is seen that nothing of it runs, twice: a
    /// child that it left behind may be on its way.
    pub(crate) fn has_targets(&self) -> bool {
        self.whole_machine || self.idle_surveys < 2 && !self.processes.is_empty()
    }

    /// Stops the clocks. What has come until then can still be drained.
    pub(crate) fn stop(&mut self) {
        self.loaded.clocks.stop();
        self.stopped = true;
    }
}

/// Makes a sample of an event.
fn sample(
    processes: &mut Processes,
    [user_stack, kernel_stack]: &mut [Vec<Frame>; 2],
    head: &EventHead,
    parts: abi::Parts<'_>,
    catalog: &mut Catalog,
) -> Sample {
    let mut record = None;
    user_stack.clear();
    kernel_stack.clear();
    let mut incomplete = false;
    for part in parts {
        match part.kind {
            part::RECORD => record = Some(part.bytes),
            part::USER_STACK => read_stack(user_stack, part.bytes),
            part::KERNEL_STACK => read_stack(kernel_stack, part.bytes),
            kind => incomplete |= kind >= part::STEP && part.outcome != step_outcome::DONE,
        }
    }
    processes.counts.incomplete_steps += u64::from(incomplete);
    let context = abi::found(head.outcome, record);
    let context = context.and_then(|bytes| {
        Found::Attached(Record::Bytes {
            serial: head.serial,
            bytes,
        })
    });
    processes.counts.truncated_stacks += u64::from(head.flags & flag::TRUNCATED_STACK != 0);
    processes.counts.missing_stacks += u64::from(head.flags & flag::NO_USER_STACK != 0);
    let comm = name(&head.comm);
    let look = Look {
        time: head.time,
        cpu: head.cpu,
        pid: head.pid,
        tid: head.tid,
        comm: &comm,
        context,
        user_stack,
        kernel_stack,
    };
    processes.sample(&look, catalog)
}

/// A thread's name, as the kernel keeps it: up to a zero.
pub(super) fn name(comm: &[u8; 16]) -> std::borrow::Cow<'_, str> {
    let end = comm.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&comm[..end.unwrap_or(comm.len())])
}

fn read_stack(to: &mut Vec<Frame>, bytes: &[u8]) {
    let frame = |(depth, word): (usize, &[u8])| {
        let address = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        Frame::native(depth, address)
    };
    to.extend(bytes.chunks_exact(8).enumerate().map(frame));
}

#[cfg(test)]
mod tests;
