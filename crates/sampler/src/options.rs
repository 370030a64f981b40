//! What to look at, and how often.

use otelctx_sample::format::record;

/// Which processes are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Every process of the machine, those that start later included.
    All,
    /// These, and the processes that they start if [`Options::children`] says so.
    Processes(Vec<i32>),
}

/// What to look at, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Which processes.
    pub targets: Targets,
    /// Whether processes started by a target are targets, too: those in the recorder's own PID
    /// namespace. Yes. By ptrace they are found within a quarter of a second, and those that end
    /// sooner are missed.
    pub children: bool,
    /// Looks a second at each processor. 99: not in step with what happens a hundred times a
    /// second.
    pub frequency: u32,
    /// Whether to take the stack in the process, by frame pointers. Yes.
    pub user_stacks: bool,
    /// Whether to take the stack in the kernel. Yes.
    pub kernel_stacks: bool,
    /// The most of a record that is read, in bytes: between 28, its header, and 4096; values
    /// outside count as these. 640, what the proposal recommends to write.
    pub max_record: usize,
    /// Read the thread-local variable also of processes that don't announce it.
    pub any_schema: bool,
    /// Use ptrace although eBPF may be there.
    pub without_ebpf: bool,
    /// Bytes of the ring that samples wait in, if not what a second takes.
    pub(crate) ring: Option<u32>,
}

impl Options {
    /// The defaults, for these targets.
    #[must_use]
    pub fn new(targets: Targets) -> Self {
        Self {
            targets,
            children: true,
            frequency: 99,
            user_stacks: true,
            kernel_stacks: true,
            max_record: record::RECOMMENDED_SIZE,
            any_schema: false,
            without_ebpf: false,
            ring: None,
        }
    }

    /// Nanoseconds between two looks at a processor. At most 100,000 looks a second, which the
    /// kernel would not go beyond either (`kernel.perf_event_max_sample_rate`).
    pub(crate) fn period(&self) -> u64 {
        1_000_000_000 / u64::from(self.frequency.clamp(1, 100_000))
    }
}
