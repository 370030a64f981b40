//! Writing recordings.

use std::num::NonZeroU64;
use std::time::Instant;

use otelctx_format::record::DecodedContext;
use otelctx_format::{SpanId, TraceId};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Mapping, Module, ProcessFacts, Sample,
};
use otelctx_profile::{Clock, NoSymbols, Options, Profile, Recording};

use crate::child::{Role, peak_memory};
use crate::pair::quantile;
use crate::row::Report;

const SAMPLES: usize = 1_000_000;
const SPANS: usize = 50_000;
const STACKS: usize = 5_000;
const DEPTH: usize = 40;
const ROUNDS: usize = 5;

pub(crate) fn run(report: &mut Report) {
    report.group("profile");
    let (mut seconds, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let measured = Role::start(&["otlp"])
            .and_then(|child| Ok((child.number("seconds ")?, child.number("peak-kib ")?)));
        match measured {
            Ok((took, peak)) => {
                seconds.push(took);
                memory.push(peak / 1024.0);
            }
            Err(why) => return report.failed("OTLP", &why),
        }
    }
    let work = "OTLP of 1,000,000 samples";
    report.alone(
        format!("{work}, from recording to file"),
        quantile(seconds, 0.5),
        "s",
        1.0,
    );
    report.alone(
        format!("{work}, memory"),
        quantile(memory, 0.5),
        "MiB",
        200.0,
    );
    super::symbolize::run(report);
}

/// The role `otlp`: writes a synthetic recording to a file, in a child process so that its peak
/// memory can be measured.
pub(crate) fn write_otlp() {
    let recording = recording();
    let directory = std::env::temp_dir();
    let path = directory.join(format!("otelctx-bench-{}.otlp", std::process::id()));
    let start = Instant::now();
    let profile = Profile::new(recording, &mut NoSymbols);
    let written = profile.write_file(&path, &Options::default());
    let took = start.elapsed();
    let _ = std::fs::remove_file(&path);
    written.expect("the temporary directory takes a file");
    println!("seconds {}", took.as_secs_f64());
    println!("peak-kib {}", peak_memory());
    println!("ready");
}

/// Samples ordered by time, each with another span and stack than the one before.
fn recording() -> Recording {
    let mut catalog = Catalog::new();
    let module = catalog.module(Module {
        path: "/usr/bin/shop".into(),
        inode: 1,
        ..Module::default()
    });
    let process = catalog.add_process(ProcessFacts {
        pid: 4711,
        comm: "shop".into(),
        mappings: vec![Mapping {
            start: 0x40_0000,
            end: 0x4000_0000,
            offset: 0,
            module,
            since: 0,
        }],
        ..ProcessFacts::default()
    });
    let threads: Vec<_> = (0..16)
        .map(|index| catalog.thread(process, 4711 + index, &format!("worker-{index}")))
        .collect();
    let contexts: Vec<_> = (0..SPANS)
        .map(|span| catalog.context(&context(span)))
        .collect();
    let stacks: Vec<_> = (0..STACKS)
        .map(|stack| {
            // Callers are shared, as they are in programs.
            let frame = |depth: usize| 0x40_0000 + (depth * 7919 + stack / (depth + 1)) * 16;
            let addresses: Vec<u64> = (0..DEPTH).map(|depth| frame(depth) as u64).collect();
            catalog.native_stack(&addresses)
        })
        .collect();
    let empty = catalog.native_stack(&[]);
    let samples = (0..SAMPLES)
        .map(|index| Sample {
            time: 1 + index as u64 * 1000,
            cpu: 0,
            thread: threads[index % threads.len()],
            event: Event::OnCpu,
            found: Found::Attached(contexts[index * 31 % SPANS]),
            gil: None,
            user_stack: stacks[index * 17 % STACKS],
            stack_end: None,
            kernel_stack: empty,
        })
        .collect();
    Recording {
        catalog,
        samples,
        clock: Clock {
            start: 0,
            end: SAMPLES as u64 * 1000 + 1,
            start_unix: 1_700_000_000_000_000_000,
        },
        period: NonZeroU64::new(10_101_010).expect("not zero"),
        counts: Counts::default(),
    }
}

fn context(span: usize) -> DecodedContext {
    let mut context = DecodedContext::default();
    context.trace_id = TraceId::from_bytes((span as u128 / 10 + 1).to_be_bytes());
    context.span_id = SpanId::from_bytes((span as u64 + 1).to_be_bytes());
    context.attributes = [
        ("http.route", format!("/route/{}", span % 50)),
        ("http.request.method", ["GET", "POST"][span % 2].to_owned()),
        ("user.tier", format!("tier-{}", span % 5)),
        ("tenant", format!("tenant-{}", span % 200)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    context
}
