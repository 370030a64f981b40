//! Node-API, as far as the addon uses it (`js_native_api.h` and `node_api.h` of Node.js). The
//! functions are resolved when Node.js loads the addon.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// An environment: what runs in one thread of Node.js.
pub(crate) type Env = *mut c_void;
/// A handle: the address of a word of V8's, which is valid until the callback returns.
pub(crate) type Value = *mut c_void;
pub(crate) type CallbackInfo = *mut c_void;
pub(crate) type Callback = unsafe extern "C" fn(Env, CallbackInfo) -> Value;
pub(crate) type Finalize = unsafe extern "C" fn(Env, *mut c_void, *mut c_void);
type Status = c_int;

/// `napi_ok`.
pub(crate) const OK: Status = 0;
/// `NAPI_AUTO_LENGTH`: the string ends at its NUL.
const AUTO_LENGTH: usize = usize::MAX;

/// `napi_valuetype`, without what no value of ours has.
pub(crate) mod value_type {
    pub(crate) const BOOLEAN: i32 = 2;
    pub(crate) const NUMBER: i32 = 3;
    pub(crate) const STRING: i32 = 4;
    pub(crate) const OBJECT: i32 = 6;
    pub(crate) const BIGINT: i32 = 9;
}

/// `napi_uint8_array`.
const UINT8_ARRAY: c_int = 1;

