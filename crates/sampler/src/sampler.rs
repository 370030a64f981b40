//! The interface: start, drain, stop.

use std::fmt;
use std::time::Duration;

use otelctx_reader as reader;
use otelctx_sample::{Catalog, Counts, Sample};

use crate::{Error, Options, Refusal, Targets, ebpf, ptrace};

/// How often to call [`Sampler::drain`].
pub const INTERVAL: Duration = Duration::from_millis(20);

/// How long a look at one process may take where all are looked at: one with millions of mappings
/// would delay the others by seconds.
const PATIENCE: Duration = Duration::from_millis(50);

/// How threads are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// By a program in the kernel.
    Ebpf,
    /// By stopping those that run, because the kernel does not let us do the former.
    Ptrace(Refusal),
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ebpf => f.write_str("eBPF"),
            Self::Ptrace(why) => write!(f, "ptrace ({why})"),
        }
    }
}

/// Looks at threads until it is dropped.
pub struct Sampler {
    method: Method,
    recorder: Recorder,
}

enum Recorder {
    Ebpf(Box<ebpf::Recorder>),
    Ptrace(Box<ptrace::Recorder>),
}

impl Sampler {
    /// Looks at what is there and starts.
    ///
    /// # Errors
    /// When a process that was asked for can't be looked at.
    pub fn start(options: &Options) -> Result<Self, Error> {
        let mut reader_options = reader::Options::default();
        reader_options.max_record = options.max_record;
        reader_options.any_schema = options.any_schema;
        let patience = (options.targets == Targets::All).then_some(PATIENCE);
        let refusal = if options.without_ebpf {
            Refusal::NotWanted
        } else {
            match ebpf::Recorder::start(options, reader_options.clone(), patience)? {
                Ok(recorder) => {
                    return Ok(Self {
                        method: Method::Ebpf,
                        recorder: Recorder::Ebpf(Box::new(recorder)),
                    });
                }
                Err(refusal) => refusal,
            }
        };
        Ok(Self {
            method: Method::Ptrace(refusal),
            recorder: Recorder::Ptrace(Box::new(ptrace::Recorder::start(
                options,
                reader_options,
                patience,
            )?)),
        })
    }

    /// How it looks, and why not otherwise.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Passes on the samples that have come since the last time. To be called every [`INTERVAL`],
    /// always with the same catalog ([`Sampler::start_over`] tells of another): what waits for long
    /// gets lost, and is counted then.
    pub fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut impl FnMut(Sample)) {
        match &mut self.recorder {
            Recorder::Ebpf(recorder) => recorder.drain(catalog, on_sample),
            Recorder::Ptrace(recorder) => recorder.drain(catalog, on_sample),
        }
    }

    /// The next call of [`Sampler::drain`] comes with a new catalog: what was told to the one
    /// before is told again. For those who look for so long that a catalog would get too large.
    pub fn start_over(&mut self) {
        match &mut self.recorder {
            Recorder::Ebpf(recorder) => recorder.start_over(),
            Recorder::Ptrace(recorder) => recorder.start_over(),
        }
    }

    /// What came of the looks so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        match &self.recorder {
            Recorder::Ebpf(recorder) => recorder.counts(),
            Recorder::Ptrace(recorder) => recorder.counts(),
        }
    }

    /// Time that the program in the kernel has taken so far, and how often it ran, if the kernel
    /// counts (`kernel.bpf_stats_enabled`). It runs at each tick of a processor that is not idle,
    /// whether that meets a target or not.
    #[must_use]
    pub fn kernel_time(&self) -> Option<(Duration, u64)> {
        match &self.recorder {
            Recorder::Ebpf(recorder) => recorder.kernel_time(),
            Recorder::Ptrace(_) => None,
        }
    }

    /// Whether there is anything left to look at: false once all processes have ended that were
    /// asked for.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        match &self.recorder {
            Recorder::Ebpf(recorder) => recorder.has_targets(),
            Recorder::Ptrace(recorder) => recorder.has_targets(),
        }
    }

    /// Ends looking, passes on what is left, and returns the counts.
    pub fn stop(mut self, catalog: &mut Catalog, on_sample: &mut impl FnMut(Sample)) -> Counts {
        match &mut self.recorder {
            Recorder::Ebpf(recorder) => recorder.stop(),
            Recorder::Ptrace(recorder) => recorder.stop(),
        }
        self.drain(catalog, on_sample);
        self.counts()
    }
}
