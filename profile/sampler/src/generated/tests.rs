use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::FileExt;

use otelctx_sample::{FrameKind, NamedFrame};

use super::announcement::{Entry, Format, MAX_ENTRY};
use super::frame::frame;
use super::functions::MAX_NAME;
use super::source::MAX_LAST_BYTES;
use super::*;

impl GeneratedCode {
    /// Puts the next search off as far as it can be.
    pub(crate) fn put_off_search(&mut self) {
        for _ in 0..10 {
            self.searches.done(Instant::now(), Duration::ZERO, false);
        }
    }
}

fn named(name: &str) -> (FrameKind, String, String, u32) {
    let NamedFrame {
        kind, file, line, ..
    } = frame(name);
    (kind, frame(name).name().to_owned(), file, line)
}

#[test]
fn names_are_split_as_their_runtimes_write_them() {
    let python = named("py::Shop.checkout:/srv/shop.py");
    let expected = (
        FrameKind::CPYTHON,
        "Shop.checkout".into(),
        "/srv/shop.py".into(),
        0,
    );
    assert_eq!(python, expected);
    assert_eq!(frame("py::Shop.checkout:/srv/shop.py").function, "checkout");
    let node = named("JS:*checkout file:///srv/shop.js:12:5");
    let expected = (
        FrameKind::V8JS,
        "checkout".into(),
        "file:///srv/shop.js".into(),
        12,
    );
    assert_eq!(node, expected);
    let anonymous = named("JS:~ /srv/shop.js:1:1");
    let expected = (
        FrameKind::V8JS,
        "(anonymous shop.js:1)".into(),
        "/srv/shop.js".into(),
        1,
    );
    assert_eq!(anonymous, expected);
    assert_eq!(named("JS:~").1, "(anonymous)");
    for tier in ["o*", "o+", "*'", "^", ""] {
        let name = format!("JS:{tier}open shop.js:1:2");
        assert_eq!(named(&name).1, "open", "{tier}");
    }
    assert_eq!(named("JS:*o shop.js:1:2").1, "o");
    assert_eq!(named("BytecodeHandler:Ldar").1, "Ldar");
    let java = "Lshop/Shop;::checkout";
    assert_eq!(
        named(java),
        (FrameKind::NATIVE, java.into(), String::new(), 0)
    );
}

/// Names with their times, of everything in a file.
fn read(format: &mut impl Format, mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((next, length)) = format.next(bytes) {
        if let Next::Function(entry) = next {
            found.push((entry.start, entry.size, entry.name.to_vec()));
        }
        let length = usize::try_from(length).map_or(bytes.len(), |it| it.min(bytes.len()));
        assert!(length > 0);
        bytes = &bytes[length..];
        if bytes.is_empty() {
            break;
        }
    }
    found
}

#[test]
fn lines_that_are_not_entries_are_skipped_and_the_last_one_may_come_later() {
    let text = b"1000 20 a b\nhello\n\n0x2000 0x10 c\n3000 ffffffffffffffffff d\n4000 10 e";
    let found = read(&mut PerfMap, text);
    let expected = [
        (0x1000, 0x20, b"a b".to_vec()),
        (0x2000, 0x10, b"c".to_vec()),
    ];
    assert_eq!(found, expected);
    assert_eq!(PerfMap.next(&[b'x'; MAX_ENTRY]), None);
    assert!(PerfMap.next(&[b'x'; MAX_ENTRY + 1]).is_some());
}

fn jit_dump() -> Vec<u8> {
    let mut bytes = JitDump::MAGIC.to_ne_bytes().to_vec();
    bytes.extend([1_u32, 40].map(u32::to_ne_bytes).concat());
    bytes.resize(40, 0);
    for (kind, words, tail) in [
        (
            JitDump::LOAD,
            [0x1000_u64, 0x1000, 0x20, 1],
            &b"a\0\x90\x90"[..],
        ),
        // JIT_CODE_DEBUG_INFO
        (2, [0; 4], b""),
        (JitDump::LOAD, [0x2000, 0x2000, 0x10, 2], b"b\0\x90\x90"),
    ] {
        let size = (JitDump::LOAD_SIZE + tail.len()) as u32;
        bytes.extend([kind, size].map(u32::to_ne_bytes).concat());
        bytes.extend(9_u64.to_ne_bytes());
        bytes.extend([7_u32, 7].map(u32::to_ne_bytes).concat());
        bytes.extend(words.map(u64::to_ne_bytes).concat());
        bytes.extend(tail);
    }
    bytes
}

