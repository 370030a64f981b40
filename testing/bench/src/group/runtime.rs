//! What a registered runtime costs a process that does not have it: the toy runtime of `testing/fixtures/runtimes`.

use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSymbol};

use crate::child::Role;
use crate::group::instructions;
use crate::pair::Pair;
use crate::row::Report;
use crate::scratch::{self, Directory};

/// Threads of the process that is dumped.
const THREADS: &str = "20";
/// Dumps of each side. The smallest count is used: a thread that runs by chance is read again.
const DUMPS: usize = 3;
/// The size of a BPF instruction, in bytes (`struct bpf_insn`, <linux/bpf.h>).
const BPF_INSTRUCTION: u64 = 8;

pub(crate) fn run(report: &mut Report) {
    report.group("runtime");
    let work = "sampling program, with the steps of tests";
    match kernel_programs() {
        Ok(pair) => report.pair(work, pair, "instructions", 1.0),
        Err(why) => report.failed(work, &why),
    }
    let work = "dump of 20 threads, with the toy registered";
    if !instructions::has_valgrind() {
        return report.skipped(work, instructions::NO_VALGRIND);
    }
    match dumps() {
        Ok(pair) => report.pair(work, pair, "instructions", 1.02),
        Err(why) => report.failed(work, &why),
    }
}

/// Instructions of the eBPF program that takes samples, in the object of tests and in the one without steps.
fn kernel_programs() -> Result<Pair, String> {
    let of = |object: &str| {
        let name = format!("{object}.{}.o", std::env::consts::ARCH);
        let bytes = std::fs::read(scratch::root().join(&name));
        let bytes = bytes.map_err(|error| format!("{name}: {error}"))?;
        let file = object::File::parse(&*bytes).map_err(|error| format!("{name}: {error}"))?;
        let program = file.symbol_by_name("sample");
        let program = program.ok_or(format!("{name} has no program `sample`"))?;
        Ok::<_, String>((program.size() / BPF_INSTRUCTION) as f64)
    };
    let with_steps = of("testing/fixtures/bpf/sampler")?;
    Ok(Pair::of(with_steps, of("profile/sampler/bpf/sampler")?))
}

/// Instructions of `otelctx dump` with the toy runtime and without, in its worker process too.
fn dumps() -> Result<Pair, String> {
    let otelctx = scratch::otelctx()?;
    let files = scratch::cargo_build(&["-p", "otelctx-toy", "--bin", "otelctx-toy"])?;
    let with_toy = files.iter().find(|path| path.ends_with("otelctx-toy"));
    let with_toy = with_toy.ok_or("cargo built no program")?;
    let target = Role::start(&["threads", THREADS])?;
    Ok(Pair::of(
        smallest(with_toy, target.pid())?,
        smallest(otelctx.as_ref(), target.pid())?,
    ))
}

fn smallest(program: &Path, pid: i32) -> Result<f64, String> {
    let mut smallest = f64::INFINITY;
    for _ in 0..DUMPS {
        smallest = smallest.min(dump(program, pid)?);
    }
    Ok(smallest)
}

fn dump(program: &Path, pid: i32) -> Result<f64, String> {
    let scratch = Directory::new("dump");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--trace-children=yes"]);
    command.arg(format!(
        "--callgrind-out-file={}/%p",
        scratch.path().display()
    ));
    command
        .arg(program)
        .args(["dump", "--deadline", "60", &pid.to_string()]);
    scratch::output(&mut command)?;
    let counts = std::fs::read_dir(scratch.path()).map_err(|error| error.to_string())?;
    let total = |path: &Path| {
        let text = std::fs::read_to_string(path).ok()?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        total?.trim().parse::<f64>().ok()
    };
    let totals: Vec<f64> = counts
        .flatten()
        .filter_map(|file| total(&file.path()))
        .collect();
    match totals.len() {
        2 => Ok(totals.iter().sum()),
        count => Err(format!(
            "callgrind counted {count} processes, not dump and its worker"
        )),
    }
}
