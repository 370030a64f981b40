//! `cargo xtask footprint`: what the publisher brings into an application's dependency tree.

use std::collections::BTreeSet;

use anyhow::bail;

use crate::report::{self, Done, Words};
use crate::workspace::{APPLICATION_CRATES, cargo};

/// Maximum number of crates in the publisher's tree, including itself.
const MAX_CRATES: usize = 5;

/// Checks that every crate for applications has at most five crates in its tree, and no procedural
/// macros.
pub(crate) fn run() -> Done {
    let mut lines = Vec::new();
    for name in APPLICATION_CRATES {
        // Build dependencies count: an application builds them too.
        let mut tree = cargo("tree --locked --edges normal,build --target all --prefix none");
        let tree = report::output(tree.words("--format {p} -p").arg(name))?;
        if tree.contains("(proc-macro)") {
            bail!("{name} has a procedural macro in its tree:\n{tree}");
        }
        let names = tree.lines().filter_map(|line| line.split(' ').next());
        let count = names.collect::<BTreeSet<_>>().len();
        if count > MAX_CRATES {
            bail!("{name} has over {MAX_CRATES} crates:\n{tree}");
        }
        lines.push(format!("{name} {count}"));
    }
    let lines = lines.join(", ");
    report::passed(format!("crates in the tree: {lines}; no procedural macro"))
}
