//! The minimum for attaching and detaching: read the slot, store the record, store the previous value.
//!
//! The variable is the bench program's own, defined and accessed as the publisher does, so that the
//! linker relaxes both alike. Volatile accesses keep the compiler from removing the stores.

use std::hint::black_box;

use super::input::INPUT;

core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",%nobits",
    ".balign 8",
    ".weak otelctx_bench_slot",
    ".type otelctx_bench_slot, %tls_object",
    ".size otelctx_bench_slot, 8",
    "otelctx_bench_slot:",
    ".zero 8",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn slot() -> *mut *const u8 {
    let address: *mut *const u8;
    // SAFETY: the symbol is the thread-local variable above, and this is the access sequence of
    // the ABI. In an executable nothing is called, so nothing but rax and the flags changes;
    // the publisher declares more, which costs nothing here: no such register is live.
    unsafe {
        core::arch::asm!(
            "lea rax, [rip + otelctx_bench_slot@tlsdesc]",
            "call [rax + otelctx_bench_slot@tlscall]",
            "add rax, fs:0",
            out("rax") address,
        );
    }
    address
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn slot() -> *mut *const u8 {
    let address: *mut *const u8;
    // SAFETY: as on x86-64.
    unsafe {
        core::arch::asm!(
            "adrp x0, :tlsdesc:otelctx_bench_slot",
            "ldr x1, [x0, :tlsdesc_lo12:otelctx_bench_slot]",
            "add x0, x0, :tlsdesc_lo12:otelctx_bench_slot",
            ".tlsdesccall otelctx_bench_slot",
            "blr x1",
            "mrs x1, tpidr_el0",
            "add x0, x1, x0",
            out("x0") address,
            out("x1") _,
            out("x30") _,
        );
    }
    address
}

/// A record to attach, behind a handle as the publisher's is.
#[derive(Debug)]
struct Prepared(*const u8);

/// A load and two volatile stores.
pub(crate) fn swap_and_back(count: u64) {
    let mut record = Prepared((&raw const INPUT).cast());
    for _ in 0..count {
        let record = black_box(&mut record).0;
        let slot = slot();
        // SAFETY: the slot is this thread's, and only this function uses it.
        unsafe {
            let previous = slot.read_volatile();
            slot.write_volatile(record);
            slot.write_volatile(previous);
        }
    }
}
