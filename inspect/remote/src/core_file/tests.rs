//! Hand-made core files, for cases that no real process here can produce.

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;
use crate::{CallRegisters, FileCache, Modules};

const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const NT_PRSTATUS: u32 = 1;
const NT_FILE: u32 = 0x4649_4c45;
const NT_ARM_TLS: u32 = 0x401;
/// Readable and writable.
const RW: u32 = 6;
const HEADERS: u64 = 64;

/// {type, flags, offset, address, size in the file, size in memory}
type Header = (u32, u32, u64, u64, u64, u64);

/// A core file with these program headers, followed by `rest`.
fn core(machine: u16, headers: &[Header], rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend(4_u16.to_le_bytes());
    bytes.extend(machine.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(HEADERS.to_le_bytes());
    bytes.extend([0; 8 + 4]);
    for half in [64, 56, headers.len() as u16, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    for (kind, flags, offset, address, file_size, memory_size) in headers {
        bytes.extend([*kind, *flags].map(u32::to_le_bytes).concat());
        let words = [*offset, *address, 0, *file_size, *memory_size, 4096];
        bytes.extend(words.map(u64::to_le_bytes).concat());
    }
    bytes.extend(rest);
    bytes
}

fn note(owner: &[u8], kind: u32, contents: &[u8]) -> Vec<u8> {
    let sizes = [owner.len() as u32, contents.len() as u32, kind];
    let mut bytes = sizes.map(u32::to_le_bytes).concat();
    for part in [owner, contents] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

fn with_notes(machine: u16, notes: &[u8]) -> Vec<u8> {
    let size = notes.len() as u64;
    core(machine, &[(PT_NOTE, 0, HEADERS + 56, 0, size, 0)], notes)
}

fn open(bytes: &[u8]) -> Result<CoreFile, Error> {
    let file = File::from(memfd_create(c"core", MFdFlags::empty()).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    CoreFile::from_file(file, Path::new("core"), Path::new("/nowhere"))
}

/// A thread's status of this size. Each general register holds its index plus 0x100.
fn status(size: usize, tid: i32, signal: i16) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[12..14].copy_from_slice(&signal.to_le_bytes());
    bytes[32..36].copy_from_slice(&tid.to_le_bytes());
    for (index, word) in bytes[112..].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(0x100 + index as u64).to_le_bytes());
    }
    bytes
}

#[test]
fn an_aarch64_thread_pointer_is_in_the_note_behind_its_thread() {
    let notes = [
        note(b"CORE\0", NT_PRSTATUS, &status(392, 7, 11)),
        note(b"LINUX\0", NT_ARM_TLS, &0x7000_u64.to_le_bytes()),
        note(b"CORE\0", NT_PRSTATUS, &status(392, 8, 11)),
        note(
            b"LINUX\0",
            NT_ARM_TLS,
            &[0x8000_u64, 1].map(u64::to_le_bytes).concat(),
        ),
        note(b"CORE\0", NT_PRSTATUS, &status(392, 9, 11)),
    ]
    .concat();
    let core = open(&with_notes(AARCH64, &notes)).unwrap();
    assert_eq!(core.machine(), Machine::Aarch64);
    let thread = |tid, thread_pointer| CoreThread {
        tid,
        signal: 11,
        thread_pointer,
        registers: Some(CallRegisters {
            instruction_pointer: 0x120,
            stack_pointer: 0x11f,
            frame_pointer: 0x11d,
            link: Some(0x11e),
        }),
    };
    let expected = [
        thread(7, Some(0x7000)),
        thread(8, Some(0x8000)),
        thread(9, None),
    ];
    assert_eq!(core.threads(), expected);
    assert_eq!(core.crash(), Some((11, 7)));
}

/// Indexes of <sys/user.h>: rbp 4, rip 16, rsp 19, fs_base 21.
#[test]
fn an_x86_64_thread_has_its_registers_in_its_status() {
    let notes = note(b"CORE\0", NT_PRSTATUS, &status(336, 7, 0));
    let core = open(&with_notes(X86_64, &notes)).unwrap();
    let mut threads = Vec::new();
    let listed = core.thread_ids(&mut |tid| {
        threads.push(core.thread(tid).unwrap());
        ControlFlow::Continue(())
    });
    listed.unwrap();
    let mut expected = ThreadInfo::new(7);
    expected.thread_pointer = Some(0x115);
    expected.registers = Some(CallRegisters {
        instruction_pointer: 0x110,
        stack_pointer: 0x113,
        frame_pointer: 0x104,
        link: None,
    });
    assert_eq!(threads, [expected]);
    assert!(matches!(
        core.thread(8),
        Err(Error::NoSuchThread { tid: 8, .. })
    ));
}

#[test]
fn missing_memory_is_no_zeros() {
    let at = HEADERS + 4 * 56;
    let headers = [
        (PT_LOAD, RW, at, 0x1000, 8, 0x1000),
        (PT_LOAD, RW, at, 0x2000, 0, 0x1000),
        (PT_LOAD, RW, at, 0x4000, 64, 64),
        (PT_LOAD, RW, u64::MAX - 8, 0x6000, 64, 64),
    ];
    let core = open(&core(X86_64, &headers, &[7; 16])).unwrap();
    assert_eq!(core.read_u64(0x1000), Ok(0x0707_0707_0707_0707));
    let why = |address| match core.read_u64(address) {
        Err(MemoryError::NotInCore { page, why }) => (page, why),
        other => panic!("{other:?}"),
    };
    assert_eq!(why(0x1004), (0x1000, Omission::LeftOut));
    assert_eq!(why(0x2ff8), (0x2000, Omission::LeftOut));
    assert_eq!(why(0x3000), (0x3000, Omission::NotMentioned));
    assert_eq!(why(0x4010), (0x4000, Omission::CutShort));
    assert_eq!(why(0x6000), (0x6000, Omission::CutShort));
    assert_eq!(
        why(0x6038),
        (0x6000, Omission::LeftOut),
        "its offset overflows"
    );
    assert_eq!(why(u64::MAX - 3), (!0xfff, Omission::NotMentioned));
    assert!(matches!(core.missing()[0], Missing::CutShort { .. }));
}

#[test]
fn counts_that_a_core_claims_are_bounded() {
    // The number of program headers is in a section header, and enormous.
    let mut many = core(X86_64, &[], &[0; 64]);
    many[40..48].copy_from_slice(&HEADERS.to_le_bytes());
    many[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
    many[64 + 44..64 + 48].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = open(&many).unwrap_err().to_string();
    assert!(error.contains("4294967295 segments"), "{error}");

    // Files: more than there is room for, and names without an end.
    for words in [&[u64::MAX, 1][..], &[1, 4096, 0x1000, 0x2000, 0], &[1]] {
        let contents = words.iter().flat_map(|word| word.to_le_bytes());
        let files = note(b"CORE\0", NT_FILE, &contents.collect::<Vec<_>>());
        let core = open(&with_notes(X86_64, &files)).unwrap();
        let both = [Missing::Notes, Missing::FileNames];
        assert_eq!(core.missing(), both, "{words:?}");
        assert_eq!(core.mapped().len(), 0);
    }

    // A note that is longer than everything.
    let mut long = note(b"CORE\0", NT_PRSTATUS, &status(336, 7, 11));
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let core = open(&with_notes(X86_64, &long)).unwrap();
    assert_eq!((core.threads(), core.missing().len()), (&[][..], 2));
}

#[test]
fn offsets_of_files_are_counted_in_the_notes_unit() {
    for (unit, offset) in [(4096_u64, 3_u64), (1, 3 * 4096)] {
        let mut contents = [1, unit, 0x1000, 0x2000, offset]
            .map(u64::to_le_bytes)
            .concat();
        contents.extend(b"/usr/bin/shop\0");
        let core = open(&with_notes(X86_64, &note(b"CORE\0", NT_FILE, &contents))).unwrap();
        let mut seen = Vec::new();
        let walk = core.mappings(&mut |mapping| {
            seen.push((mapping.start, mapping.offset, mapping.name.to_vec()));
            ControlFlow::Continue(())
        });
        assert_eq!(walk.unwrap().mappings, 1);
        assert_eq!(seen, [(0x1000, 3 * 4096, b"/usr/bin/shop".to_vec())]);
    }
}

/// Without its headers, it is unknown whether a file with code defines the variable.
#[test]
fn a_module_whose_headers_are_missing_is_reported() {
    let mut contents = [1, 4096, 0x1000, 0x2000, 0].map(u64::to_le_bytes).concat();
    contents.extend(b"/usr/bin/shop\0");
    let notes = note(b"CORE\0", NT_FILE, &contents);
    let headers = [
        (PT_NOTE, 0, HEADERS + 2 * 56, 0, notes.len() as u64, 0),
        // Readable and executable, and skipped.
        (PT_LOAD, 5, 0, 0x1000, 0, 0x1000),
    ];
    let core = open(&core(X86_64, &headers, &notes)).unwrap();
    let resolution = crate::tls::resolve(&core, &Default::default(), "v").unwrap();
    let [(name, why)] = &resolution.unreadable[..] else {
        panic!("{resolution:?}")
    };
    assert_eq!(name, "/usr/bin/shop");
    assert!(why.contains("0x1000 is not in the core"), "{why}");
}

/// The contents of an NT_FILE note: {start, end, offset in pages}, and the names.
fn files(mapped: &[[u64; 3]], names: &[u8]) -> Vec<u8> {
    let head = [mapped.len() as u64, 4096];
    let words = head.iter().chain(mapped.as_flattened());
    let mut contents: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    contents.extend(names);
    note(b"CORE\0", NT_FILE, &contents)
}

/// Names and start addresses of its mappings.
fn named(core: &CoreFile) -> Vec<(Vec<u8>, u64)> {
    let mut named = Vec::new();
    let walk = core.mappings(&mut |mapping| {
        named.push((mapping.name.to_vec(), mapping.start));
        ControlFlow::Continue(())
    });
    assert_eq!(walk.unwrap().mappings as usize, named.len());
    named
}

#[test]
fn memory_without_a_file_is_a_mapping_without_a_name() {
    let notes = files(&[[0x2000, 0x3000, 0]], b"/a\0");
    let size = notes.len() as u64;
    let headers = [
        (PT_NOTE, 0, HEADERS + 4 * 56, 0, size, 0),
        (PT_LOAD, RW, 0, 0x5000, 0, 0x1000),
        (PT_LOAD, RW, 0, 0x2000, 0, 0x1000),
        (PT_LOAD, RW, 0, 0x1000, 0, 0x1000),
    ];
    let core = open(&core(X86_64, &headers, &notes)).unwrap();
    let unnamed = |start| (Vec::new(), start);
    let all = [unnamed(0x1000), (b"/a".to_vec(), 0x2000), unnamed(0x5000)];
    assert_eq!(named(&core), all);
    for (index, (_, start)) in all.iter().enumerate() {
        let walk = core.mappings(&mut |mapping| {
            if mapping.start == *start {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let walk = walk.unwrap();
        assert_eq!((walk.mappings as usize, walk.stopped), (index + 1, true));
    }
}

/// The variable may be in one of those without a name.
#[test]
fn a_truncated_list_of_files_is_reported() {
    let notes = [
        note(b"CORE\0", NT_PRSTATUS, &status(336, 7, 11)),
        files(&[[0x1000, 0x2000, 0], [0x3000, 0x4000, 0]], b"/a\0/b"),
    ];
    let core = open(&with_notes(X86_64, &notes.concat())).unwrap();
    assert_eq!(core.missing(), [Missing::Notes, Missing::FileNames]);
    assert_eq!(named(&core), [(b"/a".to_vec(), 0x1000)]);
    let modules = Modules::read(&core, &FileCache::new()).unwrap();
    let unreadable = (core.name(), Missing::FileNames.to_string());
    assert_eq!(modules.unreadable[0], unreadable);
}

/// The mappings of a module are consecutive and share one copy of their name.
#[test]
fn names_that_follow_themselves_are_kept_once() {
    let mapped = [1, 2, 3, 4, 5].map(|page| [page << 12, (page + 1) << 12, 0]);
    let notes = files(&mapped, b"/a\0/a\0\0/b\0/a\0");
    let core = open(&with_notes(X86_64, &notes)).unwrap();
    assert_eq!(core.notes.names, b"/a\0\0/b\0/a\0");
    let names = named(&core).into_iter().map(|(name, _)| name);
    let names: Vec<Vec<u8>> = names.collect();
    assert_eq!(names, [&b"/a"[..], b"/a", b"", b"/b", b"/a"]);
    let mut inodes = Vec::new();
    let walk = core.mappings(&mut |mapping| {
        inodes.push(mapping.inode);
        ControlFlow::Continue(())
    });
    walk.unwrap();
    assert_eq!(inodes, [1, 1, 4, 5, 8]);
}

#[test]
fn notes_that_are_not_read_are_reported() {
    let thread = note(b"CORE\0", NT_PRSTATUS, &status(336, 7, 11));
    let whole = [&thread[..], &files(&[], b"")].concat();
    let missing = |bytes: &[u8]| open(bytes).unwrap().missing().to_vec();
    assert_eq!(missing(&with_notes(X86_64, &whole)), []);
    // A thread whose status has another size.
    let other = [
        &whole[..],
        &note(b"CORE\0", NT_PRSTATUS, &status(200, 8, 0)),
    ]
    .concat();
    assert_eq!(missing(&with_notes(X86_64, &other)), [Missing::Notes]);
    // One segment of notes more than are read.
    let at = HEADERS + 17 * 56;
    let headers = [(PT_NOTE, 0, at, 0, whole.len() as u64, 0); 17];
    assert_eq!(missing(&core(X86_64, &headers, &whole)), [Missing::Notes]);
}

/// gdb does not mention code that it excludes. With pages of 64 KiB (aarch64), the file's page that
/// contains the start of the code is mapped from an offset that differs from that of a smaller
/// page.
#[test]
fn unmentioned_code_is_known_by_the_headers_whatever_the_size_of_pages() {
    const BASE: u64 = 0x40_0000;
    // As written by lld: read-only, code, data.
    let module = core(
        AARCH64,
        &[
            (PT_LOAD, 4, 0, 0, 0x1_a5a0, 0x1_a5a0),
            (PT_LOAD, 5, 0x1_a5a0, 0x2_a5a0, 0x1000, 0x1000),
            (PT_LOAD, 6, 0x1_b5a0, 0x3_b5a0, 0x100, 0x100),
        ],
        &[],
    );
    let mapped = [
        [BASE, BASE + 0x2_0000, 0],
        [BASE + 0x2_0000, BASE + 0x3_0000, 0x10],
        [BASE + 0x3_0000, BASE + 0x4_0000, 0x10],
    ];
    let notes = files(&mapped, b"/a\0/a\0/a\0");
    let at = HEADERS + 2 * 56;
    let headers = [
        (
            PT_NOTE,
            0,
            at + module.len() as u64,
            0,
            notes.len() as u64,
            0,
        ),
        (PT_LOAD, 4, at, BASE, module.len() as u64, 0x2_0000),
    ];
    let core = open(&core(AARCH64, &headers, &[module, notes].concat())).unwrap();
    let mut execute = Vec::new();
    let walk = core.mappings(&mut |mapping| {
        execute.push(mapping.permissions.execute);
        ControlFlow::Continue(())
    });
    walk.unwrap();
    assert_eq!(execute, [false, true, false]);
}
