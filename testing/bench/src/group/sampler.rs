//! Sampling with eBPF: its cost, and lost samples. Needs root.

pub(super) mod cost;
mod traces;
mod unwind;

pub(crate) use traces::{methods, right_traces};

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::sampled::Sampled;
use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, Method, Options, Sampler, Targets};

use crate::child::{self, Role};
use crate::row::Report;

/// Makes the kernel count runs of eBPF programs and their time.
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(3);
/// Processes besides the one that publishes.
const PROCESSES: usize = 300;

/// Runs `measure` while the kernel counts runs of eBPF programs and their time. `None` if it may not.
pub(super) fn with_statistics<T>(measure: impl FnOnce() -> T) -> Option<T> {
    let before = fs::read_to_string(STATISTICS).unwrap_or_default();
    fs::write(STATISTICS, "1").ok()?;
    let measured = measure();
    let _ = fs::write(STATISTICS, before.trim());
    Some(measured)
}

pub(crate) fn run(report: &mut Report) {
    report.group("sampler");
    let cost = || cost::run(report).and_then(|empty| unwind::run(report, empty));
    let Some(measured) = with_statistics(cost) else {
        return report.skipped("all", "needs root, for kernel.bpf_stats_enabled");
    };
    if let Err(why) = measured {
        report.failed("cost of the program", &why);
    }
    for (work, result) in [
        ("lost", lost(report)),
        ("recorder", recorder(report)),
        ("start", start(report)),
    ] {
        if let Err(why) = result {
            report.failed(work, &why);
        }
    }
}

/// A program whose threads keep every CPU busy.
pub(crate) fn spin(arguments: &[&str]) -> Result<Target, String> {
    run_on_each_cpu(Sampled::own().stacks(), arguments)
}

/// The same without unwind tables.
fn spin_without_tables(arguments: &[&str]) -> Result<Target, String> {
    run_on_each_cpu(Sampled::own().stacks_without_tables(), arguments)
}

fn run_on_each_cpu(program: Option<PathBuf>, arguments: &[&str]) -> Result<Target, String> {
    let program = program.ok_or("there is no gcc")?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = format!("threads={threads}");
    Ok(Target::spawn(
        Command::new(program).arg(threads).args(arguments),
    ))
}

pub(super) fn sampler(options: &Options) -> Result<Sampler, String> {
    let sampler = Sampler::start(options).map_err(|error| error.to_string())?;
    match sampler.method() {
        Method::Ebpf => Ok(sampler),
        Method::Ptrace(_) if options.without_ebpf => Ok(sampler),
        method => Err(method.to_string()),
    }
}

/// Samples that are lost while every CPU is busy.
fn lost(report: &mut Report) -> Result<(), String> {
    let _busy = spin(&[])?;
    for frequency in [99, 999] {
        let mut options = Options::new(Targets::All);
        options.frequency = frequency;
        let mut sampler = sampler(&options)?;
        let mut catalog = Catalog::new();
        let start = Instant::now();
        while start.elapsed() < TIME * 2 {
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |_| {});
        }
        let counts = sampler.stop(&mut catalog, &mut |_| {}).counts;
        let work = format!("lost at {frequency} Hz, of {}", counts.samples());
        report.alone(work, counts.lost as f64, "samples", 0.0);
    }
    Ok(())
}

/// CPU time and memory of the recorder.
fn recorder(report: &mut Report) -> Result<(), String> {
    let _busy = spin(&[])?;
    let role = Role::start(&["recorder"])?;
    let samples = role.number("samples ")?;
    let share = role.number("cpu ")? * 100.0 * 200.0 / samples;
    report.alone(
        "recorder's CPU time for 200 samples a second",
        share,
        "%",
        0.3,
    );
    report.alone(
        "  CPU time of its start and first 3 s",
        role.number("start ")? * 1e3,
        "ms",
        None,
    );
    report.alone(
        "  new processes meanwhile",
        role.number("processes ")?,
        "a second",
        None,
    );
    let memory = role.number("VmRSS ")? / 1024.0;
    report.alone("recorder's memory", memory, "MiB", 40.0);
    let peak = role.number("VmHWM ")? / 1024.0;
    report.alone("  its peak memory", peak, "MiB", None);
    Ok(())
}

/// The role `recorder`: records the machine for a while, and prints samples per second, its share of
/// a CPU, and memory in KiB.
pub(crate) fn record() {
    let started = cpu_time();
    let mut sampler = match sampler(&Options::new(Targets::All)) {
        Ok(sampler) => sampler,
        Err(why) => return eprintln!("{why}"),
    };
    let (mut catalog, mut kept) = (Catalog::new(), Vec::new());
    // The first scan of each process costs more than the later ones.
    for warm in [true, false] {
        let (start, used) = (Instant::now(), cpu_time());
        let before = catalog.processes().len();
        let mut samples = 0_u32;
        while start.elapsed() < TIME * if warm { 1 } else { 4 } {
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |sample| {
                samples += 1;
                kept.push(sample);
            });
        }
        if !warm {
            let elapsed = start.elapsed().as_secs_f64();
            let used = cpu_time() - used;
            println!("samples {}", f64::from(samples) / elapsed);
            println!("cpu {}", used.as_secs_f64() / elapsed);
            let new = catalog.processes().len() - before;
            println!("processes {}", new as f64 / elapsed);
        } else {
            println!("start {}", (cpu_time() - started).as_secs_f64());
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name @ ("VmRSS:" | "VmHWM:")), Some(size)) = (words.next(), words.next()) {
            println!("{} {size}", name.trim_end_matches(':'));
        }
    }
    child::wait();
}

/// CPU time of this process, user and system.
fn cpu_time() -> Duration {
    // SAFETY: the structure is plain data and lives through the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Time from the start to the first sample with a context.
fn start(report: &mut Report) -> Result<(), String> {
    let _target = spin(&[])?;
    let mut others = Vec::new();
    for _ in 0..PROCESSES {
        let other = Command::new("sleep").arg("1000").spawn();
        others.push(other.map_err(|error| error.to_string())?);
    }
    let mut times = Vec::new();
    for _ in 0..5 {
        times.push(first_sample());
    }
    for mut other in others {
        // Both fail only if it has ended already.
        let _ = other.kill();
        let _ = other.wait();
    }
    let mut times = times.into_iter().collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    let work = format!("start to the first context, {PROCESSES} processes");
    report.alone(work, times[times.len() / 2], "ms", 300.0);
    Ok(())
}

/// In milliseconds.
fn first_sample() -> Result<f64, String> {
    let start = Instant::now();
    let mut sampler = sampler(&Options::new(Targets::All))?;
    let mut catalog = Catalog::new();
    let mut found = false;
    while !found {
        if start.elapsed() > Duration::from_secs(10) {
            return Err("no sample with a context within 10 s".into());
        }
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| {
            found |= matches!(sample.found, Found::Attached(_));
        });
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
