//! A process whose libraries change while its threads are read.

use std::fs::File;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use otelctx_fixtures::{Compiler, Target as Program};
use remote::mappings::Walk;
use remote::{Device, LiveProcess, Mapping, Memory, MemoryError, Target, ThreadInfo};

use super::*;

/// How many libraries the program has loaded. Each defines the variable.
const LIBRARIES: usize = 3;

/// A process that has one of its libraries loaded at a time: another one in each walk over its
/// mappings, until `changing` walks have been made.
struct Reloading {
    process: LiveProcess<'static>,
    libraries: Vec<Vec<u8>>,
    walks: AtomicUsize,
    changing: usize,
}

impl Memory for Reloading {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.process.read(address, buffer)
    }
}

impl Target for Reloading {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, remote::Error> {
        let walk = self.walks.fetch_add(1, Ordering::Relaxed);
        let loaded = walk.min(self.changing) % LIBRARIES;
        self.process.mappings(&mut |mapping| {
            let library = self.libraries.iter().position(|it| it == mapping.name);
            match library.is_some_and(|library| library != loaded) {
                true => ControlFlow::Continue(()),
                false => visit(mapping),
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
        self.process.mapped_file(range, name, device, inode)
    }

    fn machine(&self) -> remote::module::Machine {
        self.process.machine()
    }

    fn name(&self) -> OsString {
        self.process.name()
    }

    fn is_running(&self) -> bool {
        true
    }

    fn thread_ids(
        &self,
        visit: &mut dyn FnMut(i32) -> ControlFlow<()>,
    ) -> Result<(), remote::Error> {
        self.process.thread_ids(visit)
    }

    fn thread(&self, tid: i32) -> Result<ThreadInfo, remote::Error> {
        self.process.thread(tid)
    }
}

#[test]
fn each_read_of_the_threads_counts_only_if_the_modules_stayed_the_same() {
    let library = |name: &str| {
        let soname = format!("-Wl,-soname,{name}");
        Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu2", &soname])
    };
    let libraries = [
        library("first.so"),
        library("second.so"),
        library("third.so"),
    ];
    let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
        return;
    };
    let Some(libraries) = libraries.into_iter().collect::<Option<Vec<_>>>() else {
        return;
    };
    assert_eq!(libraries.len(), LIBRARIES);
    let mut command = Command::new(program);
    for (argument, library) in ["lib", "beside", "late"].iter().zip(&libraries) {
        command.arg(format!("{argument}={}", library.display()));
    }
    let mut program = Program::spawn(&mut command);
    program.command("attach");
    let process = Box::leak(Box::new(remote::Process::open(program.pid()).unwrap()));
    let memory = Box::leak(Box::new(process.memory().unwrap()));
    let threads = process.thread_ids().unwrap().len();
    let inspect = |changing| {
        let target = Reloading {
            process: LiveProcess::new(process, memory),
            libraries: libraries
                .iter()
                .map(|it| it.as_os_str().as_encoded_bytes().to_vec())
                .collect(),
            walks: AtomicUsize::new(0),
            changing,
        };
        let mut options = Options::default();
        options.any_schema = true;
        let open = |options| Ok(Process::of_target(target, options));
        let inspection = Inspection::begin(options, Duration::from_secs(60), open).unwrap();
        inspection.finish(None).unwrap()
    };
    let always = inspect(usize::MAX);
    let partial = always.partial.unwrap();
    assert!(matches!(partial.why, PartialReason::Modules(_)));
    assert_eq!((partial.read, partial.of), (0, threads));
    assert_eq!(always.reports.len(), 0);
    // As long as the first read takes, and not at all.
    for changing in [3, 0] {
        let settled = inspect(changing);
        assert_eq!(settled.partial, None, "{changing}");
        assert_eq!(settled.reports.len(), threads, "{changing}");
    }
}
