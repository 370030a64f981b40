//! Running the command.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};
use serde_json::Value;

/// The output and status of the command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// `otelctx` with these arguments, not yet started.
pub(crate) fn command<A: AsRef<OsStr>>(arguments: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_otelctx"));
    command.args(arguments).stdin(Stdio::null());
    with_default_signals(&mut command);
    command
}

/// Signals that the tests may have been started with as ignored (`nohup`, the background of a shell),
/// which a child would inherit: signal(7).
const INHERITED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGCHLD,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Starts a command with the default action for each of these signals.
pub(crate) fn with_default_signals(command: &mut Command) {
    let reset = || {
        for inherited in INHERITED {
            // SAFETY: sigaction, which may be called between fork and exec; the default runs no code.
            unsafe { signal(inherited, SigHandler::SigDfl) }?;
        }
        Ok(())
    };
    // SAFETY: see above.
    unsafe { command.pre_exec(reset) };
}

/// Runs `otelctx` with these arguments to its end. What inspects one process has more time for it than by default,
/// and is repeated if a thread got no CPU time to stop in, as on a busy machine.
pub(crate) fn otelctx<A: AsRef<OsStr>>(arguments: &[A]) -> Answer {
    let has = |word: &str| arguments.iter().any(|it| it.as_ref() == word);
    let is_about_one = arguments.len() > 1 && !["--all", "--core"].into_iter().any(has);
    let first = arguments.first().map(AsRef::as_ref);
    let inspects = is_about_one
        && ["dump", "check"]
            .iter()
            .any(|it| first == Some(it.as_ref()));
    let run = || {
        let mut command = command(arguments);
        if inspects && !has("--deadline") {
            command.args(["--deadline", "60"]);
        }
        Answer::of(command.output().unwrap())
    };
    if !inspects {
        return run();
    }
    given_time(|_| {
        let answer = run();
        match answer.stdout.contains("did not stop within") {
            true => Err(answer),
            false => Ok(answer),
        }
    })
}

/// One picture of `top`, of a process's last `seconds`, by a group.
pub(crate) fn top(pid: &str, group: &str, seconds: &str) -> Value {
    let arguments = ["top", "--json", "-p", pid, "--iterations", "1"];
    let arguments = [&arguments[..], &["-i", seconds, "--group", group]].concat();
    otelctx(&arguments).expect(0).json()
}

/// Attempts what takes time with more and more of it (seconds, as options have them), two minutes in all:
/// on a busy machine a thread may have to wait for longer than a short look takes.
#[track_caller]
pub(crate) fn given_time<T, E: std::fmt::Debug>(
    mut attempt: impl FnMut(&str) -> Result<T, E>,
) -> T {
    let mut last = None;
    for seconds in ["0.5", "1.5", "5", "15", "30", "60"] {
        match attempt(seconds) {
            Ok(found) => return found,
            Err(why) => last = Some(why),
        }
    }
    panic!("{last:#?}");
}

/// `command` under strace(1), which writes these system calls of it, and of all its threads, to
/// `file`. `None`, with a line on standard error, where there is no strace.
pub(crate) fn under_strace(command: &Command, calls: &str, file: &Path) -> Option<Command> {
    under_strace_with(&[], command, calls, file)
}

/// The same with further options of strace.
pub(crate) fn under_strace_with(
    options: &[&str],
    command: &Command,
    calls: &str,
    file: &Path,
) -> Option<Command> {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: strace is not installed");
        return None;
    }
    let mut strace = Command::new("strace");
    // Without stopping at every other system call, and with the path of each descriptor.
    strace.args(["-f", "-qq", "--seccomp-bpf", "-y", "-e", "signal=none"]);
    strace.args(options).args(["-e", calls, "-o"]).arg(file);
    strace.arg("--").arg(command.get_program());
    strace.args(command.get_args()).stdin(Stdio::null());
    with_default_signals(&mut strace);
    Some(strace)
}

/// A file for temporary use by one test, which removes it.
pub(crate) fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()))
}

/// A directory that is removed with all that is in it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = temporary(name);
        fs::create_dir_all(&path).unwrap();
        // Tests run the command as other users, too.
        fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        Self(path)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Answer {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            status: output.status.code().expect("it was not killed"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Standard output, which is one JSON value.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts the status, and shows everything if it is another.
    pub(crate) fn expect(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}

/// One statement of a filter for system calls.
fn statement(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;
/// Offsets in struct seccomp_data: the number of the system call, and the lower halves of its arguments.
const NUMBER: u32 = 0;
const FIRST: u32 = 16;
const SECOND: u32 = FIRST + 8;
const THIRD: u32 = FIRST + 2 * 8;

/// Lets a system call of a command, and of what it starts, fail with this `errno`.
pub(crate) fn deny(command: &mut Command, call: libc::c_long, errno: libc::c_int) {
    deny_calls(command, call, FIRST, statement(JUMP, 0, 0, 0), errno);
}

/// The same where its first argument is this number.
pub(crate) fn deny_if(command: &mut Command, call: libc::c_long, first: u32, errno: libc::c_int) {
    deny_calls(command, call, FIRST, statement(EQUAL, first, 0, 1), errno);
}

/// Lets mappings of a command that have this size fail with this `errno`.
pub(crate) fn deny_mapping(command: &mut Command, size: u32, errno: libc::c_int) {
    let is_size = statement(EQUAL, size, 0, 1);
    deny_calls(command, libc::SYS_mmap, SECOND, is_size, errno);
}

/// Has a command find no file system that has files without a name (O_TMPFILE).
pub(crate) fn deny_nameless_files(command: &mut Command) {
    // O_DIRECTORY is in it.
    let bit = (libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
    let has_bit = statement(ANY_BIT, bit, 0, 1);
    deny_calls(command, libc::SYS_openat, THIRD, has_bit, libc::EOPNOTSUPP);
}

/// `decide` tests an argument: it continues with the next statement, or skips it.
fn deny_calls(
    command: &mut Command,
    call: libc::c_long,
    argument: u32,
    decide: libc::sock_filter,
    errno: libc::c_int,
) {
    let filter = [
        statement(LOAD, NUMBER, 0, 0),
        statement(EQUAL, call as u32, 0, 3),
        statement(LOAD, argument, 0, 0),
        decide,
        statement(ANSWER, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        statement(ANSWER, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let install = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: both are plain system calls; the kernel copies the filter, which outlives them.
        let denied = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        if denied {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: between fork and exec it only makes system calls.
    unsafe { command.pre_exec(install) };
}
