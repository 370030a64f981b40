//! Reads contexts out of core files, and compares them with what the program said before.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::{Compiler, CoreDirectory, Target};
use otelctx_reader::format::process_context::Value;
use otelctx_reader::format::record::DecodedContext;
use otelctx_reader::remote::core_file::Missing;
use otelctx_reader::remote::{Access, CoreFile, Storage};
use otelctx_reader::{
    Broken, ContextState, Error, Found, Options, Process, ThreadSupport, Unreadable,
};

const SOURCES: [&str; 4] = ["threads.c", "variable.c", "publish.c", "symbols.c"];
const LINKED: [&str; 3] = ["-DLINKED", "-rdynamic", "-Wl,--build-id"];
const NO_LIMIT: u64 = u64::MAX;
const SIGSEGV: i32 = 11;
/// Forces storage of TLS descriptors to be dynamic (glibc manual, "Dynamic Linking Tunables").
const NO_SURPLUS: (&str, &str) = ("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");

fn program(flags: &[&str]) -> Option<PathBuf> {
    let mut all = LINKED.to_vec();
    all.extend(flags);
    Compiler::gcc().program(&SOURCES, &all)
}

/// A core file as a process, and what it lacks as a whole.
struct Core {
    process: Process,
    missing: Vec<Missing>,
}

impl Core {
    fn open(path: &Path, root: &Path) -> Result<Self, Error> {
        let core = CoreFile::open(path, root)?;
        Ok(Core {
            missing: core.missing().to_vec(),
            process: Process::of_target(core, Options::default()),
        })
    }

    /// Ids of its threads, and the context of each.
    fn threads(&mut self) -> Vec<(i32, Result<Found<DecodedContext>, Error>)> {
        let threads = self.process.threads().unwrap();
        threads.iter().map(|it| (it.tid(), it.context())).collect()
    }

    /// The context of each of these threads is what the program said.
    #[track_caller]
    fn assert_threads(&mut self, threads: &[otelctx_fixtures::Thread]) -> usize {
        let read = self.threads();
        for thread in threads {
            let (_, context) = read.iter().find(|(tid, _)| *tid == thread.tid).unwrap();
            assert_outcome(thread, context.as_ref().unwrap());
        }
        read.len()
    }
}

/// A program's cores, and what it said of itself.
struct Crashed {
    directory: CoreDirectory,
    target: Target,
    /// Thread that the signal went to.
    tid: i32,
    kernel: Option<PathBuf>,
    gcore: Option<PathBuf>,
}

impl Crashed {
    fn new(command: &mut Command) -> Self {
        Self::limited(command, NO_LIMIT)
    }

    fn limited(command: &mut Command, limit: u64) -> Self {
        let directory = CoreDirectory::new();
        directory.allow(command, limit);
        let mut target = Target::spawn(command);
        let gcore = directory.gcore(&target);
        let tid = target.threads[1].tid;
        let kernel = directory.crash(&mut target, tid, SIGSEGV);
        Crashed {
            directory,
            target,
            tid,
            kernel,
            gcore,
        }
    }

    fn cores(&self) -> impl Iterator<Item = &PathBuf> {
        self.kernel.iter().chain(&self.gcore)
    }

    /// Everything in the core is what the program said.
    #[track_caller]
    fn assert_read(&self, path: &Path, root: &Path, module: &Path, how: (Access, Storage)) {
        let mut core = Core::open(path, root).unwrap();
        assert_eq!(core.missing, []);
        assert_eq!(core.process.pid(), Some(self.target.pid()));
        assert!(
            matches!(core.process.running(), Err(Error::NotRunning { name }) if Path::new(&name) == path)
        );
        assert_published(&core.process.context().unwrap());
        let support = core.process.thread_support().unwrap();
        let ThreadSupport::Readable(variables) = &support else {
            panic!("{support:?}")
        };
        assert_eq!(variables.resolution.unreadable, []);
        let [variable] = &variables.resolution.variables[..] else {
            panic!("{variables:?}")
        };
        assert_eq!(Path::new(&variable.module), module);
        assert_eq!((variable.access, variable.storage()), how);
        let threads = core.assert_threads(&self.target.threads);
        // Those, main, and the one that reads commands.
        assert_eq!(threads, self.target.threads.len() + 2);
    }
}

