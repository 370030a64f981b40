//! Readers without privileges: the facts that they can read, and the errors for the rest.

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::libc;
use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_remote::tls::resolve;
use otelctx_remote::{Error, FileCache, LiveProcess, Memory, Process, Stopped};

/// Any user without rights does; this one exists everywhere.
const NOBODY: u32 = 65534;

fn program() -> Option<PathBuf> {
    let flags = ["-DLINKED", "-rdynamic"];
    Compiler::gcc().program(&["threads.c", "variable.c"], &flags)
}

/// Runs one of the tests below as a user without rights; they do nothing otherwise.
fn as_nobody(test: &str, pid: i32, variables: &[(&str, String)]) {
    if !is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    // Copied to where that user may read it.
    let copy = std::env::temp_dir().join(format!("otelctx-remote-{test}-{}", std::process::id()));
    otelctx_fixtures::copy_program(std::env::current_exe().unwrap(), &copy);
    let mut command = Command::new(&copy);
    command
        .args(["--exact", "--nocapture", test])
        .env("OTELCTX_TEST_PID", pid.to_string())
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY);
    let output = loop {
        match command.output() {
            // A test that forks meanwhile has the copy open for writing until its exec.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
            output => break output,
        }
    };
    std::fs::remove_file(&copy).unwrap();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

fn pid_for_nobody() -> Option<i32> {
    std::env::var("OTELCTX_TEST_PID").ok()?.parse().ok()
}

fn is_root() -> bool {
    // SAFETY: geteuid takes nothing.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn without_rights_the_error_names_the_capability() {
    let Some(program) = program() else { return };
    let target = Target::spawn(&mut Command::new(program));
    as_nobody("looks_without_rights", target.pid(), &[]);
}

#[test]
fn looks_without_rights() {
    let Some(pid) = pid_for_nobody() else { return };
    let process = Process::open(pid).unwrap();
    let timeout = Duration::from_secs(1);
    let stopped = otelctx_remote::Stopped::stop(&process, pid, timeout).map(drop);
    let walk = process
        .mappings(&mut |_| ControlFlow::Continue(()))
        .map(drop);
    for refused in [
        stopped,
        walk,
        process.memory().map(drop),
        process.environment(64).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::NotPermitted { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("CAP_SYS_PTRACE") || text.contains("ptrace_scope"),
            "{text}"
        );
    }
    // What every user may read.
    assert!(process.comm().is_ok());
    assert!(!process.threads().unwrap().is_empty());
}

/// A user's own processes, whose files are reached by path; a deleted file's module where it is
/// loaded, because map_files wants rights.
#[test]
fn processes_of_ones_own() {
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-DBIG=16"]) else {
        return;
    };
    let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
        return;
    };
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !is_root() || !["", "0"].contains(&yama.trim()) {
        eprintln!(
            "skipped: it takes root, to become another user, and no kernel.yama.ptrace_scope"
        );
        return;
    }
    for delete in [false, true] {
        let own = std::process::id();
        let copy = |path: &PathBuf, ending: &str| {
            let copy = std::env::temp_dir().join(format!("otelctx-remote-{own}-{delete}{ending}"));
            std::fs::copy(path, &copy).unwrap();
            std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
            copy
        };
        let (library, program) = (copy(&library, ".so"), copy(&program, ""));
        let mut command = Command::new(&program);
        command
            .arg(format!("lib={}", library.display()))
            .uid(NOBODY)
            .gid(NOBODY);
        let target = Target::spawn(&mut command);
        if delete {
            std::fs::remove_file(&library).unwrap();
        }
        let worker = target
            .threads
            .iter()
            .find(|thread| thread.attached.is_some())
            .unwrap();
        let truth = worker.attached.as_ref().unwrap();
        let words = format!("{} {} {}", worker.tid, truth.slot, truth.record);
        as_nobody(
            "inspects_its_own",
            target.pid(),
            &[("OTELCTX_TEST_TRUTH", words)],
        );
        let _ = std::fs::remove_file(&library);
        std::fs::remove_file(&program).unwrap();
    }
}

#[test]
fn inspects_its_own() {
    let (Some(pid), Ok(truth)) = (pid_for_nobody(), std::env::var("OTELCTX_TEST_TRUTH")) else {
        return;
    };
    let truth: Vec<u64> = truth.split(' ').map(|word| word.parse().unwrap()).collect();
    let process = Process::open(pid).unwrap();
    let memory = process.memory().unwrap();
    let name = "otel_thread_ctx_v1";
    let resolution = resolve(
        &LiveProcess::new(&process, &memory),
        &FileCache::new(),
        name,
    )
    .unwrap();
    assert_eq!(resolution.unreadable, []);
    let [variable] = &resolution.variables[..] else {
        panic!("{resolution:?}")
    };
    let tid = i32::try_from(truth[0]).unwrap();
    let stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
    let address = variable.address(&memory, stopped.thread_pointer()).unwrap();
    assert_eq!(address, Some(truth[1]));
    assert_eq!(memory.read_u64(truth[1]), Ok(truth[2]));
}
