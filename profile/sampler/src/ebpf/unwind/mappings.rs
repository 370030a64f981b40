//! The executable mappings of a process, as many as the program can have of one.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use otelctx_reader::remote::mappings::ExecutableMapping;

use super::abi::{AWAITS_ROWS, Code, MAX_MAPPINGS};
use super::code_file::CodeFile;
use super::store::PlacedRows;

/// Maximum number of ranges that runtimes walk. The program searches twice as many entries as there may be mappings.
const MAX_WALKED: usize = 64;

/// One mapping, or neighbours that count as one.
#[derive(Clone)]
pub(super) struct Mapping {
    pub(super) range: (u64, u64),
    pub(super) offset: u64,
    pub(super) code_file: Option<CodeFile>,
    pub(super) rows: Option<Arc<PlacedRows>>,
    /// It is not known yet which rows its file has.
    pub(super) awaits_rows: bool,
    /// Time when it was read first, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) found: u64,
    /// Memory of just-in-time compilers: without a file, or in a memfd, as of .NET.
    is_memory: bool,
    /// The code was moved to memory.
    pub(super) is_moved: bool,
    /// The mapping is joined of several pieces of memory, in any order.
    is_joined: bool,
}

impl Mapping {
    /// Returns true if both have the same part of the same file at the same addresses.
    pub(super) fn is_same_code(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.range, it.offset, it.code_file);
        key(self) == key(other)
    }

    /// Returns the mapping's entry in the program's list.
    pub(super) fn code(&self) -> Code {
        let (start, end) = self.range;
        let awaits_rows = self.awaits_rows && !self.is_joined;
        let without_rows = Code {
            start,
            end,
            page: if awaits_rows { AWAITS_ROWS } else { 0 },
            ..Code::default()
        };
        let is_vdso = self.code_file == Some(CodeFile::Vdso);
        let offset = if is_vdso { 0 } else { self.offset };
        let rows = self.rows.as_ref().filter(|_| !self.is_joined);
        let biased = rows.and_then(|rows| Some((rows, rows.segments.bias(start, offset)?)));
        biased.map_or(without_rows, |(rows, bias)| Code {
            base: bias.wrapping_add(rows.start),
            page: rows.page,
            pages: rows.pages,
            ..without_rows
        })
    }

    /// Merges with the mapping behind it, if that continues the file or is the same kind of memory.
    /// Returns true if so.
    fn merges(&mut self, next: &Self) -> bool {
        if self.range.1 != next.range.0 || self.code_file != next.code_file {
            return false;
        }
        let size = self.range.1 - self.range.0;
        let continues = !self.is_joined && self.offset.checked_add(size) == Some(next.offset);
        // A change of protection can split a library's code, which stays one.
        if !(self.code_file.is_some() && continues) {
            if !next.is_memory {
                return false;
            }
            self.is_joined = true;
        }
        self.range.1 = next.range.1;
        true
    }
}

/// Adds the addresses of code that runtimes walk to the entries of a process's mappings, which are in address order. Entries of
/// mappings keep the parts beside them.
pub(super) fn with_walked(mappings: Vec<Code>, walked: &[Range<u64>]) -> Vec<Code> {
    if walked.is_empty() {
        return mappings;
    }
    // The program compares addresses below 2^63 alone, which the process chooses.
    let is_usable = |range: &&Range<u64>| range.start < range.end && range.end >> 63 == 0;
    let walked: Vec<_> = walked.iter().filter(is_usable).take(MAX_WALKED).collect();
    let mut list = Vec::with_capacity(mappings.len() + 2 * walked.len());
    for code in mappings {
        let mut start = code.start;
        let overlapping = walked
            .iter()
            .filter(|it| it.start < code.end && code.start < it.end);
        for range in overlapping {
            if start < range.start {
                let end = range.start;
                list.push(Code { start, end, ..code });
            }
            start = start.max(range.end);
        }
        if start < code.end {
            list.push(Code { start, ..code });
        }
    }
    list.extend(walked.iter().map(|range| Code {
        start: range.start,
        end: range.end,
        page: AWAITS_ROWS,
        ..Code::default()
    }));
    list.sort_unstable_by_key(|code| code.start);
    list
}

