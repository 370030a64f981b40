//! Benchmarks of every bound the project states: `cargo xtask bench [GROUP…] [--json] [--check]`.
//!
//! A row of the table is one piece of work, done by this project and by a peer, and the most that
//! the first may take of the second. Exits with 1 when a bound does not hold.

mod child;
mod group;
mod machine;
mod pair;
mod row;
mod scratch;
mod stopped_time;
mod work;

use std::process::ExitCode;

use group::GROUPS;
use row::Report;

const USAGE: &str = "\
cargo xtask bench [GROUP…] [--json] [--check] [--write]

  --json    one JSON object a line
  --check   instructions: a bound on each, 1 % more than the noted count
  --write   instructions: note the counts in bench/instructions.json

Groups, all but scale, traces and footprint unless named:
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("child", rest)) = arguments.split_first().map(|(a, b)| (a.as_str(), b)) {
        return child::run(rest);
    }
    let (options, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|a| a.starts_with("--"));
    let has = |option: &str| options.iter().any(|given| *given == option);
    let known_option = |o: &&String| ["--json", "--check", "--write"].contains(&o.as_str());
    let known_name = |n: &&String| GROUPS.iter().any(|group| group.name == n.as_str());
    if !options.iter().all(known_option) || !names.iter().all(known_name) {
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