#[track_caller]
fn assert_published(context: &ContextState) {
    let ContextState::Published(context) = context else {
        panic!("{context:?}")
    };
    let service = Value::from("fixture");
    assert_eq!(
        context.payload.resource,
        [("service.name".to_string(), service)]
    );
}

#[track_caller]
fn assert_outcome(thread: &otelctx_fixtures::Thread, outcome: &Found<DecodedContext>) {
    match &thread.attached {
        None => assert_eq!(*outcome, Found::Detached, "{thread:?}"),
        Some(truth) => {
            let context = outcome.attached().unwrap_or_else(|| panic!("{thread:?}"));
            assert_eq!(context.trace_id.to_string(), truth.trace_id);
            assert_eq!(context.span_id.to_string(), truth.span_id);
            let name = ("worker".to_string(), thread.name.clone());
            assert_eq!(context.attributes, [name]);
        }
    }
}

#[test]
fn programs() {
    let all: [&[&str]; 4] = [
        &["-pie", "-fPIE"],
        &["-no-pie", "-fno-pie"],
        &["-s"],
        &["-DANONYMOUS"],
    ];
    for flags in all {
        let Some(program) = program(flags) else {
            return;
        };
        let crashed = Crashed::new(&mut Command::new(&program));
        for core in crashed.cores() {
            let how = (Access::LocalExec, Storage::Static);
            crashed.assert_read(core, Path::new("/"), &program, how);
        }
    }
}

#[test]
fn loaded_libraries() {
    let models = [
        ("-mtls-dialect=gnu2", Access::Tlsdesc, Storage::Dynamic),
        (
            "-mtls-dialect=gnu",
            Access::GeneralDynamic,
            Storage::Dynamic,
        ),
        (
            "-ftls-model=initial-exec",
            Access::InitialExec,
            Storage::Static,
        ),
    ];
    for (flag, access, storage) in models {
        let compiler = Compiler::gcc();
        let Some(library) = compiler.library(&["variable.c"], &[flag, "-Wl,--build-id"]) else {
            return;
        };
        let sources = ["threads.c", "publish.c"];
        let Some(program) = compiler.program(&sources, &["-ldl", "-Wl,--build-id"]) else {
            return;
        };
        let mut command = Command::new(&program);
        command.arg(format!("lib={}", library.display()));
        command.env(NO_SURPLUS.0, NO_SURPLUS.1);
        let crashed = Crashed::new(&mut command);
        for core in crashed.cores() {
            crashed.assert_read(core, Path::new("/"), &library, (access, storage));
        }
    }
}

#[test]
fn the_thread_that_crashed_comes_first() {
    let Some(program) = program(&[]) else { return };
    let crashed = Crashed::new(&mut Command::new(&program));
    if let Some(path) = &crashed.kernel {
        let core = CoreFile::open(path, Path::new("/")).unwrap();
        assert_eq!(core.crash(), Some((SIGSEGV, crashed.tid)));
        assert_eq!(core.executable().as_deref(), Some(program.as_os_str()));
    }
    if let Some(path) = &crashed.gcore {
        let core = CoreFile::open(path, Path::new("/")).unwrap();
        assert_eq!(core.crash(), None);
        assert_eq!(core.executable().as_deref(), Some(program.as_os_str()));
    }
}

/// A copy of the program in the test's own directory, and the cores of that.
fn crashed_copy() -> Option<(PathBuf, CoreDirectory, Crashed)> {
    let program = program(&["-s"])?;
    let directory = CoreDirectory::new();
    let copy = directory.path().join("shop");
    otelctx_fixtures::copy_program(program, &copy);
    let crashed = Crashed::new(&mut Command::new(&copy));
    Some((copy, directory, crashed))
}

