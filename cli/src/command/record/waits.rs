//! How long the threads of a recording ran, were queued and waited, and how they were scanned.

use otelctx_profile::report::TimeKind;
use otelctx_profile::sample::{Event, Found, OffCpuState, Sample};
use otelctx_profile::{Kind, Profile};
use otelctx_sampler::WaitFacts;
use serde::Serialize;

use crate::command::wall::Wall;
use crate::output::text::{count, grouped};

/// How threads were scanned for waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::command) struct Scans {
    /// The frequency that was asked for, in Hz.
    asked: u32,
    /// The counters. Frequency and threads are those of the time when the frequency was lowest.
    facts: WaitFacts,
}

impl Scans {
    /// Returns the scans that were asked for, before the first one; `None` if none were.
    pub(super) fn of(wall: Wall) -> Option<Self> {
        let facts = WaitFacts::default();
        wall.frequency().map(|asked| Self { asked, facts })
    }

    /// Takes over newer counters.
    pub(super) fn update(&mut self, mut facts: WaitFacts) {
        // 0 before the first scan.
        let lowest = self.facts.frequency;
        if facts.frequency == 0 || (1..facts.frequency).contains(&lowest) {
            (facts.frequency, facts.threads) = (lowest, self.facts.threads);
        }
        self.facts = facts;
    }
}

/// Formats that threads were scanned less often than was asked for, if they were.
pub(in crate::command) fn less_often(asked: u32, facts: &WaitFacts) -> Option<String> {
    let times = |number: u32| match number {
        1 => "once".to_owned(),
        _ => format!("{} times", grouped(number as usize)),
    };
    (1..asked).contains(&facts.frequency).then(|| {
        format!(
            "scanned {} {} a second, not {}",
            count(facts.threads as usize, "thread", "threads"),
            times(facts.frequency),
            grouped(asked as usize)
        )
    })
}

/// The waits of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub(super) scans: Scans,
    /// True if threads that run were sampled, too.
    pub(super) samples_cpu: bool,
    /// Samples of waits.
    pub(super) samples: usize,
    /// Times by state ([`OffCpuState::ALL`]), in nanoseconds.
    by_state: [u64; OffCpuState::ALL.len()],
    /// The time of waits with a trace context, without that of queued threads.
    with_context: u64,
    /// Number of samples of waits that the selection has left out.
    pub(super) not_selected: usize,
    /// True if time is kept in which threads were queued, and in which they waited.
    has_queued: bool,
    has_waiting: bool,
}

impl Waits {
    /// Creates an empty sum of the kinds of time that are kept; none for all.
    pub(super) fn new(scans: Scans, samples_cpu: bool, kinds: &[TimeKind]) -> Self {
        let has = |kind| kinds.is_empty() || kinds.contains(&kind);
        Self {
            scans,
            samples_cpu,
            samples: 0,
            by_state: Default::default(),
            with_context: 0,
            not_selected: 0,
            has_queued: has(TimeKind::Queued),
            has_waiting: has(TimeKind::Waiting),
        }
    }

    /// Adds the waits of a part of the recording.
    pub(super) fn add(&mut self, part: &Profile) {
        let groups = part.groups().filter(|it| it.kind == Kind::OffCpu);
        for sample in groups.flat_map(|it| it.samples) {
            self.add_sample(sample);
        }
    }

    fn add_sample(&mut self, sample: &Sample) {
        let Event::OffCpu(off) = sample.event else {
            return;
        };
        self.samples += 1;
        let states = OffCpuState::ALL.into_iter().zip(&mut self.by_state);
        for (_, time) in states.filter(|(state, _)| *state == off.state) {
            *time = time.saturating_add(off.nanoseconds);
        }
        let has_context = matches!(sample.found, Found::Attached(_));
        if has_context && off.state != OffCpuState::Queued {
            self.with_context = self.with_context.saturating_add(off.nanoseconds);
        }
    }

    fn time(&self, state: OffCpuState) -> u64 {
        let states = OffCpuState::ALL.into_iter().zip(self.by_state);
        let times = states.filter(|(it, _)| *it == state).map(|(_, time)| time);
        times.sum()
    }

