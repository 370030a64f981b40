//! A virtual machine made by hand, also one that lies.

mod many;

use std::collections::HashMap;
use std::sync::Arc;

use otelctx_reader::remote::{FrameRegisters, GeneratedEnd, GeneratedFrame, TargetImage};
use otelctx_reader::runtime::RuntimeProcess;
use otelctx_reader::sample::Frame;

use crate::layout::Layout;
use crate::process::HotSpotProcess;
use crate::tables::{Field, Tables};

/// Where the parts of the machine are.
const STATICS: u64 = 0x10_0000;
const TEXT: u64 = 0x11_0000;
const HEAP_LIST: u64 = 0x12_0000;
const SEGMENTS: u64 = 0x13_0000;
const CODE: u64 = 0x20_0000;
pub(crate) const METADATA: u64 = 0x30_0000;
pub(crate) const STACK: u64 = 0x70_0000;
/// The compiled method: its blob is behind a header of 16 bytes, and its code in it.
const BLOB: u64 = CODE + 0x100 + 16;
pub(crate) const BLOB_CODE: u64 = BLOB + 0x200;
const SCOPES: u64 = BLOB + 0x180;
/// The return address of the stub that calls Java, and its blob.
pub(crate) const STUB: u64 = CODE + 0x800 + 16;
pub(crate) const CALL_STUB_RETURN: u64 = STUB + 0x210;
/// The interpreter's blob.
const INTERPRETER: u64 = CODE + 0xc00 + 16;
/// DWARF's numbers.
pub(crate) const RSP: u8 = 7;
const RBX: u8 = 3;
pub(crate) const RBP: u8 = 6;
const R13: u8 = 13;

/// Fields of the tables: type, name, offset and size. Static ones are at [`STATICS`] and this offset.
const FIELDS: [(&str, &str, u64, u8); 46] = [
    ("CodeHeap", "_memory", 0, 8),
    ("CodeHeap", "_segmap", 0x40, 8),
    ("CodeHeap", "_log2_segment_size", 0x80, 4),
    ("VirtualSpace", "_low_boundary", 0, 8),
    ("VirtualSpace", "_high_boundary", 8, 8),
    ("GrowableArrayBase", "_len", 0, 4),
    ("GrowableArray<int>", "_data", 8, 8),
    ("CodeBlob", "_name", 0, 8),
    ("CodeBlob", "_frame_size", 8, 4),
    ("CodeBlob", "_frame_complete_offset", 12, 4),
    ("CodeBlob", "_code_begin", 16, 8),
    ("CodeBlob", "_code_end", 24, 8),
    ("nmethod", "_compile_id", 32, 4),
    ("nmethod", "_scopes_pcs_offset", 36, 4),
    ("nmethod", "_dependencies_offset", 40, 4),
    ("nmethod", "_metadata_offset", 44, 4),
    ("nmethod", "_orig_pc_offset", 48, 4),
    ("nmethod", "_verified_entry_point", 56, 8),
    ("CompiledMethod", "_method", 64, 8),
    ("CompiledMethod", "_scopes_data_begin", 72, 8),
    ("CompiledMethod", "_deopt_handler_begin", 80, 8),
    ("Method", "_constMethod", 8, 8),
    ("Method", "_access_flags", 16, 2),
    ("ConstMethod", "_constants", 8, 8),
    ("ConstMethod", "_constMethod_size", 16, 4),
    ("ConstMethod", "_flags", 20, 2),
    ("ConstMethod", "_code_size", 22, 2),
    ("ConstMethod", "_name_index", 24, 2),
    ("ConstMethod", "_method_idnum", 26, 2),
    ("ConstMethod", "_signature_index", 28, 2),
    ("ConstantPool", "_pool_holder", 8, 8),
    ("ConstantPool", "_source_file_name_index", 16, 2),
    ("InstanceKlass", "_constants", 24, 8),
    ("Klass", "_name", 8, 8),
    ("Klass", "_next_link", 16, 8),
    ("ClassLoaderData", "_klasses", 0, 8),
    ("ClassLoaderData", "_next", 8, 8),
    ("Symbol", "_length", 0, 2),
    ("Symbol", "_body", 2, 1),
    ("StubQueue", "_stub_buffer", 0, 8),
    ("StubQueue", "_queue_begin", 8, 4),
    ("StubQueue", "_number_of_stubs", 12, 4),
    ("InterpreterCodelet", "_size", 0, 4),
    ("InterpreterCodelet", "_description", 8, 8),
    ("PcDesc", "_pc_offset", 0, 4),
    ("JavaThread", "_saved_exception_pc", 8, 8),
];
const STATIC_FIELDS: [(&str, &str, u64); 6] = [
    ("Abstract_VM_Version", "_vm_major_version", 0),
    ("Abstract_VM_Version", "_s_vm_release", 8),
    ("CodeCache", "_heaps", 16),
    ("StubRoutines", "_call_stub_return_address", 24),
    ("AbstractInterpreter", "_code", 32),
    ("ClassLoaderDataGraph", "_head", 40),
];
const SIZES: [(&str, u64); 6] = [
    ("HeapBlock", 16),
    ("nmethod", 96),
    ("ConstMethod", 32),
    ("ConstantPool", 32),
    ("PcDesc", 16),
    ("Klass", 64),
];