/// Build-id of a program, as binutils reads it.
fn build_id(program: &Path) -> String {
    let output = Command::new("readelf").arg("-n").arg(program).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let id = text.split("Build ID: ").nth(1).unwrap();
    id.lines().next().unwrap().to_string()
}

#[test]
fn files_of_another_machine_are_found_by_build_id() {
    let Some((copy, directory, crashed)) = crashed_copy() else {
        return;
    };
    let id = build_id(&copy);
    let root = directory.path().join("root");
    let how = (Access::LocalExec, Storage::Static);
    for place in [
        root.join(copy.strip_prefix("/").unwrap()),
        root.join("usr/lib/.build-id").join(&id[..2]).join(&id[2..]),
        root.join("usr/lib/debug/.build-id")
            .join(&id[..2])
            .join(&id[2..]),
        root.join(&id).join("executable"),
        root.join("shop"),
    ] {
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(&copy, &place).unwrap();
        for core in crashed.cores() {
            let mut core = Core::open(core, &root).unwrap();
            let support = core.process.thread_support().unwrap();
            let ThreadSupport::Readable(variables) = &support else {
                panic!("{support:?}")
            };
            let variable = &variables.resolution.variables[0];
            assert_eq!((variable.access, variable.storage()), how);
            core.assert_threads(&crashed.target.threads);
        }
        fs::remove_dir_all(&root).unwrap();
    }
}

/// It has the program's build ID, and nothing of what the core lacks.
#[test]
fn a_file_of_debug_information_alone_is_not_used() {
    let Some((copy, directory, crashed)) = crashed_copy() else {
        return;
    };
    let id = build_id(&copy);
    let root = directory.path().join("root");
    let by_name = root.join(copy.strip_prefix("/").unwrap());
    let by_id = root.join(".build-id").join(&id[..2]).join(&id[2..]);
    for place in [&by_name, &by_id] {
        fs::create_dir_all(place.parent().unwrap()).unwrap();
    }
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--only-keep-debug").arg(&copy).arg(&by_name);
    assert!(objcopy.status().unwrap().success());
    assert_eq!(build_id(&by_name), id);
    if let Some(core) = &crashed.kernel {
        let core = Core::open(core, &root).unwrap();
        let reason = not_found(core, &copy);
        assert!(reason.contains(&format!("build ID {id}")), "{reason}");
    }
    // Nor does it stand in the way of the program.
    fs::copy(&copy, &by_id).unwrap();
    for core in crashed.cores() {
        let mut core = Core::open(core, &root).unwrap();
        core.assert_threads(&crashed.target.threads);
    }
}

#[test]
fn a_file_with_another_build_id_is_not_used() {
    let Some((copy, directory, crashed)) = crashed_copy() else {
        return;
    };
    // The same program but for one byte of its build ID, then none at all.
    let id = build_id(&copy);
    let bytes = fs::read(&copy).unwrap();
    let raw: Vec<u8> = (0..id.len() / 2)
        .map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let at = bytes.windows(raw.len()).position(|it| it == raw).unwrap();
    let mut other = bytes.clone();
    other[at] ^= 1;
    fs::remove_file(&copy).unwrap();
    for present in [true, false] {
        if present {
            fs::write(&copy, &other).unwrap();
        } else {
            fs::remove_file(&copy).unwrap();
        }
        // gdb writes the whole of the mapping that has the headers, and with it the symbols.
        if let Some(core) = &crashed.kernel {
            let mut core = Core::open(core, directory.path()).unwrap();
            assert_published(&core.process.context().unwrap());
            let reason = not_found(core, &copy);
            assert!(reason.contains(&format!("build ID {id}")), "{reason}");
            assert!(reason.contains("is not in the core"), "{reason}");
        }
    }
}

