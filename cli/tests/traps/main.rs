//! Targets that each set one trap: `ps`, `dump` and `check` all end, soon and in little memory, with
//! a clear answer, and leave nothing stopped. One table: a row is a trap and what comes of it.
//!
//! A test program of its own: the kernel counts the memory of the program that starts a command as
//! the command's.

mod elf_file;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use otelctx_fixtures::{Compiler, Target, directory};
use serde_json::{Value, json};

use elf_file::ElfFile;

/// The most memory that a command may use, in KiB.
const MEMORY: i64 = 64 << 10;
/// A command that takes longer hangs. The bound is 2 s; timings decide nothing here, and are printed.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// Long enough for a busy machine, in seconds.
const DEADLINE: &str = "60";

/// The place of the target's variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    InProgram,
    /// A library whose storage threads allocate.
    InLibrary,
}
use Variable::{InLibrary, InProgram};

/// A thread's context is what the thread says.
const RIGHT: &str = "right";
/// Text of `check` if it could read every thread.
const FOUND: &str = "a reader finds the contexts of its # threads";
const PAYLOAD_UNMAPPED: &str = "broken process context: its payload cannot be read: no readable \
    memory at # (# bytes requested)";
const NO_RECORD: &str = "thread #: its variable points to #, which is not a record: no readable \
    memory at # (# bytes requested)";
/// Nobody has linked the module: it says that it has the variable, and nothing says where.
const UNBOUND: &str = "the process does not show yet where the variable is";
const OUTSIDE: &str = "an address is outside the file";

