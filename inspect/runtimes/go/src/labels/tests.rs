use otelctx_reader::remote::memory::{CountedMemory, Image};

use super::*;
use crate::goroutine;
use crate::layout::Layout;

/// Addresses of the parts of an image.
const G: u64 = 0x1000;
const THREAD: u64 = 0x2000;
const LABELS: u64 = 0x3000;
const ENTRIES: u64 = 0x4000;
const TEXTS: u64 = 0x5000;
const MAP: u64 = 0x6000;
/// Room for chains of buckets.
const BUCKETS: u64 = 0x7000;
const BUCKETS_SIZE: usize = 64 * BUCKET_SIZE;
const ONE_GIB: u64 = 1 << 30;

/// The words of a process with a goroutine and two labels, `a=1` and `b=2`.
struct Process {
    layout: Layout,
    pieces: Vec<(u64, Vec<u64>)>,
}

impl Process {
    fn new(minor: u32) -> Self {
        let layout = Layout::of_minor(minor).unwrap();
        let mut g = vec![0; 64];
        g[layout.goroutine.thread as usize / 8] = THREAD;
        g[layout.goroutine.id as usize / 8] = 7;
        g[layout.goroutine.labels as usize / 8] = LABELS;
        let mut thread = vec![0; 64];
        thread[layout.thread.goroutine as usize / 8] = G;
        let texts = [TEXTS, TEXTS + 8, TEXTS + 16, TEXTS + 24];
        let [a, one, b, two] = texts.map(|it| [it, 1]);
        let mut buckets = vec![0; BUCKETS_SIZE / 8];
        // The tops of two hashes, names and values.
        buckets[0] = 0x0707;
        buckets[1..5].copy_from_slice([a, b].as_flattened());
        buckets[17..21].copy_from_slice([one, two].as_flattened());
        let labels = match layout.labels {
            LabelLayout::Slice => vec![ENTRIES, 2, 2],
            LabelLayout::Map => vec![MAP],
        };
        let letters = b"a1b2".map(u64::from);
        Self {
            layout,
            pieces: vec![
                (G, g),
                (THREAD, thread),
                (LABELS, labels),
                (ENTRIES, [a, one, b, two].as_flattened().to_vec()),
                (TEXTS, letters.to_vec()),
                (MAP, vec![2, 0, BUCKETS, 0]),
                (BUCKETS, buckets),
            ],
        }
    }

    /// Changes the word at an address.
    fn set(&mut self, address: u64, word: u64) {
        let has = |(start, words): &&mut (u64, Vec<u64>)| {
            (*start..*start + 8 * words.len() as u64).contains(&address)
        };
        let (start, words) = self.pieces.iter_mut().find(has).unwrap();
        words[(address - *start) as usize / 8] = word;
    }

    /// Reads the labels of the goroutine, and counts the reads.
    fn read(&self) -> (Result<Labels, RuntimeError>, usize) {
        let mut image = Image::new();
        for (address, words) in &self.pieces {
            image.map_u64(*address, words);
        }
        let memory = CountedMemory::new(image);
        let found = goroutine::running(&memory, &self.layout, G);
        let labels = found.and_then(|found| match found {
            Some(found) => read(&memory, self.layout.labels, found.labels),
            None => Ok(Labels::default()),
        });
        (labels, memory.take_reads())
    }

    fn pairs(&self) -> Vec<String> {
        let labels = self.read().0.unwrap().labels.into_iter();
        labels
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }
}

#[test]
fn labels_are_read_from_a_slice_and_from_a_map() {
    for minor in [21, 23, 24, 26] {
        assert_eq!(Process::new(minor).pairs(), ["a=1", "b=2"], "{minor}");
    }
}