/// The kinds of mappings that were dropped, because the program has no room for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) any: bool,
    pub(super) files: bool,
}

/// Gathers the mappings of a process. If there are too many, memory is dropped first: its code has
/// no unwind tables, whereas without a library's all stacks through it are cut.
#[derive(Default)]
pub(super) struct MappingList {
    files: Vec<Mapping>,
    memory: Vec<Mapping>,
    dropped: Dropped,
}

impl MappingList {
    /// Adds the mapping with the next higher address. `rows` returns the rows of its file.
    pub(super) fn add(
        &mut self,
        found: &ExecutableMapping<'_>,
        code_file: Option<CodeFile>,
        rows: impl FnOnce(CodeFile) -> Option<Arc<PlacedRows>>,
    ) -> ControlFlow<()> {
        let mapping = &found.mapping;
        let is_memory = code_file.is_none() || mapping.is_memory();
        let mut new = Mapping {
            range: (mapping.start, mapping.end),
            offset: mapping.offset,
            code_file,
            rows: None,
            awaits_rows: false,
            found: 0,
            is_memory,
            is_moved: found.moved_from.is_some(),
            is_joined: false,
        };
        let list = if is_memory {
            &mut self.memory
        } else {
            &mut self.files
        };
        let last = list.last_mut();
        if last.is_some_and(|last| last.merges(&new)) {
            return ControlFlow::Continue(());
        }
        if list.len() < MAX_MAPPINGS {
            new.rows = code_file.and_then(rows);
            list.push(new);
            return ControlFlow::Continue(());
        }
        self.dropped.any = true;
        self.dropped.files |= code_file.is_some();
        // There may still be files behind memory.
        if is_memory {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    /// Returns the mappings that have room, in address order, and the kinds of dropped ones.
    pub(super) fn finish(self) -> (Vec<Mapping>, Dropped) {
        let Self {
            files: mut mappings,
            mut memory,
            mut dropped,
        } = self;
        let room = MAX_MAPPINGS - mappings.len();
        for rest in memory.drain(room.min(memory.len())..) {
            dropped.any = true;
            dropped.files |= rest.code_file.is_some() && !rest.is_joined;
        }
        mappings.append(&mut memory);
        mappings.sort_unstable_by_key(|it| it.range);
        (mappings, dropped)
    }
}

#[cfg(test)]
mod tests {
    use otelctx_reader::remote::{self, Device, Permissions};

    use super::*;

    const PAGE: u64 = 4096;
    const LIBRARY: (&[u8], u64) = (b"/usr/lib/libfoo.so", 7);
    const MEMFD: (&[u8], u64) = (b"/memfd:doublemapper (deleted)", 8);
    const ANONYMOUS: (&[u8], u64) = (b"", 0);

    /// Adds pages: the first one's number, and its place in the file.
    fn list(pages: impl IntoIterator<Item = ((&'static [u8], u64), u64, u64)>) -> MappingList {
        let mut list = MappingList::default();
        for ((name, inode), page, place) in pages {
            let mapping = remote::Mapping {
                start: page * PAGE,
                end: (page + 1) * PAGE,
                permissions: Permissions::default(),
                offset: place * PAGE,
                device: Device { major: 1, minor: 2 },
                inode,
                name,
            };
            let code_file = CodeFile::of(&mapping);
            let found = ExecutableMapping {
                mapping,
                moved_from: None,
                may_be_copied: false,
            };
            if list.add(&found, code_file, |_| None).is_break() {
                break;
            }
        }
        list
    }

    /// First page, page behind the last one, and whether it is joined.
    fn found(mappings: &[Mapping]) -> Vec<(u64, u64, bool)> {
        let of = |it: &Mapping| (it.range.0 / PAGE, it.range.1 / PAGE, it.is_joined);
        mappings.iter().map(of).collect()
    }

    #[test]
    fn neighbours_count_as_one_mapping_where_they_are_of_one_kind() {
        let (mappings, dropped) = list([
            // Split, as by a change of protection, and then another piece of the same file.
            (LIBRARY, 1, 5),
            (LIBRARY, 2, 6),
            (LIBRARY, 3, 5),
            // Memory in any order, and such that is not a neighbour.
            (MEMFD, 4, 9),
            (MEMFD, 5, 8),
            (MEMFD, 6, 10),
            (ANONYMOUS, 7, 0),
            (ANONYMOUS, 8, 0),
            (ANONYMOUS, 10, 0),
            // A library in a memfd, split.
            (MEMFD, 11, 1),
            (MEMFD, 12, 2),
        ])
        .finish();
        let expected = [
            (1, 3, false),
            (3, 4, false),
            (4, 7, true),
            (7, 9, true),
            (10, 11, false),
            (11, 13, false),
        ];
        assert_eq!(found(&mappings), expected);
        assert_eq!(dropped, Dropped::default());
    }

    #[test]
    fn code_that_runtimes_walk_takes_the_place_of_mappings() {
        let code = |start, end, base| Code {
            start,
            end,
            base,
            pages: 1,
            ..Code::default()
        };
        let walked = |start, end| Code {
            start,
            end,
            page: AWAITS_ROWS,
            ..Code::default()
        };
        let mappings = vec![code(0x1000, 0x5000, 7), code(0x8000, 0x9000, 8)];
        assert_eq!(with_walked(mappings.clone(), &[]), mappings);
        // In the middle, across an end, beside all mappings, and over a whole one; what has no place is left out.
        let ranges = [
            0x2000..0x3000,
            0x4000..0x6000,
            0x6800..0x7000,
            0x7000..0xa000,
            0xb000..0xb000,
            1 << 62..u64::MAX,
        ];
        let expected = [
            code(0x1000, 0x2000, 7),
            walked(0x2000, 0x3000),
            code(0x3000, 0x4000, 7),
            walked(0x4000, 0x6000),
            walked(0x6800, 0x7000),
            walked(0x7000, 0xa000),
        ];
        assert_eq!(with_walked(mappings, &ranges), expected);
        // Ranges without an entry cut no mapping.
        let all = code(0x1000, 0x10_0000, 7);
        let ranges: Vec<_> = (2..200_u64)
            .map(|it| 0x1000 * it..0x1000 * it + 8)
            .collect();
        let list = with_walked(vec![all], &ranges);
        assert_eq!(list.len(), 2 * MAX_WALKED + 1);
        assert_eq!(list.last(), Some(&code(0x1000 * 65 + 8, 0x10_0000, 7)));
    }

    #[test]
    fn memory_is_dropped_first() {
        let count = MAX_MAPPINGS as u64;
        // Every second page, so that none is a neighbour.
        let pages = (0..count + 1).map(|page| (ANONYMOUS, 2 * page, 0));
        let library = (LIBRARY, 10 * count, 0);
        let (mappings, dropped) = list(pages.chain([library])).finish();
        assert_eq!(mappings.len(), MAX_MAPPINGS);
        let last = found(&mappings[MAX_MAPPINGS - 2..]);
        let of_library = (10 * count, 10 * count + 1, false);
        assert_eq!(last, [(2 * count - 4, 2 * count - 3, false), of_library]);
        let (any, files) = (true, false);
        assert_eq!(dropped, Dropped { any, files });

        let pages = (0..count + 1).map(|page| (MEMFD, 2 * page, 0));
        assert!(list(pages).finish().1.files);
        // As many as there may be, and one more.
        for (more, is_any) in [(0, false), (1, true)] {
            let pages = (0..count + more).map(|page| (LIBRARY, 2 * page, 0));
            let (mappings, dropped) = list(pages).finish();
            assert_eq!(mappings.len(), MAX_MAPPINGS);
            let (any, files) = (is_any, is_any);
            assert_eq!(dropped, Dropped { any, files });
        }
        let pages = (0..count).map(|page| (LIBRARY, 2 * page, 0));
        let (mappings, dropped) = list(pages.chain([(ANONYMOUS, 10 * count, 0)])).finish();
        assert_eq!(mappings.len(), MAX_MAPPINGS);
        let (any, files) = (true, false);
        assert_eq!(dropped, Dropped { any, files });
    }
}
