//! Processes with two publishers: an attribute never has the name that the other publisher gives its
//! index.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use otelctx_fixtures::tier::usual_or_all;
use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_reader::sweep::{Sweep, ThreadReading, Visitor};
use otelctx_reader::{ContextState, Options, Process};

/// Key maps of two publishers, with the names on which they agree.
struct Pair {
    keys: [&'static [&'static str]; 2],
    agreed: &'static [&'static str],
}

const PAIRS: [Pair; 5] = [
    // Nothing.
    Pair {
        keys: [&["http.route", "user"], &["local_root", "query"]],
        agreed: &["#0", "#1"],
    },
    // The same names at other places.
    Pair {
        keys: [&["http.route", "user"], &["user", "http.route"]],
        agreed: &["#0", "#1"],
    },
    Pair {
        keys: [&["http.route", "user"], &["http.route", "query"]],
        agreed: &["http.route", "#1"],
    },
    // One continues the other.
    Pair {
        keys: [&["http.route"], &["http.route", "user"]],
        agreed: &["http.route", "user"],
    },
    Pair {
        keys: [&["http.route", "user"], &["http.route", "user"]],
        agreed: &["http.route", "user"],
    },
];

fn library(keys: &[&str]) -> Option<PathBuf> {
    library_with(keys, &[])
}

fn library_with(keys: &[&str], flags: &[&str]) -> Option<PathBuf> {
    let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
    let mut all = vec![format!("-DKEYS={}", keys.join(","))];
    all.extend(flags.iter().map(ToString::to_string));
    Compiler::gcc().library(&["publisher.c", "variable.c"], &all)
}

/// Programs in which each library has a variable of its own, which tells its publisher, and in which
/// they share one.
fn programs() -> Option<[PathBuf; 2]> {
    let gcc = Compiler::gcc();
    let own = gcc.program::<&str>(&["publishers.c"], &[])?;
    let shared = gcc.program(&["publishers.c", "variable.c"], &["-rdynamic"])?;
    Some([own, shared])
}

fn start(program: &Path, libraries: [&Path; 2]) -> Target {
    let mut target = Target::spawn(&mut Command::new(program));
    for library in libraries {
        target.command(&format!("load {}", library.display()));
    }
    target
}

/// A publisher, and its attributes.
type Names = (usize, Vec<(String, String)>);

/// The names of each thread's attributes, by its publisher: their values are what the publisher
/// calls them.
fn names(process: &mut Process, target: &Target) -> Vec<Names> {
    let mut names = Vec::new();
    let threads = process.threads().unwrap();
    for line in &target.lines {
        let words: Vec<&str> = line.split(' ').collect();
        let ["publisher", tid, publisher] = words[..] else {
            panic!("{line}")
        };
        let tid: i32 = tid.parse().unwrap();
        let thread = threads.iter().find(|thread| thread.tid() == tid).unwrap();
        let context = thread.context().unwrap().attached().unwrap().clone();
        let contested = context.attributes.iter();
        let contested = contested.filter(|(name, _)| name.starts_with('#'));
        assert_eq!(
            context.skipped.contested_key as usize,
            contested.count(),
            "{context:?}"
        );
        names.push((publisher.parse().unwrap(), context.attributes));
    }
    names
}

fn open(target: &Target) -> Process {
    let mut options = Options::default();
    options.stop_timeout = STOP_TIMEOUT;
    Process::with_options(target.pid(), options).unwrap()
}

/// What the two publishers' attributes are called, given these names.
fn expected(pair: &Pair, names: &[&[&str]; 2]) -> Vec<Names> {
    let of = |publisher: usize| {
        let own = pair.keys[publisher].iter();
        let both = names[publisher].iter().zip(own);
        let both = both.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        (publisher, both.collect())
    };
    vec![of(0), of(1)]
}

