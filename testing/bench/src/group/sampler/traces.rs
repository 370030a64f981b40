//! Samples compared with the sampled program's own log. Needs root.

use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::sampled::{BuiltSpans, Sampled, SpanProgram};
use otelctx_fixtures::spans::{SpanLog, Verdict};
use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, Options, Targets};

use super::sampler;
use crate::row::Report;
use crate::scratch::Directory;

/// Samples that are compared with the programs' own logs.
const SAMPLES: u64 = 1_000_000;
/// How long a program is sampled.
const TIME: Duration = Duration::from_secs(20);

/// How samples are taken.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    without_ebpf: bool,
    /// In Hz.
    frequency: u32,
}

const EBPF: Way = Way {
    name: "",
    without_ebpf: false,
    frequency: 19_999,
};

/// Takes a million samples, of every access model of the variable, and compares each with the log
/// of the program.
pub(crate) fn right_traces(report: &mut Report) {
    report.group("traces");
    if let Err(why) = right(report, EBPF, SAMPLES) {
        report.failed("samples with the right trace", &why);
    }
}

/// Samples the same programs with eBPF and with ptrace, at the same frequency for the same time.
pub(crate) fn methods(report: &mut Report) {
    report.group("methods");
    for (name, without_ebpf) in [("eBPF: ", false), ("ptrace: ", true)] {
        let way = Way {
            name,
            without_ebpf,
            frequency: 999,
        };
        if let Err(why) = right(report, way, 1) {
            report.failed(name, &why);
        }
    }
}

/// Takes at least that many samples.
fn right(report: &mut Report, way: Way, samples: u64) -> Result<(), String> {
    let programs = Sampled::own().span_programs();
    let programs = programs.iter().filter_map(|it| Some((it, it.build()?)));
    let programs: Vec<_> = programs.collect();
    if programs.is_empty() {
        return Err("there is no gcc".into());
    }
    let each = samples.div_ceil(programs.len() as u64);
    let mut all = Round::default();
    for (program, built) in &programs {
        let end = all.samples + each;
        while all.samples < end {
            let round = round(program, built, way)?;
            all.samples += round.samples;
            all.wrong += round.wrong;
            all.edge += round.edge;
            all.with += round.with;
            all.of += round.of;
            all.lost += round.lost;
        }
        eprintln!(
            "{}{}: {} samples, {} wrong, {} at an edge, {} lost",
            way.name, program.name, all.samples, all.wrong, all.edge, all.lost
        );
    }
    let name = way.name;
    let work = format!(
        "{name}wrong of {} samples, {} at an edge",
        all.samples, all.edge
    );
    report.alone(work, all.wrong as f64, "samples", 0.0);
    let without = (all.of - all.with) as f64 * 100.0 / all.of as f64;
    let work = format!("{name}of the workers' samples without a context");
    report.alone(work, without, "%", 1.0);
    let lost = all.lost as f64 * 100.0 / (all.of + all.lost) as f64;
    report.alone(format!("{name}lost"), lost, "%", None);
    Ok(())
}

#[derive(Default)]
struct Round {
    /// With a context.
    samples: u64,
    wrong: u64,
    edge: u64,
    /// Of those, and of all, of threads that publish.
    with: u64,
    of: u64,
    lost: u64,
}

fn round(program: &SpanProgram, built: &BuiltSpans, way: Way) -> Result<Round, String> {
    let directory = Directory::new("traces");
    let log = directory.path().join("log");
    let mut command = Command::new(&built.program);
    command
        .arg(format!("log={}", log.display()))
        .arg("seconds=60")
        .envs(program.environment.iter().copied());
    if let Some(library) = &built.library {
        command.arg(format!("lib={}", library.display()));
    }
    let target = Target::spawn(&mut command);
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = way.frequency;
    options.without_ebpf = way.without_ebpf;
    let mut sampler = sampler(&options)?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let start = Instant::now();
    while start.elapsed() < TIME {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    let counts = sampler
        .stop(&mut catalog, &mut |sample| samples.push(sample))
        .counts;
    let truth = SpanLog::read(&log, &target.lines[0]).map_err(|error| error.to_string())?;
    let mut round = Round {
        lost: counts.lost,
        ..Round::default()
    };
    for sample in samples {
        let tid = catalog.thread_facts(sample.thread).tid;
        round.of += u64::from(tid != target.pid());
        let Found::Attached(context) = sample.found else {
            continue;
        };
        round.with += u64::from(tid != target.pid());
        round.samples += 1;
        let context = catalog.context_facts(context);
        let value = context.attributes.first().map_or("", |(_, value)| value);
        let (trace, span) = (context.trace_id.to_bytes(), context.span_id.to_bytes());
        match truth.judge((tid, sample.time), trace, span, value) {
            Verdict::Right => {}
            Verdict::Edge => round.edge += 1,
            Verdict::Wrong(why) => {
                eprintln!("wrong: {why}");
                round.wrong += 1;
            }
        }
    }
    Ok(round)
}