/// A trap, and what is said of it. In texts every number stands as `#`.
struct Row {
    trap: &'static str,
    variable: Variable,
    /// The reason that `ps` gives for not reading it; empty if it can be read.
    ps: &'static str,
    /// The exit status of `dump`, and the contexts of the threads `honest` and `liar`.
    dump: (i32, &'static str, &'static str),
    /// The text of `dump` about a module that it could not inspect; `None`: this depends on the moment.
    module: Option<&'static str>,
    /// The exit status of `check`, and something it says.
    check: (i32, &'static str),
}

const fn row(
    trap: &'static str,
    variable: Variable,
    ps: &'static str,
    dump: (i32, &'static str, &'static str),
    check: (i32, &'static str),
) -> Row {
    Row {
        trap,
        variable,
        ps,
        dump,
        module: Some(""),
        check,
    }
}

/// A target that is not disturbed, or whose trap does not catch.
const fn harmless(trap: &'static str, variable: Variable) -> Row {
    row(trap, variable, "", (0, RIGHT, RIGHT), (0, FOUND))
}

/// A broken process context.
const fn broken(trap: &'static str, why: &'static str) -> Row {
    row(
        trap,
        InProgram,
        why,
        (1, why, why),
        (1, "its process context can't be read"),
    )
}

/// One thread that can't be read.
const fn one_thread(trap: &'static str, variable: Variable, liar: &'static str) -> Row {
    row(trap, variable, "", (1, RIGHT, liar), (1, liar))
}

/// A module that cannot be inspected, and is skipped.
const fn module(trap: &'static str, variable: Variable, why: &'static str) -> Row {
    let whole = row(trap, variable, "", (0, RIGHT, RIGHT), (0, why));
    Row {
        module: Some(why),
        ..whole
    }
}

/// The error of reading memory that is not mapped.
const UNMAPPED: &str = "no readable memory at # (# bytes requested)";

static ROWS: &[Row] = &[
    harmless("honest", InProgram),
    harmless("honest", InLibrary),
    broken(
        "payload-huge",
        "broken process context: its payload has # bytes, more than the limit of #; raise the limit to read it",
    ),
    broken("payload-nowhere", PAYLOAD_UNMAPPED),
    broken("payload-kernel", PAYLOAD_UNMAPPED),
    broken("payload-no-page", PAYLOAD_UNMAPPED),
    broken(
        "payload-no-access",
        "broken process context: the payload is malformed at byte #: a field number is out of range",
    ),
    broken(
        "payload-garbage",
        "broken process context: the payload is malformed at byte #: a number has more than # bits",
    ),
    // The kernel does not let a debugger's read wait for the handler of faults.
    broken("payload-no-answer", PAYLOAD_UNMAPPED),
    one_thread("record-nowhere", InProgram, NO_RECORD),
    one_thread("record-kernel", InProgram, NO_RECORD),
    one_thread(
        "record-odd",
        InProgram,
        "thread #: its variable points to #, which is not a record: a record's address is even",
    ),
    one_thread("record-no-page", InProgram, NO_RECORD),
    one_thread("record-sizes", InProgram, NO_RECORD),
    row(
        "entry-sizes",
        InProgram,
        "",
        (
            0,
            RIGHT,
            "ids, and skipped: # bytes of an incomplete attribute",
        ),
        (0, FOUND),
    ),
    one_thread(
        "dtv-nowhere",
        InLibrary,
        "the thread's table of thread-local storage (DTV): no readable memory at # (# bytes \
         requested)",
    ),
    one_thread(
        "dtv-block-nowhere",
        InLibrary,
        "thread #: its variable in LIBRARY cannot be read: no readable memory at # (# bytes \
         requested)",
    ),
    // A thread that never touched the variable looks the same.
    row(
        "dtv-too-short",
        InLibrary,
        "",
        (0, RIGHT, "null"),
        (0, FOUND),
    ),
    // The linker's own list of modules tells as much.
    harmless("descriptors-nowhere", InLibrary),
    harmless("modules-cycle", InLibrary),
    module(
        "modules-huge",
        InLibrary,
        "its list of modules: no readable memory at # (# bytes requested)",
    ),
    module("file", InProgram, UNBOUND),
    module(
        "file=segments",
        InProgram,
        "it has more than # program headers",
    ),
    module("file=segments-nowhere", InProgram, UNMAPPED),
    module("file=strings-nowhere", InProgram, OUTSIDE),
    module("file=tables-in-themselves", InProgram, OUTSIDE),
    module(
        "file=gnu-hash-endless",
        InProgram,
        "a chain of its DT_GNU_HASH does not end",
    ),
    module(
        "file=hash-cycle",
        InProgram,
        "a chain of its DT_HASH does not end",
    ),
    module(
        "file=relocations-endless",
        InProgram,
        "a table has more than # million entries",
    ),
    module("file=relocations-in-a-hole", InProgram, UNBOUND),
    module(
        "file=storage-too-small",
        InProgram,
        "its definition is outside its thread-local storage",
    ),
    module("file-replaced", InProgram, UNBOUND),
    module("file-swapped", InProgram, UNBOUND),
    Row {
        module: None,
        ..harmless("file-truncated", InProgram)
    },
    harmless("device", InProgram),
    harmless("maps-change", InProgram),
    harmless("forks", InProgram),
];

#[test]
fn each_trap_gets_a_clear_answer() {
    let Some(programs) = Programs::build() else {
        return;
    };
    let mut wrong = Vec::new();
    for row in ROWS {
        if let Err(why) = inspect(row, &programs) {
            wrong.push(format!("{} ({:?}): {why}", row.trap, row.variable));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The target of either kind of [`Variable`], and the library.
struct Programs {
    with_variable: PathBuf,
    without: PathBuf,
    library: PathBuf,
}

impl Programs {
    fn build() -> Option<Self> {
        let gcc = Compiler::gcc();
        let sources = ["hostile.c", "variable.c", "publish.c"];
        let descriptors: &[&str] = match cfg!(target_arch = "x86_64") {
            true => &["-mtls-dialect=gnu2"],
            false => &[],
        };
        Some(Self {
            with_variable: gcc.program(&sources, &["-DLINKED", "-rdynamic", "-ldl"])?,
            without: gcc.program(&["hostile.c", "publish.c"], &["-ldl"])?,
            library: gcc.library(&["variable.c"], descriptors)?,
        })
    }
}

/// A folder for the file that a target maps.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = directory().join(format!("traps-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("a")).unwrap();
        // Where a/module.so leads to while the two change places.
        symlink("b", path.join("a.link")).unwrap();
        fs::create_dir(path.join("b")).unwrap();
        mkfifo(&path.join("b/module.so"), Mode::S_IRWXU).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn inspect(row: &Row, programs: &Programs) -> Result<(), String> {
    let folder = Folder::new();
    let file = folder.0.join("a/module.so");
    let (trap, patch) = row.trap.split_once('=').unwrap_or((row.trap, ""));
    if trap.starts_with("file") {
        let mut module = ElfFile::open(&programs.library);
        module.patch(patch);
        module.write(&file);
    }
    let mut target = match row.variable {
        InProgram => Command::new(&programs.with_variable),
        InLibrary => Command::new(&programs.without),
    };
    target.args([
        trap.as_ref(),
        programs.library.as_os_str(),
        file.as_os_str(),
    ]);
    target.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");
    let target = Target::spawn(&mut target);
    if target.lines.iter().any(|line| line == "impossible") {
        eprintln!("skipped: {} can't be done here", row.trap);
        return Ok(());
    }
    let pid = target.pid().to_string();
    let runs = [
        // Whatever else runs on this machine may have millions.
        &[
            "ps",
            "--json",
            "--deadline",
            DEADLINE,
            "--max-mappings",
            "50000",
        ][..],
        &["dump", "--json", "--deadline", DEADLINE, &pid],
        &["check", "--json", "--deadline", DEADLINE, &pid],
    ];
    let runs = runs.map(|arguments| {
        let mut run = run(arguments);
        // Another process on this machine may be stopping threads, too.
        while run.answer.stdout.contains("is already traced by process ") {
            run = self::run(arguments);
        }
        let library = programs.library.to_str().unwrap();
        run.answer.stdout = run.answer.stdout.replace(library, "LIBRARY");
        run
    });
    let [ps, dump, check] = &runs;
    let measured: Vec<_> = runs
        .iter()
        .map(|it| format!("{:?} {} KiB", it.took, it.peak))
        .collect();
    println!("{:24} ps {:?}", row.trap, of_ps(ps, target.pid()));
    println!(
        "{:24} dump {} {:?}",
        "",
        dump.answer.status,
        of_dump(dump, &target)
    );
    println!(
        "{:24} check {} {}",
        "",
        check.answer.status,
        problems(check)
    );
    println!("{:24} {}", "", measured.join(", "));

    for run in &runs {
        if run.took > TIMEOUT || run.peak > MEMORY || run.answer.stderr.contains("panicked") {
            return Err(format!("{run:?}"));
        }
    }
    none_stopped(&target)?;
    let (status, honest, liar) = row.dump;
    let said = [honest.to_owned(), liar.to_owned()];
    if of_ps(ps, target.pid()) != row.ps {
        return Err(format!("{:?}", of_ps(ps, target.pid())));
    }
    if (dump.answer.status, of_dump(dump, &target)) != (status, said) {
        return Err(format!("{dump:?}"));
    }
    if row.module.is_some_and(|module| of_module(dump) != module) {
        return Err(format!("{dump:?}"));
    }
    let (status, text) = row.check;
    if check.answer.status != status || !without_numbers(&check.answer.stdout).contains(text) {
        return Err(format!("{check:?}"));
    }
    Ok(())
}

/// The output and status of the command; -1 if it was killed.
#[derive(Debug)]
struct Answer {
    status: i32,
    stdout: String,
    stderr: String,
}

/// A run of the command, and what it took.
#[derive(Debug)]
struct Run {
    answer: Answer,
    took: Duration,
    /// The most memory that it had, in KiB.
    peak: i64,
}

#[expect(
    clippy::zombie_processes,
    reason = "wait4 does it, and tells the memory"
)]
fn run(arguments: &[&str]) -> Run {
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_otelctx"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id() as i32;
    std::thread::scope(|scope| {
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let stdout = scope.spawn(|| std::io::read_to_string(stdout).unwrap());
        let stderr = scope.spawn(|| std::io::read_to_string(stderr).unwrap());
        let (mut status, mut killed) = (0, false);
        // SAFETY: an all-zero rusage is a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: both pointers are to values that live through the call.
            match unsafe { libc::wait4(id, &raw mut status, libc::WNOHANG, &raw mut usage) } {
                0 if !killed && start.elapsed() > TIMEOUT => {
                    killed = true;
                    let _ = child.kill();
                }
                0 => std::thread::sleep(Duration::from_millis(1)),
                _ => break,
            }
        }
        let took = start.elapsed();
        let answer = Answer {
            status: if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                -1
            },
            stdout: stdout.join().unwrap(),
            stderr: stderr.join().unwrap(),
        };
        Run {
            answer,
            took,
            peak: usage.ru_maxrss,
        }
    })
}

/// Returns the reason that `ps` gives for not reading it.
fn of_ps(run: &Run, pid: i32) -> String {
    let listing: Value = serde_json::from_str(&run.answer.stdout).unwrap_or_default();
    let rows = listing["processes"].as_array().cloned().unwrap_or_default();
    match rows.iter().find(|row| row["pid"] == pid) {
        None => "not listed".into(),
        Some(row) => without_numbers(row["unreadable"].as_str().unwrap_or_default()),
    }
}

/// Returns the answers of `dump` about the threads `honest` and `liar`: right, null, the error, or
/// what it shows otherwise.
fn of_dump(run: &Run, target: &Target) -> [String; 2] {
    let answer: Value = serde_json::from_str(&run.answer.stdout).unwrap_or_default();
    ["honest", "liar"].map(|name| {
        let truth = target.threads.iter().find(|it| it.name == name).unwrap();
        let threads = answer["threads"].as_array().into_iter().flatten();
        let Some(thread) = threads.into_iter().find(|it| it["tid"] == truth.tid) else {
            return "not listed".into();
        };
        let mut context = &thread["context"];
        if answer["thread_context"]["error"].is_string() {
            // What applies to all threads is reported once.
            context = &answer["thread_context"];
        }
        let attached = truth.attached.as_ref().unwrap();
        let whole = json!({"trace_id": attached.trace_id, "span_id": attached.span_id,
            "trace_flags": 1, "attributes": {"worker": name}});
        match context["error"].as_str() {
            _ if *context == whole => RIGHT.into(),
            Some(error) => without_numbers(error),
            None if context["skipped"]["incomplete_bytes"].as_u64() > Some(0) => {
                "ids, and skipped: # bytes of an incomplete attribute".into()
            }
            None => context.to_string(),
        }
    })
}

/// Returns the reason why `dump` could not inspect a module.
fn of_module(run: &Run) -> String {
    let answer: Value = serde_json::from_str(&run.answer.stdout).unwrap_or_default();
    let module = &answer["thread_context"]["unreadable_modules"][0];
    without_numbers(module["error"].as_str().unwrap_or_default())
}

fn problems(run: &Run) -> String {
    let answer: Value = serde_json::from_str(&run.answer.stdout).unwrap_or_default();
    let findings = answer["findings"].as_array().cloned().unwrap_or_default();
    let texts = findings
        .iter()
        .filter(|it| it["level"] != "ok")
        .map(|it| it["text"].to_string());
    without_numbers(&texts.collect::<Vec<_>>().join("; "))
}

/// `text` with `#` in place of each number, decimal or hexadecimal behind `0x`.
fn without_numbers(text: &str) -> String {
    let mut short = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let digits = match rest.strip_prefix("0x") {
            Some(hexadecimal) => 2 + length_of(hexadecimal, |it| it.is_ascii_hexdigit()),
            None => length_of(rest, |it| it.is_ascii_digit()),
        };
        if digits > 0 {
            short.push('#');
            rest = &rest[digits..];
        } else {
            short.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    short
}

fn length_of(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|it| !belongs(it)).unwrap_or(text.len())
}

/// Another process may be inspecting all threads of the machine, and stop each one briefly: only a
/// stop that stays is one.
fn none_stopped(target: &Target) -> Result<(), String> {
    let stopped = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
        let mut statuses = tasks.flatten().filter_map(status);
        statuses.find(|status| {
            let is_stopped = status.contains("State:\tt") || status.contains("State:\tT");
            is_stopped || !status.contains("TracerPid:\t0\n")
        })
    };
    let start = Instant::now();
    while let Some(status) = stopped() {
        if start.elapsed() > TIMEOUT {
            return Err(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
