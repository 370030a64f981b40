//! Determines which files the code of a process is mapped from, for the catalog.
//!
//! With eBPF, the kernel reports each new executable mapping with its time ([`Report`]). Mappings
//! that existed before, and with ptrace all mappings, are read from `/proc/PID/maps` when a sample
//! lies in none that is known.

mod copies;
mod modules;
mod places;
mod ranges;
mod report;
mod runtime;

use std::collections::VecDeque;
use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_reader::remote::mappings::{HUGE_PAGE, is_name_of_memory};
use otelctx_reader::remote::{self, Device};
use otelctx_sample::{Catalog, Frame, Mapping, Module, ProcessId};
use otelctx_track::schedule::Backoff;

use crate::monotonic;
pub(crate) use copies::Copies;
pub(crate) use modules::Modules;
use ranges::Ranges;
pub(crate) use report::{FileId, MemoryChange, Region, Report};
pub(crate) use runtime::JitRuntime;

/// Maximum number of executable mappings that are kept per process.
const MAX_MAPPINGS: usize = 16 * 1024;
/// Maximum number of later programs of a process. Between two drains, few execute more than two, but on a busy machine a second can
/// pass until the next drain.
const MAX_NEXT: usize = 256;
/// Maximum number of mappings copied for a child that may never be sampled: 10 kB for each child.
const MAX_COPIED: usize = 256;
/// Maximum time from an exec's first report to its end, in nanoseconds: it takes less than a millisecond.
const MAX_EXEC: u64 = 20_000_000;
/// Maximum length of a process's name, in bytes (`TASK_COMM_LEN`, without the end).
const MAX_NAME: usize = 15;
/// How long to wait between two searches for mappings that newer ones have replaced.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
struct Mapped {
    start: u64,
    end: u64,
    offset: u64,
    module: Arc<Module>,
    /// Like [`Mapping::since`].
    since: u64,
    /// A mapping of its file: another one's, if the code was moved.
    file_range: (u64, u64),
}

impl Mapped {
    fn file_name(&self) -> &str {
        self.module.path.rsplit('/').next().unwrap_or_default()
    }
}

/// The executable memory of a process.
#[derive(Debug)]
pub(crate) struct CodeMappings {
    /// In the order in which they were found.
    mappings: Vec<Mapped>,
    /// Number of mappings that the catalog has.
    in_catalog: usize,
    /// The memory that they cover.
    ranges: Ranges,
    /// Reported mappings of programs executed later: samples of earlier programs may still come.
    next: VecDeque<NextProgram>,
    /// There is memory in which a runtime may have generated code.
    has_generated: bool,
    /// More of it, or a file that announces it, was mapped since [`Self::take_new_generated`].
    has_new_generated: bool,
    /// Number of times that more of it was mapped.
    pub(crate) generated_changes: u64,
    copies: Copies,
    /// The fork that this process started by, until its mappings are inherited.
    parent: Option<Fork>,
    /// The kernel reports new mappings.
    is_reported: bool,
    /// Time of the last read of `/proc/PID/maps`, like [`Mapping::since`]; 0 if there was none.
    last_read: u64,
    reads: Backoff,
    /// Time of the next search for replaced mappings.
    next_removal: Instant,
}

/// A program whose exec the kernel has reported at this time, like [`Mapping::since`].
#[derive(Debug)]
struct NextProgram {
    reported: u64,
    code: CodeMappings,
}

/// The start of a process as a copy of its parent, with a time like [`Mapping::since`].
#[derive(Clone, Copy, Debug)]
struct Fork {
    parent: i32,
    time: u64,
}

impl Default for CodeMappings {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            mappings: Vec::new(),
            in_catalog: 0,
            ranges: Ranges::default(),
            next: VecDeque::new(),
            has_generated: false,
            has_new_generated: false,
            generated_changes: 0,
            copies: Copies::default(),
            parent: None,
            is_reported: false,
            last_read: 0,
            reads: Backoff::new(now),
            next_removal: now,
        }
    }
}

impl CodeMappings {
    /// Creates the mappings of a process that starts as a copy of `parent`.
    pub(crate) fn forked(parent: i32, time: u64) -> Self {
        Self {
            parent: Some(Fork { parent, time }),
            ..Self::reported()
        }
    }

    fn reported() -> Self {
        Self {
            is_reported: true,
            ..Self::default()
        }
    }

    /// Returns true if there are few enough to copy them for each child.
    pub(crate) fn is_small(&self) -> bool {
        self.mappings.len() <= MAX_COPIED
    }

    /// Copies the mappings for a child of this process, which may end before the child is sampled.
    pub(crate) fn fork(&self) -> Self {
        // The reports come in order: it has executed all reported programs.
        let forked = self.next.back().map_or(self, |program| &program.code);
        Self {
            mappings: forked.mappings.clone(),
            ranges: forked.ranges.clone(),
            has_generated: forked.has_generated,
            copies: forked.copies,
            parent: forked.parent,
            ..Self::reported()
        }
    }

