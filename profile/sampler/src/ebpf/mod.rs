//! Sampling with eBPF: a program on each CPU's clock reads the interrupted thread's record.
//!
//! The program, its maps and the clocks are held only by descriptors: nothing is pinned, and
//! everything is released with this process, however it ends.

mod abi;
mod decode;
mod load;
mod namespace;
mod object;
mod perf;
mod recorder;
mod rings;
mod shared;
mod side_band;
mod snapshot;
mod steps;
mod targets;
mod thread_words;
mod unwind;

pub(crate) use recorder::Recorder;
pub use snapshot::{Snapshots, ThreadSnapshot};
