//! The sampled processes, and the conversion of observed threads to samples.

mod context;
mod following;
mod generated;
mod names;
mod opted_out;
mod reasons;
mod runtimes;
mod untracked;
mod waits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_reader as reader;
use otelctx_sample::{
    Catalog, Counts, Event, Found, Frame, ModuleFiles, ProcessId, ReadStep, Sample, StackEnd,
};
use otelctx_track::schedule::wait_after;
use otelctx_track::{ThreadStatus, Tracked, TrackedProcess};
use reader::runtime::{RuntimeError, RuntimeReading, ThreadView};

use crate::clock::nanoseconds;
use crate::code::{MemoryChange, Modules, Report};
use crate::observation::Observation;
use crate::process::SampledProcess;
use crate::second_walk::{CopiedStack, KnownWalks, SecondWalk, Walked};
use crate::tally::{Tally, last_module};
use crate::walkers::LiveWalkers;
use crate::{Options, Targets, monotonic};
pub(crate) use following::Changes;
use following::Following;
pub(crate) use names::ThreadNames;
pub(crate) use opted_out::OptedOut;
use runtimes::{Merged, unnamed_frames};
use untracked::Untracked;
use waits::KnownWaits;
pub(crate) use waits::Needs;

#[derive(Debug)]
pub(crate) struct Processes {
    pub(crate) following: Following,
    pub(crate) untracked: Untracked,
    modules: Modules,
    whole_machine: bool,
    pub(crate) tally: Tally,
    pub(crate) second_walk: SecondWalk,
    /// The thread that walks the stacks of waits, and those with generated code: they have no other.
    only_walk: SecondWalk,
    known_walks: KnownWalks,
    pub(crate) waits: KnownWaits,
    opted_out: OptedOut,
}

/// Following processes.
impl Processes {
    /// Creates an empty set; see [`Following::new`].
    pub(crate) fn new(
        options: &Options,
        reader_options: reader::Options,
        scan_timeout: Option<Duration>,
    ) -> Self {
        let mut following = Following::new(reader_options, scan_timeout);
        if let Targets::Processes(pids) = &options.targets
            && options.before_exec
        {
            following.before_exec.clone_from(pids);
        }
        Self {
            following,
            untracked: Untracked::default(),
            modules: Modules::default(),
            whole_machine: scan_timeout.is_some(),
            tally: Tally::default(),
            second_walk: SecondWalk::new(options),
            only_walk: SecondWalk::for_only_walks(),
            known_walks: KnownWalks::default(),
            waits: KnownWaits::new(),
            opted_out: OptedOut::default(),
        }
    }

    /// Returns true if a process other than these is tracked.
    pub(crate) fn any_but(&self, pids: &[i32]) -> bool {
        let mut tracked = self.following.tracker.iter();
        tracked.any(|it| !pids.contains(&it.process.pid()))
    }

    /// Returns true if all threads of all processes have ended.
    pub(crate) fn have_ended(&self) -> bool {
        let mut tracked = self.following.tracker.iter();
        tracked.all(|it| it.process.has_ended())
    }

    fn process(&self, pid: i32) -> Option<&TrackedProcess> {
        self.following.tracker.get(pid).map(|it| &it.process)
    }

    pub(crate) fn get_mut(&mut self, pid: i32) -> Option<&mut Tracked<SampledProcess>> {
        self.following.tracker.get_mut(pid)
    }

    /// Tracks a process, and returns it if it is running and may be read.
    pub(crate) fn running(&mut self, pid: i32) -> Option<&reader::remote::Process> {
        let tracker = &mut self.following.tracker;
        tracker.remove_if_gone(pid);
        tracker.get_or_add(pid).process.reader()?.running().ok()
    }

    /// Tracks a process, which is scanned by [`Processes::scan`] or when it is sampled.
    pub(crate) fn add(&mut self, pid: i32) -> Result<(), reader::Error> {
        self.following.tracker.add(pid)?;
        self.take_untracked(pid);
        Ok(())
    }

