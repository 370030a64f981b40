//! The eBPF program's time for samples whose user stacks are unwound by tables.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use otelctx_sampler::sample::Catalog;
use otelctx_sampler::{INTERVAL, Options, Targets};

use super::cost::{Interval, of_a_sample};
use super::{sampler, spin};
use crate::row::Report;
use crate::scratch::Directory;

/// Sampling frequency per CPU, in Hz.
const FREQUENCY: u32 = 999;
const TIME: Duration = Duration::from_secs(4);
/// Functions that the compiler translates in a few hundred milliseconds: a compiler that runs already when
/// sampling starts is not sampled.
const FUNCTIONS: usize = 200;

/// Calls itself 12 deep, below four calls of the interpreter and its start.
const PYTHON: &str = "import json\n\
    def f(n): return json.dumps([{'a': i} for i in range(20)]) if n == 0 else f(n - 1)\n\
    while True: f(12)";
const NODE: &str = "function f(n) { return n ? 1 + f(n - 1) : JSON.stringify([{a: n}, {b: n}]).length }\n\
    while (true) f(4)";

/// A process that is killed when dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> io::Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).spawn().map(Self)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `empty` is the time of a run that meets no target, in nanoseconds.
pub(super) fn run(report: &mut Report, empty: f64) -> Result<(), String> {
    let directory = Directory::new("unwind");
    let source = directory.path().join("large.c");
    let mut text = String::new();
    for number in 0..FUNCTIONS {
        writeln!(
            text,
            "int f{number}(int *a, int n) {{ int s = {number}; \
             for (int i = 0; i < n; i++) {{ s += a[i] * (i ^ s); if (s & 7) a[i] += s / 3; }} return s; }}"
        )
        .map_err(|error| error.to_string())?;
    }
    fs::write(&source, text).map_err(|error| error.to_string())?;
    let compile = format!(
        "while :; do gcc -O2 -S -o /dev/null {}; done",
        source.display()
    );
    for (depth, bound) in [("depth=20", 1.2), ("depth=40", 2.0)] {
        let target = spin(&[depth])?;
        add(report, "C", target.pid(), empty, bound)?;
    }
    for (name, program, arguments, bound) in [
        ("python", "/usr/bin/python3", ["-c", PYTHON], 3.0),
        ("node", "node", ["-e", NODE], 6.0),
        ("cc1", "sh", ["-c", &compile], 12.0),
    ] {
        match Process::start(Command::new(program).args(arguments)) {
            Ok(process) => add(report, name, process.0.id() as i32, empty, bound)?,
            Err(why) => report.skipped(name, &why.to_string()),
        }
    }
    Ok(())
}

fn add(report: &mut Report, name: &str, pid: i32, empty: f64, bound: f64) -> Result<(), String> {
    let (time, depth) = measure(pid, empty)?;
    let work = format!("program's time, {name}: {depth:.0} frames by tables");
    report.alone(work, time / 1e3, "µs", bound);
    Ok(())
}

/// Time of a sample in nanoseconds, and frames of its user stack, on average.
fn measure(pid: i32, empty: f64) -> Result<(f64, f64), String> {
    // Let it load its libraries.
    std::thread::sleep(Duration::from_millis(500));
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.frequency = FREQUENCY;
    options.kernel_stacks = false;
    let mut sampler = sampler(&options)?;
    if let Some(why) = sampler.without_tables() {
        return Err(why.to_string());
    }
    let mut catalog = Catalog::new();
    let (mut before, mut parts) = ((0.0, 0.0), Vec::new());
    let (mut frames, mut all) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < TIME {
        std::thread::sleep(INTERVAL);
        let mut samples = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample.user_stack));
        let (time, runs) = sampler.kernel_time().ok_or("the kernel counts no runs")?;
        let now = (time.as_nanos() as f64, runs as f64);
        // At first, the program has no rows.
        if start.elapsed() > TIME / 4 {
            parts.push(Interval {
                time: now.0 - before.0,
                runs: now.1 - before.1,
                samples: samples.len() as f64,
            });
            let depths = samples.iter().map(|stack| catalog.frame_ids(*stack).len());
            frames += depths.sum::<usize>();
            all += samples.len();
        }
        before = now;
    }
    // Others run on the other CPUs.
    let time = of_a_sample(&parts, empty, 0.05)?;
    Ok((time, frames as f64 / all.max(1) as f64))
}
