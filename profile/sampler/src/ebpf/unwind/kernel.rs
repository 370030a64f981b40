//! The program's lists of the code of processes, and the rows of files.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{HashMap as KernelMap, MapData};
use foldhash::fast::RandomState;
use otelctx_reader::remote::mappings::ExecutableMapping;
use otelctx_reader::remote::{Device, Process, module};
use otelctx_sample::StackEnd;

use super::super::object::{array, map};
use super::super::shared::{Shared, member};
use super::ProcessMappings;
use super::abi::{Code, CodeList, MAX_CODE, MAX_KEPT_SHARDS, MAX_SHARDS, ProcessCode};
use super::code_file::CodeFile;
use super::mappings::{Mapping, with_walked};
use super::pool::Pool;
use super::store::{PlacedRows, Store};
use super::worker::{Answer, MAX_REQUESTS, Request, Worker};
use crate::refusal::Refusal;
use crate::{Options, monotonic};

/// Maximum number of files that are remembered.
const MAX_FILES: usize = 16 * 1024;
/// Time before a file is checked for a change.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Rows that the program does not have yet, by their files.
pub(super) type NewRows = HashMap<CodeFile, Arc<PlacedRows>, RandomState>;

/// The program's maps, and the worker.
pub(super) struct Kernel {
    code: Shared<CodeList>,
    processes: KernelMap<MapData, u32, ProcessCode>,
    pool: Pool,
    files: HashMap<CodeFile, FileEntry, RandomState>,
    pub(super) requests: SyncSender<Request>,
    answers: Receiver<Answer>,
    /// Number of the newest list of mappings.
    serial: u64,
    pending: usize,
    /// The files of the answers since the last call of `end_taking`.
    taken: Vec<CodeFile>,
    /// Time when the rows of the last answer were placed, in nanoseconds.
    last_answer: u64,
    /// Devices of subvolumes or layers: several files can have the same inode number.
    shared_devices: HashSet<Device, RandomState>,
    /// There is no room for the rows of some file.
    has_unplaced: bool,
    /// See [`Options::holds_rows`].
    holds_rows: bool,
    /// There was no room for a request, or a mapping's file was not distinguished from others: the
    /// mappings must be read again.
    pub(super) has_refused: bool,
}

struct FileEntry {
    /// `None` before they are made, and if there are none. They may be given back when no process
    /// maps the file.
    rows: Option<Weak<PlacedRows>>,
    requested: Instant,
    /// Time of the answer, in nanoseconds; `None` before.
    answered: Option<u64>,
    /// See [`Answer::end_in_gaps`].
    end_in_gaps: Option<StackEnd>,
}

impl FileEntry {
    /// Returns true if there was no room for its rows.
    fn is_unplaced(&self) -> bool {
        self.rows.is_none() && self.end_in_gaps == Some(StackEnd::TooManyTables)
    }
}

/// Entries of the program's list.
#[derive(Default)]
pub(super) struct PlacedCode {
    code: ProcessCode,
    /// The rows that they refer to, which stay in place as long as this does.
    rows: Vec<Arc<PlacedRows>>,
}

impl Kernel {
    pub(super) fn start(programs: &mut Ebpf, options: &Options) -> Result<Self, Refusal> {
        let kept = options.kept_rows.unwrap_or(MAX_KEPT_SHARDS);
        let store = Store::new(programs, kept, options.max_rows.unwrap_or(MAX_SHARDS))?;
        let rules = Shared::of(array(programs, "rules")?).map_err(Refusal::of)?;
        let code = Shared::of(array(programs, "code")?).map_err(Refusal::of)?;
        let processes = map(programs, "processes")?;
        let (requests, of_worker) = mpsc::sync_channel(MAX_REQUESTS);
        let (to_here, answers) = mpsc::channel();
        let worker = Worker::new(store, rules, options.holds_rows);
        // It ends when this is dropped, or later, if a file server does not respond.
        std::thread::Builder::new()
            .name("otelctx-rows".into())
            .spawn(move || worker.run(&of_worker, &to_here))
            .map_err(Refusal::of)?;
        Ok(Self {
            code,
            processes,
            pool: Pool::new(options.max_mappings.unwrap_or(MAX_CODE as u32)),
            files: HashMap::default(),
            requests,
            answers,
            serial: 0,
            pending: 0,
            taken: Vec::new(),
            last_answer: 0,
            shared_devices: HashSet::default(),
            has_unplaced: false,
            holds_rows: options.holds_rows,
            has_refused: false,
        })
    }

    pub(super) fn code_file(
        &self,
        process: &Process,
        code: &ExecutableMapping<'_>,
    ) -> Option<CodeFile> {
        let mapping = &code.mapping;
        let (device, inode) = (mapping.device, mapping.inode);
        if !self.shared_devices.contains(&device) {
            return CodeFile::of(mapping);
        }
        let file = process.mapped_file(code.file_range(), mapping.name, device, inode)?;
        let device = Device::of_file(&file).ok()?;
        Some(CodeFile::File { device, inode })
    }

