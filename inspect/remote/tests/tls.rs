//! Finds the variable in programs that print where it is, in every way that linkers reach it.

use std::path::Path;
use std::process::Command;

use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_remote::module::{Module, Symbol};
use otelctx_remote::tls::resolve;
use otelctx_remote::{
    Access, FileCache, LiveProcess, Memory, Process, Stopped, Storage, TlsVariable,
};

const NAME: &str = "otel_thread_ctx_v1";

/// Forces storage of TLS descriptors to be dynamic (glibc manual, "Dynamic Linking Tunables").
const NO_SURPLUS: (&str, &str) = ("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");

/// The variables that a reader would use in the process.
fn variables(target: &Target) -> Vec<TlsVariable> {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let resolution = resolve(
        &LiveProcess::new(&process, &memory),
        &FileCache::new(),
        NAME,
    )
    .unwrap();
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
        let stopped = Stopped::stop(&process, thread.tid, STOP_TIMEOUT).unwrap();
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

/// bionic names itself so, and libhybris loads it beside glibc. It is none of the C libraries that are
/// known, and the process's own is glibc.
#[test]
fn a_library_with_the_name_of_musl_beside_glibc() {
    let flags = ["-mtls-dialect=gnu2", "-Wl,-soname,libc.so"];
    let Some(library) = Compiler::gcc().library(&["variable.c"], &flags) else {
        return;
    };
    let Some(program) = loader() else { return };
    let mut command = Command::new(&program);
    command.arg(format!("lib={}", library.display()));
    command.env(NO_SURPLUS.0, NO_SURPLUS.1);
    let target = Target::spawn(&mut command);
    assert_found(&target, &library, Access::Tlsdesc, Storage::Dynamic);
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

/// Holds the check of the DTV's marker: the idle thread's entry says "not allocated", and is no
/// block. And static evidence wins over that: the worker's entry for an initial-exec variable says
/// the same, and the variable is there.
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

/// The heap of a program at a fixed address lies low: a descriptor's argument, which is a pointer
/// into it, is small.
#[test]
fn loaded_library_of_a_program_at_a_fixed_address() {
    for (flags, access) in MODELS {
        let Some(library) = Compiler::gcc().library(&["variable.c"], flags) else {
            return;
        };
        let flags = ["-no-pie", "-fno-pie", "-ldl"];
        let Some(program) = Compiler::gcc().program(&["threads.c"], &flags) else {
            return;
        };
        let mut command = Command::new(&program);
        command
            .arg(format!("lib={}", library.display()))
            .env(NO_SURPLUS.0, NO_SURPLUS.1);
        let storage = match access {
            Access::InitialExec => Storage::Static,
            _ => Storage::Dynamic,
        };
        assert_found(&Target::spawn(&mut command), &library, *access, storage);
    }
}

/// A symbolizer maps a module's file once more, next to the module: that is no second module, and
/// does not say where the module begins.
#[test]
fn a_second_mapping_of_the_file_next_to_the_module() {
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu2"]) else {
        return;
    };
    let Some(program) = loader() else { return };
    let mut command = Command::new(&program);
    command.arg(format!("lib={}", library.display()));
    command.arg("shadow").env(NO_SURPLUS.0, NO_SURPLUS.1);
    let target = Target::spawn(&mut command);
    assert_found(&target, &library, Access::Tlsdesc, Storage::Dynamic);
}

/// A library that can be run has an interpreter like a program, and its storage is a library's.
#[test]
fn library_that_can_be_run() {
    let flags = ["-mtls-dialect=gnu", "-DINTERPRETER"];
    let Some(library) = Compiler::gcc().library(&["variable.c"], &flags) else {
        return;
    };
    let Some(program) = loader() else { return };
    let mut command = Command::new(&program);
    command.arg(format!("lib={}", library.display()));
    let target = Target::spawn(&mut command);
    assert_found(&target, &library, Access::GeneralDynamic, Storage::Dynamic);
}

/// A program started through its dynamic linker: /proc/PID/exe is ld.so.
#[test]
fn program_started_through_ld_so() {
    let Some((target, program)) = executable(Compiler::gcc(), &[]) else {
        return;
    };
    drop(target);
    let loader = "/lib64/ld-linux-x86-64.so.2";
    if !Path::new(loader).exists() {
        eprintln!("skipped: {loader} is not there");
        return;
    }
    let target = Target::spawn(Command::new(loader).arg(&program));
    assert_found(&target, &program, Access::LocalExec, Storage::Static);
}

/// Holds the rounding of the segment's size up to its alignment.
#[test]
fn a_segment_whose_size_is_no_multiple_of_its_alignment() {
    for linker in ["bfd", "gold", "lld", "mold"] {
        let compiler = Compiler::gcc().linker(linker);
        let Some((target, program)) = executable(compiler, &["-DMISALIGN"]) else {
            continue;
        };
        assert_found(&target, &program, Access::LocalExec, Storage::Static);
    }
}

/// Holds that the block is as misaligned as the segment. Its address is moved off its alignment,
/// which linkers only do under orders.
#[test]
fn a_segment_whose_address_is_misaligned() {
    let script =
        otelctx_fixtures::directory().join(format!("misaligned-{}.ld", std::process::id()));
    std::fs::write(
        &script,
        "SECTIONS { .tdata 0x800008 : SUBALIGN(8) { *(.tdata .tdata.*) } .tbss : { *(.tbss .tbss.*) } } \
         INSERT AFTER .data;",
    )
    .unwrap();
    let flag = format!("-Wl,-T,{}", script.display());
    let found = executable(Compiler::gcc(), &["-DMISALIGN", "-no-pie", &flag]);
    std::fs::remove_file(&script).unwrap();
    let Some((target, program)) = found else {
        return;
    };
    assert_found(&target, &program, Access::LocalExec, Storage::Static);
}

#[test]
fn large_thread_local_storage() {
    let Some((target, program)) = executable(Compiler::gcc(), &["-DBIG=131072"]) else {
        return;
    };
    assert_found(&target, &program, Access::LocalExec, Storage::Static);

    // Too large for the static surplus: dynamic also with descriptors.
    let flags = ["-mtls-dialect=gnu2", "-DBIG=131072"];
    let Some(library) = Compiler::gcc().library(&["variable.c"], &flags) else {
        return;
    };
    let Some(program) = loader() else { return };
    let mut command = Command::new(&program);
    command.arg(format!("lib={}", library.display()));
    assert_found(
        &Target::spawn(&mut command),
        &library,
        Access::Tlsdesc,
        Storage::Dynamic,
    );
}

#[test]
fn other_compilers_and_linkers() {
    for compiler in [
        Compiler::clang(),
        Compiler::clang().linker("lld"),
        Compiler::gcc().linker("gold"),
        Compiler::gcc().linker("lld"),
        Compiler::gcc().linker("mold"),
    ] {
        let Some((target, program)) = executable(compiler, &[]) else {
            continue;
        };
        assert_found(&target, &program, Access::LocalExec, Storage::Static);
        drop(target);

        let Some(library) = compiler.library(&["variable.c"], &["-ftls-model=global-dynamic"])
        else {
            continue;
        };
        let Some(program) = loader() else { return };
        let mut command = Command::new(&program);
        command.arg(format!("lib={}", library.display()));
        let target = Target::spawn(&mut command);
        assert_found(&target, &library, Access::GeneralDynamic, Storage::Dynamic);
    }
    for linker in ["gold", "lld", "mold"] {
        // .rela.dyn or .rela.plt, with or without symbol: linkers differ.
        for symbolic in ["-Wl,-Bdynamic", "-Wl,-Bsymbolic"] {
            let flags = ["-mtls-dialect=gnu2", symbolic];
            let compiler = Compiler::gcc().linker(linker);
            let Some(library) = compiler.library(&["variable.c"], &flags) else {
                continue;
            };
            let Some(program) = loader() else { return };
            let mut command = Command::new(&program);
            command
                .arg(format!("lib={}", library.display()))
                .env(NO_SURPLUS.0, NO_SURPLUS.1);
            assert_found(
                &Target::spawn(&mut command),
                &library,
                Access::Tlsdesc,
                Storage::Dynamic,
            );
        }
    }
}

/// -Bsymbolic binds inside of the library: relocations name no symbol. Addends match, and for the
/// traditional model, which then has a DTPMOD64 without a DTPOFF64, the next word of the table.
#[test]
fn relocations_without_symbol() {
    for (flags, access) in MODELS {
        let mut flags = flags.to_vec();
        // Another variable in front, so that an offset of 0 does not pass for a match.
        flags.extend(["-Wl,-Bsymbolic", "-DBIG=24"]);
        let Some(library) = Compiler::gcc().library(&["variable.c"], &flags) else {
            return;
        };
        let Some(program) = loader() else { return };
        let mut command = Command::new(&program);
        command.arg(format!("lib={}", library.display()));
        let target = Target::spawn(&mut command);
        let found = variables(&target);
        let [variable] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(variable.access, *access);
        assert_threads(&target, variable);
    }
}

#[test]
fn local_dynamic_is_read_and_distinguished() {
    let flags = ["-mtls-dialect=gnu", "-DMODEL=\"local-dynamic\"", "-DBIG=24"];
    let Some(library) = Compiler::gcc().library(&["variable.c"], &flags) else {
        return;
    };
    let Some(program) = loader() else { return };
    let mut command = Command::new(&program);
    command.arg(format!("lib={}", library.display()));
    assert_found(
        &Target::spawn(&mut command),
        &library,
        Access::LocalDynamic,
        Storage::Dynamic,
    );
}

#[test]
fn variable_that_the_executable_only_refers_to() {
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-DSLOT=unused"]) else {
        return;
    };
    for pie in ["-no-pie", "-pie"] {
        let flags = [
            "-DLINKED".into(),
            "-DREFER".into(),
            pie.into(),
            library.clone(),
        ];
        let sources = ["threads.c", "variable.c"];
        let Some(program) = Compiler::gcc().program(&sources, &flags) else {
            return;
        };
        let target = Target::spawn(&mut Command::new(&program));
        let found = variables(&target);
        let [variable] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(Path::new(&variable.module), library);
        assert_eq!(variable.storage(), Storage::Static);
        assert_threads(&target, variable);
    }
}