    pub(crate) fn add_child(&mut self, pid: i32, parent: i32) {
        // If it has ended, its samples track it.
        drop(self.add(pid));
        self.following.add_parent(pid, parent);
    }

    pub(crate) fn scan(&mut self, pid: i32) {
        self.following.tracker.poll(pid, &mut |_| {});
    }

    pub(crate) fn remove(&mut self, pid: i32) {
        self.end_program(pid);
        self.following.tracker.remove(pid);
    }

    /// Notes that a process exits. It stays tracked as long as the kernel has it: more samples may
    /// come, and its ID is not reused.
    pub(crate) fn exiting(&mut self, pid: i32) {
        self.end_program(pid);
        self.following.tracker.exiting(pid);
    }

    /// Notes that a process has executed another program, at `time` or before.
    pub(crate) fn exec(&mut self, pid: i32, time: u64) {
        self.following.tracker.remove_if_gone(pid);
        self.following.before_exec.retain(|it| *it != pid);
        self.end_program(pid);
        match self.following.tracker.exec(pid) {
            Some(tracked) => tracked.data.exec(time),
            None => self.untracked.exec(pid, time),
        }
    }

    /// Returns true if a target has not executed the program to sample yet.
    pub(crate) fn is_before_exec(&self, pid: i32) -> bool {
        self.following.before_exec.contains(&pid)
    }

    /// Notes that a drain begins.
    pub(crate) fn begin_drain(&mut self) {
        self.second_walk.begin();
        self.only_walk.begin();
    }

    fn end_program(&mut self, pid: i32) {
        self.waits.remove(pid);
        self.known_walks.remove(pid);
        self.following.parents.remove(&pid);
        generated::finish(&mut self.following.tracker, pid, &mut self.tally);
    }

    /// Handles lost events about processes: requests polls of all, and the removal of exited ones.
    pub(crate) fn request_all(&mut self) {
        self.following.tracker.request_all_now();
        // The exec may be among what was lost.
        self.following.before_exec.clear();
        for Tracked { data, .. } in self.following.tracker.iter_mut() {
            data.exec_if_reported();
        }
    }

    /// Polls sampled processes that may publish now, or in another way, and updates their facts.
    pub(crate) fn poll(&mut self, catalog: &mut Catalog) -> Changes {
        let changes = self.following.poll();
        for pid in &changes.changed {
            if let Some(tracked) = self.following.tracker.get_mut(*pid) {
                tracked.data.describe(&tracked.process, catalog);
            }
        }
        changes
    }

    pub(crate) fn reset_catalog(&mut self) {
        let processes = self.following.tracker.iter_mut();
        processes.for_each(|tracked| tracked.data.reset_catalog());
        self.modules.clear();
        self.waits.reset_catalog();
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.tally.counts;
        let tracked = self.following.tracker.iter();
        let behind = tracked.map(|it| it.data.generated.files_behind());
        counts.unread_name_files += behind.sum::<u64>();
        counts.dropped_files = self.files().dropped();
        counts
    }
}

/// Mappings.
impl Processes {
    /// Returns the files of modules that samples lie in.
    pub(crate) fn files(&self) -> &ModuleFiles {
        &self.modules.files
    }

    /// Returns true if the process's mappings are kept.
    pub(crate) fn follows(&self, pid: i32) -> bool {
        self.whole_machine || self.process(pid).is_some() || self.untracked.contains(pid)
    }

    /// Applies a report of the kernel about a process's memory, in the order of times.
    pub(crate) fn report(&mut self, report: Report) {
        let Report { time, pid, change } = report;
        self.known_walks.remove(pid);
        let is_kept = match change {
            MemoryChange::Forked { parent } => {
                self.opted_out.fork(pid, parent);
                !self.follows(parent) || self.untracked.fork(pid, parent, time)
            }
            MemoryChange::Exit => {
                self.untracked.exit(pid);
                true
            }
            change => self.apply(pid, time, change),
        };
        self.tally.counts.lost_mappings += u64::from(!is_kept);
    }

