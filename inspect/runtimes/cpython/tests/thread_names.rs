//! Samples have the names of threads that the program itself has.

mod common;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use common::start;
use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{HANG_TIMEOUT, Target};
use otelctx_reader::sample::{Catalog, Sample};
use otelctx_sampler::INTERVAL;

/// From 3.14 on, the interpreter passes the names on to the kernel, which keeps 15 bytes.
const VERSIONS: [&str; 8] = ["3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13"];

#[test]
fn threads_have_the_names_that_the_program_gave_them() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let mut command = interpreter.command("named_threads.py");
        let target = Target::spawn(command.env("PYTHONIOENCODING", "utf8"));
        let lines = target.lines.iter();
        let names: HashMap<i32, &str> = lines
            .filter_map(|line| line.strip_prefix("name ")?.split_once(' '))
            .map(|(tid, name)| (tid.parse().unwrap(), name))
            .collect();
        assert_eq!(names.len(), 7);
        for without_ebpf in [false, true] {
            let Some(mut sampler) = start(target.pid(), 499, without_ebpf) else {
                continue;
            };
            let (mut catalog, mut found) = (Catalog::new(), HashSet::new());
            let begin = Instant::now();
            while found.len() < names.len() {
                assert!(
                    begin.elapsed() < HANG_TIMEOUT,
                    "{interpreter}: {found:?} of {names:?}"
                );
                std::thread::sleep(INTERVAL);
                let mut new: Vec<Sample> = Vec::new();
                sampler.drain(&mut catalog, &mut |sample| new.push(sample));
                for sample in new {
                    let thread = catalog.thread_facts(sample.thread);
                    let Some(name) = names.get(&thread.tid) else {
                        assert_eq!(thread.tid, target.pid());
                        continue;
                    };
                    // The first samples can come before the interpreter is known.
                    if thread.name == *name {
                        found.insert(thread.tid);
                    } else {
                        assert!(!found.contains(&thread.tid), "{interpreter}: {thread:?}");
                        assert!(
                            thread.name.starts_with("python"),
                            "{interpreter}: {thread:?}"
                        );
                    }
                }
            }
        }
    }
}
