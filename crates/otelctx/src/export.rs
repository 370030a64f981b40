//! Making `otel_thread_ctx_v1` visible, and checking that it is.

/// Puts the symbol into the dynamic symbol table of a cdylib.
///
/// rustc writes a linker version script with the names of the exported Rust items and `local: *`,
/// which hides symbols defined in assembly. This name is a glob there, and matches the symbol.
/// The letters in the brackets make it another name for each copy of this crate: none is a digit.
#[cfg(target_os = "linux")]
#[unsafe(export_name = concat!("otel_thread_ctx_v[1", env!("OTELCTX_TAG"), "]"))]
#[allow(unreachable_pub)]
pub static EXPORT: u8 = 0;
