//! Benchmarks of every bound the project states: `cargo xtask bench [GROUP…] [--json] [--check]`.
//!
//! A row of the table is one operation, measured here and in a peer, with a bound on their ratio.
//! Exits with 1 if a bound does not hold.

mod child;
mod group;
mod machine;
mod pair;
mod recording;
mod row;
mod scratch;
mod stopped_time;
mod work;

use std::process::ExitCode;

use group::GROUPS;
use row::Report;

const USAGE: &str = "\
cargo xtask bench [GROUP…] [--json] [--check] [--write]

  --json    print one JSON object per row
  --check   instructions: fail where a count exceeds the recorded one by more than 1 %
  --write   instructions: record the counts in testing/bench/instructions.json

Groups; scale, python, shares, traces, methods, memory, replay, runtime and footprint run only when named:
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("child", rest)) = arguments.split_first().map(|(a, b)| (a.as_str(), b)) {
        return child::run(rest);
    }
    let (options, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|a| a.starts_with("--"));
    let has = |option: &str| options.iter().any(|given| *given == option);
    let is_option = |o: &&String| ["--json", "--check", "--write"].contains(&o.as_str());
    let is_group = |n: &&String| GROUPS.iter().any(|group| group.name == n.as_str());
    if !options.iter().all(is_option) || !names.iter().all(is_group) {
        eprint!("{USAGE}");
        for group in GROUPS {
            eprintln!("  {:<14}{}", group.name, group.summary);
        }
        return ExitCode::from(2);
    }
    let mut report = Report::new(has("--json"));
    report.check = has("--check");
    report.write = has("--write");
    if !report.json {
        println!("{}\n", machine::description());
    }
    for group in GROUPS {
        let wanted = names.iter().any(|name| *name == group.name);
        if wanted || names.is_empty() && group.by_default {
            (group.run)(&mut report);
        }
    }
    if report.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
