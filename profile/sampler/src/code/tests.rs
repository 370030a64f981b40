use std::process::Command;

use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Compiler, Node, Target, program_source};
use otelctx_sample::FrameKind;

use super::*;

fn region(start: u64, end: u64, path: &str) -> Region {
    let build_id = match path {
        "" => FileId::Inode(Device { major: 0, minor: 0 }, 0),
        path => FileId::BuildId(path.as_bytes().to_vec()),
    };
    Region {
        start,
        end,
        offset: 0x1000,
        file: build_id,
        path: path.to_owned(),
    }
}

struct Reported {
    code: CodeMappings,
    modules: Modules,
    time: u64,
}

impl Reported {
    fn new() -> Self {
        Self {
            code: CodeMappings::default(),
            modules: Modules::default(),
            time: 0,
        }
    }

    fn change(&mut self, change: MemoryChange) -> bool {
        self.time += 10;
        self.code.apply(self.time, change, None, &mut self.modules)
    }

    fn map(&mut self, start: u64, end: u64, path: &str) -> bool {
        self.change(MemoryChange::Mapped(region(start, end, path)))
    }

    /// Path and time of each mapping.
    fn all(&self) -> Vec<(&str, u64)> {
        let all = self.code.mappings.iter();
        all.map(|it| (&*it.module.path, it.since)).collect()
    }
}

#[test]
fn code_that_is_mapped_again_is_one_mapping_and_other_code_is_another() {
    let mut reported = Reported::new();
    for path in ["a", "a", "b", "a"] {
        assert!(reported.map(0x1000, 0x3000, path));
    }
    assert_eq!(reported.all(), [("a", 10), ("b", 30), ("a", 40)]);
    // A part of it, as after mprotect(2), but with the offset of its beginning.
    assert!(reported.map(0x2000, 0x3000, "a"));
    assert_eq!(reported.all().len(), 4);
    // Memory without a file has no offset that counts.
    reported.map(0x8000, 0xa000, "");
    reported.map(0x9000, 0xa000, "");
    assert_eq!(reported.all()[4..], [("//anon", 60)]);
    assert!(reported.code.contain(0x2fff) && !reported.code.contain(0x3000));
}

/// `/proc/PID/maps` shows code that is mapped in the place of other code before its report comes.
#[test]
fn code_that_is_read_before_its_report_comes_is_in_no_earlier_sample() {
    let mut reported = Reported::new();
    reported.map(0x1000, 0x3000, "a");
    reported.map(0x1000, 0x3000, "b");
    let Reported { code, modules, .. } = &mut reported;
    let mut read = |start, path| {
        let module = modules.find(None, region(start, start + 0x2000, path), (0, 0));
        let (end, offset) = (start + 0x2000, 0x1000);
        let new = Mapped {
            start,
            end,
            offset,
            module,
            since: 0,
            file_range: (start, end),
        };
        code.add_read(new, 25)
    };
    assert_eq!(read(0x1000, "a"), Added::Yes);
    // Again; and where nothing was before, it may be from any time.
    assert_eq!(read(0x1000, "a"), Added::No);
    assert_eq!(read(0x8000, "c"), Added::Yes);
    reported.time = 12;
    reported.map(0x1000, 0x3000, "a");
    reported.map(0x1000, 0x3000, "a");
    let all = [("a", 10), ("b", 20), ("a", 25), ("c", 0), ("a", 22)];
    assert_eq!(reported.all(), all);
}

/// Just-in-time compilers map memory elsewhere: nothing is read again for them.
#[test]
fn code_that_was_moved_to_memory_is_the_files_from_then_on() {
    let mut reported = Reported::new();
    reported.map(0x1000, 0x9000, "a");
    reported.map(0x1_0000, 0x1_1000, "");
    assert!(!reported.code.copies.are_read_again());
    reported.map(0x2000, 0x4000, "");
    assert!(reported.code.copies.are_read_again());
    let Reported { code, modules, .. } = &mut reported;
    let module = modules.find(None, region(0x1000, 0x9000, "a"), (0, 0));
    let mut moved = |start, end| {
        let new = Mapped {
            start,
            end,
            offset: start,
            module: module.clone(),
            since: 0,
            file_range: (start, end),
        };
        code.add_moved(new, 50)
    };
    assert_eq!(moved(0x2000, 0x4000), Added::Yes);
    assert_eq!(moved(0x2000, 0x4000), Added::No);
    // The kernel does not report mremap(2): the file is still known there.
    assert_eq!(moved(0x5000, 0x6000), Added::No);
    let all = [("a", 10), ("//anon", 20), ("//anon", 30), ("a", 30)];
    assert_eq!(reported.all(), all);
}

