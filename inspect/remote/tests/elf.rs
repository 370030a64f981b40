//! ELF files that are not what they say.

use std::fs::File;
use std::io::Read;

use otelctx_fixtures::Compiler;
use otelctx_remote::Access;
use otelctx_remote::elf::{Elf, FileBytes, Source};
use otelctx_remote::module::{self, Module, Symbol};

const NAME: &str = "otel_thread_ctx_v1";

fn library() -> Option<Vec<u8>> {
    let path = Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu2"])?;
    Some(std::fs::read(path).unwrap())
}

#[test]
fn what_a_file_says() {
    let gcc = Compiler::gcc();
    let flags = ["-mtls-dialect=gnu2", "-DBIG=24"];
    let Some(path) = gcc.library(&["variable.c"], &flags) else {
        return;
    };
    let module = Module::open(&path, NAME).unwrap();
    assert_eq!(
        module.symbol,
        Symbol::Exported {
            offset: 24,
            size: 8
        }
    );
    assert_eq!(module.relocations.len(), 1);
    assert_eq!(module.relocations[0].access, Access::Tlsdesc);
    assert!(!module.executable && module.dynamic && !module.interpreter);
    assert_eq!(
        Module::open(&path, "fixture_slot").unwrap().symbol,
        Symbol::NotThreadLocal
    );
    assert_eq!(
        Module::open(&path, "absent").unwrap().symbol,
        Symbol::Absent
    );

    let sources = ["threads.c", "variable.c"];
    let path = gcc.program(&sources, &["-DLINKED", "-DBIG=24"]).unwrap();
    let module = Module::open(&path, NAME).unwrap();
    assert!(
        matches!(module.symbol, Symbol::Local { size: 8, .. }),
        "{module:?}"
    );
    assert!(module.executable && module.interpreter);
    assert_eq!(module.relocations, []);
    let path = gcc
        .program(&sources, &["-DLINKED", "-DBIG=24", "-s"])
        .unwrap();
    assert_eq!(Module::open(&path, NAME).unwrap().symbol, Symbol::Absent);

    let path = gcc.program(&sources, &["-DLINKED", "-static"]).unwrap();
    let module = Module::open(&path, NAME).unwrap();
    assert!(module.executable && !module.interpreter && !module.dynamic);
    assert!(matches!(module.symbol, Symbol::Local { size: 8, .. }));

    let library = gcc.library(&["variable.c"], &["-DSLOT=unused"]).unwrap();
    let flags = ["-DLINKED".into(), "-DREFER".into(), library];
    let path = gcc.program(&sources, &flags).unwrap();
    let module = Module::open(&path, NAME).unwrap();
    assert_eq!(module.symbol, Symbol::Undefined);
    assert_eq!(module.relocations[0].access, Access::InitialExec);
}

/// DT_HASH, which old linkers write and new ones on demand.
#[test]
fn both_hash_tables() {
    for style in ["sysv", "gnu", "both"] {
        let flag = format!("-Wl,--hash-style={style}");
        let Some(path) = Compiler::gcc().library(&["variable.c"], &[flag.as_str()]) else {
            return;
        };
        let module = Module::open(&path, NAME).unwrap();
        assert_eq!(
            module.symbol,
            Symbol::Exported { offset: 0, size: 8 },
            "{style}"
        );
        assert_eq!(module.relocations[0].access, Access::GeneralDynamic);
        let flags = ["-DREFER", flag.as_str()];
        let path = Compiler::gcc().library(&["variable.c"], &flags).unwrap();
        assert_eq!(
            Module::open(&path, NAME).unwrap().symbol,
            Symbol::Undefined,
            "{style}"
        );
    }
}

/// Linkers that export nothing write a hash table of another form.
#[test]
fn a_reference_in_a_module_that_exports_nothing() {
    for linker in ["bfd", "gold", "lld", "mold"] {
        for style in ["sysv", "gnu"] {
            let style = format!("-Wl,--hash-style={style}");
            let flags = ["-DREFER", "-fvisibility=hidden", &style];
            let compiler = Compiler::gcc().linker(linker);
            let Some(path) = compiler.library(&["variable.c"], &flags) else {
                continue;
            };
            let module = Module::open(&path, NAME).unwrap();
            assert_eq!(module.symbol, Symbol::Undefined, "{linker} {style}");
            assert_eq!(module.relocations.len(), 1, "{linker} {style}");
        }
    }
}

#[test]
fn cut_anywhere() {
    let Some(bytes) = library() else { return };
    assert!(Module::from_bytes(&bytes, NAME).is_some());
    for length in (0..bytes.len()).step_by(7) {
        let _ = Module::from_bytes(&bytes[..length], NAME);
    }
    assert_eq!(Module::from_bytes(b"\x7fELF", NAME), None);
    assert_eq!(Module::from_bytes(b"#!/bin/sh\n", NAME), None);
}

#[test]
fn any_byte_wrong() {
    let Some(bytes) = library() else { return };
    let mut broken = bytes.clone();
    for at in 0..bytes.len() {
        for value in [0, 0x7f, 0xff] {
            broken[at] = value;
            let _ = Module::from_bytes(&broken, NAME);
        }
        broken[at] = bytes[at];
    }
}

/// Number of this thread's calls of read(2) and pread(2), this one's included. `None` where the kernel does not
/// count them (CONFIG_TASK_IO_ACCOUNTING).
fn reads() -> Option<u64> {
    let mut text = [0; 1024];
    let size = File::open("/proc/thread-self/io").ok()?.read(&mut text);
    let text = String::from_utf8_lossy(&text[..size.ok()?]).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("syscr: "));
    line?.parse().ok()
}

#[test]
fn what_the_kernel_writes_as_it_is_read_is_no_module() {
    let count = |work: &dyn Fn()| {
        let before = reads()?;
        work();
        Some(reads()? - before)
    };
    let file = File::open("/proc/self/maps").unwrap();
    let build_ids = || {
        assert_eq!(module::build_id(&file), None);
        assert_eq!(module::code_build_id(&file), None);
    };
    assert_eq!(count(&build_ids), count(&|| ()));
    let own = File::open(std::env::current_exe().unwrap()).unwrap();
    let own = count(&|| drop(module::build_id(&own)));
    assert!(own.is_none() || own > count(&|| ()), "{own:?}");
}

/// To be found by the beginning of its name.
#[unsafe(no_mangle)]
extern "C" fn named_for_its_beginning_alone() -> u32 {
    7
}

#[test]
fn functions_are_found_by_the_beginning_of_their_names() {
    assert_eq!(std::hint::black_box(named_for_its_beginning_alone)(), 7);
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let bytes = FileBytes(&file);
    let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
    let found = elf
        .functions_with_prefix(b"named_for_its_beginning_")
        .unwrap();
    let symbol = elf
        .symbol(b"named_for_its_beginning_alone")
        .unwrap()
        .unwrap();
    let [function] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(function.name, b"named_for_its_beginning_alone");
    assert_eq!(
        (function.address, function.size),
        (symbol.value, symbol.size)
    );
    let none = elf
        .functions_with_prefix(b"named_for_its_beginning_alone_")
        .unwrap();
    assert_eq!(none, []);
}
