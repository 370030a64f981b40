//! Shares of functions in the mixed stacks of a Python program, against py-spy. The machine must do nothing else: a
//! sample is of CPU time, and py-spy's are also of the time in which a thread waits for a CPU.

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

pub(crate) fn run(report: &mut Report) {
    report.group("shares");
    let interpreter = Interpreter::with_version("3.12").into_iter().next();
    let (Some(interpreter), Some(py_spy)) = (interpreter, py_spy()) else {
        return report.skipped(
            "all",
            "needs CPython 3.12, and the py-spy that setup installs",
        );
    };
    if let Err(why) = compare(report, &interpreter, &py_spy) {
        report.failed(&interpreter.to_string(), &why);
    }
}

/// For each function, the share of samples in whose stacks it is.
type Shares = BTreeMap<String, f64>;

fn compare(report: &mut Report, interpreter: &Interpreter, py_spy: &str) -> Result<(), String> {
    let otelctx = scratch::otelctx()?;
    let folder = Directory::new("shares");
    let modules = folder.path().join("modules");
    let mut pip = Command::new(&interpreter.path);
    pip.args(["-m", "pip", "install", "--quiet", "--target"]);
    scratch::output(pip.arg(&modules).args(MODULES))?;

    let stacks = folder.path().join("stacks.folded");
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut recorder = Command::new(&otelctx);
        recorder.args(["record", "--by", "none", "-F", &FREQUENCY.to_string()]);
        recorder.arg("-o").arg(&stacks);
        record(&mut recorder, interpreter, &modules, FREQUENCY)?;
        ours.push(shares(&stacks, |frame| frame)?);

        let mut recorder = Command::new(py_spy);
        recorder.args(["record", "--native", "-f", "raw"]);
        recorder.args(["-r", &PEER_FREQUENCY.to_string()]);
        recorder.arg("-o").arg(&stacks);
        record(&mut recorder, interpreter, &modules, PEER_FREQUENCY)?;
        // Such as `work (mixed.py:55)`.
        peer.push(shares(&stacks, |frame| {
            frame.split_once(" (").map_or(frame, |(name, _)| name)
        })?);
    }
    let samples = |sides: &[(Shares, f64)]| quantile(sides.iter().map(|it| it.1).collect(), 0.5);
    report.alone("samples", samples(&ours), "samples", None);
    report.alone("  of py-spy", samples(&peer), "samples", None);

    let (ours, peer) = (medians(&ours), medians(&peer));
    let common = ours.iter().filter_map(|(name, share)| {
        let of_peer = *peer.get(name)?;
        let is_large = share.max(of_peer) >= MIN_SHARE;
        is_large.then(|| (&name[..], (share - of_peer).abs() * 100.0))
    });
    let (inlined, others): (Vec<_>, Vec<_>) = common.partition(|it| INLINED.contains(&it.0));
    let number = others.len() as f64;
    report.alone("functions that both name", number, "functions", None);
    let (name, difference) = largest(&others)?;
    let work = format!("  largest difference of shares: {name}");
    report.alone(work, difference, "points", 2.0);
    let (name, difference) = largest(&inlined)?;
    let work = format!("  of inlined functions: {name}");
    report.alone(work, difference, "points", None);
    Ok(())
}

/// The function whose shares differ most, and by how much.
fn largest<'n>(functions: &[(&'n str, f64)]) -> Result<(&'n str, f64), String> {
    let largest = functions
        .iter()
        .max_by(|one, other| one.1.total_cmp(&other.1));
    largest
        .copied()
        .ok_or("there are no common functions".into())
}

/// Records the program for as long as the samples take.
fn record(
    recorder: &mut Command,
    interpreter: &Interpreter,
    modules: &Path,
    frequency: u32,
) -> Result<(), String> {
    let seconds = SAMPLES.div_ceil(frequency) + 3;
    let program = scratch::root().join("bench/python/mixed.py");
    recorder.arg("--").arg(&interpreter.path).arg(program);
    recorder.arg(seconds.to_string()).env("PYTHONPATH", modules);
    // Otherwise numpy's threads would be sampled, too.
    scratch::output(recorder.env("OPENBLAS_NUM_THREADS", "1")).map(drop)
}

/// Reads folded stacks; also returns the number of samples.
fn shares(path: &Path, name: impl Fn(&str) -> &str) -> Result<(Shares, f64), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (mut counts, mut all) = (Shares::new(), 0.0);
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').ok_or("a line without a count")?;
        let count: f64 = count.parse().map_err(|_| format!("a count of {count}"))?;
        all += count;
        for function in stack.split(';').map(&name).collect::<BTreeSet<_>>() {
            *counts.entry(function.to_owned()).or_default() += count;
        }
    }
    let shares = counts.into_iter().map(|(name, count)| (name, count / all));
    Ok((shares.collect(), all))
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
