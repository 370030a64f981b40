//! Stacks compared frame by frame with the program's own account of its calls, which the sample carries: the program keeps
//! it in its thread's context.
//!
//! Needs the right to use eBPF. `cargo xtask soak accounts` compares a million samples, and as
//! many waits.

// The programs write their accounts with stores of x86-64.
#![cfg(target_arch = "x86_64")]

mod account;
#[path = "../common/mod.rs"]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::kernel::is_emulated;
use otelctx_fixtures::{Compiler, DEBUG_FRAME, Target, rust_program, tier};
use otelctx_sampler::sample::{Catalog, Event, Found, Frame, Sample, StackEnd};

use account::{Functions, Root, Verdict, is_switching, judge};
use common::{sample_by_tables, sample_waits};

/// Samples of each program.
fn samples() -> u64 {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let few = match is_emulated() {
        true => 400,
        false => tier::usual_or_all(1000, 3000),
    };
    number.map_or(few, |number| number.parse().unwrap())
}

/// Samples a second: an emulated machine takes milliseconds for each.
fn frequency() -> u32 {
    if is_emulated() { 99 } else { 9_999 }
}

/// Stacks of waits to compare for each program.
fn waits() -> u64 {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let few = tier::usual_or_all(3000, 10_000);
    number.map_or(few, |number| number.parse().unwrap())
}

/// What comparing a program's stacks came to.
#[derive(Debug, Default)]
struct Tally {
    /// Samples that were compared.
    samples: u64,
    /// Their frames.
    frames: u64,
    /// Each frame is right.
    right: u64,
    /// The same but for a function that has just begun or is about to return.
    step: u64,
    /// Right as far as they go.
    cut: u64,
    /// Right as far as they go, but taken before all tables were ready.
    early: u64,
    /// Right as far as they go, of waits whose stacks are longer than what is copied.
    longer: u64,
    /// Right as far as they go, of switches to another context: `swapcontext` of glibc has no rules for the instructions between those
    /// that load the stack pointer and push the return address.
    switching: u64,
    /// Of switches to a coroutine that has not begun: no frame is one of the program's.
    beginning: u64,
    /// Right stacks through each function, by its letter.
    of: BTreeMap<char, u64>,
    /// Right stacks of children by vfork.
    of_children: u64,
    /// What the first functions were called by, by their letters, and how many of the stacks.
    roots: BTreeMap<char, BTreeMap<Vec<u64>, u64>>,
    /// Samples without an account, and those of children: not compared.
    without: [u64; 2],
    wrong: BTreeMap<String, u64>,
}

impl Tally {
    fn compare(&mut self, functions: &Functions, catalog: &Catalog, sample: &Sample, pid: i32) {
        let is_child = catalog.thread_facts(sample.thread).tid != pid;
        let Found::Attached(context) = sample.found else {
            self.without[usize::from(is_child)] += 1;
            return;
        };
        let account = catalog.context_facts(context).attributes[0].1.as_bytes();
        let frames: Vec<&Frame> = catalog.frames(sample.user_stack).collect();
        let is_early = sample.stack_end == Some(StackEnd::TablesNotReady);
        self.samples += 1;
        self.frames += frames.len() as u64;
        let letters = account.iter().step_by(8).map(|it| char::from(*it));
        let root = match judge(functions, account, is_child, &frames) {
            Verdict::Right(root) => {
                self.right += 1;
                root
            }
            Verdict::Step(root) => {
                self.step += 1;
                root
            }
            Verdict::Cut => {
                if sample.event != Event::OnCpu && sample.stack_end == Some(StackEnd::Unreadable) {
                    self.longer += 1;
                } else {
                    *self.cut(is_early, account) += 1;
                }
                return;
            }
            Verdict::Wrong => {
                let letters: String = letters.collect();
                let text = format!("{is_child} {letters}: {frames:x?}");
                *self.wrong.entry(text).or_default() += 1;
                return;
            }
        };
        let Some(Root(first, callers)) = root else {
            self.beginning += 1;
            return;
        };
        if is_early {
            // The outermost frames may be missing.
            self.early += 1;
            return;
        }
        *self
            .roots
            .entry(first)
            .or_default()
            .entry(callers)
            .or_default() += 1;
        for letter in letters.collect::<BTreeSet<char>>() {
            *self.of.entry(letter).or_default() += 1;
        }
        self.of_children += u64::from(is_child);
    }