/// The kernel has names for shared and huge memory, and a file of hugetlbfs can have any.
#[test]
fn code_in_memory_with_a_name_is_read_again_until_it_is_copied() {
    let huge = 0x20_0000;
    for (path, end, expected) in [
        ("/anon_hugepage (deleted)", huge + 0x1000, true),
        ("/memfd:text (deleted)", huge + 0x1000, true),
        ("/mnt/huge/text", 2 * huge, true),
        // Another library in the place of a closed one.
        ("/lib/b.so", huge + 0x1000, false),
    ] {
        let mut reported = Reported::new();
        reported.map(huge - 0x1000, 3 * huge, "a");
        reported.map(huge, end, path);
        let code = &mut reported.code;
        assert_eq!(code.copies.are_read_again(), expected, "{path}");
        assert_eq!(code.may_be_moved(huge), expected, "{path}");
        assert!(!code.may_be_moved(2 * huge + 1));
        code.copies.note(false);
        assert!(!code.copies.are_read_again());
        // Its protection changes.
        reported.map(huge, end, path);
        assert_eq!(reported.code.copies.are_read_again(), expected, "{path}");
    }
}

/// A sample may be taken between the beginning of a reading and the mapping that it shows.
#[test]
fn code_that_is_read_in_the_place_of_other_code_is_there_after_the_reading() {
    let mut reported = Reported::new();
    reported.map(0, u64::MAX, "other");
    let process = remote::Process::open(std::process::id() as i32).unwrap();
    assert!(reported.code.read(&process, &mut reported.modules));
    let begin = reported.code.last_read;
    let mut read = reported.code.mappings[1..].iter();
    assert!(read.all(|it| it.since > begin), "{:?}", reported.code);
}

/// The runtime that the mappings of a process show: its kind, its name, and that of a function without one.
fn runtime(target: &Target) -> Option<(FrameKind, &'static str, String)> {
    let process = remote::Process::open(target.pid()).unwrap();
    let mut code = CodeMappings::default();
    assert!(code.read(&process, &mut Modules::default()));
    let runtime = code.runtime()?;
    let frame = runtime.unnamed();
    assert!(
        frame.is_unnamed() && frame.kind == runtime.kind,
        "{frame:?}"
    );
    Some((runtime.kind, runtime.label, frame.function))
}

#[test]
fn runtimes_are_known_by_what_is_mapped() {
    if let Some(node) = Node::find() {
        let target = Target::spawn(node.command(&[], "spinning.js").arg("600000"));
        let function = "[JavaScript in node]".to_owned();
        let expected = Some((FrameKind::V8JS, "[JavaScript]", function));
        assert_eq!(runtime(&target), expected);
    }
    for interpreter in Interpreter::with_version("3.12") {
        let target = Target::spawn(interpreter.command("spinning.py").arg("600000"));
        let expected = Some((FrameKind::CPYTHON, "[Python]", "[Python]".to_owned()));
        assert_eq!(runtime(&target), expected, "{interpreter}");
    }
    // Its compiler of source files is not in every package.
    let has_java = Command::new("javac").arg("-version").output();
    if has_java.is_ok_and(|it| it.status.success()) {
        let mut command = Command::new("java");
        command.arg(program_source("spinning.java")).arg("600000");
        let target = Target::spawn(&mut command);
        let expected = Some((FrameKind::JVM, "[Java]", "[Java]".to_owned()));
        assert_eq!(runtime(&target), expected);
    } else {
        eprintln!("skipped: there is no Java");
    }
    let sources = ["threads.c", "variable.c"];
    if let Some(program) = Compiler::gcc().program(&sources, &["-DLINKED", "-rdynamic"]) {
        let target = Target::spawn(Command::new(program).arg("workers=1"));
        assert_eq!(runtime(&target), None);
    }
}

