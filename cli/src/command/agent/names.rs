//! Resolves functions on a thread of its own: messages wait for it for a bounded time only, and have the names in later
//! messages that were not ready.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use otelctx_profile::sample::{Function, Identity, Module, ModuleFiles, ProcessFacts};
use otelctx_profile::{SymbolQuery, Symbolizer};
use otelctx_symbolize::Symbols;

use crate::command::record::cached_symbols::{KnownFunctions, is_transient, key};

/// Requests that may wait for the thread. Further ones are made again for a later message.
const MAX_REQUESTS: usize = 64;
/// The part of the time in which functions are resolved, as a divisor: 2 %.
const DIVISOR: u32 = 50;
/// The time for resolving functions at the start, or after a time without new ones.
const MAX_BUDGET: Duration = Duration::from_secs(20);
/// Interval at which a wait for the thread checks whether the agent ends.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which files without functions are searched again.
const RENEWAL: Duration = Duration::from_secs(300);

/// The time for resolving functions that are not known: a part of the time that passes.
#[derive(Clone, Copy, Debug)]
struct ResolveBudget {
    /// The part, as a divisor: 50 for 2 %.
    divisor: u32,
    max: i64,
    /// Nanoseconds; negative after a request that took longer than what was left.
    left: i64,
    updated: Instant,
}

impl ResolveBudget {
    /// Creates a budget of a part of the time that passes, and of `max` at the start.
    fn new(divisor: u32, max: Duration) -> Self {
        let max = nanoseconds(max);
        Self {
            divisor,
            max,
            left: max,
            updated: Instant::now(),
        }
    }

    /// Returns whether anything is left at this time.
    fn is_left(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.updated);
        self.updated = now;
        let more = nanoseconds(passed / self.divisor);
        self.left = self.left.saturating_add(more).min(self.max);
        self.left > 0
    }

    fn spend(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(nanoseconds(time));
    }
}

fn nanoseconds(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX)
}

/// Makes a symbolizer with what is in force.
pub(super) type NewSymbols = Box<dyn Fn() -> Symbols + Send>;

struct Request {
    /// What identifies the content of the module.
    key: Box<[u8]>,
    module: Module,
    process: ProcessFacts,
    addresses: Vec<u64>,
}

struct Reply {
    key: Box<[u8]>,
    addresses: Vec<u64>,
    functions: Vec<Vec<Function>>,
    identity: Identity,
}

/// Functions that are known, and requests for the others.
pub(super) struct BackgroundNames {
    known: KnownFunctions,
    /// The files of the sampled code.
    files: ModuleFiles,
    /// Modules whose functions are not found, until the next renewal.
    nameless: HashSet<Box<[u8]>>,
    renewed: Instant,
    requests: SyncSender<Request>,
    replies: Receiver<Reply>,
    /// Modules with a request that has no reply yet.
    pending: HashSet<Box<[u8]>>,
    /// Modules with a function that is known.
    named: HashSet<Box<[u8]>>,
    /// The time until which the current message may wait.
    deadline: Instant,
    is_ending: Arc<AtomicBool>,
    /// For code without files, such as the vDSO's: found at once.
    symbols: Symbols,
}

impl BackgroundNames {
    /// Starts the thread. Nothing more is resolved once `is_ending` is true.
    pub(super) fn start(
        new_symbols: NewSymbols,
        files: ModuleFiles,
        is_ending: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let (requests, received) = sync_channel(MAX_REQUESTS);
        let (answers, replies) = channel();
        let symbols = new_symbols();
        // It ends with the process: a file is decoded for minutes at worst.
        let thread = Builder::new().name("resolver".to_owned());
        thread.spawn(move || resolve(&received, &answers, &new_symbols))?;
        Ok(Self {
            known: KnownFunctions::default(),
            files,
            nameless: HashSet::new(),
            renewed: Instant::now(),
            requests,
            replies,
            pending: HashSet::new(),
            named: HashSet::new(),
            deadline: Instant::now(),
            is_ending,
            symbols,
        })
    }

    /// Begins a message, which may wait for functions for this time.
    pub(super) fn begin(&mut self, time: Duration) {
        let now = Instant::now();
        self.deadline = now + time;
        if now.saturating_duration_since(self.renewed) >= RENEWAL {
            self.renewed = now;
            self.nameless.clear();
            self.named.clear();
            self.files.age();
        }
    }

