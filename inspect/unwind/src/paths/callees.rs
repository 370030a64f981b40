//! Functions that return, as their callers show.

use std::collections::BTreeSet;

/// What follows the direct calls of a function.
#[derive(Debug, Clone, Default)]
pub(super) struct Callees {
    /// Functions, and addresses behind calls of them where no other function can start, so that the code there is the caller's.
    followed: BTreeSet<(u64, u64)>,
    /// Functions behind whose calls another one may start.
    doubtful: BTreeSet<u64>,
}

impl Callees {
    /// Notes a call on a path that is certain to be the function's.
    pub(super) fn add_followed(&mut self, callee: u64, behind: u64) {
        self.followed.insert((callee, behind));
    }

    /// Notes a call behind which another function may start.
    pub(super) fn add_doubtful(&mut self, callee: u64) {
        self.doubtful.insert(callee);
    }

    /// The functions that return to code that no jump leads to, and are also called where that is in doubt.
    pub(super) fn returning(&self, targets: &BTreeSet<u64>) -> BTreeSet<u64> {
        let by_return = self.followed.iter().filter(|it| !targets.contains(&it.1));
        let callees = by_return.map(|(callee, _)| *callee);
        callees.filter(|it| self.doubtful.contains(it)).collect()
    }
}
