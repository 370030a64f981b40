//! aarch64: thread-local storage above the thread pointer (variant I).

pub(crate) mod core_notes;
#[cfg(target_arch = "aarch64")]
pub(crate) mod registers;
pub(crate) mod relaxation;
pub(crate) mod relocation;
pub(crate) mod tls;
