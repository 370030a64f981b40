//! What `record` and `report` say of a program without symbols.

use std::fs;
use std::process::Command;

use otelctx_fixtures::{Compiler, copy_program};
use serde_json::json;

use crate::run::{Answer, Scratch, given_time, otelctx, top};
use crate::symbolize::Program;

/// A program whose debug file is in another directory.
struct Stripped {
    scratch: Scratch,
    program: String,
    /// The directory of the debug file.
    elsewhere: String,
    build_id: String,
}

fn tool(arguments: &[&str]) -> String {
    let output = Command::new(arguments[0]).args(&arguments[1..]).output();
    Answer::of(output.unwrap()).expect(0).stdout
}

impl Stripped {
    fn new(name: &str, has_build_id: bool, has_link: bool) -> Option<Self> {
        let build_id = match has_build_id {
            true => "-Wl,--build-id",
            false => "-Wl,--build-id=none",
        };
        let built = Compiler::gcc().program(&["stacks.c"], &["-O2", "-g", build_id])?;
        let scratch = Scratch::new(name);
        let (program, elsewhere) = (scratch.path("program"), scratch.path("elsewhere"));
        fs::create_dir(&elsewhere).unwrap();
        let debug = format!("{elsewhere}/program.debug");
        copy_program(built, &program);
        tool(&["objcopy", "--only-keep-debug", &program, &debug]);
        tool(&["strip", &program]);
        if has_link {
            let link = format!("--add-gnu-debuglink={debug}");
            tool(&["objcopy", &link, &program]);
        }
        let notes = tool(&["readelf", "-n", &program]);
        let build_id = notes
            .lines()
            .find_map(|it| it.trim().strip_prefix("Build ID: "));
        Some(Self {
            build_id: build_id.unwrap_or_default().to_owned(),
            scratch,
            program,
            elsewhere,
        })
    }

    /// Records it until there are samples in its own code.
    fn record(&self, options: &[&str]) -> (Answer, String) {
        let output = self.scratch.path("profile.otlp");
        let running = Program::start(&self.program);
        let pid = running.0.id().to_string();
        given_time(|seconds| {
            let record = ["record", "-o", &output, "-d", seconds, "-p", &pid];
            let answer = otelctx(&[&record[..], options].concat()).expect(0);
            let report = otelctx(&["report", &output, "--by", "none"])
                .expect(0)
                .stdout;
            let is_sampled = report.contains(&self.program) || report.contains("fibonacci");
            is_sampled.then_some((answer, report.clone())).ok_or(report)
        })
    }

    /// The paths at which the debug file of a program with everything is searched, and the line's directories.
    fn searched(&self) -> (Vec<String>, String) {
        let folder = self.scratch.folder().to_str().unwrap();
        let (first, rest) = self.build_id.split_at(2);
        let system = ["/usr/lib/debug", "/usr/local/lib/debug"];
        let by_build_id = system.map(|it| format!("{it}/.build-id/{first}/{rest}.debug"));
        let mirrored = system.map(|it| format!("{it}{folder}"));
        let beside = [folder.to_owned(), format!("{folder}/.debug")];
        let by_link = mirrored.iter().chain(&beside);
        let paths = by_link.clone().map(|it| format!("{it}/program.debug"));
        let directories = system.iter().map(|it| (*it).to_owned());
        let directories: Vec<_> = directories.chain(by_link.cloned()).collect();
        (
            by_build_id.into_iter().chain(paths).collect(),
            directories.join(", "),
        )
    }
}

#[test]
fn where_debug_files_were_searched_is_said_if_there_are_none() {
    let Some(stripped) = Stripped::new("without-symbols", true, true) else {
        return;
    };
    let program = &stripped.program;
    let (paths, directories) = stripped.searched();
    let (answer, report) = stripped.record(&[]);
    let end =
        format!(" % of samples in {program}, which has no symbols; looked in {directories}\n");
    assert!(answer.stdout.contains(&end), "{answer:?}");
    let line = format!(" % of CPU time in {program}, whose functions have no names: `");
    assert!(report.lines().nth(1).unwrap().contains(&line), "{report}");

    let (answer, _) = stripped.record(&["--json"]);
    let found = &answer.json()["without_symbols"][0];
    assert!(found["samples"].as_u64() > Some(0), "{found}");
    let others = json!({
        "path": program, "build_id": stripped.build_id, "samples": found["samples"], "searched": paths,
    });
    assert_eq!(*found, others);

    // Beside it, the debug file is found.
    let debug = format!("{}/program.debug", stripped.elsewhere);
    fs::copy(debug, stripped.scratch.path("program.debug")).unwrap();
    let (answer, report) = stripped.record(&["--json"]);
    let found = &answer.json()["without_symbols"];
    let of_it = found
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["path"] == **program);
    assert_eq!(of_it, None, "{found}");
    assert!(!report.contains("no names"), "{report}");
}

#[test]
fn directories_of_the_options_are_searched_first() {
    let Some(stripped) = Stripped::new("without-symbols-options", true, false) else {
        return;
    };
    let (first, rest) = stripped.build_id.split_at(2);
    let (elsewhere, program) = (&stripped.elsewhere, &stripped.program);
    let by_build_id = [elsewhere.as_str(), "/usr/lib/debug", "/usr/local/lib/debug"];
    let by_build_id = by_build_id.map(|it| format!("{it}/.build-id/{first}/{rest}.debug"));
    let itself = [
        format!("{elsewhere}{program}"),
        format!("{elsewhere}/program"),
    ];
    let expected: Vec<_> = by_build_id.into_iter().chain(itself).collect();
    let (answer, _) = stripped.record(&["--json", "--debug-dir", elsewhere]);
    let found = &answer.json()["without_symbols"][0];
    assert_eq!(found["searched"], json!(expected), "{found}");
}

#[test]
fn a_program_without_a_build_id_and_a_debug_link_has_no_debug_file() {
    let Some(stripped) = Stripped::new("without-symbols-and-names", false, false) else {
        return;
    };
    let program = &stripped.program;
    let (answer, _) = stripped.record(&[]);
    let end = format!(
        " % of samples in {program}, which has no symbols, no build ID and no debug link\n"
    );
    assert!(answer.stdout.contains(&end), "{answer:?}");
}

#[test]
fn top_says_it_if_it_groups_by_function() {
    let Some(stripped) = Stripped::new("without-symbols-top", true, false) else {
        return;
    };
    let program = &stripped.program;
    let running = Program::start(program);
    let pid = running.0.id().to_string();
    let end = "which has no symbols; looked in /usr/lib/debug, /usr/local/lib/debug\n";
    let line = format!(" % of samples in {program}, {end}");
    given_time(|seconds| {
        let found = top(&pid, "function", seconds);
        let file = &found["without_symbols"][0];
        let is_found = file["path"] == **program && file["samples"].as_u64() > Some(0);
        is_found.then_some(()).ok_or(found)
    });
    given_time(|seconds| {
        let top = [
            "top",
            "-p",
            &pid,
            "--iterations",
            "1",
            "--group",
            "function",
        ];
        let text = otelctx(&[&top[..], &["-i", seconds]].concat())
            .expect(0)
            .stdout;
        text.contains(&line).then_some(()).ok_or(text)
    });
    let found = top(&pid, "thread", "0.5");
    assert_eq!(found["without_symbols"], json!([]), "{found}");
}
