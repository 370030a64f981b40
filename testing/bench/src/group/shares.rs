//! Shares of functions in the mixed stacks of a Python program, against py-spy and against perf. The machine must do
//! nothing else: a sample is of CPU time, and py-spy's are also of the time in which a thread waits for a CPU.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use otelctx_fixtures::python::Interpreter;

use super::python::py_spy;
use crate::pair::quantile;
use crate::row::Report;
use crate::scratch::{self, Directory};

/// What the program imports, from PyPI.
const MODULES: [&str; 2] = ["numpy==2.4.6", "regex==2026.11.19"];
/// Recordings of each side, in turn.
const ROUNDS: usize = 3;
/// Each recording should have at least this many samples.
const SAMPLES: u32 = 20_000;
/// Sampling frequencies of both sides, in Hz: what each keeps up with.
const FREQUENCY: u32 = 499;
const PEER_FREQUENCY: u32 = 250;
/// Functions with a smaller share are not compared.
const MIN_SHARE: f64 = 0.02;
/// Functions that compilers inline in many places, some of which py-spy names.
const INLINED: [&str; 3] = ["Py_DECREF", "Py_XDECREF", "_PyThreadState_GET"];

/// A function in the stack of each sample of the program's main thread that reaches its start.
const START: &str = "Py_BytesMain";

pub(crate) fn run(report: &mut Report) {
    report.group("shares");
    let newest = |series: &str| Interpreter::installed(series).into_iter().next();
    match (newest("3.12"), py_spy()) {
        (Some(interpreter), Some(py_spy)) => {
            if let Err(why) = against_py_spy(report, &interpreter, &py_spy) {
                report.failed(&interpreter.to_string(), &why);
            }
        }
        _ => report.skipped(
            "against py-spy",
            "needs CPython 3.12, and the py-spy that setup installs",
        ),
    }
    // CPython has frame pointers from 3.15 on, which perf follows.
    match (
        newest("3.15"),
        scratch::output(Command::new("perf").arg("-v")),
    ) {
        (Some(interpreter), Ok(_)) => {
            if let Err(why) = against_perf(report, &interpreter) {
                report.failed(&interpreter.to_string(), &why);
            }
        }
        _ => report.skipped("against perf", "needs CPython 3.15, and perf"),
    }
}

/// For each function, the share of samples in whose stacks it is.
type Shares = BTreeMap<String, f64>;

fn against_py_spy(
    report: &mut Report,
    interpreter: &Interpreter,
    py_spy: &str,
) -> Result<(), String> {
    let otelctx = scratch::otelctx()?;
    let folder = Directory::new("shares");
    let modules = folder.path().join("modules");
    let mut pip = Command::new(&interpreter.path);
    pip.args(["-m", "pip", "install", "--quiet", "--target"]);
    scratch::output(pip.arg(&modules).args(MODULES))?;

    let stacks = folder.path().join("stacks.folded");
    let program = Program {
        interpreter,
        options: &[],
        modules: &modules,
        load: "all",
    };
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        program.record(&mut otelctx_record(&otelctx, &stacks), FREQUENCY)?;
        ours.push(shares(&folded(&stacks, |frame| frame)?));

        let mut recorder = Command::new(py_spy);
        recorder.args(["record", "--native", "-f", "raw"]);
        recorder.args(["-r", &PEER_FREQUENCY.to_string()]);
        recorder.arg("-o").arg(&stacks);
        program.record(&mut recorder, PEER_FREQUENCY)?;
        // Such as `work (mixed.py:55)`.
        peer.push(shares(&folded(&stacks, |frame| {
            frame.split_once(" (").map_or(frame, |(name, _)| name)
        })?));
    }
    compare(report, "py-spy", &ours, &peer)
}

/// The program's Python functions have frames of their own on the native stack (`-X perf`), for both sides, as that
/// makes calls slower. Of its other code, only libc has no frame pointers: samples that perf lost there are left out.
fn against_perf(report: &mut Report, interpreter: &Interpreter) -> Result<(), String> {
    let otelctx = scratch::otelctx()?;
    let folder = Directory::new("shares");
    let (stacks, data) = (
        folder.path().join("stacks.folded"),
        folder.path().join("perf.data"),
    );
    let program = Program {
        interpreter,
        options: &["-X", "perf"],
        modules: folder.path(),
        load: "stdlib",
    };
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    let (mut complete, mut complete_of_peer) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        program.record(&mut otelctx_record(&otelctx, &stacks), FREQUENCY)?;
        let (reaching, share) = reaching_start(folded(&stacks, |frame| frame)?);
        ours.push(shares(&reaching));
        complete.push(share);

        let mut recorder = Command::new("perf");
        // Without build IDs: perf 6.1 may abort when it has recorded those of code that was generated.
        recorder.args(["record", "-q", "-g", "-B", "-F", &FREQUENCY.to_string()]);
        recorder.arg("-o").arg(&data);
        program.record(&mut recorder, FREQUENCY)?;
        let mut script = Command::new("perf");
        script.args(["script", "-F", "ip,sym", "-i"]).arg(&data);
        let (reaching, share) = reaching_start(of_perf(&scratch::output(&mut script)?));
        peer.push(shares(&reaching));
        complete_of_peer.push(share);
    }
    let percent = |shares: Vec<f64>| quantile(shares, 0.5) * 100.0;
    report.alone("samples that reach the start", percent(complete), "%", None);
    report.alone("  of perf", percent(complete_of_peer), "%", None);
    compare(report, "perf", &ours, &peer)
}

