//! TLSDESC on x86-64.
//!
//! Linkers recognize exactly this sequence ("ELF Handling For Thread-Local Storage", x86-64
//! TLSDESC) and relax it to initial-exec or local-exec in executables.

use crate::thread::ThreadState;

/// True if other processes can find the variables of this module.
pub(crate) const OBSERVED: bool = true;

super::define_variables!();

/// The address of a thread-local symbol for the calling thread.
///
/// By convention, the call changes only rax and the flags. But glibc before 2.40 (BZ #31372) also
/// changes vector registers when a thread first accesses a variable in dynamic storage, so every
/// vector, mask, x87 and MMX register is declared as clobbered.
macro_rules! thread_local_address {
    ($symbol:expr) => {{
        let address: *mut u8;
        // SAFETY: the symbol is a thread-local variable defined above; the sequence calls the
        // descriptor's resolver on a stack that the compiler has aligned (no `nostack`).
        unsafe {
            core::arch::asm!(
                concat!("lea rax, [rip + ", $symbol, "@tlsdesc]"),
                concat!("call [rax + ", $symbol, "@tlscall]"),
                "add rax, fs:0",
                out("rax") address,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _,
                out("xmm24") _, out("xmm25") _, out("xmm26") _, out("xmm27") _,
                out("xmm28") _, out("xmm29") _, out("xmm30") _, out("xmm31") _,
                out("k0") _, out("k1") _, out("k2") _, out("k3") _,
                out("k4") _, out("k5") _, out("k6") _, out("k7") _,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                out("mm0") _, out("mm1") _, out("mm2") _, out("mm3") _,
                out("mm4") _, out("mm5") _, out("mm6") _, out("mm7") _,
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
