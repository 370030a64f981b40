//! Stacks by unwind tables: which rows cover which code of a process, for the program.
//!
//! A worker thread makes the rows of a file. Until a process's mappings are known here, the program
//! walks by frame pointers.

mod abi;
mod pool;
mod store;
mod worker;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{HashMap as KernelMap, MapData};
use foldhash::fast::RandomState;
use otelctx_reader::remote::{self, Process};
use otelctx_sample::{Frame, StackEnd};
use otelctx_track::schedule::Backoff;

#[cfg(test)]
pub(super) use abi::check_layouts;
pub(super) use abi::stack_end;
use abi::{Code, CodeList, MAX_CODE, MAX_KEPT_SHARDS, MAX_MAPPINGS, ProcessCode};
use pool::Pool;
use store::{PlacedRows, Store};
use worker::{Answer, Request, Shown, Worker};

use super::load::{array, map};
use super::shared::Shared;
use crate::Options;
use crate::code::{MemoryChange, Report};
use crate::refusal::Refusal;

/// Maximum number of files whose rows are asked for and not there yet.
const MAX_REQUESTS: usize = 512;
/// Maximum number of files that are remembered.
const MAX_FILES: usize = 16 * 1024;
/// Maximum number of processes whose children are known before they are sampled.
const MAX_PROCESSES: usize = 8192;
/// How long the contents of a file are taken for unchanged.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What the program knows of the code of processes.
pub(super) struct Unwinding {
    /// `None` before Linux 5.17: stacks are walked by frame pointers alone.
    kernel: Option<Kernel>,
    processes: HashMap<i32, ProcessMappings, RandomState>,
}

/// The program's maps, and the worker.
struct Kernel {
    code: Shared<CodeList>,
    processes: KernelMap<MapData, u32, ProcessCode>,
    pool: Pool,
    files: HashMap<Shown, KnownFile, RandomState>,
    requests: SyncSender<Request>,
    answers: Receiver<Answer>,
    /// Number of the newest list of mappings.
    serial: u64,
    /// Number of requests without an answer.
    pending: usize,
}

struct KnownFile {
    /// `None` until they are made, and if there are none. Without a process that has mapped the file, they
    /// may be given back.
    rows: Option<Weak<PlacedRows>>,
    requested: Instant,
}

/// Entries of the program's list.
#[derive(Default)]
struct PlacedCode {
    code: ProcessCode,
    /// What they refer to, which stays in its place as long as they do.
    rows: Vec<Arc<PlacedRows>>,
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

impl Kernel {
    fn start(programs: &mut Ebpf, options: &Options) -> Result<Self, Refusal> {
        let failed = |error: io::Error| Refusal::of(&error);
        let store = Store::new(programs, options.kept_rows.unwrap_or(MAX_KEPT_SHARDS))?;
        let rules = Shared::of(&array(programs, "rules")?).map_err(failed)?;
        let code = Shared::of(&array(programs, "code")?).map_err(failed)?;
        let processes = map(programs, "processes")?;
        let (requests, of_worker) = mpsc::sync_channel(MAX_REQUESTS);
        let (to_here, answers) = mpsc::channel();
        let worker = Worker::new(store, rules);
        // It ends when this is dropped, or later: a file server may keep it from that.
        std::thread::Builder::new()
            .name("otelctx-rows".into())
            .spawn(move || worker.run(&of_worker, &to_here))
            .map_err(failed)?;
        Ok(Self {
            code,
            processes,
            pool: Pool::new(MAX_CODE as u32),
            files: HashMap::default(),
            requests,
            answers,
            serial: 0,
            pending: 0,
        })
    }

