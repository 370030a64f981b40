//! What the addon measures at load, on hand-made memory. Only Node.js can load the addon, so that these are the files
//! themselves.

#[path = "../src/own_memory.rs"]
#[allow(dead_code)]
mod own_memory;
#[path = "../src/probe.rs"]
#[allow(dead_code)]
mod probe;

use own_memory::OwnMemory;
use probe::{TAG, WordSearch, look_up, record_offset};

const RECORD: usize = 0x5a5a_7070_1234_5678;
const KEY: usize = 0x1001;
const OTHER_KEY: usize = 0x2001;
const VALUE: usize = 0x3001;
/// Its lowest bit is that of the bucket.
const HASH: i32 = 0x7001;

fn memory() -> OwnMemory {
    OwnMemory::open().unwrap()
}

/// The word that refers to an object at the beginning of `words`.
fn tagged(words: &[usize]) -> usize {
    words.as_ptr().expose_provenance() + TAG
}

fn number(number: i32) -> usize {
    (number as u32 as usize) << 32
}

#[test]
fn a_record_is_found_in_one_of_two_places() {
    let mut object = [0; 5];
    let at = |object: &[usize]| record_offset(&mut memory(), tagged(object), RECORD);
    assert_eq!(at(&object), None);
    object[3] = RECORD;
    assert_eq!(at(&object), Some(24));
    object[4] = RECORD;
    assert_eq!(at(&object), None);
    object[3] = 0;
    assert_eq!(at(&object), Some(32));
    object[4] = 0;
    object[2] = RECORD;
    assert_eq!(at(&object), None);
    // No object.
    assert_eq!(record_offset(&mut memory(), 0, RECORD), None);
}

#[test]
fn a_word_is_found_if_one_place_has_all_its_values() {
    let mut isolate = [0_usize; 256];
    let address = isolate.as_ptr().expose_provenance();
    let mut search = WordSearch::default();
    assert_eq!(search.found(), None);
    // Two places have the first value, and another one has the second.
    (isolate[72], isolate[100], isolate[200]) = (11, 11, 13);
    std::hint::black_box(&mut isolate);
    search.note(&mut memory(), address, 11);
    assert_eq!(search.found(), None);
    (isolate[72], isolate[100]) = (13, 12);
    std::hint::black_box(&mut isolate);
    search.note(&mut memory(), address, 13);
    assert_eq!(search.found(), Some(72 * 8));
    // It did not change with the word.
    search.note(&mut memory(), address, 14);
    assert_eq!(search.found(), None);

    let mut search = WordSearch::default();
    search.note(&mut memory(), 8, 11);
    assert_eq!(search.found(), None);
}

/// A map with two buckets. Both entries are in the second one; the first of its chain is of another key.
struct Map {
    table: [usize; 5 + 2 + 4 * 3],
    frame: [usize; 4],
}

impl Map {
    fn new() -> Box<Self> {
        let mut table = [0; 19];
        table[1] = number(17);
        table[2..5].copy_from_slice(&[number(2), number(0), number(2)]);
        table[5..7].copy_from_slice(&[number(-1), number(1)]);
        table[7..10].copy_from_slice(&[KEY, VALUE, number(-1)]);
        table[10..13].copy_from_slice(&[OTHER_KEY, 0x4001, number(0)]);
        let mut map = Box::new(Self {
            table,
            frame: [0; 4],
        });
        map.frame[3] = tagged(&map.table);
        map
    }

    fn value(&self) -> Option<usize> {
        std::hint::black_box(self);
        look_up(&mut memory(), tagged(&self.frame), KEY, HASH)
    }

    /// The value after this change.
    fn changed(change: impl FnOnce(&mut Self)) -> Option<usize> {
        let mut map = Self::new();
        change(&mut map);
        map.value()
    }
}

#[test]
fn a_value_is_found_in_the_chain_of_its_bucket() {
    assert_eq!(Map::new().value(), Some(VALUE));
    let mut map = Map::new();
    map.table[5] = number(1);
    map.table[6] = number(-1);
    assert_eq!(map.value(), None);
    let found = look_up(&mut memory(), tagged(&map.frame), KEY, HASH - 1);
    assert_eq!(found, Some(VALUE));
}

type Change = fn(&mut Map);

#[test]
fn a_map_of_another_form_has_no_value() {
    let changes: [(&str, Change); 11] = [
        ("no object", |map| map.frame[3] -= TAG),
        ("no memory", |map| map.frame[3] = 8 + TAG),
        ("elements are no number", |map| map.table[2] |= 1),
        ("negative elements", |map| map.table[2] = number(-1)),
        ("deleted are no number", |map| map.table[3] = KEY),
        ("buckets are no number", |map| map.table[4] += 2),
        ("no buckets", |map| map.table[4] = number(0)),
        ("three buckets", |map| map.table[4] = number(3)),
        ("more elements than room", |map| map.table[2] = number(5)),
        ("an entry that is not there", |map| map.table[6] = number(2)),
        ("a cycle", |map| {
            map.table[7] = OTHER_KEY;
            map.table[9] = number(1);
        }),
    ];
    for (what, change) in changes {
        assert_eq!(Map::changed(change), None, "{what}");
    }
    // With as many as there is room for, it is the same map.
    assert_eq!(Map::changed(|map| map.table[2] = number(4)), Some(VALUE));
    assert_eq!(look_up(&mut memory(), 0, KEY, HASH), None);
}