fn tables() -> Tables {
    let field = |(of, name, at, size): &(&str, &str, u64, u8)| {
        let field = Field {
            at: *at,
            is_static: false,
            size: *size,
        };
        (((*of).to_owned(), (*name).to_owned()), field)
    };
    let of_static = |(of, name, at): &(&str, &str, u64)| {
        let field = Field {
            at: STATICS + at,
            is_static: true,
            size: 8,
        };
        (((*of).to_owned(), (*name).to_owned()), field)
    };
    let fields = FIELDS.iter().map(field);
    let fields: HashMap<_, _> = fields.chain(STATIC_FIELDS.iter().map(of_static)).collect();
    let sizes = SIZES.iter().map(|(name, size)| ((*name).to_owned(), *size));
    Tables {
        fields,
        sizes: sizes.collect(),
    }
}

/// Memory that is written by address.
pub(crate) struct Machine(pub(crate) TargetImage);

impl Machine {
    /// Each byte is a piece of its own, so that parts can be replaced.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            self.0.memory.map(at, [*byte]);
        }
    }

    pub(crate) fn put_u64(&mut self, at: u64, words: &[u64]) {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        self.put(at, &bytes.collect::<Vec<u8>>());
    }

    pub(crate) fn put_u32(&mut self, at: u64, words: &[u32]) {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        self.put(at, &bytes.collect::<Vec<u8>>());
    }

    /// A symbol, or a string.
    fn put_symbol(&mut self, at: u64, text: &str) {
        let length = (text.len() as u16).to_ne_bytes();
        self.put(at, &[&length, text.as_bytes()].concat());
    }

    /// A blob in `segments` of the heap, of 0x100 bytes each.
    pub(crate) fn put_blob(
        &mut self,
        blob: u64,
        name: u64,
        frame_words: u32,
        segments: std::ops::Range<u64>,
    ) {
        let start = blob + 0x200;
        self.put(blob, &[0; 0x300]);
        self.put_u64(blob, &[name]);
        self.put_u32(blob + 8, &[frame_words, 8]);
        self.put_u64(blob + 16, &[start, start + 0x100]);
        for segment in segments.clone() {
            self.put(SEGMENTS + segment, &[(segment - segments.start) as u8]);
        }
    }

    /// A method with bytecode of 8 bytes at lines from 7 on, of the class `shop/Cart`.
    pub(crate) fn put_method(&mut self, at: u64, name: &str) {
        let (constant, pool, class) = (at + 0x100, at + 0x200, at + 0x300);
        self.put_u64(at, &[0, constant, 1]);
        self.put_u64(constant, &[0, pool]);
        self.put_u32(constant + 16, &[8]);
        let halves = [1_u16, 8, 1, 3];
        let halves = halves.iter().flat_map(|half| half.to_ne_bytes());
        self.put(constant + 20, &halves.collect::<Vec<u8>>());
        self.put(constant + 28, &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        // Position 0 is line 7, 2 is line 8, 5 is line 9; then the end.
        self.put(constant + 40, &[7, 2 << 3 | 1, 3 << 3 | 1, 0]);
        self.put(constant + 44, &[0; 20]);
        self.put_u64(
            pool,
            &[0, class, 2, 0, 0, at + 0x400, at + 0x500, at + 0x480],
        );
        self.put_u64(class, &[0, at + 0x600, 0, pool, 0, 0, 0, 0]);
        self.put_symbol(at + 0x400, name);
        self.put_symbol(at + 0x480, "()V");
        self.put_symbol(at + 0x500, "Cart.java");
        self.put_symbol(at + 0x600, "shop/Cart");
    }
}

