//! aarch64: thread-local storage above the thread pointer (variant I).

pub(crate) mod relocation;
pub(crate) mod tls;
