//! Stacks by unwind tables: passes the rows for the code of each process on to the program.
//! A worker thread makes the rows of a file. The program walks by frame pointers until a process's
//! mappings are read here.

mod abi;
mod code_file;
mod kernel;
mod mappings;
mod pool;
mod store;
mod worker;

use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::{Duration, Instant};

use aya::Ebpf;
use foldhash::fast::RandomState;
use otelctx_reader::remote::Process;
use otelctx_sample::{Frame, StackEnd};
use otelctx_track::schedule::Backoff;

#[cfg(test)]
pub(super) use abi::check_layouts;
pub(super) use abi::stack_end;
use code_file::CodeFile;
use kernel::{Kernel, NewRows, PlacedCode};
use mappings::{Dropped, Mapping, MappingList};
use worker::Answer;

use crate::code::{Copies, MemoryChange, Report};
use crate::refusal::Refusal;
use crate::{Options, monotonic};

/// Maximum number of processes whose children get their mappings (`process_code.h`).
const MAX_PROCESSES: usize = 8192;
/// Time between two attempts to place the mappings of processes without room.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// The code of processes, as the program has it.
pub(super) struct Unwinding {
    /// `None` if stacks are walked by frame pointers alone.
    kernel: Option<Kernel>,
    processes: HashMap<i32, ProcessMappings, RandomState>,
    /// Time of the next attempt to place the mappings of processes without room.
    next_placing: Instant,
}

/// The executable mappings of a process, in address order.
struct ProcessMappings {
    mappings: Vec<Mapping>,
    reads: Backoff,
    /// The kernel has reported mappings since the last reading.
    is_stale: bool,
    copies: Copies,
    /// The process's entries in the program's list.
    placed: PlacedCode,
    /// Addresses of code that runtimes walk, in ascending order: its stacks are copied.
    walked: Vec<Range<u64>>,
    /// There was no room in the program's list for the newest mappings.
    lacks_room: bool,
    /// Mappings beyond the maximum for one process.
    dropped: Dropped,
}

impl ProcessMappings {
    fn new(now: Instant) -> Self {
        Self {
            mappings: Vec::new(),
            reads: Backoff::new(now),
            is_stale: false,
            copies: Copies::default(),
            placed: PlacedCode::default(),
            walked: Vec::new(),
            lacks_room: false,
            dropped: Dropped::default(),
        }
    }

    fn mapping_at(&self, address: u64) -> Option<&Mapping> {
        let behind = self.mappings.partition_point(|it| it.range.0 <= address);
        let before = behind.checked_sub(1).map(|at| &self.mappings[at]);
        before.filter(|it| address < it.range.1)
    }

    fn contain(&self, address: u64) -> bool {
        self.mapping_at(address).is_some()
    }

    /// Sets the new rows of its mappings, and notes which of their files have an answer. Returns true if there are any.
    fn take(&mut self, new: &NewRows, answered: &HashSet<CodeFile, RandomState>) -> bool {
        let mut any = false;
        for mapping in &mut self.mappings {
            if mapping.awaits_rows && mapping.code_file.is_some_and(|it| answered.contains(&it)) {
                mapping.awaits_rows = false;
                any = true;
            }
            if let Some(rows) = mapping.code_file.and_then(|code_file| new.get(&code_file)) {
                mapping.rows = Some(rows.clone());
                any = true;
            }
        }
        any
    }

    /// Reads the mappings. Returns true if they have changed.
    fn read(&mut self, process: &Process, kernel: &mut Option<Kernel>) -> bool {
        let mut list = MappingList::default();
        let mut may_be_copied = false;
        // A process that has ended has no mappings.
        let _ = process.executable_mappings(&mut |code| {
            let code_file = match kernel {
                Some(kernel) => kernel.code_file(process, code),
                None => CodeFile::of(&code.mapping),
            };
            may_be_copied |= code.may_be_copied;
            list.add(code, code_file, |code_file| {
                let kernel = kernel.as_mut()?;
                kernel.rows(process, code, code_file)
            })
        });
        self.copies.note(may_be_copied);
        let (mut mappings, dropped) = list.finish();
        let now = monotonic();
        for mapping in &mut mappings {
            let code_file = mapping.code_file.filter(|_| mapping.rows.is_none());
            let kernel = kernel.as_ref().zip(code_file);
            mapping.awaits_rows = kernel.is_some_and(|(kernel, it)| kernel.awaits_rows_of(it));
            let known = self.mapping_at(mapping.range.0);
            let known = known.filter(|it| it.is_same_code(mapping));
            mapping.found = known.map_or(now, |it| it.found);
        }
        let is_same = |(new, known): (&Mapping, &Mapping)| new.is_same_code(known);
        let has_changed = mappings.len() != self.mappings.len()
            || !mappings.iter().zip(&self.mappings).all(is_same);
        if !mappings.is_empty() {
            self.mappings = mappings;
            self.dropped = dropped;
        }
        has_changed
    }
}

