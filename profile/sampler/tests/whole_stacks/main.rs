//! Stacks of programs that keep no frame pointers reach the function that the program starts with.
//!
//! Needs the right to use eBPF.

mod programs;
mod waiting;

use std::collections::BTreeSet;
use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::{Feature, is_emulated};
use otelctx_fixtures::sampled::Sampled;
#[cfg(target_arch = "aarch64")]
use otelctx_fixtures::wait_for_signed_return_address;
use otelctx_fixtures::{Compiler, Target, copy_program, tier, wait_until_loaded};
use otelctx_reader::remote::FileBytes;
use otelctx_reader::remote::elf::{Elf, Source};
use otelctx_sampler::sample::{Catalog, Counts, Frame, ProcessId, Sample, StackEnd};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// How many samples of each program to take, and how many a second: an emulated machine takes
/// milliseconds for each.
fn samples() -> (usize, u32) {
    if is_emulated() {
        (400, 99)
    } else {
        (tier::usual_or_all(1000, 3000), 999)
    }
}

/// Size of `_start`, in bytes: it has 34 to 52.
const START: u64 = 52;
/// Bytes of code before the call in `clone` or `clone3` that starts a thread.
const CLONE: u64 = 64;
/// Stacks of compiled programs that reach the start, percent.
const COMPLETE: u64 = if cfg!(target_arch = "aarch64") {
    98
} else {
    99
};

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

/// Where the C library calls what a thread starts with: the file, and where that call returns to, in bytes.
fn thread_start() -> &'static (String, u64) {
    static START: OnceLock<(String, u64)> = OnceLock::new();
    let find = || {
        let mut addresses = [std::ptr::null_mut(); 128];
        let count = addresses.len() as libc::c_int;
        // SAFETY: there is room for as many addresses.
        let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), count) };
        let address = addresses[count as usize - 1].addr() as u64;
        let maps = read_to_string("/proc/self/maps").unwrap();
        let found = maps.lines().find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let (start, end) = fields[0].split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let is_inside = (number(start)..number(end)).contains(&address);
            let offset = address.wrapping_sub(number(start)) + number(fields[2]);
            is_inside.then(|| (fields[5].to_owned(), offset))
        });
        found.expect("the address is mapped")
    };
    START.get_or_init(|| std::thread::spawn(find).join().unwrap())
}

/// Whether an address is in the function that the program or a thread starts with. `None` if its mapping is not
/// known: a process may have ended too soon.
fn is_start(catalog: &Catalog, process: ProcessId, address: u64) -> Option<bool> {
    let mut mappings = catalog.process(process).mappings.iter();
    let mapping = mappings.find(|it| (it.start..it.end).contains(&address))?;
    let module = catalog.module_facts(mapping.module);
    if !module.has_file() {
        return Some(false);
    }
    let offset = address - mapping.start + mapping.offset;
    let (path, call) = thread_start();
    if module.path == *path && (call - CLONE..=*call).contains(&offset) {
        return Some(true);
    }
    let start = entry(Path::new(&module.path));
    Some((start..start + START).contains(&offset))
}

/// Samples a program. `None`, with a line, where the kernel does not permit it.
fn record(
    name: &str,
    command: &mut Command,
    without_ebpf: bool,
) -> Option<(Counts, Catalog, Vec<Sample>)> {
    let program = Program::start(command);
    wait_until_loaded(program.pid());
    record_process(name, program.pid(), without_ebpf)
}

/// Samples a process, like [`record`].
fn record_process(
    name: &str,
    pid: i32,
    without_ebpf: bool,
) -> Option<(Counts, Catalog, Vec<Sample>)> {
    let mut options = Options::new(Targets::Processes(vec![pid]));
    let (wanted, frequency) = samples();
    options.frequency = frequency;
    options.without_ebpf = without_ebpf;
    options.without_second_walk = true;
    let mut sampler = Sampler::start(&options).unwrap();
    if !without_ebpf {
        Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    }
    Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err))?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
    let begin = Instant::now();
    // An emulated machine takes longer to make the rows than sampling waits for them.
    let mut before = None;
    while samples.len() < wanted {
        assert!(begin.elapsed() < TIMEOUT, "{name}: {}", samples.len());
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        let counts = sampler.counts();
        if before.is_none() {
            samples.clear();
            before = (counts.complete_stacks > 0).then_some(counts);
        }
    }
    let mut counts = sampler
        .stop(&mut catalog, &mut |sample| samples.push(sample))
        .counts;
    counts -= before.unwrap_or_default();
    Some((counts, catalog, samples))
}

