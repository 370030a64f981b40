//! A thread of a Java virtual machine, from arbitrary memory.
//!
//! Input: whether the frame is the innermost one (1 byte), registers ([`REGISTERS`], 8 bytes each), and the memory at [`START`], where the
//! static variables come first. The frames of the thread are walked and named.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_hotspot::{HotSpot, Member};
use otelctx_reader::sample::Frame;
use otelctx_remote::memory::{CountedMemory, Image};
use otelctx_remote::{FrameRegisters, TargetImage, Through};

/// Where the memory starts.
const START: u64 = 0x10_0000;
/// DWARF's numbers of the registers in the input: the stack pointer, rbp, rax, rdx, rbx, r13 and r15.
const REGISTERS: [u8; 7] = [7, 6, 0, 1, 3, 13, 15];
/// Limit on the steps of a walk.
const MAX_STEPS: usize = 64;
/// Limit on reads for a step: segments, places in code, return addresses on the stack and what is called before them.
const MAX_STEP_READS: usize = 65_536;
/// Limits on functions at a place, and on their names: class and method.
const MAX_FUNCTIONS: usize = 128;
const MAX_NAME: usize = 2 * 3 * 512 + 1;
const MAX_FILE: usize = 3 * 4096;

/// Members of structures: type, name, offset and size. Static ones are at [`START`] and this offset.
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

fuzz_target!(|data: &[u8]| {
    let Some((is_innermost, rest)) = data.split_first() else {
        return;
    };
    let (words, _) = rest.as_chunks::<8>();
    let Some(words) = words.first_chunk::<{ REGISTERS.len() + 1 }>() else {
        return;
    };
    let [pc, registers @ ..] = words.map(u64::from_le_bytes);
    let mut frame = FrameRegisters::new(pc);
    for (number, value) in REGISTERS.into_iter().zip(registers) {
        frame.set(number, value);
    }
    let mut memory = Image::new();
    memory.map(START, &rest[8 * words.len()..]);
    let (process, memory) = (TargetImage::new(), CountedMemory::new(memory));
    let target = Through::new(&process, &memory);
    let own = FIELDS.iter().map(|(of, name, at, size)| Member {
        names: (of, name),
        at: *at,
        size: *size,
        is_static: false,
    });
    let of_statics = STATIC_FIELDS.iter().map(|(of, name, at)| Member {
        names: (of, name),
        at: START + at,
        size: 8,
        is_static: true,
    });
    let members: Vec<Member<'_>> = own.chain(of_statics).collect();
    let Ok(machine) = HotSpot::with_tables(&target, &members, &SIZES) else {
        return;
    };
    // It has started when it is read again.
    let Some(_) = machine.generated(&target) else {
        return;
    };
    let code = machine.generated(&target).expect("it was there");
    memory.take_reads();
    let mut is_innermost = is_innermost % 2 == 0;
    for _ in 0..MAX_STEPS {
        let Ok(found) = code.step(&target, &frame, is_innermost) else {
            break;
        };
        let reads = memory.take_reads();
        assert!(reads <= MAX_STEP_READS, "{reads} reads");
        if let Some(record) = &found.record {
            let address = frame.instruction_pointer;
            let frames = machine.frames(&target, address, record);
            assert!(frames.len() <= MAX_FUNCTIONS, "{} functions", frames.len());
            frames.iter().for_each(check);
            assert_eq!(machine.frames(&target, address, record), frames);
            memory.take_reads();
        }
        (frame, is_innermost) = (found.caller, false);
    }
});

fn check(frame: &Frame) {
    let Frame::Named(named) = frame else {
        panic!("{frame:?}");
    };
    let name = named.qualified_name.len().max(named.function.len());
    assert!(name <= MAX_NAME, "a name of {name} bytes");
    assert!(named.file.len() <= MAX_FILE);
}
