//! Values of attributes of the process context.

use std::ffi::c_char;
use std::ptr;

use otelctx::Value;

use crate::call::caught;
use crate::error::{INTERNAL, INVALID_ARGUMENT, OK, otelctx_result};
use crate::text::{bytes, name, text};

/// A value of an attribute of the process context. Functions that take a value into something else
/// free it, also when they fail.
pub struct otelctx_value {
    value: Value,
    /// Number of arrays and maps around the innermost value.
    depth: usize,
}

/// Values that are nested deeper are refused: freeing one must not exhaust the stack. The format allows
/// less, and publishing checks that.
const MAX_DEPTH: usize = 128;

/// # Safety
/// `value` is null or C's, and C gives it away.
pub(crate) unsafe fn take(value: *mut otelctx_value) -> Option<Value> {
    // SAFETY: the caller ensures that `value` is null or C's, and C gives it away.
    (!value.is_null()).then(|| unsafe { Box::from_raw(value) }.value)
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
    caught(ptr::null_mut(), || unsafe {
        text(string, length).map_or(ptr::null_mut(), |text| new(text, 0))
    })
}

/// Creates a truth value.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_bool(value: bool) -> *mut otelctx_value {
    caught(ptr::null_mut(), || new(value, 0))
}

/// Creates an integer.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_int(value: i64) -> *mut otelctx_value {
    caught(ptr::null_mut(), || new(value, 0))
}

/// Creates a floating-point number.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_double(value: f64) -> *mut otelctx_value {
    caught(ptr::null_mut(), || new(value, 0))
}

/// Creates a value of uninterpreted bytes. Null if the address is null and the length is not 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_value_bytes(
    address: *const u8,
    length: usize,
) -> *mut otelctx_value {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught(ptr::null_mut(), || unsafe {
        bytes(address, length).map_or(ptr::null_mut(), |bytes| new(bytes, 0))
    })
}

/// Creates an empty array.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_array() -> *mut otelctx_value {
    caught(ptr::null_mut(), || new(Value::Array(Vec::new()), 1))
}

/// Creates an empty map.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_value_map() -> *mut otelctx_value {
    caught(ptr::null_mut(), || new(Value::Map(Vec::new()), 1))
}

/// Appends a value to an array, which takes it over. OTELCTX_INVALID_ARGUMENT if the first value is
/// no array, or if they are the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_value_push(
    array: *mut otelctx_value,
    value: *mut otelctx_value,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught(INTERNAL, || unsafe {
        put(array, value, |array, value| match array {
            Value::Array(values) => {
                values.push(value);
                OK
            }
            _ => INVALID_ARGUMENT,
        })
    })
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
    caught(INTERNAL, || unsafe {
        put(map, value, |map, value| {
            let Value::Map(entries) = map else {
                return INVALID_ARGUMENT;
            };
            let key = match name(key) {
                Ok(key) => key,
                Err(code) => return code,
            };
            match entries.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => *known = value,
                None => entries.push((key.into(), value)),
            }
            OK
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
    f: impl FnOnce(&mut Value, Value) -> otelctx_result,
) -> otelctx_result {
    if into == value || value.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller ensures that c's promises for both; two values of C's.
    unsafe {
        let value = Box::from_raw(value);
        let depth = value.depth + 1;
        if into.is_null() || depth > MAX_DEPTH {
            return INVALID_ARGUMENT;
        }
        let result = f(&mut (*into).value, value.value);
        if result == OK {
            (*into).depth = (*into).depth.max(depth);
        }
        result
    }
}

/// Frees a value that nothing has taken over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_value_free(value: *mut otelctx_value) {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught((), || drop(unsafe { take(value) }));
}
