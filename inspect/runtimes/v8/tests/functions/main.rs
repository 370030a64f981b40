//! Functions on the stacks of Node.js, compared with what the program itself says of its calls.

#![cfg(target_arch = "x86_64")]

mod announced;
mod truth;

use std::sync::Arc;

use otelctx_fixtures::{Node, STOP_TIMEOUT, Target, tier};
use otelctx_reader::remote::threads::{Call, ThreadFiles};
use otelctx_reader::remote::{
    FileCache, FrameRecord, GeneratedCode, LiveProcess, Modules, Process, ProcessMemory, Stopped,
};
use otelctx_reader::runtime::{Runtime, RuntimeProcess};
use otelctx_reader::sample::{Frame, NamedFrame};
use otelctx_unwind::{
    CodeMap, Dictionary, MAX_FRAMES, MakeRules, Registers, StackEnd, walk_generated,
};
use otelctx_v8::V8;

use truth::compare;

const VERSIONS: [&str; 3] = ["22", "24", "26"];

/// A program whose stacks are read.
struct Reader {
    process: Process,
    memory: ProcessMemory,
    files: FileCache,
    rules: Arc<Dictionary>,
    runtime: Arc<dyn RuntimeProcess>,
}

/// A frame of a stack: what its functions are found by, if it is in V8's code.
type Walked = Vec<(u64, Option<FrameRecord>)>;

impl Reader {
    fn new(pid: i32) -> Self {
        let process = Process::open(pid).unwrap();
        let memory = process.memory().unwrap();
        let files = FileCache::new();
        let target = LiveProcess::new(&process, &memory);
        let modules = Modules::read(&target, &files).unwrap();
        let runtime = V8.probe(&target, &modules).unwrap().expect("it has V8");
        Self {
            rules: Arc::new(Dictionary::new()),
            process,
            memory,
            files,
            runtime,
        }
    }

    fn target(&self) -> LiveProcess<'_> {
        LiveProcess::new(&self.process, &self.memory)
    }

    /// Walks a stack, which has to reach its start.
    fn walk(&self, registers: &Registers) -> (Walked, StackEnd) {
        let target = self.target();
        let rules = MakeRules::OnDemand;
        let code = CodeMap::read(&target, &self.files, &self.rules, rules).unwrap();
        let generated: Vec<Arc<dyn GeneratedCode>> =
            self.runtime.generated(&target).into_iter().collect();
        let mut frames = Vec::new();
        let end = walk_generated(
            registers,
            &code,
            &generated,
            &target,
            MAX_FRAMES,
            &mut frames,
        );
        let record = |frame: &otelctx_unwind::Frame| frame.generated.map(|it| it.record);
        let walked = frames.iter().map(|frame| (frame.address, record(frame)));
        (walked.collect(), end)
    }

    /// The main thread's stack, as soon as that waits for input.
    fn blocked(&self) -> (Walked, StackEnd) {
        let pid = self.process.pid();
        let files = ThreadFiles::open(&self.process, pid).unwrap();
        let is_read = |call: Call| call.number == 0 && call.arguments[0] == 0;
        while !files.call().unwrap().is_some_and(is_read) {
            std::thread::yield_now();
        }
        let stopped = Stopped::stop(&self.process, pid, STOP_TIMEOUT).unwrap();
        self.walk(&Registers::of_stopped(stopped.registers()).unwrap())
    }

    /// The functions of JavaScript in a stack, innermost first.
    fn functions(&self, walked: &Walked) -> Vec<NamedFrame> {
        let target = self.target();
        let named = |(address, record): &(u64, Option<FrameRecord>)| {
            let frames = record.map(|record| self.runtime.frames(&target, *address, &record));
            let frames = frames.unwrap_or_default();
            let named = frames.iter().filter_map(|frame| match frame {
                Frame::Named(named) => Some(NamedFrame::clone(named)),
                Frame::Native { .. } => None,
            });
            named.collect::<Vec<_>>()
        };
        walked.iter().flat_map(named).collect()
    }
}

/// Compares stacks of a program that blocks again and again.
fn compare_blocked(version: &str, arguments: &[&str], stacks: usize) {
    let Some(node) = Node::with_version(version) else {
        return;
    };
    let mut command = node.program();
    let program = otelctx_fixtures::program_source("js_stacks.js");
    command.arg(program).args(arguments);
    let mut target = Target::spawn(&mut command);
    let reader = Reader::new(target.pid());
    let mut tally = truth::Tally::default();
    for _ in 0..stacks {
        let (walked, end) = reader.blocked();
        assert_eq!(end, StackEnd::Start, "{version}: {walked:#x?}");
        let functions = reader.functions(&walked);
        target.lines.clear();
        target.command("");
        let said = target.lines.iter().find_map(|it| it.strip_prefix("stack "));
        let calls = truth::Call::all(said.expect("it says its stack"));
        compare(version, &functions, &calls, &mut tally);
    }
    println!("{version}: {tally:?}");
    assert_eq!(tally.stacks, stacks, "{version}");
}

