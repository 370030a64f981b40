//! The rows of all files, in the memory where the program searches them.
//!
//! Rows stay in place while a list of mappings of the program refers to them: each list has their
//! [`Arc`]s, and drops them after the list is removed. Runs of the program that have found the list
//! before are waited for.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{HashMap as KernelMap, MapData, MapError};
use otelctx_sample::StackEnd;
use otelctx_unwind::{
    CodeSegments, FILLER, FileRows, FreeRanges, PAGE_SIZE, Piece, Placement, Rows, SHARD_ROWS,
    Shards,
};

use super::super::object::{array, map};
use super::super::shared::{Shared, create, member, page_size, set_map};
use super::abi::{FileCode, FileCodeKey, MAX_PAGES, MAX_SHARDS, PageIndex, Shard, VDSO};
use super::code_file::CodeFile;
use crate::refusal::Refusal;

#[derive(Debug)]
pub(super) struct PlacedRows {
    pub(super) segments: CodeSegments,
    /// Address of the first page with rows, by the file's program headers.
    pub(super) start: u64,
    /// The place of that page in the page index.
    pub(super) page: u32,
    pub(super) pages: u32,
    /// The reason why stacks end in code whose tables could not be used, if there is any.
    pub(super) end_in_gaps: Option<StackEnd>,
}

struct StoredRows {
    placed: Arc<PlacedRows>,
    pieces: Vec<Piece>,
    /// Number of the last use ([`Store::uses`]).
    last_use: u64,
}

/// A file in the program's map, in one state.
struct AddedFile {
    /// See [`PlacedRows::page`].
    page: u32,
    /// One key for each mapping that shows its code.
    keys: Vec<FileCodeKey>,
}

struct Reserved {
    placement: Placement,
    /// See [`PlacedRows::page`].
    page: u32,
}

struct LoadedShard {
    map: OwnedFd,
    rows: Shared<Shard>,
}

pub(super) struct Store {
    /// The program's array of shards.
    shards: MapData,
    loaded: Vec<Option<LoadedShard>>,
    layout: Shards,
    pages: Shared<PageIndex>,
    free_pages: FreeRanges,
    /// By [`PlacedRows::page`].
    stored: HashMap<u32, StoredRows>,
    /// The program's map with the rows of mappings that are in no list.
    file_code: KernelMap<MapData, FileCodeKey, FileCode>,
    added_files: HashMap<CodeFile, AddedFile>,
    uses: u64,
    /// Maximum number of shards unless more are needed by processes.
    max_kept: u32,
    max_shards: u32,
}

impl Store {
    pub(super) fn new(
        programs: &mut Ebpf,
        max_kept: u32,
        max_shards: u32,
    ) -> Result<Self, Refusal> {
        Ok(Self {
            shards: array(programs, "shards")?,
            loaded: (0..MAX_SHARDS).map(|_| None).collect(),
            layout: Shards::new(MAX_SHARDS),
            pages: Shared::of(array(programs, "page_index")?).map_err(Refusal::of)?,
            free_pages: FreeRanges::new(0..MAX_PAGES as u32),
            stored: HashMap::new(),
            file_code: map(programs, "file_code")?,
            added_files: HashMap::new(),
            uses: 0,
            max_kept,
            max_shards,
        })
    }

    /// Notes that a process has asked for these rows.
    pub(super) fn note_use(&mut self, rows: &PlacedRows) {
        self.uses += 1;
        if let Some(stored) = self.stored.get_mut(&rows.page) {
            stored.last_use = self.uses;
        }
    }

