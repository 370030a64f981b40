//! Several copies of this project's publisher in one process: the program's and those of libraries.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use otelctx_fixtures::{Target, cargo_built};
use otelctx_integration::facts;
use otelctx_reader::format::process_context::Value;
use otelctx_reader::{ContextState, Process, ProcessContext};

// What a command results in (`src/copy.rs`).
const OK: &str = "0";
const FOREIGN: &str = "1";
const NOT_PUBLISHED: &str = "2";

/// The library, which has its own copy, under another name for each time that it is to be loaded.
/// `None` if there is none, and this user may not run Cargo.
fn libraries<const N: usize>(test: &str) -> Option<[PathBuf; N]> {
    let library = cargo_built(&[], "examples/libcopy.so")?;
    Some(std::array::from_fn(|number| {
        let name = format!("{test}-{number}.so");
        let copy = otelctx_fixtures::directory().join(name);
        // It may be a link to another user's.
        let _ = std::fs::remove_file(&copy);
        std::fs::copy(&library, &copy).unwrap();
        copy
    }))
}

struct Copies {
    target: Target,
    process: Process,
}

impl Copies {
    fn new<const N: usize>(test: &str) -> Option<Self> {
        let libraries = libraries::<N>(test)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_copies"));
        let target = Target::spawn(command.args(libraries));
        let process = Process::open(target.pid()).unwrap();
        Some(Self { target, process })
    }

    /// Has a copy execute a command; returns the result.
    fn execute(&mut self, command: &str) -> String {
        self.target.lines.clear();
        self.target.command(&command.replace(' ', "\t"));
        facts(&self.target.lines, "result")[0][0].clone()
    }