    /// Formats a line about the time of threads, of the kinds that are kept. They ran for this many
    /// nanoseconds.
    pub(super) fn line(&self, running: u64) -> String {
        let seconds = |time: u64| format!("{:.1} s", time as f64 / 1e9);
        let queued = self.time(OffCpuState::Queued);
        let all = self
            .by_state
            .iter()
            .fold(0, |all: u64, it| all.saturating_add(*it));
        let waiting = || {
            let (time, with_context) = (seconds(all - queued), seconds(self.with_context));
            format!("{time} waiting ({with_context} of it with a trace context)")
        };
        let times = [
            self.samples_cpu
                .then(|| format!("{} running", seconds(running))),
            self.has_queued
                .then(|| format!("{} queued", seconds(queued))),
            self.has_waiting.then(waiting),
        ];
        let times: Vec<String> = times.into_iter().flatten().collect();
        let facts = &self.scans.facts;
        let less_often = less_often(self.scans.asked, facts);
        let less_often = less_often.map_or(String::new(), |it| format!("; {it}"));
        format!(
            "time of threads: {}; {} read, {} thrown away, {} lost{less_often}",
            times.join(", "),
            count(facts.read as usize, "wait", "waits"),
            grouped(facts.torn as usize),
            grouped(facts.lost as usize),
        )
    }

    pub(super) fn json(&self, running: u64) -> WaitsJson {
        let facts = &self.scans.facts;
        let waiting = |state| self.has_waiting.then(|| self.time(state));
        WaitsJson {
            samples: self.samples,
            not_selected: self.not_selected,
            running_ns: self.samples_cpu.then_some(running),
            queued_ns: self.has_queued.then(|| self.time(OffCpuState::Queued)),
            asleep_ns: waiting(OffCpuState::Asleep),
            disk_ns: waiting(OffCpuState::Disk),
            stopped_ns: waiting(OffCpuState::Stopped),
            with_context_ns: self.has_waiting.then_some(self.with_context),
            read: facts.read,
            thrown_away: facts.torn,
            lost: facts.lost,
            frequency: facts.frequency,
            frequency_asked: self.scans.asked,
            threads: facts.threads,
        }
    }
}

/// The JSON object of docs/json.md.
#[derive(Serialize)]
pub(super) struct WaitsJson {
    samples: usize,
    not_selected: usize,
    running_ns: Option<u64>,
    queued_ns: Option<u64>,
    asleep_ns: Option<u64>,
    disk_ns: Option<u64>,
    stopped_ns: Option<u64>,
    with_context_ns: Option<u64>,
    read: u64,
    thrown_away: u64,
    lost: u64,
    frequency: u32,
    frequency_asked: u32,
    threads: u64,
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::{Catalog, OffCpu, ProcessFacts};

    use super::*;

    fn facts(frequency: u32, threads: u64) -> WaitFacts {
        let mut facts = WaitFacts::default();
        (facts.frequency, facts.threads) = (frequency, threads);
        (facts.read, facts.torn, facts.lost) = (1234, 12, 3);
        facts
    }

    fn scans() -> Scans {
        Scans {
            asked: 49,
            facts: WaitFacts::default(),
        }
    }

    #[test]
    fn the_lowest_frequency_is_kept_and_the_newest_counters() {
        let mut scans = scans();
        scans.update(facts(0, 0));
        assert_eq!(less_often(49, &scans.facts), None, "before the first scan");
        scans.update(facts(7, 1400));
        // The program has ended.
        let mut last = facts(49, 0);
        last.read = 2000;
        scans.update(last);
        let said = "scanned 1,400 threads 7 times a second, not 49";
        assert_eq!(less_often(49, &scans.facts).as_deref(), Some(said));
        assert_eq!(scans.facts.read, 2000);
        scans.update(facts(1, 20_000));
        let said = "scanned 20,000 threads once a second, not 49";
        assert_eq!(less_often(49, &scans.facts).as_deref(), Some(said));
        assert_eq!(less_often(49, &facts(49, 20)), None);
    }

