//! Converts the entries of `.eh_frame` and `.debug_frame`, call frame information, to rules. Their
//! lengths are read here, so that a damaged entry costs no other one; `gimli` decodes them.

use foldhash::HashMap;
use gimli::{BaseAddresses, CommonInformationEntry, UnwindContext, UnwindOffset, UnwindSection};

use crate::arch::Architecture;
use crate::converter::{Converter, Storage};
use crate::error::Error;
use crate::functions::{Function, Functions, Source};
use crate::rule::{Cfa, Rule, Saved};
use crate::tables::Bytes;
use crate::writer::{Counts, Writer};

/// Maximum number of rows that are evaluated of one file, four times what LLVM's library has.
const MAX_EVALUATED: u64 = 5_000_000;
/// Maximum size of one file's evaluated entries, in bytes, with the common one for each function.
const MAX_INSTRUCTIONS: u64 = 64 << 20;
/// Common entries that are kept decoded; a linker writes one for each personality routine.
const MAX_COMMON: usize = 4096;

type Common<'a> = CommonInformationEntry<Bytes<'a>>;

/// The work that one file may still cause.
#[derive(Debug)]
pub(crate) struct Budget {
    rows: u64,
    instructions: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            rows: MAX_EVALUATED,
            instructions: MAX_INSTRUCTIONS,
        }
    }
}

impl Budget {
    pub(crate) fn take_row(&mut self) -> Result<(), Error> {
        let (what, limit) = ("rows", MAX_EVALUATED);
        let left = self.rows.checked_sub(1);
        self.rows = left.ok_or(Error::Limit { what, limit })?;
        Ok(())
    }

    fn take_instructions(&mut self, bytes: u64) -> Result<(), Error> {
        let (what, limit) = ("bytes of unwind instructions", MAX_INSTRUCTIONS);
        let left = self.instructions.checked_sub(bytes);
        self.instructions = left.ok_or(Error::Limit { what, limit })?;
        Ok(())
    }
}

/// One section of unwind tables.
pub(crate) struct Table<'a, S> {
    section: S,
    bytes: &'a [u8],
    bases: BaseAddresses,
    architecture: &'static Architecture,
    /// Common entries, by offset; `None` for one that cannot be used.
    common: HashMap<usize, Option<Common<'a>>>,
    context: UnwindContext<usize, Storage>,
}

