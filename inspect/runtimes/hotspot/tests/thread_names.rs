//! Threads have the names that Java has of them.

#![cfg(target_arch = "x86_64")]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use otelctx_fixtures::{HANG_TIMEOUT, Java, Target, compile_java, tier};
use otelctx_hotspot::HotSpot;
use otelctx_reader::remote::{FileCache, LiveProcess, Modules, Process};
use otelctx_reader::runtime::{Runtime, RuntimeProcess};

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
/// Number of times that the name is read while the heap is compacted again and again.
const COMPACTED_READS: usize = 5_000;

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

fn runtime(target: &LiveProcess<'_>) -> Arc<dyn RuntimeProcess> {
    let modules = Modules::read(target, &FileCache::new()).unwrap();
    HotSpot.probe(target, &modules).unwrap().unwrap()
}

#[test]
fn no_thread_has_the_name_of_another_string_while_the_heap_is_compacted() {
    let folder =
        std::env::temp_dir().join(format!("otelctx-java-compacted-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    if compile_java("java_compacted.java", &folder) {
        for java in Java::all() {
            for collector in ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:+UseG1GC"] {
                check_compacted(&java, collector, &folder);
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

fn check_compacted(java: &Java, collector: &str, folder: &std::path::Path) {
    const NAME: &str = "real-start-000000";
    let mut command = java.command();
    command.args(["-Xmx256m", "-Xms256m", collector]);
    command.arg("-cp").arg(folder).arg("Compacted");
    let program = Target::spawn(&mut command);
    let mut lines = program.lines.iter();
    let tid = lines.find_map(|line| line.strip_prefix("name ")).unwrap();
    let tid = tid.parse().unwrap();
    let process = Process::open(program.pid()).unwrap();
    let memory = process.memory().unwrap();
    let target = LiveProcess::new(&process, &memory);
    let runtime = runtime(&target);
    let (begun, mut read, mut found) = (Instant::now(), 0, HashMap::<String, u32>::new());
    while read < COMPACTED_READS || !found.contains_key(NAME) {
        read += 1;
        if let Some(name) = runtime.thread_name(&target, tid, None) {
            *found.entry(name).or_default() += 1;
        }
        assert!(begun.elapsed() < HANG_TIMEOUT, "{collector}: {found:?}");
    }
    println!("Java {} {collector}: {found:?} in {read} reads", java.name);
    let names: Vec<_> = found.keys().collect();
    assert_eq!(names, [NAME], "Java {} {collector}", java.name);
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
    assert_eq!(names.len(), 8, "{:?}", program.lines);
    let process = Process::open(program.pid()).unwrap();
    let memory = process.memory().unwrap();
    let target = LiveProcess::new(&process, &memory);
    let runtime = runtime(&target);
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
    let mut lines = program.lines.iter();
    let main = lines.find_map(|line| line.strip_prefix("main ")).unwrap();
    // The kernel has the program's name of it; the others are no thread of Java, and none at all.
    for tid in [main.parse().unwrap(), program.pid(), 1] {
        assert_eq!(runtime.thread_name(&target, tid, None), None);
    }
}
