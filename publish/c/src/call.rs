//! Calls from C: no panic leaves them.

use std::ptr;

use crate::error::{Failure, INTERNAL, OK, otelctx_error, otelctx_result, report};

/// Returns the result of `call`, or `failed` if it panics.
pub(crate) fn caught<T>(failed: T, call: impl FnOnce() -> T) -> T {
    otelctx::integration::caught(failed, || {
        #[cfg(feature = "test-panic")]
        assert!(
            std::env::var_os("OTELCTX_TEST_PANIC").is_none(),
            "on purpose"
        );
        call()
    })
}

/// Returns the code of a call's result, or INTERNAL if it panics.
pub(crate) fn code(call: impl FnOnce() -> Result<(), otelctx_result>) -> otelctx_result {
    caught(Err(INTERNAL), call).err().unwrap_or(OK)
}

/// Returns the pointer that `call` made, or null if it made none or panics.
pub(crate) fn pointer<T>(call: impl FnOnce() -> Option<*mut T>) -> *mut T {
    caught(None, call).unwrap_or(ptr::null_mut())
}

/// Writes a call's result to `error`, and returns its code, or INTERNAL if it panics.
///
/// # Safety
/// `error` is null or may be written.
pub(crate) unsafe fn reported(
    error: *mut otelctx_error,
    call: impl FnOnce() -> Result<(), Failure>,
) -> otelctx_result {
    // SAFETY: the caller ensures that `error` is null or may be written.
    caught(INTERNAL, || unsafe { report(error, call()) })
}
