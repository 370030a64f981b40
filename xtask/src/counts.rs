//! Counts of tests, names of failed ones, how long they took, and what they did not test.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The most tests that are named for one reason to skip.
const MAX_NAMED: usize = 8;

/// Number of tests, and the names of failed ones.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Package, test program and test name of each failed test.
    failures: Vec<String>,
    /// Tests that skipped something, by reason.
    untested: BTreeMap<String, Vec<String>>,
    /// Tests that nextest ran, and their seconds.
    times: Vec<(String, f64)>,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed, ignored) = (self.passed, self.failed, self.ignored);
        write!(f, "{passed} passed, {failed} failed, {ignored} skipped")
    }
}

impl Counts {
    /// Adds the counts of one place; a `place` that is not empty is prefixed to failed tests' names.
    pub(crate) fn add(&mut self, place: &str, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        let gap = if place.is_empty() { "" } else { ": " };
        let placed = |test: String| format!("{place}{gap}{test}");
        self.failures.extend(other.failures.into_iter().map(placed));
        for (why, tests) in other.untested {
            let tests = tests.into_iter().map(placed);
            self.untested.entry(why).or_default().extend(tests);
        }
        let times = other.times.into_iter();
        let times = times.map(|(test, seconds)| (placed(test), seconds));
        self.times.extend(times);
    }

    /// Adds tests that another runner has counted.
    pub(crate) fn add_passed(&mut self, count: u64) {
        self.passed += count;
    }

    /// Adds a failed test that is not counted otherwise.
    pub(crate) fn add_failure(&mut self, test: String) {
        self.failed += 1;
        self.failures.push(test);
    }

    /// A line for each reason to skip, with the tests that gave it.
    pub(crate) fn untested(&self) -> impl Iterator<Item = String> {
        self.untested.iter().map(|(why, tests)| {
            let named = tests.len().min(MAX_NAMED);
            let others = match tests.len() - named {
                0 => String::new(),
                others => format!(" and {others} others"),
            };
            format!("{why}: {}{others}", tests[..named].join(", "))
        })
    }

    /// The names of failed tests.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// The tests that took longest, and their seconds.
    pub(crate) fn slowest(&self, count: usize) -> Vec<(&str, f64)> {
        let times = self.times.iter();
        let mut times: Vec<_> = times.map(|(test, time)| (&test[..], *time)).collect();
        times.sort_by(|a, b| b.1.total_cmp(&a.1));
        times.truncate(count);
        times
    }

    /// Reads a JUnit report of nextest.
    pub(crate) fn of_junit(report: &str) -> Result<Self> {
        let report: Junit = quick_xml::de::from_str(report).context("the report of the tests")?;
        let mut counts = Self::default();
        let suites = report.testsuite.into_iter();
        for case in suites.flat_map(|suite| suite.testcase) {
            let test = format!("{} {}", case.program, case.name);
            counts.times.push((test.clone(), case.time));
            counts.add_skips(&test, &case.output);
            counts.add_skips(&test, &case.errors);
            if case.failure.is_empty() && case.error.is_empty() {
                counts.passed += 1;
            } else {
                counts.add_failure(test);
            }
        }
        Ok(counts)
    }

    /// Notes why a test says that it skipped something.
    fn add_skips(&mut self, test: &str, output: &str) {
        let reasons = output.lines().filter_map(|it| it.strip_prefix("skipped: "));
        for why in reasons {
            let tests = self.untested.entry(why.to_owned()).or_default();
            if tests.last().is_none_or(|last| last != test) {
                tests.push(test.to_owned());
            }
        }
    }

    /// As [`Counts::of_libtest`], of programs of which the last one has failed: if not by a test, as a whole.
    pub(crate) fn of_failed_program(output: &str) -> Self {
        let mut counts = Self::of_libtest(output);
        if counts.failures.is_empty() {
            counts.failures.push("no test".into());
        }
        counts
    }

