//! Converts rules in address order to rows.

use foldhash::HashMap;

use crate::error::Error;
use crate::rows::{Builder, Rows};
use crate::rule::{Cfa, Dictionary, GAP, MAX_RULES_OF_FILE, Rule, RuleIndex, Saved, UNSUPPORTED};

/// Maximum number of rows of one file: 16 MiB of them.
const MAX_ROWS: usize = 4 << 20;
/// Number of rules whose index is cached.
const RECENT: usize = 1024;

/// The counters of converting a file's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Entries for functions in the tables.
    pub entries: u64,
    /// Rows before neighbours with equal rules are merged.
    pub evaluated: u64,
    /// Entries that are damaged, wholly or from some instruction on.
    pub damaged: u64,
    /// Sections that end within an entry.
    pub truncated: u64,
    /// Entries whose code is not in an executable segment.
    pub misplaced: u64,
    /// Entries whose code another entry describes, too, which was used.
    pub overlapping: u64,
    /// Rows that rules cannot express.
    pub unsupported: u64,
    /// Rows for whose rules the dictionary has no room.
    pub dictionary_full: u64,
}

impl Counts {
    /// Returns whether the tables have any entry, even a damaged one.
    pub(crate) fn has_tables(&self) -> bool {
        self.entries > 0 || self.truncated > 0
    }
}

#[derive(Debug)]
pub(crate) struct Writer<'a> {
    dictionary: &'a Dictionary,
    indexes: HashMap<Rule, RuleIndex>,
    /// Some of `indexes`: hashing would take a sixth of the time, and few rules make up most rows.
    recent: Box<[(Rule, RuleIndex); RECENT]>,
    /// Number of rules that the dictionary did not have before.
    added: usize,
    builder: Builder,
    /// True if rules include rbx.
    pub(crate) tracks_base: bool,
    /// True if some CFA depends on rbx.
    pub(crate) needs_base: bool,
    pub(crate) counts: Counts,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(start: u64, dictionary: &'a Dictionary) -> Self {
        Writer {
            dictionary,
            indexes: HashMap::default(),
            recent: Box::new([(Rule::Gap, GAP); RECENT]),
            added: 0,
            builder: Builder::new(start),
            tracks_base: false,
            needs_base: false,
            counts: Counts::default(),
        }
    }

    /// Adds a rule that holds from `address` on.
    pub(crate) fn write(&mut self, address: u64, rule: Rule) -> Result<(), Error> {
        let index = self.index(rule);
        self.builder.push(address, index);
        if self.builder.len() > MAX_ROWS {
            let (what, limit) = ("different rows", MAX_ROWS as u64);
            return Err(Error::Limit { what, limit });
        }
        Ok(())
    }

    fn index(&mut self, rule: Rule) -> RuleIndex {
        let place = place(rule);
        let recent = self.recent[place];
        if recent.0 == rule {
            return recent.1;
        }
        let known = self.indexes.get(&rule).copied();
        // Not a gap: the frame pointer is not known to be one.
        let index = known.or_else(|| self.intern(rule)).unwrap_or(UNSUPPORTED);
        if index == UNSUPPORTED && rule != Rule::Unsupported {
            self.counts.dictionary_full += 1;
        } else {
            self.recent[place] = (rule, index);
        }
        index
    }

    fn intern(&mut self, rule: Rule) -> Option<RuleIndex> {
        let index = self.dictionary.find(rule).or_else(|| {
            self.added += 1;
            let is_allowed = self.added <= MAX_RULES_OF_FILE;
            is_allowed.then(|| self.dictionary.intern(rule)).flatten()
        })?;
        self.indexes.insert(rule, index);
        Some(index)
    }

    pub(crate) fn finish(self) -> (Rows, Counts) {
        (self.builder.finish(), self.counts)
    }
}

/// The index of a rule in [`Writer::recent`]: rules differ by multiples of a register's size.
fn place(rule: Rule) -> usize {
    let Rule::Frame(frame) = rule else {
        return 0;
    };
    let words = |offset: i32| (offset >> 3) as usize;
    let (register, cfa) = match frame.cfa {
        Cfa::Register { register, offset } => (usize::from(register), words(offset)),
        _ => (0, 0),
    };
    let frame_pointer = match frame.frame_pointer {
        Saved::AtCfa(offset) => words(offset),
        _ => 0,
    };
    let place = cfa.wrapping_add(register << 7);
    place.wrapping_add(frame_pointer << 5) % RECENT
}
