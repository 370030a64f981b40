//! TLSDESC on aarch64.
//!
//! Linkers recognize exactly this sequence (ELF for the Arm 64-bit Architecture, "Thread Local
//! Storage") and relax it to initial-exec or local-exec in executables.

use crate::thread::ThreadState;

/// True if other processes can find the variables of this module.
pub(crate) const OBSERVED: bool = true;

super::define_variables!();

/// The address of a thread-local symbol for the calling thread.
///
/// By convention, the call changes only x0, x1, x30 and the flags. Nevertheless, every vector and
/// predicate register is declared as clobbered: see the same macro for x86-64, where glibc breaks
/// the convention on a thread's first access.
macro_rules! thread_local_address {
    ($symbol:expr) => {{
        let address: *mut u8;
        // SAFETY: the symbol is a thread-local variable defined above; the sequence calls the
        // descriptor's resolver on a stack that the compiler has aligned (no `nostack`).
        unsafe {
            core::arch::asm!(
                concat!("adrp x0, :tlsdesc:", $symbol),
                concat!("ldr x1, [x0, :tlsdesc_lo12:", $symbol, "]"),
                concat!("add x0, x0, :tlsdesc_lo12:", $symbol),
                concat!(".tlsdesccall ", $symbol),
                "blr x1",
                "mrs x1, tpidr_el0",
                "add x0, x1, x0",
                out("x0") address,
                out("x1") _,
                out("x30") _,
                out("v0") _, out("v1") _, out("v2") _, out("v3") _,
                out("v4") _, out("v5") _, out("v6") _, out("v7") _,
                out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                out("v12") _, out("v13") _, out("v14") _, out("v15") _,
                out("v16") _, out("v17") _, out("v18") _, out("v19") _,
                out("v20") _, out("v21") _, out("v22") _, out("v23") _,
                out("v24") _, out("v25") _, out("v26") _, out("v27") _,
                out("v28") _, out("v29") _, out("v30") _, out("v31") _,
                out("p0") _, out("p1") _, out("p2") _, out("p3") _,
                out("p4") _, out("p5") _, out("p6") _, out("p7") _,
                out("p8") _, out("p9") _, out("p10") _, out("p11") _,
                out("p12") _, out("p13") _, out("p14") _, out("p15") _,
                out("ffr") _,
            );
        }
        address
    }};
}

/// Returns the calling thread's `otel_thread_ctx_v1`.
#[inline]
pub(crate) fn slot() -> *mut *mut u8 {
    thread_local_address!("otel_thread_ctx_v1").cast()
}

/// Returns the calling thread's state in this copy of the crate, zeroed when the thread starts.
#[inline(always)]
pub(crate) fn state() -> ThreadState {
    let state = thread_local_address!(concat!("otelctx_state_", env!("OTELCTX_TAG")));
    // SAFETY: the variable is the thread's own.
    unsafe { ThreadState::new(state.cast()) }
}