    /// Returns false if there is no room for the mapping.
    fn apply(&mut self, pid: i32, time: u64, change: MemoryChange) -> bool {
        let is_untracked = self.untracked.contains(pid);
        if !is_untracked
            && let Some(Tracked { process, data }) = self.following.tracker.get_mut(pid)
        {
            let process = process.reader().and_then(|it| it.running().ok());
            data.code.apply(time, change, process, &mut self.modules)
        } else if is_untracked || self.whole_machine && self.untracked.has_room() {
            self.untracked.apply(pid, time, change, &mut self.modules)
        } else {
            // There is no room; without the whole machine, the process is not sampled.
            !(self.whole_machine && matches!(change, MemoryChange::Mapped(_)))
        }
    }

    /// Reads a process's mappings before it is sampled: by its first sample, it may have executed another program.
    pub(crate) fn read_code(&mut self, pid: i32) {
        if let Some(Tracked { process, data }) = self.following.tracker.get_mut(pid)
            && let Some(process) = process.reader().and_then(|it| it.running().ok())
        {
            data.code.read_if_due(process, &mut self.modules);
        }
    }

    /// Returns true if a process is executing another program at `time`, between the kernel's reports of that.
    pub(crate) fn is_executing(&self, pid: i32, time: u64) -> bool {
        let tracked = self.following.tracker.get(pid).map(|it| &it.data.code);
        let code = self.untracked.processes.get(&pid).or(tracked);
        code.is_some_and(|code| code.is_executing(time))
    }

    /// Walks a stack that was copied at `time`. `None` where that is not possible.
    pub(crate) fn walk_again(
        &mut self,
        pid: i32,
        time: u64,
        copied: CopiedStack,
    ) -> Option<Walked> {
        let walker: fn(&mut Self) -> &mut SecondWalk = match self.walkers(pid) {
            Some(_) => |it| &mut it.only_walk,
            None => |it| &mut it.second_walk,
        };
        self.walk(pid, time, Arc::new(copied), walker)
    }

    /// The same for the stack of a wait, which may be longer than its copy.
    fn walk_wait(&mut self, pid: i32, time: u64, copied: Arc<CopiedStack>) -> Option<Walked> {
        if let Some(tracked) = self.following.tracker.get(pid) {
            let code = &tracked.data.code;
            let is_code = |address| code.contain(address);
            if let Some(known) = self.known_walks.get(pid, &copied, &is_code) {
                return Some(known.clone());
            }
        }
        let walked = self.walk(pid, time, copied.clone(), |it| &mut it.only_walk)?;
        self.known_walks.insert(pid, &copied, &walked);
        Some(walked)
    }

    fn walk(
        &mut self,
        pid: i32,
        time: u64,
        copied: Arc<CopiedStack>,
        walker: fn(&mut Self) -> &mut SecondWalk,
    ) -> Option<Walked> {
        if !walker(self).is_ready() {
            return None;
        }
        let begun = Instant::now();
        self.track_untracked(pid);
        let Tracked { process, data } = self.following.tracker.get_or_add(pid);
        let walkers = data.walkers.get(process, data.code.generated_changes);
        let walkers = walkers.cloned();
        let live = walkers.as_deref();
        let running = process.reader().and_then(|it| it.running().ok());
        let modules = &mut self.modules;
        let places = data.code.places(&copied, time, running, live, modules);
        walker(self).count(begun);
        let walked = walker(self).walk(copied.clone(), places?, walkers.clone())?;
        // Where no reports come, the mappings may be older than the sample.
        let Tracked { process, data } = self.following.tracker.get_or_add(pid);
        let running = process.reader().and_then(|it| it.running().ok());
        let is_cut = walked.end == StackEnd::NotExecutable;
        if !(is_cut && running.is_some_and(|it| data.code.read_if_due(it, &mut self.modules))) {
            return Some(walked);
        }
        let places = data
            .code
            .places(&copied, time, running, live, &mut self.modules)?;
        walker(self).walk(copied, places, walkers)
    }

