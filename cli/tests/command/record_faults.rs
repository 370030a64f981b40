//! Wrong input of `otelctx record` and `otelctx report`: a message that says so, status 2, and no
//! incomplete file.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::libc;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::run::{Answer, Scratch, command, deny_nameless_files, given_time, otelctx};
use crate::target::Target;
use crate::unprivileged::Copy;

/// A program that works, and one that sleeps, until its input ends.
const SLEEPER: &str = "cat";

/// A process that ends with this.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn start() -> Self {
        let mut sleeper = Command::new(SLEEPER);
        Self(sleeper.stdin(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn assert_refused(answer: Answer, why: &str) {
    let answer = answer.expect(2);
    assert!(answer.stderr.contains(why), "{why}: {answer:?}");
    assert!(answer.stderr.lines().count() <= 8, "{answer:?}");
    assert_eq!(answer.stdout, "");
}

#[test]
fn processes_that_can_not_be_recorded_are_refused_at_once() {
    let scratch = Scratch::new("record-targets");
    let good = scratch.path("a.otlp");
    let mut gone = Sleeper::start();
    let ended = gone.pid();
    gone.0.kill().unwrap();
    gone.0.wait().unwrap();
    let sleeper = Sleeper::start();
    for (pid, why) in [
        ("2147483647", "process 2147483647 does not exist"),
        (&ended, "does not exist"),
        // kthreadd
        ("2", "kernel"),
        ("0", "from 1 to 2147483647"),
        ("-1", "unexpected argument"),
        ("99999999999", "from 1 to 2147483647"),
        ("shop", "is a number"),
        // One of several spoils it: nobody would notice that it is missing.
        (&format!("{},{ended}", sleeper.pid()), "does not exist"),
    ] {
        let answer = otelctx(&["record", "-d", "60", "-o", &good, "-p", pid]);
        assert_refused(answer, why);
    }
    // Itself: the shell's id is the command's.
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" record -d 60 -o \"$1\" -p $$"]);
    shell.args([env!("CARGO_BIN_EXE_otelctx"), &good]);
    assert_refused(
        Answer::of(shell.output().unwrap()),
        "is this otelctx process",
    );
    if geteuid().is_root() {
        let copy = Copy::new("foreign");
        let file = scratch.path("b.otlp");
        let answer = copy.run(&["record", "-d", "60", "-o", &file, "-p", &sleeper.pid()]);
        let answer = answer.expect(2);
        assert!(
            answer.stderr.starts_with("otelctx: not permitted to "),
            "{answer:?}"
        );
        assert!(answer.stderr.contains("CAP_SYS_PTRACE"), "{answer:?}");
    }
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn a_threads_id_stands_for_its_process() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-thread");
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let tid = ids.find(|tid| *tid != pid).unwrap();
    let said = format!("{tid} is a thread of process {pid}; the whole process is sampled");
    let name = given_time(|seconds| {
        let answer = otelctx(&["record", "-d", seconds, "-o", &path, "-p", &tid]).expect(0);
        assert!(answer.stderr.contains(&said), "{answer:?}");
        let report = otelctx(&["report", "--json", &path]).expect(0).json();
        let name = report["by_process"][0]["name"].as_str();
        name.map(str::to_owned).ok_or(answer)
    });
    assert_eq!(name, format!("busy shop {pid}"));
}

#[test]
fn outputs_that_can_not_be_written_are_refused_at_once() {
    let sleeper = Sleeper::start();
    let scratch = Scratch::new("record-outputs");
    let good = scratch.path("a.otlp");
    let directory = scratch.path("directory.svg");
    fs::create_dir(&directory).unwrap();
    fs::write(scratch.path("file"), "").unwrap();
    for (path, why) in [
        (scratch.path("a.txt"), "unknown file extension"),
        (scratch.path("otlp"), "unknown file extension"),
        (scratch.path("none/a.svg"), "No such file or directory"),
        (scratch.path("file/a.svg"), "Not a directory"),
        (directory, "Is a directory"),
        (good.clone(), "output file given twice"),
        ("/proc/a.svg".to_owned(), "/proc/a.svg: cannot be written: "),
    ] {
        // Also if another one is good.
        let arguments = [
            "record",
            "-d",
            "60",
            "-p",
            &sleeper.pid(),
            "-o",
            &good,
            "-o",
            &path,
        ];
        assert_refused(otelctx(&arguments), why);
    }
    let copy = Copy::new("read-only");
    let read_only = scratch.path("read-only");
    fs::create_dir(&read_only).unwrap();
    fs::set_permissions(&read_only, PermissionsExt::from_mode(0o555)).unwrap();
    let path = format!("{read_only}/a.otlp");
    let answer = copy.run(&["record", "-d", "60", "-o", &path, "--", "true"]);
    assert_refused(answer, "Permission denied");
    assert_eq!(scratch.names(), ["directory.svg", "file", "read-only"]);
}

