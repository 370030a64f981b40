//! Keys: names of attributes.

use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use otelctx::Key;

use crate::call::{caught, reported};
use crate::error::{Failure, INTERNAL, failure, key_failure, otelctx_error};
use crate::text::name;

/// The name of an attribute of contexts, such as "http.route". It is valid until the process ends.
pub struct otelctx_key(Key);

/// Number of keys that a process can have.
const MAX_KEYS: usize = 256;

/// The keys so far, without gaps. No lock, which a forked child could find taken.
static KEYS: [AtomicPtr<otelctx_key>; MAX_KEYS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_KEYS];

/// Returns the key with this name, and registers it if it is new. A process can have 256; they are
/// published as long as it runs, so do not make names from the content of requests. If a process
/// context is published, a new key updates it, which takes a few microseconds. Contexts leave out
/// the attribute until a process context with the key is published. Null if it is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_key_get(
    name_: *const c_char,
    error: *mut otelctx_error,
) -> *const otelctx_key {
    let mut key = ptr::null();
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        reported(error, || {
            key = get(name(name_).map_err(failure)?)?;
            Ok(())
        });
    }
    key
}

fn get(name: &str) -> Result<&'static otelctx_key, Failure> {
    let mut new = ptr::null_mut::<otelctx_key>();
    for place in &KEYS {
        let mut known = place.load(Ordering::Acquire);
        if known.is_null() {
            if new.is_null() {
                let key = Key::from_string(name.into()).map_err(|error| key_failure(&error))?;
                new = Box::into_raw(Box::new(otelctx_key(key)));
            }
            let stored = place.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire);
            match stored {
                // SAFETY: keys are never freed.
                Ok(_) => return Ok(unsafe { &*new }),
                Err(other) => known = other,
            }
        }
        // SAFETY: keys are never freed.
        let known = unsafe { &*known };
        if known.0.name() == name {
            if !new.is_null() {
                // SAFETY: another thread was faster, so nobody else knows this one.
                drop(unsafe { Box::from_raw(new) });
            }
            return Ok(known);
        }
    }
    // All 256 are there, so registering another one fails, and says why.
    match Key::from_string(name.into()) {
        Err(error) => Err(key_failure(&error)),
        Ok(_) => Err(failure(INTERNAL)),
    }
}

/// Returns the index of the key in records, for programs that write records themselves. It does
/// not change as long as the process runs. -1 until a process context with the key is published.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_key_index(key: *const otelctx_key) -> i32 {
    caught(-1, || {
        // SAFETY: C passes null or valid pointers (otelctx.h).
        let key = unsafe { inner(key) };
        key.and_then(Key::index).map_or(-1, i32::from)
    })
}

/// Returns the Rust key.
///
/// # Safety
/// `key` is null or came from [`otelctx_key_get`].
#[inline]
pub(crate) unsafe fn inner(key: *const otelctx_key) -> Option<&'static Key> {
    // SAFETY: keys are never freed.
    unsafe { key.as_ref() }.map(|key| &key.0)
}
