//! The thread that scans waiting threads, at each tick of its own clock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::abi::{ScanCounts, ScanParameters, StackPiece, TORN, decode, kind, thread_pointer};
use super::iterator::Link;
use super::reader::{MemoryReader, Reader, Reading};
use crate::ebpf::abi::{EventHead, Parts, event, take};
use crate::monotonic;
use crate::second_walk::StackBytes;
use crate::waits::{ThreadId, WaitEvent, WaitSnapshot};
use aya::maps::{Array, MapData, RingBuf};
use foldhash::fast::RandomState;

/// Threads that are scanned in a second at most: a hundredth of a CPU's time.
const MAX_SCANS: u64 = 10_000;
/// The part of the time between two ticks by which a tick is earlier or later, at random: else ticks would stay in step with
/// work that is periodic.
const JITTER: u64 = 4;
/// Size of the buffer that one call reads into, in bytes: the kernel's is as large.
const BUFFER: usize = 64 * 1024;
/// Maximum number of bytes of a scan that are decoded at once.
const MAX_PORTION: usize = 4 << 20;
/// Maximum number of buffers to use again, as many as there are scans between two of the recorder's turns, and their size in
/// bytes.
const MAX_USED: usize = 8;
const MAX_USED_SIZE: usize = 2 << 20;
/// Bytes of events that the recorder has not passed on, from which on the scans wait for it.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// Time between two checks whether the recorder has caught up.
const CATCH_UP: Duration = Duration::from_millis(5);
/// The longest time for which the end of the scans goes unnoticed.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// The number of further walks that show which waits are still the same: see `IN_ORDER` in `bpf/waits.bpf.c`.
const CHECKS: usize = if cfg!(target_arch = "x86_64") { 1 } else { 2 };
/// Maximum number of threads whose stacks are read here.
const MAX_LONG_STACKS: usize = 1024;
/// Maximum number of bytes of their stacks that are read for one portion of a scan.
const MAX_LONG_READ: usize = 16 << 20;
/// Scans after which threads that have ended are forgotten.
const SCANS_PER_CLEANUP: u64 = 256;
/// The priority of the thread among the ones that run before all others (sched(7), `SCHED_FIFO`).
const PRIORITY: libc::c_int = 1;

/// What the recorder and the thread share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    /// The links of processes by their IDs; 0 has the one of all threads.
    links: Mutex<BTreeMap<i32, Arc<Link>>>,
    /// The processes of which something is read here.
    readers: Mutex<BTreeMap<i32, Arc<Reader>>>,
    /// The threads whose stacks are read here.
    long_stacks: Mutex<LongStacks>,
    /// The time between two scans, at present, in nanoseconds.
    pub(super) period: AtomicU64,
    /// Threads at the last tick.
    pub(super) threads: AtomicU64,
    /// Threads that were read, and how many of these went on meanwhile.
    pub(super) read: AtomicU64,
    pub(super) torn: AtomicU64,
    /// Events that the recorder had no room for.
    pub(super) lost: AtomicU64,
    /// All waits that were read before this time are on the way to the recorder, in nanoseconds of `CLOCK_MONOTONIC`;
    /// `u64::MAX` between two scans.
    pub(super) complete: AtomicU64,
    /// Bytes of events on the way to the recorder.
    pub(super) queued: AtomicUsize,
}

