//! A program whose threads wait in spans, and note when each began: every wait has the span of its time.
//!
//! Needs the right to use eBPF. `cargo xtask soak waits` compares millions of waits.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::{Feature, give_way_if_emulated, is_emulated};
use otelctx_fixtures::sampled::{Sampled, SpanProgram};
use otelctx_fixtures::spans::{SpanLog, Verdict};
use otelctx_fixtures::{Target, tier};
use otelctx_sampler::sample::{Catalog, Event, Found, ReadStep, Sample};
use otelctx_sampler::{Error, INTERVAL, Options, Sampler, Targets, WaitFacts, WaitMethod};

const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// Waits of each program that are read by the kernel's best method, and threads of the program: of a run that takes minutes.
fn soak() -> Option<u64> {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES").ok()?;
    Some(number.parse().unwrap())
}

/// How many waits to read: as many as a variable says, or a part of them.
fn enough(usual: u64, part: u64) -> u64 {
    soak().map_or(usual, |all| all / part)
}

fn threads() -> usize {
    if soak().is_some() { 64 } else { 16 }
}

/// A log's file, removed with this.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts the program, with these arguments.
fn start(way: &SpanProgram, log: &Log, waits: &[&str]) -> Option<Target> {
    let built = way.build()?;
    let mut command = Command::new(built.program);
    command
        .arg(format!("log={}", log.0.display()))
        .arg("seconds=60")
        .args(waits)
        .arg(format!("threads={}", threads()))
        .envs(way.environment.iter().copied());
    if let Some(library) = built.library {
        command.arg(format!("lib={}", library.display()));
    }
    give_way_if_emulated(&mut command);
    Some(Target::spawn(&mut command))
}

/// What comparing the waits came to.
#[derive(Debug, Default)]
struct Tally {
    right: u64,
    /// At the edge of a span.
    edge: u64,
    /// They ended while they were read.
    thrown_away: u64,
    /// The main thread has no context, nor has one whose CPU was taken while it wrote its record.
    without: u64,
    wrong: Vec<String>,
}

impl Tally {
    fn compare(&mut self, truth: &SpanLog, catalog: &Catalog, sample: &Sample) {
        let thread = catalog.thread_facts(sample.thread).tid;
        assert!(matches!(sample.event, Event::OffCpu(_)), "{sample:?}");
        match sample.found {
            Found::Attached(context) => {
                let context = catalog.context_facts(context);
                let [(_, value)] = &context.attributes[..] else {
                    return self.wrong.push(format!("{context:?}"));
                };
                let (trace, span) = (context.trace_id.to_bytes(), context.span_id.to_bytes());
                match truth.judge((thread, sample.time), trace, span, value) {
                    Verdict::Right => self.right += 1,
                    Verdict::Edge => self.edge += 1,
                    Verdict::Wrong(why) => self.wrong.push(format!("{why}: {sample:?}")),
                }
            }
            Found::Unreadable(ReadStep::Verify) => self.thrown_away += 1,
            _ => self.without += 1,
        }
    }
}

/// Scans a program's waits by a method, or by the kernel's best one, until `enough` were read, and holds each against what the
/// program notes.
fn hold(way: &SpanProgram, index: usize, enough: u64, method: Option<WaitMethod>) {
    let facts = hold_waits(way, index, enough, method, &["waits=1"]);
    // Waits of at least 50 us. Of fewer than these, some may be by chance; with two walks, more end between them.
    if let Some(facts) = facts
        && facts.method < WaitMethod::TwoWalks
        && facts.read >= 100_000
    {
        assert!(33 * facts.torn <= facts.read, "{}: {facts:?}", way.name);
    }
}

