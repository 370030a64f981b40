//! Compares `/proc` with what programs say about themselves.

use std::process::Command;
use std::time::Instant;

use nix::libc;
use otelctx_fixtures::{Btrfs, Compiler, STOP_TIMEOUT, Target};
use otelctx_remote::{
    Device, Error, FileCache, LiveProcess, LoadedModule, Memory, MemoryError, Module, Modules,
    Process, Target as _,
};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn program() -> Option<std::path::PathBuf> {
    let flags = ["-DLINKED", "-rdynamic"];
    Compiler::gcc().program(&["threads.c", "variable.c"], &flags)
}

#[test]
fn facts_of_a_process() {
    let Some(program) = program() else { return };
    let target = Target::spawn(
        Command::new(&program)
            .env_clear()
            .env("COLOUR", "blue=green"),
    );
    let process = Process::open(target.pid()).unwrap();
    assert_eq!(process.executable().unwrap(), program);
    let comm = program.file_name().unwrap().to_str().unwrap();
    assert_eq!(process.comm().unwrap().to_str().unwrap(), &comm[..15]);
    assert_eq!(
        process.environment(4096).unwrap(),
        [("COLOUR".into(), "blue=green".into())]
    );
    let names: Vec<_> = process.threads().unwrap();
    for thread in &target.threads {
        let found = names.iter().find(|found| found.tid == thread.tid).unwrap();
        assert_eq!(found.name, thread.name.as_str());
        assert!(process.has_thread(thread.tid));
    }
    let status = process.status().unwrap();
    assert_eq!((status.process, status.tracer), (target.pid(), 0));
    assert_eq!(status.namespace_pids.first(), Some(&target.pid()));
    assert!(!status.kernel_thread);
    assert!(!process.has_thread(1));
}

#[test]
fn the_mappings_are_those_of_the_kernel() {
    let Some(program) = program() else { return };
    let target = Target::spawn(&mut Command::new(program));
    let process = Process::open(target.pid()).unwrap();
    // Threads that run still set up their heaps.
    // SAFETY: kill takes numbers only.
    unsafe { libc::kill(target.pid(), libc::SIGSTOP) };
    for tid in process.thread_ids().unwrap() {
        while process.thread_state(tid).unwrap() != 'T' {
            std::thread::yield_now();
        }
    }
    let mut seen = Vec::new();
    let walk = process
        .mappings(&mut |mapping| {
            let it = mapping.permissions;
            let letter = |set, letter| if set { letter } else { '-' };
            let text = format!(
                "{:x}-{:x} {}{}{}{} {:08x} {:02x}:{:02x} {} {}",
                mapping.start,
                mapping.end,
                letter(it.read, 'r'),
                letter(it.write, 'w'),
                letter(it.execute, 'x'),
                if it.shared { 's' } else { 'p' },
                mapping.offset,
                mapping.device.major,
                mapping.device.minor,
                mapping.inode,
                std::str::from_utf8(mapping.name).unwrap(),
            );
            seen.push(
                text.split_whitespace()
                    .map(String::from)
                    .collect::<Vec<_>>(),
            );
            ControlFlow::Continue(())
        })
        .unwrap();
    let text = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let truth: Vec<Vec<String>> = text
        .lines()
        .map(|line| {
            line.split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        })
        .map(|mut words| {
            // The kernel pads addresses to eight digits.
            let range = words[0]
                .split('-')
                .map(|it| it.trim_start_matches('0').to_string());
            words[0] = range.collect::<Vec<_>>().join("-");
            words
        })
        .collect();
    assert_eq!(seen, truth);
    assert_eq!((walk.mappings, walk.malformed), (truth.len() as u64, 0));
}

