//! `-o -`: files on standard output.

use std::fs;
use std::io::Read;

use nix::pty::openpty;

use crate::questions;
use crate::run::{Answer, Scratch, command, given_time, otelctx};
use crate::target::Target;

const FORMATS: [&str; 8] = [
    "otlp",
    "pb.gz",
    "json.gz",
    "html",
    "svg",
    "speedscope.json",
    "folded",
    "parquet",
];

#[test]
fn standard_output_gets_what_a_file_gets() {
    let scratch = Scratch::new("standard-output");
    let recording = scratch.path("profile.otlp");
    questions::write(recording.as_ref(), 20);
    for format in FORMATS {
        let file = scratch.path(&format!("a.{format}"));
        let select = ["report", &recording, "--filter", "http.route=/cart"];
        otelctx(&[&select[..], &["-o", &file]].concat()).expect(0);
        let output = command(&[&select[..], &["-o", "-", "--format", format]].concat()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{format}");
        assert_eq!(output.stdout, fs::read(&file).unwrap(), "{format}");
    }
    // A selection of nothing writes nothing.
    let nothing = [
        "report", &recording, "--pid", "1", "-o", "-", "--format", "svg",
    ];
    let answer = otelctx(&nothing).expect(1);
    assert_eq!(answer.stdout, "");
}

#[test]
fn a_recording_is_piped_into_a_report() {
    let target = Target::start("busy_user");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("piped");
    let file = scratch.path("a.otlp");
    let said = given_time(|seconds| {
        let to = ["-o", "-", "--format", "otlp"];
        let record = ["record", "-p", &pid, "-d", seconds];
        let output = command(&[&record[..], &to].concat()).output().unwrap();
        fs::write(&file, &output.stdout).unwrap();
        // What it says goes elsewhere.
        let said = String::from_utf8(output.stderr).unwrap();
        let has_samples = said.contains(" samples of 1 process in ");
        if has_samples { Ok(said) } else { Err(said) }
    });
    let piped = command(&["report", "-", "--json"])
        .stdin(fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    let piped = Answer::of(piped).expect(0).json();
    let read = otelctx(&["report", &file, "--json"]).expect(0).json();
    assert_eq!(piped, read);
    let samples = format!("{} samples", piped["samples"]);
    assert!(said.starts_with(&samples), "{samples}: {said}");
}

#[test]
fn what_can_not_be_on_standard_output_is_said() {
    let scratch = Scratch::new("no-standard-output");
    let recording = scratch.path("profile.otlp");
    questions::write(recording.as_ref(), 20);
    let report = |arguments: &[&str]| {
        let all = [&["report", &recording], arguments].concat();
        otelctx(&all).expect(2).stderr
    };
    let needs = "otelctx: -o - needs a format, such as --format otlp\n";
    assert_eq!(report(&["-o", "-"]), needs);
    let of_file = "otelctx: --format is for -o -: the extension of a file selects its format\n";
    assert_eq!(report(&["--format", "svg"]), of_file);
    let twice = "otelctx: -: output file given twice\n";
    assert_eq!(report(&["-o", "-", "-o", "-", "--format", "svg"]), twice);
    let record = |arguments: &[&str]| {
        let all = [&["record", "-o", "-", "--format", "otlp"], arguments].concat();
        otelctx(&all).expect(2).stderr
    };
    let in_use = |whose: &str| format!("otelctx: -o -: standard output is {whose}: name a file\n");
    assert_eq!(record(&["--", "true"]), in_use("the command's"));
    assert_eq!(record(&["--all", "--json"]), in_use("for --json"));
    for format in FORMATS {
        let pty = openpty(None, None).unwrap();
        let mut child = command(&["report", &recording, "-o", "-", "--format", format])
            .stdout(pty.slave)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Reading ends with an error when the child has ended.
        let mut shown = Vec::new();
        let _ = fs::File::from(pty.master).read_to_end(&mut shown);
        let mut said = String::new();
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        let is_refused = !child.wait().unwrap().success();
        assert_eq!(
            is_refused,
            matches!(format, "otlp" | "pb.gz" | "json.gz" | "parquet"),
            "{format}"
        );
        assert_eq!(shown.is_empty(), is_refused, "{format}");
        let line = format!(
            "otelctx: {format} is binary, and is not written to a terminal: name a file, or pipe it\n"
        );
        assert_eq!(said, if is_refused { &line } else { "" });
    }
}
