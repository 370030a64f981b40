use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    Access, CodeVisitor, ExecutableMapping, MAX_COMPARISONS, MAX_FILES, MAX_WAITING, Mapping, PAGE,
};
use crate::{Memory, Target, TargetImage};

/// The file's segments: where each is in the file and in memory, its size, and its flags (PF_X, PF_W, PF_R). Code follows
/// the headers, and data shares the last page of code in the file, as linkers lay them out.
const SEGMENTS: [(u64, u64, u64, u32); 3] = [
    (0, 0, 0x1000, 4),
    (0x20_0000, 0x20_0000, 0x60_0800, 5),
    (0x80_0800, 0x80_1800, 0x1000, 6),
];
const CODE: (u64, u64) = (SEGMENTS[1].1, SEGMENTS[1].1 + 0x60_1000);
const BIAS: u64 = 0x7f00_0000_0000;
const INODE: u64 = 7;

/// A byte of the file, so that no two pages are alike.
fn byte(at: u64) -> u8 {
    (at / 3 + at / PAGE * 17) as u8
}

fn elf() -> Vec<u8> {
    let size = SEGMENTS.map(|(offset, _, size, _)| offset + size);
    let mut bytes: Vec<u8> = (0..size.into_iter().max().unwrap()).map(byte).collect();
    let mut header = vec![0_u8; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16..24].copy_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]);
    header[32] = 64;
    header[52..60].copy_from_slice(&[64, 0, 56, 0, SEGMENTS.len() as u8, 0, 0, 0]);
    for (offset, address, size, flags) in SEGMENTS {
        header.extend([1, 0, 0, 0]);
        header.extend(flags.to_le_bytes());
        for field in [offset, address, address, size, size, PAGE] {
            header.extend(field.to_le_bytes());
        }
    }
    bytes[..header.len()].copy_from_slice(&header);
    bytes
}

/// A process with one line for each mapping: name, inode, address range in the file, offset.
struct Process {
    image: TargetImage,
    /// The file's code.
    code: Vec<u8>,
    _file: File,
}

type Line<'a> = (u64, u64, &'a str, u64, u64, &'a str);

impl Process {
    /// Creates a process with these mappings: first address and end in the file's module, permissions, offset, inode, name.
    fn new(lines: &[Line<'_>]) -> Self {
        let mut file = File::from(memfd_create("program", MemfdFlags::CLOEXEC).unwrap());
        let bytes = elf();
        file.write_all(&bytes).unwrap();
        let mut image = TargetImage::new();
        for (start, end, permissions, offset, inode, name) in lines {
            let (start, end) = (BIAS + start, BIAS + end);
            writeln!(
                image.maps,
                "{start:x}-{end:x} {permissions} {offset:x} 00:01 {inode} {name}"
            )
            .unwrap();
        }
        let (offset, address, size, _) = SEGMENTS[1];
        // The rest of the last page is of the file, too.
        let code =
            bytes[offset as usize..][..(size as usize).next_multiple_of(PAGE as usize)].to_vec();
        image.memory.map(BIAS + address, code.clone());
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        image.files.insert(INODE, path.into());
        Self {
            image,
            code,
            _file: file,
        }
    }

    /// Changes the bytes at these addresses.
    fn change(&mut self, addresses: impl IntoIterator<Item = u64>) {
        for address in addresses {
            let byte = &mut self.code[(address - CODE.0) as usize];
            *byte = !*byte;
        }
        self.image.memory.map(BIAS + CODE.0, self.code.clone());
    }

    /// Visits the executable mappings. Returns the number of reads of the process's memory that this takes.
    fn count_reads(&self) -> usize {
        let reads = Cell::new(0);
        let open = |it: &Mapping<'_>| {
            let range = (it.start, it.end);
            self.image
                .mapped_file(range, it.name, it.device, it.inode)
                .ok()
        };
        let read = |address, buffer: &mut [u8]| {
            reads.set(reads.get() + 1);
            self.image.read(address, buffer).is_ok()
        };
        let access = Access {
            open: &open,
            read: &read,
        };
        let visit = &mut |_: &ExecutableMapping<'_>| ControlFlow::Continue(());
        let mut visitor = CodeVisitor::new(access, visit);
        self.image.mappings(&mut |it| visitor.take(it)).unwrap();
        assert!(visitor.finish().is_continue());
        reads.get()
    }