    /// Returns the walkers of the code that runtimes of a process have generated.
    pub(crate) fn walkers(&mut self, pid: i32) -> Option<Arc<LiveWalkers>> {
        let Tracked { process, data } = self.following.tracker.get_mut(pid)?;
        let walkers = data.walkers.get(process, data.code.generated_changes);
        walkers.cloned()
    }

    /// Tracks a process whose mappings are kept.
    fn track_untracked(&mut self, pid: i32) {
        self.following.tracker.remove_if_gone(pid);
        if self.untracked.contains(pid) {
            self.following.tracker.get_or_add(pid);
            self.take_untracked(pid);
        }
    }

    /// Moves the mappings of a process that was not tracked to the tracked process.
    fn take_untracked(&mut self, pid: i32) {
        let Some(mut code) = self.untracked.remove(pid) else {
            return;
        };
        code.inherit(|parent| {
            let tracked = self.following.tracker.get(parent).map(|it| &it.data.code);
            tracked.or_else(|| self.untracked.processes.get(&parent))
        });
        if let Some(tracked) = self.following.tracker.get_mut(pid) {
            tracked.data.code = code;
        }
    }
}

/// Language runtimes.
impl Processes {
    /// Decodes the part that the kernel step with this name has added to a sample. `None` if the
    /// runtime does not know the thread, or is no longer in the process.
    pub(crate) fn decode(&self, pid: i32, step: &str, part: &[u8]) -> Option<RuntimeReading> {
        let of = |pid| runtimes::decode(self.process(pid)?, step, part);
        let reading = of(pid);
        if reading.as_ref().is_some_and(|it| unnamed_frames(it) == 0) {
            return reading;
        }
        // If its memory is gone, its parent's has usually the same content since the fork. Runtimes
        // check that names are those of the sampled functions.
        let by_parent = self
            .following
            .parents
            .get(&pid)
            .and_then(|parent| of(*parent));
        let both = reading.into_iter().chain(by_parent);
        both.min_by_key(unnamed_frames)
    }

    /// Returns true if a process's runtimes are known. A child starts with its parent's steps, and
    /// is scanned when it is sampled first.
    pub(crate) fn knows_runtimes(&mut self, pid: i32) -> bool {
        self.following.scan_first(pid);
        let is_scanned = |it: &TrackedProcess| !matches!(it.threads(), ThreadStatus::Unknown);
        self.process(pid)
            .is_some_and(|it| it.reader().is_some() && is_scanned(it))
    }

    /// Searches for a second process context, unless that was done after this `time` of a sample: its
    /// publisher publishes the names of its records' attributes before it attaches them.
    pub(crate) fn search_other_context(&mut self, pid: i32, time: u64) {
        let tracker = &mut self.following.tracker;
        let Some(Tracked { process, data }) = tracker.get_mut(pid) else {
            return;
        };
        let now = monotonic();
        if time < data.other_searched || now < data.next_other_search {
            return;
        }
        data.other_searched = now;
        // Not the time that passes: on a busy machine, that says nothing of the cost.
        let cpu_time = || nanoseconds(libc::CLOCK_THREAD_CPUTIME_ID);
        let before = cpu_time();
        let found = process.search_other_context();
        let took = Duration::from_nanos(cpu_time().saturating_sub(before));
        data.next_other_search = now + wait_after(took).as_nanos() as u64;
        if let Some(context) = found {
            if let Ok(Some(keys)) = &context.keys {
                data.keys.contest(keys);
            }
            tracker.request_now(pid);
        }
    }

    pub(crate) fn decode_records(&self, pid: i32, readings: &mut [RuntimeReading]) {
        if let Some(reader) = self.process(pid).and_then(TrackedProcess::reader) {
            readings.iter_mut().for_each(|it| reader.decode_record(it));
        }
    }

