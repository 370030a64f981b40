//! Processes with two publishers that have different names for an index: no command shows an attribute under the other
//! one's name, and each says so.

use std::path::PathBuf;
use std::process::Command;

use otelctx_fixtures::Compiler;
use serde_json::json;

use crate::run::{Scratch, given_time, otelctx};

/// What each publisher calls its only attribute, whose value is the same.
const NAMES: [&str; 2] = ["http.route", "local_root"];

/// Whose variable the two publishers use.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variable {
    Own,
    /// It does not tell the publisher of a record.
    Shared,
}

/// A process in which some have published, and both have a record attached to a thread that computes.
fn start(variable: Variable, publishers: &[&str]) -> Option<otelctx_fixtures::Target> {
    let gcc = Compiler::gcc();
    let library = |name: &str| -> Option<PathBuf> {
        gcc.library(
            &["publisher.c", "variable.c"],
            &[format!("-DKEYS={name:?}")],
        )
    };
    let program = match variable {
        Variable::Own => gcc.program::<&str>(&["publishers.c"], &[])?,
        Variable::Shared => gcc.program(&["publishers.c", "variable.c"], &["-rdynamic"])?,
    };
    let [one, other] = [library(NAMES[0])?, library(NAMES[1])?];
    let mut target = otelctx_fixtures::Target::spawn(&mut Command::new(program));
    for library in [one, other] {
        target.command(&format!("load {}", library.display()));
    }
    for publisher in ["0", "1"] {
        if publishers.contains(&publisher) {
            target.command(&format!("publish {publisher}"));
        }
        target.command(&format!("attach {publisher}"));
    }
    Some(target)
}

#[test]
fn dump_says_that_a_publisher_without_a_process_context_cannot_name_attributes() {
    for (publishers, is_noted) in [(&["0", "1"][..], false), (&["0"], true)] {
        let Some(target) = start(Variable::Own, publishers) else {
            return;
        };
        let text = otelctx(&["dump", &target.pid().to_string()])
            .expect(0)
            .stdout;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let note = "note 2 modules have a variable for contexts, but there is one process context: \
            contexts of other publishers may lack attributes";
        assert_eq!(text.contains(note), is_noted, "{text}");
    }
}

#[test]
fn dump_and_check_say_that_names_are_unknown() {
    let Some(target) = start(Variable::Shared, &["0", "1"]) else {
        return;
    };
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", &pid, "--json"]).expect(0).json();
    assert_eq!(answer["contested_keys"], json!([0]));
    let threads = answer["threads"].as_array().unwrap();
    let contexts = threads.iter().map(|thread| &thread["context"]);
    let contexts: Vec<_> = contexts.filter(|it| !it.is_null()).collect();
    let mut attributes: Vec<_> = contexts.iter().map(|it| &it["attributes"]).collect();
    attributes.sort_by_key(ToString::to_string);
    assert_eq!(attributes, NAMES.map(|name| json!({"#0": name})).each_ref());
    for context in contexts {
        let skipped =
            json!({"unknown_key": 0, "contested_key": 1, "not_utf8": 0, "incomplete_bytes": 0});
        assert_eq!(context["skipped"], skipped);
    }

    let text = otelctx(&["dump", &pid]).expect(0).stdout;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let warning = "the process contexts have different names for attributes of threads, which are \
        shown by their indexes: #0";
    assert!(text.contains(warning), "{text}");
    for name in NAMES {
        assert!(
            text.contains(&format!("#0={name} (#: names unknown)")),
            "{text}"
        );
    }

    let answer = otelctx(&["check", &pid, "--json"]).expect(1).json();
    let findings = answer["findings"].as_array().unwrap();
    let found = |id: &str| findings.iter().filter(|it| it["id"] == id).count();
    assert_eq!(
        [found("contested-keys"), found("second-process-context")],
        [1, 1]
    );
}

