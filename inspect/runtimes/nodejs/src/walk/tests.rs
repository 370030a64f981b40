use otelctx_reader::remote::memory::{CountedMemory, Image};

use super::*;

const STRUCTURE: u64 = 0x1000;
const SLOT: u64 = 0x2000;
const HANDLE: u64 = 0x2100;
const MAP: u64 = 0x10_0000;
const TABLE: u64 = 0x11_0000;
const KEY: u64 = 0x12_0000;
const OTHER_KEY: u64 = 0x12_1000;
const VALUE: u64 = 0x13_0000;
const UNDEFINED: u64 = 0x14_0000 + TAG;
const RECORD: u64 = 0x5000;
/// The offset of a record in an object, as in Node.js 24.
const FIELD: u8 = 32;
/// A hash that leads to the second of two buckets.
const HASH: i32 = 0x1234_5677;

const fn tagged(address: u64) -> u64 {
    address + TAG
}

const fn integer(number: i32) -> u64 {
    (number as u64) << 32
}

/// A heap in which the addon's key is the second one of its bucket, and has a value.
struct Heap {
    structure: [u64; 4],
    frame: u64,
    /// Words of the table.
    table: Vec<u64>,
    key_words: [u64; 2],
    field: u64,
}

impl Heap {
    fn new() -> Self {
        let header = [
            0x7777,
            integer(3 + 7 * 2),
            integer(2),
            integer(0),
            integer(2),
        ];
        let buckets = [integer(-1), integer(1)];
        let second = [tagged(KEY), tagged(VALUE), integer(-1)];
        let first = [tagged(OTHER_KEY), tagged(0x15_0000), integer(0)];
        let rest = [0; 2 * 3];
        let hash = u64::from(HASH.cast_unsigned()) | u64::from(FIELD) << 32;
        Self {
            structure: [SLOT, HANDLE, hash, UNDEFINED],
            frame: tagged(MAP),
            // The chain goes from the entry that was added last to the first one.
            table: [&header[..], &buckets, &second, &first, &rest].concat(),
            key_words: [0x7776 + TAG, 0],
            field: RECORD,
        }
    }

    fn image(&self) -> Image {
        let mut image = Image::new();
        image
            .map_u64(STRUCTURE, &self.structure)
            .map_u64(SLOT, &[self.frame])
            .map_u64(HANDLE, &[tagged(KEY)])
            .map_u64(MAP, &[0x7777, 0, 0, tagged(TABLE)])
            .map_u64(TABLE, &self.table)
            .map_u64(KEY, &self.key_words)
            .map_u64(OTHER_KEY, &[0x7777, 0])
            .map_u64(VALUE, &[0x7777, 0, 0, 0, self.field]);
        image
    }

    fn walk(&self) -> Result<Walked, Broken> {
        walk(&self.image(), STRUCTURE, RecordPlace::Published)
    }
}

#[test]
fn each_state_of_a_context_is_distinguished() {
    let mut heap = Heap::new();
    assert_eq!(heap.walk(), Ok(Walked::Record(RECORD)));
    heap.field = 0;
    assert_eq!(heap.walk(), Ok(Walked::TornDown));
    // Value of the key.
    heap.table[8] = UNDEFINED;
    assert_eq!(heap.walk(), Ok(Walked::Detached));
    // Another key in the same bucket.
    heap.table[7] = tagged(0x15_1000);
    assert_eq!(heap.walk(), Ok(Walked::NotInFrame));
    heap.frame = UNDEFINED;
    assert_eq!(heap.walk(), Ok(Walked::NoFrame));
    heap.structure[0] = 0;
    assert_eq!(heap.walk(), Ok(Walked::Unpublished));
}

#[test]
fn a_table_that_follows_its_map_is_read_with_it() {
    const LONGER_MAP: u64 = 0x18_0000;
    let mut heap = Heap::new();
    // Words between the map's own four and the table, and after the table; the reads of the walk, of which two compare
    // the key with the other one.
    for (between, after, reads) in [
        (0, 15, 7),
        (14, 1, 7),
        (15, 0, 7),
        // It is not read whole with its map.
        (16, 0, 8),
        // Memory ends behind the table.
        (14, 0, 9),
    ] {
        let mut map = vec![0x7777, 0, 0, 0];
        map.resize(map.len() + between, 0x7775);
        let table = LONGER_MAP + 8 * map.len() as u64;
        map[MAP_TABLE] = tagged(table);
        map.extend(&heap.table);
        map.resize(map.len() + after, 0x7774);
        heap.frame = tagged(LONGER_MAP);
        let mut image = heap.image();
        image.map_u64(LONGER_MAP, &map);
        let memory = CountedMemory::new(image);
        let walked = walk(&memory, STRUCTURE, RecordPlace::Published);
        assert_eq!(walked, Ok(Walked::Record(RECORD)), "{between}");
        assert_eq!(memory.take_reads(), reads, "{between} {after}");
    }
}

#[test]
fn undefined_may_be_in_a_slot() {
    const UNDEFINED_SLOT: u64 = 0x2200;
    let mut heap = Heap::new();
    (heap.structure[3], heap.frame) = (UNDEFINED_SLOT, UNDEFINED);
    let mut image = heap.image();
    image.map_u64(UNDEFINED_SLOT, &[UNDEFINED]);
    let walked = walk(&image, STRUCTURE, RecordPlace::Published);
    assert_eq!(walked, Ok(Walked::NoFrame));
}

