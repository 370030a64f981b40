use otelctx_reader::remote::memory::Image;

use super::*;
use crate::getter::Returned;

const CODE: u64 = 0x1000;
const TABLE: u64 = 0x9000;

fn getter(code: &[u8]) -> Getter {
    let mut image = Image::new();
    image
        .map(CODE, code)
        .map_u64(TABLE, &[0x5000, -0x28_i64 as u64])
        .map_u64(0x5248, &[7, 9]);
    read(&image, code, CODE)
}

/// Instructions of `PyGILState_GetThisThreadState` of several versions, with other displacements.
#[test]
fn the_argument_of_the_first_call_is_found() {
    let argument = |number, read_from| Some(Value { number, read_from });
    // mov rax,[rip+…]; cmp qword [rax+0x240],0; je; lea rdi,[rax+0x248]; jmp
    let through_table = b"\x48\x8b\x05\xf9\x7f\0\0\x48\x83\xb8\x40\x02\0\0\0\x74\x0f\
        \x48\x8d\xb8\x48\x02\0\0\xe9\0\0\0\0";
    assert_eq!(getter(through_table).argument, argument(0x5248, None));
    // The same, through rbx, to two functions.
    let saved = b"\x48\x8b\x05\xf9\x7f\0\0\x53\x48\x8d\x98\x48\x02\0\0\x48\x89\xdf\
        \xe8\0\0\0\0\x85\xc0\x74\0\x48\x89\xc7\x5b\xe9\0\0\0\0";
    assert_eq!(getter(saved).argument, argument(0x5248, None));
    // mov edi,[rip+…]; jmp: the key itself.
    let key = b"\x8b\x3d\x42\x42\0\0\xe9\0\0\0\0";
    assert_eq!(getter(key).argument, argument(7, Some(0x5248)));
    // An absolute address, and an unknown one.
    let absolute = b"\x8b\x3c\x25\x48\x52\0\0\xe9\0\0\0\0";
    assert_eq!(getter(absolute).argument, argument(7, Some(0x5248)));
    assert_eq!(getter(b"\x48\x8b\x3e\xe9\0\0\0\0").argument, None);
    // mov edi,fs:[…]
    assert_eq!(
        getter(b"\x64\x8b\x3c\x25\x48\x52\0\0\xe9\0\0\0\0").argument,
        None
    );
}

#[test]
fn the_result_and_constants_are_found() {
    // mov rax,[rip+…]; ret
    let head = getter(b"\x48\x8b\x05\x41\x42\0\0\xc3");
    let result = Value {
        number: 7,
        read_from: Some(0x5248),
    };
    assert_eq!(head.result, Some(Returned::Value(result)));
    // endbr64; mov rax,fs:[-0x28]; ret
    let local = getter(b"\xf3\x0f\x1e\xfa\x64\x48\x8b\x04\x25\xd8\xff\xff\xff\xc3");
    assert_eq!(local.result, Some(Returned::ThreadLocal(-0x28)));
    assert_eq!(head.constants, [0x5248]);
    // lea rdx,[rip+1]; mov esi,250; a byte that is no instruction
    let others = getter(b"\x48\x8d\x15\x01\0\0\0\xbe\xfa\0\0\0\x06");
    assert_eq!(others.constants, [0x1008, 250]);
    assert_eq!(others.result, None);
}

/// The forms that compilers and linkers write, from the fewest instructions to the most.
#[test]
fn thread_local_variables_are_found() {
    let result = |code: &[u8]| getter(code).result;
    let expected = Some(Returned::ThreadLocal(-0x28));
    // mov rax,[rip+…]; mov rax,fs:[rax]; ret
    assert_eq!(
        result(b"\x48\x8b\x05\x01\x80\0\0\x64\x48\x8b\0\xc3"),
        expected
    );
    // mov rax,fs:[0]; then what adds the offset; mov rax,[rax]; ret
    let adding = |instruction: &[u8]| {
        let start = b"\x64\x48\x8b\x04\x25\0\0\0\0";
        result(&[&start[..], instruction, b"\x48\x8b\0\xc3"].concat())
    };
    // lea rax,[rax-0x28]
    assert_eq!(adding(b"\x48\x8d\x80\xd8\xff\xff\xff"), expected);
    // add rax,-0x28, in both sizes
    assert_eq!(adding(b"\x48\x83\xc0\xd8"), expected);
    assert_eq!(adding(b"\x48\x05\xd8\xff\xff\xff"), expected);
    // add rax,[rip+…]
    assert_eq!(adding(b"\x48\x03\x05\xf8\x7f\0\0"), expected);
    // add rax,rcx: unknown
    assert_eq!(adding(b"\x48\x01\xc8"), None);
    // mov rax,fs:[0]; ret: the thread pointer is no variable.
    assert_eq!(result(b"\x64\x48\x8b\x04\x25\0\0\0\0\xc3"), None);
    // lea rdi,[rip+…]; call __tls_get_addr; then what it returns, and variables near that address
    let called = |instructions: &[u8]| {
        let start = b"\x48\x8d\x3d\x01\x80\0\0\xe8\0\x10\0\0";
        result(&[&start[..], instructions, b"\xc3"].concat())
    };
    // mov rax,[rax]
    let at = |offset| Some(Returned::AtCalled(offset));
    assert_eq!(called(b"\x48\x8b\0"), at(0));
    // mov rax,[rax+0x28]; lea rax,[rax-0x28] and mov rax,[rax]
    assert_eq!(called(b"\x48\x8b\x80\x28\0\0\0"), at(0x28));
    assert_eq!(called(b"\x48\x8d\x40\xd8\x48\x8b\0"), at(-0x28));
    // Nothing; mov eax,[rax]; mov rax,fs:[rax]; another call, and mov rax,[rax]
    assert_eq!(called(b""), None);
    assert_eq!(called(b"\x8b\0"), None);
    assert_eq!(called(b"\x64\x48\x8b\0"), None);
    assert_eq!(called(b"\xe8\0\x10\0\0\x48\x8b\0"), None);
    // mov rax,gs:[-0x28]; ret
    assert_eq!(result(b"\x65\x48\x8b\x04\x25\xd8\xff\xff\xff\xc3"), None);
}
