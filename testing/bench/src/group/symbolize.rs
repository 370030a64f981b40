//! Resolving the functions of a large program, compared with perf.

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use otelctx_profile::report::{Report as Sums, ReportOptions};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Mapping, Module, ProcessFacts, Sample,
};
use otelctx_profile::{Clock, Input, Options, Profile, Recording};
use otelctx_remote::Device;
use otelctx_symbolize::Symbols;

use crate::child::{Role, peak_memory};
use crate::pair::{Pair, quantile};
use crate::row::Report;
use crate::scratch::{self, Directory};

/// Copies of the unit, which make a program of 207 MiB.
const UNITS: usize = 150;
/// How often the program calls all of its functions, which takes some seconds.
const TURNS: &str = "400";
const ROUNDS: usize = 5;
/// Address of the program in the synthetic recording.
const BASE: u64 = 0x10_0000_0000;

pub(crate) fn run(report: &mut Report) {
    const WORK: &str = "symbols of a program of 207 MiB";
    for program in ["perf", "gcc", "addr2line"] {
        if Command::new(program).arg("--version").output().is_err() {
            return report.skipped(WORK, &format!("there is no {program}"));
        }
    }
    if let Err(why) = compare(report, WORK) {
        report.failed(WORK, &why);
    }
}

fn compare(report: &mut Report, work: &str) -> Result<(), String> {
    let program = program()?;
    // The path that perf reports.
    let program = program.canonicalize().map_err(|error| error.to_string())?;
    let directory = Directory::new("symbolize");
    let data = directory.path().join("perf.data");
    let perf = |arguments: &[&str]| {
        let mut command = Command::new("perf");
        // Without the user's cache.
        command.args(arguments).env("HOME", directory.path());
        command
    };
    let mut record = perf(&["record", "-q", "-e", "cpu-clock", "-F", "999", "-N"]);
    record.args(["--call-graph", "dwarf,4096", "-o"]).arg(&data);
    scratch::output(record.arg("--").arg(&program).arg(TURNS))?;
    let script = scratch::output(perf(&["script", "-F", "ip,sym,dso", "-i"]).arg(&data))?;
    let stacks = stacks(&script, &program);
    if stacks.is_empty() {
        return Err("perf has no samples of it".to_owned());
    }
    let list = directory.path().join("stacks");
    let addresses = |stack: &Vec<(u64, Vec<String>)>| {
        let text = |(address, _): &(u64, Vec<String>)| format!("{address:x}");
        stack.iter().map(text).collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<_> = stacks.iter().map(addresses).collect();
    fs::write(&list, lines.join("\n")).map_err(|error| error.to_string())?;

    let (program, list) = (program.display().to_string(), list.display().to_string());
    let (mut ours, mut with_inlined, mut without, mut memory) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let child = Role::start(&["symbolize", &program, &list])?;
        ours.push(child.number("seconds ")?);
        memory.push(child.number("peak-kib ")? / 1024.0);
        for (times, option) in [
            (&mut with_inlined, "--inline"),
            (&mut without, "--no-inline"),
        ] {
            let start = Instant::now();
            scratch::output(perf(&["report", "--stdio", option, "-i"]).arg(&data))?;
            times.push(start.elapsed().as_secs_f64());
        }
        same_names(&child.lines, &stacks)?;
    }
    let ours = quantile(ours, 0.5);
    let pair = |peer| Pair::of(ours, quantile(peer, 0.5));
    let samples = stacks.len();
    report.pair(
        format!("{work}, {samples} samples"),
        pair(with_inlined),
        "s",
        0.5,
    );
    report.pair(
        "to perf without lines and inlined functions",
        pair(without),
        "s",
        None,
    );
    report.alone(
        format!("{work}, memory"),
        quantile(memory, 0.5),
        "MiB",
        None,
    );
    Ok(())
}

