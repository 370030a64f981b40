//! Publish OpenTelemetry process and thread context for profilers, debuggers and security agents.
//!
//! A program that uses this crate says what it is (*process context*, OTEP 4719) and what each of
//! its threads is working on (*thread context*, OTEP 4947), in its own memory. A tool that may read
//! that memory, for example `otelctx dump PID`, can tell which trace and which route a thread
//! spends its time on, without the program noticing.
//!
//! ```
//! use otelctx::{Key, ProcessContext, Record};
//!
//! // The name of an attribute. It registers itself on first use.
//! static ROUTE: Key = Key::new("http.route");
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Once, at start-up. Dropping the guard unpublishes.
//! let _process = ProcessContext::detect()
//!     .service_name("shop")
//!     .attribute("deployment.environment.name", "prod")
//!     .publish()?;
//!
//! // A request.
//! let (trace_id, span_id) = ([0x4b; 16], [0xf0; 8]);
//! let mut record = Record::new(trace_id, span_id).sampled(true).with(&ROUTE, "/cart");
//! {
//!     // Readers see the record on this thread until the guard is dropped.
//!     let _attached = record.attach();
//! }
//!
//! // Or around a future: attached whenever it is polled.
//! let answer = record.in_scope(async { 42 });
//! # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
//! # let waker = std::sync::Arc::new(NoWake).into();
//! # struct NoWake; impl std::task::Wake for NoWake { fn wake(self: std::sync::Arc<Self>) {} }
//! # let Poll::Ready(answer) = pin!(answer).poll(&mut Context::from_waker(&waker)) else { panic!() };
//! assert_eq!(answer, 42);
//!
//! // Or one record a thread, rewritten in place.
//! otelctx::thread_record().set(trace_id, span_id, otelctx::TraceFlags::SAMPLED);
//!
//! // Or for a framework that says "this is current now", without a scope and in any order.
//! let request = record.copy_with_ids(trace_id, [0xf1; 8], otelctx::TraceFlags::SAMPLED).share();
//! let before = otelctx::swap_current(Some(request));
//! otelctx::append_current(&ROUTE, "/cart/late"); // known late: shows on this thread only
//! otelctx::swap_current(before);
//!
//! assert!(!record.is_truncated());
//! assert_eq!(record.attributes_size(), 2 + "/cart".len());
//! # Ok(())
//! # }
//! ```
//!
//! # What it does for you
//!
//! - **Costs next to nothing.** Attaching and detaching are a load and two stores, without
//!   allocation, lock or locked instruction. Nothing is called and nothing wakes up while nobody
//!   looks.
//! - **Needs no linker flags.** The thread-local variable is exported from shared libraries, and
//!   from executables linked with lld or gold. [`is_exported`] tells when that failed, and
//!   what to add.
//! - **Fits into frameworks.** [`swap_current`] needs no scope, [`SharedRecord::attach_owned`] no
//!   borrow, [`append_current`] adds what is known late. Sharing a record, attaching it and dropping
//!   it take no lock.
//! - **Lets libraries add to it.** [`ProcessContext::modify`] changes what the application has
//!   published; [`ProcessContext::attributes`] takes an SDK's resource, with its types.
//! - **Stays harmless when used wrongly.** Guards may be dropped in any order and may be forgotten,
//!   and a forgotten one never shows the context of another request: its record is detached when it
//!   is dropped. A record that another
//!   publisher attached is never written or freed. A thread that ends frees its records.
//! - **Goes through `fork`.** The child has no process context and may publish its own, or has one
//!   at once after [`Published::republish_after_fork`]; its threads' records keep their meaning.
//! - **Gets along with others.** Several copies or versions of this crate, or this crate and another
//!   publisher, link into one program and share the thread's variable. Of the copies of this crate,
//!   the one that publishes last takes over; another publisher's process context is left alone, and
//!   publishing fails.
//!
//! # What stays your job
//!
//! - Publishing early: a [`Key`] is left out of records until the process context that lists it
//!   is published.
//! - Keeping the ids: this crate makes no spans and propagates nothing.
//! - Attaching on the right thread: a [`Record`] belongs to its thread; [`Record::share`] makes
//!   one that any thread may attach.
//! - In signal handlers: attach and detach records that were built before, on threads that have
//!   attached one before, and nothing else. A shared record that the thread may have attached
//!   already, or as its seventh, allocates.
//!
//! # Features
//!
//! - `link-export` (default): executables linked with lld or gold export the thread-local variable
//!   without linker flags. A stub library does that, which rustc finds in the build directory. Turn
//!   it off for a static library (`crate-type = ["staticlib"]`) that another build system links:
//!   there, `--print native-static-libs` would name the stub, and the program needs
//!   `-Wl,--export-dynamic-symbol=otel_thread_ctx_v1` instead.
//!
//! # Platforms
//!
//! Linux on x86-64 and aarch64, glibc and musl. Other Linux architectures publish the process context
//! only, and those without 64-bit atomics (32-bit MIPS and PowerPC, ARMv5) nothing. There and on other
//! systems everything succeeds and nobody sees anything.
//! Executables and `cdylib`s may depend on this crate, a Rust `dylib` may not: programs that use
//! the crate through one fail to link.

mod arch;
mod export;
mod process_context;
mod thread;

pub use export::{is_exported, NotExported};
pub use otelctx_format::environment::MalformedVariable;
pub use otelctx_format::process_context::Value;
pub use otelctx_format::record::{Context, Skipped};
pub use otelctx_format::{ParseIdError, Schema, SpanId, TraceFlags, TraceId};
pub use process_context::{Detect, ProcessContext, PublishError, Published};
pub use thread::{
    append_current, current, swap_current, thread_record, thread_slot, Attached, AttachedOwned,
    AttachedShared, Attributes, InScope, Key, KeyError, Record, SharedRecord, ThreadRecord,
};