/// Where the records of [`jit_dump`] end, and where the names of its two functions do.
const RECORD_ENDS: [usize; 4] = [40, 100, 156, 216];
const NAME_ENDS: [usize; 2] = [98, 214];

#[test]
fn a_jit_dump_cut_anywhere_has_the_functions_before_and_is_counted() {
    let bytes = jit_dump();
    assert_eq!(bytes.len(), RECORD_ENDS[3]);
    let all = [(0x1000, 0x20, b"a".to_vec()), (0x2000, 0x10, b"b".to_vec())];
    let own = remote::Process::open(std::process::id() as i32).unwrap();
    for length in 0..=bytes.len() {
        let count = NAME_ENDS.iter().filter(|end| **end <= length).count();
        let found = read(&mut JitDump::default(), &bytes[..length]);
        assert_eq!(found, all[..count], "{length}");
        let mut code = GeneratedCode::default();
        let file = tempfile("cut");
        file.write_all_at(&bytes[..length], 0).unwrap();
        code.dump.file = Some(file);
        // The rest may still come.
        let none = Unread::default();
        assert_eq!(code.update(&own, || None, 2), none, "{length}");
        let dumps = u64::from(length > 0 && !RECORD_ENDS.contains(&length));
        let unread = Unread { dumps, ..none };
        assert_eq!(code.finish(2), unread, "{length}");
        assert_eq!(code.len(), count, "{length}");
        assert_eq!(code.finish(2), none, "{length}");
    }
}

#[test]
fn the_rest_of_a_jit_dump_is_read_when_its_process_ends() {
    let mut code = GeneratedCode::default();
    let (file, mut bytes) = (tempfile("rest"), jit_dump());
    let last = bytes.split_off(RECORD_ENDS[2]);
    // JIT_CODE_DEBUG_INFO, longer than what is read at a time.
    let size = 3 * CHUNK;
    bytes.extend([2, size as u32].map(u32::to_ne_bytes).concat());
    bytes.resize(RECORD_ENDS[2] + size, 0);
    bytes.extend(last);
    file.write_all_at(&bytes, 0).unwrap();
    code.dump.file = Some(file);
    assert_eq!(code.finish(2), Unread::default());
    assert_eq!(code.len(), 2);
}

#[test]
fn files_that_are_not_read_to_their_end_are_counted() {
    let own = remote::Process::open(std::process::id() as i32).unwrap();
    let mut code = GeneratedCode::default();
    // Two reads more than there are when the process ends.
    let line = b"1000 10 same\n";
    let lines = (MAX_LAST_READS + 2) * CHUNK / line.len();
    let (map, dump) = (tempfile("rest-of-map"), tempfile("rest-of-dump"));
    map.write_all_at(&line.repeat(lines), 0).unwrap();
    // JIT_CODE_DEBUG_INFO
    let (mut record, mut header) = (vec![0; 1 << 16], jit_dump());
    record[..8].copy_from_slice(&[2, 1 << 16].map(u32::to_ne_bytes).concat());
    header.truncate(RECORD_ENDS[0]);
    let records = (MAX_LAST_READS + 2) * CHUNK / record.len();
    let bytes = [header, record.repeat(records)].concat();
    dump.write_all_at(&bytes, 0).unwrap();
    (code.map.file, code.dump.file) = (Some(map), Some(dump));
    let none = Unread::default();
    assert_eq!(code.update(&own, || None, 2), none);
    assert_eq!(code.files_behind(), 2);
    assert_eq!(code.finish(2), Unread { files: 2, ..none });
    // A file that grows meanwhile is not behind, and one that was read to its end has no rest.
    code.update(&own, || None, 2);
    assert_eq!(code.files_behind(), 0);
    assert_eq!(code.finish(2), none);
}

