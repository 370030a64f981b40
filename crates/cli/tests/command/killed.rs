//! `record`, killed at any moment: nothing of it is left in the kernel, in the target or in a folder.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, geteuid, mkfifo};

use crate::run::{Scratch, command, deny, otelctx};
use crate::target::Target;

/// Whatever has to come has come by then, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often each moment is tried.
const ROUNDS: u32 = 4;

/// When it is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Some time after it was started.
    Starting,
    /// Some time after it began to look.
    Looking,
    /// While it has a file open that it writes.
    Writing,
}

/// What the kernel holds for a process: a file's line in `/proc/PID/fdinfo`, and the command of
/// bpf(2) that tells the next id (<linux/bpf.h>).
const KINDS: [(&str, libc::c_long); 3] = [("prog_id:", 11), ("map_id:", 12), ("link_id:", 31)];

/// The programs, maps and links that a process holds: command and id.
fn held(pid: u32) -> Vec<(libc::c_long, u32)> {
    let mut held = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .into_iter()
        .flatten()
    {
        // It opens and closes files meanwhile.
        let text = entry.and_then(|entry| fs::read_to_string(entry.path()));
        for line in text.unwrap_or_default().lines() {
            for (name, opens) in KINDS {
                let id = line.strip_prefix(name).map(|id| id.trim().parse().unwrap());
                held.extend(id.map(|id| (opens, id)));
            }
        }
    }
    held
}

/// Whether the kernel still has it.
///
/// It is not opened for that: an array of programs whose last descriptor is closed a second time, before
/// the kernel has come to clear it, stays for ever (kernel/bpf/arraymap.c, prog_array_map_clear).
fn exists((tells_next, id): (libc::c_long, u32)) -> bool {
    // union bpf_attr: where to begin, the answer, and what is zero here.
    let mut attributes = [id - 1, 0, 0, 0];
    // SAFETY: the structure lives through the call and has the size that is stated.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            tells_next,
            attributes.as_mut_ptr(),
            size_of_val(&attributes),
        )
    };
    if result == 0 {
        return attributes[1] == id;
    }
    assert_eq!(Errno::last(), Errno::ENOENT, "{id}");
    false
}

/// Waits until this is so. False if it was not.
fn comes_true(mut is_it: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_it() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

fn status(target: &Target) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    let status = |task: std::io::Result<fs::DirEntry>| task.unwrap().path().join("status");
    tasks
        .map(|task| fs::read_to_string(status(task)).unwrap())
        .collect()
}

fn is_traced(status: &str) -> bool {
    !status.contains("TracerPid:\t0\n")
}

/// Neither by a tracer nor by a signal.
fn is_stopped(status: &str) -> bool {
    status.contains("State:\tt") || status.contains("State:\tT")
}

/// Whether a process has a file open in this folder.
fn has_open(pid: u32, folder: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links.any(|link| link.starts_with(folder))
}

/// Waits for the moment. Nothing more is to be waited for once the recorder has ended by itself.
fn wait_for(moment: Moment, recorder: &mut Child, target: &Target, folder: &Path, by_ptrace: bool) {
    let pid = recorder.id();
    let some_time = |most: u64| std::thread::sleep(Duration::from_micros(fastrand::u64(..most)));
    let mut ended = || recorder.try_wait().unwrap().is_some();
    match moment {
        Moment::Starting => some_time(400_000),
        Moment::Looking => {
            let looks = || {
                if by_ptrace {
                    status(target).iter().any(|status| is_traced(status))
                } else {
                    !held(pid).is_empty()
                }
            };
            assert!(comes_true(|| looks() || ended()));
            some_time(100_000);
        }
        Moment::Writing => {
            assert!(comes_true(|| has_open(pid, folder) || ended()));
            some_time(2000);
        }
    }
}

