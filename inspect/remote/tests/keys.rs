//! Values of `pthread_setspecific`, as the program itself has them.

use std::process::Command;

use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_remote::libc::CLibrary;
use otelctx_remote::{FileCache, LiveProcess, Memory, Modules, Process, Stopped};

const COUNT: usize = 70;

fn assert_values(compiler: Compiler, flags: &[&str], library: CLibrary) {
    let Some(program) = compiler.program(&["keys.c"], flags) else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let live = LiveProcess::new(&process, &memory);
    let modules = Modules::read(&live, &FileCache::new()).unwrap();
    assert_eq!(modules.c_library(), Some(library));
    let table = modules.thread_db(&live).unwrap();
    assert_eq!(table.is_some(), library == CLibrary::Glibc);
    if let Some(table) = table {
        assert_eq!(table.field("pthread_tid").unwrap().bits, 32);
        assert!(table.offset("pthread_tid") < table.size_of("pthread"));
        assert_eq!(table.offset("pthread_no_such_field"), None);
    }

    let keys = modules.pthread_keys(&live).unwrap().unwrap();
    let stopped = Stopped::stop(&process, target.pid(), STOP_TIMEOUT).unwrap();
    let array = |name| modules.address_of(&live, name).unwrap().1;
    let (numbers, values) = (array("numbers"), array("values"));
    let mut differing = 0;
    for index in 0..COUNT as u64 {
        let number = live.read_u32(numbers + 4 * index).unwrap();
        let value = live.read_u64(values + 8 * index).unwrap();
        let found = keys.get(&live, stopped.thread_pointer(), number).unwrap();
        assert_eq!(found.unwrap_or(0), value, "key {number}");
        differing += u64::from(value == 0x1000 + index);
    }
    // All but the one without a value, and the one that was created again.
    assert_eq!(differing, COUNT as u64 - 2);
    assert_eq!(keys.get(&live, stopped.thread_pointer(), 5000), Ok(None));
    stopped.resume().unwrap();
}

#[test]
fn glibc() {
    assert_values(Compiler::gcc(), &["-rdynamic"], CLibrary::Glibc);
}

/// Only `.symtab` has its variables.
#[test]
fn glibc_without_exports() {
    assert_values(Compiler::gcc(), &["-no-pie"], CLibrary::Glibc);
}

#[test]
fn musl() {
    assert_values(Compiler::musl_gcc(), &["-rdynamic"], CLibrary::Musl);
}