#[test]
fn recordings_and_top_have_the_index_and_count_it() {
    let Some(target) = start(Variable::Shared, &["0", "1"]) else {
        return;
    };
    let pid = target.pid().to_string();
    let scratch = Scratch::new("publishers");
    let path = scratch.path("a.otlp");
    for method in [&[][..], &["--ptrace"]] {
        let answer = given_time(|seconds| {
            let record = ["record", &pid, "--json", "-o", &path, "-d", seconds];
            let answer = otelctx(&[&record, method].concat()).expect(0);
            let json = answer.json();
            let with_context = json["with_context"].as_u64().unwrap();
            if with_context > 0 {
                Ok(json)
            } else {
                Err(answer)
            }
        });
        let counts = &answer["counts"];
        assert_eq!(counts["contested_keys"], counts["attached"], "{answer}");
        let report = otelctx(&["report", &path, "--json", "--by", "#0"])
            .expect(0)
            .json();
        let rows = report["by_attribute"].as_array().unwrap();
        let rows: Vec<_> = rows
            .iter()
            .map(|row| row["name"].as_str().unwrap())
            .collect();
        assert!(rows.iter().all(|name| NAMES.contains(name)), "{rows:?}");
        for name in NAMES {
            let report = otelctx(&["report", &path, "--json", "--by", name])
                .expect(0)
                .json();
            assert_eq!(report["by_attribute"][0]["name"], "(none)", "{report}");
        }
    }

    given_time(|seconds| {
        let answer = otelctx(&["record", &pid, "-o", &path, "-d", seconds]).expect(0);
        let text = "without a name (their processes have publishers that disagree on it)";
        if answer.stdout.contains(text) {
            Ok(())
        } else {
            Err(answer)
        }
    });
    given_time(|seconds| {
        let top = ["top", &pid, "--iterations", "1", "--interval", seconds];
        let answer = otelctx(&top).expect(0);
        let text = "without a name (publishers disagree)";
        if answer.stdout.contains(text) {
            Ok(())
        } else {
            Err(answer)
        }
    });
}

/// The attributes have their names, by the module whose variable has the record, and `dump` says so.
#[test]
fn the_variable_tells_the_publisher_of_a_record() {
    let Some(target) = start(Variable::Own, &["0", "1"]) else {
        return;
    };
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", &pid, "--json"]).expect(0).json();
    let threads = answer["threads"].as_array().unwrap();
    let contexts = threads.iter().map(|thread| &thread["context"]);
    let contexts = contexts.filter(|it| !it.is_null());
    let mut attributes: Vec<_> = contexts.map(|it| it["attributes"].clone()).collect();
    attributes.sort_by_key(ToString::to_string);
    assert_eq!(attributes, NAMES.map(|name| json!({name: name})));
    let of_threads = &answer["thread_context"];
    let [other_variable] = &of_threads["other_variables"].as_array().unwrap()[..] else {
        panic!("{answer}")
    };
    let addresses = [of_threads, other_variable].map(|it| it["process_context"].as_str().unwrap());
    let [second] = &answer["second_contexts"].as_array().unwrap()[..] else {
        panic!("{answer}")
    };
    let second = second.as_str().unwrap();
    assert_eq!(addresses.iter().filter(|it| **it == second).count(), 1);

    let text = otelctx(&["dump", &pid]).expect(0).stdout;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for address in addresses {
        let said = format!("names by the process context at {address}");
        assert!(text.contains(&said), "{text}");
    }
    for name in NAMES {
        assert!(text.contains(&format!("{name}={name}")), "{text}");
    }
    assert!(!text.contains("different names"), "{text}");

    let scratch = Scratch::new("publishers-own");
    let path = scratch.path("a.otlp");
    for method in [&[][..], &["--ptrace"]] {
        given_time(|seconds| {
            let record = ["record", &pid, "--json", "-o", &path, "-d", seconds];
            let answer = otelctx(&[&record, method].concat()).expect(0);
            let counts = &answer.json()["counts"];
            assert_eq!(counts["contested_keys"], 0, "{counts}");
            let has_values = |name| {
                let report = otelctx(&["report", &path, "--json", "--by", name]).expect(0);
                let rows = report.json()["by_attribute"].clone();
                let values = rows.as_array().unwrap().iter().map(|row| &row["name"]);
                let values: Vec<_> = values.filter(|value| *value != "(none)").collect();
                assert!(values.iter().all(|value| *value == name), "{rows}");
                !values.is_empty()
            };
            // Both threads were sampled.
            if NAMES.iter().all(|name| has_values(*name)) {
                Ok(())
            } else {
                Err(answer)
            }
        });
    }
}
