//! What the context of a thread of Node.js adds to the eBPF program's time for a sample, by the kernel's own count.

use std::time::{Duration, Instant};

use otelctx_fixtures::{Node, Target};
use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, KernelObject, Options, Targets};

use super::runtimes;
use crate::group::sampler::cost::{Interval, of_a_sample, without_target};
use crate::group::sampler::{sampler, with_statistics};
use crate::pair::quantile;
use crate::row::Report;

/// Sampling frequency per CPU, in Hz.
const FREQUENCY: u32 = 2999;
/// Measurements of each program, in turn.
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(2);
/// The addon whose contexts are read.
const ADDON: &str = "5.20";
/// Programs that compute, by the arguments of `contexts.js`, and the bound on how much more time a sample takes than one of the first, in
/// µs. In the others, which make objects, caches are cold.
const HOT: [(&str, &[&str], Option<f64>); 4] = [
    ("without an addon", &["busy", "unloaded"], None),
    ("an addon that publishes nothing", &["busy", "none"], None),
    ("detached", &["busy", "detached"], None),
    ("a record", &["busy", "attached"], Some(0.5)),
];
const CHURN: [(&str, &[&str], Option<f64>); 2] = [
    (
        "churn, without an addon",
        &["busy", "unloaded", "churn"],
        None,
    ),
    ("churn, a record", &["busy", "attached", "churn"], Some(0.9)),
];

pub(super) fn run(report: &mut Report) {
    for programs in [&HOT[..], &CHURN] {
        match with_statistics(|| measure(report, programs)) {
            None => report.skipped("in eBPF", "needs root, for kernel.bpf_stats_enabled"),
            Some(Err(why)) => report.failed("in eBPF", &why),
            Some(Ok(())) => {}
        }
    }
}

fn measure(report: &mut Report, programs: &[(&str, &[&str], Option<f64>)]) -> Result<(), String> {
    let mut times = vec![Vec::new(); programs.len()];
    let empty = without_target()?;
    for _ in 0..ROUNDS {
        for ((name, arguments, _), times) in programs.iter().zip(&mut times) {
            let command = Node::find().and_then(|node| node.publishing(&[], ADDON));
            let Some(mut command) = command else {
                report.skipped("in eBPF", "Node.js or the addon is not installed");
                return Ok(());
            };
            let target = Target::spawn(command.args(*arguments));
            let time = of_samples(&target, arguments[1] == "attached", empty);
            times.push(time.map_err(|why| format!("{name}: {why}"))? / 1e3);
        }
    }
    let without = times[0].clone();
    for ((name, _, bound), times) in programs.iter().zip(times) {
        // What the context adds, in each round.
        let more = times
            .iter()
            .zip(&without)
            .map(|(with, without)| with - without);
        let more = quantile(more.collect(), 0.5);
        report.alone(
            format!("a sample in eBPF: {name}"),
            quantile(times, 0.5),
            "µs",
            None,
        );
        if bound.is_some() {
            report.alone("  more than without an addon", more, "µs", *bound);
        }
    }
    Ok(())
}

/// The time of a sample, in nanoseconds. An error if it has no context although it should, or the reverse.
fn of_samples(target: &Target, is_attached: bool, empty: f64) -> Result<f64, String> {
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = FREQUENCY;
    options.user_stacks = false;
    options.kernel_stacks = false;
    options.runtimes = runtimes();
    options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
    let mut sampler = sampler(&options)?;
    let mut catalog = Catalog::new();
    let (mut before, mut parts) = ((0.0, 0.0), Vec::new());
    let mut samples = Vec::new();
    let (mut own, mut attached) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < TIME {
        std::thread::sleep(INTERVAL);
        samples.clear();
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        let (time, runs) = sampler.kernel_time().ok_or("the kernel counts no runs")?;
        let now = (time.as_nanos() as f64, runs as f64);
        parts.push(Interval {
            time: now.0 - before.0,
            runs: now.1 - before.1,
            samples: samples.len() as f64,
        });
        before = now;
        for sample in &samples {
            if catalog.thread_facts(sample.thread).tid == target.pid() {
                own += 1;
                attached += usize::from(matches!(sample.found, Found::Attached(_)));
            }
        }
    }
    // The step that reads contexts is loaded once the first process needs it.
    let is_expected = match is_attached {
        true => attached * 100 >= own * 99,
        false => attached == 0,
    };
    if own == 0 || !is_expected {
        return Err(format!("{attached} of {own} samples have a context"));
    }
    // Others run on the other CPUs.
    of_a_sample(&parts, empty, 0.05)
}
