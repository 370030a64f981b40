//! Reads the program's events in the order of their times: samples from a ring for each CPU, other
//! events from the kernel's ring buffer (`bpf/ring.h`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};

use super::abi::{self, EventHead, Parts, SAMPLE_LIMIT, SEGMENT_SIZE, Segment};
use super::object::{array, map};
use super::shared::Shared;
use crate::Options;
use crate::refusal::Refusal;

/// Bytes of a usual sample: its head, the largest record that OTEP 4947 recommends, and 30 frames.
const USUAL_SAMPLE: u64 = 960;
/// Bytes of a usual sample in one ring buffer for all CPUs.
const LARGE_SAMPLE: u64 = 1744;
/// Bytes of the kernel's ring buffer beside rings: 7,000 events of processes, 72 bytes each.
const PROCESS_EVENTS: u32 = 512 << 10;
/// Limits of the ring buffer's size without rings, in bytes.
const MIN_RING_BUFFER: u64 = 1 << 20;
const MAX_RING_BUFFER: u64 = 64 << 20;
/// Maximum size of all rings, in bytes.
const MAX_RINGS: u64 = 64 << 20;

/// Sizes of rings and ring buffer, which hold the events of one second: the recorder may have to
/// wait for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Number of segments of each ring, a power of two; 0 without rings.
    each: u32,
    /// Number of segments of all rings, at least 1.
    pub(super) segments: u32,
    /// Bytes, a power of two.
    pub(super) ring_buffer: u32,
}

impl Sizes {
    /// Sizes a ring for each of the online CPUs. CPUs that come online later use the ring buffer.
    pub(super) fn new(options: &Options, online: usize, with_rings: bool) -> Self {
        let frequency = 1_000_000_000 / options.period();
        let online = online.max(1) as u64;
        if !with_rings {
            let size = (frequency * online * LARGE_SAMPLE).next_power_of_two();
            return Self {
                each: 0,
                segments: 1,
                ring_buffer: size.clamp(MIN_RING_BUFFER, MAX_RING_BUFFER) as u32,
            };
        }
        let size = options.ring.unwrap_or(frequency * USUAL_SAMPLE);
        let most = (MAX_RINGS / SEGMENT_SIZE / online).max(1);
        let most = 1 << most.ilog2();
        let each = size.div_ceil(SEGMENT_SIZE).next_power_of_two().min(most);
        Self {
            each: each as u32,
            segments: (each * online) as u32,
            ring_buffer: PROCESS_EVENTS,
        }
    }

    pub(super) fn has_rings(&self) -> bool {
        self.each != 0
    }
}

pub(super) struct Events {
    ring_buffer: RingBuf<MapData>,
    /// Next event of the ring buffer; empty if there is none.
    pending: Vec<u8>,
    rings: Vec<Ring>,
    cpus: Shared<abi::Cpu>,
    segments: Shared<Segment>,
    /// Times and sources of the next events.
    next: BinaryHeap<Reverse<(u64, Source)>>,
    /// The source of the event that was returned last.
    current: Option<Source>,
    /// Number of rings' contents that were not events, which the program does not write.
    pub(super) discarded: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    RingBuffer,
    Ring(usize),
}

impl Events {
    /// `cpus` is the program's map of that name.
    pub(super) fn new(
        programs: &mut Ebpf,
        cpus: &MapData,
        online: &[u32],
        sizes: &Sizes,
    ) -> Result<Self, Refusal> {
        let cpus: Shared<abi::Cpu> = Shared::of_open(cpus).map_err(Refusal::of)?;
        let segments = Shared::of(array(programs, "segments")?).map_err(Refusal::of)?;
        let mut rings = Vec::new();
        if sizes.has_rings() {
            for (cpu, index) in online.iter().zip(0_u32..) {
                let cpu = *cpu as usize;
                if cpu < cpus.count {
                    let ring = Ring {
                        cpu,
                        first: index * sizes.each,
                        segments: sizes.each,
                        head: 0,
                        tail: 0,
                    };
                    ring.announce(&cpus);
                    rings.push(ring);
                }
            }
        }
        Ok(Self {
            ring_buffer: map(programs, "events")?,
            pending: Vec::new(),
            rings,
            cpus,
            segments,
            next: BinaryHeap::new(),
            current: None,
            discarded: 0,
        })
    }

    /// Starts reading the events that have been published so far.
    pub(super) fn begin(&mut self) {
        for ring in &mut self.rings {
            ring.update_head(&self.cpus);
        }
        self.release();
        self.next.clear();
        for index in 0..self.rings.len() {
            self.find_next(Source::Ring(index));
        }
        self.find_next(Source::RingBuffer);
    }

