//! Stacks compared frame by frame with what the program itself did, after each of its instructions.

#![cfg(target_arch = "x86_64")]

mod tracee;
mod truth;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;
use otelctx_fixtures::{Compiler, DEBUG_FRAME, rust_program, tier};
use otelctx_remote::{FileCache, LiveProcess, Machine, Modules, Target};
use otelctx_unwind::{CodeMap, Dictionary, Frame, MakeRules, Registers, StackEnd, walk};

use tracee::{Step, Tracee};
use truth::Truth;

/// The result of a run.
#[derive(Debug, Default)]
struct Tally {
    /// Stacks that were compared.
    compared: u64,
    /// The frames of these.
    frames: u64,
    /// Stacks whose frames were all right and reached the start.
    whole: u64,
    /// Stacks that ended earlier, by where and why.
    cut: BTreeMap<String, u64>,
    /// Stacks that were right some instructions later.
    ahead: u64,
    /// Stacks with a wrong frame.
    wrong: Vec<String>,
    /// Wrong stacks in which the frame pointer had to do, by where.
    guessed: BTreeMap<String, u64>,
    /// Between two stacks: not compared.
    switching: u64,
}

/// A program to execute.
struct Run {
    command: Command,
    /// Runs it to this function first. The callers of that are taken from the tables, and the last one
    /// has to be the start.
    from: Option<&'static str>,
    /// Stacks to compare at the most.
    limit: u64,
    /// Sends SIGALRM each time after this number of instructions, once the program catches it; 0:
    /// never.
    period: u64,
}

impl Run {
    fn new(program: impl AsRef<OsStr>, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments);
        Run {
            command,
            from: Some("main"),
            limit: u64::MAX,
            period: 0,
        }
    }

    /// Executes the program, and compares after each instruction.
    fn run(mut self) -> Tally {
        let mut tracee = Tracee::start(&mut self.command);
        let mut tally = Tally::default();
        let files = FileCache::new();
        let dictionary = Arc::new(Dictionary::new());
        let mut code = CodeMap::default();
        let mut on_demand = CodeMap::default();
        let mut frames = Vec::new();
        let mut same = Vec::new();
        let target = LiveProcess::new(&tracee.process, &tracee.memory);
        let mut truth = Truth::new(stacks(&target, &files));
        if let Some(name) = self.from {
            let modules = Modules::read(&target, &files).expect("it lives");
            let (_, address) = modules.address_of(&target, name).expect("the function");
            tracee.run_to(address);
        }
        let mut pending = Vec::new();
        let mut steps = 0;
        while tally.compared < self.limit {
            if tracee.changed {
                tracee.changed = false;
                let target = LiveProcess::new(&tracee.process, &tracee.memory);
                let read =
                    |when| CodeMap::read(&target, &files, &dictionary, when).expect("it lives");
                code = read(MakeRules::Before);
                on_demand = read(MakeRules::OnDemand);
            }
            if self.from.take().is_some() {
                let end = walk(&registers(&tracee), &code, &tracee.memory, 100, &mut frames);
                assert_eq!(end, StackEnd::Start, "of what calls the function");
                let callers: Vec<_> = frames[1..].iter().map(|frame| frame.address).collect();
                truth.start_with(tracee.registers.rsp, &callers);
            }
            steps += 1;
            let is_due = self.period != 0 && steps % self.period == 0;
            if is_due && !truth.is_switching && tracee.catches(Signal::SIGALRM) {
                tracee.send(Signal::SIGALRM);
            }
            if truth.step(&mut tracee) == Step::End {
                break;
            }
            if truth.is_switching {
                tally.switching += 1;
                continue;
            }
            let end = walk(
                &registers(&tracee),
                &code,
                &tracee.memory,
                10_000,
                &mut frames,
            );
            let again = walk(
                &registers(&tracee),
                &on_demand,
                &tracee.memory,
                10_000,
                &mut same,
            );
            assert_eq!((again, &same), (end, &frames), "with rules on demand");
            compare(&mut tally, &mut pending, &tracee, &truth, &frames, end);
        }
        tally
            .wrong
            .extend(pending.into_iter().map(|stack| stack.message));
        tally
    }
}