/// Whether a sample's stack reaches the start, see [`is_start`].
fn reaches_start(catalog: &Catalog, sample: &Sample) -> Option<bool> {
    let frames = catalog.frames(sample.user_stack);
    let process = catalog.thread_facts(sample.thread).process;
    is_start(
        catalog,
        process,
        frames.filter_map(Frame::address).next_back()?,
    )
}

/// Samples a program; checks that every complete stack reaches the start. `None`, with a line, where the
/// kernel does not permit it.
fn sample(name: &str, command: &mut Command, without_ebpf: bool) -> Option<Counts> {
    let program = Program::start(command);
    wait_until_loaded(program.pid());
    sample_process(name, program.pid(), without_ebpf)
}

/// Samples a process, like [`sample`].
fn sample_process(name: &str, pid: i32, without_ebpf: bool) -> Option<Counts> {
    let (counts, catalog, samples) = record_process(name, pid, without_ebpf)?;
    let ends = samples.iter().map(|sample| reaches_start(&catalog, sample));
    let ends: Vec<Option<bool>> = ends.collect();
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

/// Checks that nearly all of a program's stacks are complete.
fn check(name: &str, command: &mut Command) -> Option<()> {
    check_share(name, command, COMPLETE)
}

/// Checks that at least `share` percent of a program's stacks are complete.
fn check_share(name: &str, command: &mut Command, share: u64) -> Option<()> {
    let counts = sample(name, command, false)?;
    assert_share(name, &counts, share);
    Some(())
}

fn assert_share(name: &str, counts: &Counts, share: u64) {
    let (whole, all) = (counts.complete_stacks, counts.samples());
    eprintln!("{name}: {whole} of {all} stacks reach the start");
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
        ("gcc", Sampled::own().calls()),
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
    if let Some(program) = Sampled::own().rust_calls() {
        check("rust", Command::new(program).arg("1000000000"));
    }
}

/// Of samples in the kernel alone: their walk starts from the registers that the system call has saved.
#[test]
fn stacks_of_samples_in_the_kernel_reach_the_start() {
    // Not a link to busybox, which is static and has no unwind tables.
    const DD: &str = "/usr/bin/dd";
    if let Some(program) = Sampled::own().reading() {
        check_in_kernel("gcc", &mut Command::new(program));
    }
    if is_installed(DD) {
        let mut command = Command::new(DD);
        check_in_kernel(
            "dd",
            command.args(["if=/dev/zero", "of=/dev/null", "bs=1M"]),
        );
    }
}

/// Checks a program that has the kernel work all the time.
fn check_in_kernel(name: &str, command: &mut Command) {
    let Some((_, catalog, samples)) = record(name, command, false) else {
        return;
    };
    let is_in_kernel = |sample: &&Sample| catalog.frames(sample.kernel_stack).next().is_some();
    let inside: Vec<_> = samples.iter().filter(is_in_kernel).collect();
    assert!(10 * inside.len() > 9 * samples.len(), "{}", inside.len());
    let reaches = |sample: &&&Sample| reaches_start(&catalog, sample) == Some(true);
    let (whole, all) = (inside.iter().filter(reaches).count(), inside.len());
    eprintln!("{name}: {whole} of {all} stacks of samples in the kernel reach the start");
    assert!(100 * whole >= 99 * all, "{name}: {whole} of {all}");
}

/// Functions sign the addresses that they return to before they save them.
#[test]
#[cfg(target_arch = "aarch64")]
fn stacks_of_signed_return_addresses_reach_the_start() {
    let Some(program) = Sampled::own().signed_calls() else {
        return;
    };
    for (name, calls, by_ptrace) in [("eBPF", "rwalsjn", false), ("ptrace", "rwa", true)] {
        let program = Program::start(Command::new(&program).args(["1000000000", calls]));
        wait_until_loaded(program.pid());
        let signs = wait_for_signed_return_address(program.pid());
        if Feature::SignedReturns.or_skip(signs).is_none() {
            return;
        }
        let Some(counts) = sample_process(name, program.pid(), by_ptrace) else {
            return;
        };
        let (whole, all) = (counts.complete_stacks, counts.samples());
        let all = all - if by_ptrace { counts.missing_stacks } else { 0 };
        eprintln!("signed, {name}: {whole} of {all} stacks reach the start");
        assert!(100 * whole >= COMPLETE * all, "{name}: {counts:?}");
    }
}

/// They start in what makecontext has put on their stacks.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_of_coroutines_reach_their_start() {
    let Some(program) = Sampled::own().calls() else {
        return;
    };
    let mut command = Command::new(program);
    if let Some((counts, ..)) = record("coroutines", command.args(["1000000000", "k"]), false) {
        assert_share("coroutines", &counts, 98);
    }
}