#[test]
fn a_jit_dump_with_the_processor_s_times_has_no_names() {
    let mut bytes = jit_dump();
    bytes[32] = 1;
    assert!(read(&mut JitDump::default(), &bytes).is_empty());
    // Other flags have no meaning yet.
    bytes[32] = 2;
    assert_eq!(read(&mut JitDump::default(), &bytes).len(), 2);
}

#[test]
fn of_functions_that_nobody_asks_for_only_the_place_is_kept_free() {
    let mut file = tempfile("wanted");
    let mut text = String::new();
    for number in 0_u64..100_000 {
        writeln!(text, "{:x} 10 other_{number}", 0x10_0000 + 0x10 * number).unwrap();
    }
    // The second of each pair takes the place of the first, or of a part of it; of the last nothing.
    text += "1000 20 a\n1000 8 b\n2000 20 c\n2018 8 d\n3000 20 e\n3008 0 f\n";
    file.write_all(text.as_bytes()).unwrap();
    let own = remote::Process::open(std::process::id() as i32).unwrap();
    let mut code = GeneratedCode::default();
    code.map.file = Some(file);
    let later = Instant::now() + std::time::Duration::from_secs(60);
    let wanted = [0x1004, 0x1010, 0x2010, 0x3010, 0x10_0005];
    code.read_at(&own, || None, &wanted, later);
    let found = wanted.map(|address| {
        let frame = code.name(address, 1, None)?;
        let Frame::Named(named) = frame else {
            return None;
        };
        Some(named.function.clone())
    });
    let expected = [Some("b"), None, None, Some("e"), Some("other_0")];
    assert_eq!(found.each_ref().map(Option::as_deref), expected);
    assert_eq!(code.len(), 3);
}

#[test]
fn a_map_of_a_gibibyte_is_read_piece_by_piece_and_leaves_room_for_other_names() {
    const LINES: u64 = 100_000;
    const LIMIT: usize = 1000;
    let (mut file, mut text) = (tempfile("large"), String::new());
    for number in 0..LINES {
        writeln!(text, "{:x} 10 function_{number}", 0x10_0000 + 0x10 * number).unwrap();
    }
    file.write_all(text.as_bytes()).unwrap();
    // What is between them has no lines.
    let size = 1 << 30;
    file.write_all_at(b"\n100000 10 other\n2000 10 last\n", size)
        .unwrap();
    let own = remote::Process::open(std::process::id() as i32).unwrap();
    let mut code = GeneratedCode::default();
    code.map.file = Some(file);
    let (mut skipped, mut pieces) = (0, 0);
    while code.map.position < text.len() as u64 {
        let unread = code.update(&own, || None, LIMIT);
        skipped += unread.names;
        pieces += 1;
        assert!(code.map.position <= pieces * CHUNK as u64);
        assert_eq!(code.len(), 750);
    }
    assert!(pieces > 2, "{pieces}");
    assert_eq!(skipped, LINES - 750);
    code.map.position = size - CHUNK as u64;
    let unread = [0, 1].map(|_| code.update(&own, || None, LIMIT).names);
    assert_eq!(unread, [0, 1]);
    // Beyond the limit, code in the place of a known function still has its name.
    let name = |code: &GeneratedCode, address| {
        let Some(Frame::Named(named)) = code.name(address, monotonic(), None) else {
            return None;
        };
        Some(named.function.clone())
    };
    assert_eq!(name(&code, 0x10_0000).as_deref(), Some("other"));
    assert_eq!(name(&code, 0x10_0010).as_deref(), Some("function_1"));
    assert_eq!(name(&code, 0x2000), None);
    let dump = tempfile("beside");
    dump.write_all_at(&jit_dump(), 0).unwrap();
    code.dump.file = Some(dump);
    assert_eq!(code.update(&own, || None, LIMIT), Unread::default());
    assert_eq!(code.len(), 752);
    assert_eq!(name(&code, 0x2000).as_deref(), Some("b"));
}

#[test]
fn there_is_room_for_each_of_many_processes() {
    let mut all = 0;
    for number in 1..=10 {
        let limit = max_functions(all);
        assert_eq!(limit, MAX_FUNCTIONS >> number);
        all += limit;
    }
    assert_eq!(max_functions(MAX_FUNCTIONS + 1), 0);
}