#[test]
fn numbers_and_choices_that_make_no_sense_are_refused() {
    let sleeper = Sleeper::start();
    let scratch = Scratch::new("record-numbers");
    let good = scratch.path("a.otlp");
    for (option, value, why) in [
        ("-d", "0", "a number of seconds from 0.1 to 86400"),
        ("-d", "1e9", "a number of seconds from 0.1 to 86400"),
        ("-F", "0", "0 is not in 1..=20000"),
        ("-F", "1000000", "1000000 is not in 1..=20000"),
        ("--trace", "4bf92f35", "has 32 hexadecimal digits, not 8"),
        ("--trace", "xyz", "consists of 32 hexadecimal digits"),
        ("--filter", "=shop", "such as http.route=/cart"),
    ] {
        let arguments = ["record", "-o", &good, "-p", &sleeper.pid(), option, value];
        let answer = otelctx(&arguments).expect(2);
        assert!(answer.stderr.contains(why), "{why}: {answer:?}");
    }
    assert_eq!(scratch.names(), [""; 0]);
}

/// A small file system. Unmounted when dropped.
struct Full(String);

impl Full {
    fn mount(scratch: &Scratch, size: &str) -> Option<Self> {
        let path = scratch.path("full");
        fs::create_dir(&path).unwrap();
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let options = format!("size={size},mode=777");
        let options = Some(&options[..]);
        if let Err(error) = mount(Some("otelctx-test"), &*path, Some("tmpfs"), flags, options) {
            eprintln!("skipped: no file system can be mounted: {error}");
            return None;
        }
        Some(Self(path))
    }

    /// 64 KiB, with nothing left.
    fn new(scratch: &Scratch) -> Option<Self> {
        let full = Self::mount(scratch, "64k")?;
        let mut filler = fs::File::create(full.path("filler")).unwrap();
        while filler.write_all(&[1; 512]).is_ok() {}
        Some(full)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    fn names(&self) -> Vec<String> {
        let name =
            |it: std::io::Result<fs::DirEntry>| it.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(&self.0).unwrap().map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = umount(&*self.0);
    }
}

/// The disk has files without a name, or has none.
#[test]
fn a_full_disk_leaves_no_part_of_a_file_and_the_other_files_are_written() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("record-full");
    let Some(full) = Full::new(&scratch) else {
        return;
    };
    for nameless in [true, false] {
        let good = scratch.path("good.otlp");
        let mut record = command(&[
            "record",
            "-d",
            "0.5",
            "-p",
            &pid,
            "-o",
            &full.path("a.svg"),
            "-o",
            &good,
        ]);
        if !nameless {
            deny_nameless_files(&mut record);
        }
        let answer = Answer::of(record.output().unwrap()).expect(2);
        let line = format!(
            "otelctx: {}: cannot be written: No space left on device",
            full.path("a.svg")
        );
        assert!(answer.stderr.contains(&line), "{answer:?}");
        assert!(answer.stdout.contains("good.otlp: "), "{answer:?}");
        assert!(!answer.stdout.contains("a.svg"), "{answer:?}");
        assert_eq!(full.names(), ["filler"]);
        otelctx(&["report", &good]).expect(0);
        fs::remove_file(&good).unwrap();
    }
    assert_eq!(scratch.names(), ["full"]);
}

