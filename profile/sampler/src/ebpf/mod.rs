//! Sampling with eBPF: a program on each CPU's clock reads the interrupted thread's record.
//! Only descriptors keep the program, its maps and the clocks: everything is released when this
//! process ends.

mod abi;
mod copies;
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
mod waits;

pub(crate) use recorder::Recorder;
pub use snapshot::{Snapshots, ThreadSnapshot};