impl Unwinding {
    /// Takes the program's maps and starts the worker, if the program unwinds by tables.
    pub(super) fn start(
        programs: &mut Ebpf,
        by_tables: bool,
        options: &Options,
    ) -> Result<Self, Refusal> {
        let kernel = by_tables.then(|| Kernel::start(programs, options));
        Ok(Self {
            kernel: kernel.transpose()?,
            processes: HashMap::default(),
            next_placing: Instant::now(),
        })
    }

    pub(super) fn read(&mut self, process: &Process) {
        let now = Instant::now();
        let entry = self.processes.entry(process.pid());
        let entry = entry.or_insert_with(|| ProcessMappings::new(now));
        if !entry.reads.is_due(now) {
            return;
        }
        entry.is_stale = false;
        let changed = entry.read(process, &mut self.kernel);
        if let Some(kernel) = &mut self.kernel {
            entry.is_stale =
                std::mem::take(&mut kernel.has_refused) || entry.copies.are_read_again();
            if changed {
                kernel.place(process.pid(), entry);
            }
        }
        let end = Instant::now();
        entry.reads.done(end, end - now, changed);
    }

    /// Sets the addresses of code that runtimes of a process walk, in ascending order.
    pub(super) fn set_walked(&mut self, pid: i32, walked: &[Range<u64>]) {
        if walked.is_empty() && !self.processes.contains_key(&pid) {
            return;
        }
        let entry = self.processes.entry(pid);
        let entry = entry.or_insert_with(|| ProcessMappings::new(Instant::now()));
        if entry.walked == walked {
            return;
        }
        entry.walked = walked.to_vec();
        if let Some(kernel) = &mut self.kernel {
            kernel.place(pid, entry);
        }
    }

    /// Applies a report of the kernel. A child has the mappings of its parent.
    pub(super) fn note(&mut self, report: &Report) {
        match report.change {
            MemoryChange::Mapped(_) => {
                if let Some(process) = self.processes.get_mut(&report.pid) {
                    process.is_stale = true;
                    process.copies.renew();
                }
            }
            MemoryChange::Forked { parent } => {
                let has_room = self.processes.len() < MAX_PROCESSES;
                let Some(process) = self.processes.get(&parent).filter(|_| has_room) else {
                    return;
                };
                let mut child = ProcessMappings::new(Instant::now());
                child.mappings.clone_from(&process.mappings);
                child.walked.clone_from(&process.walked);
                child.is_stale = process.is_stale;
                child.copies = process.copies;
                child.dropped = process.dropped;
                self.forget(report.pid);
                if let Some(kernel) = &mut self.kernel {
                    kernel.place(report.pid, &mut child);
                }
                self.processes.insert(report.pid, child);
            }
            // If other threads go on, the next sample of one reads the mappings again.
            MemoryChange::Exit => self.forget(report.pid),
            // The program reports it, too, in order with its samples.
            MemoryChange::Exec => {}
        }
    }

    /// Returns true if a stack shows that mappings of its process are missing here.
    pub(super) fn lacks_mappings(&self, pid: i32, stack: &[Frame], end: StackEnd) -> bool {
        // The mappings of the frames in between are usually as old as these.
        let first = stack.first().and_then(Frame::address);
        let last = stack.iter().rev().find_map(Frame::lookup_address);
        let is_complete = |it: &ProcessMappings| {
            let mut ends = first.into_iter().chain(last);
            !it.is_stale && ends.all(|address| it.contain(address))
        };
        end == StackEnd::NotExecutable || !self.processes.get(&pid).is_some_and(is_complete)
    }

