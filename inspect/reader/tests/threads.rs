//! The threads of programs that announce nothing (`Options::any_schema`), compared with what the
//! programs say of themselves.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::Command;

use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_reader::{ContextState, Error, Found, Options, Process, ThreadSupport, Unreadable};

fn open(pid: i32) -> Process {
    let mut options = Options::default();
    options.any_schema = true;
    options.stop_timeout = STOP_TIMEOUT;
    Process::with_options(pid, options).unwrap()
}

fn executable() -> Option<Target> {
    let flags = ["-DLINKED", "-rdynamic"];
    let program = Compiler::gcc().program(&["threads.c", "variable.c"], &flags)?;
    Some(Target::spawn(&mut Command::new(program)))
}

/// Trace and span of every thread with a context, by its number.
fn read(process: &mut Process) -> BTreeMap<i32, (String, String)> {
    let threads = process.threads().unwrap();
    let contexts = threads.iter().filter_map(|thread| {
        let outcome = thread.context().unwrap();
        let context = outcome.attached()?;
        // Nobody announced the key map, so that the attribute has no name.
        assert_eq!(context.skipped.unknown_key, 1);
        let ids = (context.trace_id.to_string(), context.span_id.to_string());
        Some((thread.tid(), ids))
    });
    contexts.collect()
}

/// The same, as the program tells it.
fn printed(target: &Target) -> BTreeMap<i32, (String, String)> {
    let threads = target.threads.iter().filter_map(|thread| {
        let truth = thread.attached.as_ref()?;
        Some((thread.tid, (truth.trace_id.clone(), truth.span_id.clone())))
    });
    threads.collect()
}

#[test]
fn what_is_not_announced_is_read_only_when_asked_for() {
    let Some(target) = executable() else { return };
    let mut process = Process::open(target.pid()).unwrap();
    assert_eq!(process.context().unwrap(), ContextState::Absent);
    assert!(matches!(
        process.thread_support().unwrap(),
        ThreadSupport::Unreadable(Unreadable::NoProcessContext)
    ));
    assert!(matches!(
        process.threads().unwrap()[0].context(),
        Err(Error::Unreadable {
            why: Unreadable::NoProcessContext,
            ..
        })
    ));
    let read = read(&mut open(target.pid()));
    assert_eq!(read.len(), 2);
    assert_eq!(read, printed(&target));
}

#[test]
fn a_library_closed_and_loaded_again_at_the_same_place() {
    let Some(library) = Compiler::gcc().library::<&str>(&["variable.c"], &[]) else {
        return;
    };
    let program = Compiler::gcc().program::<&str>(&["threads.c"], &[]);
    let Some(program) = program else { return };
    let path = library.to_string_lossy();
    let mut target = Target::spawn(
        Command::new(program)
            .args([format!("lib={path}"), format!("then={path}")])
            // Storage that other libraries may get, and not always the same.
            .env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0"),
    );
    let mut process = open(target.pid());
    assert_eq!(read(&mut process), printed(&target));

    // Only the first worker touches the variable again; the second one's vector still leads to the
    // record that it had attached before.
    let before = printed(&target);
    target.command("reload");
    let first = target
        .threads
        .iter()
        .find(|thread| thread.name == "worker-0");
    let first = first.unwrap().tid;
    let mut expected = printed(&target);
    expected.retain(|tid, _| *tid == first);
    assert_ne!(expected[&first], before[&first]);
    assert_eq!(read(&mut process), expected);
}