fn registers(tracee: &Tracee) -> Registers {
    let all = &tracee.registers;
    let mut registers = Registers::new(Machine::X86_64, all.rip, all.rsp).expect("it is unwound");
    let general = [
        all.rax, all.rdx, all.rcx, all.rbx, all.rsi, all.rdi, all.rbp, all.rsp, all.r8, all.r9,
        all.r10, all.r11, all.r12, all.r13, all.r14, all.r15,
    ];
    for (number, value) in general.into_iter().enumerate() {
        registers.set(number as u8, value);
    }
    registers
}

/// The stacks that the fixture has beside the thread's own.
fn stacks(target: &LiveProcess<'_>, files: &FileCache) -> Vec<(u64, u64)> {
    let modules = Modules::read(target, files).expect("it lives");
    let mut ranges = Vec::new();
    for (name, count) in [("coroutine_stacks", 2), ("signal_stack", 1)] {
        if let Some((module, start)) = modules.address_of(target, name) {
            let symbol = module
                .symbol(target, name)
                .expect("it was read")
                .expect("it is there");
            let size = symbol.size / count;
            ranges.extend((0..count).map(|index| {
                let start = start + index * size;
                (start, start + size)
            }));
        }
    }
    ranges
}

/// A stack that is not what it really is now.
struct Pending {
    callers: Vec<(u64, bool)>,
    message: String,
    age: u32,
}

/// Instructions after which the program's stack is what its tables say that it is. setcontext and
/// longjmp have read where they are going to, and say so, before they go.
const AHEAD: u32 = 40;

fn compare(
    tally: &mut Tally,
    pending: &mut Vec<Pending>,
    tracee: &Tracee,
    truth: &Truth,
    frames: &[Frame],
    end: StackEnd,
) {
    tally.compared += 1;
    tally.frames += frames.len() as u64;
    let expected = std::iter::once((tracee.registers.rip, false)).chain(truth.callers());
    let expected: Vec<_> = expected.collect();
    pending.retain_mut(|stack| {
        stack.age += 1;
        let same = stack
            .callers
            .iter()
            .map(|it| it.0)
            .eq(expected.iter().map(|it| it.0));
        if same {
            tally.ahead += 1;
        } else if stack.age > AHEAD {
            tally.wrong.push(std::mem::take(&mut stack.message));
        }
        !same && stack.age <= AHEAD
    });
    let found: Vec<_> = frames
        .iter()
        .map(|frame| (frame.address, frame.is_caller))
        .collect();
    let matching = found
        .iter()
        .zip(&expected)
        .take_while(|(a, b)| a == b)
        .count();
    let is_whole = matching == frames.len() && matching == expected.len();
    if is_whole && end == StackEnd::Start {
        tally.whole += 1;
    } else if matching == frames.len() && end != StackEnd::Start {
        let last = place(tracee, frames[frames.len() - 1].address);
        *tally.cut.entry(format!("{last}: {end}")).or_default() += 1;
    } else if frames.iter().any(|frame| frame.by_frame_pointer) {
        let last = frames[matching.saturating_sub(1)].address;
        *tally.guessed.entry(place(tracee, last)).or_default() += 1;
    } else {
        let at = place(tracee, frames[matching.saturating_sub(1)].address);
        let first = |stack: &[(u64, bool)]| {
            let rest = stack.iter().skip(matching).take(5);
            format!("{:x?}", rest.collect::<Vec<_>>())
        };
        let (there, right) = (first(&found), first(&expected));
        pending.push(Pending {
            callers: found[1..].to_vec(),
            message: format!("{at}: behind {matching} frames {there}, not {right}; {end}"),
            age: 0,
        });
    }
}

/// An address as file and offset.
fn place(tracee: &Tracee, address: u64) -> String {
    let mut place = format!("{address:#x}");
    let target = LiveProcess::new(&tracee.process, &tracee.memory);
    let _ = target.mappings(&mut |mapping| {
        if (mapping.start..mapping.end).contains(&address) {
            let name = String::from_utf8_lossy(mapping.name);
            place = format!("{name}+{:#x}", address - mapping.start + mapping.offset);
        }
        std::ops::ControlFlow::Continue(())
    });
    place
}