/// The function of such a coroutine returns to code without tables, which no call precedes.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_of_coroutines_of_libraries_reach_their_start() {
    let Some(program) = without_frame_pointers(Compiler::gcc(), "coroutines.c") else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let mut lines = target.lines.iter();
    let end = lines.find_map(|it| it.strip_prefix("end 0x")).unwrap();
    let end = u64::from_str_radix(end, 16).unwrap();
    for without_ebpf in [false, true] {
        let recorded = record_process("coroutines of libraries", target.pid(), without_ebpf);
        let Some((counts, catalog, samples)) = recorded else {
            return;
        };
        let mut in_coroutine = 0;
        let is_complete = |it: &&Sample| it.stack_end == Some(StackEnd::Start);
        for sample in samples.iter().filter(is_complete) {
            let frames = catalog.frames(sample.user_stack);
            let is_end = frames.filter_map(Frame::address).next_back() == Some(end);
            in_coroutine += u64::from(is_end);
            assert!(is_end || reaches_start(&catalog, sample) != Some(false));
        }
        // It works there for twice as long as outside.
        assert!(
            2 * in_coroutine > counts.complete_stacks,
            "{in_coroutine}: {counts:?}"
        );
        assert_share("coroutines of libraries", &counts, COMPLETE);
    }
}

/// Such a program's main function may never return: what it has saved shows that it goes on behind its calls.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_of_programs_without_tables_reach_the_start() {
    let flags = [
        "-O2",
        "-fomit-frame-pointer",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
        "-lm",
    ];
    for (name, compiler) in [("gcc", Compiler::gcc()), ("clang", Compiler::clang())] {
        for stripped in [false, true] {
            let flags = [&flags[..], if stripped { &["-s"][..] } else { &[] }].concat();
            let Some(program) = compiler.program(&["never_returns.c"], &flags) else {
                continue;
            };
            let name = format!("{name} without tables, stripped: {stripped}");
            if check(&name, &mut Command::new(program)).is_none() {
                return;
            }
        }
    }
}