/// Why a module was not inspected.
#[track_caller]
fn not_found(mut core: Core, module: &Path) -> String {
    let support = core.process.thread_support().unwrap();
    let ThreadSupport::Unreadable(Unreadable::NotFound { unreadable }) = &support else {
        panic!("{support:?}")
    };
    let known = unreadable
        .iter()
        .find(|(name, _)| Path::new(name) == module);
    known.unwrap().1.clone()
}

#[test]
fn a_program_without_build_id_is_not_guessed() {
    let flags = ["-DLINKED", "-rdynamic", "-Wl,--build-id=none"];
    let Some(program) = Compiler::gcc().program(&SOURCES, &flags) else {
        return;
    };
    let crashed = Crashed::new(&mut Command::new(&program));
    if let Some(core) = &crashed.kernel {
        let core = Core::open(core, Path::new("/")).unwrap();
        let reason = not_found(core, &program);
        assert!(reason.contains("it has no build ID"), "{reason}");
    }
    if let Some(core) = &crashed.gcore {
        let how = (Access::LocalExec, Storage::Static);
        crashed.assert_read(core, Path::new("/"), &program, how);
    }
}

/// Runs the program with another `coredump_filter` (core(5)), which says what the kernel writes.
fn filtered(filter: &str, program: &Path) -> Option<(CoreDirectory, Target, PathBuf)> {
    let directory = CoreDirectory::new();
    let mut command = Command::new("sh");
    let script = format!("echo {filter} > /proc/self/coredump_filter && exec \"$0\"");
    command.args(["-c", &script]).arg(program);
    directory.allow(&mut command, NO_LIMIT);
    let mut target = Target::spawn(&mut command);
    let tid = target.threads[0].tid;
    let core = directory.crash(&mut target, tid, SIGSEGV)?;
    Some((directory, target, core))
}

#[test]
fn a_core_with_the_contents_of_files_needs_none() {
    let Some(program) = program(&[]) else { return };
    let Some((directory, target, core)) = filtered("0x3f", &program) else {
        return;
    };
    let tid = target.threads[0].tid;
    let crashed = Crashed {
        directory,
        target,
        tid,
        kernel: Some(core.clone()),
        gcore: None,
    };
    let nowhere = crashed.directory.path().join("nowhere");
    let how = (Access::LocalExec, Storage::Static);
    crashed.assert_read(&core, &nowhere, &program, how);
}

/// Private memory is skipped, and nothing else is taken in its place.
#[test]
fn omitted_memory_is_an_error() {
    let Some(program) = program(&[]) else { return };
    // Nothing at all.
    let Some((_directory, _, core)) = filtered("0", &program) else {
        return;
    };
    let mut core = Core::open(&core, Path::new("/")).unwrap();
    let context = core.process.context().unwrap();
    let ContextState::Broken(Broken::HeaderUnreadable(why)) = context else {
        panic!("{context:?}")
    };
    assert!(why.to_string().contains("was excluded"), "{why}");

    // The first page of what may be a program, which is the mode of a memfd.
    let Some((_directory, target, core)) = filtered("0x10", &program) else {
        return;
    };
    let mut core = Core::open(&core, Path::new("/")).unwrap();
    assert_published(&core.process.context().unwrap());
    let threads = core.threads();
    assert_eq!(threads.len(), target.threads.len() + 2);
    for (_, outcome) in threads {
        let Err(Error::Variable { source, .. }) = &outcome else {
            panic!("{outcome:?}")
        };
        assert!(source.to_string().contains("was excluded"), "{source}");
    }
}

#[test]
fn a_core_that_the_kernel_cut_short_says_so() {
    let Some(program) = program(&[]) else { return };
    let crashed = Crashed::limited(&mut Command::new(&program), 64 * 1024);
    let Some(kernel) = &crashed.kernel else {
        return;
    };
    let mut core = Core::open(kernel, Path::new("/")).unwrap();
    let [Missing::CutShort { length, expected }] = core.missing[..] else {
        panic!("{:?}", core.missing)
    };
    assert_eq!(length, fs::metadata(kernel).unwrap().len());
    assert!(length < expected);
    assert_cut(&mut core, &crashed.target);
}

