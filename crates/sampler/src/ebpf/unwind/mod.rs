//! Stacks by unwind tables: which rows cover which code of a process, for the program.
//!
//! A worker thread makes the rows of a file. Until a process's mappings are known here, the program
//! walks by frame pointers.

mod abi;
mod kernel;
mod pool;
mod store;
mod worker;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::Ebpf;
use foldhash::fast::RandomState;
use otelctx_reader::remote::Process;
use otelctx_sample::{Frame, StackEnd};
use otelctx_track::schedule::Backoff;

#[cfg(test)]
pub(super) use abi::check_layouts;
pub(super) use abi::stack_end;
use abi::{Code, MAX_MAPPINGS};
use kernel::{Kernel, PlacedCode};
use store::PlacedRows;
use worker::{Answer, Shown};

use crate::Options;
use crate::code::{MemoryChange, Report};
use crate::refusal::Refusal;

/// Maximum number of processes whose children are known before they are sampled.
const MAX_PROCESSES: usize = 8192;
/// What the program knows of the code of processes.
pub(super) struct Unwinding {
    /// `None` if stacks are walked by frame pointers alone.
    kernel: Option<Kernel>,
    processes: HashMap<i32, ProcessMappings, RandomState>,
}

/// The executable mappings of a process, in address order.
struct ProcessMappings {
    mappings: Vec<Mapping>,
    reads: Backoff,
    /// The kernel has reported mappings since the last reading.
    is_stale: bool,
    /// The process's entries in the program's list.
    placed: PlacedCode,
}

#[derive(Clone)]
struct Mapping {
    range: (u64, u64),
    offset: u64,
    shown: Option<Shown>,
    rows: Option<Arc<PlacedRows>>,
}

impl Mapping {
    /// What the program knows of it.
    fn code(&self) -> Code {
        let (start, end) = self.range;
        let without = Code {
            start,
            end,
            ..Code::default()
        };
        let Some(rows) = &self.rows else {
            return without;
        };
        let offset = if self.shown == Some(Shown::Vdso) {
            0
        } else {
            self.offset
        };
        match rows.segments.bias(start, offset) {
            Some(bias) => Code {
                base: bias.wrapping_add(rows.start),
                page: rows.page,
                pages: rows.pages,
                ..without
            },
            None => without,
        }
    }
}

