//! OpenTelemetry's and `tracing`'s own work with contexts, with and without publishing them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::pair::{self, Rounds};
use crate::row::Report;
use crate::{machine, scratch};

/// What is done, the way it is published, and how much longer it may take, in nanoseconds.
const ROWS: [(&str, &str, &str, f64); 4] = [
    (
        "OpenTelemetry: attach and detach, by the observer",
        "attach",
        "observer",
        20.0,
    ),
    (
        "OpenTelemetry: a span, by the observer",
        "span",
        "observer",
        40.0,
    ),
    (
        "tracing: enter and exit, by the observer",
        "enter",
        "observer",
        20.0,
    ),
    (
        "tracing: enter and exit, by the layer",
        "enter",
        "layer",
        45.0,
    ),
];
/// Pairs of processes for each row: on a busy machine, what one pair measures for a span is up to 20 ns off.
const PAIRS: usize = 9;
/// Turns of each process of a pair.
const TURNS: usize = 401;
/// How long a turn is, in nanoseconds: much longer than the processor takes to have the process in its caches again,
/// and much shorter than a time slice.
const TURN_NS: f64 = 200_000.0;

pub(crate) fn run(report: &mut Report) {
    report.group("traced");
    let _pinned = machine::Pinned::to(0);
    let built = scratch::cargo_build(&["-p", "otelctx-bench", "--bin", "traced"]);
    let program = built.and_then(|files| {
        let program = files.into_iter().find(|path| path.ends_with("traced"));
        program.ok_or("cargo built no traced".to_owned())
    });
    let program = match program {
        Ok(program) => program,
        Err(why) => return report.failed("build", &why),
    };
    for (name, work, way, bound) in ROWS {
        match measure(&program, work, way) {
            Ok([none, more]) => {
                report.alone(format!("{name}: without"), none, "ns", None);
                report.alone(format!("{name}: more"), more, "ns", Some(bound));
            }
            Err(why) => report.failed(name, &why),
        }
    }
}

/// A running `traced`.
struct Traced {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Traced {
    fn start(program: &Path, way: &str) -> std::io::Result<Self> {
        let mut child = Command::new(program)
            .arg(way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().expect("standard output is a pipe");
        let mut traced = Self {
            child,
            answers: BufReader::new(stdout),
        };
        traced.answers.read_line(&mut String::new())?;
        Ok(traced)
    }

    /// Nanoseconds for one repetition.
    fn time(&mut self, work: &str, count: u64) -> f64 {
        let stdin = self.child.stdin.as_mut().expect("standard input is a pipe");
        let mut line = String::new();
        let asked = writeln!(stdin, "{work} {count}");
        let _ = asked.and_then(|()| self.answers.read_line(&mut line));
        line.trim()
            .parse()
            .map_or(f64::NAN, |time: f64| time / count as f64)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The time of a work without publishing, and how much longer it takes with it, in nanoseconds:
/// medians of all turns of all pairs.
fn measure(program: &Path, work: &str, way: &str) -> Result<[f64; 2], String> {
    let start = |way| Traced::start(program, way).map_err(|error| error.to_string());
    let mut rounds = Rounds::default();
    for _ in 0..PAIRS {
        let (mut ours, mut none) = (start(way)?, start("none")?);
        ours.time(work, 100_000);
        none.time(work, 100_000);
        let count = (TURN_NS / none.time(work, 10_000)).max(1.0) as u64;
        let pair = pair::interleave(TURNS, || ours.time(work, count), || none.time(work, count));
        rounds.extend(pair);
    }
    Ok([rounds.medians(1.0).peer, rounds.difference()])
}
