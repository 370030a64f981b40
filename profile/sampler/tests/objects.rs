//! The compiled programs for the kernel, as the verifiers of older kernels read them.

use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// Where the objects are, from this crate.
const FOLDERS: [&str; 3] = ["bpf", "../../cli/bpf", "../../testing/fixtures/bpf"];

/// Size of an instruction, in bytes.
const SIZE: usize = 8;
/// Classes of instructions, and operations of jumps (Documentation/bpf/instruction-set.rst in Linux).
const JUMP: u8 = 0x05;
const JUMP_32: u8 = 0x06;
const ALWAYS: u8 = 0x00;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;

/// An instruction that can follow another one, and whether it may come again on the way there.
type Next = (usize, bool);

/// The instructions that follow the one at `at`, in the order of Linux 5.10's `check_cfg` (kernel/bpf/verifier.c).
fn next(code: &[[u8; SIZE]], at: usize) -> [Option<Next>; 2] {
    let [operation, _, low, high, ..] = code[at];
    let offset = isize::from(i16::from_le_bytes([low, high]));
    let target = (at + 1).wrapping_add_signed(offset);
    let is_jump = [JUMP, JUMP_32].contains(&(operation & 0x07));
    match operation & 0xf0 {
        EXIT if is_jump => [None, None],
        ALWAYS if is_jump => [Some((target, true)), None],
        CALL if is_jump => [Some((at + 1, false)), None],
        _ if is_jump => [Some((at + 1, true)), Some((target, true))],
        _ => [Some((at + 1, false)), None],
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Seen {
    Never,
    /// On the way to the current instruction.
    Before,
    Done,
}

/// Finds an instruction that leads into a loop again by going on, not by a jump.
fn refused(code: &[[u8; SIZE]]) -> Option<usize> {
    let mut seen = vec![Seen::Never; code.len()];
    let mut way = vec![0];
    seen[0] = Seen::Before;
    while let Some(&at) = way.last() {
        let mut following = next(code, at).into_iter().flatten();
        let unseen = following.find_map(|(next, may_repeat)| match seen[next] {
            Seen::Never => Some(Ok(next)),
            Seen::Before if !may_repeat => Some(Err(at)),
            Seen::Before | Seen::Done => None,
        });
        match unseen {
            Some(Ok(next)) => {
                seen[next] = Seen::Before;
                way.push(next);
            }
            Some(Err(at)) => return Some(at),
            None => {
                seen[at] = Seen::Done;
                way.pop();
            }
        }
    }
    None
}

/// Returns the name of each function that Linux 5.10 and 6.1 refuse for its loops.
fn refused_functions(object: &[u8]) -> (usize, Vec<String>) {
    let file = object::File::parse(object).unwrap();
    let (mut count, mut found) = (0, Vec::new());
    for symbol in file
        .symbols()
        .filter(|it| it.kind() == SymbolKind::Text && it.size() > 0)
    {
        let section = file
            .section_by_index(symbol.section_index().unwrap())
            .unwrap();
        let bytes = section
            .data_range(symbol.address(), symbol.size())
            .unwrap()
            .unwrap();
        let (code, rest) = bytes.as_chunks();
        assert!(rest.is_empty());
        count += 1;
        if let Some(at) = refused(code) {
            found.push(format!("{} at {at}", symbol.name().unwrap()));
        }
    }
    (count, found)
}

/// The objects that are compiled from the programs for the kernel, for each architecture.
fn objects() -> Vec<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = FOLDERS.map(|it| package.join(it));
    let files = folders.iter().flat_map(|it| fs::read_dir(it).unwrap());
    let paths = files.map(|it| it.unwrap().path());
    paths
        .filter(|it| it.extension().is_some_and(|it| it == "o"))
        .collect()
}

/// Regression: a step of a runtime had such a loop, and these kernels refused it.
#[test]
fn each_loop_is_closed_by_a_jump() {
    let objects = objects();
    assert_eq!(objects.len(), 12, "{objects:?}");
    for path in objects {
        let (functions, refused) = refused_functions(&fs::read(&path).unwrap());
        assert!(functions > 0);
        assert_eq!(refused, [""; 0], "{}", path.display());
    }
}

#[test]
fn a_loop_that_goes_on_into_its_own_start_is_found() {
    let jump = |operation: u8, offset: i16| {
        let [low, high] = offset.to_le_bytes();
        [JUMP | operation, 0, low, high, 0, 0, 0, 0]
    };
    let other = [0xb7, 0, 0, 0, 0, 0, 0, 0];
    let exit = jump(EXIT, 0);
    // Into the middle of the loop, whose last instruction is before its first test.
    let into = [jump(ALWAYS, 1), other, jump(0x10, -2), exit];
    assert_eq!(refused(&into), Some(1));
    let closed = [other, jump(0x10, -2), exit];
    assert_eq!(refused(&closed), None);
}
