//! Walks of code whose frame is not complete, of a virtual machine made by hand.

use otelctx_reader::remote::FrameRegisters;

use super::R15;
use crate::tests::{
    BLOB_CODE, CALL_STUB_RETURN, METADATA, Machine, RBP, RSP, STACK, STUB, machine, registers, step,
};

/// The code of the stub.
const CODE: u64 = STUB + 0x200;
/// Size of its frame, in words.
const FRAME: u64 = 6;

/// A machine whose stub has this code, and a frame that is said to be never complete.
fn with_stub(code: &[u8]) -> Machine {
    let mut machine = machine();
    machine.put_u32(STUB + 8, &[FRAME as u32, u32::MAX]);
    machine.put(CODE, code);
    // A call of the stub, at the end of the compiled method.
    machine.put(RETURN - 5, &[0xe8, 0, 0, 0, 0]);
    machine.put_u64(STACK, &[0; 16]);
    machine
}

/// Behind a call in the compiled method.
const RETURN: u64 = BLOB_CODE + 0x80;

/// The return address, the stack pointer and the frame pointer of the caller.
fn caller(machine: &Machine, registers: &FrameRegisters) -> (u64, Option<u64>, Option<u64>) {
    let caller = step(machine, registers, true).0.unwrap().caller;
    let [sp, frame_pointer] = [RSP, RBP].map(|it| caller.get(it));
    (caller.instruction_pointer, sp, frame_pointer)
}

#[test]
fn a_stub_that_pushes_behind_its_frame_pointer_is_left_by_that() {
    // push %rbp; mov %rsp, %rbp; push %rax; …
    let mut machine = with_stub(&[0x55, 0x48, 0x8b, 0xec, 0x50, 0x90, 0x90, 0x90]);
    // In place of a return address right above the pushed register, there is what an earlier call has left.
    machine.put_u64(STACK, &[1, CALL_STUB_RETURN, 0, 7, RETURN, 0]);
    let frame = registers(CODE + 6, STACK + 24);
    assert_eq!(
        caller(&machine, &frame),
        (RETURN, Some(STACK + 40), Some(7))
    );
    // Right behind the push, the frame pointer is the caller's.
    machine.put_u64(STACK, &[7, RETURN]);
    let frame = registers(CODE + 1, STACK + 64);
    assert_eq!(
        caller(&machine, &frame),
        (RETURN, Some(STACK + 16), Some(7))
    );
}

#[test]
fn a_stub_that_pushes_registers_alone_is_left_above_them() {
    // push %rdi; push %rsi; push %rcx; push %rax; …; pop %rax; pop %rcx; pop %rsi; pop %rdi; ret
    let code = [
        0x57, 0x56, 0x51, 0x50, 0x90, 0x90, 0x58, 0x59, 0x5e, 0x5f, 0xc3,
    ];
    let mut machine = with_stub(&code);
    for (at, pushed) in [
        (0, 0),
        (1, 1),
        (3, 3),
        (4, 4),
        (5, 4),
        (6, 4),
        (8, 2),
        (10, 0),
    ] {
        // There are other return addresses above.
        let mut words = [RETURN; 8];
        words[..pushed].fill(0);
        machine.put_u64(STACK, &words);
        let frame = registers(CODE + at, STACK + 64);
        let above = STACK + 8 * pushed as u64 + 8;
        let expected = (RETURN, Some(above), Some(STACK + 64));
        assert_eq!(caller(&machine, &frame), expected, "{at}");
    }
    // Some say that they have no frame.
    machine.put_u32(STUB + 8, &[u32::MAX]);
    machine.put_u64(STACK, &[0, 0, 0, 0, RETURN]);
    let frame = registers(CODE + 5, STACK + 64);
    assert_eq!(caller(&machine, &frame).1, Some(STACK + 40));
    // For a moment, one more is pushed.
    machine.put_u64(STACK, &[0, 0, 0, 0, 0, RETURN]);
    let frame = registers(CODE + 5, STACK + 64);
    assert_eq!(caller(&machine, &frame).1, Some(STACK + 48));
}