unsafe extern "C" {
    fn napi_get_cb_info(
        env: Env,
        info: CallbackInfo,
        count: *mut usize,
        arguments: *mut Value,
        this: *mut Value,
        data: *mut *mut c_void,
    ) -> Status;
    fn napi_create_function(
        env: Env,
        name: *const c_char,
        length: usize,
        callback: Callback,
        data: *mut c_void,
        result: *mut Value,
    ) -> Status;
    fn napi_set_named_property(
        env: Env,
        object: Value,
        name: *const c_char,
        value: Value,
    ) -> Status;
    fn napi_create_object(env: Env, result: *mut Value) -> Status;
    fn napi_get_undefined(env: Env, result: *mut Value) -> Status;
    fn napi_create_uint32(env: Env, value: u32, result: *mut Value) -> Status;
    fn napi_get_boolean(env: Env, value: bool, result: *mut Value) -> Status;
    fn napi_create_string_utf8(
        env: Env,
        text: *const c_char,
        length: usize,
        result: *mut Value,
    ) -> Status;
    fn napi_throw_error(env: Env, code: *const c_char, message: *const c_char) -> Status;
    fn napi_throw_type_error(env: Env, code: *const c_char, message: *const c_char) -> Status;
    fn napi_typeof(env: Env, value: Value, result: *mut c_int) -> Status;
    fn napi_get_value_uint32(env: Env, value: Value, result: *mut u32) -> Status;
    fn napi_get_value_bool(env: Env, value: Value, result: *mut bool) -> Status;
    fn napi_get_value_double(env: Env, value: Value, result: *mut f64) -> Status;
    fn napi_get_value_bigint_int64(
        env: Env,
        value: Value,
        result: *mut i64,
        lossless: *mut bool,
    ) -> Status;
    fn napi_get_value_string_utf8(
        env: Env,
        value: Value,
        buffer: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> Status;
    fn napi_create_array(env: Env, result: *mut Value) -> Status;
    fn napi_set_element(env: Env, object: Value, index: u32, value: Value) -> Status;
    fn napi_is_array(env: Env, value: Value, result: *mut bool) -> Status;
    fn napi_get_array_length(env: Env, value: Value, result: *mut u32) -> Status;
    fn napi_get_element(env: Env, object: Value, index: u32, result: *mut Value) -> Status;
    fn napi_is_typedarray(env: Env, value: Value, result: *mut bool) -> Status;
    fn napi_get_typedarray_info(
        env: Env,
        value: Value,
        kind: *mut c_int,
        length: *mut usize,
        data: *mut *mut c_void,
        buffer: *mut Value,
        offset: *mut usize,
    ) -> Status;
    fn napi_create_arraybuffer(
        env: Env,
        size: usize,
        data: *mut *mut c_void,
        result: *mut Value,
    ) -> Status;
    fn napi_create_typedarray(
        env: Env,
        kind: c_int,
        length: usize,
        buffer: Value,
        offset: usize,
        result: *mut Value,
    ) -> Status;
    fn napi_create_reference(
        env: Env,
        value: Value,
        count: u32,
        result: *mut *mut c_void,
    ) -> Status;
    fn napi_new_instance(
        env: Env,
        constructor: Value,
        count: usize,
        arguments: *const Value,
        result: *mut Value,
    ) -> Status;
    fn napi_set_instance_data(
        env: Env,
        data: *mut c_void,
        finalize: Finalize,
        hint: *mut c_void,
    ) -> Status;
    fn napi_add_env_cleanup_hook(
        env: Env,
        hook: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Status;
}

/// A call that JavaScript has made: the environment, and handles that are valid while it lasts.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    env: Env,
}

impl Call {
    /// # Safety
    /// `env` is the environment of the callback, or of the module's start, that is running now.
    pub(crate) unsafe fn new(env: Env) -> Self {
        Self { env }
    }

    /// Returns the first arguments, or `undefined` for missing ones, and the function's data.
    pub(crate) fn arguments<const N: usize>(
        self,
        info: CallbackInfo,
    ) -> Option<([Value; N], *mut c_void)> {
        let mut arguments = [ptr::null_mut(); N];
        let (mut count, mut data) = (N, ptr::null_mut());
        // SAFETY: the addresses are those of variables, of which one has room for `count` values.
        let status = unsafe {
            let arguments = arguments.as_mut_ptr();
            napi_get_cb_info(
                self.env,
                info,
                &raw mut count,
                arguments,
                ptr::null_mut(),
                &raw mut data,
            )
        };
        (status == OK).then_some((arguments, data))
    }

    /// Returns the result of a function that stores one.
    fn result<T: Default>(self, get: impl FnOnce(Env, *mut T) -> Status) -> Option<T> {
        let mut result = T::default();
        (get(self.env, &raw mut result) == OK).then_some(result)
    }

    fn handle(self, get: impl FnOnce(Env, *mut Value) -> Status) -> Option<Value> {
        let mut result = ptr::null_mut();
        (get(self.env, &raw mut result) == OK).then_some(result)
    }

    pub(crate) fn undefined(self) -> Value {
        // SAFETY: `self` is of the running callback; so below.
        let value = self.handle(|env, to| unsafe { napi_get_undefined(env, to) });
        value.unwrap_or(ptr::null_mut())
    }

    pub(crate) fn object(self) -> Option<Value> {
        // SAFETY: see `undefined`.
        self.handle(|env, to| unsafe { napi_create_object(env, to) })
    }

    /// Returns an array; null, which JavaScript sees as `undefined`, if there is none.
    pub(crate) fn array(self, items: impl Iterator<Item = Value>) -> Value {
        // SAFETY: see `undefined`.
        let array = self.handle(|env, to| unsafe { napi_create_array(env, to) });
        let Some(array) = array else {
            return ptr::null_mut();
        };
        for (index, item) in (0..).zip(items) {
            // SAFETY: see `undefined`; both are handles of this call.
            unsafe { napi_set_element(self.env, array, index, item) };
        }
        array
    }

    pub(crate) fn number(self, number: u32) -> Value {
        // SAFETY: see `undefined`.
        let value = self.handle(|env, to| unsafe { napi_create_uint32(env, number, to) });
        value.unwrap_or(ptr::null_mut())
    }

    pub(crate) fn boolean(self, is: bool) -> Value {
        // SAFETY: see `undefined`.
        let value = self.handle(|env, to| unsafe { napi_get_boolean(env, is, to) });
        value.unwrap_or(ptr::null_mut())
    }

    pub(crate) fn string(self, text: &str) -> Value {
        let (text, length) = (text.as_ptr().cast(), text.len());
        // SAFETY: see `undefined`; the text is copied.
        let value =
            self.handle(|env, to| unsafe { napi_create_string_utf8(env, text, length, to) });
        value.unwrap_or(ptr::null_mut())
    }

    /// Has the callback throw an `Error`.
    pub(crate) fn throw(self, message: &str) -> Value {
        let message = c_string(message);
        // SAFETY: see `undefined`; the message is copied.
        unsafe { napi_throw_error(self.env, ptr::null(), message.as_ptr().cast()) };
        ptr::null_mut()
    }

    /// Has the callback throw a `TypeError`.
    pub(crate) fn throw_type_error(self, message: &str) -> Value {
        let message = c_string(message);
        // SAFETY: see `undefined`; the message is copied.
        unsafe { napi_throw_type_error(self.env, ptr::null(), message.as_ptr().cast()) };
        ptr::null_mut()
    }

    /// One of [`value_type`], or another.
    pub(crate) fn type_of(self, value: Value) -> Option<c_int> {
        // SAFETY: see `undefined`; the value is null or a handle of this call, here and below.
        self.result(|env, to| unsafe { napi_typeof(env, value, to) })
    }

    pub(crate) fn u32_of(self, value: Value) -> Option<u32> {
        // SAFETY: see `type_of`.
        self.result(|env, to| unsafe { napi_get_value_uint32(env, value, to) })
    }

    pub(crate) fn bool_of(self, value: Value) -> Option<bool> {
        // SAFETY: see `type_of`.
        self.result(|env, to| unsafe { napi_get_value_bool(env, value, to) })
    }

    pub(crate) fn f64_of(self, value: Value) -> Option<f64> {
        // SAFETY: see `type_of`.
        self.result(|env, to| unsafe { napi_get_value_double(env, value, to) })
    }

    /// `None` if it does not fit.
    pub(crate) fn i64_of(self, value: Value) -> Option<i64> {
        let mut is_lossless = false;
        let lossless = &raw mut is_lossless;
        // SAFETY: see `type_of`.
        let number =
            self.result(|env, to| unsafe { napi_get_value_bigint_int64(env, value, to, lossless) });
        number.filter(|_| is_lossless)
    }

    pub(crate) fn string_of(self, value: Value) -> Option<String> {
        // SAFETY: see `type_of`; without a buffer, only the length is determined.
        let length = self.result(|env, to| unsafe {
            napi_get_value_string_utf8(env, value, ptr::null_mut(), 0, to)
        })?;
        // It ends with a NUL.
        let mut text = vec![0_u8; length + 1];
        let (buffer, size) = (text.as_mut_ptr().cast(), text.len());
        // SAFETY: see `type_of`; the buffer has this size.
        let length = self.result(|env, to| unsafe {
            napi_get_value_string_utf8(env, value, buffer, size, to)
        })?;
        text.truncate(length);
        String::from_utf8(text).ok()
    }

    /// Returns the elements of an array; `None` for anything else.
    pub(crate) fn elements(self, value: Value) -> Option<impl Iterator<Item = Option<Value>>> {
        // SAFETY: see `type_of`.
        self.result(|env, to| unsafe { napi_is_array(env, value, to) })
            .filter(|is_array| *is_array)?;
        // SAFETY: see `type_of`.
        let length = self.result(|env, to| unsafe { napi_get_array_length(env, value, to) })?;
        Some((0..length).map(move |index| {
            // SAFETY: see `type_of`.
            self.handle(|env, to| unsafe { napi_get_element(env, value, index, to) })
        }))
    }

    /// Returns a copy of the bytes of a `Uint8Array`.
    pub(crate) fn bytes_of(self, value: Value) -> Option<Vec<u8>> {
        // SAFETY: see `type_of`.
        self.result(|env, to| unsafe { napi_is_typedarray(env, value, to) })
            .filter(|is_array| *is_array)?;
        let (mut kind, mut length, mut data) = (0, 0, ptr::null_mut());
        // SAFETY: see `type_of`; the other addresses are null or those of variables.
        let status = unsafe {
            napi_get_typedarray_info(
                self.env,
                value,
                &raw mut kind,
                &raw mut length,
                &raw mut data,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if status != OK || kind != UINT8_ARRAY {
            return None;
        }
        if data.is_null() || length == 0 {
            return Some(Vec::new());
        }
        // SAFETY: the array has this many bytes there, and no JavaScript runs now.
        Some(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }.to_vec())
    }

    pub(crate) fn set(self, object: Value, name: &CStr, value: Value) -> Option<()> {
        // SAFETY: see `type_of`.
        let status = unsafe { napi_set_named_property(self.env, object, name.as_ptr(), value) };
        (status == OK).then_some(())
    }

    /// # Safety
    /// `data` is what `callback` expects, as long as JavaScript can call the function.
    pub(crate) unsafe fn function(
        self,
        name: &CStr,
        callback: Callback,
        data: *mut c_void,
    ) -> Option<Value> {
        let name = name.as_ptr();
        // SAFETY: see `undefined`; the caller passes values of this call.
        self.handle(|env, to| unsafe {
            napi_create_function(env, name, AUTO_LENGTH, callback, data, to)
        })
    }

    /// Returns a `Uint8Array` that lives as long as the environment, and the address of its bytes.
    pub(crate) fn buffer(self, size: usize) -> Option<(Value, *mut u8)> {
        let mut data = ptr::null_mut();
        let address = &raw mut data;
        // SAFETY: see `undefined`; the addresses are those of variables, here and below.
        let buffer =
            self.handle(|env, to| unsafe { napi_create_arraybuffer(env, size, address, to) })?;
        // SAFETY: see above; the buffer has this size.
        let array = self.handle(|env, to| unsafe {
            napi_create_typedarray(env, UINT8_ARRAY, size, buffer, 0, to)
        })?;
        // SAFETY: see above. The reference is never deleted.
        self.handle(|env, to| unsafe { napi_create_reference(env, buffer, 1, to) })?;
        (!data.is_null()).then_some((array, data.cast()))
    }

    /// Returns an object that this constructor makes.
    pub(crate) fn instance(self, constructor: Value) -> Option<Value> {
        // SAFETY: see `type_of`; there are no arguments.
        self.handle(|env, to| unsafe { napi_new_instance(env, constructor, 0, ptr::null(), to) })
    }

    /// Has `finalize` called with the data when the environment is gone.
    ///
    /// # Safety
    /// `data` is what `finalize` expects then.
    pub(crate) unsafe fn own(self, data: *mut c_void, finalize: Finalize) -> Option<()> {
        // SAFETY: see `undefined`; the caller passes values of this call.
        let status = unsafe { napi_set_instance_data(self.env, data, finalize, ptr::null_mut()) };
        (status == OK).then_some(())
    }

    /// Has `hook` called before the environment ends.
    ///
    /// # Safety
    /// `argument` is what `hook` expects then.
    pub(crate) unsafe fn at_end(
        self,
        hook: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Option<()> {
        // SAFETY: see `undefined`; the caller passes values of this call.
        (unsafe { napi_add_env_cleanup_hook(self.env, hook, argument) } == OK).then_some(())
    }
}

/// Returns the text with a NUL behind it; what follows a NUL in it is not shown.
fn c_string(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}
