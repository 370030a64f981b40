//! Thread pointers that are found without a stop are the ones that a stop shows, and what is read while
//! a thread sleeps is never torn.

use std::path::PathBuf;
use std::process::Command;

use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_remote::threads::ThreadPointers;
use otelctx_remote::tls::{Resolution, resolve};
use otelctx_remote::{FileCache, LiveProcess, Process, ProcessMemory, Stopped};

const NAME: &str = "otel_thread_ctx_v1";
const WORKERS: usize = 20;

fn spawn(program: &PathBuf) -> Target {
    Target::spawn(Command::new(program).arg(format!("workers={WORKERS}")))
}

fn resolved(process: &Process) -> (ProcessMemory, Resolution) {
    let memory = process.memory().unwrap();
    let resolution = resolve(&LiveProcess::new(process, &memory), &FileCache::new(), NAME).unwrap();
    (memory, resolution)
}

/// Every thread's pointer, with none stopped before all were found.
fn finds_every_thread(program: &PathBuf, kind: &str) {
    let target = spawn(program);
    let process = Process::open(target.pid()).unwrap();
    let (memory, resolution) = resolved(&process);
    let tids = process.thread_ids().unwrap();
    // The workers, one that never touches the variable, the main thread and the one that reads commands.
    assert_eq!(tids.len(), WORKERS + 3);
    let find = || {
        let threads = tids.len();
        ThreadPointers::find(
            &resolution.threads,
            &LiveProcess::new(&process, &memory),
            process.pid(),
            threads,
        )
    };
    let pointers = find();
    assert_eq!(pointers.len(), tids.len(), "{kind}: {pointers:?}");
    for tid in tids {
        let pointer = pointers.get(tid).unwrap();
        assert!(pointer.is_of(&memory, tid), "{kind}");
        assert!(!pointer.is_of(&memory, tid + 1), "{kind}");
        let stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
        assert_eq!(pointer.address, stopped.thread_pointer(), "{kind}");
        assert_eq!(pointers.at(pointer.address), Some(pointer), "{kind}");
    }
}

#[test]
fn each_thread_of_a_program_of_each_kind() {
    let sources = ["threads.c", "variable.c"];
    let mut kinds = 0;
    for (compiler, name) in [(Compiler::gcc(), "glibc"), (Compiler::musl_gcc(), "musl")] {
        for flags in [
            &["-DLINKED", "-rdynamic"][..],
            &["-DLINKED", "-static"],
            &["-DLINKED", "-static", "-s"],
            &["-DLINKED", "-static-pie"],
            &["-DLINKED", "-static-pie", "-s"],
        ] {
            if cfg!(target_arch = "aarch64") && (name == "musl" || flags.len() == 3) {
                continue;
            }
            if let Some(program) = compiler.program(&sources, flags) {
                finds_every_thread(&program, &format!("{name} {flags:?}"));
                kinds += 1;
            }
        }
    }
    println!("{kinds} kinds of programs");
}
