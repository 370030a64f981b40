//! The receiver of a sweep's threads.

use std::time::Instant;

use otelctx_remote::Stopped;

use super::ThreadReading;
use crate::{Process, Thread};

/// Receives the threads of a sweep, as a closure that takes a [`ThreadReading`] does. The other
/// methods are for reading something else of each thread at the same moment, such as its stack.
pub trait Visitor {
    /// Receives a thread: once for each, when it is certain that the results are valid.
    fn visit(&mut self, thread: ThreadReading);

    /// Called before threads are read; again if all of them have to be read again.
    fn begin(&mut self, process: &Process, deadline: Instant) {
        let _ = (process, deadline);
    }

    /// Reads a thread with `read`; the last of several calls counts. `stopped` is the thread, if
    /// the whole process is stopped. A visitor may stop the thread and pass that.
    fn read(
        &mut self,
        thread: &Thread<'_>,
        stopped: Option<&Stopped>,
        read: &mut dyn FnMut(Option<&Stopped>) -> ThreadReading,
    ) -> ThreadReading {
        let _ = thread;
        read(stopped)
    }

    /// Memory of what this visitor keeps of the threads that were read, in bytes.
    fn memory(&self) -> usize {
        0
    }

    /// Called after the threads were read, before a whole process is resumed.
    fn end(&mut self, process: &Process) {
        let _ = process;
    }
}

impl<F: FnMut(ThreadReading)> Visitor for F {
    fn visit(&mut self, thread: ThreadReading) {
        self(thread);
    }
}
