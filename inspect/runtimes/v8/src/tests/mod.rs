//! Hand-made heaps: what is right, and what lies.

mod frames;
mod garbage;

use otelctx_reader::remote::Memory;
use otelctx_reader::remote::memory::{CountedMemory, Image};

use crate::code::CodeFinder;
use crate::function::{Identity, Names};
use crate::heap::{Heap, Object};
use crate::layout::{Layout, Types, Version};
use crate::script::Scripts;
use crate::text::cut;

/// The layout of V8 13.6.
pub(crate) fn layout() -> Layout {
    Layout {
        version: Version {
            major: 13,
            minor: 6,
        },
        types: Types {
            function: 2065..=2081,
            shared: 282,
            shared_wrapper: Some(195),
            script: 167,
            scope_info: 280,
            code: 187,
            instruction_stream: 192,
            bytecode: 186,
            bytecode_wrapper: 149,
            interpreter_data: 188,
            byte_arrays: [196, 217],
        },
        map_type: 12,
        function_shared: 32,
        shared_name: 24,
        shared_script: 40,
        shared_flags: 56,
        shared_literal: 60,
        script_source: 8,
        script_name: 16,
        script_id: 64,
        code_start: 40,
        code_size: 56,
        code_flags: 52,
        bytecode_data: 64,
        deopt_literals: 3,
        deopt_shared: 7,
        deopt_inlining: 8,
        deopt_entries: Some(12),
        baseline: 10,
        scope_locals: 2,
        scope_first: 5,
        has_statements: false,
    }
}

/// Where maps of types are: one every 16 bytes, so that the type is in the map's place.
const MAPS: u64 = 0x10_0000;

/// Instance types of strings.
const ONE_BYTE: u16 = 40;
const TWO_BYTE: u16 = 32;
const CONCATENATED: u16 = 41;
const SLICED: u16 = 43;
const THIN: u16 = 45;
const EXTERNAL: u16 = 42;

const fn tagged(address: u64) -> u64 {
    address + 1
}

const fn integer(number: i32) -> u64 {
    (number as u64) << 32
}

/// Returns the word with an object's map, for a type.
fn map_of(kind: u16) -> u64 {
    tagged(MAPS + 16 * u64::from(kind))
}

/// A heap in an image.
#[derive(Default)]
struct Built(Image);

impl Built {
    /// Maps an object of a type, with these words behind its map.
    fn object(&mut self, at: u64, kind: u16, words: &[u64]) -> u64 {
        let mut map = [0; 16];
        map[12..14].copy_from_slice(&kind.to_le_bytes());
        self.0.map(map_of(kind) - 1, map);
        self.0.map_u64(at, &[&[map_of(kind)], words].concat());
        tagged(at)
    }

    /// A string with these words behind its length.
    fn string(&mut self, at: u64, kind: u16, length: u32, words: &[u64]) -> u64 {
        let head = u64::from(length) << 32;
        self.object(at, kind, &[&[head], words].concat())
    }

    /// A flat string.
    fn text(&mut self, at: u64, text: &str) -> u64 {
        let characters: Vec<u16> = text.encode_utf16().collect();
        let is_narrow = characters.iter().all(|it| *it < 256);
        let (kind, bytes): (u16, Vec<u8>) = if is_narrow {
            (ONE_BYTE, characters.iter().map(|it| *it as u8).collect())
        } else {
            let bytes = characters.iter().flat_map(|it| it.to_le_bytes());
            (TWO_BYTE, bytes.collect())
        };
        let string = self.string(at, kind, characters.len() as u32, &[]);
        self.0.map(at + 16, bytes);
        string
    }

    /// A script with this source and name.
    fn script(&mut self, source: u64, name: u64) -> u64 {
        let mut words = [0; 10];
        words[..3].copy_from_slice(&[source, name, integer(2)]);
        words[7] = integer(77);
        self.object(SCRIPT, 167, &words)
    }

