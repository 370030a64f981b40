//! Calls from C: other copies of this crate, the C library of the process, and `libotelctx`.

use std::mem;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Returns the result of `call`, or `failed` if it panics, which would end a process of C's.
pub fn caught<T>(failed: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        // Dropping the payload could panic again.
        mem::forget(payload);
        failed
    })
}
