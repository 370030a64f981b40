//! Stacks of any depth, with and without the JIT: each sample is compared with what the program says of itself.
//!
//! Needs the right to use eBPF.

mod common;

use std::time::{Duration, Instant};

use common::start;
use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{HANG_TIMEOUT, Target, tier};
use otelctx_reader::sample::{Catalog, Frame, FrameKind, Sample, StackEnd};
use otelctx_sampler::INTERVAL;

/// In these, a function in Python calls another one without a native frame between them.
const VERSIONS: [&str; 5] = ["3.11", "3.12", "3.13", "3.14", "3.15"];
/// Numbers of levels below `<module>` and `main`: some are kept as a whole, of some both ends, and of one the innermost
/// functions.
const DEPTHS: [&str; 7] = ["5", "40", "130", "509", "511", "2000", "4500"];

/// Samples with each interpreter.
fn samples() -> usize {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let usual = tier::usual_or_all(1000, 5000);
    number.map_or(usual, |number| number.parse().unwrap())
}

/// Frames that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    None,
    /// This number in the middle.
    Middle(usize),
    /// All further out.
    Outer,
}

/// A sampled stack, outermost frame first.
#[derive(Debug)]
struct Sampled<'c> {
    /// The functions, and true for each whose direct caller is native.
    functions: Vec<(&'c str, bool)>,
    gap: Gap,
    /// Number of functions that are further out than the gap.
    outermost: usize,
    /// It says that the place of functions among native frames is unknown, or that native frames are missing.
    is_incomplete: bool,
    /// The former.
    is_misplaced: bool,
}

impl<'c> Sampled<'c> {
    fn read(catalog: &'c Catalog, sample: &Sample) -> Self {
        let mut sampled = Self {
            functions: Vec::new(),
            gap: Gap::None,
            outermost: 0,
            is_incomplete: sample.stack_end != Some(StackEnd::Start),
            is_misplaced: false,
        };
        let frames: Vec<&Frame> = catalog.frames(sample.user_stack).collect();
        let mut after_native = false;
        for frame in frames.into_iter().rev() {
            let named = match frame {
                Frame::Named(named) if named.kind == FrameKind::ABORT_MARKER => named,
                // Code of the JIT that belongs to a loop, and what the thread waits for.
                Frame::Named(named) if named.function.starts_with('[') => continue,
                Frame::Named(named) => {
                    sampled.functions.push((&named.function, after_native));
                    after_native = false;
                    continue;
                }
                Frame::Native { .. } => {
                    after_native = true;
                    continue;
                }
            };
            let text = named.function.as_str();
            if let Some(count) = text.strip_suffix(" omitted]") {
                let count = count.trim_end_matches('s').trim_end_matches(" frame");
                let count = count.trim_start_matches('[').replace(',', "");
                sampled.gap = Gap::Middle(count.parse().unwrap());
                sampled.outermost = sampled.functions.len();
            } else if text.contains("outer frames unknown") {
                sampled.gap = Gap::Outer;
                assert_eq!(sampled.functions.len(), 0);
            } else {
                sampled.is_incomplete = true;
                sampled.is_misplaced |= text.contains("place of the callers");
            }
        }
        sampled
    }

    /// Returns true if the program can have this stack: it is one that it has printed, up to a function that it is
    /// calling.
    fn fits(&self, stack: &[&str]) -> bool {
        let names: Vec<&str> = self.functions.iter().map(|it| it.0).collect();
        let (outer, inner) = names.split_at(self.outermost);
        let is_part = match self.gap {
            Gap::None => stack.starts_with(&names),
            Gap::Middle(omitted) => {
                let end = outer.len() + omitted + inner.len();
                let has_end = stack.get(..end).is_some_and(|it| it.ends_with(inner));
                has_end && stack.starts_with(outer)
            }
            Gap::Outer => {
                let last = names.last();
                let end = stack.iter().rposition(|it| Some(it) == last);
                end.is_some_and(|end| stack[..=end].ends_with(inner))
            }
        };
        // Functions in C call some of the functions, and no others.
        let is_called_by_c = |name: &str| name.starts_with("c_") || name == "<module>";
        let mut gap = self.outermost;
        if self.gap == Gap::None {
            gap = usize::MAX;
        }
        let mut functions = self.functions.iter().enumerate();
        let has_callers = |(index, (name, after_native)): (usize, &(&str, bool))| {
            index == gap || *after_native == is_called_by_c(name)
        };
        is_part && (self.is_incomplete || functions.all(has_callers))
    }
}

