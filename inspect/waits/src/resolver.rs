//! What is kept between two reasons.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_reader::remote::Process;

use crate::inspection::Inspection;
use crate::known::{Known, MachineCaches};
use crate::{Reason, State, Waiting};

/// Maximum number of processes of which something is kept, with a descriptor each; all are dropped when there are more.
const MAX_PROCESSES: usize = 256;

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
