//! Finding the variable in a process with a module of 1 GiB.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;
use std::process::Command;

use otelctx_fixtures::{Compiler, Target, large_library};
use otelctx_reader::SYMBOL as NAME;
use otelctx_remote::mappings::{self, Walk};
use otelctx_remote::module::{Machine, Module};
use otelctx_remote::tls::resolve;
use otelctx_remote::{
    Device, Error, FileCache, Mapping, Memory, MemoryError, Process, ProcessMemory,
};

use crate::row::Report;

pub(crate) fn run(report: &mut Report) {
    report.group("resolve");
    let Some(library) = large_library() else {
        return report.skipped("a module of 1 GiB", "gcc is not installed");
    };
    let work = "read of a module of 1 GiB, 10 MiB relocations";
    match bytes_read(|| Module::open(&library, NAME)) {
        Ok((bytes, Ok(_))) => report.alone(work, bytes as f64 / 1024.0, "KiB", 1024.0),
        Ok((_, Err(error))) => return report.failed(work, &error.to_string()),
        Err(why) => return report.skipped(work, &why),
    }
    let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
        return;
    };
    let target = Target::spawn(Command::new(program).arg(format!("lib={}", library.display())));
    match twice(target.pid()) {
        Ok([first, second]) => {
            let work = "first resolve, read of all the modules' files";
            report.alone(work, first as f64 / 1024.0, "KiB", None);
            let work = "second resolve, read of all the modules' files";
            report.alone(work, second as f64 / 1024.0, "KiB", 0.0);
        }
        Err(why) => report.failed("resolve", &why),
    }
}

/// Bytes that two resolutions of a process read of its modules' files.
fn twice(pid: i32) -> Result<[u64; 2], String> {
    let text = |error: Error| error.to_string();
    let process = Process::open(pid).map_err(text)?;
    let space = Counted {
        mappings: std::fs::read(format!("/proc/{pid}/maps")).map_err(|error| error.to_string())?,
        memory: process.memory().map_err(text)?,
        process,
        bytes: Cell::new(0),
    };
    let cache = FileCache::new();
    let resolve_once = || {
        let of_memory = space.bytes.get();
        let (bytes, resolution) = bytes_read(|| resolve(&space, &cache, NAME))?;
        match resolution.map_err(text)?.variables.len() {
            1 => Ok(bytes - (space.bytes.get() - of_memory)),
            found => Err(format!("{found} variables in place of one")),
        }
    };
    Ok([resolve_once()?, resolve_once()?])
}

/// Bytes that `work` reads from files on this thread, as the kernel counts them.
fn bytes_read<R>(work: impl FnOnce() -> R) -> Result<(u64, R), String> {
    let so_far = || {
        let text =
            std::fs::read_to_string("/proc/thread-self/io").map_err(|error| error.to_string())?;
        let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
        let bytes: Option<u64> = line.and_then(|bytes| bytes.parse().ok());
        let bytes = bytes.ok_or("no rchar in /proc/thread-self/io")?;
        Ok::<_, String>((bytes, text.len() as u64))
    };
    let (before, own) = so_far()?;
    let result = work();
    Ok((so_far()?.0 - before - own, result))
}

/// A process whose mappings were read before, and whose memory counts the bytes read from it: all
/// other bytes are of the modules' files.
struct Counted {
    process: Process,
    mappings: Vec<u8>,
    memory: ProcessMemory,
    bytes: Cell<u64>,
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
        let walk = mappings::walk(&self.mappings[..], visit);
        walk.map_err(|source| Error::Io {
            path: "maps".into(),
            source,
        })
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
