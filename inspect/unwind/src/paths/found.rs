//! What paths through a function have shown.

use std::collections::{BTreeMap, BTreeSet};

use super::callees::Callees;
use crate::instruction_set::State;

/// A straight run of instructions.
#[derive(Debug, Clone)]
pub(super) struct Block<S> {
    /// What is known at its start.
    pub(super) state: S,
    /// The address behind it, as far as it was followed.
    pub(super) end: u64,
    pub(super) changes: u32,
}

/// What shows that code is a function's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Evidence {
    /// True if a path returns with the stack as it was at the start, or jumps elsewhere so after it has removed a frame.
    pub(super) returns: bool,
    /// True if the code begins as functions of C that never return: it saves a register for its caller.
    pub(super) saves: bool,
    /// True if two paths meet with different stacks, or one leaves the function with another than that of the start.
    pub(super) disagrees: bool,
    /// True if two paths meet whose stacks are known and different, and no frame pointer leads to the caller.
    pub(super) conflicts: bool,
}

/// What the paths that were followed have shown.
#[derive(Debug, Clone)]
pub(super) struct Found<S> {
    pub(super) blocks: BTreeMap<u64, Block<S>>,
    pub(super) evidence: Evidence,
    /// What is known at all indirect jumps out of a frame.
    pub(super) indirect: Option<S>,
    /// The ends of indirect jumps, and whether each is without a frame: to another function, or through a table.
    pub(super) indirect_ends: BTreeMap<u64, bool>,
    /// The targets of jumps.
    pub(super) targets: BTreeSet<u64>,
    /// Addresses of code that the function takes, for its jumps.
    pub(super) addresses: BTreeSet<u64>,
    /// Addresses behind calls and padding: if the callee never returns, another function may start there.
    pub(super) doubts: BTreeSet<u64>,
    /// Those behind calls with a frame, as are all before: only a path of the same function removes exactly that, and returns.
    pub(super) framed_doubts: BTreeSet<u64>,
    /// Which code from one of these is followed by which other one, or by code that is not in doubt (`None`).
    pub(super) links: BTreeSet<(Option<u64>, u64)>,
    /// Addresses behind calls and padding that paths ended at.
    pub(super) ends: BTreeSet<u64>,
    pub(super) callees: Callees,
}

impl<S> Default for Found<S> {
    fn default() -> Self {
        Found {
            blocks: BTreeMap::new(),
            evidence: Evidence::default(),
            indirect: None,
            indirect_ends: BTreeMap::new(),
            targets: BTreeSet::new(),
            addresses: BTreeSet::new(),
            doubts: BTreeSet::new(),
            framed_doubts: BTreeSet::new(),
            links: BTreeSet::new(),
            ends: BTreeSet::new(),
            callees: Callees::default(),
        }
    }
}

impl<S: State> Found<S> {
    /// Returns whether code is the function's if it returns with the stack as it was at the start.
    pub(super) fn is_sure(&self, state: &S) -> bool {
        let doubt = state.doubt();
        doubt.is_none_or(|doubt| self.framed_doubts.contains(&doubt))
    }

    /// Finds the code behind calls and padding that belongs to the function: a path from there leads to code that does,
    /// or returns with the stack as it was at the start.
    pub(super) fn confirmed(&self) -> BTreeSet<u64> {
        let mut confirmed = BTreeSet::new();
        let mut pending = vec![None];
        while let Some(to) = pending.pop() {
            let links = self.links.range((to, 0)..=(to, u64::MAX));
            let new = links.filter(|link| confirmed.insert(link.1));
            pending.extend(new.map(|link| Some(link.1)));
        }
        confirmed
    }

    /// Notes that a path in doubt leads to code that may be in doubt, too.
    pub(super) fn link(&mut self, from: Option<u64>, to: Option<u64>) {
        if let Some(from) = from.filter(|_| from != to) {
            self.links.insert((to, from));
        }
    }
}