/// The same for other arguments of the program. Returns what the scans came to, unless the kernel does not permit them.
fn hold_waits(
    way: &SpanProgram,
    index: usize,
    enough: u64,
    method: Option<WaitMethod>,
    waits: &[&str],
) -> Option<WaitFacts> {
    let name = format!(
        "waits-{}-{index}-{method:?}-{}.log",
        std::process::id(),
        waits.join("-")
    );
    let log = Log(std::env::temp_dir().join(name));
    let target = start(way, &log, waits)?;
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.wall_frequency = Some(1000);
    options.on_cpu = false;
    options.wait_method = method;
    options.without_ebpf = method == Some(WaitMethod::Files);
    let mut sampler = match Sampler::start(&options) {
        Err(Error::Waits(refusal)) => return Feature::Ebpf.or_skip(Err(refusal)),
        started => started.unwrap(),
    };
    if !options.without_ebpf {
        Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    }
    if let Some(method) = method {
        // An old kernel has the worse ones alone.
        assert!(sampler.waits().unwrap().method >= method);
    }
    // Each of them takes an emulated machine 20 times as long.
    let enough = if is_emulated() { enough / 10 } else { enough };
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let (mut last, mut read) = (Instant::now(), 0);
    while read < enough {
        assert!(last.elapsed() < TIMEOUT, "{:?}", sampler.waits());
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        let now = sampler.waits().unwrap().read;
        if now > read {
            (last, read) = (Instant::now(), now);
        }
    }
    let facts = sampler.waits().unwrap();
    sampler.stop(&mut catalog, &mut |sample| samples.push(sample));
    let truth = SpanLog::read(&log.0, &target.lines[0]).unwrap();
    let mut tally = Tally::default();
    for sample in &samples {
        tally.compare(&truth, &catalog, sample);
    }
    let wrong = tally.wrong.len();
    tally.wrong.truncate(10);
    eprintln!(
        "{}, {}: {wrong} wrong, {tally:?}, {facts:?}",
        way.name,
        waits.join(" ")
    );
    assert_eq!(wrong, 0, "{}: {:#?}", way.name, tally.wrong);
    assert!(tally.right > enough / 2, "{}: {tally:?}", way.name);
    Some(facts)
}

/// Static and dynamic storage: what differs most.
const MOST_DIFFERENT: [usize; 2] = [0, 5];

#[test]
fn every_wait_has_the_span_of_its_time() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        hold(&ways[index], index, enough(2_000, 1), None);
    }
}

#[test]
fn whatever_the_storage_and_the_access_the_span_of_a_wait_is_right() {
    let ways = Sampled::own().span_programs();
    let others = ways.iter().enumerate();
    for (index, way) in others.filter(|(index, _)| !MOST_DIFFERENT.contains(index)) {
        hold(way, index, enough(1_000, 1), None);
    }
}

/// Threads that end and whose records the next ones use, processes that execute the program again, and ones that exit, all while
/// others of their threads wait.
#[test]
fn the_span_of_a_wait_is_right_while_threads_and_processes_come_and_go() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        let lives = ["waits=1", "lives=100000"];
        hold_waits(&ways[index], index, enough(2_000, 1), None, &lives);
    }
}

/// As before Linux 6.1.
#[test]
fn the_span_of_a_wait_is_right_where_all_threads_are_visited() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        let enough = enough(1_000, 4);
        hold(&ways[index], index, enough, Some(WaitMethod::AllThreads));
    }
}

/// As before Linux 5.18.
#[test]
fn the_span_of_a_wait_is_right_where_the_recorder_reads_it_between_two_walks() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        let enough = enough(2_000, 4);
        hold(&ways[index], index, enough, Some(WaitMethod::TwoWalks));
    }
}

/// As without the right to use eBPF.
#[test]
fn the_span_of_a_wait_is_right_where_files_of_threads_are_read() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        let enough = enough(100, 100);
        hold(&ways[index], index, enough, Some(WaitMethod::Files));
    }
}

/// Those most likely end while they are read. Tried once each: where the program keeps what it has read whatever the thread has
/// done meanwhile, this and the first test fail. Where it takes the count of times on a CPU (`pcount`) for the guard in place of
/// the times switched out, 20,000 reads pass: a read between the rise of that count and the thread's start is rare.
#[test]
fn the_span_of_a_short_wait_is_right() {
    let ways = Sampled::own().span_programs();
    let enough = enough(tier::usual_or_all(20_000, 500_000), 1);
    hold_waits(&ways[0], 0, enough, None, &["waits=2"]);
    // Most of these end before all threads are read.
    let two_walks = Some(WaitMethod::TwoWalks);
    hold_waits(&ways[0], 0, enough / 10, two_walks, &["waits=2"]);
}
