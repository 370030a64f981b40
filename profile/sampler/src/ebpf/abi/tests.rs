//! Compares the layouts with the type information (BTF) in the compiled objects.

use std::collections::HashMap;
use std::mem::{offset_of, size_of};

use object::{Object, ObjectSection, ObjectSymbol};
use otelctx_sample::{Found, ReadStep};

use super::{
    Cpu, EventHead, FewTarget, FewTargets, PartHead, Place, Segment, StepKey, Target, TargetFilter,
    ThreadKey, Wanted,
};

/// The objects of both architectures.
const OBJECTS: [(&str, &[u8]); 10] = [
    (
        "sampler x86_64",
        include_bytes!("../../../bpf/sampler.x86_64.o"),
    ),
    (
        "sampler aarch64",
        include_bytes!("../../../bpf/sampler.aarch64.o"),
    ),
    (
        "sampler x86_64 with steps",
        include_bytes!("../../../../../testing/fixtures/bpf/sampler.x86_64.o"),
    ),
    (
        "sampler aarch64 with steps",
        include_bytes!("../../../../../testing/fixtures/bpf/sampler.aarch64.o"),
    ),
    (
        "snapshot x86_64",
        include_bytes!("../../../bpf/snapshot.x86_64.o"),
    ),
    (
        "snapshot aarch64",
        include_bytes!("../../../bpf/snapshot.aarch64.o"),
    ),
    (
        "waits x86_64",
        include_bytes!("../../../bpf/waits.x86_64.o"),
    ),
    (
        "waits aarch64",
        include_bytes!("../../../bpf/waits.aarch64.o"),
    ),
    (
        "walks x86_64",
        include_bytes!("../../../bpf/walks.x86_64.o"),
    ),
    (
        "walks aarch64",
        include_bytes!("../../../bpf/walks.aarch64.o"),
    ),
];

/// Sizes and members (offset in bytes) of structures, and the values of enumerators.
#[derive(Debug, Default)]
struct Types {
    structures: HashMap<String, (usize, Vec<(String, usize)>)>,
    enumerators: HashMap<String, u32>,
}

/// Reads the parts of BTF that are used here (Documentation/bpf/btf.rst).
fn types(object: &[u8]) -> Types {
    let file = object::File::parse(object).unwrap();
    let btf = file.section_by_name(".BTF").unwrap().data().unwrap();
    let word = |at: usize| u32::from_le_bytes(btf[at..at + 4].try_into().unwrap()) as usize;
    let header = word(4);
    let (types_at, types_end, strings) = (
        header + word(8),
        header + word(8) + word(12),
        header + word(16),
    );
    let string = |offset: usize| {
        let bytes = &btf[strings + offset..];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let mut types = Types::default();
    let mut at = types_at;
    while at < types_end {
        let (name, info, size) = (string(word(at)), word(at + 4), word(at + 8));
        let (kind, count) = (info >> 24 & 0x1f, info & 0xffff);
        at += 12;
        at += match kind {
            1 | 14 | 17 => 4,
            3 => 12,
            4 | 5 => {
                let member = |index: usize| {
                    let at = at + 12 * index;
                    (string(word(at)), (word(at + 8) & 0xff_ffff) / 8)
                };
                let members = (0..count).map(member).collect();
                types.structures.insert(name, (size, members));
                12 * count
            }
            6 => {
                for index in 0..count {
                    let at = at + 8 * index;
                    types
                        .enumerators
                        .insert(string(word(at)), word(at + 4) as u32);
                }
                8 * count
            }
            13 => 8 * count,
            15 => 12 * count,
            2 | 7..=12 | 16 | 18 => 0,
            19 => 12 * count,
            kind => panic!("BTF kind {kind}"),
        };
    }
    types
}

macro_rules! layout {
    ($types:ident, $name:literal, $type:ty, [$($member:ident),*]) => {
        let members = vec![$((stringify!($member).to_owned(), offset_of!($type, $member))),*];
        assert_eq!($types.structures.get($name), Some(&(size_of::<$type>(), members)), $name);
    };
}

#[test]
fn layouts_are_those_of_the_objects() {
    for (name, object) in OBJECTS {
        let types = types(object);
        layout!(
            types,
            "target",
            Target,
            [serial, places, steps, reserved, place]
        );
        layout!(
            types,
            "place",
            Place,
            [
                offset, module, generation, slot, slot_words, storage, reserved
            ]
        );
        layout!(
            types,
            "event_head",
            EventHead,
            [
                time, detail, cpu, pid, tid, size, kind, outcome, source, flags, serial, comm
            ]
        );
        if name.starts_with("sampler") {
            layout!(
                types,
                "cpu",
                Cpu,
                [
                    head, tail, first, segments, pids, found, unused, read, unused_too
                ]
            );
            layout!(
                types,
                "few_target",
                FewTarget,
                [pid, reserved, target, unused]
            );
            layout!(
                types,
                "few_targets",
                FewTargets,
                [forks, known_forks, unused, at]
            );
            for (name, member, size) in [
                ("segment", "bytes", size_of::<Segment>()),
                ("target_filter", "may_be_target", size_of::<TargetFilter>()),
            ] {
                let expected = (size, vec![(member.to_owned(), 0)]);
                assert_eq!(types.structures.get(name), Some(&expected), "{name}");
            }
            super::super::unwind::check_layouts(|name, size, members| {
                let members = members.iter().map(|(name, at)| ((*name).to_owned(), *at));
                let expected = (size, members.collect());
                assert_eq!(types.structures.get(name), Some(&expected), "{name}");
            });
        }
        if name.ends_with("with steps") {
            layout!(types, "step_key", StepKey, [pid, step]);
            layout!(types, "thread_key", ThreadKey, [pid, tid, step]);
        }
        if name.starts_with("waits") {
            super::super::waits::abi::tests::check_layouts(|name, size, members| {
                let members = members.iter().map(|(name, at)| ((*name).to_owned(), *at));
                let expected = (size, members.collect());
                assert_eq!(types.structures.get(name), Some(&expected), "{name}");
            });
        }
        if name.starts_with("snapshot") {
            layout!(types, "wanted", Wanted, [pid, reserved, target]);
        }
    }
}

/// The instructions of a program, by its name.
fn instructions<'o>(file: &object::File<'o>, name: &str) -> &'o [u8] {
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
    let symbol = symbol.unwrap_or_else(|| panic!("no {name}"));
    let section = file.section_by_index(symbol.section_index().unwrap());
    let data = section.unwrap().data().unwrap();
    &data[symbol.address() as usize..][..symbol.size() as usize]
}

