//! Programs of which a reader that left one check out would read something wrong. Each test names
//! the check; those in `tls.rs` that do the same say so, too.

use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_remote::mappings::Walk;
use otelctx_remote::module::Machine;
use otelctx_remote::tls::{Resolution, resolve};
use otelctx_remote::{
    Access, Device, Error, FileCache, LiveProcess, Mapping, Memory, MemoryError, Process, Stopped,
    Storage,
};

const NAME: &str = "otel_thread_ctx_v1";

fn resolved(target: &Target) -> Resolution {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    resolve(
        &LiveProcess::new(&process, &memory),
        &FileCache::new(),
        NAME,
    )
    .unwrap()
}

/// A process whose dynamic linker is out of sight, and with it its list of modules, which tells
/// their generations.
struct WithoutList<'a>(LiveProcess<'a>);

impl Memory for WithoutList<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.0.read(address, buffer)
    }
}

impl otelctx_remote::Target for WithoutList<'_> {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error> {
        self.0.mappings(&mut |mapping| {
            let file = Path::new(std::str::from_utf8(mapping.name).unwrap()).file_name();
            match file {
                Some(file) if file.to_string_lossy().starts_with("ld-linux") => {
                    ControlFlow::Continue(())
                }
                _ => visit(mapping),
            }
        })
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        self.0.mapped_file(range, name, device, inode)
    }

    fn machine(&self) -> Machine {
        self.0.machine()
    }

    fn name(&self) -> OsString {
        self.0.name()
    }
}

fn resolved_without_list(target: &Target) -> Resolution {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let target = WithoutList(LiveProcess::new(&process, &memory));
    resolve(&target, &FileCache::new(), NAME).unwrap()
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
        let resolution = resolved(&Target::spawn(&mut command));
        assert_eq!(resolution.variables, [], "{kind}");
        assert_eq!(resolution.unreadable, [(library.into_os_string(), reason)]);
    }
}

/// Holds the checks of the DTV's length and of its generation, of which either does here. Without
/// both the old thread has the context that lies behind its DTV; so it would where nothing tells the
/// generation, and a variable that is reached so is not read at all.
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
        // A descriptor tells the generation as well as the list does.
        let without_list = resolved_without_list(&target);
        let expected = usize::from(access == Access::Tlsdesc);
        assert_eq!(without_list.variables.len(), expected, "{without_list:?}");
        assert_eq!(
            without_list.unreadable.len(),
            1 - expected,
            "{without_list:?}"
        );
        let resolution = resolved(&target);
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
            let stopped = Stopped::stop(&process, thread.tid, STOP_TIMEOUT).unwrap();
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

/// Checks that a DTPMOD64 without a DTPOFF64 is distinguished by the next word of the table: nothing else says
/// which module it is where the dynamic linker keeps no list, as musl's. mold's names no symbol
/// either, lld's does.
#[test]
fn a_module_id_whose_offset_the_linker_wrote() {
    // Another variable in front, so that the offset is not 0.
    let flags = ["-mtls-dialect=gnu", "-Wl,-Bsymbolic", "-DBIG=24"];
    for gcc in [
        Compiler::musl_gcc().linker("lld"),
        Compiler::musl_gcc().linker("mold"),
    ] {
        let (Some(library), Some(program)) = (
            gcc.library(&["variable.c"], &flags),
            gcc.program(&["threads.c"], &["-ldl"]),
        ) else {
            continue;
        };
        let mut command = Command::new(&program);
        command.arg(format!("lib={}", library.display()));
        let target = Target::spawn(&mut command);
        let resolution = resolved(&target);
        let [variable] = &resolution.variables[..] else {
            panic!("{resolution:?}")
        };
        assert_eq!(variable.access, Access::GeneralDynamic);
        let process = Process::open(target.pid()).unwrap();
        let memory = process.memory().unwrap();
        let mut attached = 0;
        for thread in &target.threads {
            let Some(truth) = &thread.attached else {
                continue;
            };
            let stopped = Stopped::stop(&process, thread.tid, STOP_TIMEOUT).unwrap();
            let address = variable.address(&memory, stopped.thread_pointer());
            stopped.resume().unwrap();
            assert_eq!(address.unwrap(), Some(truth.slot));
            attached += 1;
        }
        assert_eq!(attached, 2);
    }
}
