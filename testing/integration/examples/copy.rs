//! A library with a copy of `otelctx` of its own.

#[path = "../src/copy.rs"]
mod copy;

/// Executes a command.
///
/// # Safety
/// `command` is `length` bytes of UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execute(command: *const u8, length: usize) -> i32 {
    // SAFETY: the caller's promise.
    let command = unsafe { std::slice::from_raw_parts(command, length) };
    copy::execute(std::str::from_utf8(command).expect("UTF-8"))
}
