//! Finds a control block by its pointers to itself, if no symbol leads to it.

use std::ops::ControlFlow;

use super::lists::ThreadLists;
use crate::Memory;
use crate::libc::{CLibrary, ThreadLayout, musl};
use crate::target::Target;

/// Maximum number of bytes scanned of the C library's or a static program's data, and the heap.
const MAX_SCANNED: u64 = 16 << 20;
/// Maximum number of bytes scanned of one mapping.
const MAX_OF_MAPPING: u64 = 1 << 20;
/// Maximum number of mappings visited.
const MAX_MAPPINGS: usize = 4096;
/// Number of bytes read at a time.
const CHUNK: usize = 64 << 10;
/// Unit in which a chunk is read if it cannot be read as a whole.
const PAGE: usize = 4096;

/// A control block's C library, and its address.
type Block = (CLibrary, u64);

/// Scans writable memory for the control block of the thread with this ID, on x86-64: the first
/// word of the block is its own address.
pub(super) fn find(lists: &ThreadLists, target: &dyn Target, tid: u32) -> Option<Block> {
    let mut scan = Scan {
        library: lists.library,
        memory: target,
        tid,
        left: MAX_SCANNED,
        buffer: vec![0; CHUNK],
        abandoned: None,
    };
    if let (Some((start, end)), Some(CLibrary::Musl)) = (lists.library_range, lists.library)
        && let Some(found) = scan.range(start, end)
    {
        return Some(found);
    }
    let (mut found, mut visited) = (None, 0);
    let walked = target.mappings(&mut |mapping| {
        visited += 1;
        let permissions = mapping.permissions;
        if permissions.read && permissions.write && !permissions.shared {
            found = scan.range(mapping.start, mapping.end);
        }
        if found.is_some() || scan.left == 0 || visited >= MAX_MAPPINGS {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    walked.ok().and(found.or(scan.abandoned))
}

struct Scan<'m> {
    library: Option<CLibrary>,
    memory: &'m dyn Memory,
    tid: u32,
    left: u64,
    buffer: Vec<u8>,
    /// A block without thread-local variables: musl abandons its first one if they do not fit.
    abandoned: Option<Block>,
}

impl Scan<'_> {
    fn range(&mut self, start: u64, end: u64) -> Option<Block> {
        let end = end.min(start.saturating_add(MAX_OF_MAPPING));
        let mut at = start;
        while at < end && self.left > 0 {
            let size = (end - at).min(CHUNK as u64) as usize;
            self.left = self.left.saturating_sub(size as u64);
            let found = match self.memory.read(at, &mut self.buffer[..size]) {
                Ok(()) => self.words(at, size),
                Err(_) => (0..size).step_by(PAGE).find_map(|skip| {
                    let (at, size) = (at + skip as u64, PAGE.min(size - skip));
                    self.memory.read(at, &mut self.buffer[..size]).ok()?;
                    self.words(at, size)
                }),
            };
            if found.is_some() {
                return found;
            }
            at += size as u64;
        }
        None
    }

    /// Searches for a block in the memory read from `start`.
    fn words(&mut self, start: u64, size: usize) -> Option<Block> {
        let words = self.buffer[..size].chunks_exact(8);
        let words = words.zip((start..).step_by(8));
        let blocks = words
            .filter(|(word, address)| **word == address.to_ne_bytes())
            .filter_map(|(_, address)| Some((self.library_of(address)?, address)));
        let mut abandoned = self.abandoned;
        for (library, address) in blocks {
            if library == CLibrary::Glibc || musl::has_variables(self.memory, address) {
                return Some((library, address));
            }
            abandoned = abandoned.or(Some((library, address)));
        }
        self.abandoned = abandoned;
        None
    }

    /// The C library whose control block is at this address, if one is.
    fn library_of(&self, address: u64) -> Option<CLibrary> {
        let is_glibc = || {
            let at = |offset| address.wrapping_add(offset);
            self.memory.read_u64(at(16)) == Ok(address)
                && self.memory.read_u32(at(ThreadLayout::X86_64.tid)) == Ok(self.tid)
        };
        let is_musl = || {
            let block = musl::Block::read(self.memory, address)?;
            let next = musl::Block::read(self.memory, block.next)?;
            (block.tid == self.tid && next.previous == address).then_some(())
        };
        if self.library != Some(CLibrary::Musl) && is_glibc() {
            return Some(CLibrary::Glibc);
        }
        let may_be_musl = self.library != Some(CLibrary::Glibc);
        (may_be_musl && is_musl().is_some()).then_some(CLibrary::Musl)
    }
}
