//! Counts of tests, names of failed ones, how long they took, and what they did not test.

use std::collections::BTreeMap;
use std::fmt;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

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
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.ignored
        )
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
        self.times
            .extend(times.map(|(test, seconds)| (placed(test), seconds)));
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
        let mut times: Vec<_> = self
            .times
            .iter()
            .map(|(test, seconds)| (test.as_str(), *seconds))
            .collect();
        times.sort_by(|a, b| b.1.total_cmp(&a.1));
        times.truncate(count);
        times
    }

    /// Reads a JUnit report of nextest.
    pub(crate) fn of_junit(report: &str) -> Result<Self, String> {
        let mut counts = Self::default();
        let mut reader = Reader::from_str(report);
        let (mut test, mut has_failed) = (String::new(), false);
        // What a test has printed, while it is read.
        let mut output: Option<String> = None;
        loop {
            let event = reader.read_event();
            match event.map_err(|error| format!("the report of the tests: {error}"))? {
                Event::Start(tag) if tag.name().as_ref() == b"testcase" => {
                    has_failed = false;
                    test = counts.begin(&tag);
                }
                Event::Empty(tag) if tag.name().as_ref() == b"testcase" => {
                    counts.begin(&tag);
                    counts.passed += 1;
                }
                Event::Start(tag) | Event::Empty(tag) => match tag.name().as_ref() {
                    b"failure" | b"error" => has_failed = true,
                    b"system-out" | b"system-err" => output = Some(String::new()),
                    _ => {}
                },
                Event::End(tag) if tag.name().as_ref() == b"testcase" => {
                    if has_failed {
                        counts.add_failure(test.clone());
                    } else {
                        counts.passed += 1;
                    }
                }
                Event::End(tag) if tag.name().as_ref().starts_with(b"system-") => {
                    counts.add_skips(&test, &output.take().unwrap_or_default());
                }
                Event::Text(text) => {
                    if let Some(output) = &mut output {
                        *output += &String::from_utf8_lossy(&text);
                    }
                }
                Event::GeneralRef(name) => {
                    if let Some(output) = &mut output {
                        *output += predefined(&name);
                    }
                }
                Event::Eof => return Ok(counts),
                _ => {}
            }
        }
    }

    /// Notes the time of a test of a JUnit report, and returns its name.
    fn begin(&mut self, tag: &BytesStart<'_>) -> String {
        let value = |name| {
            let attribute = tag.try_get_attribute(name).ok().flatten();
            let value = attribute
                .map(|it| it.value.into_owned())
                .unwrap_or_default();
            String::from_utf8_lossy(&value).into_owned()
        };
        let test = format!("{} {}", value("classname"), value("name"));
        let seconds = value("time").parse().unwrap_or_default();
        self.times.push((test.clone(), seconds));
        test
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
            } else if let Some((verdict, numbers)) = line
                .strip_prefix("test result: ")
                .and_then(|result| result.split_once(". "))
            {
                if verdict == "FAILED" {
                    counts.failures.extend(listed.drain(..).map(str::to_owned));
                }
                for part in numbers.split("; ") {
                    match part.split_once(' ') {
                        Some((number, "passed")) => counts.passed += number.parse().unwrap_or(0),
                        Some((number, "failed")) => counts.failed += number.parse().unwrap_or(0),
                        Some((number, "ignored")) => counts.ignored += number.parse().unwrap_or(0),
                        _ => {}
                    }
                }
            }
        }
        counts
    }
}

/// The text of an entity of XML; nextest writes no others.
fn predefined(name: &[u8]) -> &'static str {
    match name {
        b"lt" => "<",
        b"gt" => ">",
        b"amp" => "&",
        b"quot" => "\"",
        b"apos" => "'",
        _ => "?",
    }
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
