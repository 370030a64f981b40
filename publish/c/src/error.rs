//! Codes and messages.

use std::ffi::{CStr, c_char};

use otelctx::{KeyError, NotExported, PublishError};

/// Result of a call. Later versions may add codes; the numbers do not change.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum otelctx_result {
    /// The call succeeded.
    OtelctxOk = 0,
    /// A pointer is null or an argument is out of range.
    OtelctxInvalidArgument = 1,
    /// Text is not UTF-8.
    OtelctxInvalidUtf8 = 2,
    /// A value was cut to 255 bytes, or an attribute left out: no room, or an unpublished key.
    OtelctxTruncated = 3,
    /// The context or the scope belongs to another thread.
    OtelctxWrongThread = 4,
    /// The context is attached, so it cannot be attached again, moved or get other IDs.
    OtelctxAttached = 5,
    /// The context or the scope is not attached.
    OtelctxNotAttached = 6,
    /// The calling thread is ending and has freed its contexts.
    OtelctxThreadEnding = 7,
    /// The key could not be registered: it has no name, 256 others are registered, or the process
    /// context has no room for it.
    OtelctxKeyRefused = 8,
    /// This library has published a process context already.
    OtelctxAlreadyPublished = 9,
    /// Another publisher in this process has published a process context.
    OtelctxForeign = 10,
    /// This library has published no process context in this process.
    OtelctxNotPublished = 11,
    /// Readers would reject the process context.
    OtelctxRejected = 12,
    /// A system call failed.
    OtelctxSystem = 13,
    /// Other processes cannot find the thread-local variable.
    OtelctxNotExported = 14,
    /// OTEL_RESOURCE_ATTRIBUTES is malformed and was ignored.
    OtelctxMalformedEnvironment = 15,
    /// Another thread is changing the same publication.
    OtelctxBusy = 16,
    /// A defect of this library; please report it.
    OtelctxInternal = 17,
    /// An ID is zero. For attributes alone, give neither ID.
    OtelctxZeroId = 18,
}
pub(crate) use otelctx_result::{
    OtelctxAlreadyPublished as ALREADY_PUBLISHED, OtelctxAttached as ATTACHED, OtelctxBusy as BUSY,
    OtelctxForeign as FOREIGN, OtelctxInternal as INTERNAL,
    OtelctxInvalidArgument as INVALID_ARGUMENT, OtelctxInvalidUtf8 as INVALID_UTF8,
    OtelctxKeyRefused as KEY_REFUSED, OtelctxMalformedEnvironment as MALFORMED_ENVIRONMENT,
    OtelctxNotAttached as NOT_ATTACHED, OtelctxNotExported as NOT_EXPORTED,
    OtelctxNotPublished as NOT_PUBLISHED, OtelctxOk as OK, OtelctxRejected as REJECTED,
    OtelctxSystem as SYSTEM, OtelctxThreadEnding as THREAD_ENDING, OtelctxTruncated as TRUNCATED,
    OtelctxWrongThread as WRONG_THREAD, OtelctxZeroId as ZERO_ID,
};

/// Code and text of a call's result. Functions that take one write it in each call, if not null.
#[repr(C)]
pub struct otelctx_error {
    /// The code.
    pub code: otelctx_result,
    /// The failure and its fix, in one line; empty after success. Text that is longer is cut.
    pub message: [c_char; 1020],
}

const MESSAGE_SIZE: usize = 1020;
const _: () = assert!(size_of::<otelctx_error>() == 4 + MESSAGE_SIZE);

/// Describes a code in a sentence, for functions that give no message. The text is static; null for
/// a number that is no code.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_describe(code: i32) -> *const c_char {
    let codes = [
        (OK, c"success"),
        (INVALID_ARGUMENT, c"a pointer is null or an argument is out of range"),
        (INVALID_UTF8, c"text is not UTF-8"),
        (
            TRUNCATED,
            c"a value was cut to 255 bytes, or an attribute was left out: it does not fit, or its key \
              is not published",
        ),
        (WRONG_THREAD, c"the context or the scope belongs to another thread"),
        (ATTACHED, c"the context is attached; detach it first"),
        (NOT_ATTACHED, c"the context or the scope is not attached"),
        (THREAD_ENDING, c"the calling thread is ending and has freed its contexts"),
        (KEY_REFUSED, c"the key could not be registered"),
        (
            ALREADY_PUBLISHED,
            c"this library has published a process context already; change it with otelctx_modify",
        ),
        (FOREIGN, c"another publisher in this process has published a process context"),
        (NOT_PUBLISHED, c"this library has published no process context in this process"),
        (REJECTED, c"readers would reject the process context"),
        (SYSTEM, c"a system call failed"),
        (NOT_EXPORTED, c"other processes cannot find the thread-local variable"),
        (MALFORMED_ENVIRONMENT, c"OTEL_RESOURCE_ATTRIBUTES is malformed and was ignored"),
        (BUSY, c"another thread is changing the same publication"),
        (INTERNAL, c"a defect of libotelctx; please report it"),
        (ZERO_ID, c"zero is not an ID; for attributes alone, give neither ID"),
    ];
    let found = codes.iter().find(|(known, _)| *known as i32 == code);
    found.map_or(std::ptr::null(), |(_, text)| text.as_ptr())
}

