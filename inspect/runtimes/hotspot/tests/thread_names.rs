//! Threads have the names that Java has of them.

#![cfg(target_arch = "x86_64")]

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use otelctx_fixtures::{HANG_TIMEOUT, Java, Target, compile_java, tier};
use otelctx_hotspot::HotSpot;
use otelctx_reader::remote::{FileCache, LiveProcess, Modules, Process};
use otelctx_reader::runtime::Runtime;

/// How objects are laid out, and moved.
const OPTIONS: [&[&str]; 11] = [
    &[],
    &["-XX:-UseCompressedOops"],
    &["-XX:-UseCompressedOops", "-XX:-UseCompressedClassPointers"],
    &[
        "-XX:+UnlockExperimentalVMOptions",
        "-XX:+UseCompactObjectHeaders",
    ],
    &["-Xmx33g"],
    &["-XX:+UseSerialGC"],
    &["-XX:+UseParallelGC"],
    &["-XX:+UseG1GC", "-Xmx6g"],
    &["-XX:+UnlockExperimentalVMOptions", "-XX:+UseShenandoahGC"],
    &["-XX:+UnlockExperimentalVMOptions", "-XX:+UseZGC"],
    &["-XX:+UseZGC", "-XX:+ZGenerational"],
];
/// Number of times that each name is read.
const READS: usize = 200;

#[test]
fn threads_have_their_names_in_java_while_objects_are_moved() {
    let folder = std::env::temp_dir().join(format!("otelctx-java-names-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    if compile_java("java_names.java", &folder) {
        for java in Java::all() {
            for options in tier::usual_or_all(&OPTIONS[..5], &OPTIONS) {
                if java.starts_with(options) {
                    check(&java, options, &folder);
                }
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

fn check(java: &Java, options: &[&str], folder: &std::path::Path) {
    println!("Java {} {options:?}", java.name);
    let mut command = java.command();
    // The last value of an option counts.
    command.arg("-Xmx128m").args(options);
    // Without this, carriers have other names on machines with many CPUs.
    command.arg("-Djdk.virtualThreadScheduler.parallelism=1");
    command.arg("-cp").arg(folder).arg("Names");
    let program = Target::spawn(&mut command);
    let names: HashMap<i32, &str> = program
        .lines
        .iter()
        .filter_map(|line| line.strip_prefix("name ")?.split_once(' '))
        .map(|(tid, name)| (tid.parse().unwrap(), name))
        .collect();
    assert_eq!(names.len(), 7, "{:?}", program.lines);
    let process = Process::open(program.pid()).unwrap();
    let memory = process.memory().unwrap();
    let target = LiveProcess::new(&process, &memory);
    let modules = Modules::read(&target, &FileCache::new()).unwrap();
    let runtime = HotSpot.probe(&target, &modules).unwrap().unwrap();
    let (begun, mut found) = (Instant::now(), HashSet::new());
    for round in 0.. {
        for (tid, name) in &names {
            if let Some(read) = runtime.thread_name(&target, *tid, None) {
                assert_eq!(read, *name, "{} {options:?}", java.name);
                found.insert(*name);
            }
        }
        if round >= READS && found.len() == names.len() {
            break;
        }
        let is_late = begun.elapsed() > HANG_TIMEOUT;
        assert!(!is_late, "{} {options:?}: {found:?}", java.name);
    }
    // No thread of Java, and none at all.
    for tid in [program.pid(), 1] {
        assert_eq!(runtime.thread_name(&target, tid, None), None);
    }
}
