//! Finds thread pointers in the C library's list of threads, without stopping threads.

use std::collections::HashMap;

use super::lists::ThreadLists;
use super::scan;
use crate::libc::{CLibrary, ThreadLayout, musl};
use crate::machine::Machine;
use crate::target::Target;
use crate::{Memory, MemoryError};

/// Range around the head of one of glibc's lists, in bytes, in which the other head is searched
/// without a symbol. In libpthread (glibc 2.31 of Debian), they are 17 KiB apart.
const HEADS_APART: u64 = 32 << 10;
/// Maximum number of candidates in that range.
const MAX_CANDIDATES: usize = 4096;
/// Unit in which memory is readable or not, see [`crate::Memory`].
const PAGE: u64 = 4096;

/// A thread's thread pointer, and the location of the thread's ID in its control block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadPointer {
    /// fs base on x86-64, TPIDR_EL0 on aarch64.
    pub address: u64,
    /// Address of the ID, which has 32 bits.
    tid_at: u64,
}

impl ThreadPointer {
    /// A thread pointer, and the address of the thread's ID in the process's own PID namespace, which has 32 bits.
    pub const fn new(address: u64, tid_at: u64) -> Self {
        Self { address, tid_at }
    }

    /// Returns whether the control block is that of `tid`, in the process's own PID namespace.
    /// Check this at each use: a thread that exits leaves its block to the next one.
    pub fn is_of(&self, memory: &dyn Memory, tid: i32) -> bool {
        memory.read_u32(self.tid_at) == Ok(tid as u32)
    }
}

/// The thread pointers of a process, by thread IDs in the process's own PID namespace.
#[derive(Debug, Clone, Default)]
pub struct ThreadPointers {
    known: HashMap<i32, ThreadPointer>,
    shape: Option<Shape>,
}

/// The kind of control block at a thread pointer.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// glibc's, with the distance from the thread pointer down to the `struct pthread`.
    Glibc(ThreadLayout, u64),
    Musl,
}

impl ThreadPointers {
    /// Walks the lists. `leader` is the ID of the process's first thread, which is searched for if
    /// no symbol leads to the lists. `threads` is the approximate number of threads: the walk ends
    /// somewhat above it.
    ///
    /// Threads may be missing if the process changes a list during the walk. Those created with
    /// clone(2) without the C library are in no list.
    pub fn find(lists: &ThreadLists, target: &dyn Target, leader: i32, threads: usize) -> Self {
        let mut walk = Walk {
            memory: target,
            found: Self::default(),
            left: threads.saturating_mul(2).saturating_add(64),
        };
        let is_x86_64 = lists.machine == Some(Machine::X86_64);
        match lists.layout {
            Some(layout) if !lists.heads.is_empty() => {
                let below = if is_x86_64 { 0 } else { layout.size };
                walk.found.shape = Some(Shape::Glibc(layout, below));
                for head in &lists.heads {
                    walk.glibc(*head);
                }
            }
            _ if is_x86_64 => match scan::find(lists, target, leader as u32) {
                Some((CLibrary::Glibc, block)) => {
                    let layout = lists.layout.unwrap_or(ThreadLayout::X86_64);
                    walk.found.shape = Some(Shape::Glibc(layout, 0));
                    walk.glibc_from(block, &layout);
                }
                Some((CLibrary::Musl, block)) => {
                    walk.found.shape = Some(Shape::Musl);
                    walk.musl(block);
                }
                None => {}
            },
            _ => {}
        }
        walk.found
    }

    /// The thread pointer of a thread, by its ID in the process's own PID namespace. The ID may
    /// belong to another thread by now: see [`ThreadPointer::is_of`].
    pub fn get(&self, tid: i32) -> Option<ThreadPointer> {
        self.known.get(&tid).copied()
    }

    /// Removes a thread: its control block now belongs to another thread.
    pub fn forget(&mut self, tid: i32) {
        self.known.remove(&tid);
    }

    /// Adds a thread whose thread pointer was read in a stop.
    pub fn add(&mut self, tid: i32, pointer: ThreadPointer) {
        self.known.insert(tid, pointer);
    }

    /// Number of threads found.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns whether no thread was found.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The [`ThreadPointer`] for an address that was read in a stop, if control blocks are known.
    pub fn at(&self, address: u64) -> Option<ThreadPointer> {
        let tid_at = match self.shape? {
            Shape::Glibc(layout, below) => address.wrapping_sub(below).wrapping_add(layout.tid),
            Shape::Musl => address.wrapping_add(musl::TID),
        };
        Some(ThreadPointer { address, tid_at })
    }
}

struct Walk<'m> {
    memory: &'m dyn Memory,
    found: ThreadPointers,
    /// Number of nodes that may still be visited.
    left: usize,
}

/// A node of glibc's lists.
#[derive(Debug, Clone, Copy)]
struct Node {
    next: u64,
    previous: u64,
}