#[derive(Debug, Default)]
struct Tally {
    samples: usize,
    incomplete: usize,
    misplaced: usize,
    without_functions: usize,
    /// Samples of each depth.
    depths: [usize; DEPTHS.len()],
    wrong: Vec<String>,
}

/// Samples the program until there are this many samples, with some of each depth.
fn run(interpreter: &Interpreter, jit: &str, count: usize, without_ebpf: bool) -> Option<Tally> {
    let mut command = interpreter.command("depths.py");
    let target = Target::spawn(command.args(DEPTHS).env("PYTHON_JIT", jit));
    let lines = target.lines.iter();
    let lines = lines.filter_map(|line| line.strip_prefix("stack "));
    let stacks: Vec<Vec<&str>> = lines
        .map(|line| line.split(' ').chain(["step"]).collect())
        .collect();
    assert_eq!(stacks.len(), DEPTHS.len());
    let mut sampler = start(target.pid(), 499, without_ebpf)?;
    let (mut catalog, mut tally) = (Catalog::new(), Tally::default());
    let begin = Instant::now();
    while tally.samples < count || tally.depths.contains(&0) {
        let limit = HANG_TIMEOUT + Duration::from_millis(20) * count as u32;
        assert!(begin.elapsed() < limit, "{tally:?}");
        std::thread::sleep(INTERVAL);
        let mut new: Vec<Sample> = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| new.push(sample));
        // Before, the interpreter and its unwind tables are not known.
        if sampler.counts().complete_stacks == 0 {
            continue;
        }
        for sample in &new {
            let sampled = Sampled::read(&catalog, sample);
            tally.samples += 1;
            tally.incomplete += usize::from(sampled.is_incomplete);
            tally.misplaced += usize::from(sampled.is_misplaced);
            if sampled.functions.is_empty() {
                tally.without_functions += 1;
                continue;
            }
            if !stacks.iter().any(|stack| sampled.fits(stack)) {
                tally.wrong.push(format!("{sampled:?}"));
            }
            let innermost = |name: &str| sampled.functions.iter().any(|it| it.0 == name);
            for (depth, count) in DEPTHS.iter().zip(&mut tally.depths) {
                let depth: usize = depth.parse().unwrap();
                let last = (depth - 1).to_string();
                let is_by_c = (depth - 1) % 60 == 59;
                let kind = if is_by_c { 'c' } else { 'p' };
                *count += usize::from(innermost(&format!("{kind}_{depth}_{last}")));
            }
        }
    }
    Some(tally)
}

#[test]
fn each_function_has_its_caller_at_any_depth() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let has_jit = *interpreter.version >= *"3.13";
        for jit in ["0", "1"].into_iter().take(1 + usize::from(has_jit)) {
            for without_ebpf in [false, true] {
                let count = if without_ebpf {
                    samples() / 10
                } else {
                    samples()
                };
                let Some(tally) = run(&interpreter, jit, count, without_ebpf) else {
                    continue;
                };
                let by = if without_ebpf { "ptrace" } else { "eBPF" };
                let name = format!("{interpreter} PYTHON_JIT={jit} {by}");
                let Tally {
                    samples,
                    incomplete,
                    without_functions,
                    depths,
                    ..
                } = &tally;
                eprintln!(
                    "{name}: {samples} samples, {incomplete} incomplete, {without_functions} without functions, \
                     {depths:?} of each depth"
                );
                // Generated code stands for the calls that it executes.
                assert!(
                    tally.misplaced * 100 <= *samples,
                    "{name}: {} misplaced",
                    tally.misplaced
                );
                let wrong = tally.wrong.len();
                assert_eq!(tally.wrong.first(), None, "{name}: {wrong} of {samples}");
                assert!(
                    without_functions * 100 <= *samples,
                    "{name}: {without_functions}"
                );
            }
        }
    }
}