#[test]
fn records_of_older_addons_are_found() {
    const WRAPPER: u64 = 0x6000;
    let mut heap = Heap::new();
    // What newer ones publish goes before what the process context says.
    let walked = walk(&heap.image(), STRUCTURE, RecordPlace::InObject(8));
    assert_eq!(walked, Ok(Walked::Record(RECORD)));
    heap.structure[2] &= 0xffff_ffff;
    let walked = walk(&heap.image(), STRUCTURE, RecordPlace::InObject(32));
    assert_eq!(walked, Ok(Walked::Record(RECORD)));
    assert_eq!(heap.walk(), Err(Broken::Inconsistent(Step::Published)));
    let mut image = heap.image();
    image
        .map_u64(VALUE, &[0x7777, 0, 0, WRAPPER, 0])
        .map_u64(WRAPPER, &[1, 2, 3, RECORD]);
    let (object, native) = (24, 24);
    let place = RecordPlace::InNative { object, native };
    assert_eq!(walk(&image, STRUCTURE, place), Ok(Walked::Record(RECORD)));
    image.map_u64(VALUE, &[0x7777, 0, 0, 0, 0]);
    assert_eq!(walk(&image, STRUCTURE, place), Ok(Walked::TornDown));
}

#[test]
fn attributes_of_older_addons_say_where_records_are() {
    let place = |attributes: &[(&str, i64)]| {
        let named = |&(name, value): &(&str, i64)| (format!("threadlocal.{name}"), value.into());
        RecordPlace::announced(&attributes.iter().map(named).collect::<Vec<_>>())
    };
    let native = |object, native| RecordPlace::InNative { object, native };
    let layout = [("tagged_size", 8), ("js_map_table_offset", 24)];
    assert_eq!(place(&layout), RecordPlace::Published);
    assert_eq!(
        place(&[("js_object_record_offset", 32), layout[0]]),
        RecordPlace::InObject(32)
    );
    let wrapped = ("wrapped_object_offset", 24);
    assert_eq!(
        place(&[wrapped, ("native_wrap_fields_offset", 40)]),
        native(24, 40)
    );
    assert_eq!(
        place(&[("nodejs_v1.wrapped_object_offset", 32)]),
        native(32, 24)
    );
    assert_eq!(place(&[wrapped]), RecordPlace::Published);
    assert_eq!(
        place(&[("js_object_record_offset", -8)]),
        RecordPlace::Published
    );
    assert_eq!(
        place(&[("tagged_size", 4), ("js_object_record_offset", 12)]),
        RecordPlace::Compressed
    );
    assert_eq!(
        place(&[("nodejs_v1.tagged_size", 4)]),
        RecordPlace::Compressed
    );
}

#[test]
fn compressed_pointers_are_refused() {
    let mut heap = Heap::new();
    let walked = |heap: &Heap| walk(&heap.image(), STRUCTURE, RecordPlace::Compressed);
    assert_eq!(walked(&heap), Err(Broken::Compressed));
    // What is not published is no error.
    heap.structure[0] = 0;
    assert_eq!(walked(&heap), Ok(Walked::Unpublished));
}

/// The garbage collector has updated only one of the handle and the table.
#[test]
fn a_key_that_has_moved_is_the_same() {
    const MOVED: u64 = 0x16_0000;
    let mut heap = Heap::new();
    // The table has the new address; at the old one is where it went.
    (heap.table[7], heap.key_words[0]) = (tagged(MOVED), MOVED);
    let mut image = heap.image();
    image.map_u64(MOVED, &[0x7776 + TAG, 0]);
    let walked = walk(&image, STRUCTURE, RecordPlace::Published);
    assert_eq!(walked, Ok(Walked::Record(RECORD)));
    // The handle has the new one.
    image
        .map_u64(HANDLE, &[tagged(MOVED)])
        .map_u64(TABLE, &Heap::new().table);
    let walked = walk(&image, STRUCTURE, RecordPlace::Published);
    assert_eq!(walked, Ok(Walked::Record(RECORD)));
    // Without a forwarding address, it is another key.
    heap.key_words[0] = tagged(MOVED);
    assert_eq!(heap.walk(), Ok(Walked::NotInFrame));
}

#[test]
fn inconsistent_words_are_errors() {
    let broken = |change: &dyn Fn(&mut Heap)| {
        let mut heap = Heap::new();
        change(&mut heap);
        heap.walk().unwrap_err()
    };
    let table = Broken::Inconsistent(Step::Table);
    let entry = Broken::Inconsistent(Step::Entry);
    assert_eq!(
        broken(&|heap| heap.frame = 0x9000),
        Broken::Inconsistent(Step::Frame)
    );
    assert_eq!(broken(&|heap| heap.table[1] = integer(16)), table);
    assert_eq!(broken(&|heap| heap.table[2] = integer(2) + 1), table);
    assert_eq!(broken(&|heap| heap.table[2] = integer(5)), table);
    assert_eq!(broken(&|heap| heap.table[3] = integer(-1)), table);
    assert_eq!(broken(&|heap| heap.table[4] = integer(3)), table);
    assert_eq!(broken(&|heap| heap.table[4] = integer(0)), table);
    // The first entry of the bucket is none that is used, or does not exist.
    assert_eq!(broken(&|heap| heap.table[6] = integer(2)), entry);
    assert_eq!(broken(&|heap| heap.table[6] = integer(-2)), entry);
    assert_eq!(broken(&|heap| heap.table[6] = 7), entry);
    // A chain that leads back.
    assert_eq!(broken(&|heap| heap.table[12] = integer(1)), entry);
    let is_unreadable = |error: Broken| matches!(error, Broken::Unreadable(Step::Record, _));
    assert!(is_unreadable(broken(
        &|heap| heap.table[8] = tagged(0x99_0000)
    )));
}