#[test]
fn stripped() {
    let Some((target, program)) = executable(Compiler::gcc(), &["-s"]) else {
        return;
    };
    assert_found(&target, &program, Access::LocalExec, Storage::Static);
}

#[test]
fn symbol_that_is_not_exported_is_found_and_said_to_be_so() {
    // dlopen in a static program is worth a warning to the linker; it is not called here.
    for kind in ["-pie", "-static", "-static-pie"] {
        let flags = ["-DLINKED", "-fPIE", kind];
        let sources = ["threads.c", "variable.c"];
        let Some(program) = Compiler::gcc().program(&sources, &flags) else {
            return;
        };
        let target = Target::spawn(&mut Command::new(&program));
        let found = variables(&target);
        let [variable] = &found[..] else {
            panic!("{kind}: {found:?}")
        };
        assert!(!variable.exported);
        assert_eq!(
            (variable.access, variable.storage()),
            (Access::LocalExec, Storage::Static)
        );
        assert_threads(&target, variable);
    }
}

const HIDE: &str = concat!(
    "-Wl,--version-script=",
    env!("CARGO_MANIFEST_DIR"),
    "/../../testing/fixtures/programs/local.map"
);

/// gold, and mold for TLS descriptors, name a hidden variable in `.dynsym`, local to the module.
#[test]
fn hidden_in_a_library() {
    for (linker, (model, access)) in ["bfd", "gold", "lld", "mold"]
        .into_iter()
        .flat_map(|linker| MODELS.iter().map(move |model| (linker, model)))
    {
        let mut flags = model.to_vec();
        // The function that leads to the variable stays visible.
        flags.extend([HIDE, "-DBIG=24"]);
        let compiler = Compiler::gcc().linker(linker);
        let Some(library) = compiler.library(&["variable.c"], &flags) else {
            continue;
        };
        let module = Module::open(&library, NAME).unwrap();
        let local = Symbol::Local {
            offset: 24,
            size: 8,
        };
        assert_eq!(module.symbol, local, "{linker} {model:?}");
        assert!(module.relocations.iter().all(|it| !it.named), "{module:?}");
        let Some(program) = loader() else { return };
        let lib = format!("lib={}", library.display());
        let target = Target::spawn(Command::new(&program).arg(lib));
        let found = variables(&target);
        let [variable] = &found[..] else {
            panic!("{linker} {model:?}: {found:?}")
        };
        assert_eq!((variable.access, variable.exported), (*access, false));
        assert_threads(&target, variable);
    }
}