/// The program, built once.
fn program() -> Result<PathBuf, String> {
    let folder = scratch::root().join("target/bench");
    let source = scratch::root().join("testing/bench/c/big.c");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let path = folder.join("big");
    let made = |path: &Path| path.metadata().and_then(|found| found.modified());
    if made(&path).is_ok_and(|made_at| made(&source).is_ok_and(|changed| changed < made_at)) {
        return Ok(path);
    }
    let objects = Directory::new("big");
    let unit = |index: usize| format!("_u{index:04}");
    let object = |index: usize| objects.path().join(format!("{}.o", unit(index)));
    let flags = ["-g", "-O2", "-fno-omit-frame-pointer"];
    let mut compile = Command::new("gcc");
    compile
        .args(flags)
        .args(["-c", "-DUNIT=u0000", "-o"])
        .arg(object(0));
    scratch::output(compile.arg(&source))?;
    let first = fs::read(object(0)).map_err(failed)?;
    let windows = first.windows(6).enumerate();
    let names: Vec<usize> = windows
        .filter_map(|(at, name)| (name == b"_u0000").then_some(at))
        .collect();
    let (mut declared, mut called) = (String::new(), String::new());
    for index in 0..UNITS {
        let name = unit(index);
        let mut copy = first.clone();
        for at in &names {
            copy[*at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        fs::write(object(index), copy).map_err(failed)?;
        declared.push_str(&format!("void run{name}(long);\n"));
        called.push_str(&format!("run{name}(turn);\n"));
    }
    let main = objects.path().join("main.c");
    let text = format!(
        "#include <stdlib.h>\n{declared}int main(int n, char **v) {{\n\
         for (long turn = 0; turn < atol(v[n - 1]); turn++) {{\n{called}}}\n}}\n"
    );
    fs::write(&main, text).map_err(failed)?;
    let linked = objects.path().join("big");
    let mut link = Command::new("gcc");
    link.args(flags)
        .arg("-o")
        .arg(&linked)
        .arg(&main)
        .args((0..UNITS).map(object));
    scratch::output(&mut link)?;
    fs::copy(&linked, &path).map_err(failed)?;
    Ok(path)
}

/// Stacks, the innermost address first, each with the functions that perf names there.
type Stack = Vec<(u64, Vec<String>)>;

/// The stacks of `perf script`, without frames outside the program.
fn stacks(script: &str, program: &Path) -> Vec<Stack> {
    let file = format!("({})", program.display());
    let mut stacks = Vec::new();
    for block in script.split("\n\n") {
        let mut stack = Vec::new();
        let mut inlined = Vec::new();
        for line in block.lines() {
            let Some((address, rest)) = line.trim().split_once(' ') else {
                continue;
            };
            if let Some(name) = rest.strip_suffix(" (inlined)") {
                inlined.push((address, name.to_owned()));
                continue;
            }
            let mut names: Vec<String> = inlined
                .drain(..)
                .filter_map(|(at, name)| (at == address).then_some(name))
                .collect();
            let Some(name) = rest.strip_suffix(&file) else {
                continue;
            };
            names.push(name.trim().to_owned());
            if let Ok(address) = u64::from_str_radix(address, 16) {
                stack.push((address, names));
            }
        }
        if !stack.is_empty() {
            stacks.push(stack);
        }
    }
    stacks
}

/// Checks that the child gives every address the names that perf gives.
fn same_names(lines: &[String], stacks: &[Stack]) -> Result<(), String> {
    let names = lines
        .iter()
        .filter_map(|line| line.strip_prefix("at ")?.split_once(' '));
    let named: HashMap<&str, &str> = names.collect();
    for (address, names) in stacks.iter().flatten() {
        let (perfs, ours) = (names.join(" "), named.get(&*format!("{address:x}")));
        if ours != Some(&&*perfs) {
            return Err(format!("{address:#x} is {ours:?}, and perf says {perfs}"));
        }
    }
    Ok(())
}

/// The role `symbolize`: names the functions of stacks, writes a profile, and reports on it.
pub(crate) fn name_functions(program: &str, stacks: &str) {
    let text = fs::read_to_string(stacks).expect("the parent wrote it");
    let recording = recording(program, &text);
    let path = PathBuf::from(format!("{stacks}.otlp"));
    let start = Instant::now();
    let profile = Profile::new(recording, &mut Symbols::new());
    profile
        .write_file(&path, &Options::default())
        .expect("the directory takes a file");
    let options = ReportOptions::by(&["http.route"]);
    let sums = Sums::read(&Input::recording(&path), &options).expect("it was just written");
    let took = start.elapsed();
    assert!(!sums.by_function.is_empty());
    for group in profile.groups() {
        for (depth, index) in group.stack.iter().enumerate() {
            let location = profile.location(*index);
            let address = location.address - BASE - u64::from(depth > 0);
            let names = location.functions.iter().map(|function| &function.name[..]);
            println!("at {address:x} {}", names.collect::<Vec<_>>().join(" "));
        }
    }
    println!("seconds {}", took.as_secs_f64());
    println!("peak-kib {}", peak_memory().max(peak_of_children()));
    println!("ready");
}

/// Peak memory of any child, in KiB, with mapped files.
fn peak_of_children() -> u64 {
    // SAFETY: all zeroes is a value of it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it is valid for writes.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    usage.ru_maxrss as u64
}

fn recording(program: &str, stacks: &str) -> Recording {
    let found = fs::metadata(program).expect("it was just run");
    let device = Device::from_stat(found.dev());
    let mut catalog = Catalog::new();
    let module = catalog.module(Module {
        path: program.into(),
        build_id: Vec::new(),
        device: u64::from(device.major) << 32 | u64::from(device.minor),
        inode: found.ino(),
    });
    let process = catalog.add_process(ProcessFacts {
        // No process has this ID.
        pid: i32::MAX,
        mappings: vec![Mapping {
            start: BASE,
            end: 2 * BASE,
            offset: 0,
            module,
            since: 0,
        }],
        ..ProcessFacts::default()
    });
    let thread = catalog.thread(process, 1, "big");
    let empty = catalog.native_stack(&[]);
    let samples = stacks.lines().enumerate().map(|(time, line)| {
        // perf reports calls, our stacks return addresses.
        let address = |(depth, text)| {
            let address = u64::from_str_radix(text, 16).expect("a number");
            BASE + address + u64::from(depth > 0)
        };
        let addresses: Vec<u64> = line.split(' ').enumerate().map(address).collect();
        Sample {
            time: time as u64,
            cpu: 0,
            thread,
            event: Event::OnCpu,
            found: Found::NotPublished,
            gil: None,
            user_stack: catalog.native_stack(&addresses),
            stack_end: None,
            kernel_stack: empty,
        }
    });
    let samples = samples.collect();
    Recording {
        catalog,
        samples,
        clock: Clock {
            start: 0,
            end: 1 << 30,
            start_unix: 1_700_000_000_000_000_000,
        },
        period: NonZeroU64::new(1_001_001).expect("not zero"),
        counts: Counts::default(),
    }
}
