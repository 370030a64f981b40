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
    pub(crate) comm: &'a str,
    /// [`Found::NotPublished`] if the observer does not know the process.
    pub(crate) context: Found<Record<'a>>,
    pub(crate) runtimes: Vec<RuntimeReading>,
    /// The process is executing another program.
    pub(crate) is_executing: bool,
    /// The observer did not know yet whether the process has a runtime.
    pub(crate) is_early: bool,
    pub(crate) user_stack: &'a [Frame],
    /// The end of the user stack, if there is one.
    pub(crate) stack_end: Option<StackEnd>,
    pub(crate) kernel_stack: &'a [Frame],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The configuration under which it was read.
    pub(crate) serial: u32,
    /// The position of the variable that points to it.
    pub(crate) variable: usize,
    pub(crate) bytes: &'a [u8],
}
