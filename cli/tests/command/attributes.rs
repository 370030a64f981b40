//! Attributes that `record` and `top` leave out.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;

use crate::run::{Answer, Scratch, given_time, otelctx};
use crate::target::Target;

const FILES: [&str; 5] = ["a.otlp", "a.pb.gz", "a.json.gz", "a.svg", "a.folded"];
/// Published by the target: the values of two attributes of its record, and of two of its resource.
const VALUES: [(&str, &str); 4] = [
    ("http.route", "/known-route"),
    ("enduser.id", "known-user"),
    ("service.name", "known-service"),
    ("host.name", "known-host"),
];

/// The whole of a file, without its compression.
fn content(path: &str) -> Vec<u8> {
    if path.ends_with(".gz") {
        return Command::new("gzip")
            .args(["-dc", path])
            .output()
            .unwrap()
            .stdout;
    }
    fs::read(path).unwrap()
}

fn contains(content: &[u8], text: &str) -> bool {
    content.windows(text.len()).any(|it| it == text.as_bytes())
}

/// Records every format until there are samples with a context.
fn record(scratch: &Scratch, target: &Target, options: &[&str]) -> Answer {
    let pid = target.pid().to_string();
    let paths = FILES.map(|name| scratch.path(name));
    given_time(|seconds| {
        let mut all = vec!["record", "-p", &pid, "-d", seconds];
        all.extend(paths.iter().flat_map(|path| ["-o", path]));
        all.extend(options);
        let answer = otelctx(&all).expect(0);
        if answer.stdout.contains(" 0 with a trace") {
            Err(answer)
        } else {
            Ok(answer)
        }
    })
}

#[test]
fn attributes_are_left_out_of_every_format() {
    let scratch = Scratch::new("attributes");
    let target = Target::start("busy_user");
    // Options, the attributes that are left, and the root of the flame graph.
    for (options, left) in [
        (
            &[][..],
            &["http.route", "enduser.id", "service.name", "host.name"][..],
        ),
        (
            &["--drop-attribute", "enduser.id"],
            &["http.route", "service.name", "host.name"],
        ),
        (
            &["--drop-attribute=host.name", "--drop-attribute=http.route"],
            &["enduser.id", "service.name"],
        ),
        (&["--keep-attribute", "http.route"], &["http.route"]),
        (
            &[
                "--keep-attribute=http.route",
                "--keep-attribute=service.name",
            ],
            &["http.route", "service.name"],
        ),
        (
            &["--keep-attribute=http.route", "--drop-attribute=http.route"],
            &[],
        ),
        // What is chosen by an attribute need not be written.
        (
            &[
                "--filter",
                "service.name=known-service",
                "--drop-attribute",
                "service.name",
            ],
            &["http.route", "enduser.id", "host.name"],
        ),
    ] {
        let answer = record(&scratch, &target, options);
        let all: Vec<Vec<u8>> = FILES.iter().map(|it| content(&scratch.path(it))).collect();
        for (name, value) in VALUES {
            for (file, content) in FILES.iter().zip(&all) {
                let is_there = contains(content, value);
                let is_left = left.contains(&name);
                assert!(is_left || !is_there, "{options:?}: {name} in {file}");
                // Only OTLP has everything.
                assert!(
                    is_there || !is_left || *file != "a.otlp",
                    "{options:?}: {name}"
                );
            }
        }
        crate::otlp::read(&scratch.path("a.otlp"));
        let line = answer.stdout.lines().find(|it| it.contains("-attribute: "));
        assert_eq!(line.is_some(), left.len() < 4, "{answer:?}");
        if let Some(line) = line {
            let dropped = |names: [&str; 2]| names.iter().any(|it| !left.contains(it));
            let of_samples = dropped(["http.route", "enduser.id"]);
            assert_eq!(line.contains(" of samples"), of_samples, "{line}");
            let of_resources = dropped(["service.name", "host.name"]);
            assert_eq!(line.contains(" of resources"), of_resources, "{line}");
        }
    }
    // What the recorder has found out is left out by name.
    let names = [
        "process.pid",
        "process.executable.name",
        "process.executable.path",
    ];
    let options: Vec<String> = names
        .iter()
        .map(|it| format!("--drop-attribute={it}"))
        .collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    record(&scratch, &target, &options);
    let content = fs::read(scratch.path("a.otlp")).unwrap();
    assert!(!names.iter().any(|name| contains(&content, name)));
}

/// A collector that keeps the body of the first request over HTTP, and accepts it.
fn receive(listener: &TcpListener) -> Vec<u8> {
    loop {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(&stream);
        let mut size = 0;
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            let lower = line.to_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                size = value.trim().parse().unwrap();
            }
            line.clear();
        }
        // The first connection only shows that a collector is there.
        if size > 0 {
            let mut body = vec![0; size];
            reader.read_exact(&mut body).unwrap();
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n\
                content-length: 0\r\n\r\n";
            (&stream).write_all(answer.as_bytes()).unwrap();
            return body;
        }
    }
}

