//! Resolves functions on a thread of its own: messages wait for it for a bounded time only, and have the names in later
//! messages that were not ready.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use otelctx_agent::LivenessGuard;
use otelctx_profile::sample::{Function, Identity, Module, ProcessFacts};
use otelctx_profile::{SymbolQuery, Symbolizer};
use otelctx_symbolize::Symbols;

use super::cpu_time;
use super::resolve_budget::{DebugInfoBudget, ResolveBudget};
use super::symbols::SymbolSource;
use crate::command::record::cached_symbols::{KnownFunctions, is_transient, key};

/// Requests that may wait for the thread. Further ones are made again for a later message.
const MAX_REQUESTS: usize = 64;
/// The CPU time for resolving functions at the start, or after a time without new ones.
const MAX_BUDGET: Duration = Duration::from_secs(20);
/// Interval at which a wait for the thread checks whether the agent ends.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which files without functions are searched again.
const RENEWAL: Duration = Duration::from_secs(300);

struct Request {
    /// The number of changes of settings before the request.
    generation: u64,
    /// What identifies the content of the module.
    key: Box<[u8]>,
    module: Module,
    process: ProcessFacts,
    addresses: Vec<u64>,
}

struct Reply {
    generation: u64,
    key: Box<[u8]>,
    addresses: Vec<u64>,
    functions: Vec<Vec<Function>>,
    identity: Identity,
    /// Whether debug information was searched, too: without it, functions may be missing for now.
    with_debug_info: bool,
}

/// Functions that are known, and requests for the others.
pub(super) struct BackgroundNames {
    known: KnownFunctions,
    source: SymbolSource,
    generation: u64,
    /// Modules whose functions are not found, until the next renewal.
    nameless: HashSet<Box<[u8]>>,
    renewed: Instant,
    requests: SyncSender<Request>,
    replies: Receiver<Reply>,
    /// Modules with a request that has no reply yet.
    pending: HashSet<Box<[u8]>>,
    /// Modules with a function that is known.
    named: HashSet<Box<[u8]>>,
    /// The time until which the current batch may wait.
    deadline: Instant,
    is_ending: Arc<AtomicBool>,
    /// For code without files, such as the vDSO's: found at once.
    symbols: Symbols,
}

