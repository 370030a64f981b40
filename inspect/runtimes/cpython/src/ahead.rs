//! Reads memory in large pieces: thread states are close to each other, and each read is a system
//! call.

use std::cell::RefCell;

use otelctx_reader::remote::{Memory, MemoryError};

/// Maximum and minimum size of a piece, in bytes: powers of two, of which the smaller one is a page.
/// Pieces are aligned to their size.
const MAX_PIECE: u64 = 64 << 10;
const MIN_PIECE: u64 = 4 << 10;
/// Maximum number of pieces that are kept, the last ones that were read.
const MAX_PIECES: usize = 16;

/// Memory with cached pieces.
pub(crate) struct Ahead<'m> {
    memory: &'m dyn Memory,
    /// Addresses and contents.
    pieces: RefCell<Vec<(u64, Vec<u8>)>>,
}

impl<'m> Ahead<'m> {
    pub(crate) fn new(memory: &'m dyn Memory) -> Self {
        let pieces = RefCell::default();
        Self { memory, pieces }
    }

    /// Reads the largest piece around an address that can be read, if there is one.
    fn piece(&self, address: u64) -> Option<(u64, Vec<u8>)> {
        let sizes = std::iter::successors(Some(MAX_PIECE), |size| Some(size / 2));
        let mut sizes = sizes.take_while(|size| *size >= MIN_PIECE);
        sizes.find_map(|size| {
            let start = address & !(size - 1);
            let bytes = self.memory.read_vec(start, size, MAX_PIECE as usize);
            Some((start, bytes.ok()?))
        })
    }
}

impl Memory for Ahead<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let mut pieces = self.pieces.borrow_mut();
        let find = |pieces: &[(u64, Vec<u8>)]| {
            let within = |(start, bytes): &(u64, Vec<u8>)| {
                let at = usize::try_from(address.checked_sub(*start)?).ok()?;
                bytes.get(at..)?.get(..buffer.len()).map(<[u8]>::to_vec)
            };
            pieces.iter().find_map(within)
        };
        let mut found = find(&pieces);
        if found.is_none()
            && let Some(piece) = self.piece(address)
        {
            if pieces.len() == MAX_PIECES {
                pieces.remove(0);
            }
            pieces.push(piece);
            found = find(&pieces);
        }
        let Some(bytes) = found else {
            // The range is in two pieces, or is not readable.
            return self.memory.read(address, buffer);
        };
        buffer.copy_from_slice(&bytes);
        Ok(())
    }

    fn forget(&self) {
        self.pieces.borrow_mut().clear();
        self.memory.forget();
    }
}

#[cfg(test)]
mod tests {
    use otelctx_reader::remote::memory::{CountedMemory, Image};

    use super::*;

    #[test]
    fn neighbours_are_read_at_once() {
        const START: u64 = 0x70_0000;
        let mut image = Image::new();
        // Three pages, of which two are part of a larger piece that is not readable as a whole.
        let bytes: Vec<u8> = (0..3 * 4096_u32).map(|at| (at / 16) as u8).collect();
        image.map(START, bytes.clone());
        let memory = CountedMemory::new(image);
        let ahead = Ahead::new(&memory);
        let read = |at: u64| {
            let mut word = [0; 8];
            ahead.read(START + at, &mut word).map(|()| word)
        };
        let expected = |at: usize| Ok(bytes[at..at + 8].try_into().unwrap());
        for at in (0..8192).step_by(8) {
            assert_eq!(read(at), expected(at as usize));
        }
        // 64, 32 and 16 KiB were tried first.
        assert_eq!(memory.take_reads(), 4);
        // Across the border of two pieces, in a piece of its own, and beyond.
        for at in [8188, 8192, 12280] {
            assert_eq!(read(at), expected(at as usize));
        }
        assert!(read(12284).is_err());
        assert!(read(u64::MAX - START).is_err());
    }
}
