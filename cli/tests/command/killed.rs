//! `record`, killed at any moment: nothing of it is left in the kernel, in the target or in a folder, but
//! where docs/profiles.md says so and the next run removes it; and no process.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, geteuid, mkfifo};

use crate::run::{Scratch, command, deny, deny_nameless_files, otelctx};
use crate::target::Target;

/// Whatever has to come has come by then, on the slowest machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// Number of rounds for each moment: with and without files to replace, with and without nameless
/// ones.
const ROUNDS: u32 = 4;
/// The files that are written, in this order.
const NAMES: [&str; 3] = ["a.otlp", "a.json.gz", "a.svg"];

/// The moment at which the recorder is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Some time after it was started.
    Starting,
    /// Some time after it started to sample.
    Sampling,
    /// A child of it decodes symbols.
    Naming,
    /// It has a file open that it writes.
    Writing,
}

/// Kinds of objects that the kernel holds: a file's line in `/proc/PID/fdinfo`, and the command of
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

/// Returns whether the kernel still has the object.
///
/// It is not opened for that: an array of programs whose last descriptor is closed a second time, before
/// the kernel has come to clear it, stays forever (kernel/bpf/arraymap.c, prog_array_map_clear).
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
        if start.elapsed() > TIMEOUT {
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

/// Returns whether a process has a file open in this folder.
fn has_open(pid: u32, folder: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links.any(|link| link.starts_with(folder))
}

/// Fields of a process, from proc_pid_stat(5).
struct Stat {
    /// Field 3.
    state: char,
    /// Field 4.
    parent: u32,
    /// Clock ticks on a processor, fields 14 and 15.
    ticks: u64,
    /// Field 22.
    start: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            state: fields[0].chars().next()?,
            parent: number(4)? as u32,
            ticks: number(14)? + number(15)?,
            start: number(22)?,
        })
    }
}

/// The children of a process that are at work: id and start. One that has just begun is none yet, as it
/// may not even have asked to be ended with its parent.
fn children(pid: u32) -> Vec<(u32, u64)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|child| match Stat::read(child)? {
        it if it.parent == pid && it.ticks > 1 => Some((child, it.start)),
        _ => None,
    })
    .collect()
}

/// Returns whether this process is running. One that has ended and was not waited for is not.
fn is_there((pid, start): (u32, u64)) -> bool {
    Stat::read(pid).is_some_and(|it| it.start == start && it.state != 'Z')
}

/// Waits for the moment, and tells whether it came. Nothing more is to be waited for once the recorder has
/// ended by itself.
fn wait_for(
    moment: Moment,
    recorder: &mut Child,
    target: &Target,
    folder: &Path,
    by_ptrace: bool,
) -> bool {
    let pid = recorder.id();
    let mut ended = || recorder.try_wait().unwrap().is_some();
    let (is_it, some_time): (&dyn Fn() -> bool, _) = match moment {
        Moment::Starting => (&|| true, 400_000),
        Moment::Sampling if by_ptrace => (
            &|| status(target).iter().any(|status| is_traced(status)),
            100_000,
        ),
        Moment::Sampling => (&|| !held(pid).is_empty(), 100_000),
        Moment::Naming => (&|| !children(pid).is_empty(), 20_000),
        Moment::Writing => (&|| has_open(pid, folder), 2000),
    };
    let mut came = false;
    assert!(comes_true(|| {
        came = is_it();
        came || ended()
    }));
    std::thread::sleep(Duration::from_micros(fastrand::u64(..some_time)));
    came
}

/// Conditions of a recording.
#[derive(Clone, Copy, Debug)]
struct Conditions {
    by_ptrace: bool,
    /// Each file that it writes exists before.
    replaces: bool,
    /// The file system has files without a name.
    nameless: bool,
}

/// Counts of what a recorder had when it was killed.
#[derive(Debug, Default)]
struct Remains {
    /// Programs, maps and links.
    held: usize,
    /// Number of times that a thread was traced.
    traced: usize,
    children: usize,
    /// Files other than the requested ones.
    left: usize,
}

