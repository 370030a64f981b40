//! Read OpenTelemetry *process context* (OTEP 4719) and *thread context* (OTEP 4947) out of a
//! process, from outside.
//!
//! What this crate does for you: it finds the published context of a process among its
//! mappings, reads it while the process may be updating it, finds the thread-local variable
//! `otel_thread_ctx_v1` in whichever module defines it, and reads the record of each thread
//! while that thread is stopped for some microseconds.
//!
//! What stays your job: choosing processes, and having the right to inspect them
//! (`CAP_SYS_PTRACE`, or the same user where ptrace is not restricted).
//!
//! What it is not for: reading the context of one's own thread, and sampling at high rates.
//!
//! Language runtimes plug in by the trait [`runtime::Runtime`]: their frames, contexts and tasks come
//! beside native contexts. This crate has none of its own.
//!
//! "Publishes nothing" and "publishes something unreadable" are different answers everywhere:
//! [`ContextState`], [`ThreadSupport`]. Everything that comes from the process is untrusted:
//! bounded before it is used, and reported when it makes no sense.
//!
//! ```no_run
//! use otelctx_reader::{ContextState, Process};
//!
//! # fn main() -> Result<(), otelctx_reader::Error> {
//! let mut process = Process::open(4711)?;
//! match process.context()? {
//!     ContextState::Published(context) => println!("{:?}", context.payload.resource),
//!     ContextState::Absent => println!("publishes nothing"),
//!     ContextState::Broken(why) => println!("publishes something unreadable: {why}"),
//! }
//! for thread in process.threads()? {
//!     if let Some(context) = thread.context()?.attached() {
//!         println!("{} works on trace {}", thread.tid(), context.trace_id);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod detected;
mod error;
mod process;
mod process_context;
pub mod runtime;
mod sleeping;
mod thread_context;

pub use detected::Detected;
pub use error::Error;
pub use otelctx_format as format;
pub use otelctx_format::SYMBOL;
pub use otelctx_remote as remote;
pub use otelctx_remote::FileCache;
pub use otelctx_sample as sample;
pub use otelctx_sample::{Found, ReadStep};
pub use process::{Options, Poll, Process, Threads};
pub use process_context::{Broken, ContextState, ProcessContext};
pub use thread_context::{
    Reading, StopReason, StoppedThread, Thread, ThreadSupport, ThreadVariables, Unreadable,
};
