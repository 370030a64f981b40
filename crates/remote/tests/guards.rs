//! Programs of which a reader that left one check out would read something wrong. Each test names
//! the check; those in `tls.rs` that do the same say so, too.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use otelctx_fixtures::{Compiler, Target};
use otelctx_remote::tls::{Resolution, resolve};
use otelctx_remote::{Access, Memory, ModuleCache, Process, Stopped, Storage};

const NAME: &str = "otel_thread_ctx_v1";
const TIMEOUT: Duration = Duration::from_secs(5);

fn look(target: &Target) -> Resolution {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    resolve(&process, &memory, &mut ModuleCache::new(), NAME).unwrap()
}

/// Holds the check of the symbol's type (STT_TLS), and that of its size. Without them the address of
/// an ordinary variable passes for an offset, and something else for a pointer.
#[test]
fn a_symbol_that_is_not_the_variable() {
    let not_thread_local = "it defines otel_thread_ctx_v1, but not as a thread-local variable";
    let size = |size: u32| format!("it defines a variable of {size} bytes instead of 8");
    for (kind, reason) in [
        (1, not_thread_local.to_string()),
        (2, not_thread_local.to_string()),
        (3, size(16)),
        (4, size(4)),
    ] {
        let kind = format!("-DKIND={kind}");
        let flags = ["-mtls-dialect=gnu", &kind];
        let Some(library) = Compiler::gcc().library(&["impostor.c"], &flags) else {
            return;
        };
        let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
            return;
        };
        let mut command = Command::new(&program);
        command.arg(format!("lib={}", library.display()));
        let resolution = look(&Target::spawn(&mut command));
        assert_eq!(resolution.variables, [], "{kind}");
        assert_eq!(resolution.unreadable, [(library.into_os_string(), reason)]);
    }
}

/// Holds the check of the DTV's length. Without it the old thread has the context that lies behind
/// its DTV.
#[test]
fn a_thread_whose_vector_is_too_short() {
    for (dialect, access) in [
        ("-mtls-dialect=gnu2", Access::Tlsdesc),
        ("-mtls-dialect=gnu", Access::GeneralDynamic),
    ] {
        let gcc = Compiler::gcc();
        let (Some(library), Some(other), Some(program)) = (
            gcc.library(&["variable.c"], &[dialect]),
            gcc.library(&["variable.c"], &[dialect, "-DNAME=other"]),
            gcc.program(&["short_vector.c"], &["-ldl"]),
        ) else {
            return;
        };
        let mut command = Command::new(&program);
        command
            .args([&library, &other])
            .env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");
        let target = Target::spawn(&mut command);
        let resolution = look(&target);
        assert_eq!(resolution.unreadable, []);
        let [variable] = &resolution.variables[..] else {
            panic!("{resolution:?}")
        };
        assert_eq!(Path::new(&variable.module), library);
        assert_eq!(
            (variable.access, variable.storage()),
            (access, Storage::Dynamic)
        );

        let process = Process::open(target.pid()).unwrap();
        let memory = process.memory().unwrap();
        let [old, new] = ["old", "new"].map(|name| {
            let thread = target.threads.iter().find(|it| it.name == name).unwrap();
            let stopped = Stopped::stop(&process, thread.tid, TIMEOUT).unwrap();
            let pointer = stopped.thread_pointer();
            let address = variable.address(&memory, pointer).unwrap();
            stopped.resume().unwrap();
            (thread, pointer, address)
        });
        let truth = new.0.attached.as_ref().unwrap();
        assert_eq!(new.2, Some(truth.slot));
        assert_eq!(old.2, None);

        // The trap is set: the entry that the new thread has, read of the old one all the same.
        let vector = |pointer: u64| memory.read_u64(pointer + 8).unwrap();
        let entry = |pointer: u64, id: u64| memory.read_u64(vector(pointer) + 16 * id).unwrap();
        let id = (1..).find(|id| entry(new.1, *id) == truth.slot).unwrap();
        assert!(memory.read_u64(vector(old.1) - 16).unwrap() < id);
        let bait = target.lines[0].strip_prefix("bait 0x").unwrap();
        assert_eq!(
            entry(old.1, id),
            u64::from_str_radix(bait, 16).unwrap(),
            "the heap does not lie as it should: {:?}",
            target.lines
        );
    }
}
