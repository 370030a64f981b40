//! What is kept between two reasons.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use foldhash::fast::RandomState;
use otelctx_reader::remote::{
    FileCache, LiveProcess, Memory, MemoryError, Process, ProcessMemory, Target,
};

use crate::inet::InetSockets;
use crate::inspection::Inspection;
use crate::locks::ProcessLocks;
use crate::owners::Owners;
use crate::peers::Peers;
use crate::unix::UnixSockets;
use crate::{Reason, State, Waiting};

/// Maximum number of processes of which something is kept, with a descriptor each; all are dropped when there are more.
const MAX_PROCESSES: usize = 256;

/// Maximum number of mappings of code of a process that are kept; all are dropped when there are more.
const MAX_CODE: usize = 64;

/// Limits of a [`Resolver`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Maximum number of descriptors' links that one reason may read to find the process at the other end of a connection, at
    /// 2 to 5 µs each. 2,000 by default: on a machine with more descriptors, a later reason has the peer. `usize::MAX` finds
    /// it at once.
    pub max_links: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_links: 2000 }
    }
}

/// Finds out why threads wait, and keeps what it has read of processes, sockets and pipes. Its memory is bounded, however many
/// there are.
#[derive(Debug, Default)]
pub struct Resolver {
    options: Options,
    processes: HashMap<i32, Known, RandomState>,
    pub(crate) machine: MachineCaches,
}

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

impl Resolver {
    /// Creates a resolver that knows nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// Why a thread of `process` waits. Reads `/proc` and the process's memory, opens none of its files and stops nothing.
    ///
    /// The reason is that of the time of reading: if the thread may have run since its call was read, it must be discarded.
    pub fn reason(&mut self, process: &Process, thread: Waiting<'_>) -> Reason {
        match thread.state {
            State::Queued => return Reason::of("ready to run"),
            State::Stopped => return Reason::of("stopped"),
            State::Asleep | State::Disk => {}
        }
        let pid = process.pid();
        if self.processes.get(&pid).is_none_or(Known::is_gone) {
            if self.processes.len() >= MAX_PROCESSES {
                self.processes.clear();
            }
            self.processes.insert(pid, Known::of(process));
        }
        self.machine.max_links = self.options.max_links;
        let Some(known) = self.processes.get_mut(&pid) else {
            return Reason::of("unknown");
        };
        Inspection::new(process, known, &mut self.machine, thread).reason()
    }
}

impl Known {
    fn of(process: &Process) -> Self {
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
    fn is_gone(&self) -> bool {
        let read = self.memory.as_ref().map(|memory| memory.read(0, &mut [0]));
        read.is_none_or(|read| matches!(read, Err(MemoryError::Gone { .. })))
    }
}