    /// Adds a file with these rows to the program's map: processes without a list are unwound with
    /// them. `key` has its device, inode and ctime.
    pub(super) fn add_file(&mut self, code_file: CodeFile, key: FileCodeKey, rows: &PlacedRows) {
        let with_offset = |offset| FileCodeKey { offset, ..key };
        if let Some(added) = self.added_files.get(&code_file) {
            let is_same = |it: &FileCodeKey| *it == with_offset(it.offset);
            if added.page == rows.page && added.keys.iter().all(is_same) {
                return;
            }
        }
        let replaced = self.added_files.remove(&code_file);
        let mut entries = Vec::new();
        match code_file {
            CodeFile::Vdso => entries.extend(rows.segments.bias(0, 0).map(|bias| (VDSO, bias))),
            CodeFile::File { .. } => {
                let offsets = rows.segments.mapped_offsets(page_size() as u64);
                let biases = offsets.map(|it| Some((it, rows.segments.bias(0, it)?)));
                entries.extend(biases.flatten());
            }
        }
        let mut keys = Vec::new();
        for (offset, bias) in entries {
            let code = FileCode {
                base: bias.wrapping_add(rows.start),
                page: rows.page,
                pages: rows.pages,
            };
            let key = with_offset(offset);
            let mut added = self.file_code.insert(key, code, 0);
            if added.is_err() {
                // The map is full, most likely of files that are not used any more.
                self.remove_files(|_| true);
                added = self.file_code.insert(key, code, 0);
            }
            if added.is_ok() {
                keys.push(key);
            }
        }
        let page = rows.page;
        if let Some(replaced) = replaced {
            for key in replaced.keys.iter().filter(|it| !keys.contains(it)) {
                // There may have been no room for it.
                let _ = self.file_code.remove(key);
            }
        }
        self.added_files.insert(code_file, AddedFile { page, keys });
    }

    /// Removes files from the program's map. Returns false if one of them may still be in it.
    fn remove_files(&mut self, is_removed: impl Fn(&AddedFile) -> bool) -> bool {
        let removed = self.added_files.extract_if(|_, file| is_removed(file));
        let mut are_gone = true;
        for key in removed.flat_map(|(_, file)| file.keys) {
            if let Err(error) = self.file_code.remove(&key) {
                are_gone &= matches!(error, MapError::SyscallError(error)
                    if error.io_error.kind() == io::ErrorKind::NotFound);
            }
        }
        are_gone
    }

    /// Returns true if there are no more shards than should be kept.
    pub(super) fn is_trimmed(&self) -> bool {
        self.layout.used() <= self.max_kept
    }

    /// Gives rows back as long as there are more shards than should be kept.
    pub(super) fn trim(&mut self) {
        while !self.is_trimmed() && self.give_back(SHARD_ROWS as usize) {}
    }

    /// Writes the rows of a file. `None` if there is no room for them.
    pub(super) fn place(&mut self, file: &FileRows) -> Option<Arc<PlacedRows>> {
        let rows = file.rows();
        let mut reserved = self.reserve(rows, self.max_kept);
        while reserved.is_none() && self.give_back(rows.len().max(SHARD_ROWS as usize)) {
            reserved = self.reserve(rows, self.max_kept);
        }
        let Reserved { placement, page } =
            reserved.or_else(|| self.reserve(rows, self.max_shards))?;
        for piece in &placement.pieces {
            if self.write(rows, piece).is_err() {
                self.free(&placement.pieces, page, rows.pages() as u32);
                return None;
            }
        }
        let first = member!(PageIndex, first);
        self.pages.write(first, page as usize, &placement.pages);
        let counts = file.counts();
        let end_in_gaps = if counts.damaged + counts.truncated > 0 {
            Some(StackEnd::BadTables)
        } else if counts.dictionary_full > 0 {
            Some(StackEnd::TooManyTables)
        } else {
            None
        };
        let placed = Arc::new(PlacedRows {
            end_in_gaps,
            segments: file.segments().clone(),
            start: rows.first_page() * PAGE_SIZE,
            page,
            pages: rows.pages() as u32,
        });
        let stored = StoredRows {
            placed: placed.clone(),
            pieces: placement.pieces,
            last_use: self.uses,
        };
        self.stored.insert(page, stored);
        Some(placed)
    }