    /// Returns the newest mapping that contains these addresses.
    fn newest(&self, start: u64, end: u64) -> Option<&Mapped> {
        let contains = |mapped: &&Mapped| mapped.start <= start && end <= mapped.end;
        self.mappings.iter().rev().find(contains)
    }

    fn newest_at(&self, address: u64) -> Option<&Mapped> {
        self.newest(address, address.checked_add(1)?)
    }

    pub(crate) fn contain(&self, address: u64) -> bool {
        let end = address.checked_add(1);
        end.is_some_and(|end| self.ranges.contain(address, end))
    }

    /// Adds a mapping that the kernel has reported, or that another process had.
    fn add(&mut self, new: Mapped) -> Added {
        // It is reported again when its protection changes, as after a copy.
        if self.replaces_file(&new) {
            self.copies.restart();
        }
        // A mapping that was read before its report came has a later time than the report.
        match self.known_since(&new) {
            Some(since) if since <= new.since => Added::No,
            _ => self.push(new),
        }
    }

    /// Returns true for memory at addresses at which a file is, or was, mapped. A file of hugetlbfs has whole huge pages.
    fn replaces_file(&self, new: &Mapped) -> bool {
        let may_be_huge = (new.start | new.end).is_multiple_of(HUGE_PAGE);
        let overlaps = |known: &Mapped| known.start < new.end && new.start < known.end;
        let is_other_file = |known: &Mapped| {
            overlaps(known) && !is_generated(&known.module) && known.module != new.module
        };
        (is_generated(&new.module) || may_be_huge)
            && self.ranges.intersect(new.start, new.end)
            && self.mappings.iter().any(is_other_file)
    }

    /// Adds code of a file that was moved to memory, and was read before `now`. It is the file's since that memory was mapped.
    fn add_moved(&mut self, mut new: Mapped, now: u64) -> Added {
        let memory = self.newest(new.start, new.end);
        match memory.filter(|known| self.is_reported && self.replaces_file(known)) {
            Some(memory) => {
                new.since = memory.since;
                self.push(new)
            }
            None => self.add_read(new, now),
        }
    }

    /// Adds a mapping that was read before `now`. If it replaces another one, its report is still to come, and samples before
    /// `now` may lie in the other one.
    fn add_read(&mut self, mut new: Mapped, now: u64) -> Added {
        if self.known_since(&new).is_some() {
            return Added::No;
        }
        if self.is_reported && self.ranges.intersect(new.start, new.end) {
            new.since = now;
        }
        self.push(new)
    }

    fn push(&mut self, new: Mapped) -> Added {
        if new.start >= new.end {
            return Added::No;
        }
        if self.mappings.len() >= MAX_MAPPINGS {
            let now = Instant::now();
            if now < self.next_removal {
                return Added::TooMany;
            }
            self.next_removal = now + REMOVAL_INTERVAL;
            self.remove_replaced();
            if self.mappings.len() >= MAX_MAPPINGS {
                return Added::TooMany;
            }
        }
        self.ranges.add(new.start, new.end);
        let is_generated = is_generated(&new.module);
        self.has_generated |= is_generated;
        self.generated_changes += u64::from(is_generated);
        self.has_new_generated |= is_generated || is_jit_dump(&new.module);
        self.mappings.push(new);
        Added::Yes
    }

    /// Returns the time of the newest mapping at these addresses, if it has the same content.
    fn known_since(&self, new: &Mapped) -> Option<u64> {
        if !self.ranges.contain(new.start, new.end) {
            return None;
        }
        let overlaps = |known: &&Mapped| known.start < new.end && new.start < known.end;
        let known = self.mappings.iter().rev().find(overlaps)?;
        let distance = new.start.wrapping_sub(known.start);
        let has_same_bytes = || new.offset.wrapping_sub(known.offset) == distance;
        let is_same = known.start <= new.start
            && new.end <= known.end
            && known.module == new.module
            && (!new.module.has_file() || has_same_bytes());
        is_same.then_some(known.since)
    }

    /// Applies a reported change. Returns false if there is no room for the mapping.
    pub(crate) fn apply(
        &mut self,
        time: u64,
        change: MemoryChange,
        process: Option<&remote::Process>,
        modules: &mut Modules,
    ) -> bool {
        self.is_reported = true;
        match change {
            MemoryChange::Mapped(region) => {
                let mapped = Mapped {
                    start: region.start,
                    end: region.end,
                    offset: region.offset,
                    file_range: (region.start, region.end),
                    module: modules.find(process, region.clone(), (region.start, region.end)),
                    since: time,
                };
                let added = match self.next.back_mut() {
                    Some(next) => next.code.add(mapped),
                    None => self.add(mapped),
                };
                added != Added::TooMany
            }
            MemoryChange::Exec => {
                if self.next.len() == MAX_NEXT {
                    self.next.pop_front();
                }
                self.next.push_back(NextProgram {
                    reported: time,
                    code: Self::reported(),
                });
                true
            }
            MemoryChange::Forked { .. } | MemoryChange::Exit => true,
        }
    }

