//! The library beside a publisher in C that knows nothing of it: whichever comes first, no attribute has the name that
//! the other one gives its index.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Built, Libc, compile, installed, package, source};
use otelctx_fixtures::tier::usual_or_all;
use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_reader::{Options, Process};

/// The names of attributes, which are also their values, of the library (0) and of the other publisher (1).
const NAMES: [&[&str]; 2] = [&["http.route", "user"], &["root", "query"]];

fn library(prefix: &Path) -> Built {
    let file = source("tests/programs/publisher.c");
    let mut arguments = vec![file.display().to_string(), "-shared".into(), "-fPIC".into()];
    arguments.extend(package(prefix, &["--cflags", "--libs", "otelctx"]));
    compile("gcc", arguments, "c-publisher").unwrap_or_else(|error| panic!("{error}"))
}

/// What the attributes of each publisher's thread are called.
fn names(target: &Target) -> Vec<(usize, Vec<String>)> {
    let mut options = Options::default();
    options.stop_timeout = STOP_TIMEOUT;
    let mut process = Process::with_options(target.pid(), options).unwrap();
    let threads = process.threads().unwrap();
    let lines = target
        .lines
        .iter()
        .filter_map(|line| line.strip_prefix("publisher "));
    let mut names: Vec<_> = lines
        .map(|line| {
            let (tid, publisher) = line.split_once(' ').unwrap();
            let (tid, publisher): (i32, usize) = (tid.parse().unwrap(), publisher.parse().unwrap());
            let thread = threads.iter().find(|thread| thread.tid() == tid).unwrap();
            let context = thread.context().unwrap().attached().unwrap().clone();
            let values: Vec<&str> = context
                .attributes
                .iter()
                .map(|(_, value)| &**value)
                .collect();
            assert!(
                values.is_empty() || values == NAMES[publisher],
                "{context:?}"
            );
            let names = context.attributes.into_iter().map(|(name, _)| name);
            (publisher, names.collect())
        })
        .collect();
    names.sort();
    names
}

#[test]
fn no_attribute_has_the_name_of_another_publisher() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    let gcc = Compiler::gcc();
    let keys = format!("-DKEYS={:?},{:?}", NAMES[1][0], NAMES[1][1]);
    let other = gcc.library(&["publisher.c", "variable.c"], &[keys]);
    // The libraries have a variable each, or share the program's.
    let programs = [
        gcc.program::<&str>(&["publishers.c"], &[]),
        gcc.program(&["publishers.c", "variable.c"], &["-rdynamic"]),
    ];
    let (Some(other), [Some(apart), Some(shared)]) = (other, programs) else {
        return;
    };
    let own = library(prefix);
    let indexes: &[&str] = &["#0", "#1"];
    // What the attributes are called where the libraries share a variable. With one for each, all that
    // have attributes have their names.
    let orders: [(&[&str], [&[&str]; 2]); 5] = [
        // Nobody has used a key before both have published.
        (&["publish 0", "publish 1", "attach 0", "attach 1"], NAMES),
        (&["publish 0", "publish 1", "attach 1", "attach 0"], NAMES),
        (
            &["publish 0", "attach 0", "publish 1", "attach 1"],
            [indexes; 2],
        ),
        // The library has no process context, so its threads have no attributes.
        (
            &["publish 1", "publish 0", "attach 0", "attach 1"],
            [&[], NAMES[1]],
        ),
        (
            &["publish 1", "attach 1", "publish 0", "attach 0"],
            [&[], NAMES[1]],
        ),
    ];
    for round in 0..usual_or_all(4, 100) {
        for (commands, expected) in orders {
            for program in [&apart, &shared] {
                let mut command = Command::new(program);
                command.env("LD_LIBRARY_PATH", prefix.join("lib"));
                // Where in memory each context is, differs with each run.
                let mut target = Target::spawn(&mut command);
                for library in [&own.0, &other] {
                    target.command(&format!("load {}", library.display()));
                }
                for command in commands {
                    target.command(command);
                }
                let refused = target.lines.iter().any(|line| line.starts_with("refused"));
                assert_eq!(refused, commands[0] == "publish 1", "{:?}", target.lines);
                let read = names(&target);
                let expected = match program == &apart && expected == [indexes; 2] {
                    true => NAMES,
                    false => expected,
                };
                let expected = expected.map(|names| names.iter().map(ToString::to_string));
                let expected = expected.map(Iterator::collect::<Vec<_>>);
                let expected: Vec<_> = expected.into_iter().enumerate().collect();
                assert_eq!(read, expected, "{commands:?}, round {round}");
            }
        }
    }
}

#[test]
fn a_publisher_that_came_later_is_found_on_request() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    let gcc = Compiler::gcc();
    let other = gcc.library::<&str>(&["publisher.c", "variable.c"], &[]);
    let program = gcc.program::<&str>(&["publishers.c"], &[]);
    let (Some(other), Some(program)) = (other, program) else {
        return;
    };
    let own = library(prefix);
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", prefix.join("lib"));
    let mut target = Target::spawn(&mut command);
    for library in [&own.0, &other] {
        target.command(&format!("load {}", library.display()));
    }
    for command in [
        "publish 0",
        "search 0",
        "publish 1",
        "search 0",
        "withdraw 1",
        "search 0",
    ] {
        target.command(command);
    }
    let found = "other 10 another publisher in this process has published";
    assert_eq!(target.lines, ["other 0 ", found, "other 0 "]);
}