/// The cost of a runtime in the kernel for a process that does not contain it: none.
#[test]
fn a_step_adds_no_instruction_to_the_programs_that_are_there_without_it() {
    for [shipped, with_steps] in [[OBJECTS[0], OBJECTS[2]], [OBJECTS[1], OBJECTS[3]]] {
        let [shipped, with_steps] =
            [shipped, with_steps].map(|(_, object)| object::File::parse(object).unwrap());
        for name in [
            "sample",
            "task_newtask",
            "sched_process_exec",
            "sched_process_exit",
        ] {
            let expected = instructions(&shipped, name);
            assert_eq!(instructions(&with_steps, name), expected, "{name}");
        }
        let is_step = |symbol: &object::Symbol<'_, '_>| {
            symbol.name().is_ok_and(|name| name.contains("_toy_"))
        };
        assert!(with_steps.symbols().any(|symbol| is_step(&symbol)));
        assert!(!shipped.symbols().any(|symbol| is_step(&symbol)));
    }
}

/// The head of a part is only accessed through casts, so the objects have no type information for
/// it.
#[test]
fn parts_are_taken_apart() {
    let mut bytes = Vec::new();
    let head = EventHead {
        size: 8 + 16 + 8 + 16,
        ..EventHead::default()
    };
    let mut push = |words: &[u64]| {
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_ne_bytes()));
    };
    let part = |kind: u64, size: u64, room: u64| kind | size << 16 | room << 32;
    push(&[part(1, 3, 16), 0x00cc_bbaa, 0, part(2, 16, 16), 7, 8]);
    let mut event = vec![0; size_of::<EventHead>()];
    // SAFETY: integers without padding.
    unsafe {
        event.as_mut_ptr().cast::<EventHead>().write_unaligned(head);
    }
    event.extend(&bytes);
    let (found, parts) = super::event(&event).unwrap();
    assert_eq!(found, head);
    let parts: Vec<_> = parts.map(|part| (part.kind, part.bytes)).collect();
    let stack: Vec<u8> = [7_u64, 8]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    assert_eq!(parts, [(1, &[0xaa, 0xbb, 0xcc][..]), (2, &stack[..])]);
    assert!(super::event(&event[..event.len() - 1]).is_none());
    assert_eq!(size_of::<PartHead>(), 8);
}

#[test]
fn each_outcome_of_the_program_is_converted() {
    let record = &[1_u8][..];
    for (outcome, expected) in [
        (0, Found::NotPublished),
        (1, Found::Attached(record)),
        (2, Found::Detached),
        (3, Found::Invalid),
        (4, Found::Unreadable(ReadStep::Variable)),
        (5, Found::Unreadable(ReadStep::Record)),
        (6, Found::Unreadable(ReadStep::Resolve)),
    ] {
        assert_eq!(super::found(outcome, Some(record)), expected);
    }
    // The program reports a record that is missing from the event.
    let missing = Found::Unreadable(ReadStep::Record);
    assert_eq!(super::found(super::outcome::ATTACHED, None), missing);
}