    /// Distinguishes code without tables from code whose tables are damaged, have no room, or were
    /// not ready at `time`, in nanoseconds. The last two cut the stack there: the frame pointer may
    /// lead to another frame than the caller's, to an apparent start, or to no code at all.
    pub(super) fn explain(
        &self,
        pid: i32,
        stack: &mut Vec<Frame>,
        end: StackEnd,
        time: u64,
    ) -> StackEnd {
        let process = self.processes.get(&pid);
        let process = process.filter(|it| !it.mappings.is_empty());
        let (Some(process), Some(kernel)) = (process, &self.kernel) else {
            // The process ended before its mappings were read: the program found them itself.
            let is_gone = process.is_none() && end == StackEnd::NoTables;
            return if is_gone {
                StackEnd::TablesNotReady
            } else {
                end
            };
        };
        let mapping_of = |frame: &Frame| process.mapping_at(frame.lookup_address()?);
        if !kernel.is_settled(time) {
            let reason_to_cut = |frame: &Frame| {
                let mapping = mapping_of(frame)?;
                kernel.reason_to_cut(mapping.code_file?, mapping.rows.is_some(), time)
            };
            let mut frames = stack.iter().enumerate();
            let first = frames.find_map(|(index, frame)| Some((index, reason_to_cut(frame)?)));
            if let Some((index, end)) = first {
                stack.truncate(index + 1);
                return end;
            }
        }
        let last = || {
            let last = stack.iter().rev().find(|it| it.address().is_some());
            mapping_of(last?)
        };
        let code_file = || last()?.code_file;
        match end {
            // The program does not find the file of code that was moved to memory itself.
            StackEnd::NoTables
                if last().is_some_and(|it| it.is_moved && it.rows.is_some() && time < it.found) =>
            {
                StackEnd::TablesNotReady
            }
            StackEnd::NoTables => code_file().map_or(end, |it| kernel.end_without_rows(it, time)),
            StackEnd::BadTables => code_file().map_or(end, |it| kernel.end_with_unusable_rule(it)),
            _ => end,
        }
    }

    /// Cuts a stack that was walked by frame pointers alone at the first non-executable address.
    pub(super) fn cut(&self, pid: i32, stack: &mut Vec<Frame>, end: StackEnd) -> StackEnd {
        let Some(process) = self.processes.get(&pid) else {
            return end;
        };
        let is_code = |frame: &&Frame| {
            let address = frame.lookup_address();
            address.is_some_and(|address| process.contain(address))
        };
        // The innermost frame was running.
        let code = 1 + stack.iter().skip(1).take_while(is_code).count();
        if code >= stack.len() {
            return end;
        }
        stack.truncate(code);
        StackEnd::NotExecutable
    }

    /// Requests the rows of a file that no process may have mapped yet.
    pub(super) fn expect_file(&mut self, path: &Path) {
        if let Some(kernel) = &mut self.kernel {
            kernel.expect_file(path);
        }
    }

    /// Requests the rows of all code of a process, without a list of its mappings: it may never be sampled. Waits until
    /// `end` at most for answers where the queue is full.
    pub(super) fn expect_process(&mut self, process: &Process, end: Instant) {
        let mut has_room = true;
        while let Some(kernel) = &mut self.kernel
            && Instant::now() < end
        {
            kernel.has_refused = false;
            // A process that has ended has no mappings.
            let _ = process.executable_mappings(&mut |code| {
                if let Some(code_file) = kernel.code_file(process, code) {
                    kernel.rows(process, code, code_file);
                }
                if kernel.has_refused || Instant::now() >= end {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            if !kernel.has_refused || !has_room {
                break;
            }
            let answer = kernel.wait(end.saturating_duration_since(Instant::now()));
            has_room = answer.is_some();
            self.take(answer);
        }
    }

    /// Returns true if the worker has not made all requested rows yet.
    pub(super) fn awaits_rows(&self) -> bool {
        self.kernel.as_ref().is_some_and(Kernel::awaits_rows)
    }

    /// Waits until the worker has made the requested rows, or the time is over.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let next = |kernel: &Kernel| kernel.wait(end.saturating_duration_since(Instant::now()));
        while let Some(answer) = self.kernel.as_ref().and_then(next) {
            self.take(Some(answer));
        }
    }

    /// Returns true if a stack ended for lack of room for its process's mappings. With `has_all`,
    /// the program has found mappings that are in no list: only rows can be missing.
    pub(super) fn lacks_room(
        &self,
        pid: i32,
        stack: &[Frame],
        end: StackEnd,
        has_all: bool,
    ) -> bool {
        let Some(process) = self.processes.get(&pid) else {
            return false;
        };
        let last = || stack.iter().rev().find_map(Frame::lookup_address);
        let lacks_list = process.lacks_room && !has_all;
        match end {
            StackEnd::FramePointers => lacks_list,
            // Memory has no tables in any case.
            StackEnd::NoTables if process.dropped.files => {
                lacks_list || last().is_some_and(|address| !process.contain(address))
            }
            StackEnd::NoTables => lacks_list,
            StackEnd::NotExecutable => lacks_list || process.dropped.any && !has_all,
            _ => false,
        }
    }

    /// Passes new rows on to the program, and mappings that there was no room for.
    pub(super) fn poll(&mut self) {
        self.take(None);
        let now = Instant::now();
        let Some(kernel) = self.kernel.as_mut().filter(|_| now >= self.next_placing) else {
            return;
        };
        self.next_placing = now + ROOM_INTERVAL;
        for (pid, process) in &mut self.processes {
            if process.lacks_room {
                kernel.place(*pid, process);
            }
        }
    }

    fn take(&mut self, first: Option<Answer>) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let new = kernel.take(first);
        let answered: HashSet<CodeFile, RandomState> = kernel.answered().iter().copied().collect();
        if !answered.is_empty() {
            for (pid, process) in &mut self.processes {
                if process.take(&new, &answered) {
                    kernel.place(*pid, process);
                }
            }
        }
        kernel.end_taking();
    }

    /// Returns the processes whose mappings are kept.
    pub(super) fn processes(&self) -> impl Iterator<Item = i32> {
        self.processes.keys().copied()
    }

    /// Notes that a process has ended, or executes another program.
    pub(super) fn forget(&mut self, pid: i32) {
        if let (Some(process), Some(kernel)) = (self.processes.remove(&pid), &mut self.kernel) {
            kernel.forget(pid, process.placed);
        }
    }
}

#[cfg(test)]
mod tests {
    use otelctx_fixtures::kernel::Feature;
    use otelctx_reader::remote::mappings::ExecutableMapping;
    use otelctx_reader::remote::{Device, Mapping, Permissions};