impl Shared {
    pub(super) fn links<T>(&self, change: impl FnOnce(&mut BTreeMap<i32, Arc<Link>>) -> T) -> T {
        change(&mut self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn readers<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<i32, Arc<Reader>>) -> T,
    ) -> T {
        change(&mut self.readers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn long_stacks<T>(&self, change: impl FnOnce(&mut LongStacks) -> T) -> T {
        let stacks = self.long_stacks.lock();
        change(&mut stacks.unwrap_or_else(PoisonError::into_inner))
    }
}

/// The parts of long stacks that are behind those in the events, by the thread and the number of its switches.
pub(super) struct LongCopies {
    pieces: RingBuf<MapData>,
    /// The address of the first byte, and the bytes from there on.
    stacks: HashMap<(u32, u64), (u64, Vec<u8>), RandomState>,
}

impl LongCopies {
    pub(super) fn new(pieces: RingBuf<MapData>) -> Self {
        Self {
            pieces,
            stacks: HashMap::default(),
        }
    }

    /// Takes over what the program has written.
    fn receive(&mut self) {
        while let Some(record) = self.pieces.next() {
            if let Some((piece, _)) = take::<StackPiece>(&record) {
                add_piece(&mut self.stacks, &piece);
            }
        }
    }

    /// Adds the rest of its stack to a snapshot.
    fn add_to(&mut self, snapshot: &mut WaitSnapshot, wait: (u32, u64)) {
        if let Some((start, rest)) = self.stacks.remove(&wait)
            && let Some(copied) = snapshot.stack.as_mut().and_then(Arc::get_mut)
            && copied.stack.0.checked_add(copied.stack.1.len() as u64) == Some(start)
        {
            let all = [&copied.stack.1[..], &rest[..]].concat();
            copied.stack.1 = StackBytes::Own(all);
        }
    }
}

fn add_piece(stacks: &mut HashMap<(u32, u64), (u64, Vec<u8>), RandomState>, piece: &StackPiece) {
    let (start, bytes) = stacks.entry((piece.tid, piece.detail)).or_default();
    // Where there was no room for the event, the program reads the thread again.
    if start.checked_add(bytes.len() as u64) != Some(piece.address) {
        (*start, *bytes) = (piece.address, Vec::new());
    }
    let size = piece.bytes.len().min(piece.size as usize);
    bytes.extend_from_slice(&piece.bytes[..size]);
}

/// The threads whose stacks are read here, as they are longer than what the program copies.
#[derive(Clone, Debug, Default)]
pub(super) struct LongStacks(HashSet<ThreadId, RandomState>);

impl LongStacks {
    /// Adds a thread. Returns false if it was added before, or there is no room.
    pub(super) fn insert(&mut self, thread: ThreadId) -> bool {
        self.0.len() < MAX_LONG_STACKS && self.0.insert(thread)
    }

    /// Forgets threads that have ended.
    fn remove_ended(&mut self) {
        let exists = |(pid, tid): &ThreadId| Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
        self.0.retain(exists);
    }

    pub(super) fn remove(&mut self, pid: i32) {
        self.0.retain(|(of, _)| *of != pid);
    }
}

pub(super) struct Scanner {
    pub(super) shared: Arc<Shared>,
    pub(super) parameters: Array<MapData, ScanParameters>,
    pub(super) counts: Array<MapData, ScanCounts>,
    pub(super) events: SyncSender<Vec<WaitEvent>>,
    /// The frequency that was asked for, in Hz.
    pub(super) frequency: u32,
    pub(super) memory: MemoryReader,
    /// What the program passes on of long stacks, if it reads memory.
    pub(super) long_copies: Option<LongCopies>,
    /// Waits in the current scan that ended while they were read here.
    pub(super) ended: u64,
    pub(super) output: Output,
}

/// What was read of an iterator and is not decoded yet.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Stacks that were decoded share it. Else it is used again, and only grows: to fill new memory with zeros takes longer
    /// than to read.
    buffer: Arc<Vec<u8>>,
    filled: usize,
    /// Former buffers, which the recorder will be done with.
    used: Vec<Arc<Vec<u8>>>,
}

impl Output {
    fn clear(&mut self) {
        self.filled = 0;
    }