#[test]
fn several_definitions_of_which_one_is_used() {
    // The executable's own comes first in the dynamic linker's order, so the library's references
    // are bound to it.
    for (flags, _) in MODELS {
        let Some(library) = Compiler::gcc().library(&["variable.c"], flags) else {
            return;
        };
        let flags = [
            "-DLINKED".into(),
            "-rdynamic".into(),
            "-DSLOT=own_slot".into(),
            library.clone(),
        ];
        let sources = ["threads.c", "variable.c"];
        let Some(program) = Compiler::gcc().program(&sources, &flags) else {
            return;
        };
        let target = Target::spawn(&mut Command::new(&program));
        let process = Process::open(target.pid()).unwrap();
        let memory = process.memory().unwrap();
        let resolution = resolve(
            &LiveProcess::new(&process, &memory),
            &FileCache::new(),
            NAME,
        )
        .unwrap();
        let [variable] = &resolution.variables[..] else {
            panic!("{resolution:?}")
        };
        assert_eq!(Path::new(&variable.module), program);
        assert_eq!(resolution.bound_elsewhere, [library.as_os_str()]);
        assert_threads(&target, variable);
    }
}

#[test]
fn two_libraries_with_a_definition_each() {
    // The second library is loaded with a scope of its own, behind the first in the global one.
    let Some(linked) = Compiler::gcc().library(&["variable.c"], &["-DSLOT=linked_slot"]) else {
        return;
    };
    let flags = ["-mtls-dialect=gnu", "-Wl,-Bsymbolic", "-DBIG=40"];
    let Some(loaded) = Compiler::gcc().library(&["variable.c"], &flags) else {
        return;
    };
    let flags = ["-Wl,--no-as-needed".into(), linked.clone()];
    let Some(program) = Compiler::gcc().program(&["threads.c"], &flags) else {
        return;
    };
    let mut command = Command::new(&program);
    command.arg(format!("lib={}", loaded.display()));
    let target = Target::spawn(&mut command);
    let found = variables(&target);
    assert_eq!(found.len(), 2, "{found:?}");
    let used = found
        .iter()
        .find(|variable| Path::new(&variable.module) == loaded)
        .unwrap();
    assert_threads(&target, used);
    // The other one holds nothing, in any thread.
    let unused = found
        .iter()
        .find(|variable| Path::new(&variable.module) == linked)
        .unwrap();
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    for thread in &target.threads {
        let stopped = Stopped::stop(&process, thread.tid, STOP_TIMEOUT).unwrap();
        let address = unused
            .address(&memory, stopped.thread_pointer())
            .unwrap()
            .unwrap();
        assert_eq!(memory.read_u64(address), Ok(0));
    }
}