#[test]
fn runtimes_are_known_by_the_names_of_their_files() {
    for (path, kind, function) in [
        ("/usr/bin/mono-sgen", "dotnet", "[.NET]"),
        ("/usr/lib/libmonosgen-2.0.so.1.0.0", "dotnet", "[.NET]"),
        ("/usr/share/dotnet/libcoreclr.so", "dotnet", "[.NET]"),
        ("/opt/deno", "v8js", "[JavaScript in deno]"),
        ("/opt/bun.exe", "native", "[JavaScript in bun.exe]"),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", "beam", "[BEAM]"),
        ("/usr/lib/libruby-3.1.so.3.1.2", "ruby", "[Ruby]"),
        ("/usr/bin/php8.2", "php", "[PHP]"),
        ("/usr/lib/libluajit-5.1.so.2.1.0", "native", "[Lua]"),
        ("/usr/lib/libpython3.14.so.1.0", "cpython", "[Python]"),
    ] {
        let mut reported = Reported::new();
        reported.map(0x1000, 0x2000, "/usr/lib/libc.so.6");
        reported.map(0x8000, 0x9000, path);
        let runtime = reported.code.runtime().unwrap();
        assert_eq!(runtime.kind.name(), kind, "{path}");
        assert_eq!(runtime.unnamed().function, function, "{path}");
    }
}

#[test]
fn a_program_that_has_loaded_an_addon_is_a_copy_of_node() {
    let function = |paths: [&str; 3]| {
        let mut reported = Reported::new();
        for (start, path) in (1..).zip(paths) {
            reported.map(start * 0x1000, (start + 1) * 0x1000, path);
        }
        let runtime = reported.code.runtime()?;
        Some((runtime.kind.name(), runtime.unnamed().function))
    };
    let addon = "/lib/otelctx.node";
    let node = |program: &str| Some(("v8js", format!("[JavaScript in {program}]")));
    assert_eq!(function(["", "/opt/shop", addon]), node("shop"));
    assert_eq!(function([addon, "/opt/shop", "/opt/node"]), node("node"));
    assert_eq!(function(["", "/opt/shop", "/lib/libc.so.6"]), None);
}

#[test]
fn code_that_a_runtime_may_have_generated_is_new_once() {
    let mut reported = Reported::new();
    let mut is_new = |start: u64, path: &str| {
        reported.map(start, start + 0x1000, path);
        reported.code.take_new_generated()
    };
    assert!(!is_new(0x1000, "/lib/a.so"));
    assert!(is_new(0x8000, ""));
    assert!(!is_new(0x8000, ""));
    assert!(is_new(0x9000, ""));
    assert!(is_new(0xf000, "/tmp/jit-7.dump"));
    assert!(is_new(0x1_3000, "/dev/zero (deleted)"));
    assert!(!is_new(0x1_1000, "/lib/b.so"));
}

#[test]
fn a_program_keeps_its_mappings_until_the_sampler_comes_to_the_exec() {
    let mut reported = Reported::new();
    reported.map(0x1000, 0x3000, "old");
    reported.change(MemoryChange::Exec);
    reported.map(0x1000, 0x3000, "new");
    assert_eq!(reported.all(), [("old", 10)]);
    assert!(reported.code.next_is_reported());
    reported.code.exec(35);
    assert_eq!(reported.all(), [("new", 30)]);
    // Without a report, nothing is known of the next program.
    reported.code.exec(40);
    assert_eq!(reported.all(), []);
}

