//! What a reader sees of the calling thread, from what libc says.

// Each test file uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::env;
use std::ffi::c_void;
use std::process::Command;

/// The calling thread's `otel_thread_ctx_v1`, as the dynamic linker finds it.
pub fn slot() -> *mut *mut u8 {
    // SAFETY: the name is a C string.
    let slot = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"otel_thread_ctx_v1".as_ptr()) };
    assert!(
        !slot.is_null(),
        "otel_thread_ctx_v1 is exported from this test"
    );
    slot.cast::<*mut u8>()
}

/// What the slot holds.
pub fn attached() -> *mut u8 {
    // SAFETY: the slot is this thread's.
    unsafe { slot().read() }
}

/// The bytes of the attached record up to its end; `None` without one, or one to ignore.
pub fn bytes() -> Option<Vec<u8>> {
    let record = attached();
    if record.is_null() {
        return None;
    }
    assert_eq!(record as usize % 8, 0, "records are aligned to 8 bytes");
    // SAFETY: whatever is in the slot is a record with a header.
    unsafe {
        if *record.add(24) != 1 {
            return None;
        }
        let size = u16::from_ne_bytes([*record.add(26), *record.add(27)]);
        Some(std::slice::from_raw_parts(record, 28 + usize::from(size)).to_vec())
    }
}

/// The first byte of the attached record's trace id: tests number their records that way.
pub fn number() -> Option<u8> {
    bytes().map(|bytes| bytes[0])
}

/// The attributes of the attached record, keys as numbers.
pub fn attributes() -> Vec<(u8, String)> {
    let bytes = bytes().expect("a record is attached");
    let mut rest = &bytes[28..];
    let mut attributes = Vec::new();
    while let [key, length, tail @ ..] = rest {
        let (value, tail) = tail.split_at(usize::from(*length));
        attributes.push((*key, String::from_utf8(value.to_vec()).unwrap()));
        rest = tail;
    }
    assert_eq!(rest, [] as [u8; 0]);
    attributes
}

/// Runs a test's body in a process of its own, because a process has one context.
pub fn in_own_process(test: &str, body: impl FnOnce()) {
    const CHILD: &str = "OTELCTX_TEST_CHILD";
    if env::var_os(CHILD).is_some() {
        body();
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{text}\n{errors}",
        output.status
    );
    assert!(text.contains("1 passed"), "{text}\n{errors}");
}

/// Forks; the child runs `body` and ends. Fails unless `body` returned in it.
pub fn in_forked_child(body: impl FnOnce()) {
    // SAFETY: the child runs the body and ends without unwinding into the test.
    unsafe {
        match libc::fork() {
            0 => {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
                libc::_exit(i32::from(result.is_err()));
            }
            child => wait_for(child),
        }
    }
}

/// Waits for a child and fails unless it ended well.
pub fn wait_for(child: libc::pid_t) {
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}

/// A pointer that may go to another thread.
#[derive(Clone, Copy)]
pub struct Pointer(pub *mut c_void);
// SAFETY: the tests say what they do with it.
unsafe impl Send for Pointer {}
