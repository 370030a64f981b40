//! Rows of many files in pieces of 1 MiB, as an eBPF program searches them.
//!
//! Older kernels limit the value of a map to about 1 MiB, and charge a map when it is made: rows
//! are in shards of that size, made on demand. The page indexes of all files are in an array of
//! their own. A page's rows are in one shard.

use std::ops::Range;

use crate::ranges::FreeRanges;
use crate::rows::Rows;

/// Rows of one shard: 1 MiB, as two arrays of 16-bit numbers. A page has at most 65,536.
pub const SHARD_ROWS: u32 = 1 << 18;
/// The low half of the rows that fill up a shard behind its last page: they do not change a search.
pub const FILLER: u16 = u16::MAX;

/// The free rows of all shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    free: Vec<FreeRanges>,
}

/// The location of the rows of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The first row of each page, then one past the last row: shard × [`SHARD_ROWS`] + row. A page
    /// whose successor starts in another shard ends with its own shard.
    pub pages: Vec<u32>,
    /// The parts in each shard.
    pub pieces: Vec<Piece>,
}

/// Rows that are in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Number of the shard.
    pub shard: u32,
    /// Number of the first row in it.
    pub at: u32,
    /// The rows of the file.
    pub rows: Range<usize>,
    /// The number of rows behind them that repeat the last rule, with [`FILLER`] for an address.
    pub filler: u32,
}

impl Shards {
    /// Creates `max` free shards, with less than 2³² rows in all.
    pub fn new(max: u32) -> Self {
        let max = max.min(u32::MAX / SHARD_ROWS);
        Self {
            free: vec![FreeRanges::new(0..SHARD_ROWS); max as usize],
        }
    }

    /// Places a file's rows, if possible in shards that have others. `None` if there is no room.
    pub fn place(&mut self, rows: &Rows) -> Option<Placement> {
        let mut after = self.clone();
        let mut pages = vec![0; rows.pages() + 1];
        let mut pieces: Vec<Piece> = Vec::new();
        let mut page = 0;
        while page < rows.pages() && rows.page(page)?.start < rows.len() {
            let former = pieces.last().map(|piece| piece.shard);
            let (piece, next) = after.place_pages(rows, page, former)?;
            let first = piece.shard * SHARD_ROWS + piece.at;
            let place = |row: usize| first + (row - piece.rows.start) as u32;
            for (first_row, page) in pages[page..next].iter_mut().zip(page..) {
                *first_row = place(rows.page(page)?.start);
            }
            pages[rows.pages()] = place(piece.rows.end);
            page = next;
            pieces.push(piece);
        }
        // A page without rows ends where it starts, even if the next one is in another shard.
        for page in (0..rows.pages()).rev() {
            if rows.page(page)?.is_empty() {
                pages[page] = pages[page + 1];
            }
        }
        *self = after;
        Some(Placement { pages, pieces })
    }

    /// Places pages from `page` on in one shard other than `former`; also returns the next page.
    fn place_pages(
        &mut self,
        rows: &Rows,
        page: usize,
        former: Option<u32>,
    ) -> Option<(Piece, usize)> {
        let start = rows.page(page)?.start;
        let rest = u32::try_from(rows.len() - start).ok()?;
        let others = (0..self.free.len() as u32).filter(|shard| Some(*shard) != former);
        let (free, used): (Vec<u32>, Vec<u32>) = others.partition(|shard| self.is_free(*shard));
        for &shard in &used {
            if let Some(at) = self.free[shard as usize].take(rest) {
                let piece = Piece::new(shard, at, start..rows.len());
                return Some((piece, rows.pages()));
            }
        }
        // The end of a shard, or all of it.
        for shard in used.into_iter().chain(free) {
            let ranges = &mut self.free[shard as usize];
            let Some(room) = ranges.last(SHARD_ROWS) else {
                continue;
            };
            let row_behind = |page: usize| rows.page(page).map_or(usize::MAX, |it| it.end);
            let fits = |page: &usize| row_behind(*page) - start <= room.len();
            let next = page + (page..rows.pages()).take_while(fits).count();
            if next == rows.pages() {
                let at = ranges.take(rest)?;
                return Some((Piece::new(shard, at, start..rows.len()), next));
            }
            let end = rows.page(next)?.start;
            if end > start {
                ranges.take_last(SHARD_ROWS);
                let mut piece = Piece::new(shard, room.start, start..end);
                piece.filler = (room.len() - piece.rows.len()) as u32;
                return Some((piece, next));
            }
        }
        None
    }