/// A machine with a method `total`, compiled, in which `price` is inlined.
pub(crate) fn machine() -> Machine {
    let mut it = Machine(TargetImage::new());
    it.put_u64(
        STATICS,
        &[17, TEXT, HEAP_LIST, CALL_STUB_RETURN, HEAP_LIST + 0x400, 0],
    );
    it.put(TEXT, &[0; 0x140]);
    it.put(TEXT, b"17.0.1\0");
    it.put(TEXT + 0x40, b"nmethod\0");
    it.put(TEXT + 0x80, b"StubRoutines (1)\0");
    it.put(TEXT + 0xc0, b"Interpreter\0");
    // One heap.
    it.put_u32(HEAP_LIST, &[1, 0]);
    it.put_u64(HEAP_LIST + 8, &[HEAP_LIST + 0x10, HEAP_LIST + 0x100]);
    it.put(HEAP_LIST + 0x100, &[0; 0x100]);
    it.put_u64(HEAP_LIST + 0x100, &[CODE, CODE + 0x1000]);
    it.put_u64(HEAP_LIST + 0x140, &[SEGMENTS]);
    it.put_u32(HEAP_LIST + 0x180, &[8]);
    // No codelets.
    it.put_u64(HEAP_LIST + 0x400, &[0, 0]);
    it.put(SEGMENTS, &[0xff; 0x10]);
    it.put_blob(BLOB, TEXT + 0x40, 4, 1..5);
    it.put_blob(STUB, TEXT + 0x80, 0, 8..12);
    it.put_blob(INTERPRETER, TEXT + 0xc0, 0, 12..16);
    // Calls before two places.
    it.put(BLOB_CODE + 0x3b, &[0xe8, 0xe8]);
    it.put_method(METADATA, "total");
    it.put_method(METADATA + 0x1000, "price");
    // Compilation 42. Its places are at 0x100, its scopes at 0x180, its methods at 0x140.
    it.put_u32(BLOB + 32, &[42, 0x100, 0x130, 0x140, 0]);
    it.put_u64(BLOB + 56, &[BLOB_CODE, METADATA, SCOPES, 0]);
    it.put_u64(BLOB + 0x140, &[METADATA, METADATA + 0x1000]);
    it.put_u32(
        BLOB + 0x100,
        &[u32::MAX, 0, 0, 0, 0x40, 4, 0, 0, i32::MAX as u32, 0, 0, 0],
    );
    // Scopes: caller, method, position and one. `total` at 5 has called `price` at 2.
    it.put(SCOPES, &[0; 16]);
    it.put(SCOPES + 1, &[0, 1, 6, 1, 2, 3]);
    it.put(SCOPES + 7, &[0; 16]);
    it
}

pub(crate) fn process(machine: &Machine) -> HotSpotProcess {
    HotSpotProcess::new(Layout::new(&machine.0, &tables()).unwrap())
}

pub(crate) fn registers(pc: u64, rbp: u64) -> FrameRegisters {
    let mut registers = FrameRegisters::new(pc);
    registers.set(RSP, STACK);
    registers.set(RBP, rbp);
    registers
}