#[test]
fn memory_that_was_opened_before_an_exec_shows_nothing_after_it() {
    let Some(program) = Compiler::gcc().program::<&str>(&["signals.c"], &[]) else {
        return;
    };
    let mut target = Target::spawn(&mut Command::new(program));
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let mut first = 0;
    let _ = process.mappings(&mut |mapping| {
        first = mapping.start;
        ControlFlow::Break(())
    });
    assert_eq!(memory.read_u32(first), Ok(u32::from_ne_bytes(*b"\x7fELF")));
    assert!(matches!(
        memory.read_u32(8),
        Err(MemoryError::Unmapped { address: 8, .. })
    ));
    assert!(matches!(
        memory.read_u32(u64::MAX - 1),
        Err(MemoryError::Unmapped { .. })
    ));
    target.command("execute");
    let deadline = Instant::now() + STOP_TIMEOUT;
    while memory.read_u32(first).is_ok() {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(
        memory.read_u32(first),
        Err(MemoryError::Gone { address: first })
    );
}

#[test]
fn a_process_that_has_gone_is_not_another_one() {
    let Some(program) = program() else { return };
    let target = Target::spawn(&mut Command::new(program));
    let pid = target.pid();
    let process = Process::open(pid).unwrap();
    assert!(process.exists());
    drop(target);
    assert!(!process.exists());
    assert!(matches!(process.status(), Err(Error::NoSuchProcess { .. })));
    assert!(matches!(process.memory(), Err(Error::NoSuchProcess { .. })));
    assert!(matches!(
        process.threads(),
        Err(Error::NoSuchProcess { .. })
    ));
    let walk = process.mappings(&mut |_| ControlFlow::Continue(()));
    assert!(matches!(walk, Err(Error::NoSuchProcess { .. })));
    assert!(matches!(
        Process::open(pid),
        Err(Error::NoSuchProcess { .. })
    ));
}

#[test]
fn one_address_space_of_two_processes() {
    let Some(program) = program() else { return };
    let target = Target::spawn(Command::new(&program).arg("vfork"));
    let process = Process::open(target.pid()).unwrap();
    let children = format!("/proc/{0}/task/{0}/children", target.pid());
    let deadline = Instant::now() + STOP_TIMEOUT;
    let child: i32 = loop {
        if let Ok(child) = std::fs::read_to_string(&children).unwrap().trim().parse() {
            break child;
        }
        assert!(Instant::now() < deadline);
    };
    let child = Process::open(child).unwrap();
    let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
    if let Some(shared) = process.shares_memory_with(&child) {
        assert!(shared);
        assert_eq!(process.shares_memory_with(&own), Some(false));
    }
    // SAFETY: kill takes numbers only. The child must not outlive the test.
    unsafe { libc::kill(child.pid(), libc::SIGKILL) };
}

#[test]
fn a_kernel_thread_has_no_memory() {
    // 2 is kthreadd, except in a PID namespace.
    let Ok(process) = Process::open(2) else {
        return;
    };
    if process.comm().unwrap() == "kthreadd" {
        assert!(process.status().unwrap().kernel_thread);
        let walk = process.mappings(&mut |_| ControlFlow::Continue(()));
        assert_eq!(walk.map(|walk| walk.mappings).unwrap_or(0), 0);
    }
}

#[test]
fn what_is_no_regular_file_is_not_read() {
    let path = otelctx_fixtures::directory().join(format!("fifo-{}", std::process::id()));
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = Module::open(&path, "x");
    std::fs::remove_file(&path).unwrap();
    assert!(
        matches!(error, Err(Error::NotRegularFile { .. })),
        "{error:?}"
    );
    let error = Module::open("/dev/null".as_ref(), "x");
    assert!(
        matches!(error, Err(Error::NotRegularFile { .. })),
        "{error:?}"
    );
    let error = Module::open("/".as_ref(), "x");
    assert!(
        matches!(error, Err(Error::NotRegularFile { .. })),
        "{error:?}"
    );
}

/// The module of a library in a process that has loaded it.
fn loaded(target: &Target, library: &Path) -> LoadedModule {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let live = LiveProcess::new(&process, &memory);
    let modules = Modules::read(&live, &FileCache::new()).unwrap();
    modules.named(library.as_os_str()).unwrap().clone()
}

/// map_files opens whatever is mapped there by now, and a path whatever lies there: device and inode decide.
#[test]
fn a_mapped_file_is_opened_by_device_and_inode() {
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-O2"]) else {
        return;
    };
    let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
        return;
    };
    let argument = format!("lib={}", library.display());
    let target = Target::spawn(Command::new(&program).arg(argument));
    let module = loaded(&target, &library);
    let process = Process::open(target.pid()).unwrap();
    let opened = |device, inode| {
        let range = (module.start, module.end);
        let name = library.as_os_str().as_bytes();
        process.mapped_file(range, name, device, inode).is_some()
    };
    let elsewhere = Device {
        major: module.device.major + 1,
        ..module.device
    };
    assert!(opened(module.device, module.inode));
    assert!(!opened(module.device, module.inode + 1));
    assert!(!opened(elsewhere, module.inode));
    assert!(!opened(elsewhere, module.inode + 1));
}