    /// Whether some memory is in the place of a file's code, and has other bytes.
    fn may_be_copied(&self) -> bool {
        let mut any = false;
        let visited = self.image.executable_mappings(&mut |code| {
            any |= code.may_be_copied;
            ControlFlow::Continue(())
        });
        visited.unwrap();
        any
    }

    /// The executable mappings: where each starts, its offset, its inode, and where the mapping of its file starts from that
    /// it was moved.
    fn code(&self) -> Vec<(u64, u64, u64, Option<u64>)> {
        let mut all = Vec::new();
        let visited = self.image.executable_mappings(&mut |code| {
            let mapping = &code.mapping;
            let from = code.moved_from.map(|(start, _)| start - BIAS);
            all.push((mapping.start - BIAS, mapping.offset, mapping.inode, from));
            ControlFlow::Continue(())
        });
        visited.unwrap();
        all
    }
}

const FILE: &str = "/usr/bin/program";
const HEADER: Line<'_> = (0, 0x1000, "r--p", 0, INODE, FILE);
const DATA: Line<'_> = (0x80_1000, 0x80_3000, "rw-p", 0x80_0000, INODE, FILE);
const MOVED: Line<'_> = (CODE.0, CODE.1, "r-xp", 0, 0, "");

#[test]
fn memory_with_the_code_of_a_file_before_or_behind_it_is_the_files() {
    let (start, offset) = (CODE.0, SEGMENTS[1].0);
    for (lines, from) in [
        (&[HEADER, MOVED, DATA][..], 0),
        (&[HEADER, MOVED], 0),
        // The last page of the file's code is mapped as the first one of its data.
        (&[MOVED, DATA], 0x80_1000),
        // Other memory lies between.
        (
            &[HEADER, (0x1000, 0x2000, "rw-p", 0, 0, "[heap]"), MOVED],
            0,
        ),
        (
            &[MOVED, (CODE.1, CODE.1 + 0x800, "rw-p", 0, 0, ""), DATA],
            0x80_1000,
        ),
    ] {
        assert_eq!(
            Process::new(lines).code(),
            [(start, offset, INODE, Some(from))],
            "{lines:?}"
        );
    }
}

#[test]
fn a_part_of_the_code_is_enough() {
    let [low, high] = [CODE.0 + 3 * PAGE, CODE.1 - 5 * PAGE];
    let [before, after] = [
        (CODE.0, low, "r-xp", CODE.0, INODE, FILE),
        (high, CODE.1, "r-xp", high, INODE, FILE),
    ];
    let middle = CODE.0 + 0x20_0000;
    let pieces = [
        (low, middle, "r-xp", 0, 0, ""),
        (middle, high, "rwxp", 0, 0, ""),
    ];
    let found = Process::new(&[HEADER, before, pieces[0], pieces[1], after, DATA]).code();
    let expected = [
        (CODE.0, CODE.0, INODE, None),
        (low, low, INODE, Some(CODE.0)),
        (middle, middle, INODE, Some(CODE.0)),
        (high, high, INODE, None),
    ];
    assert_eq!(found, expected);
}

#[test]
fn memory_of_every_kind_may_have_moved_code() {
    // The kernel's names of such memory: mm/shmem.c, fs/hugetlbfs/inode.c, ipc/shm.c, and prctl(2).
    for (inode, name) in [
        (0, ""),
        (0, "[anon:text]"),
        (9, "/memfd:text (deleted)"),
        (9, "/dev/zero (deleted)"),
        (9, "/anon_hugepage (deleted)"),
        (9, "/SYSV00000000 (deleted)"),
        (9, "[anon_shmem:text]"),
    ] {
        let moved = (CODE.0, CODE.1, "r-xp", 0, inode, name);
        let found = Process::new(&[HEADER, moved, DATA]).code();
        assert_eq!(found, [(CODE.0, SEGMENTS[1].0, INODE, Some(0))], "{name}");
    }
    // A file of hugetlbfs has any name, and whole huge pages.
    let [low, high] = [CODE.0, CODE.0 + 0x40_0000];
    let rest = (high, CODE.1, "r-xp", high, INODE, FILE);
    let huge = (low, high, "r-xp", 0, 9, "/mnt/huge/text");
    let found = Process::new(&[HEADER, huge, rest]).code();
    assert_eq!(
        found,
        [(low, low, INODE, Some(0)), (high, high, INODE, None)]
    );
    // Its end is not that of a huge page.
    let other = (low, high + PAGE, "r-xp", 0, 9, "/usr/lib/other");
    assert_eq!(Process::new(&[HEADER, other]).code(), [(low, 0, 9, None)]);
}

