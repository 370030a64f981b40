//! Process contexts to publish.

use std::ffi::c_char;
use std::ptr;

use otelctx::{Detect, ProcessContext, Schema, Value};

use crate::call::{caught, pointer, reported};
use crate::error::{
    Failure, INTERNAL, INVALID_ARGUMENT, MALFORMED_ENVIRONMENT, OK, failure, otelctx_error,
    otelctx_result,
};
use crate::text::{bytes, name};
use crate::value::{otelctx_value, take};

/// Detect OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES. If they set no `service.name`, it is
/// `unknown_service:` and the executable's name.
pub const OTELCTX_DETECT_ENVIRONMENT: u32 = 1;
/// Detect `process.pid`, `process.executable.name` and `process.executable.path`.
pub const OTELCTX_DETECT_PROCESS: u32 = 2;
/// Detect `process.command_args`. Arguments can contain secrets.
pub const OTELCTX_DETECT_COMMAND_ARGS: u32 = 4;
/// Set `telemetry.sdk.language`, `.name` and `.version`.
pub const OTELCTX_DETECT_SDK: u32 = 8;
/// Set a random `service.instance.id`, so that each forked child has its own.
pub const OTELCTX_DETECT_INSTANCE_ID: u32 = 16;
/// All of these except the arguments.
pub const OTELCTX_DETECT_DEFAULT: u32 = 27;

/// A process context: the attributes of an OpenTelemetry resource, and attributes of the process
/// context itself. It does nothing until it is published, and can be changed and published again.
/// If one of its functions fails, otelctx_publish() fails, too, and says why: others need no check.
pub struct otelctx_process {
    context: ProcessContext,
    /// The first failure.
    problem: Option<Failure>,
    /// True for the context of a callback, which otelctx_modify() owns.
    lent: bool,
}

impl otelctx_process {
    pub(crate) fn new(context: ProcessContext) -> Self {
        Self {
            context,
            problem: None,
            lent: false,
        }
    }

    pub(crate) fn lend(context: ProcessContext) -> Self {
        Self {
            lent: true,
            ..Self::new(context)
        }
    }

    /// Returns the context, unless something failed.
    pub(crate) fn context(&self) -> Result<ProcessContext, Failure> {
        self.problem
            .clone()
            .map_or_else(|| Ok(self.context.clone()), Err)
    }

    fn into_raw(self) -> *mut Self {
        Box::into_raw(Box::new(self))
    }

    /// Changes the context of a handle; `what` is the attribute, for the message.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    unsafe fn change(
        handle: *mut Self,
        what: *const c_char,
        change: impl FnOnce(ProcessContext) -> Result<ProcessContext, otelctx_result>,
    ) -> otelctx_result {
        // SAFETY: the caller passes null or a handle that is not freed.
        let Some(process) = (unsafe { handle.as_mut() }) else {
            return INVALID_ARGUMENT;
        };
        match change(process.context.clone()) {
            Ok(context) => {
                process.context = context;
                OK
            }
            Err(code) => {
                // SAFETY: the caller passes null or a handle that is not freed.
                let what = unsafe { name(what) }.unwrap_or("?").escape_debug();
                let text = format!("the attribute \"{what}\": {}", failure(code).1);
                process.problem.get_or_insert((code, text));
                code
            }
        }
    }
}

/// Creates a process context without attributes.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_process_new() -> *mut otelctx_process {
    pointer(|| Some(otelctx_process::new(ProcessContext::new()).into_raw()))
}

/// Creates a process context with what can be detected: OTELCTX_DETECT_DEFAULT, or a sum of the
/// other constants. Unknown bits are ignored. Attributes that are set take precedence over detected
/// ones. It reads the environment: no other thread may change it at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_process_detect(detect: u32) -> *mut otelctx_process {
    pointer(|| {
        let mut context = ProcessContext::detect_with(Detect {
            environment: detect & OTELCTX_DETECT_ENVIRONMENT != 0,
            process: detect & OTELCTX_DETECT_PROCESS != 0,
            command_args: detect & OTELCTX_DETECT_COMMAND_ARGS != 0,
            sdk: detect & OTELCTX_DETECT_SDK != 0,
            instance_id: detect & OTELCTX_DETECT_INSTANCE_ID != 0,
        });
        if detect & OTELCTX_DETECT_SDK != 0 {
            context = context.with_attribute("telemetry.sdk.language", "c");
        }
        Some(otelctx_process::new(context).into_raw())
    })
}

/// Tells whether OTEL_RESOURCE_ATTRIBUTES was ignored because it is malformed:
/// OTELCTX_MALFORMED_ENVIRONMENT, else OTELCTX_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_check_environment(
    process: *const otelctx_process,
    error: *mut otelctx_error,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        reported(error, || {
            let process = process.as_ref().ok_or_else(|| failure(INVALID_ARGUMENT))?;
            match process.context.malformed_variable() {
                None => Ok(()),
                Some(malformed) => Err((MALFORMED_ENVIRONMENT, malformed.to_string())),
            }
        })
    }
}

