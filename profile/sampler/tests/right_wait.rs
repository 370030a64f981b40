//! A program whose threads wait in spans, and note when each began: every wait has the span of its time.
//!
//! Needs the right to use eBPF.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::{Feature, give_way_if_emulated, is_emulated};
use otelctx_fixtures::sampled::{Sampled, SpanProgram};
use otelctx_fixtures::spans::{SpanLog, Verdict};
use otelctx_fixtures::{Target, tier};
use otelctx_sampler::sample::{Catalog, Event, Found, ReadStep};
use otelctx_sampler::{Error, INTERVAL, Options, Sampler, Targets, WaitMethod};

const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// Threads of the program.
const THREADS: usize = 16;

/// A log's file, removed with this.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn start(way: &SpanProgram, log: &Log, waits: &str) -> Option<Target> {
    let built = way.build()?;
    let mut command = Command::new(built.program);
    command
        .arg(format!("log={}", log.0.display()))
        .args(["seconds=60", waits, &format!("threads={THREADS}")])
        .envs(way.environment.iter().copied());
    if let Some(library) = built.library {
        command.arg(format!("lib={}", library.display()));
    }
    give_way_if_emulated(&mut command);
    Some(Target::spawn(&mut command))
}

/// Scans a program's waits by a method, or by the kernel's best one, until `enough` were read, and holds each against what the
/// program notes.
fn hold(way: &SpanProgram, index: usize, enough: u64, method: Option<WaitMethod>) {
    hold_waits(way, index, enough, method, "waits=1");
}

/// The same for waits of a length: see the program.
fn hold_waits(
    way: &SpanProgram,
    index: usize,
    enough: u64,
    method: Option<WaitMethod>,
    waits: &str,
) {
    let name = format!("waits-{}-{index}-{method:?}.log", std::process::id());
    let log = Log(std::env::temp_dir().join(name));
    let Some(target) = start(way, &log, waits) else {
        return;
    };
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.wall_frequency = Some(1000);
    options.on_cpu = false;
    options.wait_method = method;
    options.without_ebpf = method == Some(WaitMethod::Files);
    let mut sampler = match Sampler::start(&options) {
        Err(Error::Waits(refusal)) => {
            return Feature::Ebpf.or_skip(Err(refusal)).unwrap_or_default();
        }
        started => started.unwrap(),
    };
    let has_ebpf = sampler.method().require_ebpf();
    if !options.without_ebpf && Feature::Ebpf.or_skip(has_ebpf).is_none() {
        return;
    }
    if let Some(method) = method {
        // An old kernel has the worse ones alone.
        assert!(sampler.waits().unwrap().method >= method);
    }
    // Each of them takes an emulated machine 20 times as long.
    let enough = if is_emulated() { enough / 10 } else { enough };
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let start = Instant::now();
    while sampler.waits().is_some_and(|waits| waits.read < enough) {
        assert!(start.elapsed() < TIMEOUT, "{:?}", sampler.waits());
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    let facts = sampler.waits().unwrap();
    sampler.stop(&mut catalog, &mut |sample| samples.push(sample));
    let truth = SpanLog::read(&log.0, &target.lines[0]).unwrap();
    let (mut right, mut edge, mut torn, mut unknown) = (0, 0, 0, 0);
    for sample in &samples {
        let thread = catalog.thread_facts(sample.thread).tid;
        assert!(
            matches!(sample.event, Event::OffCpu(_)),
            "{}: {sample:?}",
            way.name
        );
        match sample.found {
            Found::Attached(context) => {
                let context = catalog.context_facts(context);
                let [(_, value)] = &context.attributes[..] else {
                    panic!("{}: {context:?}", way.name);
                };
                let (trace, span) = (context.trace_id.to_bytes(), context.span_id.to_bytes());
                match truth.judge((thread, sample.time), trace, span, value) {
                    Verdict::Right => right += 1,
                    Verdict::Edge => edge += 1,
                    Verdict::Wrong(why) => panic!("{}: {why}: {sample:?}", way.name),
                }
            }
            Found::Unreadable(ReadStep::Verify) => torn += 1,
            // The main thread has none, nor has one whose CPU was taken while it wrote its record.
            _ => unknown += 1,
        }
    }
    eprintln!(
        "{}: {right} right, {edge} at an edge, {torn} thrown away, {unknown} without a context, {facts:?}",
        way.name
    );
    assert!(right as u64 > enough / 2, "{}: {right} right", way.name);
}

/// Static and dynamic storage: what differs most.
const MOST_DIFFERENT: [usize; 2] = [0, 5];

#[test]
fn every_wait_has_the_span_of_its_time() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        hold(&ways[index], index, 2_000, None);
    }
}

#[test]
fn whatever_the_storage_and_the_access_the_span_of_a_wait_is_right() {
    let ways = Sampled::own().span_programs();
    let others = ways.iter().enumerate();
    for (index, way) in others.filter(|(index, _)| !MOST_DIFFERENT.contains(index)) {
        hold(way, index, 1_000, None);
    }
}

/// As before Linux 6.1.
#[test]
fn the_span_of_a_wait_is_right_where_all_threads_are_visited() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        hold(&ways[index], index, 1_000, Some(WaitMethod::AllThreads));
    }
}

/// As before Linux 5.18.
#[test]
fn the_span_of_a_wait_is_right_where_the_recorder_reads_it_between_two_walks() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        hold(&ways[index], index, 2_000, Some(WaitMethod::TwoWalks));
    }
}

/// As without the right to use eBPF.
#[test]
fn the_span_of_a_wait_is_right_where_files_of_threads_are_read() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        hold(&ways[index], index, 100, Some(WaitMethod::Files));
    }
}

/// Those most likely end while they are read. Tried once each: where the program keeps what it has read whatever the thread has
/// done meanwhile, this and the first test fail. Where it takes the count of times on a CPU (`pcount`) for the guard in place of
/// the times switched out, 20,000 reads pass: a read between the rise of that count and the thread's start is rare.
#[test]
fn the_span_of_a_short_wait_is_right() {
    let ways = Sampled::own().span_programs();
    let enough = tier::usual_or_all(20_000, 500_000);
    hold_waits(&ways[0], 0, enough, None, "waits=2");
    // Most of these end before all threads are read.
    let two_walks = Some(WaitMethod::TwoWalks);
    hold_waits(&ways[0], 0, enough / 10, two_walks, "waits=2");
}