    /// Returns the next event, if it is not later than `until` (`CLOCK_MONOTONIC`, nanoseconds).
    /// The next call returns its memory to the program.
    pub(super) fn next(&mut self, until: u64) -> Option<(EventHead, Parts<'_>)> {
        self.release();
        let &Reverse((time, source)) = self.next.peek()?;
        if time > until {
            return None;
        }
        self.next.pop();
        self.current = Some(source);
        match source {
            Source::RingBuffer => abi::event(&self.pending),
            Source::Ring(index) => abi::event(self.rings[index].next(&self.segments)?),
        }
    }

    fn release(&mut self) {
        let Some(source) = self.current.take() else {
            return;
        };
        match source {
            Source::RingBuffer => self.pending.clear(),
            Source::Ring(index) => self.rings[index].release(&self.cpus, &self.segments),
        }
        self.find_next(source);
    }

    fn find_next(&mut self, source: Source) {
        let time = match source {
            Source::RingBuffer => {
                while self.pending.is_empty()
                    && let Some(event) = self.ring_buffer.next()
                {
                    if abi::event(&event).is_some() {
                        self.pending.extend_from_slice(&event);
                    }
                }
                abi::event(&self.pending).map(|(head, _)| head.time)
            }
            Source::Ring(index) => {
                let ring = &mut self.rings[index];
                let bytes = ring.next(&self.segments);
                let event = bytes.and_then(abi::event);
                if bytes.is_some() && event.is_none() {
                    ring.release(&self.cpus, &self.segments);
                    self.discarded += 1;
                }
                event.map(|(head, _)| head.time)
            }
        };
        self.next.extend(time.map(|time| Reverse((time, source))));
    }
}

/// The ring of one CPU. Positions are bytes since the start.
#[derive(Debug)]
struct Ring {
    cpu: usize,
    first: u32,
    /// Number of segments, a power of two.
    segments: u32,
    /// End of the program's last sample.
    head: u64,
    /// Start of the next sample to read, or of unused bytes before it.
    tail: u64,
}

impl Ring {
    /// Passes the ring's position to the program.
    fn announce(&self, cpus: &Shared<abi::Cpu>) {
        let state = cpus.value(self.cpu);
        // SAFETY: `Shared` keeps the value mapped, and no clock runs the program yet.
        unsafe {
            (&raw mut (*state).first).write(self.first);
            (&raw mut (*state).segments).write(self.segments);
        }
    }

    fn update_head(&mut self, cpus: &Shared<abi::Cpu>) {
        // SAFETY: `Shared` keeps the value mapped; the member is aligned and written whole.
        let head = unsafe { AtomicU64::from_ptr(&raw mut (*cpus.value(self.cpu)).head) };
        // The program writes a sample before it moves the head.
        self.head = head.load(Ordering::Acquire);
    }

    /// Returns the start of the next event, like `reserve` in `ring.h`.
    fn position(&self) -> u64 {
        let rest = SEGMENT_SIZE - self.tail % SEGMENT_SIZE;
        let skipped = if rest < SAMPLE_LIMIT { rest } else { 0 };
        self.tail + skipped
    }