impl Tally {
    /// Not one wrong frame, and nearly all stacks reach the start. Code without tables at the start of
    /// a program (crtbegin.o) has a few dozen instructions.
    #[track_caller]
    fn check(&self, what: &str, share: f64) {
        self.check_by_tables(what, share);
        assert!(self.guessed.is_empty(), "{what}: {:#?}", self.guessed);
    }

    /// The same, but for frames found by the frame pointer, which may be wrong.
    #[track_caller]
    fn check_by_tables(&self, what: &str, share: f64) {
        println!("{what}: {self:#?}");
        assert!(
            self.wrong.is_empty(),
            "{what}: {:#?}",
            &self.wrong[..self.wrong.len().min(5)]
        );
        let whole = self.whole as f64 / self.compared as f64;
        assert!(
            whole >= share,
            "{what}: {whole} of the stacks are whole: {:#?}",
            self.cut
        );
    }
}

fn program(compiler: Compiler, flags: &[&str]) -> Option<std::path::PathBuf> {
    compiler.program(&["stacks.c"], flags)
}

#[test]
fn stacks_of_c_programs_are_right_at_every_instruction() {
    let gcc = Compiler::gcc();
    for (compiler, flags) in [
        (gcc, &["-fomit-frame-pointer"][..]),
        (gcc, &["-O0"]),
        (gcc, &["-O3", "-fno-plt", "-static"]),
        (gcc, &["-Os", "-fcf-protection=full", "-Wl,-z,ibtplt"]),
        (Compiler::clang(), &["-fomit-frame-pointer"]),
        (Compiler::clang(), &["-O0"]),
    ] {
        let Some(program) = program(compiler, flags) else {
            continue;
        };
        let run = Run::new(program, &["1", "rwalsjkf"]);
        run.run().check(&format!("{compiler:?} {flags:?}"), 0.99);
    }
}

#[test]
fn stacks_by_debug_frame_are_right_at_every_instruction() {
    let flags = [&["-fomit-frame-pointer"][..], &DEBUG_FRAME].concat();
    for compiler in [Compiler::gcc(), Compiler::clang()] {
        let Some(program) = program(compiler, &flags) else {
            continue;
        };
        let mut run = Run::new(program, &["1", "rwalsjkf"]);
        run.limit = 40_000;
        run.run().check(&format!("{compiler:?}"), 0.99);
    }
}

/// The program's own functions have rules by their instructions alone, and those of the C library have tables.
#[test]
fn stacks_of_programs_without_tables_are_right_at_every_instruction() {
    let without = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let (gcc, clang) = (Compiler::gcc(), Compiler::clang());
    let usual = [
        (gcc, &["-O2", "-fomit-frame-pointer"][..]),
        (clang, &["-O3", "-fomit-frame-pointer", "-s"]),
    ];
    let others = [
        (gcc, &["-O0"][..]),
        (gcc, &["-O2", "-fno-omit-frame-pointer", "-s"]),
        (gcc, &["-Os", "-fcf-protection=full", "-s"]),
        (gcc, &["-O3", "-mavx2", "-mstackrealign"]),
        (clang, &["-O0"]),
    ];
    for (compiler, flags) in usual.iter().chain(tier::usual_or_all(&[][..], &others)) {
        let Some(program) = program(*compiler, &[&without[..], flags].concat()) else {
            continue;
        };
        // Other stacks are known by their symbols.
        let parts = match flags.contains(&"-s") {
            true => "ralj",
            false => "rwalsjkf",
        };
        let mut run = Run::new(program, &["1", parts]);
        run.from = None;
        run.run().check(&format!("{compiler:?} {flags:?}"), 0.99);
    }
}

