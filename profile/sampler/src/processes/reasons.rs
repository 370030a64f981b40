//! Why threads wait, in words.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_reader::remote::{Process, threads};
use otelctx_sample::{Frame, OffCpuState, Reason};
use otelctx_waits::{Options, Resolver, State, Waiting};

use crate::monotonic;
use crate::waits::Look;

/// Time for which a reason that a descriptor determines is taken for known, in nanoseconds: meanwhile, it may become
/// another one.
const MAX_AGE: u64 = 1_000_000_000;
/// Maximum number of known reasons; all are dropped when there are more.
const MAX_KNOWN: usize = 4096;
/// Frames that decide whether a thread waits for a lock.
const FRAMES: usize = 8;

/// Finds the reasons of waits.
#[derive(Debug)]
pub(super) struct Reasons {
    resolver: Resolver,
    /// Reasons of calls whose words depend on a descriptor alone, by process, call and descriptor, and when they were found.
    known: HashMap<(i32, i64, i32), (u64, Reason), RandomState>,
}

impl Reasons {
    pub(super) fn new() -> Self {
        Self {
            resolver: Resolver::new(Options::default()),
            known: HashMap::default(),
        }
    }

    /// Returns the reason of a wait, as far as it is certain: the words say what its call's arguments meant, if the thread
    /// is still in the same wait once they are found.
    pub(super) fn reason(
        &mut self,
        look: &Look,
        process: Option<&Process>,
        frames: &[Frame],
    ) -> Option<Reason> {
        let state = match look.state {
            OffCpuState::Asleep => State::Asleep,
            OffCpuState::Disk => State::Disk,
            _ => return None,
        };
        if look.is_torn {
            return None;
        }
        let descriptor = look.call.only_descriptor();
        let key = descriptor.map(|it| (look.pid, look.call.number, it));
        let now = monotonic();
        if let Some((found, reason)) = key.as_ref().and_then(|it| self.known.get(it))
            && now.saturating_sub(*found) < MAX_AGE
        {
            return Some(reason.clone());
        }
        let mut addresses = frames.iter().filter_map(Frame::address).take(FRAMES);
        let addresses: Vec<u64> = addresses.by_ref().collect();
        let thread = Waiting {
            tid: look.tid,
            call: look.call,
            state,
            frames: &addresses,
            since: Some(look.since).filter(|since| *since != 0),
            now,
        };
        let process = process?;
        let found = self.resolver.reason(process, thread);
        let reason = Reason {
            text: found.text,
            call: found.call.into_owned(),
        };
        if reason.text == reason.call {
            return Some(reason);
        }
        let is_same = threads::is_still_asleep(process, look.tid, look.switches);
        if !is_same.unwrap_or(false) {
            return Some(Reason {
                text: reason.call.clone(),
                ..reason
            });
        }
        if let Some(key) = key {
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert(key, (now, reason.clone()));
        }
        Some(reason)
    }

    /// Forgets a process that has ended or executes another program.
    pub(super) fn remove(&mut self, pid: i32) {
        self.known.retain(|(of, ..), _| *of != pid);
    }
}
