//! Thread pointers from the C library's list of threads: no thread is stopped for them.

use std::collections::HashMap;

use super::control_block::{ThreadLayout, ThreadLists, musl};
use super::scan;
use crate::machine::Machine;
use crate::target::Target;
use crate::{Memory, MemoryError};

/// Bytes around the head of one of glibc's lists in which the other head is searched for, where no symbol
/// leads to it: in a static program next to it, and before glibc 2.34 in libpthread's `.data`, 17 KiB
/// before `.bss` (Debian's 2.31).
const HEADS_APART: u64 = 32 << 10;
/// Places in there that are compared with what they point at.
const MAX_CANDIDATES: usize = 4096;
/// A page is readable as a whole or not at all, see [`crate::Memory`].
const PAGE: u64 = 4096;

/// A thread's thread pointer, and where its control block has the thread's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadPointer {
    /// fs base on x86-64, TPIDR_EL0 on aarch64.
    pub address: u64,
    /// Address of the id, in 32 bits.
    tid_at: u64,
}

impl ThreadPointer {
    /// Whether the control block is that of thread `tid`, as the process's own PID namespace counts.
    /// To be asked each time the thread pointer is used, while the thread sleeps or stands still: a
    /// thread that exits gives its block to the next one.
    pub fn is_of(&self, memory: &dyn Memory, tid: i32) -> bool {
        memory.read_u32(self.tid_at) == Ok(tid as u32)
    }

    /// Address of the id that [`Self::is_of`] compares, for those who read it together with the
    /// memory around it.
    pub fn tid_address(&self) -> u64 {
        self.tid_at
    }
}

/// The thread pointers of a process, by thread id as the process's own PID namespace counts.
#[derive(Debug, Clone, Default)]
pub struct ThreadPointers {
    known: HashMap<i32, ThreadPointer>,
    shape: Option<Shape>,
}

/// What a thread pointer leads to.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// With the distance from the thread pointer down to the `struct pthread`.
    Glibc(ThreadLayout, u64),
    Musl,
}

impl ThreadPointers {
    /// Walks the lists. `leader` is the id of the process's first thread, which a scan searches for where
    /// nothing leads to the lists. `threads` is how many threads there are about: the walk ends some
    /// way above.
    ///
    /// The process runs meanwhile and may change its lists. The walk ends where one does not hold
    /// together, and threads may be missing then. Threads that clone(2) made without the C library
    /// are in no list.
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
                Some((scan::Block::Glibc, block)) => {
                    let layout = lists.layout.unwrap_or(ThreadLayout::X86_64);
                    walk.found.shape = Some(Shape::Glibc(layout, 0));
                    walk.glibc_from(block, &layout);
                }
                Some((scan::Block::Musl, block)) => {
                    walk.found.shape = Some(Shape::Musl);
                    walk.musl(block);
                }
                None => {}
            },
            _ => {}
        }
        walk.found
    }

    /// The thread pointer of a thread, by its id in the process's own PID namespace. What the id
    /// belongs to may have changed: see [`ThreadPointer::is_of`].
    pub fn get(&self, tid: i32) -> Option<ThreadPointer> {
        self.known.get(&tid).copied()
    }

    /// Forgets a thread: its control block is another's by now.
    pub fn forget(&mut self, tid: i32) {
        self.known.remove(&tid);
    }

    /// Adds a thread whose thread pointer a stop told.
    pub fn add(&mut self, tid: i32, pointer: ThreadPointer) {
        self.known.insert(tid, pointer);
    }

    /// How many threads were found.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no thread was found.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What [`ThreadPointer::is_of`] needs of a thread pointer that a stop told; `None` if the control
    /// blocks of this process are not known.
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
    /// Nodes that may still be visited.
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
                // A list that is being changed.
                Ok(node) if node.previous == before => (before, at) = (at, node.next),
                _ => break,
            }
        }
    }

    /// Walks the ring that a control block is in, and the other one, whose head lies near.
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

    /// Whether a `struct pthread` is there, on x86-64: it points at itself twice.
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

    /// Adds the thread whose node is there.
    fn glibc_thread(&mut self, at: u64) -> Result<Node, MemoryError> {
        let Some(Shape::Glibc(layout, below)) = self.found.shape else {
            return self.node(at);
        };
        let block = at.wrapping_sub(layout.list);
        // The id follows the node in every glibc so far: one read tells all.
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
        // aarch64 keeps no pointer to itself in there.
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
