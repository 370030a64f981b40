//! Targets whose process ids and files are not the reader's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_remote::tls::resolve;
use otelctx_remote::{Access, FileCache, LiveProcess, Memory, Process, Stopped, Storage};

const NAME: &str = "otel_thread_ctx_v1";

/// Copies $1 into a file system that only the target sees, and runs the program there, with $1 as
/// its root directory if $2 says so.
const INSIDE: &str = r#"
    cp -a "$1" "$1.copy"
    mount -t tmpfs none "$1"
    cp -a "$1.copy/." "$1"
    rm -r "$1.copy"
    if test "$2" = chroot; then exec chroot "$1" /program lib=/library.so; fi
    exec "$1/program" "lib=$1/library.so"
"#;

/// `unshare` with namespaces of its own for process ids and mounts. `None`, with a line on
/// standard error, where the kernel or the rights don't allow it.
fn unshare() -> Option<Command> {
    let command = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child"]);
        // SAFETY: geteuid takes nothing.
        if unsafe { nix::libc::geteuid() } != 0 {
            command.arg("--map-root-user");
        }
        command
    };
    let works = command()
        .args(["mount", "-t", "tmpfs", "none", "/tmp"])
        .output();
    if works.is_ok_and(|output| output.status.success()) {
        Some(command())
    } else {
        eprintln!("skipped: no namespaces of process ids and mounts (unshare, mount)");
        None
    }
}

/// A folder with the program, its library and what both need.
fn root(name: &str) -> Option<PathBuf> {
    let library = Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu"])?;
    let program = Compiler::gcc().program(&["threads.c"], &["-ldl"])?;
    let own = std::process::id();
    let root = otelctx_fixtures::directory().join(format!("root-{name}-{own}"));
    fs::create_dir_all(&root).unwrap();
    fs::copy(&library, root.join("library.so")).unwrap();
    otelctx_fixtures::copy_program(&program, root.join("program"));
    let needed = Command::new("ldd").arg(&program).output().unwrap();
    for path in String::from_utf8_lossy(&needed.stdout).split_whitespace() {
        if let Some(relative) = path.strip_prefix('/') {
            let copy = root.join(relative);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(path, copy).unwrap();
        }
    }
    Some(root)
}

fn finds_the_variable(kind: &str) {
    let (Some(mut command), Some(root)) = (unshare(), root(kind)) else {
        return;
    };
    command.args(["sh", "-euc", INSIDE, "sh"]).arg(&root);
    let target = Target::spawn(command.arg(kind));
    // Its files are nowhere on the reader's side.
    fs::remove_dir_all(&root).unwrap();

    let process = Process::open(target.child_pid()).unwrap();
    assert_eq!(
        process.status().unwrap().namespace_pids,
        [process.pid(), 1],
        "process 1 of its own namespace"
    );
    let memory = process.memory().unwrap();
    let resolution = resolve(
        &LiveProcess::new(&process, &memory),
        &FileCache::new(),
        NAME,
    )
    .unwrap();
    assert_eq!(resolution.unreadable, []);
    let [variable] = &resolution.variables[..] else {
        panic!("{resolution:?}")
    };
    assert_eq!(
        Path::new(&variable.module).file_name().unwrap(),
        "library.so"
    );
    assert_eq!(variable.access, Access::GeneralDynamic);
    assert_eq!(variable.storage(), Storage::Dynamic);
    let mut attached = 0;
    for tid in process.thread_ids().unwrap() {
        let inside = process.thread_status(tid).unwrap().namespace_pids[1];
        let Some(thread) = target.threads.iter().find(|it| it.tid == inside) else {
            continue;
        };
        let stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
        let address = variable.address(&memory, stopped.thread_pointer()).unwrap();
        let truth = thread.attached.as_ref();
        assert_eq!(address, truth.map(|truth| truth.slot));
        if let Some(truth) = truth {
            assert_eq!(memory.read_u64(truth.slot), Ok(truth.record));
            attached += 1;
        }
    }
    assert_eq!(attached, 2);
}

#[test]
fn process_ids_and_mounts_of_its_own() {
    finds_the_variable("mounts");
}

#[test]
fn a_root_directory_of_its_own() {
    finds_the_variable("chroot");
}
