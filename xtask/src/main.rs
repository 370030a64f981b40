//! The project's development tasks: `cargo xtask TASK`. One file per task.

mod aarch64;
mod advisories;
mod api;
mod bench;
mod bpf;
mod c;
mod check;
mod circles;
mod collector;
mod counts;
mod debian;
mod files;
mod flaky;
mod footprint;
mod fuzz;
mod go;
mod guest;
mod kernels;
mod licences;
mod miri;
mod msrv;
mod musl;
mod named_kernel;
mod nextest;
mod node;
mod package;
mod python;
mod release;
mod report;
mod repository;
mod setup;
mod soak;
mod supervise;
mod test;
mod unprivileged;
mod words;
mod workflows;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};
use counts::Counts;
use report::Done;

const USAGE: &str = include_str!("usage.txt");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((task, rest)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    if let "test" | "check" = task.as_str()
        && let Some(code) = supervise::supervise(task)
    {
        return code;
    }
    let Some(done) = run(task, rest) else {
        if let "help" | "-h" | "--help" = task.as_str() {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        eprint!("no such task: {task}\n\n{USAGE}");
        return ExitCode::from(2);
    };
    debian::remove_lists();
    // Standard output belongs to the task (`bench --json`).
    eprintln!("{task}: {}", report::line(&done));
    ExitCode::from(u8::from(done.is_err()))
}

/// Runs a task, if there is one of this name.
fn run(task: &str, rest: &[String]) -> Option<Done> {
    let counts = &mut Counts::default();
    Some(match task {
        "check" => check::run(),
        "setup" => has_flag(rest, "--all").and_then(setup::run),
        "test" => test::run(rest),
        "unprivileged" => unprivileged::run(counts),
        "fuzz" => fuzz::run(rest),
        "msrv" => msrv::run(),
        "flaky" => flaky::run(rest),
        "python" => python::run(true, counts),
        "wheel" => python::wheel(),
        "node" => node::run(rest),
        "c" => c::run(rest),
        "miri" => miri::run(),
        "footprint" => footprint::run(),
        "package" => package::run(),
        "release" => release::run(rest),
        "workflows" => workflows::run(),
        "aarch64" => aarch64::run_with(rest, counts),
        "kernels" => kernels::run(rest, counts),
        "licences" => licences::run(),
        "advisories" => advisories::run(rest),
        "bpf" => has_flag(rest, "--check").and_then(bpf::run),
        "go-offsets" => go::run(),
        "words" => words::run(),
        "circles" => circles::run(),
        "api" => has_flag(rest, "--write").and_then(api::run),
        "bench" => bench::run(rest),
        "soak" => soak::run(rest),
        _ => return None,
    })
}

/// Whether a task's only argument is this flag.
fn has_flag(arguments: &[String], flag: &str) -> Result<bool> {
    match arguments {
        [] => Ok(false),
        [argument] if argument == flag => Ok(true),
        _ => bail!("it takes no argument, or {flag}"),
    }
}