#[test]
fn a_map_that_is_written_again_is_read_from_its_start() {
    let own = remote::Process::open(std::process::id() as i32).unwrap();
    let mut code = GeneratedCode::default();
    let map = tempfile("again");
    code.map.file = Some(map.try_clone().unwrap());
    let name = |code: &GeneratedCode, address| {
        let Some(Frame::Named(named)) = code.name(address, monotonic(), None) else {
            return None;
        };
        Some(named.function.clone())
    };
    let write = |text: &str, is_again: bool, code: &mut GeneratedCode| {
        if is_again {
            map.set_len(0).unwrap();
        }
        let end = map.metadata().unwrap().len();
        map.write_all_at(text.as_bytes(), end).unwrap();
        code.update(&own, || None, 2000);
        assert_eq!(code.map.position, map.metadata().unwrap().len());
    };
    write("1000 10 first\n3000 10 third\n", false, &mut code);
    write("4000 10 fourth\n", false, &mut code);
    assert_eq!(name(&code, 0x4000).as_deref(), Some("fourth"));
    // Longer than before, with a function before others, and other code in the place of one.
    let text = "1000 10 other\n2000 10 second\n3000 10 third\n4000 10 fourth\n5000 10 fifth\n";
    write(text, true, &mut code);
    for (address, expected) in [(0x1000, "other"), (0x2000, "second"), (0x5000, "fifth")] {
        assert_eq!(name(&code, address).as_deref(), Some(expected));
    }
    // Shorter.
    write("6000 10 sixth\n", true, &mut code);
    assert_eq!(name(&code, 0x6000).as_deref(), Some("sixth"));
    // A file that is only appended to is not read again.
    let lines: String = (0..1000)
        .map(|it| format!("{:x} 1 x\n", 0x10000 + it))
        .collect();
    write(&lines, false, &mut code);
    assert!(!code.map.was_rewritten());
    assert_eq!(code.map.last_bytes.len(), MAX_LAST_BYTES);
}

