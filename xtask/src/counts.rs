//! Counts of tests and names of failed ones, read from the output of test programs.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::report;
use crate::workspace::TestProgram;

/// How long to wait for more output after a command has ended: its children may hold the pipe open.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// The test program that runs alone: others inspect all processes, too, and would wait for its targets.
const ALONE: &str = "unresponsive";

/// The most tests that are named for one reason to skip.
const MAX_NAMED: usize = 8;

/// Number of tests, and the names of failed ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Package, test program and test name of each failed test.
    failures: Vec<String>,
    /// Tests that skipped something, by reason.
    untested: BTreeMap<String, Vec<String>>,
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
        let placed = |failure: String| format!("{place}{gap}{failure}");
        self.failures.extend(other.failures.into_iter().map(placed));
        for (why, tests) in other.untested {
            let tests = tests.into_iter().map(placed);
            self.untested.entry(why).or_default().extend(tests);
        }
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
}

/// Runs test programs, two at a time, and prints what each printed when it has ended. Returns the counts of
/// all, and the programs that failed.
pub(crate) fn of_programs(
    programs: &[TestProgram],
    command: impl Fn(&TestProgram) -> Command + Sync,
) -> (Counts, Vec<String>) {
    let run = |program: &&TestProgram| {
        let start = Instant::now();
        let mut printed = format!("{program}\n").into_bytes();
        let (mut output, result) =
            Output::printed(command(program).arg("--show-output"), &mut printed);
        report::print(&printed);
        println!("{program}: took {} s", start.elapsed().as_secs());
        let failed = result.is_err().then(|| program.to_string());
        if let Some(name) = &failed {
            output.program_failed(name);
        }
        (output.counts, failed)
    };
    let (alone, others): (Vec<_>, Vec<_>) = programs.iter().partition(|it| it.name == ALONE);
    // Many have a single test, which waits for most of its time.
    let ended = report::in_pairs(&others, run);
    let mut total = Counts::default();
    let mut failed = Vec::new();
    for (of_program, failure) in ended.into_iter().chain(alone.iter().map(run)) {
        total.add("", of_program);
        failed.extend(failure);
    }
    (total, failed)
}

/// Parses the output of test programs, of `cargo test`, and of a virtual machine's script.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) counts: Counts,
    /// Names in the list of failures that is being read.
    listed: Vec<String>,
    /// Failed tests of the program that ended last.
    failed: Vec<String>,
    /// The passed test whose output is being read (`--show-output`).
    passed: Option<String>,
}

impl Output {
    /// Parses the next line. Returns whether to print it: the output of passed tests is hidden.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        let is_end = line == "failures:" || line.starts_with("test result: ");
        if line == "successes:" {
            self.passed.get_or_insert_default();
        } else if is_end {
            self.passed = None;
        }
        let Some(test) = &mut self.passed else {
            self.of_program(line);
            return true;
        };
        let begins = line.strip_prefix("---- ");
        if let Some(name) = begins.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            name.clone_into(test);
        } else if let Some(why) = line.strip_prefix("skipped: ") {
            let tests = self.counts.untested.entry(why.to_owned()).or_default();
            if tests.last() != Some(test) {
                tests.push(test.clone());
            }
        }
        false
    }

    /// Parses a line that is not the output of a passed test.
    fn of_program(&mut self, line: &str) {
        if line == "failures:" {
            // The list comes twice: first with what each test printed, then the names alone.
            self.listed.clear();
        } else if let Some(name) = line.strip_prefix("    ") {
            self.listed.push(name.to_owned());
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.result(result);
        } else if let Some(rest) = line.strip_prefix("error: ") {
            let place = rest.split_once("test failed, to rerun pass `");
            if let Some((_, place)) = place {
                self.program_failed(place.trim_end_matches('`'));
            }
        }
    }

    /// Records a failed program: by its failed tests, or by `place` alone if it listed none.
    pub(crate) fn program_failed(&mut self, place: &str) {
        if self.failed.is_empty() {
            self.counts.failures.push(place.to_owned());
        }
        let failed = self.failed.drain(..);
        let named = failed.map(|test| format!("{place} {test}"));
        self.counts.failures.extend(named);
    }

    /// Parses a test program's last line, after `test result: `.
    fn result(&mut self, line: &str) {
        let Some((verdict, numbers)) = line.split_once(". ") else {
            return;
        };
        if verdict == "FAILED" {
            self.failed.append(&mut self.listed);
        }
        for part in numbers.split("; ") {
            let number = part.split_once(' ');
            match number.map(|(number, what)| (number.parse().unwrap_or(0), what)) {
                Some((number, "passed")) => self.counts.passed += number,
                Some((number, "failed")) => self.counts.failed += number,
                Some((number, "ignored")) => self.counts.ignored += number,
                _ => {}
            }
        }
    }

    /// Runs a command, and prints and parses its output line by line.
    pub(crate) fn of(command: &mut Command) -> (Self, Result<(), String>) {
        Self::printed(command, &mut io::stdout())
    }

    /// As [`Output::of`], with what is printed going to `place`.
    pub(crate) fn printed(
        command: &mut Command,
        place: &mut impl Write,
    ) -> (Self, Result<(), String>) {
        let mut output = Self::default();
        let result = output
            .follow(command, place)
            .map_err(|error| format!("{}: {error}", report::shown(command)));
        let result = result.and_then(|status| match status {
            status if status.success() => Ok(()),
            status => Err(format!("{}: {status}", report::shown(command))),
        });
        (output, result)
    }

    fn follow(
        &mut self,
        command: &mut Command,
        place: &mut impl Write,
    ) -> io::Result<std::process::ExitStatus> {
        // One pipe for both, so that lines of cargo and of the tests stay in order.
        let (reader, writer) = io::pipe()?;
        let child = command.stdout(writer.try_clone()?).stderr(writer).spawn();
        // The command holds the pipe open, too.
        command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let mut child = child?;
        let lines = lines(reader);
        loop {
            match lines.recv_timeout(OUTPUT_TIMEOUT) {
                Ok(line) => {
                    if self.line(&String::from_utf8_lossy(&line)) {
                        // A closed terminal is not the tests' fault.
                        let _ = place.write_all(&[&line[..], b"\n"].concat());
                    }
                }
                Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_none() => {}
                Err(_) => return child.wait(),
            }
        }
    }
}

