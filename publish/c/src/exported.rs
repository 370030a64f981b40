//! Whether other processes find the contexts, and the library's version.

use std::ffi::c_char;

use crate::call::caught;
use crate::error::{INTERNAL, export_failure, otelctx_error, otelctx_result, report};

/// Checks that other processes can find this process's thread contexts: that the variable
/// `otel_thread_ctx_v1` of this library is in the dynamic symbol table of its module. The message
/// says how to fix it. It reads only this process's own memory: call it once, at start-up. Returns
/// OTELCTX_OK or OTELCTX_NOT_EXPORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_is_exported(error: *mut otelctx_error) -> otelctx_result {
    caught(INTERNAL, || {
        let result = otelctx::is_exported().map_err(|why| export_failure(&why));
        // SAFETY: C passes null or valid pointers (otelctx.h).
        unsafe { report(error, result) }
    })
}

/// Returns the version of this library, for example "0.1.0". The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
