//! Every sampled stack is one that the program can have, by its own account: the interpreter calls and
//! returns most of the time, and is interrupted in the middle of that.
//!
//! Needs the right to use eBPF. `cargo xtask soak python` compares many more samples.

mod common;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Starts, start};
use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Target, tier};
use otelctx_python::Python;
use otelctx_reader::Process;
use otelctx_reader::runtime::Runtimes;
use otelctx_reader::sample::{Catalog, Frame, Sample};
use otelctx_sampler::INTERVAL;

/// Frames are objects up to 3.10. From then on, they are a chain of their own, which starts in a different place in each
/// version.
const VERSIONS: [&str; 11] = [
    "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.15",
];
/// The functions that `chains.py` executes.
const WORKS: [&str; 6] = [
    "recursion",
    "sorted",
    "generators",
    "callbacks",
    "rare",
    "mixed",
];
/// Maximum number of incomplete stacks of 10,000 of each function; other versions have none. These two store the address
/// of a call's `_PyCFrame` some instructions before its contents. Meanwhile, neither the call's frame nor its caller's
/// `_PyCFrame` is in memory, unless an earlier call in the same place has left them there. The latter is in a general
/// register first, where the sampler finds it, and then in xmm0 alone. 3.12 stores a generator's caller late.
///
/// These are the bounds, and for generators of 3.12, whose bound is 300, the largest share that was measured: see
/// `soak python` in docs/benchmarks.md.
const LIMITS: [(&str, [u64; 6]); 2] = [
    ("3.11.", [0, 0, 10, 10, 10, 10]),
    ("3.12.", [0, 0, 104, 10, 10, 10]),
];
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Samples of each of these, with each interpreter.
fn samples() -> u64 {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let usual = tier::usual_or_all(1000, 3000);
    number.map_or(usual, |number| number.parse().unwrap())
}

/// Numbers of a program's stacks.
#[derive(Debug, Default)]
struct Tally {
    samples: u64,
    whole: u64,
    /// Stacks whose outer frames are missing.
    incomplete: u64,
    /// Stacks that say so: [`Counts::truncated_runtime_stacks`](otelctx_reader::sample::Counts).
    marked: u64,
    /// Stacks that the program cannot have.
    wrong: Vec<String>,
    /// Stacks with more than one call of the interpreter that has no functions: only the innermost one
    /// can be at its beginning or end. Or with an instruction's native frame beside a call's functions.
    without_functions: Vec<String>,
    starts: Starts,
}

/// The stacks of a program, as text.
struct Truth(HashSet<String>);

impl Truth {
    fn of(target: &Target) -> Self {
        let stacks = target
            .lines
            .iter()
            .filter_map(|it| it.strip_prefix("stack "));
        let stacks = stacks.chain(["<module>"]).map(str::to_owned);
        Self(stacks.collect())
    }

    /// Adds a sample to the tally.
    fn compare(&self, tally: &mut Tally, frames: &[&Frame], interpreter: &Interpreting) {
        tally.samples += 1;
        let mut text = String::new();
        let (mut loops, mut instructions) = (0, 0);
        let is_in = |code: &[Range<u64>], address| code.iter().any(|it| it.contains(&address));
        for frame in frames.iter().rev() {
            match frame {
                // Code that Python has generated: libffi's for a callback. And what the thread waits for.
                Frame::Named(frame) if frame.function.starts_with('[') => continue,
                frame if frame.is_gil_wait() => continue,
                Frame::Named(frame) if text.is_empty() => text.clone_from(&frame.function),
                Frame::Named(frame) => text = format!("{text} {}", frame.function),
                Frame::Native { .. } => {
                    let address = frame.lookup_address().unwrap();
                    loops += usize::from(is_in(&interpreter.parts, address));
                    instructions += usize::from(is_in(&interpreter.instructions, address));
                    continue;
                }
            }
            text = format!("{text} {}", frame_line(frame));
        }
        // The line of the innermost function is not known.
        let text = text.rsplit_once(' ').map_or("", |(stack, _)| stack);
        if self.0.contains(text) {
            tally.whole += 1;
            if loops > 1 || instructions > loops {
                tally.without_functions.push(format!("{text}: {frames:x?}"));
            }
        } else if self.0.iter().any(|stack| stack.ends_with(text)) {
            tally.incomplete += 1;
        } else {
            tally.wrong.push(text.to_owned());
        }
    }
}