/// The step from a frame, and its functions with files and lines.
pub(crate) fn step(
    machine: &Machine,
    registers: &FrameRegisters,
    is_innermost: bool,
) -> (Result<GeneratedFrame, GeneratedEnd>, Vec<String>) {
    let process = process(machine);
    let code = process.generated(&machine.0).expect("there are heaps");
    let found = code.step(&machine.0, registers, is_innermost);
    let record = found.as_ref().ok().and_then(|it| it.record);
    let frames: Arc<[Frame]> = record.map_or_else(Arc::default, |record| {
        process.frames(&machine.0, registers.instruction_pointer, &record)
    });
    let shown = frames.iter().map(|frame| match frame {
        Frame::Named(named) => format!("{} {}:{}", named.name(), named.file, named.line),
        Frame::Native { .. } => panic!("{frame:?}"),
    });
    (found, shown.collect())
}

const UNEXPECTED: &str = "generated code: there is no code at its address";

#[test]
fn a_compiled_frame_has_its_size_and_its_inlined_methods() {
    let mut machine = machine();
    machine.put_u64(STACK, &[1, 2, 3, CALL_STUB_RETURN]);
    let (found, frames) = step(&machine, &registers(BLOB_CODE + 0x40, 0), false);
    let caller = found.unwrap().caller;
    assert_eq!(caller.instruction_pointer, CALL_STUB_RETURN);
    assert_eq!(
        (caller.get(RSP), caller.get(RBP)),
        (Some(STACK + 32), Some(3))
    );
    assert_eq!(
        frames,
        ["shop.Cart.price Cart.java:8", "shop.Cart.total Cart.java:9"]
    );
    // Where the tables have no place, the method is known, but no line.
    let (_, frames) = step(&machine, &registers(BLOB_CODE + 0x41, 0), false);
    assert_eq!(frames, ["shop.Cart.total Cart.java:0"]);
    // Nothing returns to a place that is behind no call, unless the tables have it.
    let (found, _) = step(&machine, &registers(BLOB_CODE + 0x50, 0), false);
    let error = found.unwrap_err().to_string();
    assert_eq!(error, "generated code: no call before its place");
    machine.put_u32(BLOB + 0x110, &[0x50]);
    let (found, _) = step(&machine, &registers(BLOB_CODE + 0x50, 0), false);
    assert!(found.is_ok());
    // The stub that calls Java keeps the frame pointer.
    machine.put_u64(STACK + 64, &[7, 0x1234]);
    let (found, frames) = step(&machine, &registers(CALL_STUB_RETURN, STACK + 64), false);
    let caller = found.unwrap().caller;
    assert_eq!(caller.instruction_pointer, 0x1234);
    assert_eq!(
        (caller.get(RSP), caller.get(RBP)),
        (Some(STACK + 80), Some(7))
    );
    assert_eq!(frames, ["StubRoutines::call_stub :0"]);
}

