//! The memory that a reader uses for very many mappings, and the bytes that it reads.

use std::env;
use std::fs;
use std::process::Command;

use otelctx_fixtures::{Compiler, MaxMapCount, Target};
use otelctx_reader::remote::mappings::ScanOptions;
use otelctx_reader::{ContextState, Options, Process};

const MAPPINGS: u64 = 2_000_000;

/// The processes for the reader below, which reads them in its own way.
const PIDS: &str = "OTELCTX_TEST_PIDS";

fn start() -> Option<Target> {
    let program = Compiler::gcc().program::<&str>(&["mappings.c"], &[])?;
    Some(Target::spawn(&mut Command::new(program)))
}

/// This program once more, which only runs one of the readers below.
fn reader(name: &str, pids: &[i32]) -> Command {
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([
            "--exact",
            name,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PIDS, pids.join(","));
    command
}

/// The processes that a reader was given.
fn pids() -> Vec<i32> {
    let pids = env::var(PIDS).unwrap_or_default();
    pids.split(',').filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn two_million_mappings_take_little_memory() {
    let _raised = match MaxMapCount::raise(MAPPINGS + 1000) {
        Ok(raised) => raised,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let Some(mut target) = start() else { return };
    target.command("publish shop");
    target.command(&format!("map memory {MAPPINGS}"));
    let output = reader("reads_in_both_ways", &[target.pid()])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let line = printed.lines().find_map(|line| line.split_once("VmHWM:"));
    let kib: u64 = line
        .unwrap()
        .1
        .trim()
        .strip_suffix(" kB")
        .unwrap()
        .parse()
        .unwrap();
    assert!(output.status.success() && kib <= 64 * 1024, "{printed}");
}

/// Number of bytes that this thread has read so far, if the kernel counts them.
fn bytes_read() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/io").ok()?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("rchar: "))?;
    Some(bytes.parse().unwrap())
}

/// The variable is searched for in mapped files: where the kernel skips the rest by itself
/// (PROCMAP_QUERY), none of it is read.
#[test]
fn the_variable_is_found_without_the_text_of_the_mappings() {
    let Some(mut target) = start() else { return };
    target.command("publish shop");
    let mut options = Options::default();
    options.any_schema = true;
    let mut process = Process::with_options(target.pid(), options).unwrap();
    // Its files are known from here on.
    process.thread_support().unwrap();
    target.command("map memory 20000");
    let text = fs::read(format!("/proc/{}/maps", target.pid())).unwrap();
    let text = text.len() as u64;
    let Some(before) = bytes_read() else {
        return eprintln!("skipped: the kernel does not count what is read");
    };
    let reading = ScanOptions::default();
    process
        .running()
        .unwrap()
        .code_mappings(reading, &mut |_| {})
        .unwrap();
    let between = bytes_read().unwrap();
    if between - before >= text {
        return eprintln!("skipped: this kernel has no PROCMAP_QUERY");
    }
    // No module has it: it is searched for each time.
    process.thread_support().unwrap();
    let read = bytes_read().unwrap() - between;
    assert!(read < text / 8, "{read} bytes of {text}");
}

#[test]
#[ignore = "the other process of a test"]
fn reads_in_both_ways() {
    for pid in pids() {
        let found = [false, true].map(|text| {
            let mut options = Options::default();
            options.maps_as_text = text;
            let mut process = Process::with_options(pid, options).unwrap();
            match process.context().unwrap() {
                ContextState::Published(context) => context.address,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(found[0], found[1]);
    }
    println!("{}", std::fs::read_to_string("/proc/self/status").unwrap());
}