    /// Reads what test programs print that nextest does not start: documentation tests, and tests in virtual machines.
    pub(crate) fn of_libtest(output: &str) -> Self {
        let mut counts = Self::default();
        // The list of failed tests comes twice: first with what each printed, then the names alone.
        let mut listed: Vec<&str> = Vec::new();
        for line in output.lines() {
            if line == "failures:" {
                listed.clear();
            } else if let Some(name) = line.strip_prefix("    ") {
                listed.push(name);
            } else if let Some(result) = line.strip_prefix("test result: ") {
                if result.starts_with("FAILED. ") {
                    counts.failures.extend(listed.drain(..).map(str::to_owned));
                }
                let words: Vec<&str> = result.split([' ', ';']).collect();
                for pair in words.windows(2) {
                    let number = pair[0].parse().unwrap_or(0);
                    match pair[1] {
                        "passed" => counts.passed += number,
                        "failed" => counts.failed += number,
                        "ignored" => counts.ignored += number,
                        _ => {}
                    }
                }
            }
        }
        counts
    }
}

/// A report of nextest.
#[derive(Deserialize)]
struct Junit {
    #[serde(default)]
    testsuite: Vec<Suite>,
}

#[derive(Deserialize)]
struct Suite {
    #[serde(default)]
    testcase: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    #[serde(rename = "@classname")]
    program: String,
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "@time", default)]
    time: f64,
    #[serde(default)]
    failure: Vec<IgnoredAny>,
    #[serde(default)]
    error: Vec<IgnoredAny>,
    #[serde(rename = "system-out", default)]
    output: String,
    #[serde(rename = "system-err", default)]
    errors: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `cargo test --no-fail-fast` prints of three programs, one of which is killed.
    const LIBTEST: &str = "\
     Running tests/one.rs (target/debug/deps/one-1)
test a ... ok
test b::c ... FAILED

failures:

---- b::c stdout ----
    not a name
note: run with `RUST_BACKTRACE=1`

failures:
    b::c
    d

test result: FAILED. 12 passed; 2 failed; 4 ignored; 0 measured; 5 filtered out; finished in 0.01s

     Running tests/two.rs (target/debug/deps/two-2)
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
failures:
    src/lib.rs - (line 3)
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn every_failed_test_of_libtest_is_named() {
        let counts = Counts::of_libtest(LIBTEST);
        assert_eq!(counts.to_string(), "15 passed, 3 failed, 4 skipped");
        assert_eq!(counts.failures(), ["b::c", "d", "src/lib.rs - (line 3)"]);
        let mut all = Counts::default();
        all.add("without root", counts);
        assert_eq!(all.failures()[1], "without root: d");
    }

    /// What nextest writes of five tests.
    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="5" failures="2" errors="0">
    <testsuite name="crate::one" tests="4" disabled="0" errors="0" failures="2">
        <testcase name="quick" classname="crate::one" time="0.004"/>
        <testcase name="a::slow" classname="crate::one" time="12.500">
            <system-out>running 1 test
skipped: no musl
skipped: no musl
skipped: a &lt;b
test a::slow ... ok</system-out>
        </testcase>
        <testcase name="b" classname="crate::one" time="1.000">
            <failure type="test failure">thread 'b' panicked
skipped: not a reason</failure>
            <system-err>skipped: needs root</system-err>
        </testcase>
        <testcase name="killed" classname="crate::one" time="0.100">
            <failure type="test abort"/>
        </testcase>
    </testsuite>
    <testsuite name="crate" tests="1" disabled="0" errors="0" failures="0">
        <testcase name="c" classname="crate" time="0.2"><system-err>skipped: no musl</system-err></testcase>
    </testsuite>
</testsuites>
"#;

    #[test]
    fn failures_skips_and_times_are_read_from_the_report() {
        let counts = Counts::of_junit(JUNIT).unwrap();
        assert_eq!(counts.to_string(), "3 passed, 2 failed, 0 skipped");
        assert_eq!(counts.failures(), ["crate::one b", "crate::one killed"]);
        let untested: Vec<String> = counts.untested().collect();
        assert_eq!(
            untested,
            [
                "a <b: crate::one a::slow",
                "needs root: crate::one b",
                "no musl: crate::one a::slow, crate c"
            ]
        );
        let slowest = [("crate::one a::slow", 12.5), ("crate::one b", 1.0)];
        assert_eq!(counts.slowest(2), slowest);
        assert!(Counts::of_junit("<testsuites><testsuite></other>").is_err());
    }
}
