//! Names of processes: their services' or their own.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::{ContextState, Options, remote};

use crate::Peer;
use crate::words::plain;

/// Maximum number of processes that are remembered; all are forgotten when there are more.
const MAX_PEERS: usize = 4096;
/// Time for which names are valid, in nanoseconds: a program may publish its context later, or execute another program.
const MAX_AGE: u64 = 10_000_000_000;
/// Time allowed to find the context of one process.
const TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum size of a context that is read, in bytes.
const MAX_PAYLOAD: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Peers(HashMap<i32, Known, RandomState>);

#[derive(Debug)]
struct Known {
    peer: Peer,
    /// When it started, in ticks since boot: its ID may be used again.
    start: Option<u64>,
    read_at: u64,
}

impl Peers {
    /// The names of a process. `None` if it has ended.
    pub(crate) fn get(&mut self, pid: i32, now: u64) -> Option<Peer> {
        let process = remote::Process::open(pid).ok()?;
        let start = process.stat().ok()?.start();
        if let Some(known) = self.0.get(&pid)
            && known.start == start
            && now.saturating_sub(known.read_at) < MAX_AGE
        {
            return Some(known.peer.clone());
        }
        let peer = Peer {
            pid,
            name: plain(process.comm().ok()?.as_bytes()),
            service: service(pid).map(|name| plain(name.as_bytes())),
        };
        if self.0.len() >= MAX_PEERS && !self.0.contains_key(&pid) {
            self.0.clear();
        }
        let known = Known {
            peer: peer.clone(),
            start,
            read_at: now,
        };
        self.0.insert(pid, known);
        Some(peer)
    }
}

/// The name of the service that a process is: published, or else from its environment.
fn service(pid: i32) -> Option<String> {
    let mut options = Options::default();
    options.deadline = Some(Instant::now() + TIMEOUT);
    options.max_payload = MAX_PAYLOAD;
    options.never_stop = true;
    let mut process = otelctx_reader::Process::with_options(pid, options).ok()?;
    if let Ok(ContextState::Published(context)) = process.context()
        && let Some(name) = name(&context.payload.resource)
    {
        return Some(name.to_owned());
    }
    name(&process.detected().ok()?.resource).map(str::to_owned)
}

/// The name in a resource, unless it is the specification's name for a service without one.
fn name(resource: &Attributes) -> Option<&str> {
    let found = resource.iter().find(|(key, _)| key == "service.name");
    let Some((_, Value::String(name))) = found else {
        return None;
    };
    let is_name = !name.is_empty() && !name.starts_with("unknown_service");
    is_name.then_some(name)
}