#[test]
fn attributes_have_the_names_on_which_both_publishers_agree() {
    let Some(programs) = programs() else { return };
    for pair in &PAIRS {
        let [Some(one), Some(other)] = pair.keys.map(library) else {
            return;
        };
        for round in 0..usual_or_all(4, 40) {
            for (program, first) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                // Where in memory each context is, differs with each run.
                let mut target = start(&programs[program], [&one, &other]);
                for publisher in [first, 1 - first] {
                    target.command(&format!("publish {publisher}"));
                }
                target.command("attach 0");
                target.command("attach 1");
                let read = names(&mut open(&target), &target);
                let known = [pair.keys, [pair.agreed; 2]][program];
                let case = format!("{:?}, program {program}, round {round}", pair.keys);
                assert_eq!(read, expected(pair, &known), "{case}");
            }
        }
    }
}

#[test]
fn a_publisher_that_comes_later_or_goes_changes_the_names() {
    let Some([_, program]) = programs() else {
        return;
    };
    let pair = &PAIRS[2];
    let [Some(one), Some(other)] = pair.keys.map(library) else {
        return;
    };
    let mut target = start(&program, [&one, &other]);
    target.command("publish 0");
    target.command("attach 0");
    let mut process = open(&target);
    let alone = expected(pair, &[pair.keys[0], pair.agreed]);
    let both = expected(pair, &[pair.agreed; 2]);
    assert_eq!(names(&mut process, &target), alone[..1]);

    target.command("publish 1");
    target.command("attach 1");
    process.scan_context().unwrap();
    assert_eq!(names(&mut process, &target), both);
    let ContextState::Published(context) = process.context().unwrap() else {
        panic!()
    };
    let contested = context.keys.as_ref().unwrap().as_ref().unwrap().contested();
    assert_eq!((contested, context.others.len()), (&[1][..], 1));

    // The records of one that withdraws its context stay attached: nothing becomes certain, whichever
    // of the two is the first in memory, without another scan and with one.
    target.command("withdraw 1");
    assert_eq!(names(&mut process, &target), both);
    process.scan_context().unwrap();
    assert_eq!(names(&mut process, &target), both);
    let ContextState::Published(context) = process.context().unwrap() else {
        panic!()
    };
    assert_eq!(context.others, []);
    // It comes back, and the other one goes.
    target.command("publish 1");
    process.scan_context().unwrap();
    target.command("withdraw 0");
    assert_eq!(names(&mut process, &target), both);
}

#[test]
fn a_second_publisher_is_found_in_memory_of_each_kind() {
    let Some([_, program]) = programs() else {
        return;
    };
    let pair = &PAIRS[2];
    let (usual, read_only, anonymous) = (&[][..], &["-DREAD_ONLY"][..], &["-DANONYMOUS"][..]);
    for kinds in [[usual, read_only], [read_only, usual], [usual, anonymous]] {
        let library = |publisher: usize| library_with(pair.keys[publisher], kinds[publisher]);
        let [Some(one), Some(other)] = [0, 1].map(library) else {
            return;
        };
        for order in [[0, 1], [1, 0]] {
            let mut target = start(&program, [&one, &other]);
            for publisher in order {
                target.command(&format!("publish {publisher}"));
            }
            target.command("attach 0");
            target.command("attach 1");
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
            if kinds[1] == anonymous && !maps.contains("[anon:OTEL_CTX]") {
                println!("skipped: this kernel gives anonymous memory no names");
                continue;
            }
            let read = names(&mut open(&target), &target);
            assert_eq!(read, expected(pair, &[pair.agreed; 2]), "{kinds:?}");
        }
    }
}

/// The names in a process of these publishers, where each has a variable.
fn with_variables_of_their_own(flags: [&[&str]; 2], commands: &[&str]) -> Option<Vec<Names>> {
    let pair = &PAIRS[2];
    let [program, _] = programs()?;
    let library = |publisher: usize| library_with(pair.keys[publisher], flags[publisher]);
    let mut target = start(&program, [&library(0)?, &library(1)?]);
    for command in commands {
        target.command(command);
    }
    Some(names(&mut open(&target), &target))
}

