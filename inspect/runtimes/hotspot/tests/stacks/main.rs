//! Stacks of Java threads at any instruction, compared with what the virtual machine itself says of them.

#![cfg(target_arch = "x86_64")]

mod agent;
mod program;
mod reader;
mod tally;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use otelctx_fixtures::{Java, Random, Target, call_trace_agent, compile_java, tier};

use otelctx_unwind::StackEnd;

use agent::Agent;
use reader::Reader;
use tally::Tally;

/// Garbage collectors, as far as builds have them.
const COLLECTORS: [&str; 5] = ["Serial", "Parallel", "G1", "Z", "Shenandoah"];
/// The options of each way to execute methods: by default, interpreted, with each compiler alone.
const WAYS: [&[&str]; 4] = [
    &[],
    &["-Xint"],
    &["-XX:TieredStopAtLevel=1"],
    &["-XX:-TieredCompilation"],
];

/// Number of times that a thread is interrupted again before a copy of its stack is walked.
const INTERRUPTED_AGAIN: usize = 3;

/// When a stack is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// While its thread waits.
    Stopped,
    /// From a copy, after its thread has gone on.
    Later,
}

/// A folder that is removed.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("otelctx-java-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a class of a program with the agent. `None` without what that needs.
fn start(
    java: &Java,
    options: &[&str],
    program: &str,
    class: &[&str],
) -> Option<(Folder, Agent, Target)> {
    let folder = Folder::new();
    let library = call_trace_agent()?;
    if !compile_java(program, &folder.0) {
        return None;
    }
    let shared = folder.0.join("shared");
    let agent = Agent::create(&shared);
    let mut command = java.command();
    let option = format!("-agentpath:{}={}", library.display(), shared.display());
    command.arg("-Xmx256m").args(options).arg(option);
    command.arg("-cp").arg(&folder.0).args(class);
    let target = Target::spawn(&mut command);
    Some((folder, agent, target))
}

/// Compares this number of frames of a program with these options.
fn compare(java: &Java, options: &[&str], walk: Walk, frames: usize) -> Option<Tally> {
    let class = ["Stacks", "2", "churn"];
    let (_folder, mut agent, target) = start(java, options, "java_stacks.java", &class)?;
    let mut reader = Reader::new(target.pid());
    let mut tally = Tally {
        what: format!("Java {} {options:?} {walk:?}", java.name),
        ..Tally::default()
    };
    let mut random = Random::new(7);
    while tally.frames < frames {
        std::thread::sleep(Duration::from_micros(random.below(1000)));
        let thread = reader.thread("work-", &mut random);
        let Some(held) = agent.hold(thread) else {
            continue;
        };
        let (found, calls) = match walk {
            Walk::Stopped => {
                let found = reader.walk(&held, None);
                (found, agent.calls())
            }
            Walk::Later => {
                let copied = reader.copy(&held);
                let calls = agent.calls();
                // It has run then, and may have run other code.
                for _ in 0..INTERRUPTED_AGAIN {
                    if agent.hold(thread).is_some() {
                        agent.calls();
                    }
                }
                (reader.walk(&held, Some(copied)), calls)
            }
        };
        tally.add(&found, &calls);
    }
    Some(tally)
}

/// What is compared, and which of it was wrong: all of it is compared before a test fails.
#[derive(Default)]
struct Comparison {
    wrong: Vec<String>,
}

impl Comparison {
    /// Compares this number of frames of a program with these options.
    fn add(&mut self, java: &Java, options: &[&str], walk: Walk, frames: usize) {
        if !java.starts_with(options) {
            return println!("skipped: Java {} has no {options:?}", java.name);
        }
        if let Some(tally) = compare(java, options, walk, frames) {
            let is_old = ["8", "11"].iter().any(|old| java.name.starts_with(old));
            if !tally.is_right(is_old) {
                self.wrong.push(tally.to_string());
            }
        }
    }

    fn assert_right(self) {
        assert!(self.wrong.is_empty(), "{:#?}", self.wrong);
    }
}

/// However methods are executed, and while classes and their code are made and dropped.
#[test]
fn methods_at_any_instruction_match_what_the_virtual_machine_says() {
    let (mut comparison, frames) = (Comparison::default(), tier::usual_or_all(1500, 20_000));
    for java in Java::all() {
        for options in WAYS {
            comparison.add(&java, options, Walk::Stopped, frames);
        }
    }
    comparison.assert_right();
}

#[test]
fn methods_match_what_the_virtual_machine_says_with_each_collector() {
    if tier::left_to_all("collectors of Java") {
        return;
    }
    let mut comparison = Comparison::default();
    for java in Java::all() {
        for collector in COLLECTORS {
            let experimental = "-XX:+UnlockExperimentalVMOptions";
            let collector = format!("-XX:+Use{collector}GC");
            comparison.add(&java, &[experimental, &collector], Walk::Stopped, 10_000);
        }
    }
    comparison.assert_right();
}

/// The stack of a recorded sample is walked when its thread has gone on.
#[test]
fn methods_of_copied_stacks_match_what_the_virtual_machine_says() {
    let (mut comparison, frames) = (Comparison::default(), tier::usual_or_all(1500, 20_000));
    for java in Java::all() {
        comparison.add(&java, &[], Walk::Later, frames);
    }
    comparison.assert_right();
}

/// The outer frames of a virtual thread are in the heap after it has waited.
#[test]
fn stacks_of_virtual_threads_reach_the_start_of_their_carrier() {
    const STACKS: usize = 400;
    let newest = ["21", "25"].into_iter().filter_map(Java::named);
    for java in newest.filter(|java| tier::runs_all() || tier::JAVAS.contains(&java.name)) {
        for options in WAYS {
            let program = start(&java, options, "java_virtual.java", &["Virtual"]);
            let Some((_folder, mut agent, target)) = program else {
                return;
            };
            let (mut reader, mut random) = (Reader::new(target.pid()), Random::new(7));
            let (mut stacks, mut incomplete, mut in_heap) = (0, 0, 0);
            while stacks < STACKS || in_heap < STACKS / 4 {
                // `ForkJoinPool-1-worker-1`, of which the kernel has the start, or the start and the end.
                let carrier = reader.thread("ForkJoi", &mut random);
                let Some(held) = agent.hold(carrier) else {
                    continue;
                };
                let found = reader.walk(&held, None);
                agent.calls();
                stacks += 1;
                in_heap +=
                    usize::from(found.all.iter().any(|it| it.contains("cont_returnBarrier")));
                if found.end != StackEnd::Start {
                    incomplete += 1;
                    println!("{}: {:#?}", found.end, found.all);
                }
            }
            let what = format!("Java {} {options:?}: {incomplete} of {stacks}", java.name);
            println!("{what} incomplete, {in_heap} with frames in the heap");
            assert!(incomplete <= 2 + stacks / 200, "{what}");
        }
    }
}