#[test]
fn a_thread_that_reaches_a_safepoint_has_its_place_in_its_object() {
    // push %rbx; push %rbp; mov %rsp, %rbp
    let mut machine = with_stub(&[0x53, 0x55, 0x48, 0x8b, 0xec, 0x90, 0x90]);
    let object = STACK + 0x200;
    let place = BLOB_CODE + 0x60;
    machine.put_u64(object, &[0, place]);
    let at = |machine: &Machine, at: u64, sp: u64, frame_pointer: u64| {
        let mut frame = registers(CODE + at, frame_pointer);
        frame.set(RSP, sp);
        frame.set(R15, object);
        caller(machine, &frame)
    };
    let (end, rbx, rbp) = (STACK + 48, 3, STACK + 0x100);
    machine.put_u64(end - 16, &[rbp, rbx]);
    let expected = (place, Some(end), Some(rbp));
    assert_eq!(at(&machine, 0, end, rbp), expected);
    assert_eq!(at(&machine, 1, end - 8, rbp), expected);
    assert_eq!(at(&machine, 2, end - 16, rbp), expected);
    assert_eq!(at(&machine, 5, end - 16, end - 16), expected);
    // Then the stub puts it on the stack.
    machine.put_u64(end - 16, &[rbp, RETURN]);
    assert_eq!(at(&machine, 6, end - 24, end - 16).0, RETURN);
}

#[test]
fn a_word_beside_a_frame_is_no_return_address_of_another_call() {
    let mut machine = machine();
    // Behind the compiled method's frame of four words, two are pushed. The first address that looks like one is behind a call of
    // another method.
    machine.put(RETURN - 5, &[0xe8, 0, 0, 0, 0]);
    machine.put(RETURN + 0x20 - 5, &[0xe8]);
    let distance = (BLOB_CODE as i64 - (RETURN + 0x20) as i64) as i32;
    machine.put(RETURN + 0x20 - 4, &distance.to_le_bytes());
    machine.put_blob(STUB, machine_name(), 4, 8..12);
    let other = STUB + 0x200;
    let distance = (other as i64 - RETURN as i64) as i32;
    machine.put(RETURN - 4, &distance.to_le_bytes());
    let words = [1, 2, 3, RETURN, 7, RETURN + 0x20, 0, RETURN, 0, RETURN];
    machine.put_u64(STACK, &words);
    let frame = registers(BLOB_CODE + 0x40, 0);
    let expected = (RETURN + 0x20, Some(STACK + 48), Some(7));
    assert_eq!(caller(&machine, &frame), expected);
    // A method that has the same name and signature may be overridden by this one: the call is passed on. No method overrides
    // private and static ones, and `<init>`.
    const OTHER: u64 = METADATA + 0x2000;
    const NAME_AND_SIGNATURE: [u64; 2] = [METADATA + 0x400, METADATA + 0x480];
    let called = (RETURN, Some(STACK + 32), Some(3));
    machine.put_method(OTHER, "price");
    machine.put_u64(STUB + 64, &[OTHER]);
    for (symbols, text, access, expected) in [
        ([OTHER + 0x400, NAME_AND_SIGNATURE[1]], b't', 1, expected),
        ([NAME_AND_SIGNATURE[0], OTHER + 0x480], b't', 1, expected),
        (NAME_AND_SIGNATURE, b't', 1, called),
        (NAME_AND_SIGNATURE, b't', 0x101, called),
        (NAME_AND_SIGNATURE, b't', 3, expected),
        (NAME_AND_SIGNATURE, b't', 9, expected),
        (NAME_AND_SIGNATURE, b'<', 1, expected),
    ] {
        machine.put_u64(OTHER + 0x228, &symbols[..1]);
        machine.put_u64(OTHER + 0x238, &symbols[1..]);
        machine.put(METADATA + 0x402, &[text]);
        machine.put_u64(OTHER + 16, &[access]);
        assert_eq!(caller(&machine, &frame), expected, "{symbols:x?} {access}");
    }
    // So is a call through an adapter, or through a stub while the call changes.
    const NAME: u64 = 0x11_0100;
    machine.put_u64(STUB, &[NAME]);
    machine.put_u64(STUB + 64, &[0]);
    for (name, expected) in [
        (&b"I2C/C2I adapters\0"[..], called),
        (b"InlineCacheBuffer\0", called),
        (b"StubRoutines (2)\0", expected),
    ] {
        machine.put(NAME, name);
        assert_eq!(self::caller(&machine, &frame), expected);
    }
}