/// The frame pointer leads through code of no file, whose caller's is then that of the caller's own frame, as SBCL's.
#[test]
fn functions_have_their_callers_behind_calls_that_remove_a_frame_record() {
    let Some(program) = Compiler::gcc().program(&["records.c"], &["-O2", "-rdynamic"]) else {
        return;
    };
    for (name, when) in [
        ("enter", MakeRules::Before),
        ("enter", MakeRules::OnDemand),
        ("enter_without_tables", MakeRules::Before),
        ("enter_without_tables", MakeRules::OnDemand),
    ] {
        let mut tracee = Tracee::start(&mut Command::new(&program));
        let files = FileCache::new();
        let dictionary = Arc::new(Dictionary::new());
        let target = LiveProcess::new(&tracee.process, &tracee.memory);
        let modules = Modules::read(&target, &files).expect("it lives");
        let (module, start) = modules.address_of(&target, name).expect("the function");
        let symbol = module.symbol(&target, name).expect("it was read");
        let function = start..start + symbol.expect("it is there").size;
        tracee.run_to(start);
        let target = LiveProcess::new(&tracee.process, &tracee.memory);
        let code = CodeMap::read(&target, &files, &dictionary, when).expect("it lives");
        let mut frames = Vec::new();
        let mut walked = |tracee: &Tracee| {
            let end = walk(&registers(tracee), &code, &tracee.memory, 100, &mut frames);
            (frames.iter().map(|it| it.address).collect::<Vec<_>>(), end)
        };
        let (callers, end) = walked(&tracee);
        assert_eq!(end, StackEnd::Start);
        let (mut inside, mut own) = (0, 0);
        while tracee.step() == Step::Instruction && tracee.registers.rip != callers[1] {
            let at = tracee.registers.rip;
            let (found, end) = walked(&tracee);
            if function.contains(&at) {
                own += 1;
                assert_eq!(
                    (&found[1..], end),
                    (&callers[1..], StackEnd::Start),
                    "{name}"
                );
                continue;
            }
            match at % 4096 {
                // The place is still empty: it holds the frame pointer.
                0 => assert_ne!(end, StackEnd::Start),
                // The frame pointer is that of the caller. Without rules, nothing shows it.
                0x11 => {}
                _ => {
                    inside += 1;
                    assert!(function.contains(&found[1]), "{name}: {found:x?}");
                    assert_eq!(
                        (&found[2..], end),
                        (&callers[1..], StackEnd::Start),
                        "{name}"
                    );
                }
            }
        }
        // lea to pop, and push to call, mov to ret.
        assert_eq!((inside, own), (5, 14), "{name}");
    }
}

/// Symbols are resolved when they are first called: through the procedure linkage table's header.
#[test]
fn stacks_in_linkage_tables_of_every_linker_are_right() {
    let gcc = Compiler::gcc();
    for compiler in [
        gcc,
        gcc.linker("gold"),
        gcc.linker("lld"),
        gcc.linker("mold"),
    ] {
        let Some(program) = program(compiler, &["-Wl,-z,lazy"]) else {
            continue;
        };
        let mut run = Run::new(program, &["1", "jsn"]);
        run.limit = 30_000;
        run.run().check(&format!("{compiler:?}"), 0.99);
    }
}

/// A signal between any two instructions, on the same stack and on another.
#[test]
fn stacks_of_signal_handlers_are_right_at_every_instruction() {
    let Some(program) = program(Compiler::gcc(), &["-fomit-frame-pointer"]) else {
        return;
    };
    for period in [61, 1009] {
        let mut run = Run::new(&program, &["2", "arskf"]);
        run.period = period;
        run.limit = 40_000;
        run.run()
            .check(&format!("every {period} instructions"), 0.99);
    }
}

#[test]
fn stacks_of_rust_programs_are_right_at_every_instruction() {
    let Some(program) = rust_program("stacks.rs", &["-O", "-Clink-arg=-Wl,-z,now"]) else {
        return;
    };
    let mut run = Run::new(program, &["1"]);
    run.limit = 100_000;
    run.run().check("rustc -O", 0.99);
}

/// By hand: `PROGRAM='/usr/bin/perl -e 1' cargo test -p otelctx-unwind --release --test exact -- \
/// --ignored --nocapture` executes a program from its first instruction on, `LIMIT` of them.
#[test]
#[ignore = "takes a minute for each million instructions"]
fn stacks_of_any_program_are_right_at_every_instruction() {
    let program = std::env::var("PROGRAM").unwrap_or_else(|_| "/bin/true".to_owned());
    let words: Vec<_> = program.split(' ').collect();
    let mut run = Run::new(words[0], &words[1..]);
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|it| it.parse().expect("a number"))
    };
    run.from = None;
    run.limit = number("LIMIT").unwrap_or(1_000_000);
    run.period = number("PERIOD").unwrap_or(0);
    // Stripped programs have no names of functions by which to allow wrong frames.
    run.run().check_by_tables(&program, 0.9);
}