    /// The rows of what a mapping shows, if they are there; asks for them, if they are not.
    fn rows(
        &mut self,
        process: &Process,
        mapping: &remote::Mapping<'_>,
        shown: Shown,
    ) -> Option<Arc<PlacedRows>> {
        let now = Instant::now();
        let known = self.files.get(&shown);
        let made = known.and_then(|it| it.rows.as_ref());
        let rows = made.and_then(Weak::upgrade);
        let were_given_back = made.is_some() && rows.is_none();
        let is_old = |it: &KnownFile| now.duration_since(it.requested) >= RECHECK_INTERVAL;
        if were_given_back || known.is_none_or(is_old) {
            let range = (mapping.start, mapping.end);
            let request = match shown {
                Shown::Vdso if rows.is_some() => return rows,
                Shown::Vdso => Request::Vdso {
                    pid: process.pid(),
                    range,
                },
                Shown::File { device, inode } => Request::File {
                    file: process.mapped_file(range, mapping.name, device, inode)?,
                    shown,
                },
            };
            if self.files.len() >= MAX_FILES {
                self.files.clear();
            }
            // If there is no room, the next process that maps it asks again.
            if self.requests.try_send(request).is_ok() {
                self.pending += 1;
                let known = KnownFile {
                    rows: rows.as_ref().map(Arc::downgrade),
                    requested: now,
                };
                self.files.insert(shown, known);
            }
        }
        rows
    }

    /// Tells the program the mappings of a process.
    fn place(&mut self, pid: i32, process: &mut ProcessMappings) {
        let now = Instant::now();
        self.serial += 1;
        let head = Code {
            start: self.serial,
            ..Code::default()
        };
        let mappings = process.mappings.iter().map(Mapping::code);
        let list: Vec<Code> = std::iter::once(head).chain(mappings).collect();
        let Some(first) = self.pool.take(list.len() as u32, now) else {
            // No room: the process keeps what it has.
            return;
        };
        // SAFETY: a pointer to a member of a value that is mapped.
        let at = |code: *mut CodeList| unsafe { &raw mut (*code).at };
        self.code.write(at, first as usize, &list);
        let code = ProcessCode {
            first: first + 1,
            count: list.len() as u32 - 1,
            serial: self.serial,
        };
        let rows = process.mappings.iter().filter_map(|it| it.rows.clone());
        let mut placed = PlacedCode {
            code,
            rows: rows.collect(),
        };
        if self.processes.insert(pid as u32, code, 0).is_ok() {
            std::mem::swap(&mut process.placed, &mut placed);
        }
        self.free(placed);
    }

    fn free(&mut self, placed: PlacedCode) {
        let PlacedCode { code, rows } = placed;
        if code.serial != 0 {
            let head = code.first - 1;
            // SAFETY: a pointer to a member of a value that is mapped.
            let at = |code: *mut CodeList| unsafe { &raw mut (*code).at };
            // A child may have inherited them and not be known yet.
            self.code.write(at, head as usize, &[Code::default()]);
            self.pool.give_back(head, code.count + 1, Instant::now());
        }
        // Only now, because they may be given back from here on.
        drop(rows);
    }

    fn forget(&mut self, pid: i32, placed: PlacedCode) {
        // The program removes it, too.
        let _ = self.processes.remove(&(pid as u32));
        self.free(placed);
    }
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

    fn contain(&self, address: u64) -> bool {
        let behind = self.mappings.partition_point(|it| it.range.0 <= address);
        let before = behind.checked_sub(1).map(|at| &self.mappings[at]);
        before.is_some_and(|it| address < it.range.1)
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
        while let Some(kernel) = &mut self.kernel
            && kernel.pending > 0
        {
            let rest = end.saturating_duration_since(Instant::now());
            let Ok(answer) = kernel.answers.recv_timeout(rest) else {
                break;
            };
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
        let mut new = HashMap::<Shown, Arc<PlacedRows>, RandomState>::default();
        for (shown, rows) in first.into_iter().chain(kernel.answers.try_iter()) {
            kernel.pending -= 1;
            let Some(file) = kernel.files.get_mut(&shown) else {
                continue;
            };
            let same = match (&file.rows, &rows) {
                (Some(one), Some(other)) => one.as_ptr() == Arc::as_ptr(other),
                (None, None) => true,
                _ => false,
            };
            // Rows that could not be read again stay: the file may be another by now.
            if !same && let Some(rows) = rows {
                file.rows = Some(Arc::downgrade(&rows));
                new.insert(shown, rows);
            }
        }
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
