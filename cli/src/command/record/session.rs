//! Runs a recording from start to end.

use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use otelctx_profile::sample::{Catalog, Counts, ModuleFiles, Sample};
use otelctx_profile::{Clock, Spool};
use otelctx_sampler::{
    IncompleteStacks, IncompleteSteps, Method, Options, Sampler, Targets, calendar_time, monotonic,
};

use super::progress::Progress;
use super::waits::Scans;
use crate::command::filter;
use crate::command::limits::limits;
use crate::command::wall::{Wall, in_time};
use crate::error::Error;
use crate::output::terminal;
use crate::{Setup, interrupt};

/// The targets and the method of a recording.
#[derive(Debug)]
pub(in crate::command) struct Plan {
    pub(in crate::command) targets: Targets,
    /// The targets that were given by their ID: the others may end before sampling starts.
    pub(in crate::command) given: Vec<i32>,
    pub(in crate::command) older_children: Option<Vec<i32>>,
    /// True if the target is a command that is about to start.
    pub(in crate::command) is_command: bool,
    /// See [`Options::code_files`].
    pub(in crate::command) code_files: Vec<PathBuf>,
    /// Sampling frequency per CPU, in Hz.
    pub(in crate::command) frequency: u32,
    /// The frequency to use with ptrace, where each sample stops a thread.
    pub(in crate::command) ptrace_frequency: u32,
    /// Whether to sample threads that wait.
    pub(in crate::command) wall: Wall,
    /// True to use ptrace even where eBPF is permitted.
    pub(in crate::command) without_ebpf: bool,
    pub(in crate::command) setup: Setup,
    /// `None` if something else ends the recording.
    pub(in crate::command) duration: Option<Duration>,
    /// True to show the progress on a terminal.
    pub(in crate::command) shows_progress: bool,
}

/// Takes the samples of a recording while it runs.
pub(in crate::command) trait Store {
    fn push(&mut self, sample: &Sample);

    /// Called when all samples until `now.clock.end` were added. Returns true if the catalog is empty now.
    fn update(&mut self, catalog: &mut Catalog, now: &Now) -> io::Result<bool>;

    /// Called after each update. Returns another sampling frequency per CPU, in Hz, if there should be one.
    fn new_frequency(&mut self, _: &Sampler) -> Option<u32> {
        None
    }

    /// Called if the sampler has taken over such a frequency: samples since `time` stand for this period.
    fn period_changed(&mut self, _time: u64, _period: NonZeroU64) {}
}

/// The state of a recording.
#[derive(Clone, Copy, Debug)]
pub(in crate::command) struct Now {
    pub(in crate::command) clock: Clock,
    pub(in crate::command) period: NonZeroU64,
    pub(in crate::command) counts: Counts,
}

impl Store for Spool {
    fn push(&mut self, sample: &Sample) {
        self.push(sample);
    }

    fn update(&mut self, catalog: &mut Catalog, _: &Now) -> io::Result<bool> {
        self.write(catalog)
    }
}

pub(in crate::command) struct Session {
    sampler: Sampler,
    /// `ebpf` or `ptrace`.
    pub(in crate::command) method: &'static str,
    /// The sampling period, in nanoseconds.
    pub(in crate::command) period: NonZeroU64,
    /// The scans for waits, if they were asked for.
    scans: Option<Scans>,
    duration: Option<Duration>,
    shows_progress: bool,
    /// The time at which it started: `CLOCK_MONOTONIC` in nanoseconds, and since the Unix epoch.
    start: u64,
    start_unix: u64,
}

impl Session {
    /// Starts sampling, and warns if threads must be stopped for it.
    pub(in crate::command) fn start(plan: Plan) -> Result<Self, Error> {
        let mut options = Options::new(plan.targets);
        options.older_children = plan.older_children;
        options.frequency = plan.frequency;
        options.without_ebpf = plan.without_ebpf;
        options.wall_frequency = plan.wall.frequency();
        options.on_cpu = plan.wall.samples_cpu();
        options.runtimes = plan.setup.runtimes;
        options.before_exec = plan.is_command;
        options.code_files = plan.code_files;
        options.kernel_object = plan.setup.kernel_object;
        let mut sampler = filter::start(&mut options, &plan.given)?;
        plan.wall.check(&sampler)?;
        for limit in limits(&sampler) {
            terminal::complain(&limit, None);
        }
        let is_stopping = matches!(sampler.method(), Method::Ptrace(_));
        if is_stopping && plan.ptrace_frequency != options.frequency {
            drop(sampler);
            options.frequency = plan.ptrace_frequency;
            options.without_ebpf = true;
            sampler = filter::start(&mut options, &plan.given)?;
        }
        let period = options.period();
        let start = sampler.started();
        Ok(Self {
            sampler,
            method: if is_stopping { "ptrace" } else { "ebpf" },
            period: NonZeroU64::new(period).unwrap_or(NonZeroU64::MIN),
            scans: Scans::of(plan.wall),
            duration: plan.duration,
            shows_progress: plan.shows_progress,
            start,
            start_unix: calendar_time(start),
        })
    }

