//! What the agent says of itself: metrics in Prometheus's text format, and health.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::unistd::{SysconfVar, sysconf};
use otelctx_agent::{Counts as QueueCounts, DropReason, Liveness, Queue, Volume};
use otelctx_profile::sample::Counts;
use serde::Serialize;

use super::batches::Progress;

/// The time after which a thread that does nothing has stalled. A recorder passes on samples several times in a second.
const STALLED: Duration = Duration::from_secs(30);

/// What the threads of the agent have done.
#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) method: &'static str,
    pub(super) queue: Queue,
    pub(super) progress: Arc<Progress>,
    /// Sampling frequency per CPU, in Hz.
    pub(super) frequency: AtomicU64,
    /// The other threads, by name.
    pub(super) threads: [(&'static str, Liveness); 3],
    recorder: Mutex<Recorder>,
}

#[derive(Clone, Copy, Debug)]
struct Recorder {
    counts: Counts,
    updated: Instant,
}

/// The answer to a probe; one line of JSON.
#[derive(Debug, Serialize)]
pub(super) struct Health {
    /// `ok`, or the thread that has stalled or ended: `recorder`, `encoder`, `resolver` or `sender`.
    pub(super) status: &'static str,
    queued_messages: u64,
    sent_messages: u64,
    dropped_messages: u64,
    /// Seconds since the collector accepted a message; null before the first one.
    seconds_since_sent: Option<u64>,
}

impl Monitor {
    pub(super) fn new(
        method: &'static str,
        queue: Queue,
        progress: Arc<Progress>,
        frequency: u32,
        threads: [(&'static str, Liveness); 3],
    ) -> Self {
        Self {
            method,
            queue,
            progress,
            frequency: AtomicU64::new(frequency.into()),
            threads,
            recorder: Mutex::new(Recorder {
                counts: Counts::default(),
                updated: Instant::now(),
            }),
        }
    }

    /// Notes that the recorder has passed on samples, and its counters.
    pub(super) fn update(&self, counts: Counts) {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        *recorder = Recorder {
            counts,
            updated: Instant::now(),
        };
    }

    fn recorder(&self) -> Recorder {
        *self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether all threads work. A collector that is away is no fault of the agent.
    pub(super) fn health(&self) -> Health {
        let counts = self.queue.counts();
        let ended = self.threads.iter().find(|(_, it)| !it.is_alive());
        let status = if let Some((name, _)) = ended {
            name
        } else if self.recorder().updated.elapsed() > STALLED {
            "recorder"
        } else if self.progress.has_stalled() {
            "encoder"
        } else {
            "ok"
        };
        let since = counts.last_sent.and_then(|it| it.elapsed().ok());
        Health {
            status,
            queued_messages: counts.queued.messages,
            sent_messages: counts.sent.messages,
            dropped_messages: counts.all_dropped().messages,
            seconds_since_sent: since.map(|it| it.as_secs()),
        }
    }

    /// Returns all metrics in Prometheus's text format (version 0.0.4).
    pub(super) fn metrics(&self) -> String {
        let queue = self.queue.counts();
        let mut text = Text::default();
        let version = env!("CARGO_PKG_VERSION");
        let info = format!("{{version=\"{version}\",method=\"{}\"}}", self.method);
        text.family(
            "agent_info",
            "gauge",
            "The agent's version, and how it samples.",
            &[(info, 1)],
        );
        self.add_counters(&mut text, &queue);
        self.add_drops(&mut text, &queue);
        self.add_gauges(&mut text, &queue);
        text.0 + &process_metrics()
    }

    fn add_counters(&self, text: &mut Text, queue: &QueueCounts) {
        let recorder = self.recorder();
        let progress = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let one = |value| [(String::new(), value)];
        let mut counter = |name, help, value| text.family(name, "counter", help, &one(value));
        counter(
            "samples_recorded_total",
            "Samples that were taken and passed on.",
            progress(&self.progress.samples),
        );
        counter(
            "samples_lost_total",
            "Samples that the kernel had no room for, or that were not taken in time.",
            recorder.counts.lost,
        );
        counter(
            "samples_excluded_total",
            "Samples of processes that are not to be recorded.",
            progress(&self.progress.excluded),
        );
        counter(
            "samples_sent_total",
            "Samples that the collector accepted.",
            queue.sent.samples,
        );
        counter(
            "messages_sent_total",
            "Messages that the collector accepted.",
            queue.sent.messages,
        );
        counter(
            "sent_bytes_total",
            "Size of accepted messages before compression.",
            queue.sent.bytes,
        );
        counter(
            "profiles_rejected_total",
            "Profiles that the collector rejected in messages that it accepted.",
            queue.rejected_profiles,
        );
        counter(
            "retries_total",
            "Attempts to send that failed and were to be repeated.",
            queue.retries,
        );
        counter(
            "values_limited_total",
            "Values of attributes of samples that became (other).",
            progress(&self.progress.limited_values),
        );
        counter(
            "attributes_limited_total",
            "Attributes of samples that were left out, because there are too many names.",
            progress(&self.progress.limited_attributes),
        );
        counter(
            "parquet_samples_discarded_total",
            "Samples that are in no Parquet file, because none could be written.",
            progress(&self.progress.without_table),
        );
    }

    fn add_drops(&self, text: &mut Text, queue: &QueueCounts) {
        let overload = self.progress.dropped.load(Ordering::Relaxed);
        let dropped = |of: fn(Volume) -> u64| {
            DropReason::ALL.map(|reason| (label(reason.name()), of(queue.dropped(reason))))
        };
        let mut samples = dropped(|it| it.samples).to_vec();
        samples.push((label("overload"), overload));
        let help = "Samples that were dropped, by reason.";
        text.family("samples_dropped_total", "counter", help, &samples);
        let help = "Messages that were dropped, by reason.";
        let messages = dropped(|it| it.messages);
        text.family("messages_dropped_total", "counter", help, &messages);
    }

    fn add_gauges(&self, text: &mut Text, queue: &QueueCounts) {
        let one = |value| [(String::new(), value)];
        let mut gauge = |name, help, value| text.family(name, "gauge", help, &one(value));
        let waiting = queue.queued;
        gauge(
            "queue_messages",
            "Messages that wait to be sent.",
            waiting.messages,
        );
        gauge("queue_samples", "Samples in them.", waiting.samples);
        gauge(
            "queue_bytes",
            "Their size before compression.",
            waiting.bytes,
        );
        gauge(
            "frequency_hertz",
            "Sampling frequency per CPU.",
            self.frequency.load(Ordering::Relaxed),
        );
        let sent = queue
            .last_sent
            .and_then(|it| it.duration_since(UNIX_EPOCH).ok());
        gauge(
            "last_sent_timestamp_seconds",
            "When the collector accepted a message last; 0 before that.",
            sent.unwrap_or_default().as_secs(),
        );
    }
}

fn label(reason: &str) -> String {
    format!("{{reason=\"{reason}\"}}")
}

#[derive(Default)]
struct Text(String);

impl Text {
    /// Adds a metric with its values, each with its labels.
    fn family(&mut self, name: &str, kind: &str, help: &str, values: &[(String, u64)]) {
        let name = format!("otelctx_{name}");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

/// Returns the CPU time and the memory of this process, under the names that Prometheus's client libraries have for them.
fn process_metrics() -> String {
    let Some((seconds, bytes)) = used() else {
        return String::new();
    };
    format!(
        "# HELP process_cpu_seconds_total CPU time of the process and of its worker processes.\n\
         # TYPE process_cpu_seconds_total counter\n\
         process_cpu_seconds_total {seconds}\n\
         # HELP process_resident_memory_bytes Resident memory.\n\
         # TYPE process_resident_memory_bytes gauge\n\
         process_resident_memory_bytes {bytes}\n"
    )
}

/// Returns CPU time in seconds, and resident memory in bytes (proc(5), `/proc/PID/stat`).
fn used() -> Option<(f64, i64)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name may contain spaces and parentheses.
    let (_, behind) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = behind.split(' ').collect();
    // Fields are numbered from 1, and `behind` starts with the third one.
    let field = |number: usize| fields.get(number - 3)?.trim().parse::<i64>().ok();
    let [user, system, of_children_user, of_children_system] = [14, 15, 16, 17].map(field);
    let ticks = user? + system? + of_children_user? + of_children_system?;
    let of_system = |variable| sysconf(variable).ok().flatten();
    let per_second = of_system(SysconfVar::CLK_TCK)?;
    let page = of_system(SysconfVar::PAGE_SIZE)?;
    Some((ticks as f64 / per_second as f64, field(24)? * page))
}

#[cfg(test)]
mod tests {
    use otelctx_agent::QueueLimits;

    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_named() {
        let queue = Queue::in_memory(QueueLimits::default());
        let names = ["encoder", "resolver", "sender"];
        for ended in names {
            let pairs = names.map(|name| (name, Liveness::pair()));
            let threads = pairs.each_ref().map(|(name, it)| (*name, it.1.clone()));
            let mut guards: Vec<_> = pairs.map(|(name, it)| (name, it.0)).into();
            let monitor = Monitor::new("ebpf", queue.clone(), Arc::default(), 99, threads);
            assert_eq!(monitor.health().status, "ok");
            guards.retain(|(name, _)| *name != ended);
            assert_eq!(monitor.health().status, ended);
        }
    }
}
