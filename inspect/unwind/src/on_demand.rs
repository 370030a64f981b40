//! The rules of a file's code, function by function.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use otelctx_remote::elf::Elf;

use crate::cfi::Budget;
use crate::error::Error;
use crate::file::{CodeSegments, FileRows, UnwindTables};
use crate::maker::FunctionRows;
use crate::rows::Rows;
use crate::rule::{Dictionary, Rule};

/// Bytes that are read of `.eh_frame_hdr`. LLVM's library, the largest at hand, has 1.3 MiB.
const MAX_HEADER: u64 = 16 << 20;
/// Number of functions from which on the rows of the whole file are made.
const MAX_FUNCTIONS: usize = 4096;

/// The rules of a file's code, made for each function in `.eh_frame_hdr` when it is first needed.
/// Other code (stubs, code of `.debug_frame`) needs the rows of the whole file.
#[derive(Debug)]
pub(crate) struct RulesOnDemand {
    tables: UnwindTables,
    header: Vec<u8>,
    dictionary: Arc<Dictionary>,
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    /// End and rows of functions, by their first addresses.
    functions: BTreeMap<u64, (u64, Rows)>,
    budget: Budget,
    /// The rows of the whole file, once they were needed.
    whole: Option<Result<FileRows, Error>>,
}

impl RulesOnDemand {
    /// Reads the tables of a file, or of a module that is loaded.
    ///
    /// # Errors
    /// When there are none, they cannot be read, or they exceed a limit.
    pub(crate) fn of(elf: &Elf<'_>, dictionary: &Arc<Dictionary>) -> Result<Self, Error> {
        let tables = UnwindTables::read_on_demand(elf)?;
        let mut header = Vec::new();
        if let Some(segment) = elf.eh_frame_header() {
            header.resize(segment.memory_size.min(MAX_HEADER) as usize, 0);
            if elf.read_at(segment.address, &mut header).is_err() {
                header.clear();
            }
        }
        let mut made = Made::default();
        if header.is_empty() {
            made.whole = Some(Ok(tables.rows(dictionary)?));
        }
        Ok(Self {
            tables,
            header,
            dictionary: dictionary.clone(),
            made: Mutex::new(made),
        })
    }

    /// The rule at an address of the file's program headers.
    pub(crate) fn rule_at(&self, address: u64) -> Rule {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Made {
            functions,
            budget,
            whole,
        } = &mut *made;
        let known = functions.range(..=address).next_back();
        if let Some((_, (end, rows))) = known
            && address < *end
        {
            return self.dictionary.rule(rows.rule_at(address));
        }
        if whole.is_none() && functions.len() < MAX_FUNCTIONS {
            let (header, dictionary) = (&self.header, &self.dictionary);
            let found = self.tables.function_at(address, header, budget, dictionary);
            if let Some(FunctionRows { start, end, rows }) = found {
                let rule = self.dictionary.rule(rows.rule_at(address));
                functions.insert(start, (end, rows));
                return rule;
            }
        }
        let whole = whole.get_or_insert_with(|| self.tables.rows(&self.dictionary));
        let rows = whole.as_ref();
        rows.map_or(Rule::Gap, |rows| rows.rule_at(address))
    }

    /// Size of the tables that are kept, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.tables.size() + self.header.len()
    }

    pub(crate) fn segments(&self) -> &CodeSegments {
        &self.tables.code
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use otelctx_remote::elf::{FileBytes, Source};

    use super::*;
    use crate::rule::Saved;

    /// Where rbx is, is not part of the rules of whole files that do without.
    fn without_base(rule: Rule) -> Rule {
        match rule {
            Rule::Frame(mut frame) => {
                frame.base = Saved::Unknown;
                Rule::Frame(frame)
            }
            other => other,
        }
    }

    #[test]
    fn rules_on_demand_are_those_of_the_whole_file() {
        let files = ["/bin/bash", "/proc/self/exe", "/lib64/ld-linux-x86-64.so.2"];
        for file in files.into_iter().filter_map(|path| File::open(path).ok()) {
            let bytes = FileBytes(&file);
            let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
            let dictionary = Arc::new(Dictionary::new());
            let whole = FileRows::of(&elf, &dictionary).unwrap();
            let rules = RulesOnDemand::of(&elf, &dictionary).unwrap();
            let mut on_demand = 0;
            for (address, _) in whole.rows().iter() {
                let mut budget = Budget::default();
                let (tables, header) = (&rules.tables, &rules.header);
                let function = tables.function_at(address, header, &mut budget, &dictionary);
                if let Some(FunctionRows { rows, .. }) = function {
                    let found = dictionary.rule(rows.rule_at(address));
                    let known = whole.rule_at(address);
                    assert_eq!(without_base(found), without_base(known), "{address:#x}");
                    on_demand += 1;
                }
            }
            assert!(on_demand > whole.rows().len() / 2, "{on_demand} rows");
        }
    }
}