    use super::super::load::Loaded;
    use super::abi::MAX_MAPPINGS;
    use super::code_file::CodeFile;
    use super::{
        Dropped, Duration, Frame, Instant, Options, Process, ProcessMappings, StackEnd, Unwinding,
    };
    use crate::Targets;

    const PAGE: usize = 4096;

    /// Pages of this process, unmapped on drop.
    struct Pages(*mut libc::c_void, usize);

    impl Pages {
        /// Reserves pages that are not executable.
        fn reserve(count: usize) -> Self {
            let (size, flags) = (count * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let memory =
                unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
            assert_ne!(memory, libc::MAP_FAILED);
            Self(memory, size)
        }

        /// Maps one of them, executable.
        fn map(&self, page: usize) {
            assert!(page * PAGE < self.1);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: the page is reserved, and nothing refers to it.
            let mapped = unsafe {
                libc::mmap(
                    self.0.byte_add(page * PAGE),
                    PAGE,
                    libc::PROT_READ | libc::PROT_EXEC,
                    flags,
                    -1,
                    0,
                )
            };
            assert_ne!(mapped, libc::MAP_FAILED);
        }

        fn address(&self, page: usize) -> u64 {
            self.0 as u64 + (page * PAGE) as u64
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: it was mapped with this size, and nothing refers to it.
            unsafe { libc::munmap(self.0, self.1) };
        }
    }

    /// Reads the mappings of this process.
    fn own() -> Unwinding {
        let pid = std::process::id() as i32;
        let process = Process::open(pid).unwrap();
        let mut mappings = ProcessMappings::new(Instant::now());
        assert!(mappings.read(&process, &mut None));
        Unwinding {
            kernel: None,
            processes: [(pid, mappings)].into_iter().collect(),
            next_placing: Instant::now(),
        }
    }

    /// The end of a stack by frame pointers whose caller is at an address.
    fn end_at(unwinding: &Unwinding, address: u64) -> (StackEnd, bool) {
        let pid = std::process::id() as i32;
        let mut stack = vec![Frame::native(0, address), Frame::native(1, address + 8)];
        let end = unwinding.cut(pid, &mut stack, StackEnd::FramePointers);
        (end, unwinding.lacks_room(pid, &stack, end, false))
    }

    /// The program, with tables, and this process as its target. `None`, with a line, where the kernel does not permit it.
    fn loaded() -> Option<(Loaded, Process)> {
        crate::sampler::raise_limits();
        let pid = std::process::id() as i32;
        let options = Options::new(Targets::Processes(vec![pid]));
        let mut loaded = Feature::Ebpf.or_skip(Loaded::load(&options))?;
        let tables = loaded.sample.without_tables.take().map_or(Ok(()), Err);
        Feature::Tables.or_skip(tables)?;
        Some((loaded, Process::open(pid).unwrap()))
    }

