//! The thread that makes rows of files, and places them where the program searches them.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use aya::maps::{ArrayOfMaps, MapData};
use otelctx_reader::remote::elf::{Elf, Source};
use otelctx_reader::remote::{Device, FileBytes, Process};
use otelctx_unwind::{CodeSegments, Dictionary, FILLER, FileRows, Shards, UnwindTables};

use super::super::shared::{Shared, create};
use super::abi::{KernelRule, MAX_PAGES, MAX_SHARDS, PageIndex, RuleList, Shard};

/// Maximum number of files that are remembered, with rows or without.
const MAX_FILES: usize = 16 * 1024;

/// What a mapping shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shown {
    File { device: Device, inode: u64 },
    Vdso,
}

/// Asks for the rows of what a process has mapped.
#[derive(Debug)]
pub(super) enum Request {
    /// Opened while it was mapped: its process may have ended.
    File { file: File, shown: Shown },
    /// It is the same in all processes.
    Vdso { pid: i32, range: (u64, u64) },
}

/// Where the program finds a file's rows.
#[derive(Debug)]
pub(super) struct PlacedRows {
    pub(super) segments: CodeSegments,
    /// Address of the first page with rows, by the file's program headers.
    pub(super) start: u64,
    /// The place of that page in the index.
    pub(super) page: u32,
    pub(super) pages: u32,
}

/// What a request came to: no rows where the file has no usable tables, or there is no room.
pub(super) type Answer = (Shown, Option<Arc<PlacedRows>>);

/// Identifies one state of a file's contents: device, inode, size, and mtime and ctime in
/// nanoseconds.
type State = (u64, u64, u64, i128, i128);

/// What the program unwinds with.
pub(super) struct Worker {
    shards: ArrayOfMaps<MapData, MapData>,
    mapped: Vec<Shared<Shard>>,
    pages: Shared<PageIndex>,
    rules: Shared<RuleList>,
    dictionary: Arc<Dictionary>,
    /// Number of rules that the program has.
    written: usize,
    layout: Shards,
    /// Number of pages that are in use.
    used_pages: usize,
    by_state: HashMap<State, Option<Arc<PlacedRows>>>,
    by_tables: HashMap<(u64, u64), Option<Arc<PlacedRows>>>,
    /// Files are made by others, who must not be able to make one that is taken for another.
    seeds: [RandomState; 2],
}

impl Worker {
    pub(super) fn new(
        shards: ArrayOfMaps<MapData, MapData>,
        pages: Shared<PageIndex>,
        rules: Shared<RuleList>,
    ) -> Self {
        Self {
            shards,
            mapped: Vec::new(),
            pages,
            rules,
            dictionary: Arc::new(Dictionary::new()),
            written: 0,
            layout: Shards::default(),
            used_pages: 0,
            by_state: HashMap::new(),
            by_tables: HashMap::new(),
            seeds: [RandomState::new(), RandomState::new()],
        }
    }

    /// Answers requests until there is nobody to answer.
    pub(super) fn run(mut self, requests: &Receiver<Request>, answers: &Sender<Answer>) {
        for request in requests {
            let answer = match &request {
                Request::File { file, shown } => (*shown, self.of_file(file)),
                Request::Vdso { pid, range } => (Shown::Vdso, self.of_vdso(*pid, *range)),
            };
            if answers.send(answer).is_err() {
                break;
            }
        }
    }

    fn of_vdso(&mut self, pid: i32, range: (u64, u64)) -> Option<Arc<PlacedRows>> {
        let memory = Process::open(pid).ok()?.memory().ok()?;
        let rows = FileRows::of_vdso(&memory, range, &self.dictionary);
        self.place(&rows.ok()?)
    }