    /// Returns the word that the kernel step with this name needs of a thread. `None` if the
    /// runtime does not know the thread, or is no longer in the process.
    pub(crate) fn thread_word(
        &self,
        pid: i32,
        step: &str,
        thread: ThreadView,
    ) -> Result<Option<u64>, RuntimeError> {
        let process = self.process(pid);
        process.map_or(Ok(None), |it| runtimes::thread_word(it, step, thread))
    }
}

/// Conversion to samples.
impl Processes {
    pub(crate) fn sample(&mut self, seen: &Observation<'_>, catalog: &mut Catalog) -> Sample {
        let process = self.describe(seen, catalog);
        self.following.scan_first(seen.pid);
        let tally = &mut self.tally;
        let tracked = self.following.tracker.get_or_add(seen.pid);
        tally.counts.unresolved_threads +=
            u64::from(seen.is_early && runtimes::have_step(&tracked.process));
        runtimes::count_unreadable(&tracked.process, &seen.runtimes, tally);
        let native = context::found(tracked, seen.context, &mut tally.counts, catalog);
        let is_unnamed = |it: &&Frame| matches!(it, Frame::Named(named) if named.is_unnamed());
        let unnamed = seen.user_stack.iter().filter(is_unnamed);
        tally.counts.unnamed_functions += unnamed.count() as u64;
        let named = generated::name(&mut self.following.tracker, seen, tally);
        let mut stack = named.as_deref().unwrap_or(seen.user_stack);
        let mut stack_end = seen.stack_end;
        let tracked = self.following.tracker.get_or_add(seen.pid);
        let code = &tracked.data.code;
        if let Some(own) = runtimes::own_frames(seen, stack, code) {
            stack = &stack[..own];
            stack_end = stack_end.map(|_| StackEnd::Start);
        }
        let Merged {
            found,
            gil,
            user_stack,
        } = runtimes::merge(
            native,
            &seen.runtimes,
            stack,
            stack_end == Some(StackEnd::Start),
            tally,
            catalog,
        );
        tally.counts.add(found);
        if let Some(end) = stack_end {
            tally.counts.add_stack(end);
            tally.incomplete_stacks.add(end, || {
                let generated_by = |address| {
                    let is_generated = code.is_generated(address);
                    Some(is_generated.then(|| code.runtime())??.label)
                };
                last_module(seen.user_stack, process, seen.time, catalog, generated_by)
            });
        }
        let Tracked {
            process: tracked_process,
            data,
        } = &mut *tracked;
        let name = data.thread_names.get(seen.tid, seen.comm, || {
            runtimes::thread_name(tracked_process, seen.tid, &seen.runtimes)
        });
        // While it executes another program, its name is already that one's.
        let known = catalog.known_thread(process, seen.tid);
        let thread = known
            .filter(|_| seen.is_executing)
            .unwrap_or_else(|| catalog.thread(process, seen.tid, name.unwrap_or(seen.comm)));
        let has_failed = matches!(tracked.process.threads(), ThreadStatus::Unreadable(_));
        if found == Found::Unreadable(ReadStep::Resolve) && !has_failed {
            self.following.tracker.request_now(seen.pid);
        } else {
            self.following.tracker.request(seen.pid);
        }
        Sample {
            time: seen.time,
            cpu: seen.cpu,
            thread,
            event: Event::OnCpu,
            found,
            gil,
            user_stack,
            stack_end,
            kernel_stack: catalog.stack(seen.kernel_stack),
        }
    }

    /// Adds an observed process and its code to the catalog.
    fn describe(&mut self, seen: &Observation<'_>, catalog: &mut Catalog) -> ProcessId {
        self.track_untracked(seen.pid);
        let tracked = self.following.tracker.get_or_add(seen.pid);
        let thread = (seen.tid, seen.comm);
        let id = tracked
            .data
            .id(&tracked.process, catalog, thread, &mut self.opted_out);
        let running = tracked.process.reader().and_then(|it| it.running().ok());
        let code = &mut tracked.data.code;
        code.explain(id, running, seen.user_stack, &mut self.modules, catalog);
        id
    }
}

#[cfg(test)]
mod tests;