#[test]
fn programs_that_execute_each_other_between_two_drains_have_their_own_mappings() {
    let reported = || {
        let mut reported = Reported::new();
        for path in ["first", "second", "third"] {
            reported.change(MemoryChange::Exec);
            reported.map(0x1000, 0x3000, path);
        }
        reported
    };
    let mut code = reported();
    for (time, expected) in [
        (15, ("first", 20)),
        (35, ("second", 40)),
        (55, ("third", 60)),
    ] {
        code.code.exec(time);
        assert_eq!(code.all(), [expected]);
    }
    assert!(!code.code.next_is_reported());
    // The event of the second one was lost.
    let mut code = reported();
    code.code.exec(15);
    code.code.exec(55);
    assert_eq!(code.all(), [("third", 60)]);
    for _ in 0..2 * MAX_NEXT {
        code.change(MemoryChange::Exec);
    }
    assert_eq!(code.code.next.len(), MAX_NEXT);
}

#[test]
fn a_copy_has_what_its_parent_had_at_that_time() {
    let mut parent = Reported::new();
    parent.map(0x1000, 0x3000, "before");
    let mut child = Reported::new();
    child.code = CodeMappings::forked(7, 15);
    parent.map(0x5000, 0x6000, "after");
    child.map(0x8000, 0x9000, "own");
    child.code.inherit(|pid| (pid == 7).then_some(&parent.code));
    assert_eq!(child.all(), [("before", 10), ("own", 10)]);
    assert!(child.code.contain(0x1000) && child.code.contain(0x8000));
    assert!(!child.code.contain(0x5000));
}

/// A process may have ended before its child is sampled, and was not sampled itself.
#[test]
fn a_copy_of_a_copy_has_what_both_had() {
    let mut first = Reported::new();
    first.map(0x1000, 0x3000, "first");
    let mut second = Reported::new();
    second.code = CodeMappings::forked(7, 15);
    second.map(0x8000, 0x9000, "second");
    let mut third = Reported::new();
    third.code = second.code.fork();
    second.map(0xa000, 0xb000, "after");
    third.code.inherit(|pid| (pid == 7).then_some(&first.code));
    assert_eq!(third.all(), [("first", 10), ("second", 10)]);
    assert!(third.code.contain(0x1000) && third.code.contain(0x8000));

    // Of what it executed, nothing is the first one's.
    second.change(MemoryChange::Exec);
    second.map(0x1000, 0x2000, "program");
    third.code = second.code.fork();
    third.code.inherit(|_| unreachable!());
    let [("program", _)] = third.all()[..] else {
        panic!("{:?}", third.all())
    };
}

#[test]
fn ranges_are_what_was_added() {
    let mut ranges = Ranges::default();
    for (start, end) in [(10, 20), (40, 50), (20, 25), (5, 8), (24, 41), (60, 70)] {
        ranges.add(start, end);
    }
    let all: Vec<_> = ranges.0.clone().into_iter().collect();
    assert_eq!(all, [(5, 8), (10, 50), (60, 70)]);
    assert!(ranges.contain(10, 50) && ranges.contain(5, 8) && ranges.contain(61, 62));
    assert!(!ranges.contain(7, 9) && !ranges.contain(49, 51) && !ranges.contain(0, 1));
}

#[test]
fn mappings_are_bounded_and_replaced_ones_make_room() {
    let mut reported = Reported::new();
    for number in 0..MAX_MAPPINGS as u64 {
        assert!(reported.map(number << 16, (number << 16) + 0x1000, "a"));
    }
    assert!(!reported.map(1 << 40, (1 << 40) + 0x1000, "a"));
    // Other code at known addresses replaces what was there.
    reported.code.mappings.pop();
    reported.code.in_catalog = MAX_MAPPINGS - 1;
    assert!(reported.map(0, 0x1000, "b"));
    // It is not searched for at each report.
    reported.code.next_removal = Instant::now() + Duration::from_secs(3600);
    assert!(!reported.map(1 << 40, (1 << 40) + 0x1000, "a"));
    reported.code.next_removal = Instant::now();
    assert!(reported.map(1 << 40, (1 << 40) + 0x1000, "a"));
    assert_eq!(reported.code.mappings.len(), MAX_MAPPINGS);
    assert_eq!(reported.code.in_catalog, MAX_MAPPINGS - 2);
}
