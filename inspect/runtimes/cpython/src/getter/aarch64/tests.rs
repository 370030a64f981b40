use otelctx_reader::remote::memory::Image;

use super::*;
use crate::getter::{Returned, Value};

const CODE: u64 = 0x47_1314;

fn memory() -> Image {
    let mut memory = Image::new();
    memory.map_u64(0xa3_6260, &[1, 5 << 32]);
    memory
}

fn bytes(code: &[u32]) -> Vec<u8> {
    code.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn getter(code: &[u32]) -> Getter {
    read(&memory(), &bytes(code), CODE)
}

/// `PyGILState_GetThisThreadState` of Debian's 3.11 and 3.14 for arm64.
#[test]
fn the_argument_of_the_first_call_is_found() {
    let argument = |number, read_from| Some(Value { number, read_from });
    let key = getter(&[
        0xb000_2e20, // adrp x0, a36000
        0x9100_2000, // add x0, x0, #0x8
        0xf941_2c01, // ldr x1, [x0, #600]
        0xb400_0061, // cbz x1, …
        0xb942_6400, // ldr w0, [x0, #612]
        0x17fe_ba0f, // b pthread_getspecific
        0xd280_0000, // mov x0, #0
        0xd65f_03c0, // ret
    ]);
    assert_eq!(key.argument, argument(5, Some(0xa3_626c)));
    assert_eq!(
        (key.result, &key.constants[..]),
        (None, &[0xa3_6000, 0xa3_6008][..])
    );
    let structure = getter(&[
        0xd503_245f, // bti c
        0xb000_2e20, // adrp x0, a36000
        0xb946_a001, // ldr w1, [x0, #1696]
        0xb000_2e20, // adrp x0, a36000
        0x911a_8000, // add x0, x0, #0x6a0
        0x97fe_ba0f, // bl PyThread_tss_get
        0xd280_0000, // mov x0, #0
        0xd65f_03c0, // ret
    ]);
    assert_eq!(structure.argument, argument(0xa3_66a0, None));
    assert_eq!(structure.result, None);
    // By a TLS descriptor, as gcc writes it for a shared library.
    let descriptor = getter(&[
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9100_03fd, // mov x29, sp
        0xb000_2e20, // adrp x0, a36000
        0xf941_3001, // ldr x1, [x0, #608]
        0x9109_8000, // add x0, x0, #0x260
        0xd63f_0020, // blr x1
        0xd53b_d041, // mrs x1, tpidr_el0
        0xf860_6820, // ldr x0, [x1, x0]
        0xa8c1_7bfd, // ldp x29, x30, [sp], #16
        0xd65f_03c0, // ret
    ]);
    assert_eq!(descriptor.argument, argument(0xa3_6260, None));
    assert_eq!(descriptor.result, None);
    // An indirect call, of which nothing is known.
    assert_eq!(getter(&[0xf940_0260, 0xd63f_0020]).argument, None);
}

/// `PyInterpreterState_Head` of 3.11, and `PyGILState_GetThisThreadState` of 3.15, which keeps the state in a thread-local
/// variable.
#[test]
fn the_result_is_found() {
    let head = getter(&[
        0xb000_2e20, // adrp x0, a36000
        0xf941_3000, // ldr x0, [x0, #608]
        0xd65f_03c0, // ret
    ]);
    let value = Value {
        number: 1,
        read_from: Some(0xa3_6260),
    };
    assert_eq!(head.result, Some(Returned::Value(value)));
    let local = getter(&[
        0xd53b_d040, // mrs x0, tpidr_el0
        0xd503_233f, // paciasp
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0xd503_201f, // nop
        0x9100_8000, // add x0, x0, #0x20
        0x9100_03fd, // mov x29, sp
        0xa8c1_7bfd, // ldp x29, x30, [sp], #16
        0xd503_23bf, // autiasp
        0xf940_0400, // ldr x0, [x0, #8]
        0xd65f_03c0, // ret
    ]);
    assert_eq!(local.result, Some(Returned::ThreadLocal(0x28)));
    // The second register of a pair is unknown, too: ldp x1, x0, [sp].
    assert_eq!(
        getter(&[0xd53b_d040, 0xa940_03e1, 0xd65f_03c0]).result,
        None
    );
    // movz x0, #2, lsl #16; mov x1, x0; mov x0, x1
    let number = getter(&[0xd2a0_0040, 0xaa00_03e1, 0xaa01_03e0, 0xd65f_03c0]);
    let value = Value {
        number: 0x2_0000,
        read_from: None,
    };
    assert_eq!(number.result, Some(Returned::Value(value)));
}

#[test]
fn jumps_and_calls_are_found() {
    let code = bytes(&[
        0x1700_0000, // b -0x4000000
        0x9400_0001, // bl +4
        0x54ff_ffe1, // b.ne -4
        0xb500_0040, // cbnz x0, +8
        0x3707_ffe0, // tbnz w0, #0, -4
        0xd65f_0bff, // retaa
    ]);
    let found = jumps(&code, 0x1000_0000);
    let found: Vec<_> = found.iter().map(|it| (it.leaving, it.target)).collect();
    let expected = [
        (Leaving::Jump, 0xc00_0000),
        (Leaving::Call, 0x1000_0008),
        (Leaving::Condition, 0x1000_0004),
        (Leaving::Condition, 0x1000_0014),
        (Leaving::Condition, 0x1000_000c),
    ];
    assert_eq!(found, expected);
}

/// The address of a page, and the offset in it.
#[test]
fn what_a_pair_of_instructions_makes_is_a_constant() {
    // adrp x3, +0x1000; add x3, x3, #0x10, lsl #12; adr x4, -4
    let code = bytes(&[0xb000_0003, 0x9140_4063, 0x10ff_ffe4]);
    let found = constants(&code, 0x2000);
    assert_eq!(found, [0x3000, 0x1_3000, 0x2004]);
}
