//! Many processes, watched for what becomes of their process contexts.
//!
//! A poll is one system call for each process, and a listing of `/proc`:
//!
//! - where a process has a context, one read of its header at the address that was found before. An
//!   update, an exec and an exit all change what it returns;
//! - where it has none, or may not be looked at, one read of `/proc/PID/statm`. Whoever publishes
//!   late maps memory for it first, and that changes the process's size. Then its mappings are
//!   looked at, and once more at the next poll: memory may get its name after it was mapped.
//!
//! What the second can't see is a mapping that came while others, of exactly the same size and as
//! writable, went; and a second context beside one that is read. Therefore each process is looked
//! at anew every now and then ([`Watch::look_anew_every`]).
//!
//! A process is held by its directory in `/proc` from the first poll on: another one that has its
//! number later is told apart.
//!
//! ```no_run
//! use otelctx_reader::watch::{Change, Watch};
//!
//! # fn main() -> Result<(), otelctx_reader::Error> {
//! let mut watch = Watch::default();
//! loop {
//!     for event in watch.poll()? {
//!         match event.change {
//!             Change::Published(context) | Change::Updated(context) => {
//!                 println!("{}: {:?}", event.pid, context.payload.resource);
//!             }
//!             Change::Broken(why) => println!("{}: unreadable: {why}", event.pid),
//!             Change::Withdrawn => println!("{}: publishes no more", event.pid),
//!             Change::Ended => println!("{}: has ended", event.pid),
//!             Change::Failed(error) => eprintln!("{error}"),
//!             _ => {}
//!         }
//!     }
//!     std::thread::sleep(std::time::Duration::from_secs(1));
//! }
//! # }
//! ```

mod watched;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_remote as remote;

use self::watched::Watched;
use crate::{Broken, Error, Options, Process, ProcessContext, SharedModules};

/// Processes without a context are looked at anew this often: one costs as much as reading its
/// `/proc/PID/maps`, some 40 µs, at most.
const LOOK_ANEW_EVERY: Duration = Duration::from_secs(30);

/// Every process of the machine, or some, and what is known of their contexts.
///
/// Each takes two or three file descriptors: for more than some hundred processes raise the soft
/// limit (`RLIMIT_NOFILE`, `ulimit -n`), which is 1,024 by default.
#[derive(Debug)]
pub struct Watch {
    options: Options,
    modules: SharedModules,
    look_anew_every: Duration,
    known: BTreeMap<i32, State>,
}

#[derive(Debug)]
enum State {
    Open(Box<Watched>),
    /// It could not be opened, with what was told of that.
    Unopened(String),
}

/// Something that happened to a process.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// The process.
    pub pid: i32,
    /// What happened.
    pub change: Change,
}

/// What happened to a process between two polls.
#[derive(Debug)]
#[non_exhaustive]
pub enum Change {
    /// It publishes. If it was known to publish before, this is another program by now, or it has
    /// withdrawn that context and published again.
    Published(Arc<ProcessContext>),
    /// It has updated its context.
    Updated(Arc<ProcessContext>),
    /// It has a context that can't be read. Told again when there is another reason.
    Broken(Broken),
    /// It lives on, and has no context any more.
    Withdrawn,
    /// It has ended; of those only of which something else was told before.
    Ended,
    /// It can't be looked at. Told once, and again when there is another reason.
    Failed(Error),
}

impl Default for Watch {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Watch {
    /// A watch that knows no process yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            modules: SharedModules::default(),
            look_anew_every: LOOK_ANEW_EVERY,
            known: BTreeMap::new(),
        }
    }

    /// How often a process is looked at anew even though nothing seems to have changed. 30 s.
    #[must_use]
    pub fn look_anew_every(mut self, interval: Duration) -> Self {
        self.look_anew_every = interval;
        self
    }

    /// Looks at every process that there is now, and tells what has changed since the last time, in
    /// the order of their ids.
    ///
    /// # Errors
    /// When the processes can't be listed.
    pub fn poll(&mut self) -> Result<Vec<Event>, Error> {
        let mut pids = remote::process::processes()?;
        pids.sort_unstable();
        Ok(self.poll_these(&pids))
    }

    /// Looks at these processes, given in the order of their ids, and at no others. Those that it
    /// knew and that are not among them count as ended.
    pub fn poll_these(&mut self, pids: &[i32]) -> Vec<Event> {
        debug_assert!(pids.is_sorted());
        let mut events = Vec::new();
        self.known.retain(|pid, state| {
            let is_there = pids.binary_search(pid).is_ok();
            if !is_there && state.was_told() {
                events.push(Event {
                    pid: *pid,
                    change: Change::Ended,
                });
            }
            is_there
        });
        let now = Instant::now();
        for &pid in pids {
            self.poll_one(pid, now, &mut |change| events.push(Event { pid, change }));
        }
        events.sort_by_key(|event| event.pid);
        events
    }

    fn poll_one(&mut self, pid: i32, now: Instant, tell: &mut dyn FnMut(Change)) {
        let entry = self.known.entry(pid);
        if let Entry::Occupied(mut known) = entry {
            match known.get_mut() {
                State::Open(watched) => {
                    if watched.poll(now, self.look_anew_every, tell).is_there() {
                        return;
                    }
                    // The number may belong to another process by now.
                    if watched.was_told() {
                        tell(Change::Ended);
                    }
                    known.remove();
                }
                State::Unopened(_) => {}
            }
        }
        let opened = Process::with_modules(pid, self.options.clone(), self.modules.clone())
            .and_then(Watched::new);
        match opened {
            Ok(mut watched) => {
                // Should it be gone again, the next poll finds that out.
                watched.poll(now, self.look_anew_every, tell);
                self.known.insert(pid, State::Open(Box::new(watched)));
            }
            Err(Error::Remote(remote::Error::NoSuchProcess { .. })) => {
                self.known.remove(&pid);
            }
            Err(error) => {
                let why = error.to_string();
                let known = self.known.insert(pid, State::Unopened(why.clone()));
                if !matches!(known, Some(State::Unopened(told)) if told == why) {
                    tell(Change::Failed(error));
                }
            }
        }
    }

    /// A process that is being watched, for further questions: its threads, its name.
    pub fn process(&mut self, pid: i32) -> Option<&mut Process> {
        match self.known.get_mut(&pid)? {
            State::Open(watched) => Some(watched.process()),
            State::Unopened(_) => None,
        }
    }

    /// How many processes it knows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether it knows none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

impl State {
    fn was_told(&self) -> bool {
        match self {
            State::Open(watched) => watched.was_told(),
            State::Unopened(_) => true,
        }
    }
}
