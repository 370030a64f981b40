//! A program that switches spans every 10 µs and notes when: every sample has the span that its
//! thread worked on at its time.
//!
//! Needs the right to use eBPF.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::{Feature, give_way_if_emulated, is_emulated};
use otelctx_fixtures::sampled::{Sampled, SpanProgram};
use otelctx_fixtures::spans::{SpanLog, Verdict};
use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

const TIME: Duration = Duration::from_millis(500);
/// The frequency, and how many samples are enough. A busy machine gives the program less
/// time: then it is sampled for longer.
fn measure(without_ebpf: bool) -> (u32, usize) {
    match (is_emulated(), without_ebpf) {
        (false, _) => (4999, 500),
        (true, false) => (499, 200),
        (true, true) => (99, 50),
    }
}
/// The record of a thread that was just rewriting it.
const BEING_WRITTEN: Found = Found::Invalid;
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Builds and starts a program. `None` where its compiler is not installed.
fn start(way: &SpanProgram, log: &Path) -> Option<Target> {
    let built = way.build()?;
    let mut command = Command::new(built.program);
    command
        .arg(format!("log={}", log.display()))
        .arg("seconds=20")
        .envs(way.environment.iter().copied());
    if let Some(library) = built.library {
        command.arg(format!("lib={}", library.display()));
    }
    give_way_if_emulated(&mut command);
    Some(Target::spawn(&mut command))
}

/// `None`, with a line, where the kernel does not let us use eBPF.
fn by_ebpf(sampler: &Sampler) -> Option<()> {
    Feature::Ebpf.or_skip(sampler.method().require_ebpf())
}

/// A log's file, removed with this.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Samples a program, and holds each sample against what the program notes.
fn hold(way: &SpanProgram, index: usize, without_ebpf: bool) {
    let name = format!("spans-{}-{index}-{without_ebpf}.log", std::process::id());
    let log = Log(std::env::temp_dir().join(name));
    let Some(target) = start(way, &log.0) else {
        return;
    };
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    let (frequency, enough) = measure(without_ebpf);
    options.frequency = frequency;
    options.without_ebpf = without_ebpf;
    let mut sampler = Sampler::start(&options).unwrap();
    if !without_ebpf && by_ebpf(&sampler).is_none() {
        return;
    }
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let start = Instant::now();
    while start.elapsed() < TIME || samples.len() < enough && start.elapsed() < TIMEOUT {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    let counts = sampler
        .stop(&mut catalog, &mut |sample| samples.push(sample))
        .counts;
    let truth = SpanLog::read(&log.0, &target.lines[0]).unwrap();
    let (mut right, mut edge, mut workers) = (0, 0, 0);
    for sample in &samples {
        // The main thread has no context; it sends the signals.
        let thread = catalog.thread_facts(sample.thread).tid;
        workers += u64::from(thread != target.pid());
        let Found::Attached(context) = sample.found else {
            continue;
        };
        let context = catalog.context_facts(context);
        let [(key, value)] = &context.attributes[..] else {
            panic!("{}: {context:?}", way.name);
        };
        assert_eq!(key, "worker");
        let (trace, span) = (context.trace_id.to_bytes(), context.span_id.to_bytes());
        match truth.judge((thread, sample.time), trace, span, value) {
            Verdict::Right => right += 1,
            Verdict::Edge => edge += 1,
            Verdict::Wrong(why) => panic!("{}: {why}", way.name),
        }
    }
    eprintln!("{}: {right} right, {edge} at an edge, {counts:?}", way.name);
    assert_eq!(counts.samples(), samples.len() as u64, "{}", way.name);
    assert_eq!(counts.unknown_keys, 0, "{}", way.name);
    assert!(right > enough / 5, "{}: {right} right samples", way.name);
    // ptrace stops a thread anywhere, and loses ticks when it is late.
    if !without_ebpf {
        // The ring holds what comes within a second, and an emulated machine may pause for longer.
        assert!(
            counts.lost == 0 || is_emulated(),
            "{}: {counts:?}",
            way.name
        );
        // An emulated processor spends a larger part of 10 µs on rewriting a record.
        let rewriting = samples
            .iter()
            .filter(|it| it.found == BEING_WRITTEN)
            .count();
        let rewriting = if is_emulated() { rewriting as u64 } else { 0 };
        assert!(
            (counts.attached + rewriting) * 100 >= workers * 99,
            "{}: {counts:?} of {workers}",
            way.name
        );
    }
}

/// Static and dynamic storage: what differs most. Every run of the tests has these two under other
/// kernels, too.
const MOST_DIFFERENT: [usize; 2] = [0, 5];

#[test]
fn every_sample_has_the_span_of_its_time() {
    let ways = Sampled::own().span_programs();
    for index in MOST_DIFFERENT {
        hold(&ways[index], index, false);
    }
}

#[test]
fn whatever_the_storage_and_the_access_the_span_is_right() {
    let ways = Sampled::own().span_programs();
    let others = ways.iter().enumerate();
    for (index, way) in others.filter(|(index, _)| !MOST_DIFFERENT.contains(index)) {
        hold(way, index, false);
    }
}

#[test]
fn every_sample_by_ptrace_has_the_span_of_its_time() {
    hold(&Sampled::own().span_programs()[0], 0, true);
}