/// An older version, which keeps its structures elsewhere, is not read.
#[test]
fn an_older_version_is_not_supported_and_named() {
    let Some(node) = Node::installed("20") else {
        return;
    };
    let mut command = node.program();
    let program = otelctx_fixtures::program_source("js_stacks.js");
    let target = Target::spawn(command.arg(program).arg("never"));
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let target = LiveProcess::new(&process, &memory);
    let modules = Modules::read(&target, &FileCache::new()).unwrap();
    let error = V8.probe(&target, &modules).unwrap_err().to_string();
    let expected = "V8 11.3 is not supported: 12.4 is the first version that is";
    assert_eq!(error, expected);
}

#[test]
fn functions_of_a_blocked_thread_match_what_the_program_says() {
    for version in VERSIONS {
        compare_blocked(version, &["997"], tier::usual_or_all(200, 1000));
    }
}

/// Functions and scripts are made, and collected, while their stacks are read.
#[test]
fn functions_that_come_and_go_match_what_the_program_says() {
    for version in VERSIONS {
        compare_blocked(version, &["397", "churn"], tier::usual_or_all(200, 1000));
    }
}

/// Maximum number of samples for one function to compare.
const MAX_SAMPLES: usize = 100;

/// At whatever instruction a thread is, its generated code is of the function that V8 itself announces.
#[test]
fn functions_of_generated_code_match_what_v8_announces() {
    for version in VERSIONS {
        compare_announced(version, &[]);
    }
}

/// Functions that are interpreted have generated code, too: copies of the interpreter.
#[test]
fn functions_of_copied_interpreters_match_what_v8_announces() {
    for version in VERSIONS {
        let interpreted = [
            "--interpreted-frames-native-stack",
            "--no-sparkplug",
            "--no-opt",
        ];
        compare_announced(version, &[&interpreted[..], &["--no-maglev"]].concat());
    }
}

/// Compares stacks of a program that does not block.
fn compare_announced(version: &str, flags: &[&str]) {
    let Some(node) = Node::with_version(version) else {
        return;
    };
    let mut command = node.program();
    // What announces functions also logs, by default into the current folder. This file is temporary.
    command.args([
        "--perf-basic-prof",
        "--logfile=+",
        "--no-logfile-per-isolate",
    ]);
    let program = otelctx_fixtures::program_source("js_stacks.js");
    command.args(flags).arg(program).arg("never");
    let target = Target::spawn(&mut command);
    let reader = Reader::new(target.pid());
    let mut tally = announced::Tally::default();
    let (wanted, mut samples) = (tier::usual_or_all(200, 2000), 0);
    while tally.compared < wanted {
        samples += 1;
        assert!(samples <= MAX_SAMPLES * wanted, "{version}: {tally:?}");
        let pid = target.pid();
        let stopped = Stopped::stop(&reader.process, pid, STOP_TIMEOUT).unwrap();
        let registers = Registers::of_stopped(stopped.registers()).unwrap();
        let (walked, end) = reader.walk(&registers);
        tally.whole += usize::from(end == StackEnd::Start);
        let names = announced::Names::read(pid);
        for (index, frame) in walked.iter().enumerate() {
            // The call is before the address to which it returns.
            let address = frame.0 - u64::from(index > 0);
            let functions = reader.functions(&vec![*frame]);
            if let Some(expected) = names.at(address) {
                let is_named = tally.compare(version, expected, functions.last());
                tally.innermost += usize::from(index == 0);
                tally.unnamed_callers += usize::from(!is_named && index > 0);
            }
        }
        drop(stopped);
    }
    println!("{version}: {tally:?} of {samples}");
    assert_eq!(tally.wrong, 0, "{version}");
    assert!(100 * tally.whole >= 95 * samples, "{version}: {tally:?}");
    // A function that is just called may not have stored what it is named by. Copies of the interpreter consist of its entry, where
    // that is done.
    let unnamed = tally.unnamed - tally.unnamed_callers;
    let share = if flags.is_empty() { 10 } else { 3 };
    let max = 5 + tally.innermost / share;
    assert!(unnamed <= max, "{version}: {tally:?}");
    assert!(
        100 * tally.unnamed_callers <= tally.compared,
        "{version}: {tally:?}"
    );
}