impl Walk<'_> {
    fn add(&mut self, address: u64, tid: u32) {
        if let (Some(pointer), Ok(tid @ 1..)) = (self.found.at(address), i32::try_from(tid)) {
            self.found.known.insert(tid, pointer);
        }
    }

    /// Walks a ring from its head, which is in no control block.
    fn glibc(&mut self, head: u64) {
        let Ok(first) = self.node(head) else {
            return;
        };
        let (mut before, mut at) = (head, first.next);
        while at != head && self.left > 0 {
            self.left -= 1;
            match self.glibc_thread(at) {
                Ok(node) if node.previous == before => (before, at) = (at, node.next),
                // The list is being changed.
                _ => break,
            }
        }
    }

    /// Walks the ring that contains a control block, and the other ring, whose head is nearby.
    fn glibc_from(&mut self, block: u64, layout: &ThreadLayout) {
        let start = block.wrapping_add(layout.list);
        let mut at = start;
        let mut head = None;
        while self.left > 0 {
            self.left -= 1;
            if self.is_block(at.wrapping_sub(layout.list)) {
                let _ = self.glibc_thread(at);
            } else {
                head = Some(at);
            }
            match self.node(at) {
                Ok(node) if node.next != start => at = node.next,
                _ => break,
            }
        }
        let Some(head) = head else { return };
        let mut candidates = MAX_CANDIDATES;
        let start = head.saturating_sub(HEADS_APART) / PAGE * PAGE;
        for page in (start..head.saturating_add(HEADS_APART)).step_by(PAGE as usize) {
            // With the first word of the next page, if there is one.
            let mut bytes = [0; PAGE as usize + 8];
            let read = self.memory.read(page, &mut bytes);
            if read.is_err() && self.memory.read(page, &mut bytes[..PAGE as usize]).is_err() {
                continue;
            }
            for (other, node) in (page..).step_by(8).zip(bytes.windows(16).step_by(8)) {
                let [next, previous] = halves(node.try_into().expect("16 bytes"));
                let may_be_head = [next, previous].iter().all(|it| *it > PAGE && it % 8 == 0);
                if !may_be_head || other == head || candidates == 0 {
                    continue;
                }
                candidates -= 1;
                let back = self.node(next).is_ok_and(|next| next.previous == other);
                if back && self.is_block(next.wrapping_sub(layout.list)) {
                    self.glibc(other);
                }
            }
        }
    }

    /// Returns whether there is a `struct pthread`, on x86-64: it points to itself twice.
    fn is_block(&self, address: u64) -> bool {
        let is_own = |offset| self.memory.read_u64(address.wrapping_add(offset)) == Ok(address);
        is_own(0) && is_own(16)
    }

    fn node(&self, at: u64) -> Result<Node, MemoryError> {
        let mut words = [0; 16];
        self.memory.read(at, &mut words)?;
        let [next, previous] = halves(words);
        Ok(Node { next, previous })
    }

    /// Adds the thread whose node is at this address.
    fn glibc_thread(&mut self, at: u64) -> Result<Node, MemoryError> {
        let Some(Shape::Glibc(layout, below)) = self.found.shape else {
            return self.node(at);
        };
        let block = at.wrapping_sub(layout.list);
        // The ID follows the node in every glibc so far: one read is enough.
        let (node, tid) = if layout.tid == layout.list + 16 {
            let mut bytes = [0; 20];
            self.memory.read(at, &mut bytes)?;
            let (words, tid) = bytes.split_at(16);
            let [next, previous] = halves(words.try_into().expect("16 bytes"));
            let tid = u32::from_ne_bytes(tid.try_into().expect("4 bytes"));
            (Node { next, previous }, tid)
        } else {
            let tid = self.memory.read_u32(block.wrapping_add(layout.tid))?;
            (self.node(at)?, tid)
        };
        // On aarch64, there is no pointer to itself in the block.
        let is_own = below != 0 || self.memory.read_u64(block.wrapping_add(16))? == block;
        if is_own {
            self.add(block.wrapping_add(below), tid);
        }
        Ok(node)
    }

    fn musl(&mut self, start: u64) {
        let mut at = start;
        while self.left > 0 {
            self.left -= 1;
            let Some(block) = musl::Block::read(self.memory, at) else {
                break;
            };
            self.add(at, block.tid);
            let before = at;
            at = block.next;
            let is_linked =
                musl::Block::read(self.memory, at).is_some_and(|block| block.previous == before);
            if at == start || !is_linked {
                break;
            }
        }
    }
}

fn halves(bytes: [u8; 16]) -> [u64; 2] {
    let (first, second) = bytes.split_at(8);
    [first, second].map(|half| u64::from_ne_bytes(half.try_into().expect("8 bytes")))
}

#[cfg(test)]
mod tests;
