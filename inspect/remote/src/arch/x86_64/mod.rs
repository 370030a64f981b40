//! x86-64: thread-local storage below the thread pointer (variant II).

pub(crate) mod core_notes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod registers;
pub(crate) mod relaxation;
pub(crate) mod relocation;
pub(crate) mod tls;
