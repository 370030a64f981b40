//! Every kind of program (`otelctx_fixtures::matrix`): a sample has the context that the program
//! says its thread has, and a thread that never touched the variable has none.
//!
//! Needs the right to use eBPF.

use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::matrix::{self, Row};
use otelctx_fixtures::{Target, Thread, tier};
use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

/// Programs that run at the same time. In an emulated machine, the kernel takes most of a minute to check the sampler's
/// programs for each batch.
const BATCH: usize = 24;
/// Long enough to sample a batch of programs, even in an emulated machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

#[test]
fn every_kind_of_program() {
    let mut options = Options::new(Targets::Processes(Vec::new()));
    options.user_stacks = false;
    options.frequency = 499;
    // The programs publish no process context.
    options.any_schema = true;
    let sampler = Sampler::start(&options).unwrap();
    if Feature::Ebpf
        .or_skip(sampler.method().require_ebpf())
        .is_none()
    {
        return;
    }
    let (mut rows, _) = matrix::own();
    // Programs that can be busy, and of those a part, spread over all dimensions: what differs
    // between the others is the reader's to see (the same table in `remote`).
    let is_rust = |row: &Row| row.name.contains(" rustc ") || row.name.contains(" otelctx ");
    rows.retain(|row| !is_rust(row));
    let step = tier::usual_or_all(1, 7);
    let rows: Vec<Row> = rows.into_iter().step_by(step).collect();
    for batch in rows.chunks(BATCH) {
        let targets: Vec<Target> = batch.iter().map(start).collect();
        options.targets = Targets::Processes(targets.iter().map(Target::pid).collect());
        let sampler = Sampler::start(&options).unwrap();
        compare(sampler, batch, &targets);
    }
    eprintln!("{} kinds of programs", rows.len());
}

fn start(row: &Row) -> Target {
    let mut command = row.command();
    command.args(["busy", "workers=1"]);
    // So that many busy programs leave the test itself a processor.
    let be_nice = || {
        // SAFETY: a plain system call.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
        Ok(())
    };
    // SAFETY: between fork and exec it only makes that call.
    unsafe { command.pre_exec(be_nice) };
    let mut target = Target::spawn(&mut command);
    if row.late {
        target.command("attach");
    }
    target
}

/// Waits until every busy thread has been sampled, and compares each sample.
fn compare(mut sampler: Sampler, rows: &[Row], targets: &[Target]) {
    let threads = || {
        let of = |(row, target): (_, &'_ Target)| {
            let threads = target.threads.clone();
            threads.into_iter().map(move |thread: Thread| (row, thread))
        };
        rows.iter().zip(targets).flat_map(of)
    };
    let mut waiting: Vec<i32> = threads().map(|(_, thread)| thread.tid).collect();
    let mut catalog = Catalog::new();
    let begin = Instant::now();
    while !waiting.is_empty() {
        let mut samples = Vec::new();
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        for sample in samples {
            let tid = catalog.thread_facts(sample.thread).tid;
            // The main threads have no context, and say nothing of themselves.
            let Some((row, thread)) = threads().find(|(_, thread)| thread.tid == tid) else {
                continue;
            };
            let found = match sample.found {
                Found::Attached(context) => {
                    let context = catalog.context_facts(context);
                    Some((context.trace_id.to_string(), context.span_id.to_string()))
                }
                Found::Detached => None,
                other => panic!("{}: {other:?}", row.name),
            };
            let says = thread.attached.map(|it| (it.trace_id, it.span_id));
            assert_eq!(found, says, "{}", row.name);
            waiting.retain(|waiting| *waiting != tid);
        }
        let missing = || {
            let missing = threads().filter(|(_, thread)| waiting.contains(&thread.tid));
            missing.map(|(row, _)| &row.name).collect::<Vec<_>>()
        };
        assert!(begin.elapsed() < TIMEOUT, "no samples: {:?}", missing());
    }
}
