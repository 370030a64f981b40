//! Reads OpenTelemetry *process context* (OTEP 4719) and *thread context* (OTEP 4947) from another
//! process.
//!
//! This crate finds the published context of a process among its mappings, reads it even while the
//! process updates it, finds the thread-local variable `otel_thread_ctx_v1` in the module that
//! defines it, and reads the record of each thread. Sleeping threads are not stopped; running
//! threads are stopped for a few microseconds.
//!
//! It does not choose processes, and does not obtain the right to inspect them (`CAP_SYS_PTRACE`,
//! or the same user where ptrace is not restricted).
//!
//! It is not meant for reading the calling thread's own context, or for sampling at high rates.
//!
//! Language runtimes plug in through the trait [`runtime::Runtime`]: their frames, contexts and
//! tasks are read together with native contexts. This crate contains no runtimes.
//!
//! "Publishes nothing" and "publishes something unreadable" are different results everywhere:
//! [`ContextState`], [`ThreadSupport`]. All data from the process is untrusted: it is bounded
//! before use, and reported if it is inconsistent.
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
mod options;
mod process;
mod process_context;
mod reading;
mod record;
pub mod runtime;
mod sleeping;
pub mod sweep;
mod unreadable;
mod variables;

pub use detected::Detected;
pub use error::Error;
pub use options::Options;
pub use otelctx_format as format;
pub use otelctx_format::SYMBOL;
pub use otelctx_remote as remote;
pub use otelctx_remote::FileCache;
pub use otelctx_sample as sample;
pub use otelctx_sample::{Found, ReadStep};
pub use process::{Poll, Process, StoppedThread, Thread, Threads};
pub use process_context::{Broken, ContextState, ProcessContext};
pub use reading::{Reading, StopReason};
pub use unreadable::Unreadable;
pub use variables::{ThreadSupport, ThreadVariables};