    /// Frees the rows of a file.
    pub fn give_back(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let count = piece.rows.len() as u32 + piece.filler;
            self.free[piece.shard as usize].give_back(piece.at..piece.at + count);
        }
    }

    /// Returns whether all of a shard is free.
    pub fn is_free(&self, shard: u32) -> bool {
        self.free[shard as usize].is(&(0..SHARD_ROWS))
    }

    /// Number of shards that have rows.
    pub fn used(&self) -> u32 {
        let shards = 0..self.free.len() as u32;
        shards.filter(|shard| !self.is_free(*shard)).count() as u32
    }
}

impl Piece {
    fn new(shard: u32, at: u32, rows: Range<usize>) -> Self {
        let filler = 0;
        Piece {
            shard,
            at,
            rows,
            filler,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Builder, PAGE_SIZE};
    use crate::rule::{GAP, RuleIndex};

    /// The maps of a kernel program.
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

    /// Checks that the kernel program finds the rows of a file.
    fn check(kernel: &Kernel, rows: &Rows, placement: &Placement) {
        assert_eq!(placement.pages.len(), rows.pages() + 1);
        let start = rows.first_page() * PAGE_SIZE;
        let end = start + rows.pages() as u64 * PAGE_SIZE;
        for address in (start..end).step_by(7) {
            let found = kernel.search(rows.first_page(), &placement.pages, address);
            assert_eq!(found, rows.rule_at(address), "{address:#x}");
        }
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
        let (mut shards, mut kernel) = (Shards::new(10), Kernel::default());
        let placements = files.each_ref().map(|rows| {
            let placement = shards.place(rows).unwrap();
            kernel.write(rows, &placement);
            placement
        });
        for (rows, placement) in files.iter().zip(&placements) {
            check(&kernel, rows, placement);
        }
        assert_eq!(kernel.shards.len(), shards.used() as usize);
        let used: usize = files.iter().map(Rows::len).sum();
        assert!(shards.used() as usize <= used / SHARD_ROWS as usize + 2);
    }

    #[test]
    fn files_that_come_and_go_do_not_touch_the_rows_of_others() {
        const MAX: u32 = 3;
        // A hole without rows, in a file that is larger than a shard, and pages of all sizes.
        let mut with_hole = Builder::new(0);
        for address in (0..7 * PAGE_SIZE).filter(|at| at / PAGE_SIZE != 3) {
            with_hole.push(address, 1 + (address % 3) as RuleIndex);
            if address % PAGE_SIZE == PAGE_SIZE - 1 {
                with_hole.push(address + 1, GAP);
            }
        }
        let mut files = vec![with_hole.finish()];
        files.extend((1..30).map(|number| rows(number << 13, number % 9 + 1, 1 + number * 7 % 40)));
        let (mut shards, mut kernel) = (Shards::new(MAX), Kernel::default());
        let mut placed: Vec<(usize, Placement)> = Vec::new();
        let (mut number, mut refused) = (1_usize, 0);
        for turn in 0..300 {
            // Numbers in no order (Knuth, multiplicative hashing).
            number = number.wrapping_mul(2_654_435_761) + 1;
            let file = (number >> 8) % files.len();
            match shards.place(&files[file]) {
                Some(placement) => {
                    kernel.write(&files[file], &placement);
                    check(&kernel, &files[file], &placement);
                    placed.push((file, placement));
                }
                None => refused += 1,
            }
            if placed.len() > 12 || refused > turn / 3 && !placed.is_empty() {
                let (_, placement) = placed.swap_remove((number >> 16) % placed.len());
                shards.give_back(&placement.pieces);
            }
            let (file, placement) = &placed[turn % placed.len().max(1)];
            check(&kernel, &files[*file], placement);
        }
        assert!(refused > 0 && kernel.shards.len() == MAX as usize);
        for (file, placement) in &placed {
            check(&kernel, &files[*file], placement);
            shards.give_back(&placement.pieces);
        }
        assert_eq!(shards, Shards::new(MAX));
    }

    #[test]
    fn rows_without_room_are_not_placed() {
        let mut shards = Shards::new(2);
        assert!(shards.place(&rows(0, 5, 1)).is_some());
        let before = shards.clone();
        assert_eq!(shards.place(&rows(0, 4, 1)), None);
        assert_eq!(shards, before);
        assert!(shards.place(&rows(0, 3, 1)).is_some());
        assert_eq!(shards.used(), 2);
    }
}