    /// Returns the bytes from the next event on.
    fn next<'s>(&self, segments: &'s Shared<Segment>) -> Option<&'s [u8]> {
        let position = self.position();
        let available = self.head.checked_sub(position).filter(|size| *size > 0)?;
        let segment = self.first + (position / SEGMENT_SIZE) as u32 % self.segments;
        let segment = segments.value(segment as usize).cast::<u8>();
        let size = available.min(SAMPLE_LIMIT) as usize;
        // SAFETY: `Shared` keeps the segment mapped, `position` leaves at least SAMPLE_LIMIT bytes
        // to its end, and the program does not write between `tail` and `head`.
        unsafe {
            let start = segment.add((position % SEGMENT_SIZE) as usize);
            Some(std::slice::from_raw_parts(start, size))
        }
    }

    /// Returns the memory of the next event to the program; all memory, if that is not an event.
    fn release(&mut self, cpus: &Shared<abi::Cpu>, segments: &Shared<Segment>) {
        let event = self.next(segments).and_then(abi::event);
        let size = event.map(|(head, _)| size_of::<EventHead>() as u64 + u64::from(head.size));
        self.tail = size.map_or(self.head, |size| self.position() + size);
        // SAFETY: `Shared` keeps the value mapped; the member is aligned and written here alone.
        let read = unsafe { AtomicU64::from_ptr(&raw mut (*cpus.value(self.cpu)).read) };
        // The program may write there from now on.
        read.store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

    use super::*;

    impl Events {
        /// Number of bytes that were read of rings, if there are rings.
        pub(in crate::ebpf) fn read_from_rings(&self) -> Option<u64> {
            let read = self.rings.iter().map(|ring| ring.tail);
            read.reduce(|sum, read| sum + read)
        }
    }

    /// Maps that many values, as of a map of the program.
    fn shared<T>(count: usize) -> Shared<T> {
        // SAFETY: the name is a C string; the descriptor that is returned belongs to nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"map".as_ptr(), 0)) };
        let size = (size_of::<T>() * count) as libc::off_t;
        // SAFETY: a descriptor and a number.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), size) }, 0);
        Shared::map(file.as_fd(), count).unwrap()
    }

    /// Writes what the program does, as `reserve` and `publish` in `ring.h`.
    struct Writer {
        cpus: Shared<abi::Cpu>,
        segments: Shared<Segment>,
        first: u64,
        count: u64,
    }

    impl Writer {
        fn state(&self) -> *mut abi::Cpu {
            self.cpus.value(1)
        }

        /// Returns false if there is no room.
        fn write(&self, time: u64, size: u32) -> bool {
            let head = EventHead {
                time,
                size,
                ..EventHead::default()
            };
            // SAFETY: the values are mapped, and this is the only thread.
            unsafe {
                let mut at = (*self.state()).head;
                if at % SEGMENT_SIZE > SEGMENT_SIZE - SAMPLE_LIMIT {
                    at = at.next_multiple_of(SEGMENT_SIZE);
                }
                if at + SAMPLE_LIMIT - (*self.state()).read > self.count * SEGMENT_SIZE {
                    return false;
                }
                let index = self.first + at / SEGMENT_SIZE % self.count;
                let segment = self.segments.value(index as usize).cast::<u8>();
                let to = segment.add((at % SEGMENT_SIZE) as usize);
                to.cast::<EventHead>().write_unaligned(head);
                (*self.state()).head = at + size_of::<EventHead>() as u64 + u64::from(size);
            }
            true
        }
    }

    fn ring(first: u32, count: u32) -> (Ring, Writer) {
        let writer = Writer {
            cpus: shared(2),
            segments: shared(4),
            first: first.into(),
            count: count.into(),
        };
        let ring = Ring {
            cpu: 1,
            first,
            segments: count,
            head: 0,
            tail: 0,
        };
        ring.announce(&writer.cpus);
        (ring, writer)
    }

    /// Reads one event.
    fn read(ring: &mut Ring, writer: &Writer) -> Option<(u64, u32)> {
        ring.update_head(&writer.cpus);
        let event = ring.next(&writer.segments).and_then(abi::event);
        let found = event.map(|(head, _)| (head.time, head.size));
        ring.release(&writer.cpus, &writer.segments);
        found
    }

    #[test]
    fn events_of_all_sizes_are_read_around_the_ring() {
        for (first, count) in [(0, 1), (2, 2), (0, 4)] {
            let (mut ring, writer) = ring(first, count);
            let largest = SAMPLE_LIMIT as u32 - size_of::<EventHead>() as u32;
            let sizes = [0, 8, 312, 4096, largest].into_iter().cycle();
            let (mut written, mut expected) = (0, std::collections::VecDeque::new());
            for (time, size) in (1..).zip(sizes).take(5000) {
                // Until it is full at times, and read empty at others.
                while !writer.write(time, size) {
                    assert_eq!(read(&mut ring, &writer), expected.pop_front());
                }
                expected.push_back((time, size));
                written += 1;
                if time % 97 == 0 {
                    while let Some(event) = expected.pop_front() {
                        assert_eq!(read(&mut ring, &writer), Some(event));
                    }
                    assert_eq!(read(&mut ring, &writer), None);
                }
            }
            assert_eq!(written, 5000);
        }
    }

    #[test]
    fn what_is_no_event_ends_with_the_head() {
        let (mut ring, writer) = ring(0, 2);
        assert!(writer.write(1, 16));
        assert!(writer.write(2, u32::MAX / 2));
        // SAFETY: the value is mapped, and this is the only thread.
        unsafe { (*writer.state()).head = 400 };
        assert_eq!(read(&mut ring, &writer), Some((1, 16)));
        assert_eq!(read(&mut ring, &writer), None);
        assert!(writer.write(3, 16));
        assert_eq!(read(&mut ring, &writer), Some((3, 16)));
    }

    #[test]
    fn memory_follows_frequency_and_online_cpus() {
        let sizes = |frequency, online| {
            let mut options = Options::new(crate::Targets::All);
            options.frequency = frequency;
            let sizes = Sizes::new(&options, online, true);
            (sizes.each, sizes.segments, sizes.ring_buffer)
        };
        assert_eq!(sizes(99, 2), (2, 4, PROCESS_EVENTS));
        assert_eq!(sizes(99, 64), (2, 128, PROCESS_EVENTS));
        assert_eq!(sizes(999, 64), (16, 1024, PROCESS_EVENTS));
        // No more than 64 MiB for all.
        assert_eq!(sizes(19_999, 64), (16, 1024, PROCESS_EVENTS));
        assert_eq!(sizes(19_999, 2), (512, 1024, PROCESS_EVENTS));
        assert_eq!(sizes(99, 5000), (1, 5000, PROCESS_EVENTS));
        let without = Sizes::new(&Options::new(crate::Targets::All), 2, false);
        assert!(!without.has_rings());
        assert_eq!((without.segments, without.ring_buffer), (1, 1 << 20));
    }
}
