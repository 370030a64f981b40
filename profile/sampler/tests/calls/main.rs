//! Each frame of a stack was called by the next one, by the disassembly of the programs.
//!
//! Needs the right to use eBPF. `cargo xtask soak stacks` compares a million samples.

// Disassembly is text of one architecture.
#![cfg(target_arch = "x86_64")]

#[path = "../common/mod.rs"]
mod common;
mod graph;

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use otelctx_fixtures::{Compiler, rust_program, tier, wait_until_loaded};
use otelctx_sampler::sample::{Catalog, Frame, ModuleId, Sample};

use common::sample_by_tables;
use graph::{Graph, Verdict};

/// Samples of each program.
fn samples() -> u64 {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let usual = tier::usual_or_all(700, 2000);
    number.map_or(usual, |number| number.parse().unwrap())
}

/// A program, which is killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What comparing a program's stacks came to.
#[derive(Debug, Default)]
struct Tally {
    samples: u64,
    /// Samples of raising an exception, which are not compared.
    raising: u64,
    /// Calls that lead where the stack says.
    right: u64,
    /// Calls that may lead there.
    open: u64,
    /// Stacks with another one, and how many there are.
    wrong: BTreeMap<String, u64>,
}

/// The graphs of modules, by module.
#[derive(Default)]
struct Graphs(HashMap<ModuleId, Option<Graph>>);

impl Graphs {
    /// The module, and the address in it.
    fn place(
        &mut self,
        catalog: &Catalog,
        sample: &Sample,
        address: u64,
    ) -> Option<(ModuleId, u64)> {
        let process = catalog.thread_facts(sample.thread).process;
        let mapping = catalog.process(process).mapping_at(address, sample.time)?;
        let module = catalog.module_facts(mapping.module);
        let graph = self.0.entry(mapping.module).or_insert_with(|| {
            let path = Path::new(&module.path);
            (module.has_file() && path.exists()).then(|| Graph::of(path))
        });
        let offset = address - mapping.start + mapping.offset;
        Some((mapping.module, graph.as_ref()?.address(offset)))
    }
}

fn compare(tally: &mut Tally, graphs: &mut Graphs, catalog: &Catalog, sample: &Sample) {
    tally.samples += 1;
    let frames: Vec<&Frame> = catalog.frames(sample.user_stack).collect();
    let process = catalog.process(catalog.thread_facts(sample.thread).process);
    let is_raising = frames.iter().any(|frame| {
        let address = frame.lookup_address().unwrap();
        let mapping = process.mapping_at(address, sample.time);
        mapping.is_some_and(|it| catalog.module_facts(it.module).path.contains("/libgcc_s."))
    });
    // What raises an exception replaces return addresses with those of handlers, which no call leads to.
    if is_raising {
        tally.raising += 1;
        return;
    }
    for pair in frames.windows(2) {
        let [called, caller] = pair else { continue };
        let Frame::Native {
            address: caller,
            is_return_address: true,
        } = **caller
        else {
            // A signal interrupted it, or its handler returns to it.
            continue;
        };
        let Some((module, caller)) = graphs.place(catalog, sample, caller - 1) else {
            tally.open += 1;
            continue;
        };
        let called = called.lookup_address().unwrap();
        let called = graphs.place(catalog, sample, called);
        let is_switch = called.is_some_and(|(module, address)| {
            let graph = graphs.0[&module].as_ref().unwrap();
            graph.switches_contexts(address)
        });
        let called = called.filter(|it| it.0 == module).map(|it| it.1);
        let graph = graphs.0[&module].as_ref().unwrap();
        // The first switch to a coroutine returns to its function, which no call precedes.
        if is_switch && graph.is_start(caller + 1) {
            tally.open += 1;
            continue;
        }
        match graph.check(caller + 1, called) {
            Verdict::Right => tally.right += 1,
            Verdict::Open => tally.open += 1,
            Verdict::Wrong => {
                let path = &catalog.module_facts(module).path;
                let text = format!("{path}: {called:x?} was not called before {:x}", caller + 1);
                *tally.wrong.entry(text).or_default() += 1;
            }
        }
    }
}

/// Samples a program and compares its stacks. `None`, with a line, where the kernel does not permit it.
fn run(command: &mut Command) -> Option<Tally> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let program = Program(child.unwrap());
    let pid = program.0.id() as i32;
    wait_until_loaded(pid);
    let (mut tally, mut graphs) = (Tally::default(), Graphs::default());
    sample_by_tables(pid, 9_999, |catalog, new| {
        let room = samples() - tally.samples;
        for sample in new.iter().take(room as usize) {
            compare(&mut tally, &mut graphs, catalog, sample);
        }
        match tally.samples == samples() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    Some(tally)
}

/// Checks a program's stacks.
fn check(name: &str, command: &mut Command) -> Option<()> {
    let tally = run(command)?;
    eprintln!("{name}: {tally:?}");
    assert!(tally.right > tally.samples, "{name}: {tally:?}");
    assert_eq!(tally.wrong, BTreeMap::new(), "{name}");
    Some(())
}

#[test]
fn each_frame_was_called_by_the_next() {
    let flags = [
        "-O2",
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-fno-jump-tables",
    ];
    if Command::new("objdump").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no objdump");
    }
    // All kinds of calls but those of the vDSO, which is in no file.
    let arguments = ["1000000000", "rwalsjnkf"];
    for (name, program) in [
        ("gcc", Compiler::gcc().program(&["stacks.c"], &flags)),
        ("clang", Compiler::clang().program(&["stacks.c"], &flags)),
    ] {
        let Some(program) = program else { continue };
        if check(name, Command::new(program).args(arguments)).is_none() {
            return;
        }
    }
    if let Some(program) = rust_program("stacks.rs", &["-O"]) {
        check("rust", Command::new(program).arg("1000000000"));
    }
}

#[test]
fn each_frame_of_a_distributions_programs_was_called_by_the_next() {
    let python = "def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nwhile True: f(12)";
    let bash = "f() { for ((i = 0; i < 100; i++)); do x=$((x + i)); [[ $x =~ 7 ]]; done; }\n\
        while :; do f; done";
    for (path, script) in [("/usr/bin/python3", python), ("/bin/bash", bash)] {
        if !Path::new(path).exists() {
            eprintln!("skipped: no {path}");
            continue;
        }
        if check(path, Command::new(path).args(["-c", script])).is_none() {
            return;
        }
    }
}
