//! Values of attributes of the process context.

use std::ffi::c_char;

use otelctx::Value;

use crate::call::{caught, code, pointer};
use crate::error::{INVALID_ARGUMENT, otelctx_result};
use crate::text::{bytes, name, text};

/// A value of an attribute of the process context. Functions that take a value into something else
/// free it, also when they fail.
pub struct otelctx_value {
    value: Value,
    /// Number of arrays and maps around the innermost value.
    depth: usize,
}

/// Values that are nested deeper are refused: freeing one must not exhaust the stack. The format
/// allows less, and publishing checks that.
const MAX_DEPTH: usize = 128;

/// Takes a value over from C and frees its handle.
///
/// # Safety
/// `value` is null or a handle that C gives away.
pub(crate) unsafe fn take(value: *mut otelctx_value) -> Result<Value, otelctx_result> {
    if value.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller ensures that C gives the handle away.
    Ok(unsafe { Box::from_raw(value) }.value)
}

fn new(value: impl Into<Value>, depth: usize) -> *mut otelctx_value {
    let value = value.into();
    Box::into_raw(Box::new(otelctx_value { value, depth }))
}

/// Creates a string of UTF-8. Null if it is not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_value_string(
    string: *const c_char,
    length: usize,
) -> *mut otelctx_value {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    pointer(|| Some(new(unsafe { text(string, length) }.ok()?, 0)))
}

/// Creates a truth value.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_bool(value: bool) -> *mut otelctx_value {
    pointer(|| Some(new(value, 0)))
}

/// Creates an integer.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_int(value: i64) -> *mut otelctx_value {
    pointer(|| Some(new(value, 0)))
}

/// Creates a floating-point number.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_double(value: f64) -> *mut otelctx_value {
    pointer(|| Some(new(value, 0)))
}

/// Creates a value of uninterpreted bytes. Null if the address is null and the length is not 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_value_bytes(
    address: *const u8,
    length: usize,
) -> *mut otelctx_value {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    pointer(|| Some(new(unsafe { bytes(address, length) }.ok()?, 0)))
}

/// Creates an empty array.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_array() -> *mut otelctx_value {
    pointer(|| Some(new(Value::Array(Vec::new()), 1)))
}

/// Creates an empty map.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_map() -> *mut otelctx_value {
    pointer(|| Some(new(Value::Map(Vec::new()), 1)))
}

/// Appends a value to an array, which takes it over. OTELCTX_INVALID_ARGUMENT if the first value is
/// no array, or if they are the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_value_push(
    array: *mut otelctx_value,
    value: *mut otelctx_value,
) -> otelctx_result {
    let push = |array: &mut Value, value| {
        let Value::Array(values) = array else {
            return Err(INVALID_ARGUMENT);
        };
        values.push(value);
        Ok(())
    };
    // SAFETY: C passes null or valid pointers (otelctx.h).
    code(|| unsafe { put(array, value, push) })
}

/// Sets a value of a map, which takes it over. OTELCTX_INVALID_ARGUMENT if the first value is no
/// map, or if they are the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_value_set(
    map: *mut otelctx_value,
    key: *const c_char,
    value: *mut otelctx_value,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    code(|| unsafe {
        put(map, value, |map, value| {
            let Value::Map(entries) = map else {
                return Err(INVALID_ARGUMENT);
            };
            let key = name(key)?;
            match entries.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => *known = value,
                None => entries.push((key.into(), value)),
            }
            Ok(())
        })
    })
}

/// Puts a value into another one.
///
/// # Safety
/// Both are null or values that C has not freed.
unsafe fn put(
    into: *mut otelctx_value,
    value: *mut otelctx_value,
    f: impl FnOnce(&mut Value, Value) -> Result<(), otelctx_result>,
) -> Result<(), otelctx_result> {
    if into == value || value.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller ensures that both are null or not freed, and they differ.
    let (value, into) = unsafe { (Box::from_raw(value), into.as_mut()) };
    let depth = value.depth + 1;
    let into = into
        .filter(|_| depth <= MAX_DEPTH)
        .ok_or(INVALID_ARGUMENT)?;
    f(&mut into.value, value.value)?;
    into.depth = into.depth.max(depth);
    Ok(())
}

/// Frees a value that nothing has taken over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_value_free(value: *mut otelctx_value) {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught((), || drop(unsafe { take(value) }));
}
