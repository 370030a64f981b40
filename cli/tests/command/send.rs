//! `otelctx record --otlp`, to OpenTelemetry's Collector and where none is.

#[path = "../../../profile/export/tests/collector/mod.rs"]
pub(crate) mod collector;
#[path = "../../../profile/write/tests/flat/mod.rs"]
pub(crate) mod flat;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;

use crate::otlp;
use crate::run::{Answer, Scratch, command, given_time, otelctx};
use crate::target::{TRACE, Target};
use collector::{Collector, documented};

/// A port of this machine that nobody listens on.
pub(crate) fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn what_could_not_be_sent_is_in_the_files_all_the_same() {
    let target = Target::start("busy");
    let (pid, url) = (target.pid().to_string(), nobody());
    let scratch = Scratch::new("unsent");
    let arguments = ["record", "-p", &pid, "-d", "2", "--otlp", &url];
    let path = scratch.path("a.otlp");
    let answer = otelctx(&[&arguments[..], &["-o", &path]].concat()).expect(2);
    // Before the recording, and behind it.
    assert_eq!(
        answer.stderr.matches("Connection refused").count(),
        2,
        "{answer:?}"
    );
    assert!(
        answer.stderr.contains("start a collector there"),
        "{answer:?}"
    );
    assert!(answer.stdout.contains(&path), "{answer:?}");
    assert_eq!(scratch.names(), ["a.otlp"]);
    otelctx(&["report", &path]).expect(0);
    // Where no file was asked for, one keeps it.
    let alone = Scratch::new("unsent-alone");
    let output = command(&arguments)
        .current_dir(Path::new(&alone.path(".")))
        .output()
        .unwrap();
    let answer = Answer::of(output).expect(2);
    let [name] = &alone.names()[..] else {
        panic!("{answer:?}")
    };
    assert!(name.starts_with("unsent-") && answer.stdout.contains(name.as_str()));
    otelctx(&["report", &alone.path(name)]).expect(0);
}

/// Returns the number of samples of a recording, and of those with a context, by its own report.
fn reported(answer: &Answer) -> (usize, usize) {
    let (line, _) = answer.stdout.split_once('\n').unwrap();
    let number = |text: &str| text.replace(',', "").parse().unwrap();
    let (samples, rest) = line.split_once(" sample").unwrap();
    let (_, rest) = rest.split_once(" s: ").unwrap();
    let (attached, _) = rest.split_once(" with a trace context").unwrap();
    (number(samples), number(attached))
}

/// A real process is recorded and sent by each way; what the Collector's file exporter keeps is compared.
#[test]
fn a_collector_has_each_sample_with_its_trace_and_process() {
    let Some(preparation) = Collector::prepare(0) else {
        return;
    };
    let mut collector = preparation.start(&documented());
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let scratch = Scratch::new("collected");
    let path = scratch.path("a.otlp");
    let mut sent = Vec::new();
    let (mut samples, mut attached) = (0, 0);
    for url in [collector.grpc(), collector.http()] {
        given_time(|seconds| {
            let to = ["-d", seconds, "-o", &path, "--otlp", &url];
            let answer = otelctx(&[&["record", "-p", &pid], &to[..]].concat()).expect(0);
            sent.push(otlp::read(&path));
            let (all, some) = reported(&answer);
            samples += all;
            attached += some;
            match some > 0 && all > some {
                true => Ok(()),
                false => Err(answer),
            }
        });
    }
    let file = collector.written();
    let report = otelctx(&["report", "--json", file.to_str().unwrap()]);
    let report = report.expect(0).json();
    let received = flat::lines(&collector::messages(&file));
    assert_eq!(received.len(), samples);
    assert!(received == flat::lines(&sent));
    let ids = (0..16).map(|at| u8::from_str_radix(&TRACE[2 * at..][..2], 16).unwrap());
    let trace = format!("{:x?}/", ids.collect::<Vec<u8>>());
    let of_trace = received.iter().filter(|line| line.contains(&trace));
    assert_eq!(of_trace.count(), attached);
    for part in [
        &format!("process.pid=Some(IntValue({pid}))"),
        "busy shop",
        program.to_str().unwrap(),
    ] {
        let without = received.iter().find(|line| !line.contains(part));
        assert_eq!(without, None, "{part}");
    }
    // The same by the file that the Collector has written.
    assert_eq!(report["samples"], samples);
    assert_eq!(report["with_trace"], attached);
    assert_eq!(report["by_trace"][0]["trace_id"], TRACE);
    assert_eq!(report["by_process"][0]["name"], format!("busy shop {pid}"));
    assert_eq!(report["by_process"].as_array().unwrap().len(), 1);
    let routes = report["by_attribute"].as_array().unwrap();
    let cart = routes
        .iter()
        .find(|route| route["name"] == "/cart")
        .unwrap();
    assert_eq!(cart["samples"], attached);
}

#[test]
fn a_profile_is_posted_and_no_file_is_written() {
    let target = Target::start("busy");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/base", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The first connection is but tried.
            let mut request = [0; 1 << 16];
            while let Ok(size @ 1..) = stream.read(&mut request) {
                let text = String::from_utf8_lossy(&request[..size]).into_owned();
                let _ = sender.send(text);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    let scratch = Scratch::new("sent");
    let pid = target.pid().to_string();
    let arguments = [
        "record",
        "-p",
        &pid,
        "-d",
        "0.3",
        "--otlp",
        "--otlp-protocol",
    ];
    let output = command(&[&arguments[..], &["http/protobuf"]].concat())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
        .current_dir(Path::new(&scratch.path(".")))
        .output()
        .unwrap();
    let answer = Answer::of(output).expect(0);
    let request = receiver.recv().unwrap();
    assert!(
        request.starts_with("POST /base/v1development/profiles HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        answer.stdout.contains("sent over http/protobuf, "),
        "{answer:?}"
    );
    assert!(answer.stdout.contains(" in 1 message\n"), "{answer:?}");
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn what_is_no_endpoint_is_refused_before_anything_is_recorded() {
    let answer = otelctx(&["record", "--all", "--otlp", "localhost:4317"]).expect(2);
    assert!(answer.stderr.contains("http://"), "{answer:?}");
    otelctx(&["record", "--all", "--otlp-protocol", "grpc"]).expect(2);
    let answer = otelctx(&[
        "record",
        "--all",
        "--otlp",
        "http://a",
        "--otlp-protocol",
        "http",
    ]);
    let answer = answer.expect(2);
    assert!(
        answer.stderr.contains("neither grpc nor http/protobuf"),
        "{answer:?}"
    );
}
