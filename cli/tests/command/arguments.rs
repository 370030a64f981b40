//! Arguments in forms that other tools take, and files that are not for this command.

use std::fs;

use serde_json::Value;

use crate::otlp;
use crate::run::{Answer, Scratch, given_time, otelctx};
use crate::target::{TRACE, Target};

fn samples(answer: &Answer) -> bool {
    !answer.stdout.starts_with("0 samples ")
}

/// Records until there are samples.
fn recorded(arguments: &[&str]) -> Answer {
    given_time(|seconds| {
        let duration = format!("{}ms", seconds.parse::<f64>().unwrap() * 1000.0);
        let answer = otelctx(&[arguments, &["-d", &duration]].concat()).expect(0);
        if samples(&answer) {
            Ok(answer)
        } else {
            Err(answer)
        }
    })
}

#[test]
fn processes_can_be_given_without_an_option() {
    let scratch = Scratch::new("arguments-pids");
    let path = scratch.path("a.otlp");
    let targets = ["busy", "busy"].map(Target::start);
    let [one, other] = targets.each_ref().map(|it| it.pid().to_string());
    for pids in [&[&*one][..], &[&one, "-p", &other], &[&one, &other]] {
        let answer = recorded(&[&["record", "-o", &path], pids].concat());
        let processes = match pids.len() {
            1 => " of 1 process ",
            _ => " of 2 processes ",
        };
        assert!(answer.stdout.contains(processes), "{answer:?}");
    }
    let top = otelctx(&["top", &one, "--json", "--iterations", "1"])
        .expect(0)
        .json();
    let rows = top["rows"].as_array().unwrap();
    assert!(
        rows.iter().all(|row| row["pid"] == targets[0].pid()),
        "{top}"
    );
    otelctx(&["record", &one, "--all"]).expect(2);
}

#[test]
fn a_command_without_dashes_is_refused_with_the_right_line() {
    let own = env!("CARGO_BIN_EXE_otelctx");
    for verb in ["record", "top"] {
        for (words, word, line) in [
            (&["sleep", "2"][..], "sleep", "sleep 2"),
            (&["./app", "a b"], "./app", "./app 'a b'"),
            (&["1", "python3"], "python3", "1 python3"),
        ] {
            let answer = otelctx(&[&[verb], words].concat()).expect(2);
            let said = format!(
                "otelctx: {word} is not a process ID; to run it as a command:  {own} {verb} -- {line}\n"
            );
            assert!(answer.stderr.starts_with(&said), "{answer:?}");
            assert!(
                answer.stderr.contains(&format!("--name {word}\n")),
                "{answer:?}"
            );
        }
    }
}

#[test]
fn a_filter_alone_stands_for_every_process() {
    let scratch = Scratch::new("arguments-filter");
    let path = scratch.path("a.otlp");
    let target = Target::start("busy_user");
    for filter in [["--filter", "host.name=known-host"], ["--trace", TRACE]] {
        let pid = target.pid().to_string();
        let is_target = |it: &Value| it["name"].as_str().unwrap().contains(&pid);
        // Targets of other tests have the same trace, and may be the only ones that ran.
        let processes = given_time(|seconds| {
            let record = ["record", "-o", &path, filter[0], filter[1], "-d", seconds];
            otelctx(&record).expect(0);
            let report = otelctx(&["report", "--json", &path]).expect(0).json();
            let processes = report["by_process"].as_array().unwrap().clone();
            if processes.iter().any(is_target) {
                Ok(processes)
            } else {
                Err(processes)
            }
        });
        let others = processes.iter().any(|it| !is_target(it));
        assert!(filter[0] == "--trace" || !others, "{processes:?}");
    }
    // Without any, there is nothing to record.
    let answer = otelctx(&["record", "-o", &path]).expect(2);
    assert!(answer.stderr.contains("required arguments"), "{answer:?}");
}

#[test]
fn extensions_may_have_upper_case_letters() {
    let scratch = Scratch::new("arguments-case");
    let target = Target::start("busy");
    let names = ["A.OTLP", "a.Pb.Gz", "a.JSON.gz", "a.SVG", "a.Folded"];
    let paths = names.map(|it| scratch.path(it));
    let pid = target.pid().to_string();
    let mut all = vec!["record", &pid];
    all.extend(paths.iter().flat_map(|path| ["-o", path]));
    let answer = recorded(&all);
    assert!(answer.stdout.contains("go tool pprof"), "{answer:?}");
    let heads = paths
        .each_ref()
        .map(|path| fs::read(path).unwrap()[..2].to_vec());
    let gzip = vec![0x1f, 0x8b];
    assert_eq!(
        (&heads[1], &heads[2], &heads[3][..]),
        (&gzip, &gzip, &b"<?"[..])
    );
    otlp::read(&paths[0]);
    let answer = otelctx(&["record", &pid, "-o", "a.TXT"]).expect(2);
    assert!(
        answer.stderr.contains("unknown file extension"),
        "{answer:?}"
    );
}

#[test]
fn an_attribute_has_a_name() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    for arguments in [
        &["record", &pid, "--by", ""][..],
        &["top", &pid, "--by", ""],
        &["report", "a.otlp", "--by", ""],
        &["record", &pid, "--drop-attribute", ""],
        &["top", &pid, "--keep-attribute", ""],
    ] {
        let answer = otelctx(arguments).expect(2);
        let said = "expected the name of an attribute, or `none` for none";
        assert!(answer.stderr.contains(said), "{answer:?}");
    }
}

