//! The threads of a process, read without stopping the sleeping ones.
//!
//! - [`ThreadFiles::read_asleep`] reads memory while a thread sleeps, and notices if it ran meanwhile;
//! - [`ThreadPointers`] finds each thread's thread pointer in the C library's own list of threads;
//! - [`Call`] is the system call that a thread sleeps in.

mod batch;
mod call;
mod lists;
mod pages;
mod pointers;
mod scan;
mod sleep;

pub use batch::{Batch, MemoryRange, NotedMemory};
pub use call::Call;
pub use lists::ThreadLists;
pub use pages::{PagedMemory, Pages};
pub use pointers::{ThreadPointer, ThreadPointers};
pub use sleep::{Protocol, ThreadFiles, is_still_asleep, max_kept, switches};