#[test]
fn entries_of_a_map_that_grows_are_in_the_old_buckets_until_they_are_moved() {
    let mut process = Process::new(23);
    // Two new buckets, and the old one that has not been moved.
    let old = BUCKETS + 8 * BUCKET_SIZE as u64;
    process.set(MAP + 8, 1 << 8);
    process.set(MAP + 24, old);
    process.set(old, 0x07);
    process.set(old + 8, TEXTS + 16);
    process.set(old + 16, 1);
    process.set(old + 8 + 128, TEXTS + 24);
    process.set(old + 16 + 128, 1);
    process.set(BUCKETS, 0x07);
    assert_eq!(process.pairs(), ["a=1", "b=2"]);
    // It was moved: what is left of it does not count.
    process.set(old, 0x02);
    process.set(BUCKETS, 0x0707);
    assert_eq!(process.pairs(), ["a=1", "b=2"]);
    // The number is that of all.
    process.set(MAP, 3);
    let error = process.read().0.unwrap_err();
    assert_eq!(error.to_string(), "its map has 2 labels, not 3");
}

#[test]
fn slices_and_maps_that_lie_are_errors() {
    let error = |minor, address, word| {
        let mut process = Process::new(minor);
        process.set(address, word);
        let (labels, reads) = process.read();
        assert!(reads < 100, "{reads} reads");
        labels.unwrap_err().to_string()
    };
    let said = error(26, LABELS + 8, 3);
    assert_eq!(said, "its slice has 3 labels, and room for 2");
    error(26, LABELS, 8);
    error(26, ENTRIES, ONE_GIB);
    // Another thread's goroutine.
    let said = error(26, G + 48, LABELS);
    assert!(said.starts_with("no readable memory"), "{said}");
    error(23, MAP + 8, 0xff << 8);
    error(23, MAP, ONE_GIB);
    error(23, MAP + 16, 8);
    // A bucket that follows itself.
    let next = BUCKETS + BUCKET_SIZE as u64 - 8;
    let mut process = Process::new(23);
    process.set(next, BUCKETS);
    process.set(BUCKETS, 0);
    let (labels, reads) = process.read();
    let said = labels.unwrap_err().to_string();
    assert_eq!(said, "a bucket of its map has more than 16 followers");
    assert!(reads < 100, "{reads} reads");
    // With labels in it, the first ones are kept, as of a map with many.
    process.set(BUCKETS, 0x0707);
    process.set(MAP, 64);
    assert!(process.read().1 < 200);
}

#[test]
fn texts_of_any_length_are_cut() {
    for minor in [23, 26] {
        let mut process = Process::new(minor);
        let value = match minor {
            23 => BUCKETS + 8 + 128 + 8,
            _ => ENTRIES + 24,
        };
        // There is not as much memory.
        process.set(value, ONE_GIB);
        assert!(process.read().0.is_err());
        let long = vec![u64::from_ne_bytes(*b"12345678"); MAX_VALUE / 8 + 1];
        process.pieces.push((TEXTS + 0x100, long));
        process.set(value - 8, TEXTS + 0x100);
        let labels = process.read().0.unwrap().labels;
        assert_eq!(labels[0], ("a".into(), "12345678".repeat(MAX_VALUE / 8)));
    }
}

/// Numbers that are one after the other, by xorshift.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn any_words_are_read_with_bounded_effort() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut read = 0;
    for round in 0..2_000 {
        let mut process = Process::new(21 + round % 6);
        for _ in 0..1 + numbers.next() % 4 {
            let piece = numbers.next() as usize % process.pieces.len();
            let (start, words) = &process.pieces[piece];
            let index = numbers.next() % words.len().min(48) as u64;
            let address = start + 8 * index;
            let other = numbers.next() as usize % process.pieces.len();
            let word = match numbers.next() % 5 {
                0 => 0,
                1 => u64::MAX,
                2 => numbers.next(),
                3 => ONE_GIB,
                // Another part, or itself.
                _ => process.pieces[other].0 + 8 * (numbers.next() % 4),
            };
            process.set(address, word);
        }
        let (labels, reads) = process.read();
        read += usize::from(labels.is_ok());
        assert!(reads <= 2 + (2 << MAX_BITS) * MAX_CHAIN + 2 * MAX_LABELS);
        if let Ok(labels) = labels {
            assert!(labels.labels.len() <= MAX_LABELS);
        }
    }
    assert!(read > 100, "{read}");
}
