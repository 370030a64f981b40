//! The rows of one ELF file.

use std::sync::Arc;

use otelctx_remote::elf::{Elf, Segment, Source};
use otelctx_remote::{Machine, Memory, MemoryError};

use crate::arch::Architecture;
use crate::cfi::Budget;
use crate::error::Error;
use crate::maker::{self, FunctionRows, make};
use crate::records;
use crate::rows::Rows;
use crate::rule::{Dictionary, Rule};
use crate::tables::Tables;
use crate::uncovered::Uncovered;
use crate::writer::Counts;

/// Page size that mappings are aligned to at least. Larger ones divide into these.
const PAGE: u64 = 4096;
/// Largest size of a page, in bytes (aarch64).
const MAX_PAGE: u64 = 64 * 1024;
/// Maximum size of the vDSO, in bytes; it has 4 to 8 KiB.
const MAX_VDSO: u64 = 64 * 1024;

/// Maximum number of functions in the tables of a file whose other code is read for a few stacks: with more, that takes
/// longer than walking them, some 10 ms. Node.js has 100,000, the standard libraries of C and C++ have 5,000.
const MAX_FUNCTIONS_ON_DEMAND: usize = 32_768;

/// An ELF file's unwind tables, unconverted: everything that its rows depend on. Hashes tell equal
/// tables (the same library in two containers) if the hasher has a random seed.
#[derive(Debug, Hash)]
pub struct UnwindTables {
    machine: Machine,
    pub(crate) code: CodeSegments,
    tables: Tables,
}

impl UnwindTables {
    /// Reads the tables of a file, or of a module that is loaded.
    ///
    /// # Errors
    /// When they cannot be read, or exceed a limit.
    pub fn read(elf: &Elf<'_>) -> Result<Self, Error> {
        Self::read_with(elf, usize::MAX)
    }

    /// Reads them for a few stacks: without the code that the tables of a large file do not describe.
    pub(crate) fn read_on_demand(elf: &Elf<'_>) -> Result<Self, Error> {
        Self::read_with(elf, MAX_FUNCTIONS_ON_DEMAND)
    }

    /// Size of the tables, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.tables.size()
    }

    fn read_with(elf: &Elf<'_>, max_functions: usize) -> Result<Self, Error> {
        let executable = elf.loads().iter().filter(|it| it.executable);
        let machine = elf.machine();
        let architecture = Architecture::of(machine).ok_or(Error::Architecture)?;
        let code: Vec<Segment> = executable.copied().collect();
        let mut tables = Tables::read(elf, architecture)?;
        let functions = maker::functions(&tables, architecture, &code)?;
        if let Some((_, eh_frame)) = &tables.eh_frame {
            let reader = &architecture.code;
            tables.behind_calls = records::calls(elf, eh_frame, &code, &functions, reader);
        }
        // Of Go, only functions of its runtime are left.
        if functions.len() <= max_functions || tables.go.is_some() {
            let reader = &architecture.code;
            let listed = maker::starts_with_other_stack(&tables).collect();
            let mut starts = Vec::new();
            // `main`, say, which nothing else may name.
            let mut entry = vec![0; tables.entry_size as usize];
            if elf.read_at(tables.entry, &mut entry).is_ok() {
                starts.extend((reader.addresses)(&entry, tables.entry));
            }
            tables.uncovered = Uncovered::read(elf, &code, &functions, listed, starts, reader);
        }
        tables.ends_of_growing = maker::ends_of_growing(elf, &tables, &architecture.code);
        tables.entry_extent = tables.extent_of_entry(elf, architecture);
        Ok(UnwindTables {
            machine,
            code: CodeSegments(code),
            tables,
        })
    }

    /// Makes the rows: about 100 ns a row. Their rules go into `dictionary`.
    ///
    /// Damaged entries and inexpressible rows become gaps and are counted.
    ///
    /// # Errors
    /// When there are no usable tables, or they exceed a limit.
    pub fn rows(&self, dictionary: &Arc<Dictionary>) -> Result<FileRows, Error> {
        let architecture = Architecture::of(self.machine).ok_or(Error::Architecture)?;
        let (rows, counts) = make(&self.tables, architecture, &self.code.0, dictionary)?;
        // A file without tables has at most its entry point, first returns and linkage stubs.
        let has_start = self.tables.entry_size > 0
            || !self.tables.first_returns.is_empty()
            || self.tables.go.is_some()
            || !self.tables.uncovered.is_empty();
        if !counts.has_tables() && (rows.is_empty() || !has_start) {
            return Err(Error::NoTables);
        }
        if rows.is_empty() {
            let entries = counts.entries;
            return Err(Error::Damaged { entries });
        }
        Ok(FileRows {
            rows,
            dictionary: dictionary.clone(),
            code: self.code.clone(),
            counts,
        })
    }

    /// The rows of the function at an address, by `.eh_frame_hdr`; see [`maker::function_at`].
    pub(crate) fn function_at(
        &self,
        address: u64,
        header: &[u8],
        budget: &mut Budget,
        dictionary: &Dictionary,
    ) -> Option<FunctionRows> {
        let architecture = Architecture::of(self.machine)?;
        let (tables, code) = (&self.tables, &self.code.0);
        maker::function_at(
            tables,
            header,
            architecture,
            code,
            dictionary,
            budget,
            address,
        )
    }
}

