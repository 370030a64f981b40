//! Finds the variable in programs that print where it is, in every way that linkers reach it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use otelctx_fixtures::{Compiler, Target};
use otelctx_remote::tls::resolve;
use otelctx_remote::{Access, Memory, ModuleCache, Process, Stopped, Storage, TlsVariable};

const NAME: &str = "otel_thread_ctx_v1";
const TIMEOUT: Duration = Duration::from_secs(5);

/// Forces storage of TLS descriptors to be dynamic (glibc manual, "Dynamic Linking Tunables").
const NO_SURPLUS: (&str, &str) = ("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");

/// The variables that a reader would use in the process.
fn variables(target: &Target) -> Vec<TlsVariable> {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let resolution = resolve(&process, &memory, &mut ModuleCache::new(), NAME).unwrap();
    assert_eq!(resolution.unreadable, []);
    resolution.variables
}

/// Compares what is found for every thread with what the thread says.
#[track_caller]
fn assert_threads(target: &Target, variable: &TlsVariable) {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let mut attached = 0;
    for thread in &target.threads {
        let stopped = Stopped::stop(&process, thread.tid, TIMEOUT).unwrap();
        let address = variable.address(&memory, stopped.thread_pointer()).unwrap();
        let value = address.map(|address| memory.read_u64(address).unwrap());
        stopped.resume().unwrap();
        match &thread.attached {
            Some(truth) => {
                assert_eq!(address, Some(truth.slot), "{thread:?} {variable:?}");
                assert_eq!(value, Some(truth.record), "{thread:?} {variable:?}");
                attached += 1;
            }
            // Static storage exists in every thread, and is zero in this one.
            None if variable.storage() == Storage::Static => assert_eq!(value, Some(0)),
            None => assert_eq!(address, None, "{thread:?} {variable:?}"),
        }
    }
    assert!(attached > 0);
}

/// There is one variable, in this module, reached like this, and right for every thread.
#[track_caller]
fn assert_found(target: &Target, module: &Path, access: Access, storage: Storage) {
    let found = variables(target);
    let [variable] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(Path::new(&variable.module), module);
    assert_eq!((variable.access, variable.storage()), (access, storage));
    assert!(variable.exported);
    assert_threads(target, variable);
}

/// A program that defines the variable itself.
fn executable(compiler: Compiler, flags: &[&str]) -> Option<(Target, std::path::PathBuf)> {
    let mut all = vec!["-DLINKED", "-rdynamic"];
    all.extend(flags);
    let program = compiler.program(&["threads.c", "variable.c"], &all)?;
    Some((Target::spawn(&mut Command::new(&program)), program))
}

#[test]
fn executables_that_define_the_variable() {
    for flags in [&["-no-pie", "-fno-pie"][..], &["-pie", "-fPIE"]] {
        let Some((target, program)) = executable(Compiler::gcc(), flags) else {
            return;
        };
        assert_found(&target, &program, Access::LocalExec, Storage::Static);
    }
}

#[test]
fn linked_library() {
    for (flags, access) in MODELS {
        let Some(library) = Compiler::gcc().library(&["variable.c"], flags) else {
            return;
        };
        let flags = ["-DLINKED".into(), library.clone()];
        let Some(program) = Compiler::gcc().program(&["threads.c"], &flags) else {
            return;
        };
        let target = Target::spawn(&mut Command::new(&program));
        assert_found(&target, &library, *access, Storage::Static);
    }
}

const MODELS: &[(&[&str], Access)] = &[
    (&["-mtls-dialect=gnu2"], Access::Tlsdesc),
    (&["-mtls-dialect=gnu"], Access::GeneralDynamic),
    (&["-ftls-model=initial-exec"], Access::InitialExec),
];

/// The program that loads the variable's library at run time.
fn loader() -> Option<std::path::PathBuf> {
    Compiler::gcc().program(&["threads.c"], &["-ldl"])
}

#[test]
fn loaded_library() {
    for (flags, access) in MODELS {
        let Some(library) = Compiler::gcc().library(&["variable.c"], flags) else {
            return;
        };
        let Some(program) = loader() else { return };
        let mut command = Command::new(&program);
        command.arg(format!("lib={}", library.display()));
        let storage = match access {
            // glibc gives a block in the static surplus to what can use it.
            Access::Tlsdesc | Access::InitialExec => Storage::Static,
            _ => Storage::Dynamic,
        };
        assert_found(&Target::spawn(&mut command), &library, *access, storage);
        command.env(NO_SURPLUS.0, NO_SURPLUS.1);
        let storage = match access {
            Access::InitialExec => Storage::Static,
            _ => Storage::Dynamic,
        };
        assert_found(&Target::spawn(&mut command), &library, *access, storage);
    }
}
