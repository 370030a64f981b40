//! Memory that is read in whole pages, each once.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::{Memory, MemoryError};

/// Size of a page, in bytes: a larger one of the target consists of several.
const PAGE: usize = 4096;
/// Maximum number of pages: 1 MiB.
const MAX_PAGES: usize = 256;
/// Maximum size of a read through pages, in bytes; larger reads are not cached.
const MAX_READ: usize = 1024;

/// Cached pages of a process's memory. Threads share much data, so that one read replaces many.
#[derive(Debug, Default)]
pub struct Pages {
    /// Positions in `bytes` by address; `None` for pages that could not be read.
    known: HashMap<u64, Option<usize>>,
    /// Never shrinks, because new memory has to be filled with zeros.
    bytes: Vec<u8>,
    used: usize,
}

impl Pages {
    /// Removes all pages.
    pub fn clear(&mut self) {
        self.known.clear();
        self.used = 0;
    }

    /// Returns the page at this multiple of [`PAGE`], if it is readable and the cache not full.
    fn page(&mut self, memory: &dyn Memory, address: u64) -> Option<&[u8]> {
        let known = match self.known.get(&address) {
            Some(known) => *known,
            None if self.known.len() >= MAX_PAGES => None,
            None => {
                let (start, end) = (self.used, self.used + PAGE);
                if self.bytes.len() < end {
                    // Address space for all pages avoids moves; unused pages take no memory.
                    let missing = MAX_PAGES * PAGE - self.bytes.len();
                    self.bytes.reserve_exact(missing);
                    self.bytes.resize(end, 0);
                }
                let read = memory.read(address, &mut self.bytes[start..end]);
                let position = read.is_ok().then_some(start);
                if position.is_some() {
                    self.used = end;
                }
                self.known.insert(address, position);
                position
            }
        };
        self.bytes.get(known?..)?.get(..PAGE)
    }

    /// Copies bytes from their pages. False if one of these is not available.
    fn copy(&mut self, memory: &dyn Memory, address: u64, buffer: &mut [u8]) -> bool {
        let (mut at, mut rest) = (address, buffer);
        while !rest.is_empty() {
            let offset = (at % PAGE as u64) as usize;
            let (now, later) = rest.split_at_mut(rest.len().min(PAGE - offset));
            let Some(page) = self.page(memory, at - offset as u64) else {
                return false;
            };
            now.copy_from_slice(&page[offset..offset + now.len()]);
            // Wraps only at the end of the address space, when `rest` is empty.
            at = at.wrapping_add(now.len() as u64);
            rest = later;
        }
        true
    }
}

/// Memory that is read through [`Pages`].
#[derive(Debug)]
pub struct PagedMemory<'m, M> {
    memory: &'m M,
    pages: RefCell<&'m mut Pages>,
}

impl<'m, M: Memory> PagedMemory<'m, M> {
    /// Reads `memory` through `pages`.
    pub fn new(memory: &'m M, pages: &'m mut Pages) -> Self {
        let pages = RefCell::new(pages);
        Self { memory, pages }
    }
}

impl<M: Memory> Memory for PagedMemory<'_, M> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let mut pages = self.pages.borrow_mut();
        if buffer.len() <= MAX_READ && pages.copy(self.memory, address, buffer) {
            return Ok(());
        }
        self.memory.read(address, buffer)
    }

    fn forget(&self) {
        self.pages.borrow_mut().clear();
        self.memory.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::memory::{CountedMemory, Image};

    #[test]
    fn each_page_is_read_once() {
        const START: u64 = 0x70_0000;
        let mut image = Image::new();
        let bytes: Vec<u8> = (0..2 * PAGE + 100).map(|at| (at / 16) as u8).collect();
        image.map(START, bytes.clone());
        let counted = CountedMemory::new(image);
        let mut pages = Pages::default();
        let memory = PagedMemory::new(&counted, &mut pages);
        let check = |at: usize, size: usize, reads: usize| {
            let mut buffer = vec![0; size];
            memory.read(START + at as u64, &mut buffer).unwrap();
            assert_eq!(buffer, bytes[at..at + size], "{at}");
            assert_eq!(counted.take_reads(), reads, "{at}");
        };
        check(8, 8, 1);
        check(4088, 8, 0);
        check(4090, 16, 1);
        check(8000, MAX_READ.min(192), 0);
        // Larger than what pages are read for.
        check(0, MAX_READ + 1, 1);
        // The third page is not readable as a whole, which is tried once.
        check(2 * PAGE, 8, 2);
        check(2 * PAGE + 8, 8, 1);
        check(2 * PAGE - 8, 16, 1);
        memory.forget();
        check(8, 8, 1);
        for address in [START + bytes.len() as u64, u64::MAX - 3, 0] {
            assert!(memory.read(address, &mut [0; 8]).is_err());
        }
    }

    #[test]
    fn what_the_memory_below_keeps_is_forgotten_too() {
        /// Memory that keeps its first state until `forget` is called.
        struct Keeping(Cell<u8>);
        impl Memory for Keeping {
            fn read(&self, _: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
                buffer.fill(self.0.get());
                Ok(())
            }
            fn forget(&self) {
                self.0.set(2);
            }
        }
        let (keeping, mut pages) = (Keeping(Cell::new(1)), Pages::default());
        let memory = PagedMemory::new(&keeping, &mut pages);
        assert_eq!(memory.read_u8(8), Ok(1));
        memory.forget();
        assert_eq!(memory.read_u8(8), Ok(2));
    }

    #[test]
    fn there_are_not_too_many_of_them() {
        let mut image = Image::new();
        image.map(0x10_0000, vec![7; (MAX_PAGES + 2) * PAGE]);
        let mut pages = Pages::default();
        let memory = PagedMemory::new(&image, &mut pages);
        for page in 0..MAX_PAGES as u64 + 2 {
            let address = 0x10_0000 + page * PAGE as u64;
            assert_eq!(memory.read_u8(address), Ok(7));
        }
        assert_eq!(pages.bytes.len(), MAX_PAGES * PAGE);
    }
}
