//! x86-64: thread-local storage below the thread pointer (variant II).

pub(crate) mod relocation;
pub(crate) mod tls;
