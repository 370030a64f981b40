//! Publish OpenTelemetry process and thread context for profilers, debuggers and security agents.
//!
//! A program that uses this crate publishes what it is (*process context*, OTEP 4719) and what each
//! of its threads is working on (*thread context*, OTEP 4947) in its own memory. A tool that may
//! read this memory, for example `otelctx dump PID`, can tell which trace and which route each
//! thread is working on. The program does not notice.
//!
//! ```
//! use otelctx::{raw, Context, Key, ProcessContext, TraceFlags};
//!
//! // The name of an attribute. It registers itself on first use.
//! static ROUTE: Key = Key::new("http.route");
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Once, at start-up. Dropping the guard withdraws the context.
//! let _process = ProcessContext::detect()
//!     .with_service_name("shop")
//!     .with_attribute("deployment.environment.name", "prod")
//!     .publish()?;
//!
//! // For a request.
//! let (trace_id, span_id) = ([0x4b; 16], [0xf0; 8]);
//! let mut context = Context::new(trace_id, span_id)?.with_sampled(true).with_attribute(&ROUTE, "/cart");
//! {
//!     // Readers see the context on this thread until the guard is dropped.
//!     let _attached = context.attach();
//! }
//!
//! // Or for a future: attached whenever it is polled.
//! let answer = context.in_scope(async { 42 });
//! # use std::{future::Future, pin::pin, task::{self, Poll}};
//! # let waker = std::sync::Arc::new(NoWake).into();
//! # struct NoWake; impl std::task::Wake for NoWake { fn wake(self: std::sync::Arc<Self>) {} }
//! # let Poll::Ready(answer) = pin!(answer).poll(&mut task::Context::from_waker(&waker)) else { panic!() };
//! assert_eq!(answer, 42);
//!
//! // Or one context per thread, rewritten in place.
//! otelctx::thread_context().set(trace_id, span_id, TraceFlags::SAMPLED)?;
//!
//! // Or for a framework that sets what is current, without a scope and in any order.
//! let request = context.copy_with_ids(trace_id, [0xf1; 8], TraceFlags::SAMPLED)?.share();
//! let before = raw::swap_current(Some(request));
//! otelctx::append_current(&ROUTE, "/cart/late"); // known later: visible on this thread only
//! raw::swap_current(before);
//!
//! assert!(!context.is_truncated());
//! assert_eq!(context.attributes_size(), 2 + "/cart".len());
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! - **Costs next to nothing.** Attaching and detaching are a load and two stores, without
//!   allocation, lock or locked instruction. It starts no threads, and causes no work while nobody
//!   reads.
//! - **Needs no linker flags.** The thread-local variable is exported from shared libraries, and
//!   from executables linked with lld or gold. [`is_exported`] reports whether that failed, and how
//!   to fix it.
//! - **Fits into frameworks.** [`raw::swap_current`] needs no scope, [`SharedContext::attach_owned`]
//!   needs no borrow, and [`append_current`] adds facts that become known later. Sharing, attaching
//!   and dropping a context take no lock.
//! - **Lets libraries contribute.** [`ProcessContext::modify`] changes the context that the
//!   application has published; [`ProcessContext::with_attributes`] takes an SDK's resource, with its
//!   types.
//! - **Stays safe when misused.** Guards may be dropped in any order, and may be forgotten: a
//!   forgotten guard never shows the context of another request, because its context is detached
//!   when it is dropped. A record that another publisher attached is never written or freed. A
//!   thread that ends frees its contexts.
//! - **Supports `fork`.** The child has no process context and may publish its own, or has one
//!   immediately after [`Published::republish_after_fork`]; its thread's contexts keep their
//!   meaning.
//! - **Coexists with others.** Several copies or versions of this crate, or this crate and another
//!   publisher, can be linked into one program and share the thread's variable. If several copies
//!   of this crate publish, the last one takes over. If another publisher has published a process
//!   context, publishing fails and leaves it alone.
//!
//! # What you need to do
//!
//! - Publish early: contexts omit an attribute until the process context that lists its [`Key`] is
//!   published.
//! - Manage the IDs: this crate creates no spans and propagates no contexts.
//! - Attach on the right thread: a [`Context`] belongs to its thread; [`Context::share`] creates one
//!   that any thread may attach.
//! - In signal handlers, only attach and detach contexts that were created before, on threads that
//!   have attached one before. Attaching a shared context can allocate if the thread has attached
//!   it already, or has attached six others.
//!
//! # Features
//!
//! - `link-export` (default): executables linked with lld or gold export the thread-local variable
//!   without linker flags. For this, rustc links a stub library from the build directory. Disable
//!   it for a static library (`crate-type = ["staticlib"]`) that another build system links: there,
//!   `--print native-static-libs` would name the stub, and the program needs
//!   `-Wl,--export-dynamic-symbol=otel_thread_ctx_v1` instead.
//!
//! # Platforms
//!
//! Linux on x86-64 and aarch64, with glibc or musl. Other Linux architectures publish only the
//! process context; those without 64-bit atomics (32-bit MIPS and PowerPC, ARMv5) publish nothing.
//! There, and on other operating systems, all calls succeed and have no effect. Executables and
//! `cdylib`s may depend on this crate, but a Rust `dylib` may not: programs that use the crate
//! through one fail to link.

mod arch;
mod call;
mod export;
#[doc(hidden)]
pub mod integration;
mod process_context;
mod thread;

pub use export::{is_exported, NotExported};
pub use otelctx_format::environment::MalformedVariable;
pub use otelctx_format::process_context::Value;
pub use otelctx_format::record::{DecodedContext, Skipped};
pub use otelctx_format::{ParseIdError, Schema, SpanId, TraceFlags, TraceId, ZeroId};
pub use process_context::{Detect, ProcessContext, PublishError, Published};
pub use thread::{
    append_current, raw, thread_context, visible_to_readers, Attached, AttachedOwned,
    AttachedShared, Attributes, Context, InScope, Key, KeyError, SharedContext, ThreadContext,
};