/// Reports how much the shares of the functions that both sides name differ.
fn compare(
    report: &mut Report,
    name: &str,
    ours: &[(Shares, f64)],
    peer: &[(Shares, f64)],
) -> Result<(), String> {
    let samples = |sides: &[(Shares, f64)]| quantile(sides.iter().map(|it| it.1).collect(), 0.5);
    report.alone(
        format!("samples, against {name}"),
        samples(ours),
        "samples",
        None,
    );
    report.alone(format!("  of {name}"), samples(peer), "samples", None);

    let (ours, peer) = (medians(ours), medians(peer));
    let common = ours.iter().filter_map(|(name, share)| {
        let of_peer = *peer.get(name)?;
        let is_large = share.max(of_peer) >= MIN_SHARE;
        is_large.then(|| (&name[..], (share - of_peer).abs() * 100.0))
    });
    let (inlined, others): (Vec<_>, Vec<_>) = common.partition(|it| INLINED.contains(&it.0));
    let number = others.len() as f64;
    report.alone("functions that both name", number, "functions", None);
    let (name, difference) = largest(&others).ok_or("there are no common functions")?;
    let work = format!("  largest difference of shares: {name}");
    report.alone(work, difference, "points", 2.0);
    if let Some((name, difference)) = largest(&inlined) {
        let work = format!("  of inlined functions: {name}");
        report.alone(work, difference, "points", None);
    }
    Ok(())
}

/// The function whose shares differ most, and by how much.
fn largest<'n>(functions: &[(&'n str, f64)]) -> Option<(&'n str, f64)> {
    functions
        .iter()
        .max_by(|one, other| one.1.total_cmp(&other.1))
        .copied()
}

/// The recorder, up to the program.
fn otelctx_record(otelctx: &str, stacks: &Path) -> Command {
    let mut recorder = Command::new(otelctx);
    recorder.args(["record", "--by", "none", "-F", &FREQUENCY.to_string()]);
    recorder.arg("-o").arg(stacks);
    recorder
}

/// The program that is recorded.
struct Program<'p> {
    interpreter: &'p Interpreter,
    /// Of the interpreter.
    options: &'p [&'p str],
    /// The folder of the modules that it imports.
    modules: &'p Path,
    /// What it does, `all` or `stdlib`.
    load: &'p str,
}

impl Program<'_> {
    /// Records it for as long as the samples take.
    fn record(&self, recorder: &mut Command, frequency: u32) -> Result<(), String> {
        let seconds = SAMPLES.div_ceil(frequency) + 3;
        let program = scratch::root().join("testing/bench/python/mixed.py");
        recorder.arg("--").arg(&self.interpreter.path);
        recorder.args(self.options).arg(program);
        recorder.args([&seconds.to_string(), self.load]);
        // Otherwise numpy's threads would be sampled, too.
        recorder
            .env("PYTHONPATH", self.modules)
            .env("OPENBLAS_NUM_THREADS", "1");
        scratch::output(recorder).map(drop)
    }
}

/// The functions of a stack, and how many samples have it.
type Stack = (BTreeSet<String>, f64);

/// Reads folded stacks.
fn folded(path: &Path, name: impl Fn(&str) -> &str) -> Result<Vec<Stack>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let stack = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').ok_or("a line without a count")?;
        let count: f64 = count.parse().map_err(|_| format!("a count of {count}"))?;
        let functions = stack.split(';').map(|frame| name(frame).to_owned());
        Ok((functions.collect(), count))
    };
    text.lines().map(stack).collect()
}

/// Reads what `perf script` prints: a line for each frame, `ADDRESS FUNCTION`, and an empty one after each stack.
/// Functions of Python are called `py::NAME:FILE`.
fn of_perf(text: &str) -> Vec<Stack> {
    let name = |line: &str| {
        let name = line.trim().split_once(' ').map_or("", |(_, name)| name);
        match name.strip_prefix("py::") {
            Some(name) => name.rsplit_once(':').map_or(name, |(name, _)| name),
            None => name,
        }
        .to_owned()
    };
    text.split("\n\n")
        .filter(|stack| !stack.trim().is_empty())
        .map(|stack| (stack.trim().lines().map(name).collect(), 1.0))
        .collect()
}

/// The stacks that reach the start, and the share of samples that have them.
fn reaching_start(mut stacks: Vec<Stack>) -> (Vec<Stack>, f64) {
    let samples = |stacks: &[Stack]| stacks.iter().map(|it| it.1).sum::<f64>();
    let all = samples(&stacks);
    stacks.retain(|(functions, _)| functions.contains(START));
    let share = samples(&stacks) / all;
    (stacks, share)
}

/// Also returns the number of samples.
fn shares(stacks: &[Stack]) -> (Shares, f64) {
    let (mut counts, mut all) = (Shares::new(), 0.0);
    for (functions, count) in stacks {
        all += count;
        for function in functions {
            *counts.entry(function.clone()).or_default() += count;
        }
    }
    for count in counts.values_mut() {
        *count /= all;
    }
    (counts, all)
}

/// The median of each function's shares; 0 where it has no sample.
fn medians(rounds: &[(Shares, f64)]) -> Shares {
    let names: BTreeSet<&String> = rounds.iter().flat_map(|it| it.0.keys()).collect();
    let median = |name: &String| {
        let shares = rounds.iter().map(|it| it.0.get(name).copied());
        quantile(shares.map(Option::unwrap_or_default).collect(), 0.5)
    };
    names
        .iter()
        .map(|name| ((*name).clone(), median(name)))
        .collect()
}
