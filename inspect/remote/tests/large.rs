//! The part of the modules' files that resolving reads, counted by the kernel.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target, large_library};
use otelctx_remote::mappings::{self, Walk};
use otelctx_remote::module::{Module, Symbol};
use otelctx_remote::tls::resolve;
use otelctx_remote::{
    Access, Device, Error, FileCache, Machine, Mapping, Memory, MemoryError, Process,
    ProcessMemory, Stopped, Storage,
};

const NAME: &str = "otel_thread_ctx_v1";
const MIB: u64 = 1 << 20;

/// Bytes that this thread has read from files so far, and the bytes that reading this took. `None` if
/// the kernel does not count (CONFIG_TASK_IO_ACCOUNTING).
fn read_so_far() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/thread-self/io").ok()?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("rchar: "))?;
    Some((bytes.parse().ok()?, text.len() as u64))
}

/// Bytes that `work` reads from files on this thread.
fn bytes_read<R>(work: impl FnOnce() -> R) -> Option<(u64, R)> {
    let (before, own) = read_so_far()?;
    let result = work();
    let (after, _) = read_so_far()?;
    Some((after - before - own, result))
}

/// A process whose mappings were read before, and whose memory counts the bytes that are read of
/// it: all others are of the modules' files.
struct Counted {
    process: Process,
    mappings: Vec<u8>,
    memory: ProcessMemory,
    bytes: Cell<u64>,
}

impl Counted {
    fn new(pid: i32) -> Self {
        let process = Process::open(pid).unwrap();
        Counted {
            mappings: fs::read(format!("/proc/{pid}/maps")).unwrap(),
            memory: process.memory().unwrap(),
            process,
            bytes: Cell::new(0),
        }
    }
}

impl Memory for Counted {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, buffer)?;
        self.bytes.set(self.bytes.get() + buffer.len() as u64);
        Ok(())
    }
}

impl otelctx_remote::Target for Counted {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error> {
        Ok(mappings::walk(&self.mappings[..], visit).unwrap())
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        self.process
            .mapped_file(range, name, device, inode)
            .ok_or(None)
    }

    fn machine(&self) -> Machine {
        Machine::own()
    }

    fn name(&self) -> OsString {
        "the process".into()
    }
}

#[test]
fn a_module_of_1_gib_with_10_mib_of_relative_relocations() {
    let Some(library) = large_library() else {
        return;
    };
    assert!(fs::metadata(&library).unwrap().len() >= 1024 * MIB);
    let Some((bytes, module)) = bytes_read(|| Module::open(&library, NAME).unwrap()) else {
        eprintln!("skipped: the kernel does not count bytes that are read");
        return;
    };
    assert!(matches!(module.symbol, Symbol::Exported { size: 8, .. }));
    assert_eq!(module.relocations[0].access, Access::Tlsdesc);
    // Headers, the dynamic table and a few words of other tables; all that is not relative.
    assert!((1024..=8 * 1024).contains(&bytes), "{bytes} bytes");

    let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
        return;
    };
    let mut command = Command::new(program);
    command.arg(format!("lib={}", library.display()));
    let target = Target::spawn(&mut command);
    let space = Counted::new(target.pid());
    let cache = FileCache::new();
    let resolve = || {
        let of_memory = space.bytes.get();
        let (bytes, resolution) = bytes_read(|| resolve(&space, &cache, NAME).unwrap()).unwrap();
        (bytes - (space.bytes.get() - of_memory), resolution)
    };
    // Of all modules: libc.so and others are among them.
    let (first, resolution) = resolve();
    assert!(bytes < first && first <= MIB, "{first} bytes");
    let (second, again) = resolve();
    assert_eq!(second, 0);
    assert_eq!(again.variables, resolution.variables);

    assert_eq!(resolution.unreadable, []);
    let [variable] = &resolution.variables[..] else {
        panic!("{resolution:?}")
    };
    assert_eq!(Path::new(&variable.module), library);
    assert_eq!(variable.storage(), Storage::Static);
    let mut attached = 0;
    for thread in &target.threads {
        let stopped = Stopped::stop(&space.process, thread.tid, STOP_TIMEOUT).unwrap();
        let address = variable.address(&space, stopped.thread_pointer()).unwrap();
        stopped.resume().unwrap();
        if let Some(truth) = &thread.attached {
            assert_eq!(address, Some(truth.slot));
            assert_eq!(space.read_u64(truth.slot), Ok(truth.record));
            attached += 1;
        }
    }
    assert_eq!(attached, 2);
}