/// Code that is in no file, with unwind tables in the target's memory.
#[test]
fn stacks_through_the_vdso_reach_the_start() {
    let Some(program) = Sampled::own().calls() else {
        return;
    };
    let mut command = Command::new(program);
    let command = command.args(["1000000000", "t"]);
    let Some((counts, catalog, samples)) = record("vDSO", command, false) else {
        return;
    };
    assert_share("with and without the vDSO", &counts, COMPLETE);
    let is_in_vdso = |sample: &&Sample| {
        let process = catalog.thread_facts(sample.thread).process;
        let mut mappings = catalog.process(process).mappings.iter();
        let vdso = mappings.find(|it| catalog.module_facts(it.module).path == "[vdso]");
        let vdso = vdso.expect("every process has it");
        let mut addresses = catalog.frames(sample.user_stack).filter_map(Frame::address);
        addresses.any(|address| (vdso.start..vdso.end).contains(&address))
    };
    let inside: Vec<_> = samples.iter().filter(is_in_vdso).collect();
    // The program does little else.
    assert!(4 * inside.len() > samples.len(), "{}", inside.len());
    let reaches = |sample: &&&Sample| reaches_start(&catalog, sample) == Some(true);
    let whole = inside.iter().filter(reaches).count() as u64;
    let all = inside.len() as u64;
    eprintln!("vDSO: {whole} of {all} stacks reach the start");
    assert!(100 * whole >= COMPLETE * all, "{whole} of {all}");
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

/// Interrupted code without tables and the return address of a frame can be a byte apart: only what a frame returns to
/// can be what signal handlers return to.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_through_signal_handlers_of_a_program_reach_the_start() {
    if let Some(program) = without_frame_pointers(Compiler::gcc(), "restorer.c") {
        check("restorer", &mut Command::new(program));
    }
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
    let Some(program) = Sampled::own().calls() else {
        return;
    };
    let mut command = Command::new(program);
    let counts = sample("ptrace", command.args(["1000000000", "rwa"]), true);
    let counts = counts.expect("nothing to skip");
    let all = counts.samples() - counts.missing_stacks;
    eprintln!("ptrace: {} of {all}", counts.complete_stacks);
    assert!(100 * counts.complete_stacks >= COMPLETE * all, "{counts:?}");
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

/// A file that is removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A copy of a program, with other bytes in the place of its unwind tables.
fn with_tables(program: &Path, name: &str, tables: impl Fn(usize) -> Vec<u8>) -> Scratch {
    let mut bytes = std::fs::read(program).unwrap();
    let file = File::open(program).unwrap();
    let source = FileBytes(&file);
    let elf = Elf::read(Source::File(&source)).unwrap().unwrap();
    let [section] = elf.sections_named([b".eh_frame"]).unwrap();
    let section = section.unwrap();
    let (start, size) = (section.offset as usize, section.size as usize);
    let tables: Vec<u8> = tables(size).into_iter().cycle().take(size).collect();
    bytes[start..start + size].copy_from_slice(&tables);
    let path = |ending: &str| {
        let name = format!("otelctx-tables-{name}-{}{ending}", std::process::id());
        std::env::temp_dir().join(name)
    };
    let written = Scratch(path(".written"));
    std::fs::write(&written.0, bytes).unwrap();
    std::fs::set_permissions(&written.0, file.metadata().unwrap().permissions()).unwrap();
    let copy = Scratch(path(""));
    copy_program(&written.0, &copy.0);
    copy
}

/// Hostile tables cost only their own program's stacks, whose ends are counted.
#[test]
fn stacks_of_others_reach_the_start_beside_damaged_tables() {
    let Some(program) = Sampled::own().calls() else {
        return;
    };
    let words = |words: &[u32]| words.iter().flat_map(|it| it.to_ne_bytes()).collect();
    let damaged = [
        with_tables(&program, "zero", |_| vec![0]),
        // Lengths of 64 bits, larger than any file.
        with_tables(&program, "ones", |_| vec![0xff]),
        // Entries of functions that refer to themselves as the common entry.
        with_tables(&program, "cycle", |_| words(&[12, 4, 0x1000, 0x1000])),
        // A common entry that all of the section belongs to.
        with_tables(&program, "huge", |size| words(&[size as u32 - 4, 0])),
        with_tables(&program, "random", |size| {
            let mut state = 1_u64;
            let next = |_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) as u8
            };
            (0..size).map(next).collect()
        }),
    ];
    let start = |path: &Path| {
        // Calls that need no tables to return.
        let program = Program::start(Command::new(path).args(["1000000000", "rwa"]));
        wait_until_loaded(program.pid());
        program
    };
    let mut running: Vec<Program> = damaged.iter().map(|it| start(&it.0)).collect();
    running.push(start(&program));
    let intact = running[running.len() - 1].pid();
    let pids = running.iter().map(Program::pid).collect();
    let mut options = Options::new(Targets::Processes(pids));
    options.frequency = samples().1;
    let mut sampler = Sampler::start(&options).unwrap();
    if Feature::Ebpf
        .or_skip(sampler.method().require_ebpf())
        .is_none()
    {
        return;
    }
    let tables = sampler.without_tables().map_or(Ok(()), Err);
    if Feature::Tables.or_skip(tables).is_none() {
        return;
    }
    let mut catalog = Catalog::new();
    let begin = Instant::now();
    // Of each program, and whole ones of the intact one.
    let mut left: Vec<(i32, u64)> = running.iter().map(|it| (it.pid(), 20)).collect();
    while left.iter().any(|(_, count)| *count > 0) {
        assert!(begin.elapsed() < TIMEOUT, "{left:?}");
        std::thread::sleep(INTERVAL);
        let mut new = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| new.push(sample));
        for sample in &new {
            let process = catalog.thread_facts(sample.thread).process;
            let pid = catalog.process(process).pid;
            let counts = pid != intact || reaches_start(&catalog, sample) == Some(true);
            let of = left.iter_mut().find(|it| it.0 == pid).unwrap();
            of.1 = of.1.saturating_sub(counts.into());
        }
    }
    // The first samples may be earlier than the tables. The first and the fourth have no entries of functions. On x86-64,
    // the instructions of functions without usable entries lead to their callers.
    let are_read = cfg!(target_arch = "x86_64");
    let places = sampler.incomplete_stacks();
    let expected = [false, true, true, false, true].map(|is_damaged| match is_damaged {
        true => StackEnd::BadTables,
        false => StackEnd::NoTables,
    });
    for (file, expected) in damaged.iter().zip(expected) {
        let name = file.0.file_name().unwrap().to_str().unwrap();
        let ends = places.iter().filter(|place| place.module == name);
        let ends: Vec<StackEnd> = ends.map(|place| place.end).collect();
        if are_read {
            assert!(!ends.contains(&StackEnd::NoTables), "{name}: {ends:?}");
            continue;
        }
        assert!(ends.contains(&expected), "{name}: {ends:?}");
        let other = [StackEnd::NoTables, StackEnd::BadTables];
        let other = other.iter().find(|it| **it != expected).unwrap();
        assert!(!ends.contains(other), "{name}: {ends:?}");
    }
    let counts = sampler.stop(&mut catalog, &mut |_| {}).counts;
    let ended = counts.complete_stacks
        + counts.incomplete_stacks.iter().sum::<u64>()
        + counts.truncated_stacks
        + counts.missing_stacks;
    assert_eq!(ended, counts.samples(), "{counts:?}");
    let incomplete: u64 = counts.incomplete_stacks.iter().sum();
    assert!(incomplete > 0 || are_read, "{counts:?}");
}

