//! What the tests of publishers and readers against each other share: targets that run as
//! processes of their own and tell the truth on standard output.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use otelctx_reader::format::process_context::Value;

/// A program that is being looked at. It ends with this value.
#[derive(Debug)]
pub struct Target {
    child: Child,
    /// Closing it tells the program to end.
    pub stdin: Option<ChildStdin>,
    /// What it printed before `ready`: one fact a line, its words separated by tabs.
    pub truth: Vec<Vec<String>>,
}

impl Target {
    /// Starts a program and waits until it prints `ready`.
    ///
    /// # Panics
    /// When it can't be started, or ends before that.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("standard output is a pipe");
        let mut truth = Vec::new();
        for line in BufReader::new(stdout).lines() {
            let line = line.expect("a target prints UTF-8");
            if line == "ready" {
                return Self {
                    child,
                    stdin,
                    truth,
                };
            }
            truth.push(line.split('\t').map(str::to_owned).collect());
        }
        panic!("{command:?} ended before it was ready: {:?}", child.wait());
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The lines that start with `word`, without it.
    pub fn facts(&self, word: &str) -> Vec<&[String]> {
        let told = |line: &&Vec<String>| line[0] == word;
        self.truth
            .iter()
            .filter(told)
            .map(|line| &line[1..])
            .collect()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A value as the targets print theirs.
pub fn words(value: &Value) -> String {
    match value {
        Value::Empty => "empty".into(),
        Value::String(text) => format!("{text:?}"),
        Value::Bool(truth) => truth.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Double(number) => format!("{number:?}"),
        Value::Bytes(bytes) => format!("{bytes:?}"),
        Value::Array(items) => {
            format!(
                "[{}]",
                items.iter().map(words).collect::<Vec<_>>().join(", ")
            )
        }
        other => format!("{other:?}"),
    }
}

/// What ties the two changing attributes of the `updating` target together (FNV-1a).
pub fn checksum(number: i64, filler: &str) -> i64 {
    let bytes = number.to_le_bytes().into_iter().chain(filler.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash as i64
}
