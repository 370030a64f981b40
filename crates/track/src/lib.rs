//! Track processes over time: which there are, what they publish, when to scan one again, what
//! changed, when it ended.
//!
//! What it does for you:
//! - [`Tracker`] polls processes that have run, with a back-off, and reports what changed. It is the
//!   engine below samplers: processes that are not sampled cost nothing;
//! - [`Watch`] polls every process of the machine at one system call each, and reports processes that
//!   publish, update and withdraw a process context, and that end;
//! - both take memory for processes that exist, and for no others: they can run for days.
//!
//! What stays your job: calling them in time, and having the right to read the processes
//! (`CAP_SYS_PTRACE`, or the same user where ptrace is not restricted).
//!
//! What it is not for: reading threads (`otelctx-reader`), and taking samples (`otelctx-sampler`).
//!
//! ```no_run
//! use otelctx_track::{Budget, Options, Tracker};
//!
//! # fn main() -> Result<(), otelctx_reader::Error> {
//! let mut tracker: Tracker<()> = Tracker::new(Options::default());
//! tracker.add(4711)?;
//! loop {
//!     // The process was seen running.
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
pub use process::{ThreadStatus, TrackedProcess};
pub use tracker::{Budget, Change, Event, Options, Tracked, Tracker};
pub use watch::Watch;
