use super::*;

/// The address of the code.
const TEXT: u64 = 0x40_1000;
/// The offsets of the table's parts, in bytes.
const NAMES: usize = 72;
const VALUES: usize = 128;
const FUNCTIONS: usize = 160;
/// Size of a `_func` with three numbers for addresses and four of what it refers to, in bytes.
const SIZE: usize = 44 + 4 * (3 + 4);
const NAME_LIST: &[u8] = b"\0main.main\0runtime.sigtramp\0runtime.goexit\0";

/// A function: its first address from [`TEXT`] on, its name, its flags, and where its stack's sizes are.
type Entry = (u32, &'static str, u8, u32);

const ENTRIES: [Entry; 3] = [
    (0, "main.main", 0, 1),
    (0x40, "runtime.sigtramp", TOP_FRAME | ASSEMBLY, 1),
    (0x80, "runtime.goexit", TOP_FRAME, 1),
];

/// A table of Go 1.20 or later, whose last function ends at 0xc0.
fn table(quantum: u8, values: &[u8], entries: &[Entry]) -> Vec<u8> {
    let mut bytes = MAGICS[1].to_le_bytes().to_vec();
    bytes.extend([0, 0, quantum, 8]);
    let words = [
        entries.len(),
        0,
        TEXT as usize,
        NAMES,
        0,
        0,
        VALUES,
        FUNCTIONS,
    ];
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(NAME_LIST);
    bytes.resize(VALUES + 1, 0);
    bytes.extend(values);
    bytes.resize(FUNCTIONS, 0);
    let index_size = 8 * entries.len() + 4;
    for (index, (start, ..)) in entries.iter().enumerate() {
        bytes.extend(start.to_le_bytes());
        bytes.extend(((index_size + SIZE * index) as u32).to_le_bytes());
    }
    bytes.extend(0xc0_u32.to_le_bytes());
    for (start, name, flags, sizes) in entries {
        let mut function = [0; SIZE];
        let is_name = |it: &[u8]| it == name.as_bytes();
        let place = NAME_LIST.windows(name.len()).position(is_name).unwrap() as u32;
        function[..4].copy_from_slice(&start.to_le_bytes());
        function[NAME..NAME + 4].copy_from_slice(&place.to_le_bytes());
        function[STACK_SIZES..STACK_SIZES + 4].copy_from_slice(&sizes.to_le_bytes());
        function[FLAG[1]] = *flags;
        bytes.extend(function);
    }
    bytes
}

fn parse(bytes: Vec<u8>) -> Option<GoTable> {
    GoTable::parse(bytes, 0, TEXT)
}

/// The stack's sizes in the function at an address, up to `limit` of them, and whether they are sound.
fn sizes(table: &GoTable, address: u64, limit: usize) -> (Vec<(u64, i32)>, bool) {
    let mut found = Vec::new();
    let function = table.function_at(address).unwrap();
    let is_sound = function.stack_sizes(&mut |address, size| {
        found.push((address - TEXT, size));
        match found.len() < limit {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    (found, is_sound)
}

/// Changes of the size (zigzag: 2 is 1, 16 is 8), and the number of instructions that each holds for.
const SOUND: &[u8] = &[2, 4, 16, 0x38, 15, 4, 0];

#[test]
fn sizes_of_stacks_are_read_up_to_the_end_of_a_function() {
    let one = parse(table(1, SOUND, &ENTRIES)).unwrap();
    let expected = vec![(0, 0), (4, 8), (0x3c, 0)];
    assert_eq!(sizes(&one, TEXT, 9), (expected, true));
    assert_eq!(sizes(&one, TEXT, 2), (vec![(0, 0), (4, 8)], true));
    // Four times as long, the second range ends behind the function.
    let four = parse(table(4, SOUND, &ENTRIES)).unwrap();
    assert_eq!(sizes(&four, TEXT, 9), (vec![(0, 0), (16, 8)], true));
}

#[test]
fn damaged_sizes_end_where_they_are() {
    // Cut; without a length; below the start of the stack; of 1 GiB and more.
    for (values, kept) in [
        (&[2, 4, 16, 0x80, 0x80, 0x80, 0x80, 0x80][..], 2),
        (&[2, 4, 16, 0], 2),
        (&[1, 4], 0),
        (&[2, 4, 0x80, 0x80, 0x80, 0x80, 8], 1),
    ] {
        let table = parse(table(1, values, &ENTRIES)).unwrap();
        let (found, is_sound) = sizes(&table, TEXT, 9);
        assert_eq!((found.len(), is_sound), (kept, false), "{values:?}");
    }
    let without = parse(table(1, SOUND, &[(0, "main.main", 0, 0)])).unwrap();
    assert_eq!(sizes(&without, TEXT, 9), (vec![], false));
}

#[test]
fn tables_with_impossible_instructions_or_order_are_refused() {
    for quantum in 0..=8 {
        let table = parse(table(quantum, SOUND, &ENTRIES));
        assert_eq!(table.is_some(), matches!(quantum, 1 | 2 | 4), "{quantum}");
    }
    let mut entries = ENTRIES;
    entries.swap(0, 1);
    assert_eq!(parse(table(1, SOUND, &entries)), None);
    // Behind the end of the last one.
    entries = ENTRIES;
    entries[2].0 = 0xc1;
    assert_eq!(parse(table(1, SOUND, &entries)), None);
    // Two functions at one address are in order.
    entries[2].0 = ENTRIES[1].0;
    assert!(parse(table(1, SOUND, &entries)).is_some());
    // Without the end of the last function.
    let mut cut = table(1, SOUND, &ENTRIES);
    cut.truncate(FUNCTIONS + 8 * ENTRIES.len());
    assert_eq!(parse(cut), None);
}

#[test]
fn handlers_of_signals_are_not_the_first_functions_of_their_stacks() {
    let table = parse(table(1, SOUND, &ENTRIES)).unwrap();
    let functions: Vec<_> = table.functions().collect();
    let names: Vec<_> = functions.iter().map(GoFunction::name).collect();
    assert_eq!(names, ENTRIES.map(|it| it.1));
    let firsts: Vec<_> = functions.iter().map(GoFunction::is_first).collect();
    assert_eq!(firsts, [false, false, true]);
    let assembly: Vec<_> = functions.iter().map(GoFunction::is_assembly).collect();
    assert_eq!(assembly, [false, true, false]);
}

/// The address that the inlined calls are behind, and their offset.
const REFERRED: u64 = 0x50_0000;
const CALLS: u64 = 0x100;

/// The functions at an address of `main.main`, in which the first 8 bytes are of call 1, whose parent is at byte 8, which is
/// of call 0, whose parent is at `outermost`; `change` changes the function's bytes.
fn calls(address: u64, outermost: u32, change: impl Fn(&mut [u8])) -> Vec<String> {
    // At 1 the sizes, at 16 the numbers of calls: 1 for 8 bytes, 0 for 8, -1 for the rest.
    let mut values = SOUND.to_vec();
    values.resize(15, 0);
    values.extend([4, 8, 1, 8, 1, 0x70, 0]);
    let mut bytes = table(1, &values, &ENTRIES);
    let place = FUNCTIONS + 8 * ENTRIES.len() + 4;
    let function = &mut bytes[place..place + SIZE];
    function[28..32].copy_from_slice(&3_u32.to_le_bytes());
    function[43] = 4;
    function[52..56].copy_from_slice(&16_u32.to_le_bytes());
    function[68..72].copy_from_slice(&(CALLS as u32).to_le_bytes());
    change(function);
    let mut table = parse(bytes).unwrap();
    table.referred = Some(REFERRED);
    let name = |name: &[u8]| {
        let place = NAME_LIST.windows(name.len()).position(|it| it == name);
        (place.unwrap() as u32).to_le_bytes()
    };
    let parents = [
        (name(b"runtime.sigtramp"), outermost),
        (name(b"runtime.goexit"), 8),
    ];
    let read = &mut |at: u64, buffer: &mut [u8]| {
        let index = at.wrapping_sub(REFERRED + CALLS) / 16;
        let call = parents.get(usize::try_from(index).unwrap_or(9));
        if let Some((name, parent)) = call {
            buffer[4..8].copy_from_slice(name);
            buffer[8..12].copy_from_slice(&parent.to_le_bytes());
        }
        call.is_some()
    };
    let function = table.function_at(address).unwrap();
    let calls = function.calls(address, read).into_iter();
    calls.map(|it| it.name.into_owned()).collect()
}

#[test]
fn inlined_calls_come_before_the_function_that_they_are_in() {
    let all = ["runtime.goexit", "runtime.sigtramp", "main.main"];
    for (offset, expected) in [
        (0, &all[..]),
        (7, &all),
        (8, &all[1..]),
        (15, &all[1..]),
        (16, &all[2..]),
    ] {
        assert_eq!(calls(TEXT + offset, 16, |_| {}), expected, "{offset}");
    }
}

/// It is the function alone.
#[test]
fn damaged_inlined_calls_are_none() {
    let alone = ["main.main"];
    // Its own caller; the other call's; behind the function's end.
    for outermost in [8, 0, 0x40, u32::MAX] {
        assert_eq!(calls(TEXT, outermost, |_| {}), alone, "{outermost}");
    }
    for change in [
        // Nothing that it refers to, or too little; without a tree; one that is elsewhere.
        (|function| function[43] = 0) as fn(&mut [u8]),
        |function| function[43] = 3,
        |function| function[68..72].fill(0xff),
        |function| function[68] = 0x40,
        // More numbers than there are bytes, and values behind the table.
        |function| function[28..32].fill(0xff),
        |function| function[52..56].fill(0xff),
    ] {
        assert_eq!(calls(TEXT, 16, change), alone);
    }
    // Without numbers of calls, it has none.
    assert_eq!(calls(TEXT, 16, |function| function[28] = 2), alone);
}
