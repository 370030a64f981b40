//! Reading a process context.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::time::Instant;

use otelctx_fixtures::system_calls;
use otelctx_reader::{ContextState, Process};

use crate::child::{self, Role};
use crate::row::Report;
use crate::{machine, pair};

/// Mappings of the target.
const MAPPINGS: usize = 25;
const ROUNDS: usize = 4001;
const POLLS: u32 = 1000;

pub(crate) fn run(report: &mut Report) {
    report.group("reader");
    let _pinned = machine::Pinned::to(0);
    let target = match Role::start(&["publisher", &MAPPINGS.to_string()]) {
        Ok(target) => target,
        Err(why) => return report.failed("target", &why),
    };
    first_read(report, &target);
    let work = "poll of an unchanged context";
    match polls(target.pid()) {
        Ok(calls) => report.alone(work, calls, "system calls", 1.0),
        Err(why) => report.failed(work, &why),
    }
}

/// Opening a process and reading its context, against reading the bare list of its mappings.
fn first_read(report: &mut Report, target: &Role) {
    let pid = target.pid();
    let maps = format!("/proc/{pid}/maps");
    let mappings = std::fs::read_to_string(&maps)
        .unwrap_or_default()
        .lines()
        .count();
    let work = format!("first read, {mappings} mappings, to reading the bare list");
    if let Err(why) = read(pid) {
        return report.failed(&work, &why);
    }
    // The kernel returns up to 4 KiB a call: all of 25 mappings.
    let mut buffer = [0; 4096];
    let rounds = pair::interleave(
        ROUNDS,
        || time(|| read(pid).is_ok()),
        || {
            time(|| {
                File::open(&maps)
                    .and_then(|mut file| file.read(&mut buffer))
                    .is_ok()
            })
        },
    );
    report.pair(work, rounds.medians(1e3), "µs", 3.0);
}

fn read(pid: i32) -> Result<(), String> {
    let mut process = Process::open(pid).map_err(|error| error.to_string())?;
    match process.context().map_err(|error| error.to_string())? {
        ContextState::Published(_) => Ok(()),
        other => Err(format!("its context: {other:?}")),
    }
}

fn time<R>(work: impl FnOnce() -> R) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_nanos() as f64
}

/// System calls of one poll: those of a process that polls often, less those of one that reads
/// the context once.
fn polls(pid: i32) -> Result<f64, String> {
    let count = |polls: u32| {
        system_calls::count(child::command(&[
            "poll",
            &pid.to_string(),
            &polls.to_string(),
        ]))
    };
    let calls = count(POLLS)? - count(0)?;
    Ok(calls as f64 / f64::from(POLLS))
}