    /// Requests functions, unless the thread has too much to do.
    fn request(&mut self, key: &[u8], query: SymbolQuery<'_>, addresses: Vec<u64>) {
        let request = Request {
            key: key.into(),
            module: query.module.clone(),
            process: query.process.clone(),
            addresses,
        };
        if self.requests.try_send(request).is_ok() {
            self.pending.insert(key.into());
        }
    }

    /// Takes replies until there is none to wait for, or it is time to go on.
    fn wait(&mut self) {
        loop {
            while let Ok(reply) = self.replies.try_recv() {
                self.add(&reply);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if self.pending.is_empty() || left.is_zero() || self.is_ending.load(Ordering::Relaxed) {
                return;
            }
            match self.replies.recv_timeout(left.min(CHECK_INTERVAL)) {
                Ok(reply) => self.add(&reply),
                Err(RecvTimeoutError::Timeout) => {}
                // The thread has panicked, which was printed.
                Err(RecvTimeoutError::Disconnected) => self.pending.clear(),
            }
        }
    }

    fn add(&mut self, reply: &Reply) {
        self.pending.remove(&reply.key);
        let is_nameless = reply.functions.iter().all(Vec::is_empty);
        if is_nameless && !self.named.contains(&reply.key) {
            self.nameless.insert(reply.key.clone());
        } else {
            self.named.insert(reply.key.clone());
            let both = reply.addresses.iter().zip(&reply.functions);
            for (address, functions) in both.filter(|(_, it)| !is_transient(it)) {
                self.known.add(&reply.key, *address, functions);
            }
        }
        if reply.identity.htlhash.is_some() {
            self.known.set_identity(&reply.key, reply.identity.clone());
        }
    }
}

impl Symbolizer for BackgroundNames {
    fn functions(&mut self, query: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        if !(query.module.has_file() || query.module.is_kernel()) {
            return self.symbols.functions(query, addresses);
        }
        let Some(key) = key(query.module, &self.files) else {
            return vec![Vec::new(); addresses.len()];
        };
        let is_missing = |it: &&u64| self.known.get(&key, **it).is_none();
        let missing: Vec<u64> = addresses.iter().filter(is_missing).copied().collect();
        let is_expected = self.nameless.contains(&key) || self.pending.contains(&key);
        if !missing.is_empty() && !is_expected {
            self.request(&key, query, missing);
            self.wait();
        }
        let found = addresses.iter().map(|it| self.known.get(&key, *it));
        found.map(Option::unwrap_or_default).collect()
    }

    fn identity(&mut self, query: SymbolQuery<'_>) -> Identity {
        let key = key(query.module, &self.files);
        let known = key.and_then(|key| self.known.identity(&key));
        known.unwrap_or_else(|| Identity::by_build_id(query.module))
    }
}

/// Resolves what is requested, at most for a part of the time.
fn resolve(requests: &Receiver<Request>, replies: &Sender<Reply>, new_symbols: &NewSymbols) {
    let mut budget = ResolveBudget::new(DIVISOR, MAX_BUDGET);
    let (mut symbols, mut renewed) = (new_symbols(), Instant::now());
    for request in requests {
        let begun = Instant::now();
        // What was found missing is searched again, and errors are forgotten.
        if begun.saturating_duration_since(renewed) >= RENEWAL {
            (symbols, renewed) = (new_symbols(), begun);
        }
        let query = SymbolQuery::new(&request.module, &request.process);
        let functions = symbols.functions(query, &request.addresses);
        let identity = symbols.identity(query);
        let reply = Reply {
            key: request.key,
            addresses: request.addresses,
            functions,
            identity,
        };
        if replies.send(reply).is_err() {
            return;
        }
        budget.spend(begun.elapsed());
        while !budget.is_left(Instant::now()) {
            std::thread::sleep(CHECK_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_part_of_the_time_that_passes() {
        let mut budget = ResolveBudget::new(50, Duration::from_secs(2));
        let start = budget.updated;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(budget.is_left(at(0)));
        budget.spend(Duration::from_secs(7));
        assert!(!budget.is_left(at(0)));
        // Also what was spent beyond it.
        assert!(!budget.is_left(at(7)));
        assert!(!budget.is_left(at(250)));
        assert!(budget.is_left(at(300)));
        assert_eq!(budget.left, 1_000_000_000);
        assert!(budget.is_left(at(5000)));
        assert_eq!(budget.left, 2_000_000_000);
    }
}
