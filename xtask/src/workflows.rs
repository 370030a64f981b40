//! `cargo xtask workflows`: actionlint accepts what CI services run.

use std::process::Command;

use crate::report::{self, Outcome};
use crate::workspace::{have, root};

const ACTIONLINT: &str = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12";

pub(crate) fn run() -> Outcome {
    if !have("go") {
        return Outcome::Skipped("no go, which builds actionlint".into());
    }
    let mut command = Command::new("go");
    // Without the other linters that the machine may have.
    command.args(["run", ACTIONLINT, "-shellcheck=", "-pyflakes="]);
    let checked = report::run(command.current_dir(root()));
    checked.map(|()| Outcome::Passed(ACTIONLINT.into())).into()
}
