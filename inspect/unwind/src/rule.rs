//! Rules that find the caller's frame from one address.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use foldhash::HashMap;

/// Maximum number of different rules in one [`Dictionary`]. 1,333 libraries have 4,236.
pub const MAX_RULES: usize = 16_384;
/// Maximum number of rules that one file may add to a dictionary. Large programs have 700.
pub(crate) const MAX_RULES_OF_FILE: usize = 2_048;

/// Finds the caller's frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Rule {
    /// No table describes the code.
    #[default]
    Gap,
    /// The tables have a rule that no other variant can express.
    Unsupported,
    /// There is no caller: this is where the thread started.
    End,
    /// A function's frame.
    Frame(FrameRule),
    /// All registers are saved in a `ucontext_t` (<sys/ucontext.h>): in the frame that the kernel
    /// made for a signal handler, or, for some instructions, in `setcontext` and `swapcontext`.
    Context {
        /// DWARF number of the register that the structure's address is computed from.
        register: u8,
        /// The offset of the structure from the register, in bytes.
        offset: i32,
        /// True for a signal's: the address in the context is not a return address.
        signal: bool,
    },
}

/// Finds the caller's frame from a function's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameRule {
    /// The canonical frame address (CFA): the caller's stack pointer.
    pub cfa: Cfa,
    /// The caller's frame pointer.
    pub frame_pointer: Saved,
    /// The caller's rbx: [`Saved::Unknown`] unless a CFA of the file depends on it.
    pub base: Saved,
    /// The address in the caller.
    pub return_address: ReturnAddress,
}

/// Computes a CFA. Registers are DWARF's numbers, offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// `register + offset`
    Register {
        /// The register.
        register: u8,
        /// The addend.
        offset: i32,
    },
    /// `*(register + offset) + addend`: realigned stacks, and some assembly.
    Memory {
        /// The register.
        register: u8,
        /// The addend to the register.
        offset: i32,
        /// The addend to the value in memory.
        addend: i32,
    },
    /// An entry of 16 bytes of an x86-64 PLT: `rsp + 8`, or `rsp + 16` once it has pushed its
    /// number.
    Plt {
        /// The first offset in the entry behind the push.
        pushed_at: u8,
    },
}

/// The location of the caller's frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Saved {
    /// The register still has it.
    Same,
    /// Memory at this offset from the CFA.
    AtCfa(i32),
    /// Memory at this offset from the frame pointer: realigned stacks.
    AtFramePointer(i32),
    /// The register with this DWARF number.
    Register(u8),
    /// The value is lost.
    Unknown,
    /// The CFA itself: the frame pointer is the pointer of another stack than the processor's, as in code of Haskell.
    Cfa,
}

/// The location of the return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReturnAddress {
    /// Memory at this offset from the CFA.
    AtCfa(i32),
    /// The register with this DWARF number.
    Register(u8),
}

/// A rule's index in a [`Dictionary`].
pub type RuleIndex = u16;

/// The index of [`Rule::Gap`] in every dictionary.
pub const GAP: RuleIndex = 0;
/// The index of [`Rule::Unsupported`] in every dictionary.
pub(crate) const UNSUPPORTED: RuleIndex = 1;

/// The distinct rules of any number of files, at most [`MAX_RULES`]. Rules are never removed.
#[derive(Debug)]
pub struct Dictionary {
    /// Distinguishes dictionaries: cached rows belong to one of them.
    pub(crate) id: u64,
    rules: RwLock<Rules>,
}

#[derive(Debug, Default)]
struct Rules {
    by_index: Vec<Rule>,
    by_rule: HashMap<Rule, RuleIndex>,
}

impl Dictionary {
    /// Creates a dictionary with [`Rule::Gap`] and [`Rule::Unsupported`].
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dictionary = Dictionary {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rules: RwLock::default(),
        };
        for rule in [Rule::Gap, Rule::Unsupported] {
            dictionary.intern(rule);
        }
        dictionary
    }

    /// Number of rules in it.
    pub fn len(&self) -> usize {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.by_index.len()
    }

    /// Always false: it has two rules from the start.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rule at an index; [`Rule::Gap`] for one that it does not have.
    pub fn rule(&self, index: RuleIndex) -> Rule {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let rule = rules.by_index.get(usize::from(index));
        rule.copied().unwrap_or_default()
    }

    /// Returns the index of a rule, which is added if there is room for it.
    pub(crate) fn intern(&self, rule: Rule) -> Option<RuleIndex> {
        if let Some(index) = self.find(rule) {
            return Some(index);
        }
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = rules.by_rule.get(&rule) {
            return Some(*index);
        }
        let index = RuleIndex::try_from(rules.by_index.len()).ok()?;
        if usize::from(index) >= MAX_RULES {
            return None;
        }
        rules.by_index.push(rule);
        rules.by_rule.insert(rule, index);
        Some(index)
    }

    pub(crate) fn find(&self, rule: Rule) -> Option<RuleIndex> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.by_rule.get(&rule).copied()
    }
}

impl Default for Dictionary {
    fn default() -> Self {
        Dictionary::new()
    }
}