#[test]
fn report_says_what_opens_files_of_others() {
    let scratch = Scratch::new("arguments-report");
    let target = Target::start("busy");
    let names = ["a.otlp", "a.pb.gz", "a.json.gz", "a.svg", "a.folded"];
    let [otlp, pprof, firefox, svg, folded] = names.map(|it| scratch.path(it));
    let pid = target.pid().to_string();
    let mut all = vec!["record", &pid];
    all.extend(
        [&otlp, &pprof, &firefox, &svg, &folded]
            .into_iter()
            .flat_map(|it| ["-o", it]),
    );
    recorded(&all);
    let write = |name: &str, content: &[u8]| {
        let path = scratch.path(name);
        fs::write(&path, content).unwrap();
        path
    };
    let elf = fs::read(env!("CARGO_BIN_EXE_otelctx")).unwrap();
    let program = write("program", &elf[..64]);
    let core = write("core", &[&elf[..16], &[4, 0], &elf[18..64]].concat());
    let perf = write("perf.data", b"PERFILE2h\0\0\0\0\0\0\0");
    let piped = write("perf.pipe", b"PERFILE2\x10\0\0\0\0\0\0\0");
    let whole = fs::read(&otlp).unwrap();
    let half = write("half.otlp", &whole[..whole.len() / 2]);
    let json = write("a.json", b"{}");
    let accents = write("text", "h\u{e9}".repeat(4000).as_bytes());
    let text = "it is a text; `otelctx record -o profile.otlp -p PID` makes a recording";
    for (path, said) in [
        (
            &*firefox,
            "load it at https://profiler.firefox.com".to_owned(),
        ),
        (&svg, "open it in a browser".to_owned()),
        (&program, format!("`otelctx check {program}`")),
        (&core, format!("`otelctx dump --core {core}`")),
        (&perf, format!("`perf report -i {perf}`")),
        (&piped, format!("`perf report -i {piped}`")),
        (&half, "it was cut off".to_owned()),
        (&json, "with `format: proto`".to_owned()),
        ("/etc/passwd", text.to_owned()),
        (&accents, text.to_owned()),
    ] {
        let answer = otelctx(&["report", path]).expect(2);
        assert!(answer.stderr.contains(&said), "{path}: {answer:?}");
        assert_eq!(answer.stderr.lines().count(), 1, "{answer:?}");
        assert!(
            answer.stderr.starts_with(&format!("otelctx: {path}: ")),
            "{answer:?}"
        );
    }
    let samples =
        |path: &str| otelctx(&["report", "--json", path]).expect(0).json()["samples"].clone();
    assert_eq!(samples(&pprof), samples(&otlp));
    assert_eq!(samples(&folded), samples(&otlp));
}

/// The headings of the options of a command, each with its options.
fn headings(subcommand: &str) -> Vec<(String, Vec<String>)> {
    let help = otelctx(&[subcommand, "-h"]).expect(0).stdout;
    let mut headings: Vec<(String, Vec<String>)> = Vec::new();
    for line in help.lines() {
        let option = line
            .trim_start()
            .split([' ', '='])
            .find(|it| it.starts_with("--"));
        match (line.strip_suffix(':'), option) {
            (Some(head), _) if !line.starts_with(' ') => headings.push((head.into(), Vec::new())),
            (_, Some(option)) if line.starts_with("  ") => {
                let (_, options) = headings.last_mut().unwrap();
                options.push(option.to_owned());
            }
            _ => {}
        }
    }
    headings.retain(|(head, options)| head != "Examples" && !options.is_empty());
    headings
}

#[test]
fn options_have_headings() {
    let names = |subcommand| {
        headings(subcommand)
            .into_iter()
            .map(|it| it.0)
            .collect::<Vec<_>>()
    };
    let (processes, samples) = ("Select processes", "Select samples");
    assert_eq!(names("report"), ["Options", "View", samples, "Output"]);
    let expected = ["Options", processes, "View", samples, "Sampling", "Output"];
    assert_eq!(names("top"), expected);
    let expected = [
        "Options",
        processes,
        "Output",
        "Sampling",
        samples,
        "Function names",
    ];
    assert_eq!(names("record"), expected);
    // What a heading is not for is where it was.
    for subcommand in ["record", "report", "top", "symbolize", "dump", "view"] {
        let all = headings(subcommand);
        let last = all.iter().find(|(head, _)| head == "Function names");
        for option in last.map_or(&[][..], |(_, options)| options) {
            let is_known = ["--debug-dir", "--debuginfod", "--no-symbols"].contains(&&option[..]);
            assert!(is_known, "{subcommand} {option}");
        }
    }
}

#[test]
fn a_value_in_the_place_of_a_file_has_a_hint() {
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let by_id = format!("--trace {trace}");
    for (arguments, meant) in [
        (&["report", "--traces", "cpu"][..], "--traces=cpu"),
        (&["report", "a.otlp", "--traces", "span"], "--traces=span"),
        (&["report", "--tree", "md5"], "--function md5 --tree"),
        (&["report", "http.route=/a b"], "--filter 'http.route=/a b'"),
        (&["report", trace, "--tree"], &by_id[..]),
    ] {
        let answer = otelctx(arguments).expect(2);
        let hint = format!(": there is no such recording\n  did you mean {meant}?\n");
        assert!(answer.stderr.ends_with(&hint), "{answer:?}");
    }
    // A file of that name is one.
    let answer = otelctx(&["report", "no-such-file"]).expect(2);
    assert!(!answer.stderr.contains("did you mean"), "{answer:?}");
}