/// Sets `service.name`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_service_name(
    process: *mut otelctx_process,
    name: *const c_char,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { otelctx_process_set_string(process, c"service.name".as_ptr(), name) }
}

/// Sets an attribute of the resource, or replaces it, and takes the value over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_set(
    process: *mut otelctx_process,
    key: *const c_char,
    value: *mut otelctx_value,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { set(process, key, || take(value)) }
}

/// Sets an attribute of the resource.
///
/// # Safety
/// The pointers are null, or valid as otelctx.h requires.
unsafe fn set(
    process: *mut otelctx_process,
    key: *const c_char,
    value: impl FnOnce() -> Result<Value, otelctx_result>,
) -> otelctx_result {
    // SAFETY: the caller ensures that the pointers are null or valid.
    unsafe { set_by(ProcessContext::with_attribute, process, key, value) }
}

/// Sets an attribute by this method.
///
/// # Safety
/// The pointers are null, or valid as otelctx.h requires.
unsafe fn set_by<'a>(
    method: impl FnOnce(ProcessContext, &'a str, Value) -> ProcessContext,
    process: *mut otelctx_process,
    key: *const c_char,
    value: impl FnOnce() -> Result<Value, otelctx_result>,
) -> otelctx_result {
    caught(INTERNAL, || {
        // C gives the value away in any case.
        let value = value();
        // SAFETY: the caller ensures that the pointers are null or valid.
        unsafe {
            otelctx_process::change(process, key, |context| {
                Ok(method(context, name(key)?, value?))
            })
        }
    })
}

/// Sets an attribute of the resource to a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_set_string(
    process: *mut otelctx_process,
    key: *const c_char,
    value: *const c_char,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { set(process, key, || name(value).map(Value::from)) }
}

/// Sets an attribute of the resource to true or false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_set_bool(
    process: *mut otelctx_process,
    key: *const c_char,
    value: bool,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { set(process, key, || Ok(value.into())) }
}

/// Sets an attribute of the resource to an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_set_int(
    process: *mut otelctx_process,
    key: *const c_char,
    value: i64,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { set(process, key, || Ok(value.into())) }
}

/// Sets an attribute of the resource to a floating-point number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_set_double(
    process: *mut otelctx_process,
    key: *const c_char,
    value: f64,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { set(process, key, || Ok(value.into())) }
}

/// Sets an attribute of the resource to uninterpreted bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_set_bytes(
    process: *mut otelctx_process,
    key: *const c_char,
    address: *const u8,
    length: usize,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { set(process, key, || bytes(address, length).map(Value::from)) }
}

/// Removes an attribute of the resource, if it is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_remove(
    process: *mut otelctx_process,
    key: *const c_char,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught(INTERNAL, || unsafe {
        otelctx_process::change(process, key, |context| {
            Ok(context.without_attribute(name(key)?))
        })
    })
}

/// Sets an attribute of the process context itself, which is not part of the resource, and takes
/// the value over. Names that start with `threadlocal.` are reserved for this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_set_context_attribute(
    process: *mut otelctx_process,
    key: *const c_char,
    value: *mut otelctx_value,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        set_by(ProcessContext::with_context_attribute, process, key, || {
            take(value)
        })
    }
}

/// Sets an attribute that belongs to the schema of thread contexts, for publishers of schemas that
/// this library does not know, and takes the value over. The name starts with `threadlocal.`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_set_schema_attribute(
    process: *mut otelctx_process,
    key: *const c_char,
    value: *mut otelctx_value,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        set_by(ProcessContext::with_schema_attribute, process, key, || {
            take(value)
        })
    }
}

/// Sets the announced schema of thread contexts: "tlsdesc_v1_dev", the default, which current
/// readers support, "tls_v1", or another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_schema(
    process: *mut otelctx_process,
    schema: *const c_char,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught(INTERNAL, || unsafe {
        otelctx_process::change(process, c"threadlocal.schema_version".as_ptr(), |context| {
            Ok(context.with_schema(Schema::from_name(name(schema)?)))
        })
    })
}

/// Sets the maximum encoded size in bytes; readers may reject more than the default of 65,536.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_max_size(
    process: *mut otelctx_process,
    size: usize,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught(INTERNAL, || unsafe {
        otelctx_process::change(process, ptr::null(), |context| {
            Ok(context.with_max_payload_size(size))
        })
    })
}

/// Frees a process context. What was published stays published. In a callback of otelctx_modify(),
/// it does nothing to the callback's context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_process_free(process: *mut otelctx_process) {
    caught((), || {
        // SAFETY: C passes a handle that is not freed yet (otelctx.h).
        unsafe {
            if !process.is_null() && !(*process).lent {
                drop(Box::from_raw(process));
            }
        }
    });
}
