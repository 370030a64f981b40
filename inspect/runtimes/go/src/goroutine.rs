//! From a thread to the goroutine that it runs.
//!
//! A goroutine's fields are read while the thread that runs it is stopped, asleep, or interrupted by a sample: only this
//! thread changes its own goroutine and that one's labels, so they are of one instant. What may be half-done then:
//!
//! - The thread runs code of the scheduler, or is in a signal handler: `g` is `g0` or `gsignal`, whose `m.curg` is the
//!   goroutine that it works for, as `runtime/pprof` counts it.
//! - It is between two goroutines: `execute` sets `m.curg` before `g.m`, `dropg` clears `g.m` before `m.curg`. The goroutine
//!   of `m.curg` has no thread then, but its labels.
//! - `pprof.SetGoroutineLabels` has made its new labels, but not stored their address: the old ones are still the
//!   goroutine's. Go never changes a map or a slice of labels after that, and its garbage collector moves nothing.
//! - The goroutine waits in a system call and has lost its processor: `m.curg` stays.

use otelctx_reader::remote::Memory;
use otelctx_reader::runtime::RuntimeError;

use crate::layout::Layout;

/// Where a thread has the address of its `g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At this offset from the thread pointer, in bytes.
    Variable(i64),
    /// In a register alone: aarch64, in programs without cgo.
    Register,
}

/// The goroutine that a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Goroutine {
    pub(crate) id: u64,
    /// The address of its labels, 0 if it has none.
    pub(crate) labels: u64,
}

/// The goroutine of a thread whose `g` has this address: 0 for a thread that is not one of Go's. `None` if the thread runs
/// none.
pub(crate) fn running(
    memory: &dyn Memory,
    layout: &Layout,
    g: u64,
) -> Result<Option<Goroutine>, RuntimeError> {
    if g == 0 {
        return Ok(None);
    }
    let at = |address: u64, offset| memory.read_u64(address.wrapping_add(offset));
    let thread = at(g, layout.goroutine.thread)?;
    if thread == 0 {
        // Its thread ends, or is not set up yet.
        return Ok(None);
    }
    let current = at(thread, layout.thread.goroutine)?;
    if current == 0 {
        return Ok(None);
    }
    let its = at(current, layout.goroutine.thread)?;
    if its != thread && its != 0 {
        return Err(RuntimeError::new(format!(
            "the goroutine at {current:#x} belongs to another thread"
        )));
    }
    Ok(Some(Goroutine {
        id: at(current, layout.goroutine.id)?,
        labels: at(current, layout.goroutine.labels)?,
    }))
}