#[test]
fn an_interpreted_method_is_one_of_its_class_with_a_place_in_its_bytecode() {
    const BYTECODE: u64 = METADATA + 0x120;
    const BEHIND: u64 = BYTECODE + 8;
    let mut machine = machine();
    let put_frame = |machine: &mut Machine, bytecode: u64| {
        let sender = STACK + 80;
        let slots = [
            bytecode,
            0,
            0,
            0,
            0,
            METADATA,
            0,
            sender,
            7,
            CALL_STUB_RETURN,
        ];
        machine.put_u64(STACK, &slots);
    };
    let mut frame = registers(INTERPRETER + 0x240, STACK + 64);
    let frames = |machine: &Machine, frame: &FrameRegisters, is_innermost: bool| {
        let (found, frames) = step(machine, frame, is_innermost);
        let caller = found.map(|it| (it.caller.instruction_pointer, it.caller.get(RSP)));
        let caller = caller.map_err(|error| error.to_string());
        caller.map(|caller| (caller, frames))
    };
    let total = |line: u32| {
        let method = format!("shop.Cart.total Cart.java:{line}");
        Ok(((CALL_STUB_RETURN, Some(STACK + 80)), vec![method]))
    };
    let none = |what: &str| Err(format!("generated code: no {what} in the interpreter"));
    put_frame(&mut machine, BYTECODE + 2);
    assert_eq!(frames(&machine, &frame, false), total(8));
    // The register has the newest place, of the innermost frame alone.
    frame.set(R13, BYTECODE + 7);
    assert_eq!(frames(&machine, &frame, true), total(9));
    assert_eq!(frames(&machine, &frame, false), total(8));
    put_frame(&mut machine, BEHIND);
    assert_eq!(frames(&machine, &frame, true), total(9));
    assert_eq!(frames(&machine, &frame, false), none("place in the method"));
    frame.set(R13, BYTECODE - 1);
    assert_eq!(frames(&machine, &frame, true), none("place in the method"));
    // A native method has no bytecode.
    machine.put_u32(METADATA + 16, &[0x100]);
    assert_eq!(frames(&machine, &frame, true), total(0));
    // Another class, or one with other constants.
    let (of_class, of_constants) = (METADATA + 0x318, METADATA + 0x208);
    for (at, word) in [
        (of_class, METADATA + 0x208),
        (of_constants, METADATA + 0x1300),
    ] {
        let mut lying = self::machine();
        put_frame(&mut lying, BYTECODE);
        lying.put_u64(at, &[word]);
        assert_eq!(frames(&lying, &frame, false), none("method"));
    }
}

#[test]
fn a_virtual_machine_that_starts_is_read_again() {
    const QUEUE: u64 = HEAP_LIST + 0x400;
    const ENTRY: u64 = INTERPRETER + 0x200;
    const NUMBER: u64 = 5;
    let mut machine = machine();
    machine.put_u64(STACK, &[CALL_STUB_RETURN, 0]);
    let mut frame = registers(ENTRY + 0x20, 0);
    frame.set(RBX, METADATA);
    frame.set(R13, STACK + 80);
    let process = process(&machine);
    // The identity of the class in the record of a method that is entered.
    let class = |machine: &Machine| {
        let code = process.generated(&machine.0).unwrap();
        let found = code.step(&machine.0, &frame, true).unwrap();
        found.record.map(|record| record.0[2])
    };
    // No code of the interpreter, one piece, then the entry, and the numbers of classes.
    assert_eq!(class(&machine), None);
    machine.put(TEXT + 0x100, b"method entry point (kind = zerolocals)\0");
    machine.put_u64(ENTRY, &[0x10, TEXT + 0x40]);
    machine.put_u64(ENTRY + 0x10, &[0x40, TEXT + 0x100]);
    machine.put_u64(QUEUE, &[ENTRY]);
    machine.put_u32(QUEUE + 8, &[0, 1]);
    assert_eq!(class(&machine), None);
    machine.put_u32(QUEUE + 12, &[2]);
    assert_eq!(class(&machine), Some(METADATA + 0x300));
    assert_eq!(class(&machine), Some(METADATA + 0x300));
    let classes: Vec<u64> = (0..20)
        .map(|index| METADATA + 0x2000 + 0x40 * index)
        .collect();
    for (index, class) in (0..).zip(&classes) {
        let next = classes.get(index + 1).copied().unwrap_or_default();
        let number = (index as u64 + 10) << 16;
        machine.put_u64(*class, &[0, 0, next, 0, number, 0, 0, 0]);
    }
    machine.put_u64(METADATA + 0x320, &[NUMBER << 16]);
    machine.put_u64(METADATA + 0x700, &[classes[0], 0]);
    machine.put_u64(STATICS + 40, &[METADATA + 0x700]);
    assert_eq!(class(&machine), Some(NUMBER));
    // It has started: its pieces are not read again.
    machine.put_u32(QUEUE + 12, &[0]);
    assert_eq!(class(&machine), Some(NUMBER));
}