/// Where no other file has the recording, one in another directory keeps it.
#[test]
fn a_recording_that_a_full_disk_has_no_room_for_is_kept_elsewhere() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("record-unsent");
    let Some(full) = Full::new(&scratch) else {
        return;
    };
    let there = scratch.path("temporary");
    fs::create_dir(&there).unwrap();
    // The output, where temporary files are to go, and the file that has the recording.
    for (name, temporary, kept) in [
        ("a.otlp", &*there, ".otlp"),
        ("a.svg", &there, ".svg"),
        ("a.pb.gz", &there, ".pb.gz"),
        ("a.json.gz", &there, ".json.gz"),
        ("a.folded", &there, ".folded"),
        // It is full as well, or missing.
        ("a.otlp", &full.0, ".otlp"),
        ("a.otlp", "/no/such/directory", ".otlp"),
    ] {
        let path = full.path(name);
        let answer = given_time(|seconds| {
            let mut record = command(&["record", "-d", seconds, "-p", &pid, "-o", &path]);
            record.env("TMPDIR", temporary);
            let answer = Answer::of(record.output().unwrap()).expect(2);
            match answer.stdout.starts_with("0 samples ") {
                true => Err(answer),
                false => Ok(answer),
            }
        });
        let said = format!("otelctx: {path}: cannot be written: No space left on device");
        assert!(answer.stderr.contains(&said), "{answer:?}");
        let mut words = answer.stdout.split_whitespace();
        let file = words
            .find(|it| it.contains("/unsent-"))
            .expect(&answer.stdout);
        let file = file.trim_end_matches(':');
        assert!(file.ends_with(kept), "{file}");
        let is_temporary = file.starts_with(temporary);
        assert_eq!(is_temporary, temporary == there, "{file}");
        if kept == ".otlp" {
            otelctx(&["report", file]).expect(0);
        }
        assert!(fs::metadata(file).unwrap().len() > 0);
        fs::remove_file(file).unwrap();
        assert_eq!(full.names(), ["filler"]);
    }
    assert_eq!(fs::read_dir(there).unwrap().count(), 0);
}

/// The spool is beside the first output, and gone when the files are written.
#[test]
fn a_disk_that_fills_up_ends_the_recording_and_nothing_is_lost() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("record-fills");
    let Some(disk) = Full::mount(&scratch, "1m") else {
        return;
    };
    let (folded, otlp) = (disk.path("a.folded"), scratch.path("b.otlp"));
    let arguments = ["record", "--json", "-F", "20000", "-d", "600", "-p", &pid];
    let answer = otelctx(&[&arguments[..], &["-o", &folded, "-o", &otlp]].concat()).expect(2);
    let said =
        "the recording ended early, because samples cannot be stored: No space left on device";
    assert!(answer.stderr.contains(said), "{answer:?}");
    let json: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    let samples = json["samples"].as_u64().unwrap();
    assert!(json["duration_ns"].as_u64().unwrap() < 600_000_000_000);
    // A sample takes 39 bytes there, and less than 256 KiB of them were not written yet.
    assert!(samples * 39 > (1 << 20) - (256 << 10), "{samples}");
    assert_eq!(json["files"].as_array().unwrap().len(), 2, "{json}");
    let folded = fs::read_to_string(folded).unwrap();
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(folded.lines().map(count).sum::<u64>(), samples);
    let report = otelctx(&["report", "--json", &otlp]).expect(0);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["samples"], samples, "{report}");
    assert_eq!(disk.names(), ["a.folded"]);
}

#[test]
fn a_file_system_without_nameless_files_gets_whole_ones_too() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("record-named");
    let path = scratch.path("a.otlp");
    // The second time there is one to be replaced.
    for _ in 0..2 {
        let mut record = command(&["record", "-d", "0.3", "-p", &pid, "-o", &path]);
        deny_nameless_files(&mut record);
        Answer::of(record.output().unwrap()).expect(0);
        assert_eq!(scratch.names(), ["a.otlp"]);
        otelctx(&["report", &path]).expect(0);
    }
    // Nothing is made before there is something to write.
    let mut record = command(&["record", "-p", &pid, "-o", &scratch.path("b.otlp")]);
    deny_nameless_files(&mut record);
    let mut child = record.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(scratch.names(), ["a.otlp"]);
}