/// Kills a recorder at a moment, and looks what is left.
fn round(target: &Target, moment: Moment, by_ptrace: bool) -> (usize, bool) {
    let scratch = Scratch::new(&format!("killed-{by_ptrace}-{moment:?}"));
    let temporary = Scratch::new(&format!("killed-{by_ptrace}-{moment:?}-temporary"));
    let path = |name: &str| scratch.path(name);
    let pid = target.pid().to_string();
    let mut recording = command(&["record", "-p", &pid, "-F", "999"]);
    recording.env("TMPDIR", temporary.folder());
    for name in ["a.otlp", "a.json.gz", "a.svg"] {
        recording.args(["-o", &path(name)]);
    }
    if by_ptrace {
        recording.arg("--ptrace");
    }
    let seconds = if matches!(moment, Moment::Writing) {
        "0.2"
    } else {
        "60"
    };
    recording.args(["-d", seconds]);
    let mut recorder = recording
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(moment, &mut recorder, target, scratch.folder(), by_ptrace);
    // It stays as it is at this moment: what is listed is what it has when it is killed.
    let process = Pid::from_raw(recorder.id() as i32);
    // One that has ended by itself may have been waited for.
    if recorder.try_wait().unwrap().is_none() {
        kill(process, Signal::SIGSTOP).unwrap();
    }
    let held = held(recorder.id());
    let traced = status(target).iter().any(|status| is_traced(status));
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    // The kernel frees what nobody holds any more a little later.
    let left = || held.iter().filter(|it| exists(**it)).collect::<Vec<_>>();
    let gone = comes_true(|| left().is_empty());
    assert!(gone, "{moment:?}: of {held:?}, {:?} is left", left());
    let goes_on = || {
        let status = status(target);
        !status.iter().any(|it| is_traced(it) || is_stopped(it))
    };
    assert!(comes_true(goes_on), "{moment:?}: {:?}", status(target));
    assert_eq!(temporary.names(), [""; 0], "{moment:?}");
    for name in scratch.names() {
        assert!(["a.otlp", "a.json.gz", "a.svg"].contains(&&*name), "{name}");
        if name == "a.otlp" {
            otelctx(&["report", &path(&name)]).expect(0);
        }
    }
    (held.len(), traced)
}

fn rounds(by_ptrace: bool) {
    let target = Target::start("busy");
    let (mut held, mut traced) = (0, 0);
    for _ in 0..ROUNDS {
        for moment in [Moment::Starting, Moment::Looking, Moment::Writing] {
            let round = round(&target, moment, by_ptrace);
            held += round.0;
            traced += usize::from(round.1);
        }
    }
    eprintln!("{held} programs, maps and links went; {traced} times a thread was traced");
    // Or nothing was looked for at all.
    assert!(!by_ptrace || held == 0);
}

#[test]
fn a_recorder_by_ebpf_leaves_nothing() {
    if geteuid().is_root() {
        rounds(false);
    } else {
        eprintln!("skipped: needs root");
    }
}

#[test]
fn a_recorder_by_ptrace_leaves_nothing() {
    rounds(true);
}

/// Killed between two files: the first is whole, the second is not there.
#[test]
fn a_recorder_that_waits_for_a_reader_leaves_whole_files() {
    let target = Target::start("busy");
    let scratch = Scratch::new("killed-waiting");
    let (first, pipe, last) = (
        scratch.path("a.otlp"),
        scratch.path("b.svg"),
        scratch.path("c.svg"),
    );
    mkfifo(&*pipe, Mode::S_IRWXU).unwrap();
    let pid = target.pid().to_string();
    let files = ["-o", &first, "-o", &pipe, "-o", &last];
    let mut recording = command(&["record", "-p", &pid, "-d", "0.2"]);
    let mut recorder = recording.args(files).stdout(Stdio::null()).spawn().unwrap();
    assert!(comes_true(|| Path::new(&first).exists()));
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert_eq!(scratch.names(), ["a.otlp", "b.svg"]);
    otelctx(&["report", &first]).expect(0);
}

/// Processes in whose arguments this is said.
fn mentioning(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.contains(word) {
            found.push(words);
        }
    }
    found
}

/// Its program does not begin then, and nothing waits for ever.
#[test]
fn a_recorder_that_may_not_look_takes_its_program_along() {
    let scratch = Scratch::new("killed-refused-command");
    let (path, ran) = (scratch.path("a.otlp"), scratch.path("ran"));
    let arguments = ["record", "--ptrace", "-o", &path, "--", "touch", &ran];
    let mut recording = command(&arguments);
    deny(&mut recording, libc::SYS_ptrace, libc::EPERM);
    let output = recording.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        comes_true(|| mentioning(&ran).is_empty()),
        "{:?}",
        mentioning(&ran)
    );
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn a_recorder_that_starts_a_program_leaves_nothing() {
    for _ in 0..2 * ROUNDS {
        let scratch = Scratch::new("killed-command");
        let (path, ran) = (scratch.path("a.otlp"), scratch.path("ran"));
        let mut recording = command(&["record", "--ptrace", "-o", &path, "--", "touch", &ran]);
        let mut recorder = recording
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(fastrand::u64(..40_000)));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        assert!(
            comes_true(|| mentioning(&ran).is_empty()),
            "{:?}",
            mentioning(&ran)
        );
        let whole = |name: &String| ["a.otlp", "ran"].contains(&&**name);
        assert!(scratch.names().iter().all(whole), "{:?}", scratch.names());
    }
}
