//! The executable mappings of a process, and the rules of their code.

use std::ops::ControlFlow;
use std::sync::Arc;

use otelctx_remote::elf::Elf;
use otelctx_remote::{Device, FileCache, Modules, Target};

use crate::error::Error;
use crate::file::{CodeSegments, FileRows};
use crate::on_demand::RulesOnDemand;
use crate::rule::{Dictionary, Rule};

/// Maximum number of executable mappings kept of one process. Browsers have some thousand.
pub const MAX_MAPPINGS: usize = 64 * 1024;

/// An executable mapping.
#[derive(Debug, Clone)]
pub struct CodeMapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The difference between addresses in the process and in the file. 0 without rules.
    pub bias: u64,
    /// Its rules, or the reason why it has none: `None` for code that no file provides.
    pub rules: Result<FileRules, Option<Error>>,
}

/// The rules of a file's code.
#[derive(Debug, Clone)]
pub struct FileRules(Made);

#[derive(Debug, Clone)]
enum Made {
    Before(Arc<FileRows>),
    OnDemand(Arc<RulesOnDemand>),
}

impl From<Arc<FileRows>> for FileRules {
    fn from(rows: Arc<FileRows>) -> Self {
        Self(Made::Before(rows))
    }
}

impl FileRules {
    /// Reads the rules of a file, or of a module that is loaded.
    ///
    /// # Errors
    /// When there are no usable tables, or they exceed a limit.
    pub fn of(elf: &Elf<'_>, dictionary: &Arc<Dictionary>, when: MakeRules) -> Result<Self, Error> {
        Ok(Self(match when {
            MakeRules::Before => Made::Before(FileRows::of(elf, dictionary)?.into()),
            MakeRules::OnDemand => Made::OnDemand(RulesOnDemand::of(elf, dictionary)?.into()),
        }))
    }

    /// Returns the size of the unconverted tables that are kept, in bytes: 0 for rules that were made before.
    pub fn tables_size(&self) -> usize {
        match &self.0 {
            Made::Before(_) => 0,
            Made::OnDemand(rules) => rules.size(),
        }
    }

    /// Returns the load bias of an executable mapping at `start` of the file from `offset` on. `None` if no segment of the
    /// file is mapped so.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        self.segments().bias(start, offset)
    }

    fn rule_at(&self, address: u64) -> Rule {
        match &self.0 {
            Made::Before(rows) => rows.rule_at(address),
            Made::OnDemand(rules) => rules.rule_at(address),
        }
    }

    fn segments(&self) -> &CodeSegments {
        match &self.0 {
            Made::Before(rows) => rows.segments(),
            Made::OnDemand(rules) => rules.segments(),
        }
    }
}

/// The time at which unwind tables are converted to rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MakeRules {
    /// Converts whole files before the first stack is walked, some ten milliseconds a library.
    Before,
    /// Converts a function when a stack first needs it: for a few stacks.
    OnDemand,
}

/// The executable mappings of a process.
#[derive(Debug, Clone, Default)]
pub struct CodeMap {
    mappings: Vec<CodeMapping>,
    /// Executable mappings beyond [`MAX_MAPPINGS`].
    pub dropped: u64,
    /// True if the process may be copying code to memory in the place of a file's, as for huge pages: a later read can show
    /// that it has.
    pub may_be_copied: bool,
}

impl CodeMap {
    /// Reads the mappings of a process, and the uncached tables of each file.
    ///
    /// # Errors
    /// When the mappings cannot be read, or the target's deadline has passed.
    pub fn read(
        target: &dyn Target,
        files: &FileCache,
        dictionary: &Arc<Dictionary>,
        when: MakeRules,
    ) -> Result<Self, otelctx_remote::Error> {
        let modules = Modules::read(target, files)?;
        // A file's rows name rules of one dictionary.
        let name = format!("unwind rules {when:?} {}", dictionary.id);
        let mut map = CodeMap::default();
        let mut found: Vec<Place> = Vec::new();
        target.executable_mappings(&mut |code| {
            map.may_be_copied |= code.may_be_copied;
            if found.len() < MAX_MAPPINGS {
                let mapping = &code.mapping;
                found.push(Place {
                    range: (mapping.start, mapping.end),
                    offset: mapping.offset,
                    file: (mapping.device, mapping.inode),
                    is_vdso: mapping.name == b"[vdso]",
                });
            } else {
                map.dropped += 1;
            }
            ControlFlow::Continue(())
        })?;
        for place in found {
            let (start, end) = place.range;
            let module = modules.loaded.iter().find(|module| {
                (module.device, module.inode) == place.file && module.contains(start)
            });
            let rules: Result<FileRules, Option<Error>> = if let Some(module) = module {
                let make = |elf: &Elf<'_>| Ok(FileRules::of(elf, dictionary, when));
                let rules = module.fact::<Result<FileRules, Error>>(target, &name, make);
                let rules = rules.map_err(|error| Some(Error::Unreadable(error.to_string())));
                rules.and_then(|rules| (*rules).clone().map_err(Some))
            } else if place.is_vdso {
                let rows = FileRows::of_vdso(target, place.range, dictionary);
                rows.map(|rows| Arc::new(rows).into()).map_err(Some)
            } else {
                Err(None)
            };
            let offset = if place.is_vdso { 0 } else { place.offset };
            let bias = rules.as_ref().ok();
            let bias = bias.and_then(|rules| rules.bias(start, offset));
            map.mappings.push(CodeMapping {
                start,
                end,
                bias: bias.unwrap_or_default(),
                rules: rules.and_then(|rules| bias.map(|_| rules).ok_or(None)),
            });
        }
        Ok(map)
    }

    /// Creates a map from mappings in address order; a mapping that overlaps an earlier one is dropped.
    pub fn of(mappings: impl IntoIterator<Item = CodeMapping>) -> Self {
        let mut map = CodeMap::default();
        for mapping in mappings {
            let end = map.mappings.last().map_or(0, |last| last.end);
            if mapping.start >= end && mapping.start < mapping.end {
                map.mappings.push(mapping);
            } else {
                map.dropped += 1;
            }
        }
        map
    }

    /// Its mappings, in address order.
    pub fn mappings(&self) -> &[CodeMapping] {
        &self.mappings
    }

    /// The mapping at an address.
    pub fn at(&self, address: u64) -> Option<&CodeMapping> {
        let behind = self.mappings.partition_point(|it| it.start <= address);
        let mapping = self.mappings.get(behind.checked_sub(1)?)?;
        (address < mapping.end).then_some(mapping)
    }
}

impl CodeMapping {
    /// The rule at an address of the process.
    pub fn rule_at(&self, address: u64) -> Rule {
        match &self.rules {
            Ok(rules) => rules.rule_at(address.wrapping_sub(self.bias)),
            Err(_) => Rule::Gap,
        }
    }
}

struct Place {
    range: (u64, u64),
    offset: u64,
    file: (Device, u64),
    is_vdso: bool,
}