    /// Adds the mappings that the process had as a copy of its parent. `of` returns a process's.
    pub(crate) fn inherit<'a>(&mut self, of: impl FnOnce(i32) -> Option<&'a Self>) {
        let Some(Fork { parent, time }) = self.parent.take() else {
            return;
        };
        let inherited = of(parent).map_or(&[][..], |parent| &parent.mappings);
        let inherited = inherited.iter().filter(|mapped| mapped.since <= time);
        let own = std::mem::take(&mut self.mappings);
        self.ranges = Ranges::default();
        for mapped in inherited.chain(&own) {
            self.add(mapped.clone());
        }
    }

    /// Switches to the last program whose exec the kernel had reported at `time`.
    pub(crate) fn exec(&mut self, time: u64) {
        let mut next = std::mem::take(&mut self.next);
        *self = Self {
            is_reported: self.is_reported,
            ..Self::default()
        };
        let later = next.partition_point(|program| program.reported <= time);
        if let Some(program) = next.drain(..later).next_back() {
            *self = program.code;
        }
        self.next = next;
    }

    /// Returns true if the kernel has reported an exec that [`Self::exec`] was not called for.
    pub(crate) fn next_is_reported(&self) -> bool {
        !self.next.is_empty()
    }

    /// Returns true if the kernel had begun to replace the program at `time`, before [`Self::exec`] is called for that.
    pub(crate) fn is_executing(&self, time: u64) -> bool {
        let since = self
            .next
            .front()
            .and_then(|next| time.checked_sub(next.reported));
        // Of a process that was not sampled then, the end is not reported.
        since.is_some_and(|since| since < MAX_EXEC)
    }

    /// Notes that the next catalog is empty.
    pub(crate) fn reset_catalog(&mut self) {
        self.in_catalog = 0;
        self.remove_replaced();
    }

    /// Removes mappings that newer ones have replaced as a whole.
    fn remove_replaced(&mut self) {
        let mut newer = Ranges::default();
        let mut in_catalog = 0;
        let mut kept = Vec::new();
        for (index, mapped) in self.mappings.drain(..).enumerate().rev() {
            let is_replaced = newer.contain(mapped.start, mapped.end);
            // Samples to come may lie in a mapping that is not in the catalog yet.
            if !is_replaced || index >= self.in_catalog {
                newer.add(mapped.start, mapped.end);
                in_catalog += usize::from(index < self.in_catalog);
                kept.push(mapped);
            }
        }
        kept.reverse();
        (self.mappings, self.in_catalog) = (kept, in_catalog);
    }

    /// Returns true if a runtime may have generated the code at this address.
    pub(crate) fn is_generated(&self, address: u64) -> bool {
        let is_in_memory = |mapped: &Mapped| is_generated(&mapped.module);
        self.has_generated && self.newest_at(address).is_some_and(is_in_memory)
    }

    /// Returns true if code at this address may have been moved from a file to memory.
    fn may_be_moved(&self, address: u64) -> bool {
        let newest = self.newest_at(address);
        newest.is_some_and(|mapped| is_generated(&mapped.module) || self.replaces_file(mapped))
    }

    /// Returns true if a runtime may have generated code in memory that other processes share.
    pub(crate) fn shares_generated(&self) -> bool {
        let is_shared = |mapped: &Mapped| is_generated(&mapped.module) && mapped.module.has_file();
        self.has_generated && self.mappings.iter().any(is_shared)
    }

    /// Returns the address ranges of files whose paths match.
    pub(crate) fn mapped_files(&self, matches: impl Fn(&str) -> bool) -> Vec<Range<u64>> {
        let mapped = self.mappings.iter().filter(|it| matches(&it.module.path));
        mapped.map(|mapped| mapped.start..mapped.end).collect()
    }

    /// Returns the path of a mapped file that gives its process this name, as a program does.
    pub(crate) fn path_of(&self, comm: &str) -> Option<String> {
        let mut mappings = self.mappings.iter();
        let is_it = |mapped: &&Mapped| {
            let name = mapped.file_name();
            !comm.is_empty() && (name == comm || comm.len() == MAX_NAME && name.starts_with(comm))
        };
        mappings.find(is_it).map(|it| it.module.path.clone())
    }

    /// Returns true if memory for generated code was mapped since the last call: a runtime that
    /// begins to announce its code does so then.
    pub(crate) fn take_new_generated(&mut self) -> bool {
        std::mem::take(&mut self.has_new_generated)
    }

    /// Opens the jitdump file that the process has mapped to announce it.
    pub(crate) fn open_jit_dump(&self, process: &remote::Process) -> Option<File> {
        let mut mappings = self.mappings.iter().rev();
        let mapped = mappings.find(|mapped| is_jit_dump(&mapped.module))?;
        let module = &mapped.module;
        let device = Device {
            major: (module.device >> 32) as u32,
            minor: module.device as u32,
        };
        let range = (mapped.start, mapped.end);
        process.mapped_file(range, module.path.as_bytes(), device, module.inode)
    }

    /// Returns the runtime whose library or program is mapped.
    pub(crate) fn runtime(&self) -> Option<JitRuntime<'_>> {
        let mut names = self.mappings.iter().map(Mapped::file_name);
        let known = names.find_map(JitRuntime::of_module);
        known.or_else(|| self.program_with_addons())
    }

    /// Recognizes a copy of Node.js with another name, such as a single executable application, by
    /// its addons. The program is the file at the lowest address.
    fn program_with_addons(&self) -> Option<JitRuntime<'_>> {
        let mut names = self.mappings.iter().map(Mapped::file_name);
        if !names.any(|name| name.ends_with(".node")) {
            return None;
        }
        let files = self.mappings.iter().filter(|it| !is_generated(&it.module));
        let program = files.min_by_key(|mapped| mapped.start)?;
        Some(JitRuntime::copy_of_node(program.file_name()))
    }

    /// Adds the mappings to the catalog. Reads them first if one of these frames lies in none.
    pub(crate) fn explain(
        &mut self,
        id: ProcessId,
        process: Option<&remote::Process>,
        stack: &[Frame],
        modules: &mut Modules,
        catalog: &mut Catalog,
    ) {
        let mut addresses = stack.iter().filter_map(Frame::address);
        let is_unknown = !addresses.clone().all(|address| self.contain(address));
        let may_be_copied =
            self.copies.are_read_again() && addresses.any(|address| self.may_be_moved(address));
        if let Some(process) = process
            && (is_unknown || may_be_copied)
        {
            self.read_if_due(process, modules);
        }
        for mapped in &self.mappings[self.in_catalog..] {
            modules.need(process, mapped.file_range, &mapped.module);
            let mapping = Mapping {
                start: mapped.start,
                end: mapped.end,
                offset: mapped.offset,
                module: catalog.module(Module::clone(&mapped.module)),
                since: mapped.since,
            };
            catalog.process_mut(id).mappings.push(mapping);
        }
        self.in_catalog = self.mappings.len();
    }

    /// Reads the mappings, unless that was done a moment ago. Returns true if there are new ones.
    pub(crate) fn read_if_due(&mut self, process: &remote::Process, modules: &mut Modules) -> bool {
        let start = Instant::now();
        if !self.reads.is_due(start) {
            return false;
        }
        let new = self.read(process, modules);
        let took = start.elapsed();
        self.reads.done(start + took, took, new);
        new
    }

    /// Reads the mappings, and adds the new ones. Returns true if there were any.
    pub(crate) fn read(&mut self, process: &remote::Process, modules: &mut Modules) -> bool {
        let since = std::mem::replace(&mut self.last_read, monotonic());
        let mut count = 0;
        let (mut any, mut may_be_copied) = (false, false);
        // A process that has ended has no mappings.
        let _ = process.executable_mappings(&mut |code| {
            let mapping = &code.mapping;
            let mapped = Mapped {
                start: mapping.start,
                end: mapping.end,
                offset: mapping.offset,
                module: modules.find(Some(process), Region::of(mapping), code.file_range()),
                since,
                file_range: code.file_range(),
            };
            may_be_copied |= code.may_be_copied;
            let added = if code.moved_from.is_some() {
                self.add_moved(mapped, monotonic())
            } else {
                self.add_read(mapped, monotonic())
            };
            any |= added == Added::Yes;
            count += 1;
            if count < MAX_MAPPINGS {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        self.copies.note(may_be_copied);
        any
    }
}

/// Returns true for memory without a file, or with one that the kernel has made for it: it may be generated code.
pub(crate) fn is_generated(module: &Module) -> bool {
    match &*module.path {
        "[vdso]" | "[vsyscall]" => false,
        path => !module.has_file() || is_name_of_memory(path.as_bytes()),
    }
}

/// Returns true for the file in which a runtime announces its code.
fn is_jit_dump(module: &Module) -> bool {
    let name = module.path.rsplit('/').next().unwrap_or_default();
    name.starts_with("jit-") && name.ends_with(".dump")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    Yes,
    /// The mapping is known, or empty.
    No,
    TooMany,
}

#[cfg(test)]
mod tests;
