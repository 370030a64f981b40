//! The thread that looks at waiting threads, at each tick of its own clock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aya::maps::{Array, MapData};
use otelctx_reader::remote::{LiveProcess, Process, ProcessMemory};
use otelctx_reader::runtime::{Present, RuntimeReading, ThreadView, read_thread};

use super::abi::{LookCounts, LookParameters, TORN, decode, kind, thread_pointer};
use super::iterator::Link;
use crate::ebpf::abi::event;
use crate::monotonic;
use crate::waits::WaitEvent;

/// Threads that are looked at in a second at most: a hundredth of a CPU's time.
const MAX_LOOKS: u64 = 10_000;
/// The part of the time between two ticks by which a tick is earlier or later, at random: else ticks would stay in step with
/// work that is periodic.
const JITTER: u64 = 4;
/// Size of the buffer that one call reads into, in bytes: the kernel's is as large.
const BUFFER: usize = 64 * 1024;
/// Maximum memory of events that wait for the recorder, in bytes: several seconds of many threads.
const MAX_QUEUED: usize = 24 << 20;
/// The priority of the thread among those that run before all others (sched(7), `SCHED_FIFO`).
const PRIORITY: libc::c_int = 1;

/// A process whose threads are looked at.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) link: Link,
    /// What its runtimes' frames are read with. `None` for one without any.
    pub(super) runtimes: Option<Runtimes>,
}

#[derive(Debug)]
pub(super) struct Runtimes {
    pub(super) process: Process,
    pub(super) memory: ProcessMemory,
    pub(super) present: Arc<[Present]>,
}

/// What the recorder and the thread share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    /// The processes by their IDs; 0 has the link of all threads.
    watched: Mutex<BTreeMap<i32, Arc<Watched>>>,
    /// Looks in a second, at present.
    pub(super) frequency: AtomicU32,
    /// Threads at the last tick.
    pub(super) threads: AtomicU64,
    /// Threads that were read, and how many of these went on meanwhile.
    pub(super) read: AtomicU64,
    pub(super) torn: AtomicU64,
    /// Memory of events that the recorder has not taken, in bytes.
    pub(super) queued: AtomicUsize,
    /// Events that the recorder had no room for.
    pub(super) lost: AtomicU64,
}

