//! Whether other processes find the contexts, and the library's version.

use std::ffi::c_char;

use otelctx::ProcessContext;

use crate::call::caught;
use crate::error::{FOREIGN, INTERNAL, export_failure, otelctx_error, otelctx_result, report};

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

/// Searches for a second process context in this process, which another publisher has published after
/// this library: readers use one of the two, and may give attributes of one the names of the other.
/// Reads the mappings of the process, which takes 0.1 ms for 600 of them: call it once, after start-up.
/// Returns OTELCTX_OK if there is none, else OTELCTX_FOREIGN; the message names its mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_find_other(error: *mut otelctx_error) -> otelctx_result {
    caught(INTERNAL, || {
        let result = match ProcessContext::find_other() {
            Some(mapping) => Err((
                FOREIGN,
                format!(
                    "another publisher in this process has published a second process context ({}): readers use one \
                     of the two, and may not know the names of attributes",
                    mapping.escape_debug()
                ),
            )),
            None => Ok(()),
        };
        // SAFETY: C passes null or valid pointers (otelctx.h).
        unsafe { report(error, result) }
    })
}

/// Returns the version of this library, for example "0.1.0". The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