/// A truncated core file gives right results, or an error that names what is missing.
fn assert_cut(core: &mut Core, target: &Target) -> usize {
    let missing = core.missing.clone();
    match core.process.context().unwrap() {
        ContextState::Published(context) => assert_published(&ContextState::Published(context)),
        ContextState::Broken(why) => assert!(why.to_string().contains("in the core"), "{why}"),
        ContextState::Absent => panic!("{missing:?}"),
    }
    let threads = core.threads();
    let mut read = 0;
    for thread in &target.threads {
        let Some((_, outcome)) = threads.iter().find(|(tid, _)| *tid == thread.tid) else {
            assert!(missing.contains(&Missing::Notes), "{missing:?}");
            continue;
        };
        match outcome {
            Ok(outcome) => {
                assert_outcome(thread, outcome);
                read += 1;
            }
            Err(Error::Unreadable { why, .. }) => {
                let why = why.to_string();
                let named = [
                    "in the core",
                    "the core file does not name",
                    "does not show yet",
                ];
                assert!(named.iter().any(|it| why.contains(it)), "{why}");
            }
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.contains("is not in the core file: the file is truncated"),
                    "{error}"
                );
            }
        }
    }
    read
}

#[test]
fn a_core_cut_anywhere_is_read_right_or_not_at_all() {
    let Some(program) = program(&[]) else { return };
    let library =
        Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu", "-Wl,--build-id"]);
    let sources = ["threads.c", "publish.c"];
    let loader = Compiler::gcc().program(&sources, &["-ldl", "-Wl,--build-id"]);
    let (Some(library), Some(loader)) = (library, loader) else {
        return;
    };
    let mut command = Command::new(&loader);
    command.arg(format!("lib={}", library.display()));
    command.env(NO_SURPLUS.0, NO_SURPLUS.1);
    for mut command in [Command::new(&program), command] {
        let crashed = Crashed::new(&mut command);
        for path in crashed.cores() {
            let length = fs::metadata(path).unwrap().len();
            let core = File::options().write(true).open(path).unwrap();
            let (mut opened, mut all) = (0, 0);
            for size in (0..length.div_ceil(4096)).rev() {
                core.set_len(size * 4096).unwrap();
                match Core::open(path, Path::new("/")) {
                    Ok(mut core) => {
                        opened += 1;
                        let read = assert_cut(&mut core, &crashed.target);
                        // gdb's end with a table of sections, which says nothing new.
                        if core.missing.is_empty() {
                            assert_eq!(read, crashed.target.threads.len());
                        }
                        all += usize::from(read == crashed.target.threads.len());
                    }
                    Err(error) => assert!(
                        size == 0 && error.to_string().contains("not an ELF file"),
                        "{size} pages: {error}"
                    ),
                }
            }
            assert!(opened > 0 && all > 0 && all < opened, "{all} of {opened}");
        }
    }
}

#[test]
fn what_is_no_core_is_refused() {
    let directory = CoreDirectory::new();
    let path = directory.path().join("core");
    let root = Path::new("/");
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        CoreFile::open(&path, root).unwrap_err().to_string()
    };
    assert!(refused(b"").ends_with("it is not an ELF file"));
    assert!(refused(b"not a core file").ends_with("it is not an ELF file"));
    assert!(refused(b"\x7fELF\x02\x01\x01").ends_with("it is truncated in its headers"));
    let own = fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(refused(&own).ends_with("it is a program or a library"));
    let error = CoreFile::open(directory.path(), root).unwrap_err();
    assert!(error.to_string().ends_with("not a regular file"));
    assert!(CoreFile::open(&directory.path().join("none"), root).is_err());
}