    fn of_file(&mut self, file: &File) -> Option<Arc<PlacedRows>> {
        let facts = file.metadata().ok()?;
        let state = (
            facts.dev(),
            facts.ino(),
            facts.size(),
            i128::from(facts.mtime()) << 32 | i128::from(facts.mtime_nsec()),
            i128::from(facts.ctime()) << 32 | i128::from(facts.ctime_nsec()),
        );
        if let Some(known) = self.by_state.get(&state) {
            return known.clone();
        }
        if self.by_state.len() >= MAX_FILES {
            self.by_state.clear();
        }
        let bytes = FileBytes(file);
        let elf = Elf::read(Source::File(&bytes));
        let tables = elf.map(|elf| elf.and_then(|elf| UnwindTables::read(&elf).ok()));
        let rows = tables
            .ok()
            .flatten()
            .and_then(|tables| self.of_tables(tables));
        self.by_state.insert(state, rows.clone());
        rows
    }

    /// The rows of these tables, which are made once, whatever files have them.
    fn of_tables(&mut self, tables: UnwindTables) -> Option<Arc<PlacedRows>> {
        let [first, second] = &self.seeds;
        let identity = (first.hash_one(&tables), second.hash_one(&tables));
        if let Some(known) = self.by_tables.get(&identity) {
            return known.clone();
        }
        let rows = tables.rows(&self.dictionary).ok();
        let placed = rows.and_then(|rows| self.place(&rows));
        if self.by_tables.len() < MAX_FILES {
            self.by_tables.insert(identity, placed.clone());
        }
        placed
    }

    /// Writes rows to shards, and then the index of their pages.
    fn place(&mut self, file: &FileRows) -> Option<Arc<PlacedRows>> {
        let rows = file.rows();
        let mut layout = self.layout;
        let placement = layout.place(rows)?;
        let has_room =
            layout.shards() <= MAX_SHARDS && placement.pages.len() <= MAX_PAGES - self.used_pages;
        if !has_room || self.add_shards(layout.shards() as usize).is_err() {
            return None;
        }
        self.layout = layout;
        self.write_rules();
        for piece in &placement.pieces {
            let shard = &mut self.mapped[piece.shard as usize];
            let (at, count) = (piece.at as usize, piece.rows.len());
            let rules = &rows.rules()[piece.rows.clone()];
            // SAFETY: pointers to members of a value that is mapped.
            let low = |shard: *mut Shard| unsafe { &raw mut (*shard).low };
            // SAFETY: see above.
            let rule = |shard: *mut Shard| unsafe { &raw mut (*shard).rule };
            shard.write(low, at, &rows.low()[piece.rows.clone()]);
            shard.write(rule, at, rules);
            let filler = piece.filler as usize;
            shard.write(low, at + count, &vec![FILLER; filler]);
            let last = rules.last().copied().unwrap_or_default();
            shard.write(rule, at + count, &vec![last; filler]);
        }
        let page = self.used_pages;
        // SAFETY: see above.
        let first = |index: *mut PageIndex| unsafe { &raw mut (*index).first };
        self.pages.write(first, page, &placement.pages);
        self.used_pages += placement.pages.len();
        Some(Arc::new(PlacedRows {
            segments: file.segments().clone(),
            start: rows.first_page() * otelctx_unwind::PAGE_SIZE,
            page: page as u32,
            pages: rows.pages() as u32,
        }))
    }

    /// Creates shards until there are this many.
    fn add_shards(&mut self, count: usize) -> io::Result<()> {
        while self.mapped.len() < count {
            let map = create::<Shard>()?;
            let shard = Shared::map(map.as_fd(), 1)?;
            let map = MapData::from_fd(map).map_err(io::Error::other)?;
            let number = self.mapped.len() as u32;
            self.shards.set(number, &map, 0).map_err(io::Error::other)?;
            self.mapped.push(shard);
        }
        Ok(())
    }

    /// Writes rules that the program does not have yet.
    fn write_rules(&mut self) {
        let rule = |index: usize| KernelRule::from(self.dictionary.rule(index as u16));
        let new: Vec<KernelRule> = (self.written..self.dictionary.len()).map(rule).collect();
        // SAFETY: a pointer to a member of a value that is mapped.
        let at = |rules: *mut RuleList| unsafe { &raw mut (*rules).at };
        self.rules.write(at, self.written, &new);
        self.written += new.len();
    }
}
