//! The addon of the npm package `otelctx`.
//!
//! A context is an object of JavaScript's with an internal field for the address of its record. It
//! is the value of an `AsyncLocalStorage`, which Node.js has in a map that V8 carries from one
//! asynchronous call to the next. What a thread publishes (`tls`) leads a reader from there to the
//! record. The addon needs nothing at run time while contexts are switched.
//!
//! The files in `lib` check arguments and encode records, in the addon's buffer: V8 compiles that,
//! and calls of the addon are expensive.

mod block;
mod environment;
mod napi;
mod own_memory;
mod probe;
mod process;
mod tls;
mod v8;

use environment::Environment;
use napi::{Call, Env, Value};

/// Returns the version of Node-API that the addon needs: that of Node.js 18.
#[unsafe(no_mangle)]
pub extern "C" fn node_api_module_get_api_version_v1() -> i32 {
    8
}

/// Node.js calls this in each environment that loads the addon.
///
/// # Safety
/// Node-API promises what is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn napi_register_module_v1(env: Env, exports: Value) -> Value {
    // SAFETY: Node.js calls this with the environment that starts the module.
    let call = unsafe { Call::new(env) };
    if let Err(reason) = Environment::start(call, exports) {
        let reason = call.string(&reason);
        // Without it, JavaScript finds no functions.
        let _ = call.set(exports, c"reason", reason);
    }
    exports
}
