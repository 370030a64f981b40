//! What is known about the machine, and about a process that waits.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use foldhash::fast::RandomState;
use otelctx_reader::remote::{
    FileCache, LiveProcess, Memory, MemoryError, Process, ProcessMemory, Target,
};

use crate::inet::InetSockets;
use crate::locks::ProcessLocks;
use crate::owners::Owners;
use crate::peers::Peers;
use crate::unix::UnixSockets;

/// Maximum number of mappings of code of a process that are kept; all are dropped when there are more.
const MAX_CODE: usize = 64;

/// What is known about the machine.
#[derive(Debug, Default)]
pub(crate) struct MachineCaches {
    pub(crate) inet: InetSockets,
    pub(crate) unix: UnixSockets,
    pub(crate) owners: Owners,
    pub(crate) peers: Peers,
    pub(crate) files: FileCache,
    pub(crate) max_links: usize,
}

/// What is known about a waiting process, as long as it executes the same program.
#[derive(Debug)]
pub(crate) struct Known {
    /// `None` if it is not permitted to read it.
    pub(crate) memory: Option<ProcessMemory>,
    /// The sizes of epolls: their descriptors' links, numbers of descriptors, and times of reading.
    pub(crate) epolls: HashMap<i32, (Vec<u8>, usize, u64), RandomState>,
    pub(crate) locks: ProcessLocks,
    /// The files of code, by the first address of each mapping.
    code: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl Known {
    pub(crate) fn of(process: &Process) -> Self {
        Self {
            memory: process.memory().ok(),
            epolls: HashMap::default(),
            locks: ProcessLocks::default(),
            code: BTreeMap::new(),
        }
    }

    /// The file of the code at an address. It is kept: code that is unloaded is seldom waited in.
    pub(crate) fn code_at(&mut self, process: &Process, address: u64) -> Option<Vec<u8>> {
        let known = self.code.range(..=address).next_back();
        if let Some((_, (_, name))) = known.filter(|(_, (end, _))| address < *end) {
            return Some(name.clone());
        }
        let target = LiveProcess::new(process, self.memory.as_ref()?);
        let mut found = None;
        let visited = target.executable_mappings(&mut |code| {
            let mapping = &code.mapping;
            if mapping.end <= address {
                return ControlFlow::Continue(());
            }
            if mapping.start <= address && mapping.name.starts_with(b"/") {
                found = Some((mapping.start, (mapping.end, mapping.name.to_vec())));
            }
            ControlFlow::Break(())
        });
        visited.ok()?;
        let (start, (end, name)) = found?;
        if self.code.len() >= MAX_CODE {
            self.code.clear();
        }
        self.code.insert(start, (end, name.clone()));
        Some(name)
    }

    /// Returns whether the process has ended or executes another program. Nothing is mapped at address 0: the read only tells
    /// whether the memory still exists.
    pub(crate) fn is_gone(&self) -> bool {
        let read = self.memory.as_ref().map(|memory| memory.read(0, &mut [0]));
        read.is_none_or(|read| matches!(read, Err(MemoryError::Gone { .. })))
    }
}
