//! Contexts that are read while threads run.

use otelctx_format::record::DecodedContext;
use otelctx_sample::Found;

use crate::{Error, Process, ThreadVariables};

/// Reads the contexts of all threads of a process while they run, such as a program in the kernel.
pub trait SnapshotSource: Send {
    /// Reads the context of each thread from these variables of the process, in the order of IDs.
    ///
    /// # Errors
    /// [`Error::Snapshot`] becomes the error of each thread. Any other error ends the sweep.
    fn threads(
        &mut self,
        process: &mut Process,
        variables: &ThreadVariables,
    ) -> Result<Vec<ThreadSnapshot>, Error>;
}

/// A thread and its context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// Its thread ID.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// The outcome of reading its context; never [`Found::NotPublished`].
    pub context: Found<DecodedContext>,
}