impl BackgroundNames {
    /// Starts the thread. Nothing more is waited for once `is_ending` is true. The thread adds its CPU time, without that of
    /// its child processes, to `time`, in nanoseconds, and drops `guard` at its end.
    pub(super) fn start(
        source: SymbolSource,
        is_ending: Arc<AtomicBool>,
        time: Arc<AtomicU64>,
        guard: LivenessGuard,
    ) -> io::Result<Self> {
        let (requests, received) = sync_channel(MAX_REQUESTS);
        let (answers, replies) = channel();
        let symbols = source.symbols();
        let resolver = Resolver::new(source.clone(), time);
        // It ends with the process: a file is decoded for minutes at worst.
        let thread = Builder::new().name("resolver".to_owned());
        thread.spawn(move || {
            let _guard = guard;
            resolver.run(&received, &answers);
        })?;
        Ok(Self {
            known: KnownFunctions::default(),
            source,
            generation: 0,
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

    /// Begins a batch, which may wait for functions for this time.
    pub(super) fn begin(&mut self, time: Duration) {
        let now = Instant::now();
        self.deadline = now + time;
        if now.saturating_duration_since(self.renewed) >= RENEWAL {
            self.renewed = now;
            self.nameless.clear();
            self.named.clear();
            self.source.files().age();
        }
        if self.source.refresh() {
            // Names by the former settings are not kept, nor names that are being resolved.
            self.generation += 1;
            self.symbols = self.source.symbols();
            self.known = KnownFunctions::default();
            self.nameless.clear();
            self.named.clear();
            self.pending.clear();
        }
    }

    /// Requests functions, unless the thread has too much to do.
    fn request(&mut self, key: &[u8], query: SymbolQuery<'_>, addresses: Vec<u64>) {
        let request = Request {
            generation: self.generation,
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
        if reply.generation != self.generation {
            return;
        }
        self.pending.remove(&reply.key);
        let is_nameless = reply.functions.iter().all(Vec::is_empty);
        if is_nameless && !self.named.contains(&reply.key) {
            self.nameless.insert(reply.key.clone());
        } else {
            self.named.insert(reply.key.clone());
            let both = reply.addresses.iter().zip(&reply.functions);
            let is_lasting = |functions: &[Function]| {
                (reply.with_debug_info || !functions.is_empty()) && !is_transient(functions)
            };
            for (address, functions) in both.filter(|(_, it)| is_lasting(it)) {
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
        let Some(key) = key(query.module, self.source.files()) else {
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
        let key = key(query.module, self.source.files());
        let known = key.and_then(|key| self.known.identity(&key));
        known.unwrap_or_else(|| Identity::by_build_id(query.module))
    }
}

/// The thread.
struct Resolver {
    source: SymbolSource,
    symbols: Symbols,
    /// The same, without debug information.
    names_alone: Symbols,
    renewed: Instant,
    budget: ResolveBudget,
    debug_info: DebugInfoBudget,
    time: Arc<AtomicU64>,
}

impl Resolver {
    fn new(source: SymbolSource, time: Arc<AtomicU64>) -> Self {
        let symbols = source.symbols();
        Self {
            names_alone: symbols.clone().without_debug_info(),
            symbols,
            budget: ResolveBudget::new(source.cpu_part(), MAX_BUDGET),
            debug_info: DebugInfoBudget::default(),
            source,
            renewed: Instant::now(),
            time,
        }
    }

    /// Resolves what is requested, at most for a part of the time.
    fn run(mut self, requests: &Receiver<Request>, replies: &Sender<Reply>) {
        for request in requests {
            let begun = Instant::now();
            let before = cpu_time::of_resolving();
            let is_changed = self.source.refresh();
            // What was found missing is searched again, and errors are forgotten.
            if is_changed || begun.saturating_duration_since(self.renewed) >= RENEWAL {
                self.symbols = self.source.symbols();
                self.names_alone = self.symbols.clone().without_debug_info();
                self.renewed = begun;
            }
            let with_debug_info = self.debug_info.is_left(&request.key, begun);
            let reply = self.reply(request, with_debug_info);
            let used = cpu_time::of_resolving().saturating_sub(before);
            if with_debug_info {
                self.debug_info.spend(&reply.key, used, begun);
            }
            if replies.send(reply).is_err() {
                return;
            }
            self.budget.spend(used);
            let own = cpu_time::of_thread().as_nanos();
            let own = u64::try_from(own).unwrap_or(u64::MAX);
            self.time.store(own, Ordering::Relaxed);
            self.wait_for_budget();
        }
    }

    /// Waits until functions may be resolved again, by the settings of each moment.
    fn wait_for_budget(&mut self) {
        loop {
            self.budget.set_part(self.source.cpu_part());
            if self.budget.is_left(Instant::now()) {
                return;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    fn reply(&mut self, request: Request, with_debug_info: bool) -> Reply {
        let query = SymbolQuery::new(&request.module, &request.process);
        let with_debug_info = with_debug_info || request.module.is_kernel();
        let symbols = match with_debug_info {
            true => &mut self.symbols,
            false => &mut self.names_alone,
        };
        Reply {
            functions: symbols.functions(query, &request.addresses),
            identity: symbols.identity(query),
            generation: request.generation,
            key: request.key,
            addresses: request.addresses,
            with_debug_info,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use otelctx_agent::Liveness;
    use otelctx_profile::sample::ModuleFiles;

    use super::super::symbols::tests::settings;
    use super::*;

    #[test]
    fn a_function_without_a_name_is_searched_again_if_debug_information_was_not() {
        let shared = Arc::new(Mutex::new(settings(&[])));
        let source = SymbolSource::new(shared, ModuleFiles::default(), Arc::default());
        let (guard, _liveness) = Liveness::pair();
        let start = BackgroundNames::start(source, Arc::default(), Arc::default(), guard);
        let mut names = start.unwrap();
        let named = Function {
            name: "main".into(),
            ..Function::default()
        };
        let reply = |addresses: [u64; 2], with_debug_info| Reply {
            generation: 0,
            key: (*b"file").into(),
            addresses: addresses.into(),
            functions: vec![vec![named.clone()], Vec::new()],
            identity: Identity::default(),
            with_debug_info,
        };
        names.add(&reply([1, 2], false));
        let is_known = |names: &mut BackgroundNames, address| {
            names.known.get(b"file", address).map(|it| it.len())
        };
        assert_eq!(is_known(&mut names, 1), Some(1));
        assert_eq!(is_known(&mut names, 2), None);
        names.add(&reply([3, 2], true));
        assert_eq!(is_known(&mut names, 2), Some(0));
    }
}
