//! The interface: start, drain, stop.

use std::fmt;
use std::io;
use std::time::Duration;

use otelctx_reader as reader;
use otelctx_sample::{Catalog, Counts, ModuleFiles, Sample};

use crate::backend::Backend;
use crate::options::period;
use crate::{
    Error, INTERVAL, IncompleteStacks, IncompleteSteps, Options, Refusal, Targets, Totals,
    WaitFacts, ebpf, ptrace,
};

/// Time limit for scanning one of all processes: millions of mappings would delay the others.
const SCAN_TIMEOUT: Duration = Duration::from_millis(50);

/// The sampling method.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// An eBPF program.
    Ebpf,
    /// Stopping running threads with ptrace. eBPF is not available, for this reason.
    Ptrace(Refusal),
}

impl Method {
    /// Checks that the method is eBPF.
    ///
    /// # Errors
    /// Returns the reason for ptrace.
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
    /// Starts sampling. Raises the process's limits of descriptors and locked memory as far as
    /// permitted, and makes glibc return memory of 1 MiB and more when it is freed.
    ///
    /// # Errors
    /// Fails if one of the requested processes cannot be sampled.
    pub fn start(options: &Options) -> Result<Self, Error> {
        raise_limits();
        return_large_memory();
        let mut reader_options = reader::Options::default();
        reader_options.max_record = options.max_record;
        reader_options.any_schema = options.any_schema;
        reader_options.runtimes = options.runtimes.clone();
        let scan_timeout = (options.targets == Targets::All).then_some(SCAN_TIMEOUT);
        let started = if options.without_ebpf {
            Err(Refusal::Disabled)
        } else {
            ebpf::Recorder::start(options, reader_options.clone(), scan_timeout)?
        };
        Ok(match started {
            Ok(recorder) => Self {
                method: Method::Ebpf,
                backend: Box::new(recorder),
            },
            Err(refusal) => {
                let recorder = ptrace::Recorder::start(options, reader_options, scan_timeout)?;
                Self {
                    method: Method::Ptrace(refusal),
                    backend: Box::new(recorder),
                }
            }
        })
    }

    /// Returns the sampling method, and why it is not a better one.
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
        self.backend.processes_mut().reset_catalog();
    }

    /// Changes the sampling frequency per CPU, in Hz. With eBPF, returns the new period, in nanoseconds: each sample of a thread
    /// that runs, and that is taken after this call has returned, stands for it: the next tick of a CPU is a whole new period
    /// after the change. The buffers stay as large as [`Options::frequency`] needs them. With ptrace, returns `None`, and
    /// nothing changes.
    pub fn set_frequency(&mut self, frequency: u32) -> Option<u64> {
        let period = period(frequency);
        self.backend.set_period(period).then_some(period)
    }

    /// Returns the start of sampling, in nanoseconds of `CLOCK_MONOTONIC`: no sample is older.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.backend.started()
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.backend.processes().counts()
    }

    /// Returns the files of the sampled code, which are kept open: for resolving functions even if
    /// a file was deleted or replaced, or its process has ended.
    #[must_use]
    pub fn files(&self) -> ModuleFiles {
        self.backend.processes().files().clone()
    }

    /// Returns where the stacks of [`Counts::incomplete_stacks`] and [`Counts::truncated_stacks`]
    /// ended, most samples first.
    #[must_use]
    pub fn incomplete_stacks(&self) -> Vec<IncompleteStacks> {
        self.backend.processes().tally.incomplete_stacks.sorted()
    }

    /// Returns the reasons for [`Counts::incomplete_steps`], most samples first.
    #[must_use]
    pub fn incomplete_steps(&self) -> Vec<IncompleteSteps> {
        self.backend.processes().tally.incomplete_steps.sorted()
    }

    /// Returns the maximum number of frames kept of a user stack: 512; with eBPF 144 where the
    /// kernel refuses programs with loops (before Linux 5.17, on aarch64 before 6.0), and 127 if
    /// stacks are walked by frame pointers alone.
    #[must_use]
    pub fn max_frames(&self) -> usize {
        self.backend.max_frames()
    }

    /// Returns how threads off the CPU are scanned, if [`Options::wall_frequency`] asks for it.
    #[must_use]
    pub fn waits(&self) -> Option<WaitFacts> {
        self.backend.waits()
    }

    /// Returns how long to wait until the next [`drain`](Self::drain): [`INTERVAL`], or three times
    /// that if, for a second, no sampled process has started, ended or mapped code, and no
    /// runtime's functions, whose names may be gone soon, were sampled. Waking up takes most of a
    /// recorder's CPU time.
    #[must_use]
    pub fn interval(&self) -> Duration {
        if self.backend.is_quiet() {
            3 * INTERVAL
        } else {
            INTERVAL
        }
    }

    /// Returns why the kernel refuses eBPF programs with loops, if it does: then
    /// [`max_frames`](Self::max_frames) is less than 512.
    #[must_use]
    pub fn without_loops(&self) -> Option<&Refusal> {
        self.backend.without_loops()
    }

    /// Returns why the kernel refuses the eBPF programs that unwind by tables, if it does: then
    /// user stacks are walked by frame pointers alone.
    #[must_use]
    pub fn without_tables(&self) -> Option<&Refusal> {
        self.backend.without_tables()
    }

    /// Returns why the kernel does not report mappings to the eBPF recorder, if it does not: then
    /// they are read from `/proc/PID/maps`, without their times.
    #[must_use]
    pub fn without_reports(&self) -> Option<&io::Error> {
        self.backend.without_reports()
    }

    /// Returns the CPU time used by the eBPF program, and its number of runs, if the kernel counts
    /// them (`kernel.bpf_stats_enabled`). It runs at each tick of a CPU that is not idle.
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
            waits: self.waits(),
        }
    }
}

/// Raises limits as far as permitted: before Linux 5.11, maps count as locked memory, and each
/// process that is read takes descriptors.
pub(crate) fn raise_limits() {
    let mut files = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let unlimited = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: this function owns the structure, which outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };
    // SAFETY: as above.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) } == 0 {
        files.rlim_cur = files.rlim_max;
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files) };
    }
}

/// Makes glibc return freed memory of 1 MiB and more, such as unwind tables of large files. By
/// default, freeing large memory raises this threshold, up to 32 MiB, and each thread keeps as much
/// (mallopt(3), `M_MMAP_THRESHOLD`).
fn return_large_memory() {
    // SAFETY: mallopt(3) takes any numbers; an unknown one has no effect.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}