#[test]
fn other_memory_stays_memory() {
    let as_memory = |lines: &[Line<'_>], change: Option<u64>| {
        let mut process = Process::new(lines);
        process.change(change);
        let found = process.code();
        assert_eq!(process.may_be_copied(), change.is_some(), "{lines:?}");
        assert!(
            found.iter().all(|it| it.3.is_none()),
            "{lines:?} {change:?}: {found:?}"
        );
        found.len()
    };
    // A byte of the first or the last page differs.
    for address in [CODE.0 + 1, CODE.0 + 0x60_0000] {
        assert_eq!(as_memory(&[HEADER, MOVED, DATA], Some(address)), 1);
    }
    // It begins before the code, ends behind it by more than a page, or lies elsewhere.
    for (start, end) in [
        (CODE.0 - PAGE, CODE.1),
        (CODE.0, CODE.1 + 0x1_0000),
        (CODE.0 + 8, CODE.1),
        (0x1000, 0x2000),
        (0x90_0000, 0x91_0000),
    ] {
        assert_eq!(
            as_memory(&[HEADER, (start, end, "r-xp", 0, 0, "")], None),
            1
        );
    }
    // No file is near, or none that can be opened, or that is an ELF file.
    assert_eq!(as_memory(&[MOVED], None), 1);
    assert_eq!(
        as_memory(&[(0, 0x1000, "r--p", 0, 8, FILE), MOVED], None),
        1
    );
    // The kernel's own, and memory that is not executable.
    let vdso = (CODE.0, CODE.1, "r-xp", 0, 0, "[vdso]");
    assert_eq!(as_memory(&[HEADER, vdso], None), 1);
    assert_eq!(
        as_memory(&[HEADER, (CODE.0, CODE.1, "rw-p", 0, 0, "")], None),
        0
    );
}

/// What a just-in-time compiler maps beside a file: all of it is visited in order, and the work has a limit.
#[test]
fn work_is_bounded() {
    let pages: Vec<Line<'_>> = (0..4 * MAX_WAITING as u64)
        .map(|page| {
            let start = CODE.0 + 2 * page * PAGE;
            (start, start + PAGE, "rwxp", 0, 0, "")
        })
        .collect();
    let mut lines = vec![HEADER];
    lines.extend(&pages);
    lines.push(DATA);
    let mut process = Process::new(&lines);
    process.change(pages.iter().map(|page| page.0));
    let found = process.code();
    assert_eq!(found.len(), pages.len());
    assert!(
        found
            .iter()
            .zip(&pages)
            .all(|(found, page)| found.0 == page.0 && found.3.is_none())
    );
    assert!(
        process.count_reads() <= MAX_COMPARISONS,
        "{}",
        process.count_reads()
    );
    assert!(process.count_reads() >= MAX_COMPARISONS / 2);

    // Each beside another file.
    let mut lines: Vec<Line<'_>> = Vec::new();
    for index in 0..2 * MAX_FILES as u64 {
        let start = index * 0x100_0000;
        lines.push((start, start + PAGE, "r--p", 0, 100 + index, FILE));
        lines.push((start + CODE.0, start + CODE.0 + PAGE, "r-xp", 0, 0, ""));
    }
    let mut process = Process::new(&lines);
    let path = process.image.files[&INODE].clone();
    for index in 0..2 * MAX_FILES as u64 {
        process.image.files.insert(100 + index, path.clone());
    }
    let found = process.code();
    assert_eq!(found.len(), 2 * MAX_FILES);
    // The first one has the file's bytes.
    assert_eq!(found[0], (CODE.0, CODE.0, 100, Some(0)));
    // One read each, of files that were opened.
    assert_eq!(process.count_reads(), MAX_FILES);
}

#[test]
fn visiting_can_be_ended_at_any_mapping() {
    let [low, high] = [CODE.0 + PAGE, CODE.1 - PAGE];
    let process = Process::new(&[
        HEADER,
        (CODE.0, low, "r-xp", CODE.0, INODE, FILE),
        (low, high, "r-xp", 0, 0, ""),
        (high, CODE.1, "r-xp", high, INODE, FILE),
    ]);
    for wanted in 1..=3 {
        let mut seen = 0;
        let visited = process.image.executable_mappings(&mut |_| {
            seen += 1;
            if seen == wanted {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        visited.unwrap();
        assert_eq!(seen, wanted);
    }
}
