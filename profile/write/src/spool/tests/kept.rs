//! The newest part of a recording in memory.

use std::time::Duration;

use super::super::kept::KeptLimits;
use super::*;

/// The time that is kept, in nanoseconds; one sample is taken in each.
const KEPT: u64 = 600;

fn spool(memory: usize) -> KeptSpool {
    let limits = KeptLimits {
        rotation: Rotation::new(1 << 30, 10),
        memory,
    };
    KeptSpool::with(Duration::from_nanos(KEPT), 1000, limits)
}

/// A recorder whose samples are kept as text, too.
struct Recorder {
    spool: KeptSpool,
    catalog: Catalog,
    processes: [ProcessId; 2],
    before: Vec<String>,
    rotations: Vec<u64>,
}

impl Recorder {
    fn new(memory: usize) -> Self {
        let mut catalog = Catalog::new();
        let processes = processes(&mut catalog, true);
        Self {
            spool: spool(memory),
            catalog,
            processes,
            before: Vec::new(),
            rotations: Vec::new(),
        }
    }

    /// The time of the newest sample, one more than which is now.
    fn newest(&self) -> u64 {
        999 + self.before.len() as u64
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        counts.lost = self.before.len() as u64;
        counts
    }

    fn record(&mut self, samples: u64) {
        for _ in 0..samples {
            let number = self.before.len() as u64;
            let sample = sample(&mut self.catalog, self.processes, number);
            self.before.push(described(&self.catalog, &sample));
            self.spool.push(&sample);
            let (now, counts) = (self.newest() + 1, self.counts());
            if self.spool.write(&mut self.catalog, now, counts) {
                assert_eq!(self.catalog.stack_count(), 0);
                self.rotations.push(now);
                self.processes = processes(&mut self.catalog, true);
            }
        }
    }

    /// The samples of the last `time` nanoseconds.
    fn last(&mut self, time: u64) -> Recording {
        let now = clock(self.newest() + 1);
        let (time, counts) = (Duration::from_nanos(time), self.counts());
        let parts = self.spool.last(time, &self.catalog, now, PERIOD, counts);
        let most = parts.samples();
        let mut recordings: Vec<Recording> = parts.map(Result::unwrap).collect();
        assert_eq!(recordings.len(), 1);
        let recording = recordings.remove(0);
        assert!(recording.samples.len() as u64 <= most);
        recording
    }
}

#[test]
fn the_segment_that_was_closed_last_is_there_alone() {
    let mut recorder = Recorder::new(1 << 20);
    recorder.record(50);
    assert!(recorder.spool.newest(clock(2000), PERIOD).is_none());
    recorder.record(4_987);
    let closed = recorder.rotations[recorder.rotations.len() - 1] as usize - 1000;
    let parts = recorder.spool.newest(clock(9000), PERIOD).unwrap();
    assert_eq!(parts.samples(), 100);
    let recordings: Vec<Recording> = parts.map(Result::unwrap).collect();
    assert_eq!(
        all_described(&recordings),
        recorder.before[closed - 100..closed]
    );
}

/// Whatever the moment: each sample of the time once, no other, with all that it refers to.
#[test]
fn exactly_the_samples_of_the_last_time_are_there_and_recording_goes_on() {
    let mut recorder = Recorder::new(1 << 20);
    let mut moments = 0;
    while recorder.before.len() < 2_000 {
        recorder.record(37);
        for time in [1, 150, KEPT, 10 * KEPT] {
            let recording = recorder.last(time);
            let number = (time.min(KEPT) as usize).min(recorder.before.len());
            let expected = &recorder.before[recorder.before.len() - number..];
            assert_eq!(all_described(&[recording]), expected, "{time} {moments}");
        }
        moments += 1;
    }
    let recording = recorder.last(150);
    let end = recorder.newest() + 1;
    let Clock {
        start, start_unix, ..
    } = recording.clock;
    assert_eq!((start, recording.clock.end), (end - 150, end));
    assert_eq!(start_unix, clock(end).unix(start));
    assert_eq!(recorder.spool.dropped_early(), 0);
    // Each segment has a sixth of the time.
    let steps = recorder.rotations.windows(2).map(|it| it[1] - it[0]);
    assert_eq!(steps.collect::<Vec<_>>(), vec![100; 19]);
}

/// Seven closed segments at most: of the oldest, a part is needed.
#[test]
fn what_is_older_is_dropped_segment_by_segment() {
    let mut recorder = Recorder::new(1 << 20);
    for _ in 0..101 {
        recorder.record(50);
        assert!(recorder.spool.segments.len() <= 7);
        let sizes = recorder.spool.segments.iter().map(|it| it.size());
        assert_eq!(sizes.sum::<usize>(), recorder.spool.size);
    }
    // A recorder that has no samples any more has none to write, either.
    let later = recorder.newest() + 2 * KEPT;
    let counts = recorder.counts();
    assert!(recorder.spool.write(&mut recorder.catalog, later, counts));
    let later = later + KEPT;
    assert!(!recorder.spool.write(&mut recorder.catalog, later, counts));
    assert_eq!((recorder.spool.segments.len(), recorder.spool.size), (0, 0));
    let time = Duration::from_nanos(KEPT);
    let mut parts = recorder
        .spool
        .last(time, &recorder.catalog, clock(later), PERIOD, counts);
    let recording = parts.next().unwrap().unwrap();
    assert!(recording.samples.is_empty() && parts.next().is_none());
}

/// The clock says from when on nothing is missing.
#[test]
fn a_full_memory_drops_earlier_and_says_so() {
    let memory = 30_000;
    let mut recorder = Recorder::new(memory);
    for _ in 0..100 {
        recorder.record(50);
        let open = recorder.spool.open.samples.len();
        assert!(recorder.spool.size + open <= memory);
        let recording = recorder.last(KEPT);
        let start = recording.clock.start;
        let expected = &recorder.before[(start - 1000) as usize..];
        assert_eq!(all_described(&[recording]), expected);
        assert!(start > recorder.newest() - KEPT || recorder.before.len() < KEPT as usize);
    }
    assert!(recorder.spool.dropped_early() > 0);
    assert!(recorder.spool.segments.len() >= 2);
}

/// Or a recorder that was up for a day would call all samples lost that ever were.
#[test]
fn counters_are_those_of_the_segments_that_are_returned() {
    let mut recorder = Recorder::new(1 << 20);
    recorder.record(1);
    assert_eq!(recorder.last(KEPT).counts.lost, 1);
    recorder.record(4_999);
    // Samples 4,901 to 5,000 are in the open segment.
    for (time, lost) in [(50, 100), (100, 100), (101, 200), (600, 600)] {
        let recording = recorder.last(time);
        let newest = recorder.rotations[recorder.rotations.len() - 1];
        assert_eq!(recording.counts.lost, lost, "{time} {newest}");
    }
}