#[test]
fn threads_that_are_older_than_the_library() {
    for (flags, access) in MODELS {
        for surplus in [true, false] {
            let Some(library) = Compiler::gcc().library(&["variable.c"], flags) else {
                return;
            };
            let Some(program) = loader() else { return };
            let mut command = Command::new(&program);
            command.arg(format!("late={}", library.display()));
            if !surplus {
                command.env(NO_SURPLUS.0, NO_SURPLUS.1);
            }
            let mut target = Target::spawn(&mut command);
            assert!(variables(&target).is_empty());
            target.command("attach");
            let found = variables(&target);
            let [variable] = &found[..] else {
                panic!("{found:?}")
            };
            assert_eq!(variable.access, *access);
            assert_threads(&target, variable);
        }
    }
}

/// After dlclose and dlopen the second library takes the first one's module id. A thread that
/// has not touched the new one still holds the old one's block under that id: the check of the
/// generation tells, which traditional references have from the dynamic linker's list alone.
#[test]
fn recycled_module_id() {
    for dialect in ["-mtls-dialect=gnu2", "-mtls-dialect=gnu"] {
        // Different sizes make different files, and different blocks.
        let library = |big: &str| Compiler::gcc().library(&["variable.c"], &[dialect, big]);
        let (Some(first), Some(second)) = (library("-DBIG=64"), library("-DBIG=72")) else {
            return;
        };
        let Some(program) = loader() else { return };
        let mut command = Command::new(&program);
        command
            .arg(format!("lib={}", first.display()))
            .arg(format!("then={}", second.display()))
            .arg("workers=3")
            .env(NO_SURPLUS.0, NO_SURPLUS.1);
        let mut target = Target::spawn(&mut command);
        assert_found(
            &target,
            &first,
            if dialect.ends_with('2') {
                Access::Tlsdesc
            } else {
                Access::GeneralDynamic
            },
            Storage::Dynamic,
        );
        target.command("reload");
        // Only the first worker has reached for the second library's variable.
        for thread in &mut target.threads {
            if thread.name != "worker-0" {
                thread.attached = None;
            }
        }
        let found = variables(&target);
        let [variable] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(Path::new(&variable.module), second);
        assert_threads(&target, variable);
    }
}