/// musl is built without tables. Its functions that call `main` and those of threads do not return.
#[test]
fn stacks_of_programs_with_musl_reach_the_start() {
    let Some(program) = without_frame_pointers(Compiler::musl_gcc(), "three_starts.c") else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let starts = target
        .lines
        .iter()
        .filter_map(|it| it.strip_prefix("start 0x"));
    let starts: BTreeSet<u64> = starts
        .map(|it| u64::from_str_radix(it, 16).unwrap())
        .collect();
    assert_eq!(starts.len(), 3);
    for without_ebpf in [false, true] {
        let recorded = record_process("musl", target.pid(), without_ebpf);
        let Some((counts, catalog, samples)) = recorded else {
            return;
        };
        let complete = samples
            .iter()
            .filter(|it| it.stack_end == Some(StackEnd::Start));
        let outermost = complete.filter_map(|it| {
            let frames = catalog.frames(it.user_stack);
            frames.filter_map(Frame::address).next_back()
        });
        let outermost: BTreeSet<u64> = outermost.collect();
        assert_eq!(outermost, starts);
        assert_share("musl", &counts, COMPLETE);
    }
}

/// Frame pointers alone would lead from such a function to the caller of its caller.
#[test]
#[cfg(target_arch = "x86_64")]
fn functions_of_generated_code_have_their_callers_at_each_instruction() {
    let Some(program) = without_frame_pointers(Compiler::gcc(), "generated_calls.c") else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let line = target
        .lines
        .iter()
        .find_map(|it| it.strip_prefix("called "));
    let numbers = line
        .unwrap()
        .split(' ')
        .map(|it| match it.strip_prefix("0x") {
            Some(address) => u64::from_str_radix(address, 16).unwrap(),
            None => it.parse().unwrap(),
        });
    let [start, size, returned] = numbers.collect::<Vec<u64>>()[..] else {
        panic!("{line:?}");
    };
    for without_ebpf in [false, true] {
        let recorded = record_process("generated calls", target.pid(), without_ebpf);
        let Some((counts, catalog, samples)) = recorded else {
            return;
        };
        let mut instructions = BTreeSet::new();
        for sample in &samples {
            let frames = catalog.frames(sample.user_stack);
            let addresses: Vec<u64> = frames.filter_map(Frame::address).collect();
            let Some(innermost) = addresses
                .first()
                .filter(|it| (start..start + size).contains(*it))
            else {
                continue;
            };
            instructions.insert(innermost - start);
            assert_eq!(addresses[1], returned, "{addresses:x?}");
        }
        eprintln!("instructions with samples: {instructions:?}");
        assert!(instructions.len() > 1, "{instructions:?}");
        assert_share("generated calls", &counts, COMPLETE);
    }
}