    /// Returns the time at which sampling started (`CLOCK_MONOTONIC`, nanoseconds).
    pub(in crate::command) fn start_time(&self) -> u64 {
        self.start
    }

    /// Returns the files of the sampled code.
    pub(in crate::command) fn files(&self) -> ModuleFiles {
        self.sampler.files()
    }

    /// Samples until `has_ended` returns true, the duration has passed, a signal arrives, or
    /// samples cannot be stored any more.
    pub(in crate::command) fn run(
        mut self,
        store: &mut impl Store,
        has_ended: impl Fn(&Sampler) -> bool,
    ) -> Recorded {
        let mut catalog = Catalog::new();
        let mut failure = None;
        let since = Duration::from_nanos(monotonic().saturating_sub(self.start));
        let left = self.duration.map(|it| it.saturating_sub(since));
        let deadline = left.map(|left| Instant::now() + left);
        let mut progress = Progress::new(self.duration);
        loop {
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || interrupt::is_caught() {
                break;
            }
            let interval = self.sampler.interval();
            interrupt::sleep(left.map_or(interval, |left| left.min(interval)));
            let clock = self.clock(monotonic());
            let start = self.start;
            let mut push = |sample| in_time(start, sample).iter().for_each(|it| store.push(it));
            self.sampler.drain(&mut catalog, &mut push);
            let now = Now {
                clock,
                period: self.period,
                counts: self.sampler.counts(),
            };
            match store.update(&mut catalog, &now) {
                Ok(false) => {}
                Ok(true) => self.sampler.reset_catalog(),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
            self.change_frequency(store);
            self.count_scans();
            if self.shows_progress {
                progress.show(&now.counts);
            }
            if has_ended(&self.sampler) {
                break;
            }
        }
        progress.clear();
        self.count_scans();
        let files = self.sampler.files();
        let begun = self.start;
        let mut push = |sample| in_time(begun, sample).iter().for_each(|it| store.push(it));
        let (start, period) = (self.clock(self.start), self.period);
        let totals = self.sampler.stop(&mut catalog, &mut push);
        Recorded {
            catalog,
            now: Now {
                clock: Clock {
                    end: monotonic(),
                    ..start
                },
                period,
                counts: totals.counts,
            },
            files,
            incomplete_stacks: totals.incomplete_stacks,
            incomplete_steps: totals.incomplete_steps,
            scans: self.scans,
            failure,
        }
    }

    /// Samples with another frequency, if the store wants one and the method permits it.
    fn change_frequency(&mut self, store: &mut impl Store) {
        if let Some(frequency) = store.new_frequency(&self.sampler)
            && let Some(period) = self
                .sampler
                .set_frequency(frequency)
                .and_then(NonZeroU64::new)
        {
            self.period = period;
            store.period_changed(monotonic(), period);
        }
    }

    fn clock(&self, end: u64) -> Clock {
        Clock {
            start: self.start,
            end,
            start_unix: self.start_unix,
        }
    }

    fn count_scans(&mut self) {
        if let Some((scans, facts)) = self.scans.as_mut().zip(self.sampler.waits()) {
            scans.update(facts);
        }
    }
}

/// A recording that has ended. The store has its samples.
pub(in crate::command) struct Recorded {
    /// The catalog of the last samples.
    pub(in crate::command) catalog: Catalog,
    pub(in crate::command) now: Now,
    pub(in crate::command) files: ModuleFiles,
    /// The ends of stacks that do not reach the start of their thread.
    pub(in crate::command) incomplete_stacks: Vec<IncompleteStacks>,
    /// The reasons why samples lack the parts of runtimes.
    pub(in crate::command) incomplete_steps: Vec<IncompleteSteps>,
    /// The scans for waits, if they were asked for.
    pub(in crate::command) scans: Option<Scans>,
    /// The error that ended the recording early, if one did.
    pub(in crate::command) failure: Option<io::Error>,
}
