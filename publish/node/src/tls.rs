//! The thread-local structure that readers find by its name, and how it is written.

use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

/// The publication of a thread: from here, a reader finds the record of the context that is active.
#[repr(C)]
pub(crate) struct Published {
    /// Address of the isolate's word for continuation-preserved embedder data. While it is 0,
    /// readers use nothing: it is written last and cleared first.
    gate: usize,
    /// Address of a slot with the `AsyncLocalStorage`, which the garbage collector updates.
    key: usize,
    /// The identity hash of that object.
    key_hash: i32,
    /// Offset of the address of its record in an object, in bytes.
    record_offset: u8,
    zero: [u8; 3],
    /// V8's `undefined`, a tagged word.
    undefined: usize,
}

const _: () = assert!(size_of::<Published>() == 32);

impl Published {
    pub(crate) const fn new(
        gate: usize,
        key: usize,
        key_hash: i32,
        record_offset: u8,
        undefined: usize,
    ) -> Self {
        Self {
            gate,
            key,
            key_hash,
            record_offset,
            zero: [0; 3],
            undefined,
        }
    }

    /// Shows it to readers of the calling thread.
    pub(crate) fn publish(self) {
        close();
        let to = address();
        // SAFETY: the variable is the thread's own, has this size, and is written nowhere else. A
        // reader stops or interrupts the thread, so that it sees the writes in this order.
        unsafe {
            ptr::write_volatile(to, Self { gate: 0, ..self });
            compiler_fence(Ordering::SeqCst);
            ptr::write_volatile(&raw mut (*to).gate, self.gate);
        }
    }
}

/// Has readers of the calling thread find nothing.
pub(crate) fn close() {
    // SAFETY: see `publish`.
    unsafe { ptr::write_volatile(&raw mut (*address()).gate, 0) };
    compiler_fence(Ordering::SeqCst);
}

std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",%nobits",
    ".balign 8",
    ".globl otel_thread_ctx_nodejs_v1",
    ".type otel_thread_ctx_nodejs_v1, %tls_object",
    ".size otel_thread_ctx_nodejs_v1, {size}",
    "otel_thread_ctx_nodejs_v1:",
    ".zero {size}",
    ".popsection",
    size = const size_of::<Published>(),
);

/// Adds the symbol to the addon's dynamic symbol table: rustc lists the names of exported items in
/// a linker version script, where this one is a glob that matches it.
#[unsafe(export_name = "otel_thread_ctx_nodejs_v[1]")]
#[allow(unreachable_pub)]
pub static EXPORT: u8 = 0;

/// Returns the calling thread's structure, by the sequence that TLSDESC prescribes ("ELF Handling
/// For Thread-Local Storage").
#[cfg(target_arch = "x86_64")]
fn address() -> *mut Published {
    let address;
    // SAFETY: the symbol is defined above. The convention is that only rax and the flags change,
    // but glibc before 2.40 also changes vector registers on a thread's first access (BZ #31372):
    // `clobber_abi` declares all.
    unsafe {
        std::arch::asm!(
            "lea rax, [rip + otel_thread_ctx_nodejs_v1@tlsdesc]",
            "call [rax + otel_thread_ctx_nodejs_v1@tlscall]",
            "add rax, fs:0",
            out("rax") address,
            clobber_abi("C"),
        );
    }
    address
}

/// Returns the calling thread's structure, by the same sequence.
#[cfg(target_arch = "aarch64")]
fn address() -> *mut Published {
    let address;
    // SAFETY: see the one for x86-64; x0, x1 and x30 change here.
    unsafe {
        std::arch::asm!(
            "adrp x0, :tlsdesc:otel_thread_ctx_nodejs_v1",
            "ldr x1, [x0, :tlsdesc_lo12:otel_thread_ctx_nodejs_v1]",
            "add x0, x0, :tlsdesc_lo12:otel_thread_ctx_nodejs_v1",
            ".tlsdesccall otel_thread_ctx_nodejs_v1",
            "blr x1",
            "mrs x1, tpidr_el0",
            "add x0, x1, x0",
            out("x0") address,
            clobber_abi("C"),
        );
    }
    address
}
