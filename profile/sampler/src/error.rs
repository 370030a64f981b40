//! Errors of the samplers.

/// An error of starting a sampler. A kernel that does not permit eBPF is none: see
/// [`Method`](crate::Method).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A process could not be inspected.
    #[error(transparent)]
    Reader(#[from] otelctx_reader::Error),
    /// The list of processes could not be read, or the thread that samples could not be started.
    #[error(transparent)]
    Remote(#[from] otelctx_reader::remote::Error),
    /// The process is a kernel thread.
    #[error("process {pid} is a kernel thread: it has no context and no user stack")]
    KernelThread {
        /// The process.
        pid: i32,
    },
    /// The contexts of a process could not be read without stopping it.
    #[error("the threads cannot be read without stopping them: {0}")]
    Snapshot(crate::Refusal),
    /// The kernel does not permit to scan threads off the CPU.
    #[error("threads that wait cannot be scanned: {0}")]
    Waits(crate::Refusal),
    /// A CPU's clock could not be started.
    #[error("cannot start a CPU's clock (perf event): {0}")]
    Clock(std::io::Error),
}
