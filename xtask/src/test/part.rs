//! The parts of `cargo xtask test --all`.

use anyhow::{Context, Result};

use crate::counts::Counts;
use crate::nextest;
use crate::report::{self, Done};
use crate::{aarch64, fuzz, kernels, miri, msrv, node, package, python, unprivileged, workflows};

/// A part, which runs alone.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// What it tests in addition to the usual tests.
    pub(crate) what: &'static str,
    run: fn(&mut Counts) -> Vec<Done>,
}

/// Test programs with a part of their own, as filters of nextest.
const LINKERS: &str =
    "binary(matrix) | binary(links) | binary(mix) | binary(copies) | binary(export)";
const INTERPRETERS: &str =
    "package(otelctx-python) | package(otelctx-node) | package(otelctx-v8) | package(otelctx-napi)";
const COLLECTOR: &str =
    "binary(real_collector) | binary(collected_spans) | binary(queue_collector)";
const VIEWERS: &str = "binary(viewers)";

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u64 = 3;

/// All parts. Together they contain the usual tests.
pub(crate) const PARTS: [Part; 12] = [
    part("long", "more samples, faults and repetitions", |counts| {
        let filter = format!("not ({LINKERS} | {INTERPRETERS} | {COLLECTOR} | {VIEWERS})");
        let tests = nextest::all(&filter, counts);
        vec![tests, super::documentation(counts), super::features(counts)]
    }),
    part(
        "linkers",
        "every combination of C library, compiler, linker and access model",
        |counts| vec![nextest::all(LINKERS, counts)],
    ),
    part(
        "interpreters",
        "every version of Python and Node.js",
        |counts| {
            // The tests use the package that it builds.
            let package = node::run(&[]);
            vec![
                package,
                nextest::all(INTERPRETERS, counts),
                python::run(true, counts),
            ]
        },
    ),
    part(
        "collector",
        "what OpenTelemetry's Collector receives",
        |counts| vec![nextest::all(COLLECTOR, counts)],
    ),
    part(
        "viewers",
        "profiles and the page of a recording in a browser, the Firefox Profiler, speedscope, DuckDB and ClickHouse",
        |counts| vec![nextest::all(VIEWERS, counts)],
    ),
    part("unprivileged", "the tests as the user nobody", |counts| {
        vec![unprivileged::run(counts)]
    }),
    part(
        "kernels",
        "Debian's kernels 5.10, 6.1 and 7 in an emulator",
        |counts| vec![kernels::short(counts)],
    ),
    part("aarch64", "an arm64 kernel in an emulator", |counts| {
        vec![aarch64::run(true, &aarch64::USUAL, counts)]
    }),
    part("fuzz", "each fuzz target for 3 s", |_| {
        vec![fuzz::smoke(FUZZ_SECONDS)]
    }),
    part("miri", "the format crate under Miri", |_| vec![miri::run()]),
    part("msrv", "older Rusts and other targets", |_| {
        vec![msrv::run()]
    }),
    part(
        "package",
        "the published crates from their packaged files, and the workflows",
        |_| {
            let mut outcomes = super::artifacts();
            outcomes.extend([package::run(), workflows::run()]);
            outcomes
        },
    ),
];

const fn part(name: &'static str, what: &'static str, run: fn(&mut Counts) -> Vec<Done>) -> Part {
    Part { name, what, run }
}

impl Part {
    /// Runs it.
    pub(super) fn run(&self, counts: &mut Counts) -> Done {
        report::joined((self.run)(counts))
    }
}

/// The parts with these names, separated by commas.
pub(super) fn named(names: &str) -> Result<Vec<&'static Part>> {
    let part = |name| {
        let found = PARTS.iter().find(|part| part.name == name);
        found.with_context(|| {
            let known = PARTS.each_ref().map(|part| part.name);
            format!("no part {name}; there are {}", known.join(", "))
        })
    };
    names.split(',').map(part).collect()
}