/// Code and message of a failure, for [`report`].
pub(crate) type Failure = (otelctx_result, String);

/// Returns the failure that a code alone describes.
pub(crate) fn failure(code: otelctx_result) -> Failure {
    let text = otelctx_describe(code as i32);
    // SAFETY: each code has a static text.
    let text = unsafe { CStr::from_ptr(text) };
    (code, text.to_string_lossy().into_owned())
}

/// Writes a result for C, and returns its code.
///
/// # Safety
/// `error` is null or may be written.
pub(crate) unsafe fn report(
    error: *mut otelctx_error,
    result: Result<(), Failure>,
) -> otelctx_result {
    let (code, text) = match result {
        Ok(()) => (OK, String::new()),
        Err(failure) => failure,
    };
    if !error.is_null() {
        // SAFETY: the caller ensures that `error` may be written. C may not have initialized it.
        unsafe {
            (&raw mut (*error).code).write(code);
            let message = (&raw mut (*error).message).cast::<u8>();
            let length = length_up_to(&text, MESSAGE_SIZE - 1);
            message.copy_from_nonoverlapping(text.as_ptr(), length);
            message.add(length).write(0);
        }
    }
    code
}

/// Returns the largest length up to `limit` that cuts no character.
fn length_up_to(text: &str, limit: usize) -> usize {
    let mut length = text.len().min(limit);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    length
}

/// Returns why a process context could not be published, in terms of the C API.
pub(crate) fn publish_failure(error: &PublishError) -> Failure {
    match error {
        PublishError::AlreadyPublished => (
            ALREADY_PUBLISHED,
            "a process context is already published, and a process has only one: change it with \
             otelctx_modify, or replace it with otelctx_replace"
                .into(),
        ),
        PublishError::Foreign { mapping } => (
            FOREIGN,
            format!(
                "another publisher in this process has published a process context ({}), and a process \
                 has only one: contexts of threads have no attributes. Remove one publisher, or the second copy of otelctx, whose keys \
                 contradict this one's",
                mapping.escape_debug()
            ),
        ),
        PublishError::NotPublished => (
            NOT_PUBLISHED,
            "this copy of libotelctx has no process context published in this process; publish one with \
             otelctx_publish"
                .into(),
        ),
        PublishError::TooLarge { size, limit } => (
            REJECTED,
            format!(
                "the process context takes {size} bytes and at most {limit} are allowed; readers may \
                 refuse more: publish fewer attributes, or call otelctx_process_max_size"
            ),
        ),
        PublishError::System { .. } | PublishError::Invisible { .. } => (SYSTEM, error.to_string()),
        other => (REJECTED, other.to_string()),
    }
}

/// Returns why a key could not be registered.
pub(crate) fn key_failure(error: &KeyError) -> Failure {
    let text = match error {
        KeyError::Update { name, error } => format!(
            "the key {name:?} could not be published: {}",
            publish_failure(error).1
        ),
        other => other.to_string(),
    };
    (KEY_REFUSED, text)
}

/// Returns why the variable is not exported, with what a C program needs.
pub(crate) fn export_failure(error: &NotExported) -> Failure {
    let text = match error {
        NotExported::Hidden { module } if is_library(module) => format!(
            "otel_thread_ctx_v1 is defined in {} but not exported: --exclude-libs or a version script hides it. \
                     Exclude libraries by their names, but not libotelctx.a, and have otel_thread_ctx_v1; below global: in \
                     the version script; or link with libotelctx.so",
            module.escape_debug()
        ),
        NotExported::Hidden { module } => format!(
            "otel_thread_ctx_v1 is defined in {} but not exported: the linker kept it local. Link \
                     with `pkg-config --libs otelctx-static`, without --static, or CMake's otelctx::otelctx-static, or pass \
                     -Wl,--export-dynamic-symbol=otel_thread_ctx_v1 to the linker \
                     (-Wl,--dynamic-list=FILE before binutils 2.35)",
            module.escape_debug()
        ),
        NotExported::Static { module } => format!(
            "{} is fully static and has no dynamic symbol table, so otel_thread_ctx_v1 cannot be \
                     exported. Link it without -static, or with -static-pie, lld or mold, and \
                     -Wl,--export-dynamic-symbol=otel_thread_ctx_v1",
            module.escape_debug()
        ),
        other => other.to_string(),
    };
    (NOT_EXPORTED, text)
}

/// Returns whether a module of this process is not its executable.
fn is_library(module: &str) -> bool {
    std::env::current_exe().is_ok_and(|executable| executable.to_string_lossy() != module)
}