    #[test]
    fn times_are_added_up_by_state_and_waits_with_a_context_apart() {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let thread = catalog.thread(process, 7, "worker");
        let context = catalog.context(&Default::default());
        let stack = catalog.stack(&[]);
        let sample = |event, found| Sample {
            time: 9,
            cpu: 0,
            thread,
            event,
            found,
            gil: None,
            user_stack: stack,
            stack_end: None,
            kernel_stack: stack,
        };
        let off = |state, nanoseconds| {
            Event::OffCpu(OffCpu {
                state,
                nanoseconds,
                since: 0,
                reason: None,
            })
        };
        let attached = Found::Attached(context);
        let mut waits = Waits::new(scans(), true, &[]);
        waits.not_selected = 6;
        for (state, seconds, found) in [
            (OffCpuState::Queued, 1, attached),
            (OffCpuState::Asleep, 20, attached),
            (OffCpuState::Asleep, 10, Found::Detached),
            (OffCpuState::Disk, 5, attached),
            (OffCpuState::Stopped, 2, Found::NotPublished),
        ] {
            waits.add_sample(&sample(off(state, seconds * 1_000_000_000), found));
        }
        waits.add_sample(&sample(Event::OnCpu, attached));
        waits.scans.update(facts(7, 1400));
        let line = "1.0 s queued, 37.0 s waiting (25.0 s of it with a trace context); 1,234 waits read, 12 thrown \
            away, 3 lost; scanned 1,400 threads 7 times a second, not 49";
        assert_eq!(
            waits.line(4_800_000_000),
            format!("time of threads: 4.8 s running, {line}")
        );
        let expected = serde_json::json!({
            "samples": 5, "not_selected": 6, "running_ns": 4_800_000_000_u64, "queued_ns": 1_000_000_000, "asleep_ns": 30_000_000_000_u64,
            "disk_ns": 5_000_000_000_u64, "stopped_ns": 2_000_000_000, "with_context_ns": 25_000_000_000_u64,
            "read": 1234, "thrown_away": 12, "lost": 3, "frequency": 7, "frequency_asked": 49, "threads": 1400,
        });
        let json = |waits: &Waits| serde_json::to_value(waits.json(4_800_000_000)).unwrap();
        assert_eq!(json(&waits), expected);
        // Nothing is known of running threads.
        waits.samples_cpu = false;
        assert_eq!(waits.line(0), format!("time of threads: {line}"));
        assert_eq!(json(&waits)["running_ns"], serde_json::Value::Null);
    }

    #[test]
    fn times_of_kinds_that_are_not_kept_are_left_out() {
        use TimeKind::{Queued, Running, Waiting};
        let waiting = "0.0 s waiting (0.0 s of it with a trace context)";
        for (kinds, samples_cpu, times) in [
            (
                &[][..],
                true,
                format!("4.8 s running, 0.0 s queued, {waiting}"),
            ),
            (&[Running], true, "4.8 s running".to_owned()),
            (&[Queued], false, "0.0 s queued".to_owned()),
            (&[Waiting], false, waiting.to_owned()),
            (
                &[Running, Waiting],
                true,
                format!("4.8 s running, {waiting}"),
            ),
            (
                &[Queued, Waiting],
                false,
                format!("0.0 s queued, {waiting}"),
            ),
        ] {
            let waits = Waits::new(scans(), samples_cpu, kinds);
            let line = format!("time of threads: {times}; 0 waits read, 0 thrown away, 0 lost");
            assert_eq!(waits.line(4_800_000_000), line);
            let json = serde_json::to_value(waits.json(4_800_000_000)).unwrap();
            let has = |kind| kinds.is_empty() || kinds.contains(&kind);
            for (name, is_there) in [
                ("running_ns", samples_cpu),
                ("queued_ns", has(Queued)),
                ("asleep_ns", has(Waiting)),
                ("disk_ns", has(Waiting)),
                ("stopped_ns", has(Waiting)),
                ("with_context_ns", has(Waiting)),
            ] {
                assert_eq!(!json[name].is_null(), is_there, "{name} of {kinds:?}");
            }
        }
    }
}
