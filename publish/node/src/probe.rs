//! Measures where this V8 has what readers follow, and follows it as they do.

use crate::own_memory::OwnMemory;

/// The lowest bit of a word that refers to an object (V8's src/objects/tagged.h).
pub(crate) const TAG: usize = 1;
/// Offset of its table in a `JSMap`, in bytes (V8's src/objects/js-collection.h).
pub(crate) const MAP_TABLE: usize = 24;
/// Size of a table's header, in bytes: what is before the number of its elements (V8's
/// src/objects/ordered-hash-table.h).
pub(crate) const TABLE_HEADER: usize = 16;
/// Size of a word of V8's heap, in bytes.
pub(crate) const TAGGED_SIZE: usize = 8;
/// Possible offsets of an object's first internal field, in bytes.
const RECORD_OFFSETS: [usize; 2] = [24, 32];
/// Size of the search in an isolate, in bytes: Node.js 22, 24 and 26 have the word at 576 to 680.
const ISOLATE_SIZE: usize = 2048;
/// Maximum number of entries in a bucket that are read.
const MAX_CHAIN: usize = 64;

/// Returns where an object has the address of its record, in bytes, when `record` is that.
pub(crate) fn record_offset(memory: &mut OwnMemory, object: usize, record: usize) -> Option<usize> {
    let object = object.checked_sub(TAG)?;
    let mut found = RECORD_OFFSETS.into_iter().filter(|offset| {
        let word = memory.word(object.wrapping_add(*offset));
        word == Some(record)
    });
    let offset = found.next()?;
    found.next().is_none().then_some(offset)
}

/// Possible offsets of a word in an isolate, in bytes, by several values that it had.
#[derive(Default)]
pub(crate) struct WordSearch {
    candidates: Option<Vec<usize>>,
}

impl WordSearch {
    /// Notes that the word is this one now.
    pub(crate) fn note(&mut self, memory: &mut OwnMemory, isolate: usize, word: usize) {
        let words = memory.words(isolate, ISOLATE_SIZE / size_of::<usize>());
        let is_there = |offset: usize| words.get(offset / size_of::<usize>()) == Some(&word);
        match &mut self.candidates {
            Some(candidates) => candidates.retain(|offset| is_there(*offset)),
            None => {
                let offsets = (0..ISOLATE_SIZE).step_by(size_of::<usize>());
                self.candidates = Some(offsets.filter(|offset| is_there(*offset)).collect());
            }
        }
    }

    /// Returns the only place, if one is left.
    pub(crate) fn found(&self) -> Option<usize> {
        match self.candidates.as_deref() {
            Some([offset]) => Some(*offset),
            _ => None,
        }
    }
}

/// Returns the value of a key in the map that an asynchronous context frame is.
pub(crate) fn look_up(
    memory: &mut OwnMemory,
    frame: usize,
    key: usize,
    hash: i32,
) -> Option<usize> {
    let table = memory.word(object(frame)?.wrapping_add(MAP_TABLE))?;
    let table = object(table)?;
    let counts = memory.words(table.wrapping_add(TABLE_HEADER), 3);
    let [elements, deleted, buckets] = counts.try_into().ok()?;
    let [elements, deleted, buckets] = [number(elements)?, number(deleted)?, number(buckets)?];
    if !buckets.is_power_of_two() || elements + deleted > 2 * buckets {
        return None;
    }
    let first_bucket = table.wrapping_add(TABLE_HEADER + 3 * TAGGED_SIZE);
    let bucket = hash as u32 as usize & (buckets - 1);
    let mut next = memory.word(first_bucket.wrapping_add(TAGGED_SIZE * bucket))?;
    for _ in 0..MAX_CHAIN {
        // -1 ends the chain.
        let index = number(next).filter(|index| *index < elements + deleted)?;
        let entry = first_bucket.wrapping_add(TAGGED_SIZE * (buckets + 3 * index));
        let words = memory.words(entry, 3);
        let [entry_key, value, chain] = words.try_into().ok()?;
        if entry_key == key {
            return Some(value);
        }
        next = chain;
    }
    None
}

/// Returns the address of the object that a word refers to.
fn object(word: usize) -> Option<usize> {
    (word & TAG == TAG).then(|| word - TAG)
}

/// Returns the number that a word is: in the upper half, above zeroes.
fn number(word: usize) -> Option<usize> {
    let is_number = word as u32 == 0;
    let number = (word as u64 >> 32) as i32;
    usize::try_from(number).ok().filter(|_| is_number)
}
