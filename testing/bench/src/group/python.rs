//! Reading and recording Python programs, against py-spy. The measure is CPU time, of whole commands with their
//! children.

use std::fs;
use std::io::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Target, system_calls};
use otelctx_python::{Python, ThreadStates};
use otelctx_reader::remote::{FileCache, LiveProcess, Modules, Process};
use otelctx_reader::runtime::Runtimes;
use otelctx_sampler::sample::Catalog;
use otelctx_sampler::{INTERVAL, KernelObject, Options, Targets};

use super::sampler::{sampler, with_statistics};
use crate::child;
use crate::pair::{Rounds, quantile};
use crate::row::Report;
use crate::scratch::{self, Directory};
use crate::stopped_time;

/// Versions that py-spy reads.
const VERSIONS: [&str; 2] = ["3.11", "3.12"];
/// Pairs of dumps.
const DUMPS: usize = 15;
/// Pairs of dumps of 1,000 threads.
const LONG_DUMPS: usize = 9;
/// Pairs of recordings.
const RECORDINGS: usize = 21;
/// Thread states of a list, and how often it is read.
const STATES: usize = 1000;
const LISTS: usize = 100;
/// How long a program is sampled.
const TIME: Duration = Duration::from_secs(5);
/// Sampling frequency per CPU, in Hz.
const FREQUENCY: u32 = 99;

pub(crate) fn run(report: &mut Report) {
    report.group("python");
    let interpreters: Vec<Interpreter> = VERSIONS
        .iter()
        .flat_map(|it| Interpreter::installed(it))
        .collect();
    for interpreter in &interpreters {
        if let Err(why) = list(report, interpreter) {
            report.failed(&format!("list, {interpreter}"), &why);
        }
    }
    let Some(py_spy) = py_spy() else {
        return report.skipped("all others", "cargo xtask setup has not installed py-spy");
    };
    let otelctx = match scratch::otelctx() {
        Ok(path) => path,
        Err(why) => return report.failed("otelctx", &why),
    };
    let commands = |interpreter| Commands {
        otelctx: &otelctx,
        py_spy: &py_spy,
        interpreter,
    };
    for interpreter in &interpreters {
        if let Err(why) = commands(interpreter).dumps(report) {
            report.failed(&format!("dump, {interpreter}"), &why);
        }
    }
    // One version is enough: what is added depends on the recorder.
    if let Some(interpreter) = interpreters.last() {
        if let Err(why) = commands(interpreter).recordings(report) {
            report.failed(&format!("record, {interpreter}"), &why);
        }
        if let Err(why) = kernel_and_stopped_time(report, interpreter) {
            report.failed(&format!("record, {interpreter}"), &why);
        }
    }
}

/// The peer, which setup installs.
pub(super) fn py_spy() -> Option<String> {
    let path = scratch::root().join("target/setup/py-spy/bin/py-spy");
    path.exists().then(|| path.display().to_string())
}

/// A program of `testing/bench/python`.
fn program(interpreter: &Interpreter, name: &str) -> Command {
    let path: PathBuf = scratch::root().join("testing/bench/python").join(name);
    let mut command = Command::new(&interpreter.path);
    command.arg(path);
    command
}

/// Both commands, and the interpreter of what they read.
struct Commands<'c> {
    otelctx: &'c str,
    py_spy: &'c str,
    interpreter: &'c Interpreter,
}

impl Commands<'_> {
    fn dumps(&self, report: &mut Report) -> Result<(), String> {
        let interpreter = self.interpreter;
        for (threads, pairs, bound) in [("50", DUMPS, 0.45), ("1000", LONG_DUMPS, 0.25)] {
            let target = Target::spawn(program(interpreter, "sleepers.py").arg(threads));
            let pid = target.pid().to_string();
            let peer = ["dump", "--nonblocking", "--pid", &pid];
            let rounds = self.compare(pairs, &["dump", &pid], &peer)?;
            let work = format!("dump of {threads} threads, {interpreter}");
            report.pair(work, rounds.medians(1e6), "ms", bound);
            if threads == "50" {
                let peer = ["dump", "--native", "--pid", &pid];
                let rounds = self.compare(pairs, &["dump", "--stacks", &pid], &peer)?;
                let work = format!("the same with native frames, {interpreter}");
                report.pair(work, rounds.medians(1e6), "ms", 0.4);
            }
        }
        Ok(())
    }

    fn compare(&self, pairs: usize, ours: &[&str], peer: &[&str]) -> Result<Rounds, String> {
        // The files are in the page cache afterwards.
        cpu_time(self.otelctx, ours)?;
        cpu_time(self.py_spy, peer)?;
        let mut rounds = Rounds::default();
        for round in 0..pairs {
            if round % 2 == 0 {
                let ours = cpu_time(self.otelctx, ours)?;
                rounds.push(ours, cpu_time(self.py_spy, peer)?);
            } else {
                let peer = cpu_time(self.py_spy, peer)?;
                rounds.push(cpu_time(self.otelctx, ours)?, peer);
            }
        }
        Ok(rounds)
    }

    /// CPU time of a program that is recorded, by its own account.
    fn recordings(&self, report: &mut Report) -> Result<(), String> {
        let folder = Directory::new("python");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (result, profile) = (path("result"), path("profile"));
        let frequency = FREQUENCY.to_string();
        let program = scratch::root().join("testing/bench/python/busy.py");
        let [python, program] =
            [&self.interpreter.path, &program].map(|it| it.display().to_string());
        let work = [&python[..], &program, "1500", &result];
        let ours = [
            "record",
            "-F",
            &frequency,
            "-o",
            &path("profile.pb.gz"),
            "--",
        ];
        let peer = [
            "record", "-r", &frequency, "-f", "raw", "-o", &profile, "--",
        ];
        let mut times = Rounds::default();
        let (mut recorders, mut alone) = (Rounds::default(), Vec::new());
        let run = |recorder: Option<(&str, &[&str])>| {
            let _ = fs::remove_file(&result);
            let own = match recorder {
                Some((name, arguments)) => cpu_time(name, &[arguments, &work].concat())?,
                None => cpu_time(work[0], &work[1..])?,
            };
            let program =
                fs::read_to_string(&result).map_err(|error| format!("{result}: {error}"))?;
            let program: f64 = program.trim().parse().map_err(|_| program)?;
            Ok::<_, String>((program * 1e9, own - program * 1e9))
        };
        let (ours, peer) = ((self.otelctx, &ours[..]), (self.py_spy, &peer[..]));
        for round in 0..RECORDINGS {
            let (ours, peer) = if round % 2 == 0 {
                let ours = run(Some(ours))?;
                (ours, run(Some(peer))?)
            } else {
                let peer = run(Some(peer))?;
                (run(Some(ours))?, peer)
            };
            times.push(ours.0, peer.0);
            recorders.push(ours.1, peer.1);
            alone.push(run(None)?.0);
        }
        let name = format!("CPU time of a recorded program, {}", self.interpreter);
        report.pair(name, times.medians(1e9), "s", 1.0);
        let alone = quantile(alone, 0.5) / 1e9;
        report.alone("  of the same, not recorded", alone, "s", None);
        report.pair("  of the recorders", recorders.medians(1e9), "s", None);
        Ok(())
    }
}

