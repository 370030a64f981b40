//! The process that the other tests inspect: the program of `examples/target`.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::with_default_signals;

#[path = "../../examples/target/shared.rs"]
mod shared;
pub(crate) use shared::{EVIL, SPAN, STUCK, TRACE};

/// Path of the program. `cargo test -p otelctx-cli` builds it, but not with `--test command`: run
/// `cargo build -p otelctx-cli --example target` first.
pub(crate) fn program() -> PathBuf {
    let tests = env::current_exe().unwrap();
    // target/PROFILE/deps/command-HASH
    let folder = tests.ancestors().nth(2).unwrap();
    let program = folder.join("examples/target");
    assert!(
        program.is_file(),
        "{program:?} is missing: run `cargo build -p otelctx-cli --example target`"
    );
    program
}

/// Waits until all threads of a process sleep but `running` of them: a target is ready before they do.
pub(crate) fn wait_until_asleep(pid: i32, running: usize) {
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    let is_awake = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
        !stat.unwrap().contains(") S ")
    };
    let tasks = format!("/proc/{pid}/task");
    let awake = || {
        std::fs::read_dir(&tasks)
            .unwrap()
            .map(is_awake)
            .filter(|it| *it)
            .count()
    };
    while awake() != running {
        assert!(Instant::now() < deadline, "not every thread sleeps");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A running target. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Target {
    child: Child,
    /// Ids of the threads that the target names, and other numbers that it prints.
    numbers: HashMap<String, i32>,
}

impl Target {
    /// Starts the target and waits until it has published.
    pub(crate) fn start(scenario: &str) -> Self {
        Self::start_with(scenario, |_| {})
    }

    /// The same, with something about the process changed.
    pub(crate) fn start_with(scenario: &str, change: impl FnOnce(&mut Command)) -> Self {
        Self::start_program_with(&program(), scenario, change)
    }

    /// The same, from a copy of the program.
    pub(crate) fn start_program(program: &Path, scenario: &str) -> Self {
        Self::start_program_with(program, scenario, |_| {})
    }

    /// The same, with something about the process changed.
    pub(crate) fn start_program_with(
        program: &Path,
        scenario: &str,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(program);
        command.arg(scenario);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        with_default_signals(&mut command);
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let mut numbers = HashMap::new();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.map(Result::unwrap) {
            if line == "ready" {
                return Self { child, numbers };
            }
            if let Some((name, number)) = line.split_once(": ")
                && let Ok(number) = number.parse()
            {
                numbers.insert(name.to_owned(), number);
            }
        }
        panic!("target {scenario} ended: {:?}", child.wait());
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a command to a target that takes them: the scenario `changing`.
    pub(crate) fn send(&mut self, command: &str) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        writeln!(stdin, "{command}").unwrap();
    }

    /// A number that the target printed.
    pub(crate) fn number(&self, name: &str) -> i32 {
        self.numbers[name]
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
