//! `cargo xtask footprint`: what the publisher brings into an application's dependency tree.

use std::collections::BTreeSet;

use crate::report::{self, Outcome};
use crate::workspace::{APPLICATION_CRATES, cargo};

/// Maximum number of crates in the publisher's tree, including itself.
const MAX_CRATES: usize = 5;

/// Checks that every crate for applications has at most five crates in its tree, and no procedural
/// macros.
pub(crate) fn run() -> Outcome {
    let mut lines = Vec::new();
    for name in APPLICATION_CRATES {
        let mut command = cargo();
        // Build dependencies count: an application builds them too.
        command.args(["tree", "--locked", "-p", name, "--edges", "normal,build"]);
        command.args(["--target", "all", "--prefix", "none", "--format", "{p}"]);
        let tree = match report::output(&mut command) {
            Ok(tree) => tree,
            Err(error) => return Outcome::Failed(error),
        };
        if tree.contains("(proc-macro)") {
            return Outcome::Failed(format!(
                "{name} has a procedural macro in its tree:\n{tree}"
            ));
        }
        let crates: BTreeSet<_> = tree
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        if crates.len() > MAX_CRATES {
            return Outcome::Failed(format!("{name} has over {MAX_CRATES} crates:\n{tree}"));
        }
        lines.push(format!("{name} {}", crates.len()));
    }
    Outcome::Passed(format!(
        "crates in the tree: {}; no procedural macro",
        lines.join(", ")
    ))
}
