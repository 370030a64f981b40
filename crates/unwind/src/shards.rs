//! Rows of many files in pieces of 1 MiB, as a kernel program searches them.
//!
//! Older kernels limit the value of a map to about 1 MiB, and charge a map when it is made: rows are in
//! shards of that size, which are made on demand. All page indexes are one after another in an array of
//! their own. A page's rows are in one shard, so that a search never changes from one to the next.

use std::ops::Range;

use crate::rows::Rows;

/// Rows of one shard: 1 MiB, as two arrays of 16-bit numbers. A page has at most 65,536.
pub const SHARD_ROWS: u32 = 1 << 18;
/// The low half of the rows that fill up a shard behind its last page: a search finds the same rule with
/// and without them.
pub const FILLER: u16 = u16::MAX;

/// Where rows go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shards {
    /// Rows of all files so far, with what was left free at the end of shards.
    next: u32,
}

/// Where the rows of one file are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The first row of each page, then one past the last row: shard × [`SHARD_ROWS`] + row. A page whose
    /// successor starts in another shard ends with its own shard.
    pub pages: Vec<u32>,
    /// What to write where.
    pub pieces: Vec<Piece>,
}

/// Rows that are in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Number of the shard.
    pub shard: u32,
    /// Number of the first row in it.
    pub at: u32,
    /// Which rows of the file.
    pub rows: Range<usize>,
    /// How many rows behind them repeat the last rule, with [`FILLER`] for an address.
    pub filler: u32,
}

impl Shards {
    /// Places a file's rows behind those placed before. `None` if there are 2³² rows.
    pub fn place(&mut self, rows: &Rows) -> Option<Placement> {
        let mut next = self.next;
        let mut placement = Placement {
            pages: Vec::with_capacity(rows.pages() + 1),
            pieces: Vec::new(),
        };
        let mut piece = Piece::new(next, 0..0);
        for page in 0..rows.pages() {
            let of_page = rows.page(page)?;
            let free = SHARD_ROWS - next % SHARD_ROWS;
            let count = u32::try_from(of_page.len()).ok()?;
            if count > free {
                next = next.checked_add(free)?;
            }
            if next / SHARD_ROWS != piece.shard {
                let start = of_page.start;
                let full = std::mem::replace(&mut piece, Piece::new(next, start..start));
                if !full.rows.is_empty() {
                    let filler = SHARD_ROWS - full.at - full.rows.len() as u32;
                    placement.pieces.push(Piece { filler, ..full });
                }
            }
            placement.pages.push(next);
            piece.rows.end = of_page.end;
            next = next.checked_add(count)?;
        }
        placement.pages.push(next);
        if !piece.rows.is_empty() {
            placement.pieces.push(piece);
        }
        self.next = next;
        Some(placement)
    }

    /// Number of shards that have rows.
    pub fn shards(&self) -> u32 {
        self.next.div_ceil(SHARD_ROWS)
    }
}

impl Piece {
    fn new(next: u32, rows: Range<usize>) -> Self {
        Piece {
            shard: next / SHARD_ROWS,
            at: next % SHARD_ROWS,
            rows,
            filler: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Builder, PAGE_SIZE};
    use crate::rule::{GAP, RuleIndex};

    /// What a kernel program has.
    #[derive(Default)]
    struct Kernel {
        /// Low halves and rules.
        shards: Vec<(Vec<u16>, Vec<RuleIndex>)>,
    }

    impl Kernel {
        fn write(&mut self, rows: &Rows, placement: &Placement) {
            for piece in &placement.pieces {
                while self.shards.len() <= piece.shard as usize {
                    let empty = vec![0; SHARD_ROWS as usize];
                    self.shards.push((empty.clone(), empty));
                }
                let (low, rules) = &mut self.shards[piece.shard as usize];
                let (at, count) = (piece.at as usize, piece.rows.len());
                low[at..at + count].copy_from_slice(&rows.low()[piece.rows.clone()]);
                rules[at..at + count].copy_from_slice(&rows.rules()[piece.rows.clone()]);
                let filler = at + count..at + count + piece.filler as usize;
                low[filler.clone()].fill(FILLER);
                rules[filler].fill(rows.rules()[piece.rows.end - 1]);
            }
        }

        fn search(&self, first_page: u64, pages: &[u32], address: u64) -> RuleIndex {
            let page = (address / PAGE_SIZE - first_page) as usize;
            let (start, end) = (pages[page], pages[page + 1]);
            let shard = start / SHARD_ROWS;
            let end = if end / SHARD_ROWS == shard {
                end % SHARD_ROWS
            } else {
                SHARD_ROWS
            };
            let Some((low, rules)) = self.shards.get(shard as usize) else {
                return GAP;
            };
            let start = (start % SHARD_ROWS) as usize;
            let low = &low[start..end as usize];
            match low.partition_point(|it| *it <= (address % PAGE_SIZE) as u16) {
                0 => GAP,
                behind => rules[start + behind - 1],
            }
        }
    }

    /// Rows of `pages` pages, one each `step` bytes.
    fn rows(start: u64, pages: u64, step: u64) -> Rows {
        let mut builder = Builder::new(start);
        for (index, address) in (start..start + pages * PAGE_SIZE)
            .step_by(step as usize)
            .enumerate()
        {
            builder.push(address, 1 + (index % 5) as RuleIndex);
        }
        builder.push(start + pages * PAGE_SIZE, GAP);
        builder.finish()
    }

    #[test]
    fn rows_in_shards_are_those_of_the_files() {
        let files = [
            rows(0x1_0000, 3, 16),
            // Pages that do not divide a shard.
            rows(0x12_3450, 20, 3),
            Rows::default(),
            // Full pages: four to a shard.
            rows(0, 9, 1),
            rows(0x7_0000, 1, 1000),
        ];
        let (mut shards, mut kernel) = (Shards::default(), Kernel::default());
        let placements = files.each_ref().map(|rows| {
            let placement = shards.place(rows).unwrap();
            kernel.write(rows, &placement);
            placement
        });
        for (rows, placement) in files.iter().zip(&placements) {
            assert_eq!(placement.pages.len(), rows.pages() + 1);
            let start = rows.first_page() * PAGE_SIZE;
            let end = start + rows.pages() as u64 * PAGE_SIZE;
            for address in (start..end).step_by(7) {
                let found = kernel.search(rows.first_page(), &placement.pages, address);
                assert_eq!(found, rows.rule_at(address), "{address:#x}");
            }
        }
        assert_eq!(kernel.shards.len(), shards.shards() as usize);
        let used: usize = files.iter().map(Rows::len).sum();
        assert!(shards.shards() as usize <= used / SHARD_ROWS as usize + 2);
    }

    #[test]
    fn more_rows_than_numbers_are_not_placed() {
        let mut shards = Shards {
            next: u32::MAX - 10,
        };
        let before = shards;
        assert_eq!(shards.place(&rows(0, 1, 1)), None);
        assert_eq!(shards, before);
    }
}
