//! The options for threads that wait.

use otelctx_profile::report::TimeKind;
use otelctx_profile::sample::{Event, Sample};
use otelctx_profile::{Kind, Profile};
use otelctx_sampler::{Method, Sampler};

use super::help;
use crate::error::Error;

/// Scans in a second unless another number is given; fewer where there are many threads.
const FREQUENCY: &str = "49";

/// The options for threads that wait.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = help::SAMPLING)]
pub(super) struct Wall {
    /// Also sample where threads wait, and how long they are ready without a CPU, HZ times a second and without stopping them;
    /// less often where there are more than some 200 threads [default: 49]
    #[arg(long, value_name = "HZ", num_args = 0..=1, require_equals = true, default_missing_value = FREQUENCY,
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    wall: Option<u32>,
    /// Sample waits alone, as --wall does
    #[arg(long)]
    wall_only: bool,
}

impl Wall {
    /// Returns how often in a second to scan for threads that wait, if they are asked for.
    pub(super) fn frequency(self) -> Option<u32> {
        let default = || FREQUENCY.parse().ok();
        self.wall.or_else(|| self.wall_only.then(default).flatten())
    }

    /// Returns what to sample for these kinds of time, or without any for all: waits if a kind is of time off
    /// the CPU, and nothing else if all are.
    pub(super) fn of_kinds(self, kinds: &[TimeKind]) -> Self {
        let is_off_cpu = |kind: &TimeKind| *kind != TimeKind::Running;
        let has_waits = kinds.iter().any(is_off_cpu);
        let default = || FREQUENCY.parse().ok().filter(|_| has_waits);
        Self {
            wall: self.frequency().or_else(default),
            wall_only: self.wall_only || has_waits && kinds.iter().all(is_off_cpu),
        }
    }

    /// The options of an agent: threads that run, and waits if there is a frequency for them.
    pub(super) fn of_agent(frequency: Option<u32>) -> Self {
        Self {
            wall: frequency,
            wall_only: false,
        }
    }

    /// Returns true if threads that run are sampled, too.
    pub(super) fn samples_cpu(self) -> bool {
        !self.wall_only
    }

    /// Checks that the sampler samples waits if they are asked for: with ptrace, it samples threads that run alone.
    pub(super) fn check(self, sampler: &Sampler) -> Result<(), Error> {
        match sampler.method() {
            Method::Ptrace(why) if self.frequency().is_some() && sampler.waits().is_none() => {
                Err(Error::WaitsWithPtrace(why.clone()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
impl Wall {
    /// The options of `--wall=HZ`.
    pub(super) fn every(frequency: u32) -> Self {
        Self {
            wall: Some(frequency),
            wall_only: false,
        }
    }
}

/// Returns the part of a sample from `start` on (`CLOCK_MONOTONIC`, in nanoseconds), if there is one: threads that wait are
/// scanned before the clocks start.
pub(super) fn in_time(start: u64, mut sample: Sample) -> Option<Sample> {
    if let Event::OffCpu(off) = &mut sample.event {
        off.nanoseconds = off.nanoseconds.min(sample.time.saturating_sub(start));
        return (off.nanoseconds > 0).then_some(sample);
    }
    Some(sample)
}

/// Returns true for a sample of a thread that ran, and false for one of a wait.
pub(super) fn is_on_cpu(sample: &Sample) -> bool {
    matches!(sample.event, Event::OnCpu)
}

/// Returns the number of samples of threads that ran.
pub(super) fn samples_on_cpu(profile: &Profile) -> usize {
    let groups = profile.groups().filter(|it| it.kind == Kind::OnCpu);
    groups.map(|it| it.samples.len()).sum()
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::{Catalog, Found, OffCpu, OffCpuState, ProcessFacts};

    use super::*;

    #[test]
    fn kinds_of_time_off_the_cpu_are_sampled_when_they_are_asked_for() {
        use TimeKind::{Queued, Running, Waiting};
        let of = |wall: Wall, kinds: &[TimeKind]| {
            let wall = wall.of_kinds(kinds);
            (wall.frequency(), wall.samples_cpu())
        };
        let none = Wall::default();
        assert_eq!(of(none, &[]), (None, true));
        assert_eq!(of(none, &[Running]), (None, true));
        assert_eq!(of(none, &[Waiting]), (Some(49), false));
        assert_eq!(of(none, &[Queued, Waiting]), (Some(49), false));
        assert_eq!(of(none, &[Running, Waiting]), (Some(49), true));
        assert_eq!(of(Wall::every(7), &[]), (Some(7), true));
        assert_eq!(of(Wall::every(7), &[Queued]), (Some(7), false));
        let only = Wall {
            wall: None,
            wall_only: true,
        };
        assert_eq!(of(only, &[]), (Some(49), false));
    }

    #[test]
    fn what_a_wait_took_before_the_start_is_left_out() {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let stack = catalog.stack(&[]);
        let thread = catalog.thread(process, 7, "worker");
        let sample = |time, event| Sample {
            time,
            cpu: 0,
            thread,
            event,
            found: Found::Detached,
            gil: None,
            user_stack: stack,
            stack_end: None,
            kernel_stack: stack,
        };
        let wait = |nanoseconds| {
            Event::OffCpu(OffCpu {
                state: OffCpuState::Asleep,
                nanoseconds,
                since: 3,
                reason: None,
            })
        };
        let left = |time, nanoseconds| {
            let left = in_time(1000, sample(time, wait(nanoseconds)))?;
            assert_eq!(left.time, time);
            match left.event {
                Event::OffCpu(off) => Some(off.nanoseconds),
                _ => None,
            }
        };
        assert_eq!(left(1500, 500), Some(500));
        assert_eq!(left(1500, 501), Some(500));
        assert_eq!(left(1500, 7), Some(7));
        assert_eq!(left(1000, 7), None);
        assert_eq!(left(900, 7), None);
        let running = sample(1500, Event::OnCpu);
        assert_eq!(in_time(1000, running), Some(running));
    }
}
