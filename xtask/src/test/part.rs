//! The parts of `cargo xtask test --all`.

use crate::counts::Counts;
use crate::nextest::Run;
use crate::report::Outcome;
use crate::{aarch64, fuzz, kernels, miri, msrv, node, package, python, unprivileged, workflows};

/// A part, which runs alone.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// What it tests in addition to the usual tests.
    pub(crate) what: &'static str,
    run: fn(&mut Counts) -> Vec<Outcome>,
}

/// Test programs with a part of their own, as filters of nextest.
const LINKERS: &str =
    "binary(matrix) | binary(links) | binary(mix) | binary(copies) | binary(export)";
const INTERPRETERS: &str =
    "package(otelctx-python) | package(otelctx-node) | package(otelctx-napi)";
const COLLECTOR: &str = "binary(real_collector)";
const VIEWERS: &str = "binary(viewers)";

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u64 = 3;

/// All parts. Together they contain the usual tests.
pub(crate) const PARTS: [Part; 12] = [
    Part {
        name: "long",
        what: "more samples, faults and repetitions",
        run: |counts| {
            let filter = format!("not ({LINKERS} | {INTERPRETERS} | {COLLECTOR} | {VIEWERS})");
            let mut outcomes = vec![tests(&filter, counts)];
            outcomes.push(super::documentation(counts));
            outcomes.push(super::features(counts));
            outcomes
        },
    },
    Part {
        name: "linkers",
        what: "every combination of C library, compiler, linker and access model",
        run: |counts| vec![tests(LINKERS, counts)],
    },
    Part {
        name: "interpreters",
        what: "every version of Python and Node.js",
        run: |counts| {
            // The tests use the package that it builds.
            let package = node::run(&[]);
            let native = tests(INTERPRETERS, counts);
            vec![package, native, python::run(python::Selection::All, counts)]
        },
    },
    Part {
        name: "collector",
        what: "what OpenTelemetry's Collector receives",
        run: |counts| vec![tests(COLLECTOR, counts)],
    },
    Part {
        name: "viewers",
        what: "profiles in a browser, in the Firefox Profiler and in speedscope",
        run: |counts| vec![tests(VIEWERS, counts)],
    },
    Part {
        name: "unprivileged",
        what: "the tests as the user nobody",
        run: |counts| vec![unprivileged::run(counts)],
    },
    Part {
        name: "kernels",
        what: "Debian's kernels 5.10, 6.1 and 7 in an emulator",
        run: |counts| vec![kernels::short(counts)],
    },
    Part {
        name: "aarch64",
        what: "an arm64 kernel in an emulator",
        run: |counts| {
            let selection = aarch64::Selection::Short;
            vec![aarch64::run(selection, &aarch64::USUAL, counts)]
        },
    },
    Part {
        name: "fuzz",
        what: "each fuzz target for 3 s",
        run: |_| vec![fuzz::smoke(FUZZ_SECONDS)],
    },
    Part {
        name: "miri",
        what: "the format crate under Miri",
        run: |_| vec![miri::run()],
    },
    Part {
        name: "msrv",
        what: "older Rusts and other targets",
        run: |_| vec![msrv::run()],
    },
    Part {
        name: "package",
        what: "the published crates from their packaged files, and the workflows",
        run: |_| {
            let mut outcomes = super::artifacts();
            outcomes.extend([package::run(), workflows::run()]);
            outcomes
        },
    },
];

impl Part {
    /// Runs it.
    pub(super) fn run(&self, counts: &mut Counts) -> Outcome {
        joined((self.run)(counts))
    }
}

/// One outcome of several: it has passed if one of them has and none has failed, and names what was skipped.
pub(super) fn joined(outcomes: Vec<Outcome>) -> Outcome {
    let (mut passed, mut skipped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Outcome::Passed(line) => passed.push(line),
            Outcome::Skipped(line) => skipped.push(format!("skipped: {line}")),
            Outcome::Failed(line) => failed.push(line),
        }
    }
    if !failed.is_empty() {
        return Outcome::Failed(failed.join("; "));
    }
    let is_skipped = passed.is_empty();
    passed.append(&mut skipped);
    let line = passed.join("; ");
    if is_skipped {
        Outcome::Skipped(line)
    } else {
        Outcome::Passed(line)
    }
}

/// The parts with these names, separated by commas.
pub(crate) fn named(names: &str) -> Result<Vec<&'static Part>, String> {
    let part = |name| {
        let found = PARTS.iter().find(|part| part.name == name);
        found.ok_or_else(|| {
            let known: Vec<_> = PARTS.iter().map(|part| part.name).collect();
            format!("no part {name}; there are {}", known.join(", "))
        })
    };
    names.split(',').map(part).collect()
}

/// All tests of some programs.
fn tests(filter: &str, counts: &mut Counts) -> Outcome {
    Run::all(filter).run(counts)
}
