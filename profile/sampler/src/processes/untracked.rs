//! The executable mappings of processes that are not tracked yet.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_reader::remote;

use crate::code::{CodeMappings, MemoryChange, Modules};

/// Maximum number of processes; the mappings of others are read when they are sampled.
pub(super) const MAX_UNTRACKED: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Untracked {
    pub(crate) processes: HashMap<i32, CodeMappings, RandomState>,
    /// Processes that have ended. Samples of them may still come in the current drain.
    ended: Vec<i32>,
}

impl Untracked {
    pub(crate) fn contains(&self, pid: i32) -> bool {
        self.processes.contains_key(&pid)
    }

    pub(super) fn has_room(&self) -> bool {
        self.processes.len() < MAX_UNTRACKED
    }

    /// Adds a process that starts as a copy of `parent`. Returns false if there is no room.
    pub(super) fn fork(&mut self, pid: i32, parent: i32, time: u64) -> bool {
        if !self.has_room() {
            return false;
        }
        let code = self.processes.get(&parent).filter(|it| it.is_small());
        let code = code.map_or_else(|| CodeMappings::forked(parent, time), CodeMappings::fork);
        self.processes.insert(pid, code);
        // An earlier process had its ID.
        self.ended.retain(|ended| *ended != pid);
        true
    }

    /// Applies a reported change. Returns false if there is no room for the mapping.
    pub(super) fn apply(
        &mut self,
        pid: i32,
        time: u64,
        change: MemoryChange,
        modules: &mut Modules,
    ) -> bool {
        let code = self.processes.entry(pid).or_default();
        let process = remote::Process::open(pid).ok();
        code.apply(time, change, process.as_ref(), modules)
    }

    pub(super) fn exec(&mut self, pid: i32, time: u64) {
        if let Some(code) = self.processes.get_mut(&pid) {
            code.exec(time);
        }
    }

    pub(super) fn exit(&mut self, pid: i32) {
        if self.contains(pid) {
            self.ended.push(pid);
        }
    }

    /// Removes the processes that have ended: all their samples have come.
    pub(crate) fn remove_ended(&mut self) {
        for pid in self.ended.drain(..) {
            self.processes.remove(&pid);
        }
    }

    pub(crate) fn remove(&mut self, pid: i32) -> Option<CodeMappings> {
        self.processes.remove(&pid)
    }
}