    /// The counter of a stack that is cut.
    fn cut(&mut self, is_early: bool, account: &[u8]) -> &mut u64 {
        if is_early {
            &mut self.early
        } else if is_switching(account) {
            &mut self.switching
        } else {
            &mut self.cut
        }
    }

    /// Whether all that the program does was compared.
    fn has_all(&self, functions: &Functions) -> bool {
        let child = functions.letters().any(|letter| letter == 'v');
        functions
            .letters()
            .all(|letter| self.of.contains_key(&letter))
            && (self.of_children > 0 || !child)
    }

    /// Checks that the first functions' callers are always the same, and counts those stacks that lack the outermost.
    fn check_roots(&mut self) {
        for (letter, roots) in &self.roots {
            let longest = roots
                .keys()
                .max_by_key(|root| root.len())
                .expect("one is there");
            for (root, count) in roots {
                if !longest.starts_with(root) {
                    let text = format!("{letter}: called by {root:x?}, not {longest:x?}");
                    *self.wrong.entry(text).or_default() += count;
                } else if root.len() < longest.len() {
                    self.cut += count;
                }
            }
        }
    }
}

/// Samples a program and compares its stacks. `None`, with a line, where the kernel does not permit it.
fn run(program: &Path) -> Option<Tally> {
    let target = Target::spawn(&mut Command::new(program));
    let functions = Functions::read(&target.lines);
    let mut tally = Tally::default();
    sample_by_tables(target.pid(), frequency(), |catalog, new| {
        for sample in new {
            tally.compare(&functions, catalog, sample, target.pid());
        }
        match tally.samples - tally.early >= samples() && tally.has_all(&functions) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    tally.check_roots();
    Some(tally)
}

/// The same for stacks of waits, each of which counts once. Some functions neither sleep nor call any that do.
fn run_asleep(program: &Path) -> Option<Tally> {
    let target = Target::spawn(Command::new(program).arg("asleep"));
    let functions = Functions::read(&target.lines);
    let (mut tally, mut last) = (Tally::default(), BTreeMap::new());
    sample_waits(target.pid(), |catalog, new| {
        for sample in new {
            let Event::OffCpu(off) = sample.event else {
                panic!("{sample:?}");
            };
            let thread = catalog.thread_facts(sample.thread).tid;
            let is_new = last.insert(thread, off.since) != Some(off.since);
            // Others were thrown away.
            if is_new && sample.stack_end.is_some() {
                tally.compare(&functions, catalog, sample, target.pid());
            }
        }
        match tally.samples >= waits() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    tally.check_roots();
    Some(tally)
}

fn check(name: &str, tally: Option<Tally>) -> Option<()> {
    let tally = tally?;
    eprintln!("{name}: {tally:#?}");
    assert_eq!(tally.wrong, BTreeMap::new(), "{name}");
    // On average, these are 0.5, 1 and 5 of a thousand samples.
    assert!(100 * tally.cut <= tally.samples, "{name}");
    assert!(50 * tally.switching <= tally.samples, "{name}");
    assert!(30 * tally.beginning <= tally.samples, "{name}");
    Some(())
}

/// What the programs are linked with.
fn library() -> Option<PathBuf> {
    let sources = ["accounts_library.c", "variable.c", "publish.c"];
    Compiler::gcc().library::<&str>(&sources, &[])
}

/// Compares the stacks of each program, as `run` does.
fn check_all(run: fn(&Path) -> Option<Tally>) {
    let Some(library) = library() else { return };
    let library = library.to_str().unwrap();
    let flags = ["-O2", "-fomit-frame-pointer", library];
    let debug_frame = [&flags[..], &DEBUG_FRAME].concat();
    let linked = format!("-Clink-arg={library}");
    let (gcc, clang) = (Compiler::gcc(), Compiler::clang());
    let source = &["accounts.c"];
    for (name, program) in [
        ("gcc", gcc.program(source, &flags)),
        ("gcc, .debug_frame", gcc.program(source, &debug_frame)),
        ("clang", clang.program(source, &flags)),
        ("rustc", rust_program("accounts.rs", &["-O", &linked])),
    ] {
        let Some(program) = program else { continue };
        if check(name, run(&program)).is_none() {
            return;
        }
    }
}

#[test]
fn each_frame_is_the_call_that_the_program_made() {
    check_all(run);
}

#[test]
fn each_frame_of_a_wait_is_the_call_that_the_program_made() {
    if is_emulated() {
        return eprintln!("skipped: on an emulated machine, sleeps are too rare");
    }
    check_all(run_asleep);
}
