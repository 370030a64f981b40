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

use counts::Counts;
use report::Outcome;

const USAGE: &str = "\
cargo xtask TASK

  check         format, lints and unit tests: the inner loop, under 3 minutes
  setup         install what the tests need, and say what is missing  [--all]
  test          setup, then the tests on the usual targets
                [--all[=PART,…] [--resume]]  on all targets
  flaky         run tests 20 times beside a load that takes all CPUs  [PATTERN] [N]
  unprivileged  the tests again as the user nobody
  fuzz          run the fuzz targets  [--seconds N] [--keep] [TARGET]
  msrv          compile the application crates with an older Rust, and for other targets
  aarch64       the tests for aarch64, under an arm64 kernel in an emulator
                [--short] [VERSION]
  kernels       the tests under other kernels, in an emulator; about an hour
                [--short | --package NAME] [VERSION…]
  c             build the C library, and install it with its packages
                [--musl] [--prefix FOLDER]
  miri          run the format crate's tests under Miri
  python        build the Python package, and run its tests with every CPython
  wheel         build the Python package with a release build of the command, for older systems
  node          build the npm package for older systems, and load it with each Node.js
                [--native | --bench]
  footprint     check what the publisher adds to an application's dependency tree
  package       compile the published crates from their packaged files
  release       make everything that is published, try it, and publish it
                [--dry-run [STEP…]]
  workflows     check .github/workflows with actionlint
  licences      check every dependency's licence against deny.toml
  advisories    check every dependency against known advisories  [--refresh CHECKOUT]
  circles       check for files that use each other in a circle
  api           compare the public API of the library crates with docs/api  [--write]
  words         check that texts and names use the glossary's words
  bpf           rebuild the sampler's eBPF programs  [--check]
  bench         run the benchmarks  [GROUP] [--json]
  soak          the runs that take minutes, by hand  [RUN…]
";

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
    let outcome = match task.as_str() {
        "check" => check::run(),
        "setup" => match rest {
            [] => setup::run(setup::Tier::Usual),
            [flag] if flag == "--all" => setup::run(setup::Tier::All),
            _ => Outcome::Failed("setup takes no argument, or --all".into()),
        },
        "test" => test::run(rest),
        "unprivileged" => unprivileged::run(&mut Counts::default()),
        "fuzz" => fuzz::run(rest),
        "msrv" => msrv::run(),
        "flaky" => flaky::run(rest),
        "python" => python::run(python::Selection::All, &mut Counts::default()),
        "wheel" => python::wheel(),
        "node" => node::run(rest),
        "c" => c::run(rest),
        "miri" => miri::run(),
        "footprint" => footprint::run(),
        "package" => package::run(),
        "release" => release::run(rest),
        "workflows" => workflows::run(),
        "aarch64" => aarch64::run_with(rest, &mut Counts::default()),
        "kernels" => kernels::run(rest, &mut Counts::default()),
        "licences" => licences::run(),
        "advisories" => advisories::run(rest),
        "bpf" => bpf::run(rest),
        "words" => words::run(),
        "circles" => circles::run(),
        "api" => api::run(rest),
        "bench" => bench::run(rest),
        "soak" => soak::run(rest),
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        unknown => {
            eprint!("no such task: {unknown}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    debian::remove_lists();
    // Standard output belongs to the task (`bench --json`).
    eprintln!("{task}: {outcome}");
    match outcome {
        Outcome::Failed(_) => ExitCode::FAILURE,
        Outcome::Passed(_) | Outcome::Skipped(_) => ExitCode::SUCCESS,
    }
}