/// Reads lines from a pipe until its last writer has ended.
fn lines(reader: PipeReader) -> Receiver<Vec<u8>> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let read = BufReader::new(reader).split(b'\n').map_while(Result::ok);
        for line in read {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `cargo test --no-fail-fast` prints of three programs, and of one that is killed.
    const CARGO: &str = "\
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

error: test failed, to rerun pass `-p crate --test one`
     Running tests/two.rs (target/debug/deps/two-2)
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/three.rs (target/debug/deps/three-3)
error: test failed, to rerun pass `-p crate --test three`

Caused by:
  process didn't exit successfully: `three-3` (signal: 9, SIGKILL: kill)
failures:
    src/lib.rs - (line 3)
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
error: doctest failed, to rerun pass `-p crate --doc`
";

    #[test]
    fn every_failed_test_is_named() {
        let mut output = Output::default();
        CARGO.lines().for_each(|line| assert!(output.line(line)));
        let failures = [
            "-p crate --test one b::c",
            "-p crate --test one d",
            "-p crate --test three",
            "-p crate --doc src/lib.rs - (line 3)",
        ];
        let mut counts = Counts::default();
        counts.add("", output.counts);
        assert_eq!(
            counts,
            Counts {
                passed: 15,
                failed: 3,
                ignored: 4,
                failures: failures.map(str::to_owned).to_vec(),
                untested: BTreeMap::new(),
            }
        );
        let mut all = Counts::default();
        all.add("without root", counts);
        assert_eq!(all.failures()[1], "without root: -p crate --test one d");
        assert_eq!(all.to_string(), "15 passed, 3 failed, 4 skipped");
    }

    /// What a program prints with `--show-output`.
    const SHOWN: &str = "\
test a ... ok
test b ... ok
test c ... FAILED

successes:

---- a stdout ----
error: not an error of cargo
skipped: no musl
skipped: no musl

---- b stdout ----
skipped: no musl
skipped: needs root

successes:
    a
    b

failures:

---- c stdout ----
skipped: needs root

failures:
    c

test result: FAILED. 2 passed; 1 failed; 0 ignored
error: test failed, to rerun pass `-p crate --lib`
";

    #[test]
    fn skips_of_passed_tests_are_listed_and_their_other_output_hidden() {
        let mut output = Output::default();
        let shown = SHOWN.lines().filter(|line| output.line(line)).count();
        assert_eq!(shown, 14);
        let untested: Vec<String> = output.counts.untested().collect();
        assert_eq!(untested, ["needs root: b", "no musl: a, b"]);
        assert_eq!(output.counts.failures(), ["-p crate --lib c"]);
        assert_eq!((output.counts.passed, output.counts.failed), (2, 1));
    }

    #[test]
    fn a_command_is_waited_for_and_not_its_children() {
        // The child ends with its input, which stays open until the command was waited for.
        let script = "exec 3<&0; cat <&3 & echo '    a name'; exit 3";
        let mut command = Command::new("sh");
        let (input, held) = io::pipe().unwrap();
        let (output, result) = Output::of(command.args(["-c", script]).stdin(input));
        drop(held);
        assert_eq!(output.listed, ["a name"]);
        assert!(result.unwrap_err().ends_with("exit status: 3"));
    }
}
