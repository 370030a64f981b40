//! An observed thread, before it is converted to a sample.

use otelctx_reader::runtime::RuntimeReading;
use otelctx_sample::{Found, Frame, StackEnd};

#[derive(Debug)]
pub(crate) struct Observation<'a> {
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    /// The thread's name.
    pub(crate) comm: &'a str,
    /// [`Found::NotPublished`] if the observer does not know the process.
    pub(crate) context: Found<Record<'a>>,
    /// The readings of language runtimes.
    pub(crate) runtimes: Vec<RuntimeReading>,
    /// It was not known whether the process has a runtime.
    pub(crate) is_early: bool,
    pub(crate) user_stack: &'a [Frame],
    /// Why it ended; `None` if there is no stack.
    pub(crate) stack_end: Option<StackEnd>,
    pub(crate) kernel_stack: &'a [Frame],
}

/// An attached record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The configuration under which it was read.
    pub(crate) serial: u32,
    pub(crate) bytes: &'a [u8],
}
