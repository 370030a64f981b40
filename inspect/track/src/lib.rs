//! Tracks processes over time: which exist, what they publish, when to scan each again.
//!
//! - [`Tracker`] polls processes that have run, with a back-off, and reports changes. Samplers are
//!   built on it: processes that are not sampled cost nothing.
//! - [`Watch`] polls every process on the machine with one system call each, and reports processes
//!   that publish, update and withdraw a process context, and that end.
//!
//! Both must be called regularly, use memory only for processes that exist, and need the right to
//! read them (`CAP_SYS_PTRACE`, or the same user where ptrace is not restricted). They do not read
//! threads (`otelctx-reader`) or take samples (`otelctx-sampler`).
//!
//! ```no_run
//! use otelctx_track::{Budget, Options, Tracker};
//!
//! # fn main() -> Result<(), otelctx_reader::Error> {
//! let mut tracker: Tracker<()> = Tracker::new(Options::default());
//! tracker.add(4711)?;
//! loop {
//!     // The process was observed running.
//!     tracker.request(4711);
//!     tracker.poll_due(Budget::UNLIMITED, &mut |event| println!("{event:?}"));
//!     std::thread::sleep(std::time::Duration::from_millis(20));
//! #   if tracker.is_empty() { break Ok(()); }
//! }
//! # }
//! ```

mod facts;
mod process;
pub mod schedule;
mod tracker;
mod watch;

pub use facts::Facts;
pub use process::{Change, Options, ThreadStatus, TrackedProcess};
pub use tracker::{Budget, Event, Tracked, Tracker};
pub use watch::Watch;