/// The executable segments of an ELF file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CodeSegments(Vec<Segment>);

impl CodeSegments {
    /// Returns the load bias of an executable mapping at `start` of the file from `offset` on: that
    /// of the segment that starts in the mapping's first page.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let page = |segment: &&Segment| segment.offset / PAGE * PAGE;
        let begins = |segment: &&Segment| page(segment) == offset;
        let contains = |segment: &&Segment| (page(segment)..segment.file_end()).contains(&offset);
        // With pages of 16 or 64 KiB, a mapping begins up to that much earlier.
        let follows = |segment: &&Segment| {
            let before = segment.offset.checked_sub(offset);
            before.is_some_and(|before| before < MAX_PAGE)
        };
        // A mapping whose protection was changed in part is several.
        let find = |is_it: &dyn Fn(&&Segment) -> bool| self.0.iter().find(is_it);
        let segment = find(&begins).or_else(|| find(&contains));
        let segment = segment.or_else(|| find(&follows))?;
        let loaded = start.wrapping_sub(offset).wrapping_add(segment.offset);
        Some(loaded.wrapping_sub(segment.address))
    }

    /// Returns the file offset of the mapping of each segment, in bytes, with pages of this size.
    pub fn mapped_offsets(&self, page_size: u64) -> impl Iterator<Item = u64> {
        let page = page_size.max(PAGE);
        let segments = self.0.iter();
        segments.map(move |segment| segment.offset / page * page)
    }
}

/// The rows of an ELF file, which any number of processes can have mapped.
#[derive(Debug)]
pub struct FileRows {
    rows: Rows,
    dictionary: Arc<Dictionary>,
    code: CodeSegments,
    counts: Counts,
}

impl FileRows {
    /// Makes the rows of a file, or of a module that is loaded. See [`UnwindTables`].
    ///
    /// # Errors
    /// When there are no usable tables, or they exceed a limit.
    pub fn of(elf: &Elf<'_>, dictionary: &Arc<Dictionary>) -> Result<Self, Error> {
        UnwindTables::read(elf)?.rows(dictionary)
    }

    /// Makes the rows of the vDSO, a whole ELF file in a process's memory, mapped at `range`.
    pub fn of_vdso(
        memory: &dyn Memory,
        range: (u64, u64),
        dictionary: &Arc<Dictionary>,
    ) -> Result<Self, Error> {
        let image = Shifted { memory, range };
        let elf = Elf::read(Source::File(&image))?.ok_or(Error::NoTables)?;
        FileRows::of(&elf, dictionary)
    }

    /// The rows.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// The counters of the conversion.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The rule at an address of the file's program headers.
    pub fn rule_at(&self, address: u64) -> Rule {
        self.dictionary.rule(self.rows.rule_at(address))
    }

    /// The file's executable segments, from which its load bias follows.
    pub fn segments(&self) -> &CodeSegments {
        &self.code
    }
}

/// A range of memory, of which the first byte has the address 0.
struct Shifted<'m> {
    memory: &'m dyn Memory,
    range: (u64, u64),
}

impl Memory for Shifted<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let (start, end) = self.range;
        let size = end.saturating_sub(start).min(MAX_VDSO);
        let behind = address.checked_add(buffer.len() as u64);
        if behind.is_none_or(|behind| behind > size) {
            let length = buffer.len();
            return Err(MemoryError::Unmapped { address, length });
        }
        self.memory.read(start + address, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl FileRows {
        /// Rows made by hand, for one page of code.
        pub(crate) fn by_hand(rules: &[(u64, Rule)]) -> Self {
            let dictionary = Arc::new(Dictionary::new());
            let mut writer = crate::writer::Writer::new(rules[0].0, &dictionary);
            for (address, rule) in rules {
                writer.write(*address, *rule).unwrap();
            }
            let (rows, counts) = writer.finish();
            FileRows {
                rows,
                dictionary,
                code: CodeSegments::default(),
                counts,
            }
        }
    }

    /// As the kernel maps it with pages of 4, 16 and 64 KiB.
    #[test]
    fn a_segment_is_found_by_where_its_mapping_begins() {
        let segment = Segment {
            offset: 0x1_a2b0,
            address: 0x2_a2b0,
            file_size: 0x5000,
            memory_size: 0x5000,
            alignment: 0x1_0000,
            executable: true,
            writable: false,
        };
        let segments = CodeSegments(vec![segment]);
        for (page_size, offset) in [(0x1000, 0x1_a000), (0x4000, 0x1_8000), (0x1_0000, 0x1_0000)] {
            let offsets: Vec<u64> = segments.mapped_offsets(page_size).collect();
            assert_eq!(offsets, [offset]);
            let start = 0x7000_0000 + segment.address / page_size * page_size;
            assert_eq!(segments.bias(start, offset), Some(0x7000_0000));
        }
        // A part of it, and what is behind it.
        assert_eq!(segments.bias(0x7002_c000, 0x1_c000), Some(0x7000_0000));
        assert_eq!(segments.bias(0x7003_0000, 0x2_0000), None);
    }
}
