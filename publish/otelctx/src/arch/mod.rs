//! Defines the thread-local variable and this crate's own thread-local state.
//!
//! Each architecture is a directory with the same file names. On other targets, and under Miri,
//! both are ordinary Rust thread-locals: everything works, but other processes cannot see it.

mod hex;
#[cfg(all(target_os = "linux", target_arch = "aarch64", not(miri)))]
#[path = "aarch64/tls.rs"]
mod tls;
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
#[path = "x86_64/tls.rs"]
mod tls;
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
)))]
#[path = "unobserved/tls.rs"]
mod tls;

pub(crate) use hex::hex;
pub(crate) use tls::{slot, state, OBSERVED};

/// Defines, in the zero-initialized thread-local section:
///
/// - `otel_thread_ctx_v1`, weak, so that several copies of this crate, or this crate and another
///   publisher, can be linked into one program and share it;
/// - this copy's own state, hidden, under a name that no other copy has.
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
))]
macro_rules! define_variables {
    () => {
        core::arch::global_asm!(
            ".pushsection .tbss,\"awT\",%nobits",
            ".balign 8",
            ".weak otel_thread_ctx_v1",
            ".type otel_thread_ctx_v1, %tls_object",
            ".size otel_thread_ctx_v1, 8",
            "otel_thread_ctx_v1:",
            ".zero 8",
            ".balign {align}",
            concat!(".globl otelctx_state_", env!("OTELCTX_TAG")),
            concat!(".hidden otelctx_state_", env!("OTELCTX_TAG")),
            concat!(".type otelctx_state_", env!("OTELCTX_TAG"), ", %tls_object"),
            concat!(".size otelctx_state_", env!("OTELCTX_TAG"), ", {size}"),
            concat!("otelctx_state_", env!("OTELCTX_TAG"), ":"),
            ".zero {size}",
            ".popsection",
            size = const core::mem::size_of::<crate::thread::State>(),
            align = const core::mem::align_of::<crate::thread::State>(),
        );
    };
}
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
))]
use define_variables;