/// Kills a recorder at a moment, and looks what is left.
fn round(target: &Target, moment: Moment, conditions: Conditions) -> Remains {
    let name = format!("killed-{}-{moment:?}", conditions.by_ptrace);
    let scratch = Scratch::new(&name);
    let temporary = Scratch::new(&format!("{name}-temporary"));
    let path = |name: &str| scratch.path(name);
    let pid = target.pid().to_string();
    let old = "what was there before";
    if conditions.replaces {
        for name in NAMES {
            fs::write(path(name), old).unwrap();
        }
    }
    let recording = |seconds: &str| {
        let mut recording = command(&["record", "-p", &pid, "-F", "999", "-d", seconds]);
        recording.env("TMPDIR", temporary.folder());
        for name in NAMES {
            recording.args(["-o", &path(name)]);
        }
        if conditions.by_ptrace {
            recording.arg("--ptrace");
        }
        if !conditions.nameless {
            deny_nameless_files(&mut recording);
        }
        recording
    };
    let ends = matches!(moment, Moment::Naming | Moment::Writing);
    let mut recorder = recording(if ends { "0.2" } else { "60" })
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let folder = scratch.folder();
    let came = wait_for(moment, &mut recorder, target, folder, conditions.by_ptrace);
    // It stays as it is at this moment: what is listed is what it has when it is killed.
    let process = Pid::from_raw(recorder.id() as i32);
    // One that has ended by itself has been waited for.
    let ended = recorder.try_wait().unwrap();
    if ended.is_none() {
        kill(process, Signal::SIGSTOP).unwrap();
    }
    let held = held(recorder.id());
    let children = children(recorder.id());
    let signal = |signal| {
        for (child, _) in &children {
            let _ = kill(Pid::from_raw(*child as i32), signal);
        }
    };
    // So that they do not end by themselves.
    signal(Signal::SIGSTOP);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let mut said = String::new();
    let mut stderr = recorder.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    // It had no reason to, unless it was done.
    let is_done = ended.is_some_and(|status| status.success() && ends);
    assert!(ended.is_none() || is_done, "{moment:?}: {ended:?}: {said}");
    // The kernel frees what nobody holds any more a little later.
    let left = || held.iter().filter(|it| exists(**it)).collect::<Vec<_>>();
    let gone = comes_true(|| left().is_empty());
    assert!(gone, "{moment:?}: of {held:?}, {:?} is left", left());
    let goes_on = || {
        let status = status(target);
        !status.iter().any(|it| is_traced(it) || is_stopped(it))
    };
    assert!(comes_true(goes_on), "{moment:?}: {:?}", status(target));
    let gone = comes_true(|| !children.iter().any(|child| is_there(*child)));
    if !gone {
        signal(Signal::SIGKILL);
    }
    assert!(gone, "{moment:?}: of {children:?} some are left");
    assert_eq!(temporary.names(), [""; 0], "{moment:?}");
    let mut beside = scratch.names();
    beside.retain(|name| !NAMES.contains(&&**name));
    // docs/profiles.md: only where a file is replaced or has a name while it is written.
    // `otelctx` has the samples.
    let own = NAMES.iter().chain(&["otelctx"]);
    let own: Vec<_> = own.map(|name| format!(".{name}.{process}")).collect();
    let may_be_left = conditions.replaces || !conditions.nameless;
    assert!(beside.is_empty() || may_be_left, "{moment:?}: {beside:?}");
    assert!(beside.iter().all(|it| own.contains(it)), "{beside:?}");
    for name in scratch.names() {
        let is_old = conditions.replaces && fs::read(path(&name)).unwrap() == old.as_bytes();
        if name == "a.otlp" && !is_old {
            otelctx(&["report", &path(&name)]).expect(0);
        }
    }
    if !beside.is_empty() {
        assert!(recording("0.2").output().unwrap().status.success());
        let mut names = NAMES.map(str::to_owned);
        names.sort();
        assert_eq!(scratch.names(), names);
    }
    Remains {
        held: held.len(),
        traced: usize::from(conditions.by_ptrace && came && matches!(moment, Moment::Sampling)),
        children: children.len(),
        left: beside.len(),
    }
}

fn rounds(by_ptrace: bool) {
    let target = Target::start("busy");
    let mut all = Remains::default();
    for number in 0..ROUNDS {
        let conditions = Conditions {
            by_ptrace,
            replaces: number % 2 == 1,
            nameless: number < ROUNDS / 2,
        };
        for moment in [
            Moment::Starting,
            Moment::Sampling,
            Moment::Naming,
            Moment::Writing,
        ] {
            let had = round(&target, moment, conditions);
            all.held += had.held;
            all.children += had.children;
            all.left += had.left;
            all.traced += had.traced;
        }
    }
    eprintln!("{all:?}");
    // Or the test has checked nothing.
    assert_eq!(all.held > 0, !by_ptrace, "{all:?}");
    assert_eq!(all.traced > 0, by_ptrace, "{all:?}");
    assert!(all.children > 0, "{all:?}");
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

/// Then its program does not start, and nothing waits forever.
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