    #[track_caller]
    fn published(&mut self) -> Arc<ProcessContext> {
        match self.process.context().unwrap() {
            ContextState::Published(context) => context,
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that the process has this context and no other, and its main thread these attributes.
    #[track_caller]
    fn assert(&mut self, service: &str, keys: &[&str], attributes: &[(&str, &str)]) {
        // Twice: as one that is opened now sees it, and as one that polls.
        for process in [
            Process::open(self.target.pid()).unwrap(),
            self.process_again(),
        ] {
            self.process = process;
            let context = self.published();
            let name = context.payload.resource_attribute("service.name");
            assert_eq!(name, Some(&Value::from(service)));
            assert_eq!(context.others, [0; 0], "one context");
            let names = context.keys.clone().unwrap().unwrap();
            // A reader that has seen a withdrawn context shows its further indexes as such.
            let names = names.names().iter().filter(|name| !name.starts_with('#'));
            assert_eq!(names.collect::<Vec<_>>(), keys);
            let threads = self.process.threads().unwrap();
            let found = threads[0].context().unwrap();
            let read = found.attached().map(|context| context.attributes.clone());
            let expected = attributes
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            assert_eq!(read.unwrap_or_default(), expected.collect::<Vec<_>>());
        }
    }

    fn process_again(&mut self) -> Process {
        let new = Process::open(self.target.pid()).unwrap();
        std::mem::replace(&mut self.process, new)
    }
}

#[test]
fn the_copy_that_is_asked_later_takes_over_and_every_record_keeps_its_meaning() {
    let Some(mut copies) = Copies::new::<2>("take-over") else {
        return;
    };
    // Before anything is published, where positions are not fixed.
    assert_eq!(copies.execute("2 key two"), OK);
    assert_eq!(copies.execute("2 key one"), OK);

    assert_eq!(copies.execute("0 publish program"), OK);
    assert_eq!(copies.execute("0 attach zero a"), OK);
    copies.assert("program", &["zero"], &[("zero", "a")]);

    // Nothing is withdrawn for a context that cannot be published.
    assert_eq!(copies.execute("1 large"), "3");
    copies.assert("program", &["zero"], &[("zero", "a")]);

    assert_eq!(copies.execute("1 publish first"), OK);
    copies.assert("first", &["zero"], &[("zero", "a")]);
    assert_eq!(copies.execute("1 attach one b"), OK);
    copies.assert("first", &["zero", "one"], &[("one", "b")]);

    assert_eq!(copies.execute("2 publish second"), OK);
    copies.assert("second", &["zero", "one", "two"], &[("one", "b")]);
    assert_eq!(copies.execute("2 attach two c"), OK);
    copies.assert("second", &["zero", "one", "two"], &[("two", "c")]);

    // The earlier ones know that theirs is gone, and leave this one alone.
    assert_eq!(copies.execute("0 update program"), NOT_PUBLISHED);
    assert_eq!(copies.execute("1 modify first"), NOT_PUBLISHED);
    assert_eq!(copies.execute("1 drop"), OK);
    assert_eq!(copies.execute("0 attach zero d"), OK);
    copies.assert("second", &["zero", "one", "two"], &[("zero", "d")]);
    // A key that nobody publishes is skipped.
    assert_eq!(copies.execute("0 attach late e"), OK);
    copies.assert("second", &["zero", "one", "two"], &[]);

    assert_eq!(copies.execute("0 publish again"), OK);
    let keys = ["zero", "one", "two", "late"];
    copies.assert("again", &keys, &[]);
    assert_eq!(copies.execute("0 attach late f"), OK);
    copies.assert("again", &keys, &[("late", "f")]);
    assert_eq!(copies.execute("1 attach one g"), OK);
    copies.assert("again", &keys, &[("one", "g")]);

    assert_eq!(copies.execute("0 drop"), OK);
    assert_eq!(copies.process.context().unwrap(), ContextState::Absent);
    assert_eq!(copies.execute("1 publish last"), OK);
    copies.assert("last", &["zero", "one"], &[("one", "g")]);
}

#[test]
fn a_copy_whose_keys_mean_something_else_stays_published() {
    let Some(mut copies) = Copies::new::<1>("disagree") else {
        return;
    };
    assert_eq!(copies.execute("0 publish program"), OK);
    assert_eq!(copies.execute("0 attach zero a"), OK);
    assert_eq!(copies.execute("0 drop"), OK);
    assert_eq!(copies.execute("1 publish first"), OK);
    assert_eq!(copies.execute("1 attach one b"), OK);
    // Records of the program may have index 0, too.
    assert_eq!(copies.execute("0 publish again"), FOREIGN);
    copies.assert("first", &["one"], &[("one", "b")]);
    assert_eq!(copies.execute("1 modify changed"), OK);
    copies.assert("changed", &["one"], &[("one", "b")]);
}

#[test]
fn a_library_withdraws_for_another_publisher_unless_records_need_its_keys() {
    let Some(mut copies) = Copies::new::<1>("withdraw") else {
        return;
    };
    assert_eq!(copies.execute("1 publish first"), OK);
    copies.assert("first", &[], &[]);
    assert_eq!(copies.execute("1 otelctx_withdraw"), OK);
    assert_eq!(copies.process.context().unwrap(), ContextState::Absent);
    assert_eq!(copies.execute("1 modify changed"), NOT_PUBLISHED);
    assert_eq!(copies.execute("1 otelctx_withdraw"), OK);

    assert_eq!(copies.execute("1 publish first"), OK);
    assert_eq!(copies.execute("1 attach one a"), OK);
    assert_eq!(copies.execute("1 otelctx_withdraw"), "1");
    copies.assert("first", &["one"], &[("one", "a")]);
}

#[test]
fn a_copy_takes_over_the_context_of_a_library_that_was_unloaded() {
    let Some(mut copies) = Copies::new::<2>("unloaded") else {
        return;
    };
    assert_eq!(copies.execute("2 unload"), OK);
    assert_eq!(copies.execute("1 publish first"), OK);
    assert_eq!(copies.execute("1 key one"), OK);
    copies.assert("first", &["one"], &[]);

    // Where the structure was that the context refers to, there is nothing.
    assert_eq!(copies.execute("1 unload"), OK);
    copies.assert("first", &["one"], &[]);
    assert_eq!(copies.execute("0 publish program"), OK);
    copies.assert("program", &["one"], &[]);
    assert_eq!(copies.execute("0 attach zero a"), OK);

    // The library that published it, loaded again; the record of the program keeps its meaning.
    assert_eq!(copies.execute("1 load"), OK);
    assert_eq!(copies.execute("1 publish second"), OK);
    assert_eq!(copies.execute("1 key late"), OK);
    assert_eq!(copies.execute("1 unload"), OK);
    assert_eq!(copies.execute("1 load"), OK);
    copies.assert("second", &["one", "zero", "late"], &[("zero", "a")]);
    assert_eq!(copies.execute("1 modify changed"), NOT_PUBLISHED);
    assert_eq!(copies.execute("1 large"), "3");
    copies.assert("second", &["one", "zero", "late"], &[("zero", "a")]);
    assert_eq!(copies.execute("1 publish third"), OK);
    copies.assert("third", &["one", "zero", "late"], &[("zero", "a")]);

    // Another copy in the library's place.
    assert_eq!(copies.execute("1 unload"), OK);
    assert_eq!(copies.execute("2 load"), OK);
    assert_eq!(copies.execute("0 publish fourth"), OK);
    copies.assert("fourth", &["one", "zero", "late"], &[("zero", "a")]);
    assert_eq!(copies.execute("2 publish fifth"), OK);
    assert_eq!(copies.execute("2 attach two b"), OK);
    let keys = ["one", "zero", "late", "two"];
    copies.assert("fifth", &keys, &[("two", "b")]);
    assert_eq!(copies.execute("0 update program"), NOT_PUBLISHED);
    assert_eq!(copies.execute("2 drop"), OK);
    assert_eq!(copies.process.context().unwrap(), ContextState::Absent);
}

#[test]
fn the_context_of_a_library_that_was_unloaded_stays_where_its_keys_mean_something_else() {
    let Some(mut copies) = Copies::new::<1>("unloaded-disagree") else {
        return;
    };
    assert_eq!(copies.execute("0 publish program"), OK);
    assert_eq!(copies.execute("0 key zero"), OK);
    assert_eq!(copies.execute("0 drop"), OK);
    assert_eq!(copies.execute("1 publish first"), OK);
    assert_eq!(copies.execute("1 key one"), OK);
    assert_eq!(copies.execute("1 unload"), OK);
    assert_eq!(copies.execute("0 publish again"), FOREIGN);
    copies.assert("first", &["one"], &[]);
}

#[test]
fn copies_that_publish_at_the_same_time_leave_one_context() {
    let Some(mut copies) = Copies::new::<3>("race") else {
        return;
    };
    for round in 0..50 {
        let service = format!("round-{round}");
        let published = copies.execute(&format!("all publish {service}"));
        assert_eq!(published, "0 0 0 0", "{round}");
        copies.assert(&service, &[], &[]);
        // The last one has it.
        let results = (0..4).map(|copy| copies.execute(&format!("{copy} modify {round}")));
        let changed = results.filter(|result| result == OK).count();
        assert_eq!(changed, 1, "{round}");
        copies.assert(&round.to_string(), &[], &[]);
        assert_eq!(copies.execute("all drop"), "0 0 0 0");
        assert_eq!(
            copies.process_again().context().unwrap(),
            ContextState::Absent
        );
    }
}