/// The same library is at the same place again, and only its storage is elsewhere, behind that of one
/// that was loaded in between: where it was each thread still has its first record.
#[test]
fn a_library_loaded_again_whose_static_storage_is_elsewhere() {
    let library = |more: &[&str]| {
        let flags = [&["-ftls-model=initial-exec"], more].concat();
        Compiler::gcc().library(&["variable.c"], &flags)
    };
    let other = library(&["-DNAME=other", "-DSLOT=other_slot"]);
    let (Some(library), Some(other)) = (library(&[]), other) else {
        return;
    };
    let program = Compiler::gcc().program(&["threads.c"], &["-ldl"]);
    let Some(program) = program else { return };
    let path = library.display();
    let mut command = Command::new(program);
    command
        .arg(format!("lib={path}"))
        .arg(format!("beside={}", other.display()))
        .arg(format!("then={path}"));
    let mut target = Target::spawn(&mut command);
    let pid = target.pid();
    let mappings = || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let of_library = |line: &&str| line.ends_with(library.to_str().unwrap());
        maps.lines()
            .filter(of_library)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let slot = |target: &Target| target.threads[1].attached.as_ref().unwrap().slot;
    let mut process = open(target.pid());
    assert_eq!(read(&mut process), printed(&target));
    let before = (mappings(), slot(&target));
    assert!(process.modules_unchanged().unwrap());

    target.command("reload");
    let after = mappings();
    assert_eq!(after, before.0, "the trap is not set");
    assert_ne!(slot(&target), before.1, "the trap is not set");
    assert!(!process.modules_unchanged().unwrap());
    for thread in &mut target.threads {
        if thread.name != "worker-0" {
            thread.attached = None;
        }
    }
    assert_eq!(read(&mut process), printed(&target));
}

#[test]
fn the_threads_of_a_process_whose_first_one_has_ended() {
    let flags = ["-DLINKED", "-rdynamic"];
    let program = Compiler::gcc().program(&["threads.c", "variable.c"], &flags);
    let Some(program) = program else { return };
    let target = Target::spawn(Command::new(&program).arg("exit-leader"));
    let pid = target.pid();
    while remote_state(pid) != 'Z' {
        std::thread::yield_now();
    }
    let mut process = open(pid);
    assert_eq!(process.context().unwrap(), ContextState::Absent);
    let detected = process.detected().unwrap();
    let executable = detected
        .resource
        .iter()
        .find(|(key, _)| key == "process.executable.path");
    assert_eq!(
        executable.unwrap().1,
        program.to_string_lossy().as_ref().into()
    );
    let mut read = BTreeMap::new();
    for thread in process.threads().unwrap() {
        match thread.context() {
            Ok(Found::Attached(context)) => {
                let ids = (context.trace_id.to_string(), context.span_id.to_string());
                read.insert(thread.tid(), ids);
            }
            Ok(other) => assert_eq!(other, Found::Detached),
            Err(error) => {
                assert_eq!(thread.tid(), pid);
                let gone = otelctx_reader::remote::Error::NoSuchThread { pid, tid: pid };
                assert_eq!(error.to_string(), gone.to_string());
            }
        }
    }
    assert_eq!(read, printed(&target));
}

fn remote_state(pid: i32) -> char {
    let process = otelctx_reader::remote::Process::open(pid).unwrap();
    process.status().unwrap().state
}

#[test]
fn a_process_in_namespaces_of_its_own() {
    let flags = ["-DLINKED", "-rdynamic"];
    let program = Compiler::gcc().program(&["threads.c", "variable.c"], &flags);
    let Some(program) = program else { return };
    // A file that the reader does not see at that path, nor anywhere else.
    let script = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/namespaced && exec /mnt/namespaced";
    let unshare = |end: &[&OsStr]| {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount", "--kill-child", "--"])
            .args(end);
        command
    };
    let allowed = unshare(&["true".as_ref()]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: unshare cannot create namespaces");
        return;
    }
    let target = Target::spawn(&mut unshare(&[
        "sh".as_ref(),
        "-c".as_ref(),
        script.as_ref(),
        program.as_ref(),
    ]));
    let mut process = open(target.child_pid());
    // The program tells its threads' numbers as its namespace has them.
    let inner = |tid| {
        let status = process.running().unwrap().thread_status(tid).unwrap();
        assert_eq!(status.namespace_pids.len(), 2);
        status.namespace_pids[1]
    };
    let numbers = process.running().unwrap().thread_ids().unwrap();
    let numbers: BTreeMap<i32, i32> = numbers.into_iter().map(|tid| (tid, inner(tid))).collect();
    let read = read(&mut process);
    let read: BTreeMap<_, _> = read
        .into_iter()
        .map(|(tid, ids)| (numbers[&tid], ids))
        .collect();
    assert_eq!(read, printed(&target));
    assert_eq!(read.len(), 2);
    let ThreadSupport::Readable(variables) = process.thread_support().unwrap() else {
        panic!()
    };
    assert_eq!(variables.resolution.variables[0].module, "/mnt/namespaced");
}