impl Shared {
    pub(super) fn watched<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<i32, Arc<Watched>>) -> T,
    ) -> T {
        change(&mut self.watched.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) struct Looker {
    pub(super) shared: Arc<Shared>,
    pub(super) parameters: Array<MapData, LookParameters>,
    pub(super) counts: Array<MapData, LookCounts>,
    pub(super) events: Sender<Vec<WaitEvent>>,
    /// The frequency that was asked for, in Hz.
    pub(super) frequency: u32,
    pub(super) buffer: Vec<u8>,
}

impl Looker {
    pub(super) fn run(mut self) {
        raise_priority();
        let mut last = monotonic();
        let mut random = last | 1;
        let mut frequency = self.frequency;
        let mut due = last;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let period = 1_000_000_000 / u64::from(frequency);
            due = due.max(monotonic().saturating_sub(period)) + period;
            random = next_random(random);
            let earliest = due - period / JITTER;
            sleep_until(earliest + random % (2 * period / JITTER).max(1));
            let seen = self.look(monotonic().saturating_sub(last), false, &mut last);
            frequency = self.frequency.min((MAX_LOOKS / seen.max(1)).max(1) as u32);
            self.shared.frequency.store(frequency, Ordering::Relaxed);
            self.shared.threads.store(seen, Ordering::Relaxed);
        }
        // What is known of waits that go on.
        self.look(0, true, &mut last);
    }

    /// Looks at all threads. Returns their number.
    fn look(&mut self, weight: u64, is_flush: bool, last: &mut u64) -> u64 {
        let now = monotonic();
        *last = now;
        let parameters = LookParameters {
            weight,
            started: now,
            own_pid: std::process::id(),
            is_flush: is_flush.into(),
            ..LookParameters::default()
        };
        let before = self.counts.get(&0, 0).unwrap_or_default();
        let watched = self.shared.watched(|it| it.clone());
        let mut events = Vec::new();
        for (pid, watched) in watched {
            if self.parameters.set(0, parameters, 0).is_err() {
                break;
            }
            match self.iterate(&watched.link) {
                Ok(bytes) => {
                    let mut readings = self.read_runtimes(&watched, &bytes);
                    decode_all(&bytes, &mut readings, &mut events);
                    self.buffer = bytes;
                }
                // It has ended.
                Err(_) => self.shared.watched(|it| drop(it.remove(&pid))),
            }
        }
        let counts = self.counts.get(&0, 0).unwrap_or_default();
        let since = |of: fn(&LookCounts) -> u64| of(&counts).saturating_sub(of(&before));
        self.shared
            .read
            .fetch_add(since(|it| it.read), Ordering::Relaxed);
        self.shared
            .torn
            .fetch_add(since(|it| it.torn), Ordering::Relaxed);
        self.pass_on(events);
        since(|it| it.seen)
    }

    /// Passes events on to the recorder, if it is not too far behind.
    fn pass_on(&self, events: Vec<WaitEvent>) {
        let size = events.iter().map(WaitEvent::size).sum::<usize>();
        let before = self.shared.queued.fetch_add(size, Ordering::Relaxed);
        let number = events.len() as u64;
        // The receiver is dropped last.
        if before > MAX_QUEUED || number > 0 && self.events.send(events).is_err() {
            self.shared.queued.fetch_sub(size, Ordering::Relaxed);
            self.shared.lost.fetch_add(number, Ordering::Relaxed);
        }
    }

    /// Runs the program over the threads of a link, and returns its output.
    fn iterate(&mut self, link: &Link) -> io::Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        let mut file = link.iterate()?;
        loop {
            let filled = bytes.len();
            bytes.resize(filled + BUFFER, 0);
            let read = match file.read(&mut bytes[filled..]) {
                Ok(read) => read,
                Err(error) => match error.raw_os_error() {
                    // The kernel's iterators pause after many threads without output.
                    Some(libc::EAGAIN | libc::EINTR) => {
                        bytes.truncate(filled);
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            bytes.truncate(filled + read);
            if read == 0 {
                return Ok(bytes);
            }
        }
    }

    /// Reads what the runtimes of a process know of the waits that were read. It counts if they are still the same
    /// afterwards.
    fn read_runtimes(&mut self, watched: &Watched, bytes: &[u8]) -> Readings {
        let mut readings = Readings::default();
        let Some(runtimes) = &watched.runtimes else {
            return readings;
        };
        let target = LiveProcess::new(&runtimes.process, &runtimes.memory);
        each(bytes, |head, parts| {
            if head.kind == kind::WAIT && head.flags & TORN == 0 {
                let view = ThreadView::new(head.tid as i32, thread_pointer(parts));
                let reading = read_thread(&target, &runtimes.present, view);
                if !reading.is_empty() {
                    readings.insert((head.tid, head.detail), reading);
                }
            }
        });
        if readings.is_empty() {
            return readings;
        }
        let parameters = LookParameters {
            own_pid: std::process::id(),
            is_check: 1,
            ..LookParameters::default()
        };
        let mut same = HashSet::new();
        if self.parameters.set(0, parameters, 0).is_ok()
            && let Ok(checked) = self.iterate(&watched.link)
        {
            each(&checked, |head, _| {
                same.insert((head.tid, head.detail));
            });
        }
        readings.retain(|wait, _| same.contains(wait));
        readings
    }
}

/// What runtimes know of threads, by the thread and the number of its switches.
type Readings = HashMap<(u32, u64), Vec<RuntimeReading>>;

fn each(
    mut bytes: &[u8],
    mut visit: impl FnMut(&crate::ebpf::abi::EventHead, crate::ebpf::abi::Parts<'_>),
) {
    while let Some((head, parts)) = event(bytes) {
        bytes = &bytes[size_of_val(&head) + head.size as usize..];
        visit(&head, parts);
    }
}

fn decode_all(bytes: &[u8], readings: &mut Readings, to: &mut Vec<WaitEvent>) {
    each(bytes, |head, parts| {
        let mut event = decode(head, parts);
        if let Some(WaitEvent::New { look, .. }) = &mut event {
            look.runtimes = readings
                .remove(&(head.tid, head.detail))
                .unwrap_or_default();
        }
        to.extend(event);
    });
}

/// Makes the calling thread run at its ticks even where the CPUs are busy, if that is permitted: a late look finds the threads
/// that it has waited for, more often than there are.
fn raise_priority() {
    // SAFETY: all bytes zero are a valid value.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = PRIORITY;
    // SAFETY: the structure lives through the call, which changes the calling thread alone.
    unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const parameters,
        )
    };
}

/// Sleeps until a time of `CLOCK_MONOTONIC`, in nanoseconds.
fn sleep_until(time: u64) {
    std::thread::sleep(Duration::from_nanos(time.saturating_sub(monotonic())));
}

/// The next number of a xorshift generator (Marsaglia, 2003), which need not be better.
fn next_random(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}
