//! Programs that have moved code to other memory, as for huge pages: names, stacks and contexts stay.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::{Compiler, tier};

use crate::run::{Scratch, given_time, otelctx};
use crate::stacks::{assert_whole, own_stacks, start};

/// How the code is moved, which code, and which part of it: see programs/move_text.c.
type Way = (&'static str, Option<&'static str>, Option<&'static str>);

const TO: [&str; 4] = ["anonymous", "remapped", "shared", "memfd"];
const PARTS: [Option<&str>; 2] = [None, Some("middle")];
const LIBC: &str = "libc.so";

fn ways() -> impl Iterator<Item = Way> {
    TO.iter().flat_map(|to| {
        let of = [None, Some(LIBC)];
        of.into_iter()
            .flat_map(move |of| PARTS.map(|part| (*to, of, part)))
    })
}

/// Of the ways, those to record: in the usual tests, each value once or twice.
fn ways_to_record() -> impl Iterator<Item = Way> {
    ways().step_by(tier::usual_or_all(5, 1))
}

struct Programs {
    known_stacks: PathBuf,
    library: PathBuf,
}

impl Programs {
    fn build() -> Option<Self> {
        let compiler = Compiler::gcc();
        // Functions on pages of their own, so that there is code in the middle.
        let flags = [
            "-O2",
            "-fomit-frame-pointer",
            "-falign-functions=4096",
            "-pthread",
            "-Wl,--build-id",
        ];
        Some(Self {
            known_stacks: compiler.program(&["known_stacks.c"], &flags)?,
            library: compiler.library(&["move_text.c"], &["-O2"])?,
        })
    }

    fn command(&self, (to, of, part): Way) -> Command {
        let mut command = Command::new(&self.known_stacks);
        command.envs(self.environment((to, of, part)));
        command
    }

    fn environment(&self, (to, of, part): Way) -> Vec<(&'static str, &std::ffi::OsStr)> {
        let mut all = vec![
            ("LD_PRELOAD", self.library.as_os_str()),
            ("MOVE_TEXT_TO", to.as_ref()),
        ];
        all.extend(of.map(|of| ("MOVE_TEXT_OF", of.as_ref())));
        all.extend(part.map(|part| ("MOVE_TEXT_PART", part.as_ref())));
        all
    }
}

/// The program's own memory shows that its code was moved.
fn assert_is_moved(pid: i32, path: &Path, way: Way) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let path = way.1.unwrap_or(path.to_str().unwrap());
    let of_file = maps.lines().filter(|line| line.contains(path));
    let code: Vec<&str> = of_file.filter(|line| line.contains(" r-xp ")).collect();
    match way.2 {
        None => assert!(code.is_empty(), "{way:?}: {maps}"),
        // The first and the last page.
        Some(_) => assert_eq!(code.len(), 2, "{way:?}: {maps}"),
    }
}

#[test]
fn dump_shows_the_stacks_that_the_threads_know() {
    let Some(programs) = Programs::build() else {
        return;
    };
    for way in ways() {
        let target = start(&mut programs.command(way));
        assert_is_moved(target.pid(), &programs.known_stacks, way);
        let pid = target.pid().to_string();
        let answer = otelctx(&["dump", &pid, "--stacks", "--json"]).expect(0);
        println!("{way:?}");
        assert_whole(&answer.json(), &programs.known_stacks, &own_stacks(&target));
    }
}

/// The samples of a recording by their stacks, outermost function first.
fn stacks_of(folded: &str) -> BTreeMap<Vec<String>, u64> {
    let text = fs::read_to_string(folded).unwrap_or_default();
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let stack = stack.split(';').map(str::to_owned).collect();
        *all.entry(stack).or_default() += count.parse::<u64>().unwrap();
    }
    all
}

/// Checks that the samples of the thread that runs have its functions and reach its start, or say that the unwind tables were
/// not ready, as one of `rare` at most may. If the code is moved meanwhile (`is_moving`), a stack may also end before it is known
/// where that is. Returns the two numbers as an error if there are too few samples of one kind, or too
/// many of the other: reading tables takes as long as the machine needs.
fn check_loop(folded: &str, way: Way, rare: u64, is_moving: bool) -> Result<(), (u64, u64)> {
    let stacks = stacks_of(folded);
    let (mut incomplete, mut samples) = (0, 0);
    for (stack, count) in &stacks {
        let Some(at) = stack.iter().position(|name| name == "in_loop") else {
            // The program starts and ends; what runs then is not the loop.
            let is_loop = stack.iter().any(|name| name == "runs");
            assert!(!is_loop, "{way:?}: {stacks:?}");
            continue;
        };
        samples += count;
        let is_unknown = is_moving && stack[at - 1] == "[incomplete: no unwind tables]";
        if is_unknown || stack[at - 1] == "[incomplete: unwind tables not ready yet]" {
            incomplete += count;
            continue;
        }
        let start = |name: &String| name == "start_thread" || name.starts_with("clone");
        let callers = (stack[at - 1].as_str(), stack[..at].iter().any(start));
        assert_eq!(callers, ("runs", true), "{way:?}: {stacks:?}");
    }
    if samples - incomplete >= 30 && incomplete * rare <= samples {
        Ok(())
    } else {
        Err((incomplete, samples))
    }
}

#[test]
fn recordings_of_running_processes_have_their_functions() {
    let Some(programs) = Programs::build() else {
        return;
    };
    let scratch = Scratch::new("moved-running");
    let folded = scratch.path("a.folded");
    for way in ways_to_record() {
        let target = start(&mut programs.command(way));
        let pid = target.pid().to_string();
        given_time(|seconds| {
            let options = ["-F", "499", "-p", &pid, "-d", seconds, "-o", &folded];
            otelctx(&[&["record"][..], &options].concat()).expect(0);
            check_loop(&folded, way, 50, false)
        });
        if way.0 == "anonymous" {
            given_time(|seconds| {
                let options = ["--ptrace", "-p", &pid, "-d", seconds, "-o", &folded];
                otelctx(&[&["record"][..], &options].concat()).expect(0);
                check_loop(&folded, way, 2, false)
            });
        }
    }
}

/// The code is moved while the recording runs.
#[test]
fn recordings_of_commands_have_their_functions() {
    let Some(programs) = Programs::build() else {
        return;
    };
    let scratch = Scratch::new("moved-command");
    let (folded, fifo) = (scratch.path("a.folded"), scratch.path("fifo"));
    for way in ways_to_record() {
        given_time(|seconds| {
            let _ = fs::remove_file(&fifo);
            // It waits for its input.
            let shell = "mkfifo \"$0\"; exec env \"$@\" 0<>\"$0\"";
            let options = ["-F", "499", "-d", seconds, "-o", &folded, "--"];
            let environment = programs.environment(way);
            let words = environment
                .iter()
                .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()));
            let words: Vec<String> = words.collect();
            let mut arguments = vec!["record"];
            arguments.extend(options);
            arguments.extend(["sh", "-c", shell, &fifo]);
            arguments.extend(words.iter().map(String::as_str));
            arguments.push(programs.known_stacks.to_str().unwrap());
            otelctx(&arguments);
            check_loop(&folded, way, 2, true)
        });
    }
}
