use super::*;
use crate::libc::CLibrary;
use crate::memory::{CountedMemory, Image};
use crate::{TargetImage, Through};

/// Not glibc's numbers: those come from a libc.so.
const LAYOUT: ThreadLayout = ThreadLayout {
    list: 0x40,
    tid: 0x50,
    size: 0x100,
};
const HEAD: u64 = 0x1000;

fn lists(machine: Machine) -> ThreadLists {
    ThreadLists {
        machine: Some(machine),
        library: Some(CLibrary::Glibc),
        layout: Some(LAYOUT),
        heads: vec![HEAD],
        library_range: None,
    }
}

/// A ring of control blocks, each with its ID.
fn ring(blocks: &[(u64, u32)]) -> Image {
    let mut image = Image::new();
    let mut nodes = vec![HEAD];
    nodes.extend(blocks.iter().map(|(block, _)| block + LAYOUT.list));
    let count = nodes.len();
    for (index, node) in nodes.iter().enumerate() {
        let (next, previous) = (
            nodes[(index + 1) % count],
            nodes[(index + count - 1) % count],
        );
        image.map_u64(*node, &[next, previous]);
    }
    for (block, tid) in blocks {
        image.map_u64(*block, &[*block, 0, *block]);
        image.map(block + LAYOUT.tid, tid.to_ne_bytes());
    }
    image
}

fn find(lists: &ThreadLists, image: Image, threads: usize) -> (ThreadPointers, usize) {
    let (process, memory) = (TargetImage::new(), CountedMemory::new(image));
    let target = Through::new(&process, &memory);
    let found = ThreadPointers::find(lists, &target, 7, threads);
    (found, memory.take_reads())
}

fn known(pointers: &ThreadPointers) -> Vec<(i32, u64)> {
    let mut known: Vec<_> = pointers
        .known
        .iter()
        .map(|(tid, it)| (*tid, it.address))
        .collect();
    known.sort_unstable();
    known
}

#[test]
fn a_ring_leads_to_each_thread() {
    let blocks = [(0x8000, 7), (0x9000, 8), (0xa000, 9)];
    let (found, _) = find(&lists(Machine::X86_64), ring(&blocks), 3);
    assert_eq!(known(&found), [(7, 0x8000), (8, 0x9000), (9, 0xa000)]);
    // On aarch64 the thread pointer is the end of the structure.
    let (found, _) = find(&lists(Machine::Aarch64), ring(&blocks), 3);
    assert_eq!(known(&found), [(7, 0x8100), (8, 0x9100), (9, 0xa100)]);
    let pointer = found.get(8).unwrap();
    let memory = ring(&blocks);
    assert!(pointer.is_of(&memory, 8) && !pointer.is_of(&memory, 7));
}

#[test]
fn a_thread_that_has_ended_and_what_is_no_control_block_are_skipped() {
    let mut image = ring(&[(0x8000, 7), (0x9000, 0), (0xa000, u32::MAX), (0xb000, 9)]);
    // It points to itself only once.
    image.map_u64(0xb010, &[0x8000]);
    let (found, _) = find(&lists(Machine::X86_64), image, 4);
    assert_eq!(known(&found), [(7, 0x8000)]);
}

/// A process can link its lists arbitrarily.
#[test]
fn a_list_that_does_not_hold_together_or_has_no_end() {
    let blocks = [(0x8000, 7), (0x9000, 8), (0xa000, 9)];
    // The second node's next node does not point back to it.
    let mut image = ring(&blocks);
    image.map_u64(0xa000 + LAYOUT.list + 8, &[0x8000 + LAYOUT.list]);
    let (found, _) = find(&lists(Machine::X86_64), image, 3);
    assert_eq!(known(&found)[..2], [(7, 0x8000), (8, 0x9000)]);
    // It leads nowhere.
    let mut image = ring(&blocks);
    image.map_u64(0x8000 + LAYOUT.list, &[0xdead_0000, HEAD]);
    assert_eq!(
        known(&find(&lists(Machine::X86_64), image, 3).0),
        [(7, 0x8000)]
    );
    // A node that is its own neighbour.
    let mut image = ring(&blocks);
    let node = 0x8000 + LAYOUT.list;
    image.map_u64(node, &[node, HEAD]);
    let (_, reads) = find(&lists(Machine::X86_64), image.clone(), 3);
    assert!(reads < 10, "{reads}");
    image
        .map_u64(HEAD, &[node, node])
        .map_u64(node, &[node, node]);
    let (_, reads) = find(&lists(Machine::X86_64), image, 1000);
    assert!(reads <= 1 + 2 * (2 * 1000 + 64), "{reads}");
}

#[test]
fn no_head_is_mapped() {
    let (found, _) = find(&lists(Machine::X86_64), Image::new(), 3);
    assert!(found.is_empty());
    assert_eq!(found.len(), 0);
}
