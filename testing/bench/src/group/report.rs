//! Summing up a recording of a million samples, compared with `go tool pprof -top`.

use std::path::Path;
use std::process::Command;

use otelctx_profile::{NoSymbols, Options, Profile};

use crate::pair::{Pair, quantile};
use crate::recording::{SAMPLES, TRACES, recording};
use crate::row::Report;
use crate::scratch::{self, Directory};

const PROCESSES: usize = 300;
const THREADS: usize = 4;
const ROUNDS: usize = 5;

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
    let profile = Profile::new(recording(PROCESSES, THREADS, TRACES), &mut NoSymbols);
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
    parquet(report, &otelctx, &otlp, "Parquet", 12.0)?;
    let profile = Profile::new(recording(PROCESSES, THREADS, SAMPLES), &mut NoSymbols);
    let written = profile.write_file(otlp.as_ref(), &Options::default());
    written.map_err(|error| error.to_string())?;
    drop(profile);
    parquet(report, &otelctx, &otlp, "Parquet with as many spans", 40.0)
}

/// Measures writing Parquet, with a bound of the bytes of a sample.
fn parquet(
    report: &mut Report,
    otelctx: &str,
    otlp: &str,
    name: &str,
    bytes: f64,
) -> Result<(), String> {
    let file = Path::new(otlp).with_extension("parquet");
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut command = Command::new(otelctx);
        command.args(["report", otlp, "-o"]).arg(&file);
        rounds.push(cpu_of(&mut command)?);
    }
    let size = std::fs::metadata(&file).map_err(|error| error.to_string())?;
    let (times, memory): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
    let memory = memory.into_iter().fold(0.0, f64::max);
    report.alone(format!("{name}, CPU time"), quantile(times, 0.5), "s", 2.0);
    report.alone(format!("{name}, memory"), memory, "MiB", 128.0);
    let size = size.len() as f64 / SAMPLES as f64;
    report.alone(format!("{name}, bytes a sample"), size, "bytes", bytes);
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
