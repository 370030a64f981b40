//! Calls from C.

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