#[test]
fn a_variable_tells_its_publisher_only_if_it_is_known_of_all() {
    let pair = &PAIRS[2];
    let commands = ["publish 0", "publish 1", "attach 0", "attach 1"];
    let heap = &["-DON_HEAP"][..];
    for (flags, names) in [
        ([&[][..], &[]], pair.keys),
        ([heap, &[]], [pair.agreed; 2]),
        ([&[], heap], [pair.agreed; 2]),
        ([heap, heap], [pair.agreed; 2]),
    ] {
        let Some(read) = with_variables_of_their_own(flags, &commands) else {
            return;
        };
        assert_eq!(read, expected(pair, &names), "{flags:?}");
    }
}

/// A name that is registered later is read when a record has it.
#[test]
fn the_second_publisher_of_a_process_that_is_read_already_gets_its_own_names() {
    let Some([program, _]) = programs() else {
        return;
    };
    let pair = &PAIRS[0];
    let [Some(one), Some(other)] = pair.keys.map(library) else {
        return;
    };
    let mut target = start(&program, [&one, &other]);
    target.command("publish 0");
    target.command("attach 0");
    let mut process = open(&target);
    let both = expected(pair, &pair.keys);
    assert_eq!(names(&mut process, &target), both[..1]);
    target.command("publish 1");
    target.command("attach 1");
    process.scan_context().unwrap();
    assert_eq!(names(&mut process, &target), both);
    // Nothing is known of records in a variable whose publisher has no context.
    target.command("withdraw 1");
    assert_eq!(
        names(&mut process, &target),
        expected(pair, &[pair.agreed; 2])
    );
}

/// One has a process context, and both have a variable: nothing names the attributes of the other one.
#[test]
fn attributes_of_a_publisher_without_a_process_context_have_no_names() {
    let pair = &PAIRS[2];
    for publisher in [0, 1] {
        let publish = format!("publish {publisher}");
        let commands = [&publish, "attach 0", "attach 1"];
        let Some(read) = with_variables_of_their_own([&[], &[]], &commands) else {
            return;
        };
        let mut names = [&["#0", "#1"][..]; 2];
        names[publisher] = pair.keys[publisher];
        assert_eq!(read, expected(pair, &names));
    }
}

/// Publishes while the threads of its process are read.
struct Publishing<'t> {
    target: &'t mut Target,
    /// How often reading has begun.
    begun: usize,
    attributes: Vec<Vec<(String, String)>>,
}

impl Visitor for Publishing<'_> {
    fn begin(&mut self, _: &Process, _: Instant) {
        if self.begun == 0 {
            self.target.command("publish 1");
        }
        self.begun += 1;
    }

    fn visit(&mut self, thread: ThreadReading) {
        let context = thread.context.ok().and_then(|it| it.attached().cloned());
        self.attributes.extend(context.map(|it| it.attributes));
    }
}

#[test]
fn a_publisher_that_comes_while_threads_are_read_gets_no_wrong_names() {
    let Some([_, program]) = programs() else {
        return;
    };
    let pair = &PAIRS[0];
    let [Some(one), Some(other)] = pair.keys.map(library) else {
        return;
    };
    let mut target = start(&program, [&one, &other]);
    for command in ["publish 0", "attach 0", "attach 1"] {
        target.command(command);
    }
    let mut process = open(&target);
    let mut context = process.context().unwrap();
    let mut publishing = Publishing {
        target: &mut target,
        begun: 0,
        attributes: Vec::new(),
    };
    let sweep = Sweep::within(STOP_TIMEOUT);
    sweep
        .run_of(&mut process, &mut context, &mut publishing)
        .unwrap();
    let mut names: Vec<_> = publishing
        .attributes
        .iter()
        .flatten()
        .map(|it| it.0.as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["#0", "#0", "#1", "#1"]);
    assert_eq!(publishing.begun, 2);
    let ContextState::Published(context) = context else {
        panic!()
    };
    assert_eq!(context.others.len(), 1);
}