impl<'a, S> Table<'a, S>
where
    S: UnwindSection<Bytes<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    pub(crate) fn new(
        section: S,
        bytes: &'a [u8],
        bases: BaseAddresses,
        architecture: &'static Architecture,
    ) -> Self {
        Table {
            section,
            bytes,
            bases,
            architecture,
            common: HashMap::default(),
            context: UnwindContext::new_in(),
        }
    }

    /// Finds the functions that have an entry.
    pub(crate) fn functions(
        &mut self,
        source: Source,
        functions: &mut Functions<'_>,
        counts: &mut Counts,
    ) -> Result<(), Error> {
        let id_is_long = source == Source::DebugFrame;
        let mut offset = 0;
        while let Some(entry) = Entry::read(self.bytes, offset, id_is_long) {
            if entry.end > self.bytes.len() {
                counts.truncated += 1;
                break;
            }
            if entry.is_function(source) {
                counts.entries += 1;
                match self.addresses(offset) {
                    Some((start, end)) if start < end => {
                        if !functions.add(source, start, end, offset)? {
                            counts.misplaced += 1;
                        }
                    }
                    // An empty function takes no row.
                    Some((start, end)) if start == end => {}
                    _ => counts.damaged += 1,
                }
            }
            offset = entry.end;
        }
        Ok(())
    }

    /// First address of the function whose entry is at this offset, and the one behind it.
    pub(crate) fn addresses(&mut self, offset: usize) -> Option<(u64, u64)> {
        let function = self.function(offset)?;
        Some((function.initial_address(), function.end_address()))
    }

    fn function(&mut self, offset: usize) -> Option<gimli::FrameDescriptionEntry<Bytes<'a>>> {
        let common = &mut self.common;
        let section = &self.section;
        let partial = section.partial_fde_from_offset(&self.bases, offset.into());
        let function = partial.ok()?.parse(|section, bases, at| {
            if common.len() >= MAX_COMMON {
                common.clear();
            }
            let entry = common.entry(UnwindOffset::into(at));
            let entry = entry.or_insert_with(|| section.cie_from_offset(bases, at).ok());
            entry.clone().ok_or(gimli::Error::NotCieId(0))
        });
        function.ok()
    }

    /// Writes the rules of a function from the address `from` on, and returns where they end. GHC's entries end with the first
    /// block of a function, whereas their rows go on: those are written up to `limit`.
    pub(crate) fn evaluate(
        &mut self,
        function: &Function,
        from: u64,
        limit: u64,
        budget: &mut Budget,
        writer: &mut Writer<'_>,
    ) -> Result<u64, Error> {
        let mut rules_end = function.end;
        let Some(entry) = self.function(function.offset) else {
            writer.write(from, Rule::Gap)?;
            return Ok(rules_end);
        };
        let size = entry.entry_len().saturating_add(entry.cie().entry_len());
        budget.take_instructions(size as u64)?;
        let tracks_base = writer.tracks_base;
        let mut converter = Converter::new(&self.section, self.architecture, &entry, tracks_base);
        let Ok(mut rows) = entry.rows(&self.section, &self.bases, &mut self.context) else {
            writer.counts.damaged += 1;
            writer.write(from, Rule::Gap)?;
            return Ok(rules_end);
        };
        let function_end = entry.end_address();
        let mut at = from;
        loop {
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => return Ok(rules_end),
                Err(_) => {
                    writer.counts.damaged += 1;
                    writer.write(at, Rule::Gap)?;
                    return Ok(rules_end);
                }
            };
            budget.take_row()?;
            writer.counts.evaluated += 1;
            let (start, mut end) = (row.start_address(), row.end_address());
            // The meaning of later rows depends on this one, even if it is not written.
            let rule = converter.rule(row);
            if has_own_stack(rule) {
                // The last one ends with the function, and may start behind it.
                if end == function_end {
                    end = limit;
                }
                rules_end = end.min(limit).max(rules_end);
            }
            if start >= rules_end {
                return Ok(rules_end);
            }
            if end > at && end > start {
                match rule {
                    Some(Rule::Frame(frame)) => {
                        writer.needs_base |= matches!(frame.cfa, Cfa::Register { register, .. }
                            if Some(register) == self.architecture.base);
                    }
                    Some(_) => {}
                    None => writer.counts.unsupported += 1,
                }
                writer.write(start.max(at), rule.unwrap_or(Rule::Unsupported))?;
                at = end.min(rules_end);
            }
        }
    }
}

/// Returns whether a rule is that of code of GHC, which has a stack of its own.
fn has_own_stack(rule: Option<Rule>) -> bool {
    matches!(rule, Some(Rule::Frame(frame)) if frame.frame_pointer == Saved::Cfa)
}

/// The head of an entry.
#[derive(Debug)]
struct Entry {
    /// Its end, which may lie behind the section.
    end: usize,
    /// `None` for a terminator.
    id: Option<u64>,
    is_long: bool,
}

impl Entry {
    /// `None` at the end of the section.
    fn read(bytes: &[u8], offset: usize, id_is_long: bool) -> Option<Self> {
        let at = |offset: usize| bytes.get(offset..);
        let u32_at = |offset| Some(u32::from_le_bytes(*at(offset)?.first_chunk()?));
        let u64_at = |offset| Some(u64::from_le_bytes(*at(offset)?.first_chunk()?));
        let (length, is_long) = match u32_at(offset)? {
            u32::MAX => (u64_at(offset + 4)?, true),
            length => (length.into(), false),
        };
        let start = offset + if is_long { 12 } else { 4 };
        let end = usize::try_from(length).unwrap_or(usize::MAX);
        // Linkers that merge object files can leave terminators in the middle.
        let id = match length {
            0 => None,
            _ if is_long && id_is_long => u64_at(start),
            _ => u32_at(start).map(u64::from),
        };
        let end = start.saturating_add(end);
        Some(Entry { end, id, is_long })
    }

    /// Returns whether it is a function's: neither a common entry nor a terminator.
    fn is_function(&self, source: Source) -> bool {
        let common = match source {
            Source::DebugFrame if self.is_long => u64::MAX,
            // DWARF 5, section 6.4.1
            Source::DebugFrame => u32::MAX.into(),
            _ => 0,
        };
        self.id.is_some_and(|id| id != common)
    }
}