/// CPU time of a program and its children until it ends, in nanoseconds.
fn cpu_time(program: &str, arguments: &[&str]) -> Result<f64, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let failed = |error: Error| format!("{program}: {error}");
    let child = command.spawn().map_err(failed)?;
    let mut status = 0;
    // SAFETY: a zeroed one is valid, and both outlive the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let pid = child.id() as i32;
        if libc::wait4(pid, &raw mut status, 0, &raw mut usage) != pid {
            return Err(failed(Error::last_os_error()));
        }
        usage
    };
    if status != 0 {
        return Err(format!("{program} {arguments:?} failed: {status:#x}"));
    }
    let time = |time: libc::timeval| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3;
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

/// All thread states of a process.
fn list(report: &mut Report, interpreter: &Interpreter) -> Result<(), String> {
    let mut command = program(interpreter, "sleepers.py");
    let target = Target::spawn(command.arg(STATES.to_string()));
    let times = lists(target.pid(), LISTS)?;
    let work = format!("list of {STATES} thread states, {interpreter}");
    report.alone(work, quantile(times, 0.5) / 1e6, "ms", 2.0);
    let calls = |count: usize| {
        let (pid, count) = (target.pid().to_string(), count.to_string());
        system_calls::count(child::command(&["python-list", &pid, &count]))
    };
    let calls = (calls(LISTS)? - calls(0)?) as f64 / LISTS as f64;
    report.alone("  system calls of a list", calls, "system calls", 60.0);
    Ok(())
}

/// Lists the thread states of a process this often; returns how long each list took, in nanoseconds. Also a role of
/// the bench program.
pub(crate) fn lists(pid: i32, count: usize) -> Result<Vec<f64>, String> {
    let process = Process::open(pid).map_err(|error| error.to_string())?;
    let memory = process.memory().map_err(|error| error.to_string())?;
    let target = LiveProcess::new(&process, &memory);
    let modules =
        Modules::read(&target, &FileCache::default()).map_err(|error| error.to_string())?;
    let states = ThreadStates::find(&target, &modules).map_err(|error| error.to_string())?;
    let states = states.ok_or("there is no Python")?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        let listed = states.list(&target).map_err(|error| error.to_string())?;
        times.push(start.elapsed().as_nanos() as f64);
        if listed.len() != STATES {
            return Err(format!("{} thread states", listed.len()));
        }
    }
    Ok(times)
}

/// Time of the eBPF program, and time that threads are stopped, while a busy program is sampled.
fn kernel_and_stopped_time(report: &mut Report, interpreter: &Interpreter) -> Result<(), String> {
    let target = Target::spawn(&mut interpreter.command("sampled.py"));
    let Some(measured) = with_statistics(|| sample(target.pid())) else {
        report.skipped("eBPF", "needs root, for kernel.bpf_stats_enabled");
        return Ok(());
    };
    let (kernel, stopped, samples) = measured?;
    let work = format!("eBPF and stops, at {FREQUENCY} Hz, of the time");
    report.alone(work, (kernel + stopped) * 100.0, "%", 1.0);
    report.alone("  of this, stopped", stopped * 100.0, "%", None);
    report.alone("  samples", samples, "a second", None);
    Ok(())
}

/// Shares of the time that the eBPF program runs, and that threads are stopped; and samples a second.
fn sample(pid: i32) -> Result<(f64, f64, f64), String> {
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.frequency = FREQUENCY;
    options.runtimes = Runtimes::new(vec![Arc::new(Python::default())]);
    options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
    let stopped = stopped_time::total();
    let start = Instant::now();
    let mut sampler = sampler(&options)?;
    let (mut catalog, mut samples) = (Catalog::new(), 0.0);
    while start.elapsed() < TIME {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |_| samples += 1.0);
    }
    let (kernel, _) = sampler.kernel_time().ok_or("the program did not run")?;
    let stopped = stopped_time::total() - stopped;
    let elapsed = start.elapsed().as_secs_f64();
    let share = |time: Duration| time.as_secs_f64() / elapsed;
    Ok((share(kernel), share(stopped), samples / elapsed))
}