    /// Reserves room for a file, if that takes at most this many shards in all.
    fn reserve(&mut self, rows: &Rows, max_shards: u32) -> Option<Reserved> {
        let (mut layout, mut free_pages) = (self.layout.clone(), self.free_pages.clone());
        let placement = layout.place(rows)?;
        let page = free_pages.take(placement.pages.len() as u32)?;
        if layout.used() > max_shards {
            return None;
        }
        (self.layout, self.free_pages) = (layout, free_pages);
        Some(Reserved { placement, page })
    }

    /// Writes rows of a file to their shard. Creates it if there is none.
    fn write(&mut self, rows: &Rows, piece: &Piece) -> io::Result<()> {
        let place = &mut self.loaded[piece.shard as usize];
        let shard = match place {
            Some(shard) => shard,
            None => {
                let map = create::<Shard>()?;
                let rows = Shared::map(map.as_fd(), 1)?;
                let shards = self.shards.fd().as_fd();
                set_map(shards, piece.shard, Some(map.as_fd()))?;
                place.insert(LoadedShard { map, rows })
            }
        };
        let shard = &mut shard.rows;
        let (at, count) = (piece.at as usize, piece.rows.len());
        let rules = &rows.rules()[piece.rows.clone()];
        let (low, rule) = (member!(Shard, low), member!(Shard, rule));
        shard.write(low, at, &rows.low()[piece.rows.clone()]);
        shard.write(rule, at, rules);
        let filler = piece.filler as usize;
        shard.write(low, at + count, &vec![FILLER; filler]);
        let last = rules.last().copied().unwrap_or_default();
        shard.write(rule, at + count, &vec![last; filler]);
        Ok(())
    }

    /// Gives back at least `count` rows that no list refers to, or all of them, the least recently
    /// used first. Returns true if there were any.
    fn give_back(&mut self, count: usize) -> bool {
        let is_unused = |stored: &StoredRows| Arc::strong_count(&stored.placed) == 1;
        let unused = self.stored.iter().filter(|(_, stored)| is_unused(stored));
        let mut unused: Vec<_> = unused.map(|(page, it)| (it.last_use, *page)).collect();
        unused.sort_unstable();
        let (mut given_back, mut rows) = (Vec::new(), 0);
        for (_, page) in unused {
            if rows >= count {
                break;
            }
            let Some(mut stored) = self.stored.remove(&page) else {
                continue;
            };
            match Arc::try_unwrap(stored.placed) {
                Ok(placed) => {
                    rows += stored.pieces.iter().map(|it| it.rows.len()).sum::<usize>();
                    given_back.push((stored.pieces, placed));
                }
                // A process has just requested them.
                Err(placed) => {
                    stored.placed = placed;
                    self.stored.insert(page, stored);
                }
            }
        }
        let pages: HashSet<u32> = given_back.iter().map(|(_, placed)| placed.page).collect();
        let are_gone = self.remove_files(|file| pages.contains(&file.page));
        if given_back.is_empty() || !are_gone || self.wait_for_programs().is_err() {
            // Memory that a program may still search is not used again.
            return false;
        }
        for (pieces, placed) in given_back {
            self.free(&pieces, placed.page, placed.pages);
        }
        true
    }

    /// Waits until no run of the program has a list that it found before.
    fn wait_for_programs(&self) -> io::Result<()> {
        let loaded = (0..).zip(&self.loaded).find_map(|(number, shard)| {
            let shard = shard.as_ref()?;
            Some((number, shard.map.as_fd()))
        });
        let (number, same) = loaded.ok_or(io::ErrorKind::NotFound)?;
        set_map(self.shards.fd().as_fd(), number, Some(same))
    }

    /// Frees rows, and shards without any.
    fn free(&mut self, pieces: &[Piece], page: u32, pages: u32) {
        self.layout.give_back(pieces);
        self.free_pages.give_back(page..page + pages + 1);
        for piece in pieces {
            let shard = &mut self.loaded[piece.shard as usize];
            if shard.is_some() && self.layout.is_free(piece.shard) {
                // If it stays in the array, the next one takes its place.
                let _ = set_map(self.shards.fd().as_fd(), piece.shard, None);
                *shard = None;
            }
        }
    }
}