#[test]
fn more_mappings_than_allowed_are_an_error_in_every_look() {
    let Some(target) = executable() else { return };
    let mut options = Options::default();
    options.any_schema = true;
    options.max_mappings = Some(3);
    let mut process = Process::with_options(target.pid(), options).unwrap();
    let pid = target.pid();
    let refused =
        |error| matches!(error, Error::TooManyMappings { pid: of, limit: 3 } if of == pid);
    assert!(refused(process.context().unwrap_err()));
    assert!(refused(process.threads().map(|_| ()).unwrap_err()));
    // Nothing was resolved that could have changed.
    assert!(process.modules_unchanged().unwrap());
}

#[test]
fn of_several_definitions_the_one_with_a_record_counts() {
    let library = |size: &str| Compiler::gcc().library(&["variable.c"], &[size]);
    let (Some(one), Some(other)) = (library("-DBIG=8"), library("-DBIG=16")) else {
        return;
    };
    let program = Compiler::gcc().program::<&str>(&["threads.c"], &[]);
    let Some(program) = program else { return };
    for (untouched, used) in [(&one, &other), (&other, &one)] {
        let mut target = Target::spawn(Command::new(&program).args([
            format!("lib={}", untouched.display()),
            format!("late={}", used.display()),
        ]));
        let mut process = open(target.pid());
        assert_eq!(read(&mut process), BTreeMap::new());
        // Loads the second library while its threads run.
        target.command("attach");
        assert_eq!(read(&mut process), printed(&target));
        assert_eq!(printed(&target).len(), 2);
        let ThreadSupport::Readable(variables) = process.thread_support().unwrap() else {
            panic!()
        };
        assert_eq!(variables.resolution.variables.len(), 2);
    }

    // One that nothing is exported from or bound to, in the program itself: first in the order of
    // modules, and NULL in every thread.
    let sources = ["threads.c", "variable.c"];
    let Some(program) = Compiler::gcc().program(&sources, &["-DSLOT=unused_slot"]) else {
        return;
    };
    let target = Target::spawn(Command::new(&program).arg(format!("lib={}", one.display())));
    let mut process = open(target.pid());
    assert_eq!(read(&mut process), printed(&target));
    assert_eq!(printed(&target).len(), 2);
    let ThreadSupport::Readable(variables) = process.thread_support().unwrap() else {
        panic!()
    };
    let modules = variables.resolution.variables.iter();
    let modules: Vec<_> = modules
        .map(|variable| variable.module.as_os_str())
        .collect();
    assert_eq!(modules, [program.as_os_str(), one.as_os_str()]);
}

/// Holds the check of the record's alignment (OTEP 4947: at least 2). Without it the thread has a
/// context.
#[test]
fn a_record_at_an_odd_address_is_none() {
    let flags = ["-rdynamic"];
    let Some(program) = Compiler::gcc().program(&["odd_record.c", "variable.c"], &flags) else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let address = target.lines[0].strip_prefix("odd 0x").unwrap();
    let address = u64::from_str_radix(address, 16).unwrap();
    let mut process = open(target.pid());
    let threads = process.threads().unwrap();
    match threads[0].context() {
        Err(Error::Pointer {
            pointer, reason, ..
        }) => {
            assert_eq!(pointer, address);
            assert_eq!(reason, "a record's address is even");
        }
        other => panic!("{other:?}"),
    }
}