#[test]
fn code_that_is_replaced_before_it_is_named_has_no_name() {
    let mut machine = machine();
    machine.put_u64(STACK, &[1, 2, 3, CALL_STUB_RETURN]);
    let process = process(&machine);
    let code = process.generated(&machine.0).unwrap();
    let found = code.step(&machine.0, &registers(BLOB_CODE + 0x40, 0), false);
    let record = found.unwrap().record.unwrap();
    let names = |machine: &Machine| {
        let frames = self::process(machine).frames(&machine.0, 0, &record);
        let Frame::Named(named) = &frames[0] else {
            panic!("{frames:?}")
        };
        (named.name().to_owned(), named.is_unnamed())
    };
    assert_eq!(names(&machine), ("shop.Cart.price".into(), false));
    // Another compilation, or none.
    machine.put_u32(BLOB + 32, &[43]);
    assert_eq!(names(&machine), ("[Java]".into(), true));
    machine.put_u32(BLOB + 32, &[42]);
    machine.put(SEGMENTS + 3, &[0xff]);
    assert_eq!(names(&machine), ("[Java]".into(), true));
}

#[test]
fn lies_about_the_code_cache_end_a_stack() {
    let frame = registers(BLOB_CODE + 0x40, 0);
    let why = |machine: &Machine| step(machine, &frame, false).0.unwrap_err().to_string();
    // A map that leads in circles is not possible: it leads before the heap.
    let mut lying = machine();
    lying.put(SEGMENTS, &[0xfe; 0x10]);
    assert_eq!(why(&lying), UNEXPECTED);
    lying.put(SEGMENTS, &[0xff; 0x10]);
    assert_eq!(why(&lying), UNEXPECTED);
    // No code there.
    let mut lying = machine();
    lying.put_u64(BLOB + 16, &[BLOB_CODE, BLOB_CODE]);
    assert_eq!(why(&lying), "generated code: its address is in no code");
    // A frame of any size is beyond the stack, or does not grow.
    let mut lying = machine();
    lying.put_u32(BLOB + 8, &[i32::MAX as u32]);
    assert!(matches!(
        step(&lying, &frame, false).0,
        Err(GeneratedEnd::Unreadable(_))
    ));
    // Its name is no text.
    let mut lying = machine();
    lying.put_u64(BLOB, &[STACK]);
    assert!(matches!(
        step(&lying, &frame, false).0,
        Err(GeneratedEnd::Unreadable(_))
    ));
    // Heaps without end, or from the end on.
    let mut lying = machine();
    lying.put_u32(HEAP_LIST, &[u32::MAX]);
    assert!(process(&lying).generated(&lying.0).is_none());
    let mut lying = machine();
    lying.put_u64(HEAP_LIST + 0x100, &[u64::MAX, 0]);
    assert!(process(&lying).generated(&lying.0).is_none());
}

#[test]
fn lies_about_methods_leave_out_their_names() {
    let frame = registers(BLOB_CODE + 0x40, 0);
    let names = |machine: &mut Machine| {
        machine.put_u64(STACK, &[1, 2, 3, CALL_STUB_RETURN]);
        step(machine, &frame, false).1
    };
    let unnamed = ["[Java] :0"];
    // A scope that is its own caller, and one whose caller is behind it.
    for caller in [4, 9] {
        let mut lying = machine();
        lying.put(SCOPES + 4, &[caller]);
        assert_eq!(names(&mut lying), unnamed);
    }
    // Places that end before they begin, or have no end.
    for end in [0, u32::MAX >> 1] {
        let mut lying = machine();
        lying.put_u32(BLOB + 40, &[end]);
        assert_eq!(names(&mut lying), unnamed);
    }
    // Methods, constants, classes and names anywhere.
    for (at, word) in [
        (BLOB + 0x148, u64::MAX),
        (METADATA + 0x1008, 0x10),
        (METADATA + 0x1108, u64::MAX - 3),
        (METADATA + 0x1208, 0x20),
        (METADATA + 0x1228, 0x30),
    ] {
        let mut lying = machine();
        lying.put_u64(at, &[word]);
        assert_eq!(names(&mut lying), unnamed, "{at:#x}");
    }
    // A name that is longer than memory, and bytecode that is longer than its method.
    let mut lying = machine();
    lying.put(METADATA + 0x1400, &[0xff; 2]);
    assert_eq!(names(&mut lying), unnamed);
    let mut lying = machine();
    lying.put(METADATA + 0x1116, &[0xff; 2]);
    assert_eq!(names(&mut lying)[0], "shop.Cart.price Cart.java:0");
    // Classes that follow themselves.
    let mut lying = machine();
    lying.put_u64(STATICS + 40, &[METADATA + 0x700]);
    lying.put_u64(METADATA + 0x700, &[METADATA + 0x300, METADATA + 0x700]);
    lying.put_u64(METADATA + 0x310, &[METADATA + 0x300]);
    assert_eq!(names(&mut lying).len(), 2);
}

