//! The interface: start, drain, stop.

use std::fmt;
use std::io;
use std::time::Duration;

use otelctx_reader as reader;
use otelctx_sample::{Catalog, Counts, ModuleFiles, Sample};

use crate::backend::Backend;
use crate::{
    Error, INTERVAL, IncompleteStacks, IncompleteSteps, Options, Refusal, Targets, Totals, ebpf,
    ptrace,
};

/// Time limit of the scan of one process if all processes are sampled: a process with millions of
/// mappings would delay the others by seconds.
const SCAN_TIMEOUT: Duration = Duration::from_millis(50);

/// How threads are sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// With an eBPF program.
    Ebpf,
    /// By stopping running threads with ptrace. eBPF is not available, for this reason.
    Ptrace(Refusal),
}

impl Method {
    /// Returns an error unless it is eBPF.
    ///
    /// # Errors
    /// The reason for ptrace.
    pub fn require_ebpf(&self) -> Result<(), &Refusal> {
        match self {
            Self::Ebpf => Ok(()),
            Self::Ptrace(why) => Err(why),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ebpf => f.write_str("eBPF"),
            Self::Ptrace(why) => write!(f, "ptrace ({why})"),
        }
    }
}

/// Samples threads until dropped.
pub struct Sampler {
    method: Method,
    backend: Box<dyn Backend>,
}

impl Sampler {
    /// Starts sampling. Raises the process's limits of descriptors and locked memory as far as permitted, and
    /// makes glibc return memory of 1 MiB and more when it is freed.
    ///
    /// # Errors
    /// If one of the requested processes cannot be sampled.
    pub fn start(options: &Options) -> Result<Self, Error> {
        raise_limits();
        return_large_memory();
        let mut reader_options = reader::Options::default();
        reader_options.max_record = options.max_record;
        reader_options.any_schema = options.any_schema;
        reader_options.runtimes = options.runtimes.clone();
        let scan_timeout = (options.targets == Targets::All).then_some(SCAN_TIMEOUT);
        let started = if options.without_ebpf {
            Err(Refusal::NotWanted)
        } else {
            ebpf::Recorder::start(options, reader_options.clone(), scan_timeout)?
        };
        Ok(match started {
            Ok(recorder) => Self {
                method: Method::Ebpf,
                backend: Box::new(recorder),
            },
            Err(refusal) => Self {
                method: Method::Ptrace(refusal),
                backend: Box::new(ptrace::Recorder::start(
                    options,
                    reader_options,
                    scan_timeout,
                )?),
            },
        })
    }

    /// The sampling method, and why it is not a better one.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Passes on the samples taken since the last call. Call it every [`INTERVAL`], always with the
    /// same catalog (announce a new one with [`Sampler::reset_catalog`]): if the buffer is full,
    /// samples are lost, and counted.
    pub fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut impl FnMut(Sample)) {
        self.backend.drain(catalog, on_sample);
    }

    /// Announces that the next call of [`Sampler::drain`] passes a new, empty catalog. Long
    /// recordings rotate their catalog to bound its memory.
    pub fn reset_catalog(&mut self) {
        self.backend.reset_catalog();
    }

    /// When sampling started, in nanoseconds of `CLOCK_MONOTONIC`: no sample is older.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.backend.started()
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.backend.counts()
    }

    /// The files of the sampled code, which are kept open: for resolving functions even if a file was
    /// deleted or replaced, or its process has ended.
    #[must_use]
    pub fn files(&self) -> ModuleFiles {
        self.backend.processes().files().clone()
    }

    /// Where the stacks of [`Counts::incomplete_stacks`] and [`Counts::truncated_stacks`] ended, most
    /// samples first.
    #[must_use]
    pub fn incomplete_stacks(&self) -> Vec<IncompleteStacks> {
        self.backend.incomplete_stacks()
    }

    /// Why samples lack what a runtime would add ([`Counts::incomplete_steps`]), most samples first.
    #[must_use]
    pub fn incomplete_steps(&self) -> Vec<IncompleteSteps> {
        self.backend.incomplete_steps()
    }

    /// Maximum number of frames that are kept of a user stack: 512; with eBPF 144 where the
    /// kernel refuses programs with loops (before Linux 5.17, on aarch64 before 6.0), and 127 if stacks are walked
    /// by frame pointers alone.
    #[must_use]
    pub fn max_frames(&self) -> usize {
        self.backend.max_frames()
    }

    /// How long to wait until the next [`drain`](Self::drain): [`INTERVAL`], or three times that while, for a
    /// second, no sampled process has started, ended or mapped code, and no runtime's functions, whose names may be
    /// gone soon, were sampled. Most of a recorder's CPU time is that of waking up.
    #[must_use]
    pub fn interval(&self) -> Duration {
        if self.backend.is_quiet() {
            3 * INTERVAL
        } else {
            INTERVAL
        }
    }

    /// Why the eBPF program keeps fewer frames of a user stack than 512, if it does: the kernel refuses programs with
    /// loops. See [`max_frames`](Self::max_frames).
    #[must_use]
    pub fn without_loops(&self) -> Option<&Refusal> {
        self.backend.without_loops()
    }

    /// Why the eBPF program walks user stacks by frame pointers alone, if it does: the kernel refuses the
    /// programs that unwind by tables.
    #[must_use]
    pub fn without_tables(&self) -> Option<&Refusal> {
        self.backend.without_tables()
    }

    /// Why the kernel does not report mappings to the eBPF recorder, if it does not. They are read from
    /// `/proc/PID/maps` then, without their times.
    #[must_use]
    pub fn without_reports(&self) -> Option<&io::Error> {
        self.backend.without_reports()
    }

    /// CPU time used by the eBPF program, and its number of runs, if the kernel counts them
    /// (`kernel.bpf_stats_enabled`). It runs at each sampling tick of a CPU that is not idle,
    /// whether or not a target is running there.
    #[must_use]
    pub fn kernel_time(&self) -> Option<(Duration, u64)> {
        self.backend.kernel_time()
    }

    /// Returns false once all requested processes have ended.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        self.backend.has_targets()
    }

    /// Stops sampling, passes on the remaining samples, and returns everything that was counted.
    pub fn stop(mut self, catalog: &mut Catalog, on_sample: &mut impl FnMut(Sample)) -> Totals {
        self.backend.stop();
        self.drain(catalog, on_sample);
        Totals {
            counts: self.counts(),
            incomplete_stacks: self.incomplete_stacks(),
            incomplete_steps: self.incomplete_steps(),
        }
    }
}

/// Raises limits: before Linux 5.11, maps count as locked memory, and each process that is read
/// takes descriptors.
pub(crate) fn raise_limits() {
    let mut files = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let unlimited = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: both structures are valid during the calls. If a limit cannot be raised, what needs
    // it fails with an error.
    unsafe {
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited);
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
            files.rlim_cur = files.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
        }
    }
}

/// Makes the C library give back large memory that is freed, such as the unwind tables of large files and
/// parts of recordings. By itself, it raises the size of what it gives back to what was freed last, up to
/// 32 MiB, and then keeps as much for each thread (mallopt(3), `M_MMAP_THRESHOLD`).
fn return_large_memory() {
    /// In bytes.
    #[cfg(target_env = "gnu")]
    const LARGE: libc::c_int = 1 << 20;
    // SAFETY: mallopt(3) takes any numbers; one that it does not know has no effect.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