    #[test]
    fn code_whose_tables_are_not_known_says_why() {
        let Some((mut loaded, process)) = loaded() else {
            return;
        };
        let pid = process.pid();
        loaded.unwinding.read(&process);
        loaded.unwinding.wait(Duration::from_secs(60));
        let address = own as *const () as u64;
        let stack = [Frame::instruction(address)];
        let explain = |unwinding: &Unwinding| {
            unwinding.explain(pid, &mut stack.to_vec(), StackEnd::NoTables, u64::MAX)
        };
        // Its tables were read: this program's stacks do not end there.
        assert_eq!(explain(&loaded.unwinding), StackEnd::NoTables);
        let known = &loaded.unwinding.processes[&pid];
        let range = known.mapping_at(address).unwrap().range;
        let kernel = loaded.unwinding.kernel.as_mut().unwrap();
        let [unreadable, unknown] = [1, 2].map(|inode| CodeFile::File {
            device: Device::default(),
            inode,
        });
        // It is not at that path.
        let mapping = Mapping {
            start: range.0,
            end: range.1,
            permissions: Permissions::default(),
            offset: 0,
            device: Device::default(),
            inode: 1,
            name: b"/nowhere",
        };
        let code = ExecutableMapping {
            mapping,
            moved_from: None,
            may_be_copied: false,
        };
        assert!(kernel.rows(&process, &code, unreadable).is_none());
        let end = kernel.end_without_rows(unreadable, u64::MAX);
        assert_eq!(end, StackEnd::BadTables);
        // As if there had been no room to ask for it.
        let end = kernel.end_without_rows(unknown, u64::MAX);
        assert_eq!(end, StackEnd::TablesNotReady);
    }

    /// The worker is busy, and more files than it takes are asked for.
    #[test]
    fn files_without_room_in_the_queue_are_not_ready_and_asked_for_again() {
        let Some((mut loaded, process)) = loaded() else {
            return;
        };
        let pid = process.pid();
        let unwinding = &mut loaded.unwinding;
        let kernel = unwinding.kernel.as_mut().unwrap();
        let (requests, queue) = std::sync::mpsc::sync_channel(1);
        let to_worker = std::mem::replace(&mut kernel.requests, requests);
        unwinding.read(&process);
        // This program comes first, and then the C library.
        let [own, library] = [own as *const () as u64, libc::getpid as *const () as u64];
        let ends = |unwinding: &Unwinding| {
            [own, library].map(|address| {
                let stack = [Frame::instruction(address)];
                unwinding.explain(pid, &mut stack.to_vec(), StackEnd::NoTables, u64::MAX)
            })
        };
        assert_eq!(ends(unwinding), [StackEnd::TablesNotReady; 2]);
        let stack = [Frame::instruction(own)];
        let lacks =
            |unwinding: &Unwinding| unwinding.lacks_mappings(pid, &stack, StackEnd::TablesNotReady);
        assert!(lacks(unwinding), "there was room for one file");
        to_worker.send(queue.try_recv().unwrap()).unwrap();
        assert!(queue.try_recv().is_err());

        let kernel = unwinding.kernel.as_mut().unwrap();
        kernel.requests = to_worker;
        unwinding.wait(Duration::from_secs(60));
        // As if they had tables, this says that the rows are there.
        let expected = [StackEnd::NoTables, StackEnd::TablesNotReady];
        assert_eq!(ends(unwinding), expected);
        let begin = Instant::now();
        while lacks(unwinding) {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
            unwinding.read(&process);
        }
        unwinding.wait(Duration::from_secs(60));
        assert_eq!(ends(unwinding), [StackEnd::NoTables; 2]);
        let rows = |address| {
            let mapping = unwinding.processes[&pid].mapping_at(address);
            mapping.unwrap().rows.is_some()
        };
        assert!(rows(own) && rows(library));
    }

    /// More mappings than are kept.
    #[test]
    fn a_stack_that_leads_to_a_dropped_mapping_is_no_wrong_address() {
        let pages = Pages::reserve(2 * MAX_MAPPINGS);
        let unwinding = own();
        let end = pages.address(0);
        assert_eq!(end_at(&unwinding, end), (StackEnd::NotExecutable, false));

        for page in (0..2 * MAX_MAPPINGS).step_by(2) {
            pages.map(page);
        }
        let unwinding = own();
        let known = unwinding.processes.values().next().unwrap();
        assert_eq!(known.mappings.len(), MAX_MAPPINGS);
        let last = pages.address(2 * MAX_MAPPINGS - 2);
        assert_eq!(end_at(&unwinding, last), (StackEnd::NotExecutable, true));
        // The test's own code is behind them, and has its place.
        assert!(known.contain(own as *const () as u64));
        assert_eq!(
            known.dropped,
            Dropped {
                any: true,
                files: false
            }
        );
    }
}