    /// Returns the rows of a mapping's file, or requests them.
    pub(super) fn rows(
        &mut self,
        process: &Process,
        code: &ExecutableMapping<'_>,
        code_file: CodeFile,
    ) -> Option<Arc<PlacedRows>> {
        let now = Instant::now();
        let entry = self.files.get(&code_file);
        let made = entry.and_then(|it| it.rows.as_ref());
        let rows = made.and_then(Weak::upgrade);
        let were_given_back = made.is_some() && rows.is_none();
        let answered = entry.and_then(|it| it.answered);
        let end_in_gaps = entry.and_then(|it| it.end_in_gaps);
        let is_old = |it: &FileEntry| {
            it.answered.is_some() && now.duration_since(it.requested) >= RECHECK_INTERVAL
        };
        if were_given_back || entry.is_none_or(is_old) {
            let (mapping, range) = (&code.mapping, code.file_range());
            let request = match code_file {
                CodeFile::Vdso if rows.is_some() => return rows,
                CodeFile::Vdso => Request::Vdso,
                CodeFile::File { device, .. } => {
                    let (mapped, name) = ((mapping.device, mapping.inode), mapping.name);
                    let Some(file) = process.mapped_file(range, name, mapped.0, mapped.1) else {
                        self.note_unreadable(code_file);
                        return rows;
                    };
                    if Device::of_file(&file).is_ok_and(|found| found != device) {
                        // `code_file` must distinguish them: the mappings are read again.
                        self.shared_devices.insert(device);
                        self.has_refused = true;
                        return None;
                    }
                    Request::File {
                        file,
                        code_file,
                        mapped,
                    }
                }
            };
            let entry = FileEntry {
                rows: rows.as_ref().map(Arc::downgrade),
                requested: now,
                // A file that is only checked again keeps its rows meanwhile.
                answered: answered.filter(|_| !were_given_back),
                end_in_gaps,
            };
            self.has_refused |= !self.request(code_file, request, entry);
        }
        rows
    }

    /// Requests the rows of a file, unless they are there or requested. Ignores what is no regular file.
    pub(super) fn expect_file(&mut self, path: &Path) {
        let opened = module::open_regular(path).ok().flatten();
        let facts = opened.and_then(|file| {
            let inode = file.metadata().ok()?.ino();
            Some((Device::of_file(&file).ok()?, inode, file))
        });
        let Some((device, inode, file)) = facts else {
            return;
        };
        let code_file = CodeFile::File { device, inode };
        if self.files.contains_key(&code_file) {
            return;
        }
        let request = Request::File {
            file,
            code_file,
            mapped: (device, inode),
        };
        let entry = FileEntry {
            rows: None,
            requested: Instant::now(),
            answered: None,
            end_in_gaps: None,
        };
        // Without room for it, the first process that has mapped the file requests them.
        self.request(code_file, request, entry);
    }

    /// Sends a request to the worker. Returns false if there is no room for it.
    fn request(&mut self, code_file: CodeFile, request: Request, entry: FileEntry) -> bool {
        self.make_room();
        let is_sent = self.requests.try_send(request).is_ok();
        if is_sent {
            self.pending += 1;
            self.files.insert(code_file, entry);
        }
        is_sent
    }

    fn make_room(&mut self) {
        if self.files.len() >= MAX_FILES {
            self.files.clear();
        }
    }

    /// Notes that a file cannot be opened; a later request retries. Its rows, if any, stay.
    fn note_unreadable(&mut self, code_file: CodeFile) {
        self.make_room();
        let entry = self.files.entry(code_file).or_insert_with(|| FileEntry {
            rows: None,
            requested: Instant::now(),
            answered: Some(monotonic()),
            end_in_gaps: Some(StackEnd::BadTables),
        });
        entry.requested = Instant::now();
    }

    pub(super) fn place(&mut self, pid: i32, process: &mut ProcessMappings) {
        process.lacks_room = !self.try_place(pid, process);
    }

    /// Writes a process's list. Returns false if there is no room.
    fn try_place(&mut self, pid: i32, process: &mut ProcessMappings) -> bool {
        let now = Instant::now();
        self.serial += 1;
        let head = Code {
            start: self.serial,
            ..Code::default()
        };
        let mappings = process.mappings.iter().map(Mapping::code).collect();
        let mappings = with_walked(mappings, &process.walked);
        let list: Vec<Code> = std::iter::once(head).chain(mappings).collect();
        let Some(first) = self.pool.take(list.len() as u32, now) else {
            // The former list may give this one its room, before the next attempt.
            if list.len() as u32 <= process.placed.code.count + 1 {
                let placed = std::mem::take(&mut process.placed);
                self.forget(pid, placed);
            }
            return false;
        };
        self.code
            .write(member!(CodeList, at), first as usize, &list);
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
        let inserted = self.processes.insert(pid as u32, code, 0).is_ok();
        if inserted {
            std::mem::swap(&mut process.placed, &mut placed);
        }
        self.free(placed);
        inserted
    }

