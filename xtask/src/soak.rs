//! `cargo xtask soak [RUN…]`: runs that take minutes, started by hand. CI does not run them.

use anyhow::{Context, bail};

use crate::bench;
use crate::files::table;
use crate::report::{self, Done, Words};
use crate::workspace::cargo;

const RUNS: &str = include_str!("soak.tsv");

/// Runs the named runs, or lists all runs.
pub(crate) fn run(names: &[String]) -> Done {
    let runs: Vec<[&str; 5]> = table(RUNS)?;
    let is_known = |name: &&String| runs.iter().any(|run| run[0] == **name);
    let unknown = names.iter().find(|name| !is_known(name));
    if names.is_empty() || unknown.is_some() {
        println!("cargo xtask soak RUN…, as root on a machine that does nothing else:\n");
        for [name, minutes, summary, ..] in &runs {
            println!("  {name:<10}{minutes:>2} min  {summary}");
        }
        match unknown {
            Some(name) => bail!("no such run: {name}"),
            None => return report::skipped("no run was named"),
        }
    }
    for [name, _, _, how, variable] in runs {
        if names.iter().any(|it| it == name) {
            let done = match how {
                "bench" => bench::run(&[name.into()]),
                _ => test(how, variable),
            };
            done.with_context(|| name.to_owned())?;
        }
    }
    report::passed(names.join(", "))
}

/// Runs a test in the release profile.
fn test(arguments: &str, variable: &str) -> Done {
    let mut test = cargo("test --release --quiet --locked");
    if let Some((name, value)) = variable.split_once('=')
        && std::env::var_os(name).is_none()
    {
        test.env(name, value);
    }
    report::run(test.words(arguments))?;
    report::passed(arguments)
}
