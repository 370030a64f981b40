//! Calls from C.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the result of `call`, or `failed` if it panics.
pub(crate) fn caught<T>(failed: T, call: impl FnOnce() -> T) -> T {
    let call = || {
        #[cfg(feature = "test-panic")]
        assert!(
            std::env::var_os("OTELCTX_TEST_PANIC").is_none(),
            "on purpose"
        );
        call()
    };
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(payload) => {
            // Dropping the payload could panic again.
            mem::forget(payload);
            failed
        }
    }
}
