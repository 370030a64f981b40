//! Which processes have a socket or pipe open: by the links of all processes' descriptors.
//!
//! A scan reads every link of the machine, which may be hundreds of thousands at 2 to 5 µs each. It is done in parts: each
//! call goes on with it for a bounded number of links.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

use foldhash::fast::RandomState;
use otelctx_reader::remote::{Process, process};

use crate::descriptor::Object;

/// Maximum number of sockets and pipes that are remembered.
const MAX_OBJECTS: usize = 256 * 1024;
/// Maximum number of processes remembered for one of them.
const MAX_HOLDERS: usize = 16;
/// Maximum number of descriptors scanned of one process.
const MAX_DESCRIPTORS: usize = 64 * 1024;
/// Minimum time between the starts of two scans, in nanoseconds, and by how much longer it is for each link that was read:
/// a link takes 5 µs, so this is a fiftieth of a CPU at most.
const MIN_INTERVAL: u64 = 1_000_000_000;
const INTERVAL_PER_LINK: u64 = 250_000;

/// A socket or pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Shared {
    Socket(u64),
    Pipe(u64),
}

/// A process that has it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: i32,
    descriptor: i32,
    /// Opened for writing, which tells the ends of a pipe apart.
    pub(crate) is_writable: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Owners {
    holders: HashMap<Shared, Vec<Holder>, RandomState>,
    scan: Option<Scan>,
    /// When the last scan began, and how long no other one begins.
    began_at: Option<u64>,
    interval: u64,
}

#[derive(Debug)]
struct Scan {
    /// The processes that are left.
    left: Vec<i32>,
    found: HashMap<Shared, Vec<Holder>, RandomState>,
    links: u64,
}

impl Owners {
    /// The processes that have a socket or pipe open, in the order of their IDs. At most `max_links` links are read now; with a
    /// larger number of processes, a later call finds it.
    pub(crate) fn of(&mut self, object: Shared, now: u64, max_links: usize) -> Vec<Holder> {
        let known = self.confirmed(object);
        if !known.is_empty() {
            return known;
        }
        let is_due = |began| now.saturating_sub(began) >= self.interval;
        if self.scan.is_none() && self.began_at.is_none_or(is_due) {
            self.began_at = Some(now);
            let mut left = process::processes().unwrap_or_default();
            // The last one is scanned first.
            left.sort_unstable_by(|one, other| other.cmp(one));
            self.scan = Some(Scan {
                left,
                found: HashMap::default(),
                links: 0,
            });
        }
        let Some(scan) = &mut self.scan else {
            return Vec::new();
        };
        scan.go_on(max_links);
        if scan.left.is_empty() {
            self.interval = MIN_INTERVAL + scan.links * INTERVAL_PER_LINK;
            self.holders = std::mem::take(&mut scan.found);
            self.scan = None;
        }
        self.confirmed(object)
    }

    /// The processes that still have it open.
    fn confirmed(&mut self, object: Shared) -> Vec<Holder> {
        let Some(holders) = self.holders.get_mut(&object) else {
            return Vec::new();
        };
        holders.retain(|holder| {
            let process = Process::open(holder.pid);
            process.is_ok_and(|process| shared(&process, holder.descriptor) == Some(object))
        });
        let holders = holders.clone();
        if holders.is_empty() {
            self.holders.remove(&object);
        }
        holders
    }
}

impl Scan {
    fn go_on(&mut self, max_links: usize) {
        let mut links = 0;
        while links < max_links {
            let Some(pid) = self.left.pop() else {
                break;
            };
            // It may have ended, or not be permitted.
            if let Ok(process) = Process::open(pid) {
                links += self.add(&process).max(1);
            } else {
                links += 1;
            }
        }
        self.links += links as u64;
    }

    /// Adds a process. Returns the number of links that were read.
    fn add(&mut self, process: &Process) -> usize {
        let mut links = 0;
        let visited = process.visit_descriptors(&mut |descriptor| {
            links += 1;
            if let Some(object) = shared(process, descriptor) {
                self.note(process, descriptor, object);
            }
            if links < MAX_DESCRIPTORS {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        drop(visited);
        links
    }

    fn note(&mut self, process: &Process, descriptor: i32, object: Shared) {
        let is_writable = match object {
            Shared::Pipe(_) => match process.descriptor_access(descriptor) {
                Ok((_, is_writable)) => is_writable,
                Err(_) => return,
            },
            Shared::Socket(_) => true,
        };
        if self.found.len() >= MAX_OBJECTS && !self.found.contains_key(&object) {
            return;
        }
        let holders = self.found.entry(object).or_default();
        let pid = process.pid();
        let is_same = |it: &Holder| it.pid == pid && it.is_writable == is_writable;
        if holders.len() < MAX_HOLDERS && !holders.iter().any(is_same) {
            holders.push(Holder {
                pid,
                descriptor,
                is_writable,
            });
        }
    }
}

/// The socket or pipe that a descriptor refers to, if it is one.
fn shared(process: &Process, descriptor: i32) -> Option<Shared> {
    let link = process.descriptor_link(descriptor).ok()?;
    match Object::parse(link.as_bytes()) {
        Object::Socket(inode) => Some(Shared::Socket(inode)),
        Object::Pipe(inode) => Some(Shared::Pipe(inode)),
        Object::Anonymous(_) | Object::Path(_) => None,
    }
}
