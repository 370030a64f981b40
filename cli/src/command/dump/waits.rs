//! Why sleeping threads wait.

use std::sync::{Arc, Mutex, PoisonError};

use otelctx_reader::remote::Process;
use otelctx_reader::remote::threads::Call;
use otelctx_sampler::monotonic;
use otelctx_waits::{Options, Reason, Resolver, State, Waiting};

use super::stack::Stack;

/// Maximum number of descriptors' links that are read to find the process at the other end of one connection: half a second.
const MAX_LINKS: usize = 100_000;

/// Finds out why threads wait, for any number of processes. Clones share what is known about the machine.
#[derive(Debug, Clone)]
pub(super) struct Waits(Arc<Mutex<Resolver>>);

impl Default for Waits {
    fn default() -> Self {
        let mut options = Options::default();
        options.max_links = MAX_LINKS;
        Self(Arc::new(Mutex::new(Resolver::new(options))))
    }
}

impl Waits {
    /// Why a thread waits that sleeps in `call`, with this stack.
    pub(super) fn reason(&self, process: &Process, tid: i32, call: &Call, stack: &Stack) -> Reason {
        let frames: Vec<u64> = stack.frames.iter().map(|frame| frame.address).collect();
        let thread = Waiting {
            tid,
            call: call.into(),
            state: State::Asleep,
            frames: &frames,
            memory: None,
            since: None,
            now: monotonic(),
        };
        let mut resolver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        resolver.reason(process, thread)
    }
}