#[test]
fn a_target_that_ends_is_recorded_until_then() {
    let scratch = Scratch::new("record-ends");
    let path = scratch.path("a.otlp");
    let answer = given_time(|seconds| {
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exec sleep $0";
        let mut worker = Command::new("sh")
            .args(["-c", script, seconds])
            .spawn()
            .unwrap();
        let pid = worker.id().to_string();
        let waiting = std::thread::spawn(move || worker.wait().unwrap());
        let answer = otelctx(&["record", "-d", "600", "-o", &path, "-p", &pid]);
        waiting.join().unwrap();
        // On a busy machine it may end before it is sampled.
        match answer.stderr.contains("does not exist, or has exited") {
            true => Err(answer),
            false => Ok(answer),
        }
    });
    let answer = answer.expect(0);
    assert!(answer.stdout.contains("a.otlp: "), "{answer:?}");
    otelctx(&["report", &path]).expect(0);
}

#[test]
fn an_empty_recording_says_why() {
    let scratch = Scratch::new("record-empty");
    let (path, otlp) = (scratch.path("a.svg"), scratch.path("a.otlp"));
    let sleeper = Sleeper::start();
    let pid = sleeper.pid();
    let arguments = ["record", "-d", "0.3", "-o", &path, "-o", &otlp, "-p", &pid];
    let answer = otelctx(&arguments).expect(0);
    assert!(
        answer.stdout.starts_with("0 samples of 0 processes in "),
        "{answer:?}"
    );
    for said in [
        "no samples: no thread was running on a CPU when a sample was taken, every 10.1 ms",
        "record longer, or sample more often with -F 999",
        &format!("dump {pid}"),
    ] {
        assert!(answer.stderr.contains(said), "{said}: {answer:?}");
    }
    assert!(fs::read_to_string(&path).unwrap().contains("No samples."));
    let report = otelctx(&["report", &otlp]).expect(0).stdout;
    assert_eq!(report, "the recording has no samples\n");
    assert!(!answer.stderr.contains("former content"), "{answer:?}");
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let filter = ["--filter", "service.name=busy shop"];
    let other = ["--filter", "service.name=other"];
    let trace = ["--trace", "4BF92F3577B34DA6A3CE929D0E0E4737"];
    for (chosen, said) in [
        (&other[..], "sampled values of service.name: 'busy shop'"),
        (
            &["--filter", "no.such=thing"],
            "no sampled process or context has the attribute no.such",
        ),
        (&trace, "none with that trace"),
        // All have to hold.
        (&[filter, other].concat(), "no sample matches --filter"),
        (
            &[filter, trace].concat(),
            "no sample has that trace and a process that matches --filter",
        ),
    ] {
        given_time(|seconds| {
            let all = ["record", "-d", seconds, "-o", &path, "-p", &pid];
            let answer = otelctx(&[&all, chosen].concat()).expect(0);
            if answer.stderr.contains("no samples: ") {
                return Err(answer);
            }
            assert!(answer.stderr.contains(said), "{said}: {answer:?}");
            assert!(answer.stderr.contains("was kept"), "{answer:?}");
            Ok(())
        });
    }
    // Not publishing and having nothing attached are distinguished.
    let loops = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    let answer = otelctx(&["record", "-o", &path, "--", "sh", "-c", loops]).expect(0);
    assert!(
        answer
            .stderr
            .contains("no sampled process publishes readable thread contexts"),
        "{answer:?}"
    );
}

/// A recording that is interrupted at once is empty.
#[test]
fn an_empty_recording_does_not_replace_files() {
    let scratch = Scratch::new("record-kept");
    let [otlp, svg, new] = ["a.otlp", "a.svg", "b.svg"].map(|name| scratch.path(name));
    fs::write(&otlp, "before").unwrap();
    fs::write(&svg, "before").unwrap();
    let (sleeper, target) = (Sleeper::start(), Target::start("busy"));
    let record = |seconds: &str, pid: &str, more: &[&str]| {
        let all = ["record", "-d", seconds, "-p", pid, "-o", &otlp, "-o", &svg];
        otelctx(&[&all, more].concat()).expect(0)
    };
    let line =
        format!("otelctx: {otlp}, {svg} keep their former content: the recording has no samples\n");
    let busy = target.pid().to_string();
    let none = ["--filter", "service.name=none"];
    for (pid, more) in [(sleeper.pid(), &["-o", &new][..]), (busy.clone(), &none)] {
        let answer = record("0.3", &pid, more);
        assert!(answer.stderr.ends_with(&line), "{answer:?}");
        assert!(!answer.stdout.contains("a.otlp"), "{answer:?}");
        for path in [&otlp, &svg] {
            assert_eq!(fs::read_to_string(path).unwrap(), "before", "{pid}");
        }
    }
    assert!(fs::read_to_string(&new).unwrap().contains("No samples."));
    given_time(|seconds| {
        let answer = record(seconds, &busy, &[]);
        if answer.stderr.contains(&line) {
            return Err(answer);
        }
        assert!(!answer.stderr.contains("former content"), "{answer:?}");
        otelctx(&["report", &otlp]).expect(0);
        assert_ne!(fs::read_to_string(&svg).unwrap(), "before");
        Ok(())
    });
}

