//! Stacks of programs that keep no frame pointers reach the function that the program starts with.
//!
//! Needs the right to use eBPF.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::{Compiler, rust_program, wait_until_loaded};
use otelctx_reader::remote::FileBytes;
use otelctx_reader::remote::elf::{Elf, Source};
use otelctx_sampler::sample::{Catalog, Counts, Frame, ProcessId, Sample};
use otelctx_sampler::{INTERVAL, Method, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Samples of each program.
const SAMPLES: u64 = 1000;
/// Size of `_start`, in bytes: it has 34 to 48.
const START: u64 = 48;

/// A program, which is killed when dropped.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where the entry point is in an ELF file, in bytes.
fn entry(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let bytes = FileBytes(&file);
    let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
    let entry = elf.entry();
    let contains = |start: u64, size: u64| (start..start + size).contains(&entry);
    let mut loads = elf.loads().iter();
    let load = loads.find(|load| contains(load.address, load.file_size));
    let load = load.unwrap();
    entry - load.address + load.offset
}

/// Whether an address is in the function that the program starts with. `None` if its mapping is not
/// known: a process may have ended too soon.
fn is_start(catalog: &Catalog, process: ProcessId, address: u64) -> Option<bool> {
    let mut mappings = catalog.process(process).mappings.iter();
    let mapping = mappings.find(|it| (it.start..it.end).contains(&address))?;
    let module = catalog.module_facts(mapping.module);
    if !module.has_file() {
        return Some(false);
    }
    let start = entry(Path::new(&module.path));
    Some((start..start + START).contains(&(address - mapping.start + mapping.offset)))
}

/// Samples a program. `None`, with a line, where the kernel does not permit it.
fn record(
    name: &str,
    command: &mut Command,
    without_ebpf: bool,
) -> Option<(Counts, Catalog, Vec<Sample>)> {
    let program = Program::start(command);
    wait_until_loaded(program.pid());
    let mut options = Options::new(Targets::Processes(vec![program.pid()]));
    options.frequency = 499;
    options.without_ebpf = without_ebpf;
    let mut sampler = Sampler::start(&options).unwrap();
    Feature::Ebpf.or_skip(match sampler.method() {
        Method::Ptrace(why) if !without_ebpf => Err(why),
        _ => Ok(()),
    })?;
    if let Some(why) = sampler.without_tables() {
        eprintln!("skipped: {why}");
        return None;
    }
    let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
    let begin = Instant::now();
    // An emulated machine takes longer to make the rows than sampling waits for them.
    let mut before = None;
    while (samples.len() as u64) < SAMPLES {
        assert!(begin.elapsed() < TIMEOUT, "{name}: {}", samples.len());
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        let counts = sampler.counts();
        if before.is_none() {
            samples.clear();
            before = (counts.complete_stacks > 0).then_some(counts);
        }
    }
    let mut counts = sampler.stop(&mut catalog, &mut |sample| samples.push(sample));
    counts -= before.unwrap_or_default();
    Some((counts, catalog, samples))
}

/// Samples a program; checks that every complete stack ends in `_start`. `None`, with a line, where the
/// kernel does not permit it.
fn sample(name: &str, command: &mut Command, without_ebpf: bool) -> Option<Counts> {
    let (counts, catalog, samples) = record(name, command, without_ebpf)?;
    let ends = |sample: &Sample| {
        let frames = catalog.frames(sample.user_stack);
        let process = catalog.thread_facts(sample.thread).process;
        let last = frames.filter_map(Frame::address).next_back();
        is_start(&catalog, process, last?)
    };
    let ends: Vec<Option<bool>> = samples.iter().map(ends).collect();
    let count = |of: Option<bool>| ends.iter().filter(|end| **end == of).count() as u64;
    let (whole, unknown) = (count(Some(true)), count(None));
    let others = || {
        let of_other = samples
            .iter()
            .zip(&ends)
            .filter(|(_, end)| **end == Some(false));
        let stacks = of_other.map(|(sample, _)| catalog.frames(sample.user_stack).collect());
        stacks.collect::<Vec<Vec<_>>>()
    };
    // No stack that ends elsewhere is complete.
    assert!(
        whole <= counts.complete_stacks && counts.complete_stacks <= whole + unknown,
        "{name}: {whole} reach the start, of {unknown} it is not known: {counts:?}, others: {:x?}",
        others()
    );
    Some(counts)
}

/// Checks that 99 % of a program's stacks are complete.
fn check(name: &str, command: &mut Command) -> Option<()> {
    check_share(name, command, 99)
}

/// Checks that at least `share` percent of a program's stacks are complete.
fn check_share(name: &str, command: &mut Command, share: u64) -> Option<()> {
    let counts = sample(name, command, false)?;
    assert_share(name, &counts, share);
    Some(())
}

fn assert_share(name: &str, counts: &Counts, share: u64) {
    let (whole, all) = (counts.complete_stacks, counts.samples());
    assert!(
        100 * whole >= share * all,
        "{name}: {whole} of {all}: {counts:?}"
    );
}

/// A program of the fixtures, as distributions build theirs.
fn without_frame_pointers(compiler: Compiler, source: &str) -> Option<PathBuf> {
    compiler.program(&[source], &["-O2", "-fomit-frame-pointer"])
}

/// Whether a program of the distribution is there; a line if it is not.
fn is_installed(path: &str) -> bool {
    let installed = Path::new(path).exists();
    if !installed {
        eprintln!("skipped: no {path}");
    }
    installed
}

#[test]
fn stacks_of_compiled_programs_reach_the_start() {
    // All kinds of calls but coroutines, which start on stacks of their own, and child processes.
    let arguments = ["1000000000", "rwalsjn"];
    for (name, program) in [
        ("gcc", without_frame_pointers(Compiler::gcc(), "stacks.c")),
        (
            "clang",
            without_frame_pointers(Compiler::clang(), "stacks.c"),
        ),
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

/// They start in what makecontext has put on their stacks.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_of_coroutines_reach_their_start() {
    let Some(program) = without_frame_pointers(Compiler::gcc(), "stacks.c") else {
        return;
    };
    let mut command = Command::new(program);
    if let Some((counts, ..)) = record("coroutines", command.args(["1000000000", "k"]), false) {
        assert_share("coroutines", &counts, 98);
    }
}

/// They have neither unwind tables nor a frame pointer, but a known shape.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_through_the_trampolines_of_python_reach_the_start() {
    let Some(program) = without_frame_pointers(Compiler::gcc(), "trampoline.c") else {
        return;
    };
    check("trampolines", &mut Command::new(&program));
    let counts = sample("by ptrace", &mut Command::new(program), true);
    let counts = counts.expect("nothing to skip");
    let all = counts.samples() - counts.missing_stacks;
    assert!(100 * counts.complete_stacks >= 99 * all, "{counts:?}");
}

#[test]
fn stacks_of_a_distributions_programs_reach_the_start() {
    let python = "import json\n\
        def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\n\
        while True: f(12); json.dumps([{'a': i} for i in range(50)])";
    let perl = "sub f { my $n = shift; $n < 2 ? $n : f($n - 1) + f($n - 2) }\n\
        while (1) { f(10); join(',', sort map { $_ * 7 % 13 } 1 .. 300) =~ /1,2/ }";
    let bash = "f() { for ((i = 0; i < 100; i++)); do x=$((x + i)); [[ $x =~ 7 ]]; done; }\n\
        while :; do f; done";
    for (path, script) in [
        ("/usr/bin/python3", python),
        ("/usr/bin/perl", perl),
        ("/bin/bash", bash),
    ] {
        let option = if path.ends_with("perl") { "-e" } else { "-c" };
        if is_installed(path) && check(path, Command::new(path).args([option, script])).is_none() {
            return;
        }
    }
}

#[test]
fn stacks_by_ptrace_reach_the_start_once_the_tables_are_read() {
    let Some(program) = without_frame_pointers(Compiler::gcc(), "stacks.c") else {
        return;
    };
    let mut command = Command::new(program);
    let counts = sample("ptrace", command.args(["1000000000", "rwa"]), true);
    let counts = counts.expect("nothing to skip");
    let all = counts.samples() - counts.missing_stacks;
    assert!(100 * counts.complete_stacks >= 99 * all, "{counts:?}");
}

#[test]
fn stacks_of_children_that_live_for_milliseconds_reach_the_start() {
    let script = "while :; do (for ((i = 0; i < 2000; i++)); do :; done); done";
    if is_installed("/bin/bash") {
        // A process that is ending has no memory any more.
        let mut bash = Command::new("/bin/bash");
        check_share("children", bash.args(["-c", script]), 95);
    }
}
