//! Looking with eBPF: a program on each processor's clock reads the interrupted thread's record.
//!
//! The program, its maps and the clocks are held by descriptors alone: nothing is pinned, and all
//! of it goes with this process, however that ends.

mod abi;
mod load;
mod perf;
mod recorder;
mod snapshot;
mod targets;

pub(crate) use recorder::Recorder;
pub use snapshot::{Snapshots, ThreadSnapshot};