/// A file without a name.
fn tempfile(name: &str) -> File {
    let name = format!("otelctx-perf-map-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn damaged_jit_dumps_end_there_and_are_counted_once() {
    // The magic, and the sizes of the records: none, and those of other records.
    for (damaged, value, functions) in [
        (0, 0, 0),
        (32, 1, 0),
        (44, 0, 0),
        (44, 56, 0),
        (104, 15, 1),
        (160, 0, 1),
    ] {
        let mut bytes = jit_dump();
        bytes[damaged..damaged + 4].copy_from_slice(&u32::to_ne_bytes(value));
        assert_eq!(read(&mut JitDump::default(), &bytes).len(), functions);
        let own = remote::Process::open(std::process::id() as i32).unwrap();
        let mut code = GeneratedCode::default();
        let file = tempfile("damaged");
        file.write_all_at(&bytes, 0).unwrap();
        code.dump.file = Some(file);
        let counted = [0, 1, 2].map(|_| code.update(&own, || None, 2).dumps);
        assert_eq!(counted, [1, 0, 0], "{damaged}");
        assert_eq!(code.finish(2), Unread::default(), "{damaged}");
        assert_eq!(code.len(), functions, "{damaged}");
    }
    // A record of code that was moved, without the addresses.
    let mut bytes = jit_dump();
    bytes[100..104].copy_from_slice(&u32::to_ne_bytes(JitDump::MOVE));
    assert_eq!(read(&mut JitDump::default(), &bytes).len(), 1);
}

#[test]
fn code_that_is_moved_past_the_last_address_is_nowhere() {
    for (to, ends) in [(u64::MAX - 4, vec![u64::MAX]), (u64::MAX - 3, Vec::new())] {
        let mut functions = Functions::default();
        announce(&mut functions, (0x1000, 4), (0, 10), "a");
        let (from, time) = (0x1000, 20);
        let moved = Next::Moved { from, to, time };
        let announced = TimeBounds {
            earliest: 10,
            latest: 30,
        };
        assert!(functions.apply(moved, announced, 3));
        let found: Vec<_> = functions.0.values().map(|function| function.end).collect();
        assert_eq!(found, ends, "{to:#x}");
    }
}

fn announce(functions: &mut Functions, range: (u64, u64), read: (u64, u64), name: &str) {
    let entry = Entry {
        start: range.0,
        size: range.1,
        time: None,
        name: name.as_bytes(),
    };
    let announced = TimeBounds {
        earliest: read.0,
        latest: read.1,
    };
    assert!(functions.insert(&entry, announced, 3));
}

#[test]
fn code_in_the_place_of_other_code_has_its_name_from_the_read_on() {
    let mut code = GeneratedCode::default();
    announce(&mut code.functions, (0x1000, 0x100), (0, 10), "a");
    announce(&mut code.functions, (0x1100, 0x100), (0, 10), "b");
    announce(&mut code.functions, (0x1080, 0x10), (10, 20), "c");
    let name = |address, time| {
        let frame = code.name(address, time, None)?;
        let Frame::Named(named) = frame else {
            return None;
        };
        Some(named.function.clone())
    };
    assert_eq!(name(0x1080, 15), None);
    assert_eq!(name(0x1080, 20).as_deref(), Some("c"));
    // What it overlaps is gone.
    assert_eq!(name(0x1000, 20), None);
    assert_eq!(name(0x11ff, 5).as_deref(), Some("b"));
    assert_eq!(name(0x1200, 5), None);
    let java = JitRuntime {
        kind: FrameKind::JVM,
        label: "[Java]",
        module: "libjvm.so",
    };
    let java = code.name(0x1200, 5, Some(java));
    assert!(matches!(java, Some(Frame::Named(it)) if it.function == "[Java]"));
}

#[test]
fn files_that_do_not_exist_are_searched_for_less_and_less_often() {
    let process = remote::Process::open(std::process::id() as i32).unwrap();
    let mut code = GeneratedCode::default();
    let begin = Instant::now();
    let mut searches = 0;
    for _ in 0..1000 {
        let dump = || {
            searches += 1;
            None
        };
        code.update(&process, dump, 1);
    }
    // After 40 ms, 80, and so on, up to 2 s.
    assert!(
        (1..=8 + begin.elapsed().as_secs()).contains(&searches),
        "{searches}"
    );
}

#[test]
fn names_are_bounded() {
    let mut functions = Functions::default();
    let mut add = |start, size, name: &[u8]| {
        let entry = Entry {
            start,
            size,
            time: None,
            name,
        };
        functions.insert(&entry, TimeBounds::exactly(0), 1)
    };
    assert!(add(0x1000, 0, b"empty"));
    assert!(add(u64::MAX, 2, b"beyond"));
    assert!(add(0x1000, 0x10, &[b'x'; MAX_NAME + 1]));
    assert!(!add(0x2000, 0x10, b"too many"));
    let Frame::Named(named) = &functions.0[&0x1000].frame else {
        panic!()
    };
    assert_eq!(named.function.len(), MAX_NAME);
}

/// PHP's workers write to the map that the process has opened which started them.
#[test]
fn a_map_that_a_process_has_inherited_names_shared_code() {
    let own = remote::Process::open(std::process::id() as i32).unwrap();
    // Above all IDs that processes have (include/linux/threads.h, PID_MAX_LIMIT).
    let number = (4 << 20) + std::process::id();
    let find = |path: &str, is_shared: bool| {
        let file = File::create(path).unwrap();
        file.write_all_at(b"1000 10 shared\n", 0).unwrap();
        let mut code = GeneratedCode {
            is_shared,
            ..GeneratedCode::default()
        };
        let unread = code.update(&own, || None, 2);
        std::fs::remove_file(path).unwrap();
        assert_eq!(unread, Unread::default());
        code.len()
    };
    let map = format!("/tmp/perf-{number}.map");
    assert_eq!(find(&map, true), 1);
    assert_eq!(find(&map, false), 0);
    for other in ["/tmp/perf-.map", "/tmp/perf-1x.map", "/tmp/perf-1.maps"] {
        let other = format!("{other}.{number}");
        assert_eq!(find(&other, true), 0, "{other}");
    }
    assert_eq!(find(&format!("/tmp/perf-x{number}.map"), true), 0);
    // It is not there any more.
    let file = File::create(&map).unwrap();
    std::fs::remove_file(&map).unwrap();
    assert!(super::inherited_map(&own).is_none());
    drop(file);
}
