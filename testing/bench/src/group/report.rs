//! Summing up a recording of a million samples, compared with `go tool pprof -top`.

use std::num::NonZeroU64;
use std::process::Command;

use otelctx_profile::sample::format::process_context::Value;
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::format::{SpanId, TraceId};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, NamedFrame, ProcessFacts, Sample,
};
use otelctx_profile::{Clock, NoSymbols, Options, Profile, Recording};

use crate::pair::{Pair, quantile};
use crate::row::Report;
use crate::scratch::{self, Directory};

const SAMPLES: usize = 1_000_000;
const PROCESSES: usize = 300;
const THREADS: usize = 4;
const TRACES: usize = 2_000;
const ROUTES: usize = 40;
/// Of 30 frames each.
const STACKS: usize = 50_000;
const ROUNDS: usize = 5;
/// 100 Hz.
const PERIOD: u64 = 10_000_000;

pub(crate) fn run(report: &mut Report) {
    report.group("report");
    if let Err(why) = compare(report) {
        report.failed("a million samples", &why);
    }
}

fn compare(report: &mut Report) -> Result<(), String> {
    let otelctx = scratch::otelctx()?;
    let directory = Directory::new("report");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (otlp, pprof) = (path("a.otlp"), path("a.pb.gz"));
    let profile = Profile::new(recording(), &mut NoSymbols);
    let written = profile.write_file(otlp.as_ref(), &Options::default());
    written.map_err(|error| error.to_string())?;
    drop(profile);
    scratch::output(Command::new(&otelctx).args(["report", &otlp, "-o", &pprof]))?;
    let timed = |command: &mut Command| cpu_of(command);
    let (mut plain, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(timed(Command::new(&otelctx).args(["report", &otlp]))?);
        peer.push(timed(
            Command::new("go").args(["tool", "pprof", "-top", &pprof]),
        )?);
    }
    let plain = plain
        .into_iter()
        .reduce(|one, other| if other.0 < one.0 { other } else { one });
    let plain = plain.ok_or("no round")?;
    let peer = quantile(peer.into_iter().map(|it| it.0).collect(), 0.5);
    let row = "report of 1,000,000 samples, CPU time, to go tool pprof -top";
    report.pair(row.to_owned(), Pair::of(plain.0, peer), "s", 0.03);
    report.alone("report, memory".to_owned(), plain.1, "MiB", 64.0);
    for (name, arguments, bound) in [
        (
            "with --filter",
            &["--filter", "http.route=/route/3"][..],
            1.5,
        ),
        (
            "with --by of three levels",
            &["--by", "service,http.route,thread"],
            1.5,
        ),
        ("to OTLP", &["-o", &path("b.otlp")], 2.0),
        ("to pprof", &["-o", &path("b.pb.gz")], 2.0),
        ("to the Firefox Profiler", &["-o", &path("b.json.gz")], 2.0),
        ("to folded stacks", &["-o", &path("b.folded")], 2.0),
        ("to a flame graph", &["-o", &path("b.svg")], 2.0),
        ("to a page", &["-o", &path("b.html")], 2.0),
    ] {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            times.push(
                timed(
                    Command::new(&otelctx)
                        .args(["report", &otlp])
                        .args(arguments),
                )?
                .0,
            );
        }
        let pair = Pair::of(quantile(times, 0.5), plain.0);
        report.pair(format!("{name}, to report alone"), pair, "s", bound);
    }
    Ok(())
}

/// Returns the CPU time of a command with its children, in seconds, and its peak memory in MiB.
fn cpu_of(command: &mut Command) -> Result<(f64, f64), String> {
    let mut timed = Command::new("/usr/bin/time");
    timed.args(["-f", "%U %S %M", "-o", "/dev/stdout", "-a"]);
    timed.arg(command.get_program()).args(command.get_args());
    let said = scratch::output(&mut timed)?;
    let last = said.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = last.split(' ').filter_map(|it| it.parse().ok()).collect();
    match numbers[..] {
        [user, system, kib] => Ok((user + system, kib / 1024.0)),
        _ => Err(format!("time says {last:?}")),
    }
}

/// Returns numbers without a pattern, always the same ones.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64 (Marsaglia, Xorshift RNGs, 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A recording of processes of one service each, whose routes have stacks of their own.
fn recording() -> Recording {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut catalog = Catalog::new();
    let frame = |number: usize| {
        Frame::from(NamedFrame {
            kind: FrameKind::CPYTHON,
            function: format!("function_{number}"),
            file: format!("shop/module_{}.py", number % 400),
            line: number as u32 % 900 + 1,
            ..NamedFrame::default()
        })
    };
    let stacks: Vec<_> = (0..STACKS)
        .map(|stack| {
            let depth = 30;
            let frames = (0..depth).map(|level| match level {
                // Functions further out are shared.
                0..5 => frame(stack % 20_000),
                5..15 => frame(stack / 10 % 5_000),
                _ => frame(stack / 1000 * 30 + level),
            });
            catalog.stack(&frames.collect::<Vec<_>>())
        })
        .collect();
    let mut threads = Vec::new();
    for process in 0..PROCESSES {
        let pid = 1000 + 10 * process as i32;
        let id = catalog.add_process(ProcessFacts {
            pid,
            comm: "shop".into(),
            resource: vec![(
                "service.name".into(),
                Value::from(&*format!("service-{}", process % 20)),
            )],
            published: true,
            ..ProcessFacts::default()
        });
        for thread in 0..THREADS {
            let tid = pid + thread as i32;
            threads.push(catalog.thread(id, tid, &format!("worker-{thread}")));
        }
    }
    let contexts: Vec<_> = (1..=TRACES)
        .map(|trace| {
            let mut context = DecodedContext::default();
            context.trace_id = TraceId::from_bytes((trace as u128).to_be_bytes());
            context.span_id = SpanId::from_bytes((trace as u64).to_be_bytes());
            let route = format!("/route/{}", trace % ROUTES);
            context.attributes = vec![("http.route".into(), route)];
            catalog.context(&context)
        })
        .collect();
    let empty = catalog.stack(&[]);
    let samples = (0..SAMPLES).map(|number| {
        // A thread works on a trace for a while.
        let thread = number / 50 % threads.len();
        Sample {
            time: number as u64 * PERIOD / 8,
            cpu: (number % 8) as u32,
            thread: threads[thread],
            event: Event::OnCpu,
            found: Found::Attached(contexts[(number / 50 * 7) % TRACES]),
            gil: None,
            user_stack: stacks[random.below(STACKS)],
            stack_end: None,
            kernel_stack: empty,
        }
    });
    Recording {
        samples: samples.collect(),
        clock: Clock {
            start: 0,
            end: SAMPLES as u64 * PERIOD / 8,
            start_unix: 1_700_000_000_000_000_000,
        },
        period: NonZeroU64::new(PERIOD).expect("not zero"),
        counts: Counts::default(),
        catalog,
    }
}