#[test]
fn a_collector_gets_no_attribute_that_is_left_out() {
    let target = Target::start("busy_user");
    let pid = target.pid().to_string();
    for (option, left, dropped) in [
        ("--drop-attribute=enduser.id", "/known-route", "known-user"),
        ("--drop-attribute=host.name", "known-service", "known-host"),
        ("--keep-attribute=enduser.id", "known-user", "known-service"),
    ] {
        let body = given_time(|seconds| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let receiver = std::thread::spawn(move || receive(&listener));
            let all = ["record", "-p", &pid, "-d", seconds, "--otlp", &url, option];
            let answer = otelctx(&[&all[..], &["--otlp-protocol", "http/protobuf"]].concat());
            let is_sent = answer.stdout.contains(": sent over ");
            if !is_sent || answer.stdout.contains(" 0 with a trace") {
                return Err(answer);
            }
            Ok(uncompressed(receiver.join().unwrap()))
        });
        assert!(contains(&body, left), "{option}");
        assert!(!contains(&body, dropped), "{option}");
    }
}

fn uncompressed(body: Vec<u8>) -> Vec<u8> {
    if !body.starts_with(&[0x1f, 0x8b]) {
        return body;
    }
    let scratch = Scratch::new("attributes-body");
    let path = scratch.path("body.gz");
    fs::write(&path, body).unwrap();
    content(&path)
}

#[test]
fn top_does_not_show_attributes_that_are_left_out() {
    let target = Target::start("busy_user");
    let pid = target.pid().to_string();
    for (option, group, left, dropped) in [
        (
            "--drop-attribute=http.route",
            "thread",
            "enduser.id",
            "/known-route",
        ),
        (
            "--keep-attribute=http.route",
            "thread",
            "/known-route",
            "known-user",
        ),
        (
            "--drop-attribute=service.name",
            "process",
            "http.route",
            "known-service",
        ),
    ] {
        let shown = given_time(|seconds| {
            let all = [
                "top",
                "--json",
                "-p",
                &pid,
                "--iterations",
                "1",
                "-i",
                seconds,
            ];
            let answer = otelctx(&[&all[..], &["--group", group, option]].concat()).expect(0);
            if answer.stdout.contains(left) {
                Ok(answer.stdout)
            } else {
                Err(answer)
            }
        });
        assert!(!shown.contains(dropped), "{option}: {shown}");
    }
}

#[test]
fn report_groups_by_the_first_attribute_that_varies() {
    let scratch = Scratch::new("attributes-report");
    let path = scratch.path("a.otlp");
    let targets =
        ["-1", "-2"].map(|value| Target::start_with("busy_user", |command| _ = command.arg(value)));
    let pids = targets.each_ref().map(|it| it.pid().to_string());
    let without_route = |pids: &str| {
        given_time(|seconds| {
            let record = ["record", "-d", seconds, "-p", pids, "-o", &path];
            otelctx(&[&record[..], &["--drop-attribute", "http.route"]].concat()).expect(0);
            let report = otelctx(&["report", "--json", &path]).expect(0).json();
            let processes = report["by_process"].as_array().unwrap().len();
            let is_whole = report["with_trace"] != 0 && processes == pids.split(',').count();
            if is_whole { Ok(report) } else { Err(report) }
        })
    };
    let report = without_route(&pids.join(","));
    assert_eq!(report["by"], "enduser.id", "{report}");
    let rows = report["by_attribute"].as_array().unwrap();
    let mut names: Vec<&str> = rows.iter().map(|it| it["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert!(
        names.ends_with(&["known-user-1", "known-user-2"]),
        "{names:?}"
    );
    let text = otelctx(&["report", &path]).expect(0).stdout;
    assert!(text.contains("\nBy enduser.id\n"), "{text}");
    // From standard input, which is read once.
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "\"$0\" report - < \"$1\"",
        env!("CARGO_BIN_EXE_otelctx"),
        &path,
    ]);
    assert_eq!(
        String::from_utf8(shell.output().unwrap().stdout).unwrap(),
        text
    );
    // None varies: there is no table of it, unless it is asked for.
    let report = without_route(&pids[0]);
    assert_eq!(report["by"], "none", "{report}");
    let text = otelctx(&["report", &path]).expect(0).stdout;
    // Traces of one or two samples each are counted instead.
    let has_traces = text.contains("\nBy trace\n") || text.contains("none with more than ");
    assert!(has_traces, "{text}");
    let others = ["http.route", "enduser.id", "none"].map(|it| format!("\nBy {it}\n"));
    assert!(!others.iter().any(|it| text.contains(it)), "{text}");
    let asked = otelctx(&["report", &path, "--by", "enduser.id"])
        .expect(0)
        .stdout;
    assert!(asked.contains("\nBy enduser.id\n"), "{asked}");
}