    fn read<T>(&self, read: impl FnOnce(&Heap<'_>) -> T) -> (T, usize) {
        let layout = layout();
        let memory = CountedMemory::new(self.0.clone());
        let found = read(&Heap {
            memory: &memory,
            layout: &layout,
        });
        (found, memory.take_reads())
    }
}

fn object(word: u64) -> Object {
    Object::strong(word).unwrap()
}

#[test]
fn strings_are_read_in_all_their_forms() {
    let mut heap = Built::default();
    let flat = heap.text(0x1000, "checkout");
    let wide = heap.text(0x1100, "Preis \u{20ac}\u{1f600}");
    let both = heap.string(0x1200, CONCATENATED, 17, &[flat, wide]);
    let inside = heap.string(0x1300, SLICED, 6, &[both, integer(5)]);
    let thin = heap.string(0x1400, THIN, 8, &[flat]);
    heap.0.map(0x9000, *b"elsewhere");
    let external = heap.string(0x1500, EXTERNAL, 9, &[0, 0x9000]);
    let empty = heap.text(0x1600, "");
    let cons = heap.string(0x1700, CONCATENATED, 8, &[flat, empty]);
    let text = |string, limit| heap.read(|heap| heap.text(object(string), limit)).0;
    for (string, expected) in [
        (flat, "checkout"),
        (wide, "Preis \u{20ac}\u{1f600}"),
        (both, "checkoutPreis \u{20ac}\u{1f600}"),
        (inside, "outPre"),
        (thin, "checkout"),
        (external, "elsewhere"),
        (empty, ""),
        (cons, "checkout"),
    ] {
        assert_eq!(text(string, 100).as_deref(), Some(expected));
    }
    assert_eq!(text(both, 9).as_deref(), Some("checkoutP"));
    assert_eq!(text(both, 3).as_deref(), Some("che"));
}

#[test]
fn texts_are_cut_between_characters() {
    for (limit, expected) in [(0, ""), (1, ""), (2, ""), (3, "\u{20ac}"), (4, "\u{20ac}a")] {
        assert_eq!(
            cut("\u{20ac}a\u{e9}".to_owned(), limit),
            expected,
            "{limit}"
        );
    }
    assert_eq!(cut("\u{20ac}".to_owned(), 512), "\u{20ac}");
}

/// Names and files are kept for each place in a function.
#[test]
fn names_and_files_of_frames_are_limited_in_bytes() {
    let mut heap = with_function("a", &scope());
    let name = heap.text(0x1_0000, &"\u{20ac}".repeat(600));
    let file = heap.text(0x1_8000, &"\u{20ac}".repeat(5000));
    let script = heap.script(tagged(SOURCE), file);
    heap.object(SHARED, 282, &[0, 0, name, 0, script, 0, 0]);
    let scripts = Scripts::default();
    let frame = heap.read(|heap| heap.frame(&scripts, Object::at(SHARED), None));
    let frame = frame.0.unwrap();
    assert_eq!(frame.function, "\u{20ac}".repeat(170));
    assert_eq!(frame.file, "\u{20ac}".repeat(1365));
}

#[test]
fn strings_that_contain_themselves_or_too_much_are_not_read() {
    const MAX_READS: usize = 8 << 10;
    let mut heap = Built::default();
    let flat = heap.text(0x1000, "ab");
    let cases = [
        heap.string(0x2000, CONCATENATED, 2, &[tagged(0x2000), flat]),
        heap.string(0x2200, THIN, 2, &[tagged(0x2200)]),
        heap.string(0x2300, SLICED, 2, &[tagged(0x2300), 0]),
        heap.string(0x2400, SLICED, 2, &[flat, integer(i32::MAX)]),
        heap.string(0x2500, SLICED, 2, &[flat, integer(-1)]),
        heap.string(0x2600, SLICED, 3, &[flat, 0]),
        heap.string(0x2700, CONCATENATED, 9, &[flat, flat]),
        // The first part says that it is longer than all.
        heap.string(0x2800, CONCATENATED, 2, &[tagged(0x2900), flat]),
        heap.string(0x2900, ONE_BYTE, i32::MAX as u32, &[]),
        heap.string(0x2a00, ONE_BYTE, u32::MAX, &[]),
        heap.string(0x2b00, EXTERNAL, 9, &[0, u64::MAX - 3]),
        // A thin string of another one, that is no string.
        heap.string(0x2c00, THIN, 2, &[tagged(MAPS)]),
        heap.string(0x2d00, 50, 2, &[0, 0x1000]),
    ];
    for string in cases {
        let (text, reads) = heap.read(|heap| heap.text(object(string), 1 << 20));
        assert_eq!(text, None, "{string:#x}");
        assert!(reads <= MAX_READS, "{string:#x}: {reads} reads");
    }
}

const SHARED: u64 = 0x4000;
const SCRIPT: u64 = 0x5000;
const SOURCE: u64 = 0x6000;

/// A function `price` in a script, whose scope has these words.
fn with_function(source: &str, scope: &[u64]) -> Built {
    let mut heap = Built::default();
    let text = heap.text(SOURCE, source);
    let name = heap.text(0x7000, "/srv/shop.js");
    let script = heap.script(text, name);
    heap.text(0x7100, "price");
    heap.text(0x7200, "Shop.price");
    let scope = heap.object(0x8000, 280, scope);
    let flags = 22 | 5 << 32;
    heap.object(SHARED, 282, &[0, 0, scope, 0, script, 0, flags]);
    heap
}

/// A scope with two variables in a context, a name and an inferred name, from position 3 to 40.
fn scope() -> Vec<u64> {
    let flags = 1 << 12 | 1 << 14;
    let mut words = vec![integer(flags), 0, integer(2), integer(3), integer(40)];
    words.extend([0, 0, 0, 0]);
    words.extend([tagged(0x7100), 0, tagged(0x7200)]);
    words
}

#[test]
fn a_function_has_its_names_its_place_and_its_identity() {
    let heap = with_function("ab\ncdef\r\ng\rh\u{2028}i", &scope());
    let shared = Object::at(SHARED);
    let (names, _) = heap.read(|heap| heap.names(shared));
    let expected = Names {
        name: "price".into(),
        inferred: "Shop.price".into(),
        range: Some((3, 40)),
    };
    assert_eq!(names, Some(expected));
    let (identity, _) = heap.read(|heap| heap.identity(shared));
    let expected = Identity {
        script: 77,
        literal: 5,
    };
    assert_eq!(identity, Some(expected));
    // The script begins on line 3. A position outside of the function is not its own.
    let places = [3, 6, 8, 9, 10, 11, 12, 13, 2, 41];
    let lines = [4, 4, 4, 5, 5, 6, 6, 7, 4, 4];
    for (position, line) in places.into_iter().zip(lines) {
        let scripts = Scripts::default();
        let (frame, _) = heap.read(|heap| heap.frame(&scripts, shared, Some(position)));
        let frame = frame.unwrap();
        let found = (&*frame.function, &*frame.file, frame.line);
        assert_eq!(found, ("price", "/srv/shop.js", line), "{position}");
    }
    let (frame, _) = heap.read(|heap| heap.frame(&Scripts::default(), shared, None));
    assert_eq!(frame.unwrap().line, 4);
}

#[test]
fn scopes_that_lie_have_no_names() {
    let name = |change: &dyn Fn(&mut Vec<u64>)| {
        let mut words = scope();
        change(&mut words);
        let heap = with_function("a", &words);
        let (names, reads) = heap.read(|heap| heap.names(Object::at(SHARED)));
        assert!(reads < 100, "{reads}");
        names.map(|it| it.name)
    };
    assert_eq!(name(&|_| ()).as_deref(), Some("price"));
    for locals in [-1, i32::MIN, i32::MAX, 1 << 17] {
        assert_eq!(name(&|words| words[2] = integer(locals)), None);
    }
    // Further variables than there are.
    let far = name(&|words| words[2] = integer(1 << 16));
    assert_eq!(far.as_deref(), Some(""));
    let other = name(&|words| words[9] = tagged(SHARED));
    assert_eq!(other.as_deref(), Some(""));
    // Positions in the wrong order are none.
    let mut words = scope();
    words.swap(3, 4);
    let heap = with_function("a", &words);
    let (names, _) = heap.read(|heap| heap.names(Object::at(SHARED)));
    assert_eq!(names.unwrap().range, None);
}

#[test]
fn another_function_at_the_same_address_has_another_identity() {
    let mut heap = with_function("a", &scope());
    let identity = |heap: &Built| heap.read(|heap| heap.identity(Object::at(SHARED))).0;
    let first = identity(&heap).unwrap();
    heap.0.map_u64(SHARED + 56, &[22 | 6 << 32]);
    assert_ne!(identity(&heap).unwrap(), first);
    heap.0.map_u64(SHARED + 56, &[22 | 5 << 32]);
    heap.0.map_u64(SCRIPT + 64, &[integer(78)]);
    assert_ne!(identity(&heap).unwrap(), first);
    // The garbage collector has left the address of its new place.
    heap.0.map_u64(SHARED, &[SHARED + 0x1000]);
    assert_eq!(identity(&heap), None);
}

/// Sources that do not change are read once.
#[test]
fn the_lines_of_a_script_are_kept() {
    let heap = with_function(&"x\n".repeat(20), &scope());
    let scripts = Scripts::default();
    let shared = Object::at(SHARED);
    let lines = |position| {
        let frame = |heap: &Heap<'_>| heap.frame(&scripts, shared, Some(position));
        let (frame, reads) = heap.read(frame);
        (frame.unwrap().line, reads)
    };
    let (line, first) = lines(38);
    assert_eq!(line, 22);
    let (line, next) = lines(20);
    assert_eq!(line, 13);
    assert!(next < first, "{next} of {first}");
    // Another script is there now.
    let mut heap = heap;
    heap.0.map_u64(SCRIPT + 64, &[integer(78)]);
    heap.text(SOURCE, &"\n".repeat(40));
    let frame = heap.read(|heap| heap.frame(&scripts, shared, Some(38))).0;
    assert_eq!(frame.unwrap().line, 41);
}

#[test]
fn arrays_with_impossible_lengths_are_not_read() {
    let mut heap = Built::default();
    for (length, expected) in [(3, Some(3)), (-1, None), (i32::MAX, None)] {
        heap.object(0x1000, 196, &[integer(length), 0x01_02_03]);
        let (bytes, _) = heap.read(|heap| heap.bytes(Object::at(0x1000), 1 << 10));
        assert_eq!(bytes.map(|it| it.len()), expected);
        let (word, _) = heap.read(|heap| heap.element(Object::at(0x1000), u64::MAX >> 8));
        assert_eq!(word, None);
    }
    // No small integer.
    heap.object(0x1000, 196, &[tagged(0x1000)]);
    let (bytes, _) = heap.read(|heap| heap.bytes(Object::at(0x1000), 1 << 10));
    assert_eq!(bytes, None);
    assert!(heap.0.read_u64(0x1000).is_ok());
}

/// Code that starts at an address, and its description.
fn with_code(start: u64, size: u32) -> Built {
    let mut heap = Built::default();
    let code = heap.object(0x1000, 187, &[0, 0, 0, 0, start, 12 << 32, size.into()]);
    let page = start & !0xfff;
    heap.0.map(page, vec![0; (start - 32 - page) as usize]);
    heap.object(start - 32, 192, &[code]);
    heap.0.map(start - 16, vec![0; 0x2000]);
    heap
}

#[test]
fn code_is_found_by_the_addresses_of_its_instructions() {
    let find = |heap: &Built, address, floor| {
        let finder = CodeFinder::default();
        heap.read(|heap| finder.find(heap, address, floor).map(|it| it.range))
    };
    let heap = with_code(0x5_0140, 0x300);
    for address in [0x5_0140, 0x5_0141, 0x5_0200, 0x5_043f, 0x5_0440] {
        let (found, reads) = find(&heap, address, 0x5_0000);
        assert_eq!(found, Some(0x5_0140..0x5_0440), "{address:#x}");
        assert!(reads < 10, "{reads}");
    }
    for address in [0x5_0000, 0x5_0100, 0x5_013f, 0x5_0441, 0x5_0800] {
        assert_eq!(find(&heap, address, 0x5_0000).0, None, "{address:#x}");
    }
    // Memory that begins behind its header, and at address 0.
    assert_eq!(find(&heap, 0x5_0200, 0x5_0140).0, None);
    for address in [0, 31, 32, 64, 100, 0x1000] {
        assert_eq!(find(&heap, address, 0).0, None, "{address:#x}");
    }
    assert_eq!(find(&heap, u64::MAX, 0).0, None);
    // The description says that it starts elsewhere.
    let mut heap = heap;
    heap.0.map_u64(0x1000 + 40, &[0x5_0180]);
    assert_eq!(find(&heap, 0x5_0200, 0x5_0000).0, None);
}
