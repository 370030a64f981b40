//! `otelctx record --keep` and `otelctx dump --last`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, geteuid};
use otelctx_fixtures::{Compiler, HANG_TIMEOUT};
use serde_json::{Value, json};

use crate::otlp;
use crate::run::{Answer, Scratch, command, otelctx};
use crate::target::{TRACE, Target};
use crate::unprivileged::Copy;

/// A recorder that keeps samples, and has said so.
struct Recorder {
    child: Child,
    /// The lines of its standard error.
    lines: Receiver<String>,
    /// What it has said since it was started.
    said: String,
    /// Its directory for sockets.
    runtime: String,
}

impl Recorder {
    fn start(scratch: &Scratch, arguments: &[&str]) -> Self {
        let runtime = scratch.path("runtime");
        fs::create_dir_all(&runtime).unwrap();
        let mut command = command(&[&["record", "--json"], arguments].concat());
        command.env("XDG_RUNTIME_DIR", &runtime);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            // Until its end, or that of the test.
            let lines = stderr.lines().map_while(Result::ok);
            lines
                .map(|line| sender.send(line + "\n"))
                .all(|sent| sent.is_ok())
        });
        let mut recorder = Self {
            child,
            lines,
            said: String::new(),
            runtime,
        };
        recorder.wait_for("otelctx: keeping the last ");
        recorder
    }

    /// One that records a target for a minute at most, to this file of the scratch directory.
    fn of(target: &Target, scratch: &Scratch, file: &str, more: &[&str]) -> Self {
        let (pid, file) = (target.pid().to_string(), scratch.path(file));
        let arguments = [&["-p", &pid, "--keep", "60s", "-o", &file], more].concat();
        Self::start(scratch, &arguments)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits until it says a line with this start.
    fn wait_for(&mut self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(HANG_TIMEOUT);
            let line = line.unwrap_or_else(|why| panic!("{why}: {}", self.said));
            self.said += &line;
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Has it write by SIGUSR1, until there are samples. Returns the line.
    fn written_with_samples(&mut self) -> String {
        loop {
            self.signal(Signal::SIGUSR1);
            let line = self.wait_for("otelctx: written on SIGUSR1: ");
            if !line.contains(": 0 samples ") {
                return line;
            }
        }
    }

    /// Runs `dump --last` for this recorder.
    fn dump(&self, last: &str) -> Answer {
        let pid = self.pid().to_string();
        let mut dump = command(&["dump", "--json", "--last", last, "--recorder", &pid]);
        dump.env("XDG_RUNTIME_DIR", &self.runtime);
        Answer::of(dump.output().unwrap())
    }

    /// Ends it as `kill` does.
    fn end(self) -> Answer {
        self.signal(Signal::SIGTERM);
        self.ended()
    }

    /// Waits for its end.
    fn ended(mut self) -> Answer {
        let mut stdout = String::new();
        let mut out = self.child.stdout.take().unwrap();
        out.read_to_string(&mut stdout).unwrap();
        self.said.extend(self.lines.iter());
        Answer {
            status: self.child.wait().unwrap().code().unwrap(),
            stdout,
            stderr: std::mem::take(&mut self.said),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn samples(value: &Value) -> u64 {
    let samples = value["samples"].as_u64();
    samples.unwrap_or_else(|| panic!("{value:#}"))
}

/// The files of a write of `kept.writes`.
fn files(write: &Value) -> Vec<String> {
    let files = write["files"].as_array().unwrap().iter();
    files
        .map(|it| it["path"].as_str().unwrap().to_owned())
        .collect()
}

/// The times of all samples of a file.
fn times(path: &str) -> Vec<u64> {
    let data = otlp::read(path);
    let scopes = data.resource_profiles.iter();
    let scopes = scopes.flat_map(|it| &it.scope_profiles);
    let samples = scopes
        .flat_map(|it| &it.profiles)
        .flat_map(|it| &it.samples);
    let mut times: Vec<u64> = samples
        .flat_map(|it| it.timestamps_unix_nano.clone())
        .collect();
    times.sort_unstable();
    times
}

#[test]
fn every_format_is_written_each_time_with_the_time_in_its_name() {
    let target = Target::start("busy");
    let scratch = Scratch::new("keep-formats");
    let endings = [
        ".pb.gz",
        ".json.gz",
        ".html",
        ".svg",
        ".speedscope.json",
        ".folded",
        ".parquet",
        "/",
    ];
    let paths = endings.map(|ending| scratch.path(&format!("a{ending}")));
    let more: Vec<&str> = paths.iter().flat_map(|path| ["-o", path]).collect();
    let more = [&more[..], &["--max-files", "1000"]].concat();
    let mut recorder = Recorder::of(&target, &scratch, "a.otlp", &more);
    let line = recorder.written_with_samples();
    let answer = recorder.dump("30s");
    let asked = answer.expect(0).json();
    let ended = recorder.end().expect(0).json();
    let kept = &ended["kept"];
    let writes = kept["writes"].as_array().unwrap();
    let number = writes.len() as u64;
    let written = json!({"signal": number - 2, "request": 1, "end": 1});
    assert_eq!(kept["written"], written);
    assert_eq!((&kept["failed"], &kept["refused"]), (&json!(0), &json!(0)));
    let mut names = BTreeSet::from(["runtime".to_owned()]);
    for write in writes {
        let files = files(write);
        assert_eq!(files.len(), 1 + endings.len());
        let stem = files[0].strip_suffix(".otlp").unwrap();
        let stamp = stem.strip_prefix(&scratch.path("a-")).unwrap();
        let day = &write["time"].as_str().unwrap()[..10];
        assert!(stamp.starts_with(day) && stamp.contains('Z'), "{stamp}");
        for (file, ending) in files[1..].iter().zip(endings) {
            assert_eq!(*file, format!("{stem}{ending}"));
        }
        let exist = files.iter().filter(|file| Path::new(file).exists());
        // Without samples, a folder has no files, and is not there.
        assert!(exist.count() >= endings.len(), "{files:?}");
        let base = |file: &String| {
            let name = file.trim_end_matches('/').rsplit('/').next();
            name.unwrap().to_owned()
        };
        names.extend(files.iter().filter(|it| Path::new(it).exists()).map(base));
        assert_eq!(times(&files[0]).len() as u64, samples(write));
    }
    // And no others.
    assert_eq!(scratch.names(), names.into_iter().collect::<Vec<_>>());
    let by_request = &writes[writes.len() - 2];
    assert_eq!(asked["samples"], by_request["samples"]);
    assert_eq!(asked["files"], json!(files(by_request)));
    assert_eq!(files(&writes[writes.len() - 1]), files(&ended));
    let signalled = &writes[writes.len() - 3];
    assert!(line.contains(&files(signalled).join(", ")), "{line}");
}

/// While a file is written, sampling goes on: what an earlier file has is in a later one, and nothing between is missing.
#[test]
fn files_overlap_without_a_gap() {
    let target = Target::start("busy");
    let scratch = Scratch::new("keep-complete");
    let more = ["--max-files", "1000", "-F", "999"];
    let mut recorder = Recorder::of(&target, &scratch, "a.otlp", &more);
    recorder.written_with_samples();
    recorder.written_with_samples();
    let part = recorder.dump("0.2s").expect(0).json();
    assert!(part["duration_ns"].as_u64().unwrap() <= 200_000_000);
    let ended = recorder.end().expect(0).json();
    let counts = &ended["counts"];
    let counted = counts["attached"].as_u64().unwrap() + counts["detached"].as_u64().unwrap();
    assert_eq!(samples(&ended), counted, "{ended:#}");
    let all = times(&files(&ended)[0]);
    assert_eq!(all.len() as u64, counted);
    let writes = ended["kept"]["writes"].as_array().unwrap();
    for write in writes {
        let times = times(&files(write)[0]);
        let Some((first, last)) = times.first().zip(times.last()) else {
            continue;
        };
        let from = all.partition_point(|time| time < first);
        let to = all.partition_point(|time| time <= last);
        assert_eq!(times, all[from..to]);
        // All since the start, but for the one that was asked for less.
        assert!(from == 0 || write["reason"] == "request", "{write:#}");
    }
}

#[test]
fn signals_of_a_moment_are_one_request_and_none_is_lost() {
    let target = Target::start("busy");
    let scratch = Scratch::new("keep-signals");
    let mut recorder = Recorder::of(&target, &scratch, "a.folded", &[]);
    recorder.signal(Signal::SIGSTOP);
    let stopped = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(recorder.pid()), stopped).unwrap();
    for _ in 0..3 {
        recorder.signal(Signal::SIGUSR1);
    }
    recorder.signal(Signal::SIGCONT);
    recorder.wait_for("otelctx: written on SIGUSR1: ");
    let ended = recorder.end().expect(0).json();
    let written = json!({"signal": 1, "end": 1});
    assert_eq!(ended["kept"]["written"], written);
}

#[test]
fn a_trace_that_was_seen_for_long_has_its_minute_written_once() {
    let target = Target::start("busy");
    let scratch = Scratch::new("keep-trigger");
    let expression = r#"service.name="busy shop" and seen > 100ms"#;
    let more = ["--trigger", expression, "--max-files", "1"];
    let mut recorder = Recorder::of(&target, &scratch, "a.otlp", &more);
    let line = recorder.wait_for("otelctx: written by --trigger: ");
    let found = format!(", trace {TRACE}, seen for ");
    assert!(line.contains(&found), "{line}");
    // As often as permitted: each request gets this answer.
    recorder.signal(Signal::SIGUSR1);
    let why = "files were written once, as often as --max-files permits";
    recorder.wait_for(&format!("otelctx: not written on SIGUSR1: {why}"));
    let refused = recorder.dump("1s").expect(2).json();
    assert_eq!(
        (&refused["files"], &refused["failed"]),
        (&json!([]), &json!([why]))
    );
    let answer = recorder.end().expect(0);
    let at_the_end = format!("otelctx: not written at the end: {why}\n");
    assert!(answer.stderr.contains(&at_the_end), "{answer:?}");
    let ended = answer.json();
    let kept = &ended["kept"];
    assert_eq!(ended["files"], json!([]));
    assert_eq!(kept["written"], json!({"trigger": 1}));
    assert_eq!((&kept["matches"], &kept["refused"]), (&json!(1), &json!(3)));
    assert_eq!(kept["trigger"], expression);
    let write = &kept["writes"][0];
    let trigger = &write["trigger"];
    assert_eq!(trigger["pid"], target.pid());
    assert_eq!(trigger["trace_id"], TRACE);
    assert!(trigger["seen_ns"].as_u64().unwrap() > 100_000_000);
    let path = files(write).remove(0);
    let report = otelctx(&["report", "--json", &path]).expect(0).json();
    assert_eq!(report["by_trace"][0]["trace_id"], TRACE);
    assert_eq!(scratch.names().len(), 2);
}

/// A recorder that runs for weeks outlives the folder of its files.
#[test]
fn a_folder_that_has_gone_does_not_end_the_recording() {
    let target = Target::start("busy");
    let scratch = Scratch::new("keep-unwritable");
    let (folder, away) = (scratch.path("files"), scratch.path("away"));
    fs::create_dir(&folder).unwrap();
    let mut recorder = Recorder::of(&target, &scratch, "files/a.otlp", &[]);
    fs::rename(&folder, &away).unwrap();
    recorder.signal(Signal::SIGUSR1);
    recorder.wait_for("otelctx: not written on SIGUSR1\n");
    recorder.wait_for("  ");
    assert!(
        recorder
            .said
            .ends_with("No such file or directory (os error 2)\n"),
        "{}",
        recorder.said
    );
    let refused = recorder.dump("1s").expect(2).json();
    assert_eq!(refused["failed"].as_array().unwrap().len(), 1);
    fs::rename(&away, &folder).unwrap();
    recorder.signal(Signal::SIGUSR1);
    recorder.wait_for("otelctx: written on SIGUSR1: ");
    // Like each file that could not be written.
    let ended = recorder.end().expect(2).json();
    let kept = &ended["kept"];
    assert_eq!(
        (&kept["failed"], &kept["written"]),
        (&json!(2), &json!({"signal": 1, "end": 1}))
    );
    assert_eq!(kept["writes"].as_array().unwrap().len(), 4);
    // Nor is anything left elsewhere.
    assert_eq!(scratch.names(), ["files", "runtime"]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
}

#[test]
fn the_file_at_the_end_of_a_command_has_its_status() {
    let scratch = Scratch::new("keep-command");
    let path = scratch.path("a.svg");
    let arguments = ["--keep", "5s", "-o", &path, "--", "sh", "-c", "exit 3"];
    let ended = Recorder::start(&scratch, &arguments).ended().expect(3);
    let ended = ended.json();
    assert_eq!(ended["kept"]["written"], json!({"end": 1}));
    let file = files(&ended).remove(0);
    assert!(file.starts_with(&scratch.path("a-2")) && Path::new(&file).exists());
}

#[test]
fn one_of_several_recorders_is_chosen_and_a_killed_one_is_none() {
    let target = Target::start("busy");
    let scratch = Scratch::new("keep-several");
    let recorders = ["a.folded", "b.folded"];
    let recorders = recorders.map(|file| Recorder::of(&target, &scratch, file, &[]));
    let mut dump = command(&["dump", "--last", "1s"]);
    dump.env("XDG_RUNTIME_DIR", &recorders[0].runtime);
    let answer = Answer::of(dump.output().unwrap()).expect(2);
    let several = "otelctx: several recorders keep samples: choose one with --recorder: ";
    assert!(answer.stderr.starts_with(several), "{answer:?}");
    for recorder in &recorders {
        assert!(answer.stderr.contains(&recorder.pid().to_string()));
        let written = recorder.dump("1s").expect(0).json();
        assert_eq!(written["recorder"], recorder.pid().as_raw());
    }
    let [mut killed, other] = recorders;
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let refused = killed.dump("1s").expect(2);
    let why = format!("process {} is no recorder of this user", killed.pid());
    assert!(refused.stderr.contains(&why), "{refused:?}");
    other.dump("1s").expect(0);
    let sockets = format!("{}/otelctx", other.runtime);
    let name = format!("record-{}.sock", other.pid());
    let names = || -> Vec<_> {
        let entries = fs::read_dir(&sockets).unwrap();
        entries.map(|it| it.unwrap().file_name()).collect()
    };
    assert_eq!(names(), [&*name]);
    other.end().expect(0);
    assert_eq!(names(), [""; 0]);
}

#[test]
fn another_user_cannot_ask() {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let target = Target::start("busy");
    let scratch = Scratch::new("keep-user");
    let recorder = Recorder::of(&target, &scratch, "a.folded", &[]);
    let copy = Copy::new("keep-user-copy");
    let pid = recorder.pid().to_string();
    let ask = || {
        let mut dump = copy.command(&["dump", "--last", "1s", "--recorder", &pid]);
        dump.env("XDG_RUNTIME_DIR", &recorder.runtime);
        let answer = Answer::of(dump.output().unwrap()).expect(2);
        let why = format!("otelctx: process {pid} is no recorder of this user that keeps samples");
        assert!(answer.stderr.starts_with(&why), "{answer:?}");
    };
    ask();
    // Nor if the directory were open to all users.
    let sockets = format!("{}/otelctx", recorder.runtime);
    for path in [&sockets, &format!("{sockets}/record-{pid}.sock")] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    ask();
    let ended = recorder.end().expect(0).json();
    assert_eq!(ended["kept"]["written"], json!({"end": 1}));
}

#[test]
fn options_that_do_not_fit_are_refused() {
    for (arguments, why) in [
        (
            &["--keep", "60s", "--trigger", "http.route=/a and seen = 5s"][..],
            "column 24: expected > and a time, such as seen > 500ms\n    http.route=/a and seen = 5s\n                           ^",
        ),
        (&["--keep", "2h"], "expected a time from 1s to 1h"),
        (&["--keep", "0.5s"], "expected a time from 1s to 1h"),
        (&["--trigger", "seen > 1s"], "--keep <SECONDS>"),
        (&["--max-files", "3"], "--keep <SECONDS>"),
        (&["--keep", "60s", "--max-files", "0"], "1..=1000"),
        (&["--keep", "60s", "--time", "+1s.."], "cannot be used with"),
        (
            &["--keep", "60s", "-o", "-", "--format", "otlp"],
            "cannot be used with",
        ),
    ] {
        let answer = otelctx(&[&["record", "-d", "60", "-p", "1"], arguments].concat()).expect(2);
        assert!(answer.stderr.contains(why), "{why}: {answer:?}");
    }
    for arguments in [
        &["dump", "--recorder", "7"][..],
        &["dump", "--last", "1s", "7"],
        &["dump", "--last", "1s", "--stacks"],
    ] {
        Answer::of(command(arguments).output().unwrap()).expect(2);
    }
}

/// What has died by then: its files were opened while it ran.
#[test]
fn functions_of_a_program_that_is_gone_have_their_names() {
    let scratch = Scratch::new("keep-gone");
    // A build ID that no other test's processes have.
    let flags = ["-DPROGRAM", "-DNAME=gone_by_then", "-DMILLISECONDS=600000"];
    let Some(program) = Compiler::gcc().program(&["work.c"], &flags) else {
        return;
    };
    let path = scratch.path("program");
    otelctx_fixtures::copy_program(program, &path);
    let mut working = Command::new(&path).spawn().unwrap();
    let (pid, file) = (working.id().to_string(), scratch.path("a.otlp"));
    let arguments = ["-p", &pid, "--keep", "60s", "-o", &file];
    let mut recorder = Recorder::start(&scratch, &arguments);
    recorder.written_with_samples();
    fs::remove_file(&path).unwrap();
    // The recording ends with its process.
    working.kill().unwrap();
    working.wait().unwrap();
    let ended = recorder.ended().expect(0).json();
    let report = otelctx(&["report", "--json", &files(&ended)[0]]).expect(0);
    let report = report.json();
    let functions = report["by_function"].as_array().unwrap().iter();
    let names: Vec<_> = functions.map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"gone_by_then"), "{report:#}");
    assert_eq!(ended["kept"]["written"]["end"], 1);
}
