//! `cargo xtask workflows`: actionlint accepts what CI services run.

use crate::report::{self, Done, command};
use crate::workspace::{have, root};

const ACTIONLINT: &str = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12";

pub(crate) fn run() -> Done {
    if !have("go") {
        return report::skipped("no go, which builds actionlint");
    }
    let mut lint = command("go run");
    // Without the other linters that the machine may have.
    lint.args([ACTIONLINT, "-shellcheck=", "-pyflakes="]);
    report::run(lint.current_dir(root()))?;
    report::passed(ACTIONLINT)
}