#[test]
fn fields_of_unknown_types_are_large() {
    let names = |machine: &Machine, of: &str, name: &str| {
        let mut tables = tables();
        let field = tables.fields.get_mut(&(of.to_owned(), name.to_owned()));
        field.unwrap().size = 8;
        let process = HotSpotProcess::new(Layout::new(&machine.0, &tables).unwrap());
        let code = process.generated(&machine.0).unwrap();
        let found = code.step(&machine.0, &registers(BLOB_CODE + 0x40, 0), false);
        process
            .frames(&machine.0, 0, &found.unwrap().record.unwrap())
            .len()
    };
    let mut machine = machine();
    machine.put_u64(STACK, &[1, 2, 3, CALL_STUB_RETURN]);
    for constant in [METADATA + 0x100, METADATA + 0x1100] {
        machine.put(constant + 22, &[0xff; 2]);
        machine.put(constant + 28, &[0xff; 4]);
    }
    for name in ["_name_index", "_constMethod_size"] {
        assert_ne!(names(&machine, "ConstMethod", name), 0, "{name}");
    }
}

#[test]
fn long_names_are_cut() {
    let mut machine = machine();
    machine.put_u64(STACK, &[1, 2, 3, CALL_STUB_RETURN]);
    let long = |length: usize| "x".repeat(length);
    // Each has memory of its own.
    for (at, length, pointer) in [
        (METADATA + 0x4000, 600, METADATA + 0x1228),
        (METADATA + 0x5000, 5000, METADATA + 0x1230),
        (METADATA + 0x7000, 600, METADATA + 0x1308),
    ] {
        machine.put_symbol(at, &long(length));
        machine.put_u64(pointer, &[at]);
    }
    let (_, frames) = step(&machine, &registers(BLOB_CODE + 0x40, 0), false);
    let expected = format!("{}.{} {}:8", long(512), long(512), long(4096));
    assert_eq!(frames[0], expected);
}

#[test]
fn tables_that_lack_a_field_say_which_one() {
    let machine = machine();
    for (of, name, ..) in FIELDS {
        // These are not needed by all versions, or for names alone.
        if ["Klass", "ClassLoaderData", "PcDesc", "JavaThread"].contains(&of) && name != "_name"
            || name == "_source_file_name_index"
        {
            continue;
        }
        let mut tables = tables();
        let key = (of.to_owned(), name.to_owned());
        tables.fields.remove(&key);
        let error = Layout::new(&machine.0, &tables).unwrap_err().to_string();
        assert!(error.contains(" is not supported"), "{of}::{name}: {error}");
        // An offset beyond any structure.
        let far = Field {
            at: 1 << 40,
            is_static: false,
            size: 8,
        };
        let mut of_static = far;
        of_static.is_static = true;
        for wrong in [far, of_static] {
            tables.fields.insert(key.clone(), wrong);
            assert!(Layout::new(&machine.0, &tables).is_err(), "{of}::{name}");
        }
    }
    for (name, _) in SIZES {
        for size in [None, Some(u64::MAX)] {
            let mut tables = tables();
            tables.sizes.remove(name);
            tables
                .sizes
                .extend(size.map(|size| (name.to_owned(), size)));
            let layout = Layout::new(&machine.0, &tables);
            let is_needed = name != "Klass";
            assert_eq!(layout.is_err(), is_needed, "{name}");
        }
    }
}
