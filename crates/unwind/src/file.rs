//! The rows of one ELF file.

use std::sync::Arc;

use otelctx_remote::elf::{Elf, Segment};

use crate::arch::Architecture;
use crate::error::Error;
use crate::maker::make;
use crate::rows::Rows;
use crate::rule::{Dictionary, Rule};
use crate::tables::Tables;
use crate::writer::Counts;

/// Page size that mappings are aligned to at least. Larger ones divide into these.
const PAGE: u64 = 4096;

/// The rows of an ELF file, which any number of processes can have mapped.
#[derive(Debug)]
pub struct FileRows {
    rows: Rows,
    dictionary: Arc<Dictionary>,
    /// Executable PT_LOAD segments.
    code: Vec<Segment>,
    counts: Counts,
}

impl FileRows {
    /// Makes the rows of a file, or of a module that is loaded: about 100 ns a row. The rules go into
    /// `dictionary`.
    ///
    /// Damaged entries, and what rules cannot express, become gaps and are counted.
    ///
    /// # Errors
    /// When there are no usable tables, or they exceed a limit.
    pub fn of(elf: &Elf<'_>, dictionary: &Arc<Dictionary>) -> Result<Self, Error> {
        let architecture = Architecture::of(elf.machine()).ok_or(Error::Architecture)?;
        let code: Vec<Segment> = elf
            .loads()
            .iter()
            .filter(|it| it.executable)
            .copied()
            .collect();
        let tables = Tables::read(elf)?;
        let (rows, counts) = make(&tables, architecture, &code, dictionary)?;
        if counts.entries == 0 {
            return Err(Error::NoTables);
        }
        if rows.is_empty() {
            let entries = counts.entries;
            return Err(Error::Damaged { entries });
        }
        Ok(FileRows {
            rows,
            dictionary: dictionary.clone(),
            code,
            counts,
        })
    }

    /// Rows made by hand, for one page of code.
    #[cfg(test)]
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
            code: Vec::new(),
            counts,
        }
    }

    /// The rows.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// What making them came to.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The rule at an address of the file's program headers.
    pub fn rule_at(&self, address: u64) -> Rule {
        self.dictionary.rule(self.rows.rule_at(address))
    }

    /// The load bias of an executable mapping at `start` that shows the file from `offset` on.
    ///
    /// Segments can share a page of the file, which is mapped for each of them: only the segment that
    /// starts in the very page that the mapping starts with tells.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        bias(&self.code, start, offset)
    }
}

/// See [`FileRows::bias`].
pub(crate) fn bias(code: &[Segment], start: u64, offset: u64) -> Option<u64> {
    let begins = |segment: &&Segment| segment.offset / PAGE * PAGE == offset;
    let contains =
        |segment: &&Segment| (segment.offset / PAGE * PAGE..segment.file_end()).contains(&offset);
    // A mapping whose protection was changed in part is several.
    let segment = code
        .iter()
        .find(begins)
        .or_else(|| code.iter().find(contains))?;
    let loaded = start.wrapping_sub(offset).wrapping_add(segment.offset);
    Some(loaded.wrapping_sub(segment.address))
}