#[test]
fn a_command_has_its_own_exit_status() {
    let scratch = Scratch::new("record-status");
    let path = scratch.path("a.otlp");
    let record = |program: &str| otelctx(&["record", "-o", &path, "--", "sh", "-c", program]);
    for (program, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -KILL $$", 128 + 9),
        // What goes on in a process that it leaves behind is not waited for.
        ("sleep 0.2 & exit 3", 3),
    ] {
        let answer = record(program).expect(status);
        // Standard output is the command's alone.
        assert_eq!(answer.stdout, "");
        assert!(answer.stderr.contains("a.otlp: "), "{answer:?}");
        otelctx(&["report", &path]).expect(0);
        fs::remove_file(&path).unwrap();
    }
    // Also where the ends of children are ignored.
    let ignoring = "trap '' CHLD; exec \"$0\" record -o \"$1\" -- sh -c 'exit 7'";
    let mut shell = Command::new("sh");
    shell.args(["-c", ignoring, env!("CARGO_BIN_EXE_otelctx"), &path]);
    assert_eq!(shell.output().unwrap().status.code(), Some(7));
    fs::remove_file(&path).unwrap();
    for program in ["/no/such/program", "/", "/etc/passwd"] {
        let answer = otelctx(&["record", "-o", &path, "--", program]);
        assert_refused(answer, &format!("otelctx: cannot start {program}: "));
    }
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn a_signal_is_passed_on_to_the_command_and_the_recording_is_written() {
    let scratch = Scratch::new("record-signal");
    for (signal, name, status) in [
        (Signal::SIGTERM, "TERM", 5),
        (Signal::SIGINT, "INT", 6),
        (Signal::SIGHUP, "HUP", 7),
    ] {
        let path = scratch.path(&format!("{name}.otlp"));
        let ready = scratch.path(name);
        let program = format!("trap 'exit {status}' {name}; : > {ready}; while :; do :; done");
        let mut record = command(&["record", "-o", &path, "--", "sh", "-c", &program]);
        let record = record.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = record.process_group(0).spawn().unwrap();
        let start = Instant::now();
        while fs::metadata(&ready).is_err() && start.elapsed() < otelctx_fixtures::HANG_TIMEOUT {
            std::thread::sleep(Duration::from_millis(10));
        }
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        Answer::of(child.wait_with_output().unwrap()).expect(status);
        otelctx(&["report", &path]).expect(0);
    }
    // When its time is over, the command's is, too.
    let path = scratch.path("time.otlp");
    let program = "trap 'exit 9' TERM; while :; do :; done";
    otelctx(&[
        "record", "-d", "0.5", "-o", &path, "--", "sh", "-c", program,
    ])
    .expect(9);
}

#[test]
fn a_command_that_forks_is_recorded_with_its_children() {
    let scratch = Scratch::new("record-forks");
    let path = scratch.path("a.otlp");
    let loops = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    let program = format!("({loops}) & ({loops}) & wait");
    let arguments = [
        "record", "-F", "999", "-o", &path, "--", "sh", "-c", &program,
    ];
    otelctx(&arguments).expect(0);
    let report = otelctx(&["report", "--json", &path]).expect(0).json();
    assert!(
        report["by_process"].as_array().unwrap().len() >= 2,
        "{report:#}"
    );
}

#[test]
fn closed_outputs_do_not_keep_the_recording_from_being_written() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-closed");
    let path = scratch.path("a.otlp");
    let mut record = command(&[
        "record",
        "-d",
        "0.3",
        "-o",
        &path,
        "-p",
        &target.pid().to_string(),
    ]);
    let close = || {
        // SAFETY: a system call; nobody uses the descriptors between fork and exec.
        unsafe { (libc::close(1), libc::close(2)) };
        Ok(())
    };
    // SAFETY: see above.
    unsafe { record.pre_exec(close) };
    assert_eq!(record.status().unwrap().code(), Some(0));
    otelctx(&["report", &path]).expect(0);
}