/// The address of the name of compiled methods.
fn machine_name() -> u64 {
    0x11_0040
}

#[test]
fn a_call_through_a_method_handle_calls_any_code() {
    const NATIVE_NAME: u64 = 0x11_0100;
    let mut machine = machine();
    machine.put(NATIVE_NAME, b"native nmethod\0");
    machine.put_blob(STUB, NATIVE_NAME, 4, 8..12);
    let distance = (CODE as i64 - RETURN as i64) as i32;
    machine.put(RETURN - 5, &[0xe8]);
    machine.put(RETURN - 4, &distance.to_le_bytes());
    // Above, there is what an earlier call by a register has left.
    machine.put(RETURN + 0x20 - 3, &[0x41, 0xff, 0xd2]);
    let words = [1, 2, 3, RETURN, 7, RETURN + 0x20, 0, RETURN, 0, RETURN];
    machine.put_u64(STACK, &words);
    let frame = registers(BLOB_CODE + 0x40, 0);
    let expected = (RETURN, Some(STACK + 32), Some(3));
    assert_eq!(caller(&machine, &frame), expected);
}

#[test]
fn frames_behind_those_in_the_heap_are_above_the_entry_of_a_virtual_thread() {
    const NAME: u64 = 0x11_0100;
    let mut machine = machine();
    machine.put(NAME, b"StubRoutines (continuation stubs)\0");
    machine.put_blob(STUB, NAME, 0, 8..12);
    machine.put(RETURN - 5, &[0xe8]);
    let put_stack = |machine: &mut Machine, words: [u64; 8]| machine.put_u64(STACK, &words);
    let caller = |machine: &Machine, pc: u64, frame_pointer: u64| {
        let found = step(machine, &registers(pc, frame_pointer), false);
        let caller = found.0.map_err(|error| error.to_string())?;
        assert_eq!(found.1, ["StubRoutines::cont_returnBarrier :0"]);
        let [sp, frame_pointer] = [RSP, RBP].map(|it| caller.caller.get(it));
        Ok((caller.caller.instruction_pointer, sp, frame_pointer))
    };
    let expected = Ok((RETURN, Some(STACK + 48), Some(7)));
    put_stack(&mut machine, [0, 1, 2, 3, 7, RETURN, 8, RETURN]);
    // The frame pointer leads into the heap, and to another address on the stack.
    for frame_pointer in [0, STACK + 48, STACK + 32] {
        assert_eq!(caller(&machine, CODE + 0x20, frame_pointer), expected);
    }
    // Behind a call in the stub, it is that of the entry's frame.
    machine.put(CODE + 0x40 - 5, &[0xe8]);
    put_stack(&mut machine, [0, RETURN, 2, 3, 7, RETURN, 8, RETURN]);
    assert_eq!(caller(&machine, CODE + 0x40, STACK + 32), expected);
    let error = "generated code: no frame in which a virtual thread begins";
    put_stack(&mut machine, [0, 1, 2, 3, 4, 5, 6, 7]);
    for pc in [CODE + 0x20, CODE + 0x40] {
        assert_eq!(caller(&machine, pc, STACK + 32), Err(error.to_owned()));
    }
}
