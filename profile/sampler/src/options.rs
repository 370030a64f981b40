//! Options for sampling.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use otelctx_reader::runtime::Runtimes;
use otelctx_sample::format::record;

/// The sampled processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Every process of the machine, including ones that start later.
    All,
    /// These processes, and those they start if [`Options::children`] is set.
    Processes(Vec<i32>),
}

/// How threads off the CPU are scanned, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WaitMethod {
    /// An eBPF program visits the threads of each process: Linux 6.1.
    #[default]
    ByProcess,
    /// An eBPF program visits all threads of the machine: Linux 5.18.
    AllThreads,
    /// An eBPF program visits all threads of the machine before and after the recorder has read their memory: Linux 5.10.
    TwoWalks,
    /// The files of each thread in `/proc` are read, without eBPF.
    Files,
}

/// Options for sampling.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The processes to sample.
    pub targets: Targets,
    /// Also sample processes that a target starts, if they are in the recorder's PID namespace.
    /// Default: true. With ptrace they are found within 250 ms; shorter-lived ones are missed.
    pub children: bool,
    /// The children that the targets had when the targets were chosen, and theirs. Each other child that is there when sampling
    /// starts was started meanwhile, and is sampled if [`Options::children`] is set. Default: all that are there.
    pub older_children: Option<Vec<i32>>,
    /// Sampling frequency per CPU, in Hz. Default: 99, not in lockstep with work at 100 Hz.
    pub frequency: u32,
    /// Sample threads that run. Default: true.
    pub on_cpu: bool,
    /// Also scan threads that are off the CPU, this often in a second at most: see [`WaitMethod`]. Default: not at all.
    pub wall_frequency: Option<u32>,
    /// Record the user-space stack. Default: true.
    pub user_stacks: bool,
    /// Record the kernel stack. Default: true.
    pub kernel_stacks: bool,
    /// Maximum number of bytes to read of a record; clamped to 28 (its header) to 4096. Default:
    /// 640, the maximum that OTEP 4947 recommends to publishers.
    pub max_record: usize,
    /// Read thread contexts even if the announced schema is missing or unknown.
    pub any_schema: bool,
    /// Files whose code the targets will run: a program that is about to start, and its libraries. Before sampling starts,
    /// the unwind tables of these and of all running targets are read, for at most [`Self::MAX_READ_AHEAD`]: the stacks of
    /// other code are incomplete until its tables are ready.
    pub code_files: Vec<PathBuf>,
    /// Use ptrace even where eBPF is available.
    pub without_ebpf: bool,
    /// The language runtimes to read in addition to native contexts. None by default. With eBPF,
    /// each needs its step in [`Self::kernel_object`].
    pub runtimes: Runtimes,
    /// The targets are about to execute the programs to sample. What they run before that is left out, and the eBPF programs
    /// of all runtimes are loaded at the start, in some tenths of a second: else, a program's first samples would lack its
    /// runtime's part. Default: false.
    pub before_exec: bool,
    /// The kernel programs with the steps of these runtimes: this crate's have none. With eBPF, a
    /// runtime without its step adds nothing: see [`IncompleteSteps`](crate::IncompleteSteps).
    pub kernel_object: Option<KernelObject>,
    /// Scan threads off the CPU by this method, as where no better one is available: for tests.
    #[doc(hidden)]
    pub wait_method: Option<WaitMethod>,
    /// Size of each CPU's ring of samples, in bytes. Default: enough for one second.
    pub(crate) ring: Option<u64>,
    /// Pass samples through the kernel's ring buffer.
    pub(crate) without_rings: bool,
    /// Unwind as before Linux 5.17, by programs that call each other.
    pub(crate) without_loops: bool,
    /// Unwind as before Linux 6.1, with the mappings that the recorder has passed on alone.
    pub(crate) without_mappings: bool,
    /// Make no rows of unwind tables, as while they are not ready.
    pub(crate) holds_rows: bool,
    /// Do not walk stacks again whose unwind tables were not ready: for tests, which begin when these are.
    #[doc(hidden)]
    pub without_second_walk: bool,
    /// MiB of rows of unwind tables to keep for files that no process has mapped. Default: 24.
    pub(crate) kept_rows: Option<u32>,
    /// Maximum MiB of rows of unwind tables. Default: 48.
    pub(crate) max_rows: Option<u32>,
    /// Maximum number of executable mappings, and one for each process. Default: 32,768.
    pub(crate) max_mappings: Option<u32>,
}

/// An ELF object with the sampler's kernel programs and steps of runtimes, for this architecture
/// and from this version's sources (the folder `bpf` of this crate). Aligned to 8 bytes, as by
/// [`kernel_object`](crate::kernel_object).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KernelObject(pub &'static [u8]);

/// Embeds a [`KernelObject`]. The path is relative to the calling file, as for [`include_bytes`].
#[macro_export]
macro_rules! kernel_object {
    ($path:expr $(,)?) => {{
        #[repr(C, align(8))]
        struct Aligned<T: ?Sized>(T);
        static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!($path));
        $crate::KernelObject(&OBJECT.0)
    }};
}

impl fmt::Debug for KernelObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelObject({} bytes)", self.0.len())
    }
}

impl Options {
    /// How long sampling waits for unwind tables before it starts. Those of the largest programs take 100 ms, those of all
    /// programs of a machine that is not busy a second.
    pub const MAX_READ_AHEAD: Duration = Duration::from_secs(2);

    /// Creates the default options for these targets.
    #[must_use]
    pub fn new(targets: Targets) -> Self {
        Self {
            targets,
            children: true,
            older_children: None,
            frequency: 99,
            on_cpu: true,
            wall_frequency: None,
            user_stacks: true,
            kernel_stacks: true,
            max_record: record::RECOMMENDED_SIZE,
            any_schema: false,
            code_files: Vec::new(),
            without_ebpf: false,
            runtimes: Runtimes::default(),
            before_exec: false,
            kernel_object: None,
            wait_method: None,
            ring: None,
            without_rings: false,
            without_loops: false,
            without_mappings: false,
            holds_rows: false,
            without_second_walk: false,
            kept_rows: None,
            max_rows: None,
            max_mappings: None,
        }
    }

    /// Returns true if a child of a target that is there when sampling starts was started since the targets were chosen.
    /// This process is none of them.
    pub(crate) fn is_new_child(&self, pid: i32) -> bool {
        let older = self.older_children.as_ref().filter(|_| self.children);
        pid != std::process::id() as i32 && older.is_some_and(|older| !older.contains(&pid))
    }

    /// Returns the sampling period in nanoseconds. The frequency is capped at 100 kHz, the kernel's
    /// default limit (`kernel.perf_event_max_sample_rate`).
    pub fn period(&self) -> u64 {
        period(self.frequency)
    }
}

/// Returns the period of a frequency, in nanoseconds.
pub(crate) fn period(frequency: u32) -> u64 {
    1_000_000_000 / u64::from(frequency.clamp(1, 100_000))
}