#[test]
fn what_is_no_profile_is_refused_by_report() {
    let target = Target::start("busy");
    let scratch = Scratch::new("report-garbage");
    let pid = target.pid().to_string();
    let (otlp, svg) = (scratch.path("a.otlp"), scratch.path("a.svg"));
    otelctx(&["record", "-d", "0.3", "-p", &pid, "-o", &otlp, "-o", &svg]).expect(0);
    let refused = |path: &str, why: &str| assert_refused(otelctx(&["report", path]), why);
    refused(
        &svg,
        "a.svg: not a profile that can be read: it is an SVG image",
    );
    refused(&scratch.path("none.otlp"), "No such file or directory");
    refused(&scratch.path(""), "Is a directory");
    let noise = scratch.path("noise");
    fs::write(
        &noise,
        (0..10_000)
            .map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect::<Vec<_>>(),
    )
    .unwrap();
    refused(&noise, "noise: not a complete OTLP profile: ");
    refused("/dev/null", "it is empty");
    // More of it, forever.
    refused(
        "/dev/zero",
        "/dev/zero: too large: it has more than 1024 MiB; record for a shorter time",
    );
    // Of a file it is known before.
    let large = scratch.path("large.otlp");
    let file = fs::File::create(&large).unwrap();
    file.set_len((1 << 30) + 1).unwrap();
    refused(&large, "large.otlp: too large: it has more than 1024 MiB");
    file.set_len(1 << 20).unwrap();
    refused(&large, "large.otlp: not a complete OTLP profile");
    let link = scratch.path("link.otlp");
    symlink(&otlp, &link).unwrap();
    otelctx(&["report", &link]).expect(0);
    // From standard input.
    let text = otelctx(&["report", &otlp]).expect(0).stdout;
    let mut from_pipe = command(&["report", "-"]);
    from_pipe.stdin(fs::File::open(&otlp).unwrap());
    assert_eq!(
        Answer::of(from_pipe.output().unwrap()).expect(0).stdout,
        text
    );
    assert_refused(
        otelctx(&["report", "-"]),
        "standard input: not a complete OTLP profile: it is empty",
    );
}

/// As in the background of a shell's script, whose commands ignore SIGINT.
#[test]
fn a_recorder_that_ignores_sigint_says_so() {
    let sleeper = Sleeper::start();
    let scratch = Scratch::new("record-ignored");
    let path = scratch.path("a.otlp");
    let pid = sleeper.pid();
    for arguments in [
        &["record", "-d", "0.1", "-p", &pid, "-o", &path][..],
        &["top", "-p", &pid, "--iterations", "1", "-i", "0.1"],
    ] {
        let said = "otelctx: SIGINT is ignored here: end with SIGTERM\n";
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$0\" \"$@\" & wait", env!("CARGO_BIN_EXE_otelctx")]);
        let answer = Answer::of(shell.args(arguments).output().unwrap());
        assert!(answer.stderr.starts_with(said), "{answer:?}");
        let answer = otelctx(arguments).expect(0);
        assert!(!answer.stderr.contains("SIGINT"), "{answer:?}");
    }
}

#[test]
fn a_process_that_was_stopped_is_the_reason_for_an_empty_recording() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("record-stopped");
    let path = scratch.path("a.folded");
    kill(Pid::from_raw(target.pid()), Signal::SIGSTOP).unwrap();
    let stat = format!("/proc/{pid}/stat");
    while !fs::read_to_string(&stat).unwrap().contains(") T ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    for method in [&[][..], &["--ptrace"]] {
        let record = ["record", "-d", "0.3", "-p", &pid, "-o", &path];
        let answer = otelctx(&[&record[..], method].concat()).expect(0);
        let said = format!(
            "otelctx: no samples: process {pid} is stopped by a signal\n  kill -CONT {pid}  resumes it\n"
        );
        assert!(answer.stderr.ends_with(&said), "{answer:?}");
        // There is nothing to load.
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(answer.stdout.lines().count(), 1, "{answer:?}");
    }
}