fn frame_line(frame: &Frame) -> u32 {
    match frame {
        Frame::Named(frame) => frame.line,
        Frame::Native { .. } => 0,
    }
}

/// Samples a program and compares its stacks. `None`, with a line, where the kernel does not permit it.
fn run(interpreter: &Interpreter, work: &str) -> Option<Tally> {
    let target = Target::spawn(interpreter.command("chains.py").arg(work));
    let truth = Truth::of(&target);
    let code = interpreter_code(&target);
    let mut sampler = start(target.pid(), 9_999, false)?;
    let mut catalog = Catalog::new();
    let mut tally = Tally::default();
    let mut first_marked = None;
    let begin = Instant::now();
    while tally.samples < samples() {
        assert!(
            begin.elapsed() < TIMEOUT + INTERVAL * samples() as u32 / 100,
            "{tally:?}"
        );
        std::thread::sleep(INTERVAL);
        let mut new: Vec<Sample> = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| new.push(sample));
        let counts = sampler.counts();
        // Before the process is known, stacks have no functions; before its unwind tables are read,
        // native stacks may be truncated.
        if counts.complete_stacks == 0 {
            first_marked = None;
            continue;
        }
        let Some(first) = first_marked else {
            first_marked = Some(counts.truncated_runtime_stacks);
            continue;
        };
        tally.marked = counts.truncated_runtime_stacks - first;
        for sample in &new {
            let frames: Vec<&Frame> = catalog.frames(sample.user_stack).collect();
            tally.starts.add(&catalog, sample);
            truth.compare(&mut tally, &frames, &code);
        }
    }
    Some(tally)
}

/// The code of the interpreter's evaluation loop.
struct Interpreting {
    parts: Vec<Range<u64>>,
    /// The functions for single instructions, with tail calls.
    instructions: Arc<[Range<u64>]>,
}

fn interpreter_code(target: &Target) -> Interpreting {
    let mut options = otelctx_reader::Options::default();
    let runtimes = Runtimes::new(vec![Arc::new(Python::default())]);
    options.runtimes = runtimes;
    let mut process = Process::with_options(target.pid(), options).unwrap();
    let runtimes = process.runtimes().unwrap();
    let state = process.threads().unwrap()[0]
        .state(&runtimes, None)
        .unwrap();
    let thread = state.runtimes[0].thread.as_ref().unwrap();
    Interpreting {
        parts: thread.stack.interpreter.clone(),
        instructions: Arc::clone(&thread.stack.instructions),
    }
}

#[test]
fn each_stack_is_one_that_the_program_can_have() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        for (index, work) in WORKS.into_iter().enumerate() {
            let Some(tally) = run(&interpreter, work) else {
                return;
            };
            let name = format!("{interpreter} {work}");
            let Tally {
                samples,
                incomplete,
                marked,
                ..
            } = tally;
            eprintln!("{name}: {samples} samples, {incomplete} incomplete, {marked} marked");
            assert_eq!(tally.wrong, [""; 0], "{name}");
            assert_eq!(tally.without_functions, [""; 0], "{name}");
            tally.starts.check(&name);
            // `_start`.
            tally.starts.check_reached(&name, &["python"]);
            assert_eq!(incomplete, marked, "{name}: {tally:?}");
            let mut limits = LIMITS.iter();
            let limit = limits.find(|it| interpreter.version.starts_with(it.0));
            let expected = limit.map_or(0.0, |it| (samples * it.1[index]) as f64 / 1e4);
            // And some, because few samples vary more.
            let more = if expected > 0.0 {
                4.0 * expected.sqrt() + 2.0
            } else {
                0.0
            };
            let limit = (expected + more) as u64;
            assert!(incomplete <= limit, "{name}: {tally:?}");
        }
    }
}
