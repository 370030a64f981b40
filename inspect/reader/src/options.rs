//! Options for reading a process.

use std::time::{Duration, Instant};

use otelctx_format::record;

use crate::runtime::Runtimes;

/// Limits of a reader.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Maximum size of a process context's payload, in bytes. 1 MiB by default.
    pub max_payload: usize,
    /// Do not scan processes with more mappings than this. No limit by default. With a limit,
    /// `PROCMAP_QUERY` is not used: it does not count the mappings it skips.
    pub max_mappings: Option<u64>,
    /// Read the text of `/proc/PID/maps` even if the kernel supports the faster `PROCMAP_QUERY`.
    pub maps_as_text: bool,
    /// Maximum number of bytes to read of a thread's record, clamped to 28 (its header) to 65,563
    /// (the largest). 640 by default, the size that OTEP 4947 recommends to writers.
    pub max_record: usize,
    /// Maximum time to wait for a thread to stop. 500 ms by default.
    pub stop_timeout: Duration,
    /// Do not stop threads: one that runs has [`Error::NotAsleep`](crate::Error::NotAsleep).
    pub never_stop: bool,
    /// The time after which no slow operation is started. None by default.
    pub deadline: Option<Instant>,
    /// Read the thread-local variable even if the process context does not announce it.
    pub any_schema: bool,
    /// The language runtimes to read in addition to native contexts. None by default.
    pub runtimes: Runtimes,
    /// Also read the tasks of runtimes of which a thread can be read without stopping the process.
    pub tasks: bool,
    /// The caller has native stacks of the threads, into which the frames of runtimes go. True by
    /// default.
    pub native_stacks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_payload: 1 << 20,
            max_mappings: None,
            maps_as_text: false,
            max_record: record::RECOMMENDED_SIZE,
            stop_timeout: Duration::from_millis(500),
            never_stop: false,
            deadline: None,
            any_schema: false,
            runtimes: Runtimes::default(),
            tasks: false,
            native_stacks: true,
        }
    }
}