    fn free(&mut self, placed: PlacedCode) {
        let PlacedCode { code, rows } = placed;
        if code.serial != 0 {
            let head = code.first - 1;
            // Invalidates the list of a child that inherited it and is not tracked yet.
            let unused = [Code::default()];
            self.code
                .write(member!(CodeList, at), head as usize, &unused);
            self.pool.give_back(head, code.count + 1, Instant::now());
        }
        // Only now: from here on, they may be given back.
        drop(rows);
    }

    pub(super) fn forget(&mut self, pid: i32, placed: PlacedCode) {
        // The program removes the entry, too.
        let _ = self.processes.remove(&(pid as u32));
        self.free(placed);
    }

    /// Returns why a stack ended at `time`, in nanoseconds, at code without rows.
    pub(super) fn end_without_rows(&self, code_file: CodeFile, time: u64) -> StackEnd {
        let file = self.files.get(&code_file);
        let is_answered = |it: &&FileEntry| it.answered.is_some_and(|answered| answered <= time);
        match file.filter(is_answered) {
            // There was no room for the request, or there is no answer yet.
            None => StackEnd::TablesNotReady,
            // Rules without room are no gaps.
            Some(it) if it.rows.is_some() && it.end_in_gaps == Some(StackEnd::TooManyTables) => {
                StackEnd::NoTables
            }
            Some(it) => it.end_in_gaps.unwrap_or(StackEnd::NoTables),
        }
    }

    /// Returns the likely reason why a stack ended at code whose rule the program cannot use: one
    /// file can have code of both kinds.
    pub(super) fn end_with_unusable_rule(&self, code_file: CodeFile) -> StackEnd {
        let end = self.files.get(&code_file).and_then(|it| it.end_in_gaps);
        end.unwrap_or(StackEnd::BadTables)
    }

    /// Notes that the program has the rows of all answers from now on.
    pub(super) fn end_taking(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        self.last_answer = monotonic();
        for code_file in self.taken.drain(..) {
            if let Some(file) = self.files.get_mut(&code_file) {
                file.answered.get_or_insert(self.last_answer);
            }
        }
        self.has_unplaced = self.files.values().any(FileEntry::is_unplaced);
    }

    /// Returns true if the rows of all files were there at `time`, in nanoseconds.
    pub(super) fn is_settled(&self, time: u64) -> bool {
        self.pending == 0 && self.last_answer <= time && !self.has_unplaced
    }

    /// Returns why the frame pointer of code with tables may have led to another frame than its
    /// caller's: its rows were not there at `time`, in nanoseconds. With `has_rows`, they are now.
    pub(super) fn reason_to_cut(
        &self,
        code_file: CodeFile,
        has_rows: bool,
        time: u64,
    ) -> Option<StackEnd> {
        let file = self.files.get(&code_file);
        match file.map(|it| it.answered) {
            Some(Some(answered)) if has_rows => {
                (time < answered).then_some(StackEnd::TablesNotReady)
            }
            Some(Some(_)) => file?.is_unplaced().then_some(StackEnd::TooManyTables),
            // There was no room for the request, or there is no answer yet.
            None | Some(None) => (!has_rows).then_some(StackEnd::TablesNotReady),
        }
    }

    pub(super) fn awaits_rows(&self) -> bool {
        self.pending > 0 && !self.holds_rows
    }

    /// Returns true if it is not known yet which rows this file has.
    pub(super) fn awaits_rows_of(&self, code_file: CodeFile) -> bool {
        let file = self.files.get(&code_file);
        // Without an entry, there was no room for the request.
        file.is_none_or(|it| it.answered.is_none())
    }

    /// Returns the files of the answers since the last call of `end_taking`.
    pub(super) fn answered(&self) -> &[CodeFile] {
        &self.taken
    }

    /// Waits for an answer until this time is over, if one is expected.
    pub(super) fn wait(&self, time: Duration) -> Option<Answer> {
        (self.pending > 0).then(|| self.answers.recv_timeout(time).ok())?
    }

    /// Returns the new rows in this answer and in all others that have come.
    pub(super) fn take(&mut self, first: Option<Answer>) -> NewRows {
        let mut new = NewRows::default();
        for answer in first.into_iter().chain(self.answers.try_iter()) {
            self.pending -= 1;
            let Some(file) = self.files.get_mut(&answer.code_file) else {
                continue;
            };
            self.taken.push(answer.code_file);
            // Rows that could not be read again stay: the file may be another by now.
            if answer.rows.is_some() || file.rows.is_none() {
                file.end_in_gaps = answer.end_in_gaps;
            }
            let is_known = |rows: &Arc<_>| {
                let known = file.rows.as_ref();
                known.is_some_and(|known| known.as_ptr() == Arc::as_ptr(rows))
            };
            if let Some(rows) = answer.rows
                && !is_known(&rows)
            {
                file.rows = Some(Arc::downgrade(&rows));
                // The program has them from now on.
                file.answered = None;
                new.insert(answer.code_file, rows);
            }
        }
        new
    }
}