    /// Reads on from an iterator. Returns false at its end.
    fn read_more(&mut self, file: &mut File) -> io::Result<bool> {
        let (start, end) = (self.filled, self.filled + BUFFER);
        let buffer = self.own();
        if buffer.len() < end {
            buffer.resize(end, 0);
        }
        match file.read(&mut buffer[start..end]) {
            Ok(read) => {
                self.filled += read;
                Ok(read > 0)
            }
            Err(error) => match error.raw_os_error() {
                // The kernel's iterators pause after many threads without output.
                Some(libc::EAGAIN | libc::EINTR) => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// Returns the buffer, or another one that begins with the same bytes, if it is still in use.
    fn own(&mut self) -> &mut Vec<u8> {
        if Arc::get_mut(&mut self.buffer).is_none() {
            let is_free = |it: &Arc<Vec<u8>>| Arc::strong_count(it) == 1;
            let free = self.used.iter().position(is_free);
            let mut buffer = free.map_or_else(Arc::default, |at| self.used.swap_remove(at));
            let bytes = &self.buffer[..self.filled];
            let new = Arc::get_mut(&mut buffer).expect("nobody else has it");
            new.resize(new.len().max(bytes.len()), 0);
            new[..bytes.len()].copy_from_slice(bytes);
            let used = std::mem::replace(&mut self.buffer, buffer);
            if self.used.len() < MAX_USED && used.len() <= MAX_USED_SIZE {
                self.used.push(used);
            }
        }
        Arc::get_mut(&mut self.buffer).expect("nobody else has it")
    }

    /// Passes on all events that are complete. Returns their size.
    fn each(&self, mut visit: impl FnMut(&EventHead, Parts<'_>)) -> usize {
        let mut rest = &self.buffer[..self.filled];
        while let Some((head, parts)) = event(rest) {
            rest = &rest[size_of_val(&head) + head.size as usize..];
            visit(&head, parts);
        }
        self.filled - rest.len()
    }

    /// Forgets the first bytes, which are decoded.
    fn remove(&mut self, decoded: usize) {
        let filled = self.filled;
        self.own().copy_within(decoded..filled, 0);
        self.filled -= decoded;
    }
}

impl Scanner {
    pub(super) fn run(mut self) {
        raise_priority();
        let mut last = monotonic();
        let mut random = last | 1;
        let shortest = 1_000_000_000 / u64::from(self.frequency);
        let mut period = shortest;
        let mut due = last;
        let mut scans = 0_u64;
        while !self.shared.stop.load(Ordering::Relaxed) {
            due = due.max(monotonic().saturating_sub(period)) + period;
            random = next_random(random);
            let earliest = due - period / JITTER;
            self.sleep_until(earliest + random % (2 * period / JITTER).max(1));
            let seen = self.scan(monotonic().saturating_sub(last), false, &mut last);
            scans += 1;
            if scans.is_multiple_of(SCANS_PER_CLEANUP) {
                self.shared.long_stacks(LongStacks::remove_ended);
            }
            period = shortest.max(seen.saturating_mul(1_000_000_000 / MAX_SCANS));
            self.shared.period.store(period, Ordering::Relaxed);
            self.shared.threads.store(seen, Ordering::Relaxed);
        }
        // Facts about waits that go on.
        self.scan(0, true, &mut last);
    }

    /// Scans all threads. Returns their number.
    fn scan(&mut self, weight: u64, is_flush: bool, last: &mut u64) -> u64 {
        let now = monotonic();
        *last = now;
        self.shared.complete.store(now, Ordering::Release);
        let parameters = ScanParameters {
            weight,
            started: now,
            own_pid: std::process::id(),
            is_flush: is_flush.into(),
            ..ScanParameters::default()
        };
        let before = self.counts.get(&0, 0).unwrap_or_default();
        for (pid, link) in self.shared.links(|it| it.clone()) {
            if self.iterate(&link, parameters).is_err() {
                // It has ended.
                self.shared.links(|it| drop(it.remove(&pid)));
            }
        }
        self.shared.complete.store(u64::MAX, Ordering::Release);
        let counts = self.counts.get(&0, 0).unwrap_or_default();
        let since = |of: fn(&ScanCounts) -> u64| of(&counts).saturating_sub(of(&before));
        let ended = std::mem::take(&mut self.ended);
        let read = since(|it| it.read).saturating_sub(ended);
        let torn = since(|it| it.torn) + ended;
        self.shared.read.fetch_add(read, Ordering::Relaxed);
        self.shared.torn.fetch_add(torn, Ordering::Relaxed);
        since(|it| it.seen)
    }

    /// Runs the program over the threads of a link, and passes on its events.
    fn iterate(&mut self, link: &Link, parameters: ScanParameters) -> io::Result<()> {
        self.set(parameters)?;
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        let mut file = link.iterate()?;
        while output.read_more(&mut file)? {
            if let Some(copies) = &mut self.long_copies {
                copies.receive();
            }
            if output.filled >= MAX_PORTION {
                // What follows is read later.
                let now = monotonic();
                let decoded = self.pass_on(link, &output);
                output.remove(decoded);
                self.shared.complete.store(now, Ordering::Release);
                self.set(parameters)?;
            }
        }
        self.pass_on(link, &output);
        self.output = output;
        Ok(())
    }

    fn set(&mut self, parameters: ScanParameters) -> io::Result<()> {
        let set = self.parameters.set(0, parameters, 0);
        set.map_err(io::Error::other)
    }

    /// Passes on the events of a scan. Returns their size.
    fn pass_on(&mut self, link: &Link, output: &Output) -> usize {
        let mut readings = self.read(link, output);
        let needs_reading = self.memory.is_in_place;
        let (mut events, mut size) = (Vec::new(), 0);
        let decoded = output.each(|head, parts| {
            let mut event = decode(head, parts, &output.buffer);
            if let Some(WaitEvent::New { snapshot, .. }) = &mut event {
                let (was_torn, wait) = (snapshot.is_torn, (head.tid, head.detail));
                if let Some(copies) = &mut self.long_copies {
                    copies.add_to(snapshot, wait);
                }
                add(snapshot, readings.remove(&wait), needs_reading);
                self.ended += u64::from(snapshot.is_torn && !was_torn);
            }
            size += event.as_ref().map_or(0, WaitEvent::size);
            events.extend(event);
        });
        if let Some(copies) = &mut self.long_copies {
            // Those of waits that ended meanwhile.
            copies.stacks.clear();
        }
        let number = events.len() as u64;
        if number == 0 {
            return decoded;
        }
        self.wait_for_recorder();
        self.shared.queued.fetch_add(size, Ordering::Relaxed);
        // It waits for the recorder, too, which takes over everything until this thread has ended.
        if self.events.send(events).is_err() {
            self.shared.lost.fetch_add(number, Ordering::Relaxed);
        }
        decoded
    }

    /// Waits while the recorder has much to do. The time counts for the threads that are scanned afterwards.
    fn wait_for_recorder(&self) {
        while self.shared.queued.load(Ordering::Relaxed) > MAX_QUEUED_BYTES
            && !self.shared.stop.load(Ordering::Relaxed)
        {
            std::thread::sleep(CATCH_UP);
        }
    }

    /// Reads what the program does not of the waits that it has found. It counts if they are still the same afterwards.
    fn read(&mut self, link: &Link, output: &Output) -> Readings {
        let mut readings = Readings::default();
        let readers = self.shared.readers(|it| it.clone());
        let long_stacks = self.shared.long_stacks(|it| it.clone());
        let memory = &mut self.memory;
        let mut room = MAX_LONG_READ;
        let has_runtimes = readers.values().any(|it| it.has_runtimes());
        if !memory.is_in_place && long_stacks.0.is_empty() && !has_runtimes {
            return readings;
        }
        output.each(|head, parts| {
            if head.kind != kind::WAIT || head.flags & TORN != 0 {
                return;
            }
            let thread = (head.pid.cast_signed(), head.tid.cast_signed());
            let reader = readers.get(&thread.0).map(Arc::as_ref);
            let pointer = thread_pointer(parts.clone());
            let is_long = room > 0 && long_stacks.0.contains(&thread);
            let needs_memory = memory.is_in_place || is_long;
            let event = needs_memory.then(|| decode(head, parts, &output.buffer));
            let reading = match event.flatten() {
                Some(WaitEvent::New { snapshot, .. }) => {
                    memory.read(reader, &snapshot, pointer, is_long)
                }
                _ => Reading::of_runtimes(reader, thread.1, pointer),
            };
            let read = reading.stack.as_ref().filter(|_| is_long);
            room = room.saturating_sub(read.map_or(0, |it| it.1.len()));
            if !reading.is_empty() {
                readings.insert((head.tid, head.detail), reading);
            }
        });
        let reads_memory = memory.is_in_place || readings.values().any(|it| it.stack.is_some());
        let checks = if reads_memory { CHECKS } else { 1 };
        for _ in 0..checks {
            if readings.is_empty() {
                break;
            }
            let same = self.same(link).unwrap_or_default();
            readings.retain(|wait, _| same.contains(wait));
        }
        readings
    }

    /// Returns the waits that are still the same as in the last scan, by the thread and the number of its switches.
    fn same(&mut self, link: &Link) -> io::Result<HashSet<(u32, u64)>> {
        self.set(ScanParameters {
            own_pid: std::process::id(),
            is_check: 1,
            ..ScanParameters::default()
        })?;
        let (mut same, mut output) = (HashSet::new(), Output::default());
        let mut file = link.iterate()?;
        while output.read_more(&mut file)? {
            let decoded = output.each(|head, _| {
                same.insert((head.tid, head.detail));
            });
            output.remove(decoded);
        }
        Ok(same)
    }

    /// Sleeps until a time of `CLOCK_MONOTONIC`, in nanoseconds, or until the scans end.
    fn sleep_until(&self, time: u64) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let left = Duration::from_nanos(time.saturating_sub(monotonic()));
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LONGEST_SLEEP));
        }
    }
}

/// Adds what was read here to a snapshot. If `needs_reading`, a wait of which that does not count has ended.
fn add(snapshot: &mut WaitSnapshot, reading: Option<Reading>, needs_reading: bool) {
    let Some(reading) = reading else {
        if needs_reading {
            snapshot.is_torn = true;
            snapshot.stack = None;
            snapshot.kernel_stack.clear();
        }
        return;
    };
    snapshot.runtimes = reading.runtimes;
    if let Some(read) = reading.context {
        snapshot.serial = read.serial;
        (snapshot.context, snapshot.variable) = (read.context, read.variable);
    }
    if let Some((start, bytes)) = reading.stack
        && let Some(copied) = snapshot.stack.as_mut().and_then(Arc::get_mut)
    {
        copied.stack = (start, StackBytes::Own(bytes));
    }
}

/// What was read of threads, by the thread and the number of its switches.
type Readings = HashMap<(u32, u64), Reading>;

/// Makes the calling thread run at its ticks even where the CPUs are busy, if that is permitted: a late scan finds the threads
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

/// The next number of a xorshift generator (Marsaglia, 2003), which need not be better.
fn next_random(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_follow_each_other_are_one_stack_and_a_second_reading_replaces_the_first() {
        let mut stacks = HashMap::default();
        let mut add = |address, size, byte| {
            let piece = StackPiece {
                detail: 7,
                tid: 1,
                size,
                address,
                bytes: [byte; 4096],
            };
            add_piece(&mut stacks, &piece);
            stacks[&(1, 7)].clone()
        };
        assert_eq!(add(0x1ffe, 2, 1), (0x1ffe, vec![1; 2]));
        assert_eq!(add(0x2000, 1, 2), (0x1ffe, vec![1, 1, 2]));
        assert_eq!(add(0x1ffe, 2, 3), (0x1ffe, vec![3; 2]));
        // The program does not say so.
        assert_eq!(add(0x2000, u32::MAX, 4).1.len(), 2 + 4096);
    }
}