/// Its stat(2) gives each subvolume a device number of its own, which no mapping shows.
#[test]
fn a_mapped_file_on_btrfs_is_opened() {
    // Nothing but the device and the inode is compared.
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-Wl,--build-id=none"]) else {
        return;
    };
    let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
        return;
    };
    let Some(mounted) = Btrfs::mount("file") else {
        return;
    };
    let copy = mounted.path().join("library.so");
    std::fs::copy(&library, &copy).unwrap();
    let argument = format!("lib={}", copy.display());
    let target = Target::spawn(Command::new(&program).arg(argument));
    let module = loaded(&target, &copy);
    let metadata = std::fs::metadata(&copy).unwrap();
    let of_stat = Device::from_stat(metadata.dev());
    assert_ne!(of_stat, module.device);
    assert_eq!(metadata.ino(), module.inode);
    let process = Process::open(target.pid()).unwrap();
    let name = copy.as_os_str().as_bytes();
    let mut ranges = Vec::new();
    let read = process.executable_mappings(&mut |code| {
        let mapping = &code.mapping;
        if mapping.name == name {
            ranges.push((mapping.start, mapping.end));
        }
        ControlFlow::Continue(())
    });
    read.unwrap();
    // The first one has the file's header, the executable one has not.
    ranges.push((module.start, module.end));
    assert_eq!(ranges.len(), 2);
    for range in ranges {
        let opened = |device, inode| process.mapped_file(range, name, device, inode);
        let file = opened(module.device, module.inode).unwrap();
        assert_eq!(file.metadata().unwrap().ino(), module.inode);
        assert!(opened(module.device, module.inode + 1).is_none());
        let elsewhere = Device {
            major: module.device.major + 1,
            ..module.device
        };
        assert!(opened(elsewhere, module.inode).is_none());
    }
}

/// Code that a program has moved is found by queries of single mappings, and in the text of all.
#[test]
fn moved_code_is_the_files_however_mappings_are_read() {
    let compiler = Compiler::gcc();
    let (Some(program), Some(library)) = (program(), compiler.library(&["move_text.c"], &["-O2"]))
    else {
        return;
    };
    for to in ["anonymous", "shared", "memfd", "remapped"] {
        for part in [None, Some("middle")] {
            let mut command = Command::new(&program);
            command.env("LD_PRELOAD", &library).env("MOVE_TEXT_TO", to);
            command.env("MOVE_TEXT_OF", "/libc.so");
            if let Some(part) = part {
                command.env("MOVE_TEXT_PART", part);
            }
            let target = Target::spawn(&mut command);
            let process = Process::open(target.pid()).unwrap();
            let memory = process.memory().unwrap();
            let [queried, as_text] = [false, true].map(|as_text| {
                let target = LiveProcess::new(&process, &memory).with_maps_as_text(as_text);
                let mut found = Vec::new();
                let read = target.executable_mappings(&mut |code| {
                    let mapping = &code.mapping;
                    let name = String::from_utf8_lossy(mapping.name).into_owned();
                    // It belongs to no process: the text alone has it.
                    if name != "[vsyscall]" {
                        found.push((mapping.start, mapping.offset, name, code.moved_from));
                    }
                    ControlFlow::Continue(())
                });
                read.unwrap();
                found
            });
            assert_eq!(queried, as_text, "{to} {part:?}");
            let is_moved = |it: &&(u64, u64, String, Option<(u64, u64)>)| it.3.is_some();
            let moved: Vec<_> = queried.iter().filter(is_moved).collect();
            assert_eq!(moved.len(), 1, "{to} {part:?}: {queried:?}");
            assert!(moved[0].2.contains("/libc.so"), "{to} {part:?}: {moved:?}");
        }
    }
}