#[test]
fn thread_group_leader_that_has_exited() {
    let Some((target, program)) = executable(Compiler::gcc(), &[]) else {
        return;
    };
    drop(target);
    let target = Target::spawn(Command::new(&program).arg("exit-leader"));
    let process = Process::open(target.pid()).unwrap();
    while process.thread_state(target.pid()).unwrap() != 'Z' {
        std::thread::yield_now();
    }
    assert_found(&target, &program, Access::LocalExec, Storage::Static);
    assert_eq!(process.executable().unwrap(), program);
}

#[test]
fn threads_that_never_sleep() {
    let Some((target, program)) = executable(Compiler::gcc(), &[]) else {
        return;
    };
    drop(target);
    let target = Target::spawn(Command::new(&program).arg("busy"));
    assert_found(&target, &program, Access::LocalExec, Storage::Static);
}

/// A deleted file is read through map_files, or where it is loaded; a new file of that name never.
#[test]
fn deleted_and_replaced_files() {
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-DBIG=16"]) else {
        return;
    };
    let Some(other) = Compiler::gcc().library(&["variable.c"], &["-DBIG=4096"]) else {
        return;
    };
    let Some(program) = loader() else { return };
    let copy = library.with_extension(format!("copy-{}.so", std::process::id()));
    for replace in [false, true] {
        std::fs::copy(&library, &copy).unwrap();
        let target = Target::spawn(Command::new(&program).arg(format!("lib={}", copy.display())));
        std::fs::remove_file(&copy).unwrap();
        if replace {
            std::fs::copy(&other, &copy).unwrap();
        }
        let found = variables(&target);
        let _ = std::fs::remove_file(&copy);
        let [variable] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(variable.access, Access::GeneralDynamic);
        assert_threads(&target, variable);
    }
}