impl ProcessMappings {
    fn new(now: Instant) -> Self {
        Self {
            mappings: Vec::new(),
            reads: Backoff::new(now),
            is_stale: false,
            placed: PlacedCode::default(),
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

    /// Reads the mappings. Returns whether they have changed.
    fn read(&mut self, process: &Process, kernel: &mut Option<Kernel>) -> bool {
        let mut mappings: Vec<Mapping> = Vec::new();
        // A process that has ended has no mappings.
        let _ = process.executable_mappings(&mut |mapping| {
            let range = (mapping.start, mapping.end);
            let shown = match mapping.name {
                b"[vdso]" => Some(Shown::Vdso),
                _ if mapping.inode == 0 => None,
                _ => Some(Shown::File {
                    device: mapping.device,
                    inode: mapping.inode,
                }),
            };
            if let Some(last) = mappings.last_mut()
                && last.shown.is_none()
                && shown.is_none()
                && last.range.1 == range.0
            {
                // Memory of a just-in-time compiler can have thousands.
                last.range.1 = range.1;
                return ControlFlow::Continue(());
            }
            let rows = shown.and_then(|shown| {
                let kernel = kernel.as_mut()?;
                kernel.rows(process, mapping, shown)
            });
            mappings.push(Mapping {
                range,
                offset: mapping.offset,
                shown,
                rows,
            });
            if mappings.len() < MAX_MAPPINGS {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        let key = |it: &Mapping| (it.range, it.offset, it.shown);
        let has_changed = mappings.iter().map(key).ne(self.mappings.iter().map(key));
        if !mappings.is_empty() {
            self.mappings = mappings;
        }
        has_changed
    }
}

impl Unwinding {
    /// Takes the program's maps, if it unwinds by tables.
    pub(super) fn start(
        programs: &mut Ebpf,
        by_tables: bool,
        options: &Options,
    ) -> Result<Self, Refusal> {
        let kernel = by_tables.then(|| Kernel::start(programs, options));
        let kernel = kernel.transpose()?;
        Ok(Self {
            kernel,
            processes: HashMap::default(),
        })
    }

    /// Reads the mappings of a process, if that is due.
    pub(super) fn read(&mut self, process: &Process) {
        let now = Instant::now();
        let entry = match self.processes.entry(process.pid()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(ProcessMappings::new(now)),
        };
        if !entry.reads.is_due(now) {
            return;
        }
        entry.is_stale = false;
        let changed = entry.read(process, &mut self.kernel);
        if changed && let Some(kernel) = &mut self.kernel {
            kernel.place(process.pid(), entry);
        }
        let end = Instant::now();
        entry.reads.done(end, end - now, changed);
    }

    /// Notes what the kernel reports about a process's mappings. A child has those of its parent.
    pub(super) fn note(&mut self, report: &Report) {
        match report.change {
            MemoryChange::Mapped(_) => {
                if let Some(process) = self.processes.get_mut(&report.pid) {
                    process.is_stale = true;
                }
            }
            MemoryChange::Forked { parent } => {
                let has_room = self.processes.len() < MAX_PROCESSES;
                let Some(process) = self.processes.get(&parent).filter(|_| has_room) else {
                    return;
                };
                let mut child = ProcessMappings::new(Instant::now());
                child.mappings.clone_from(&process.mappings);
                child.is_stale = process.is_stale;
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

    /// Whether a stack of a process shows that it has mappings which are not known.
    pub(super) fn lacks_mappings(&self, pid: i32, stack: &[Frame], end: StackEnd) -> bool {
        let first = stack.first().and_then(Frame::address);
        let contain = |it: &ProcessMappings| first.is_none_or(|address| it.contain(address));
        let is_known = |it: &ProcessMappings| !it.is_stale && contain(it);
        end == StackEnd::NotExecutable || !self.processes.get(&pid).is_some_and(is_known)
    }

    /// Distinguishes code without tables from code whose tables are damaged, or were not ready at `time`.
    pub(super) fn explain(&self, pid: i32, stack: &[Frame], end: StackEnd, time: u64) -> StackEnd {
        if end != StackEnd::NoTables {
            return end;
        }
        let explained = || {
            let address = stack.iter().rev().find_map(Frame::lookup_address)?;
            let shown = self.processes.get(&pid)?.mapping_at(address)?.shown?;
            Some(self.kernel.as_ref()?.end_without_rows(shown, time))
        };
        explained().unwrap_or(end)
    }

    /// Cuts a stack that was walked by frame pointers alone at the first address that is not
    /// executable.
    pub(super) fn cut(&self, pid: i32, stack: &mut Vec<Frame>, end: StackEnd) -> StackEnd {
        let Some(known) = self.processes.get(&pid) else {
            return end;
        };
        let is_code = |frame: &&Frame| {
            frame
                .lookup_address()
                .is_some_and(|address| known.contain(address))
        };
        // The innermost one was running.
        let code = 1 + stack.iter().skip(1).take_while(is_code).count();
        if code >= stack.len() {
            return end;
        }
        stack.truncate(code);
        StackEnd::NotExecutable
    }

    /// Waits until the worker has made the rows that were asked for, or the time is over.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let next = |kernel: &Kernel| kernel.wait(end.saturating_duration_since(Instant::now()));
        while let Some(answer) = self.kernel.as_ref().and_then(next) {
            self.take(Some(answer));
        }
    }

    /// Passes on to the program what rows the worker has made.
    pub(super) fn poll(&mut self) {
        self.take(None);
    }

    fn take(&mut self, first: Option<Answer>) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let new = kernel.take(first);
        if new.is_empty() {
            return;
        }
        for (pid, process) in &mut self.processes {
            let mut changed = false;
            for mapping in &mut process.mappings {
                if let Some(rows) = mapping.shown.and_then(|shown| new.get(&shown)) {
                    mapping.rows = Some(rows.clone());
                    changed = true;
                }
            }
            if changed {
                kernel.place(*pid, process);
            }
        }
    }

    /// Notes that a process has ended, or executes another program.
    pub(super) fn forget(&mut self, pid: i32) {
        if let (Some(process), Some(kernel)) = (self.processes.remove(&pid), &mut self.kernel) {
            kernel.forget(pid, process.placed);
        }
    }
}
