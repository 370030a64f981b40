//! Names and lines against binutils' own.

mod tools;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::{Compiler, GO_VERSIONS, GoBuild, Target, go_program, rust_program, tier};
use otelctx_profile::sample::{Catalog, Mapping, Module, ProcessFacts};
use otelctx_profile::sample::{Counts, Event, Found, Sample};
use otelctx_profile::{Clock, Location, Profile, Recording, SymbolQuery, Symbolizer};
use otelctx_remote::Device;
use otelctx_symbolize::Symbols;
use tools::{Resolved, Scratch, text, tool, truth};

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let flags = ["-g", "-O2", "-Wl,--build-id"];
    let built = Compiler::gcc().program(&["inlined.c"], &flags)?;
    let path = scratch.0.join("inlined");
    fs::copy(built, &path).unwrap();
    Some(path)
}

fn build_id(path: &Path) -> String {
    let notes = tool("readelf", &["-n", text(path)]);
    let line = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    line.expect("linked with a build id").to_owned()
}

/// A profile of one sample whose stack is all instructions of `serve` and `main`, in the file at
/// `path`: locations by address.
fn located(path: &Path, addresses: &[u64], symbols: &mut Symbols) -> (Profile, Vec<Location>) {
    let found = fs::metadata(path).unwrap();
    let device = Device::from_stat(found.dev());
    let id = build_id(path);
    let bytes =
        (0..id.len() / 2).map(|at| u8::from_str_radix(&id[at * 2..at * 2 + 2], 16).unwrap());
    let mut catalog = Catalog::new();
    let module = catalog.module(Module {
        path: text(path).into(),
        build_id: bytes.collect(),
        device: u64::from(device.major) << 32 | u64::from(device.minor),
        inode: found.ino(),
    });
    let process = catalog.add_process(ProcessFacts {
        // No process has this id.
        pid: i32::MAX,
        mappings: vec![Mapping {
            start: 0x1000_0000,
            end: 0x2000_0000,
            offset: 0,
            module,
            since: 0,
        }],
        ..ProcessFacts::default()
    });
    let thread = catalog.thread(process, 1, "t");
    let empty = catalog.native_stack(&[]);
    // In code, offsets in the file and addresses are the same for this program; each as the first
    // of a stack of its own, where it is not taken for a return address.
    let samples = addresses.iter().enumerate().map(|(time, address)| Sample {
        time: time as u64,
        cpu: 0,
        thread,
        event: Event::OnCpu,
        found: Found::NotPublished,
        gil: None,
        user_stack: catalog.native_stack(&[0x1000_0000 + address]),
        stack_end: None,
        kernel_stack: empty,
    });
    let samples = samples.collect();
    let clock = Clock {
        start: 0,
        end: 1 << 30,
        start_unix: 0,
    };
    let recording = Recording {
        catalog,
        samples,
        clock,
        period: std::num::NonZeroU64::MIN,
        counts: Counts::default(),
    };
    let profile = Profile::new(recording, symbols);
    let mut locations = profile.locations().to_vec();
    locations.sort_by_key(|location| location.address);
    (profile, locations)
}

/// Every instruction of `serve` and `main`.
fn instructions(path: &Path) -> Vec<u64> {
    let addresses = tools::instructions(path, &["serve", "main"]);
    assert!(addresses.len() > 10, "{addresses:x?}");
    addresses
}

fn resolved(locations: &[Location]) -> Vec<Resolved> {
    let resolved = |location: &Location| tools::resolved(&location.functions);
    locations.iter().map(resolved).collect()
}

#[test]
fn functions_lines_and_inlined_calls_are_those_of_addr2line() {
    let scratch = Scratch::new("plain");
    let Some(program) = program(&scratch) else {
        return;
    };
    let addresses = instructions(&program);
    let expected = truth(&program, &addresses);
    assert!(
        expected.iter().any(|functions| functions.len() == 3),
        "{expected:?}"
    );
    let (_, locations) = located(&program, &addresses, &mut Symbols::new());
    assert_eq!(resolved(&locations), expected);
}

/// Compares every `step`th instruction of the program with addr2line, and returns how many they are.
fn assert_like_addr2line(program: &Path, step: usize) -> usize {
    let addresses: Vec<u64> = tools::code(program).into_iter().step_by(step).collect();
    let offsets: Vec<u64> = tools::offsets(program, &addresses);
    let ours = tools::found(&mut Symbols::new(), program, &offsets);
    let mut compared = 0;
    for ((address, ours), theirs) in addresses.iter().zip(ours).zip(truth(program, &addresses)) {
        // Code of the C runtime, which has no lines: for addr2line, they are in the file's first unit.
        if theirs.iter().all(|function| function.2 == 0) {
            continue;
        }
        let mut theirs = theirs;
        // addr2line gives the innermost function the name of the symbol if that is a piece's.
        if theirs[0].0.contains(".cold") {
            theirs[0].0.clone_from(&ours[0].0);
        }
        assert_eq!(ours, theirs, "{address:#x}");
        compared += 1;
    }
    compared
}

/// Their ranges are a list (`DW_AT_ranges`), and DWARF has neither an address nor a size of the whole.
#[test]
fn functions_in_several_pieces_are_those_of_addr2line() {
    let flags = ["-g", "-O2"];
    let Some(program) = Compiler::gcc().program(&["pieces.c"], &flags) else {
        return;
    };
    let names = tool("nm", &[text(&program)]);
    for function in ["serve", "answer"] {
        assert!(names.contains(&format!(" {function}.cold\n")), "{names}");
    }
    assert!(assert_like_addr2line(&program, 1) > 50);
}

#[test]
fn functions_of_an_optimized_rust_program_are_those_of_addr2line() {
    let Some(program) = rust_program("stacks.rs", &["-Copt-level=3", "-Cdebuginfo=1"]) else {
        return;
    };
    assert!(assert_like_addr2line(&program, 23) > 1000);
}

#[test]
fn a_stripped_program_is_named_by_its_debug_file() {
    let scratch = Scratch::new("debug");
    let Some(program) = program(&scratch) else {
        return;
    };
    let addresses = instructions(&program);
    let expected = truth(&program, &addresses);
    let debug = scratch.0.join("inlined.debug");
    tool(
        "objcopy",
        &["--only-keep-debug", text(&program), text(&debug)],
    );
    let id = build_id(&program);
    let directory = scratch.0.join("by-id");
    let by_id = directory.join(format!(".build-id/{}", &id[..2]));
    fs::create_dir_all(&by_id).unwrap();
    fs::copy(&debug, by_id.join(format!("{}.debug", &id[2..]))).unwrap();
    let mirrored = scratch.0.join("by-link");
    let by_link = mirrored.join(scratch.0.strip_prefix("/").unwrap());
    fs::create_dir_all(&by_link).unwrap();
    let unstripped = scratch.0.join("unstripped");
    fs::copy(&program, &unstripped).unwrap();
    tool("strip", &["--strip-all", text(&program)]);
    tool(
        "objcopy",
        &[
            &format!("--add-gnu-debuglink={}", text(&debug)),
            text(&program),
        ],
    );
    let unnamed = |symbols: &mut Symbols| {
        let (_, locations) = located(&program, &addresses, symbols);
        resolved(&locations).iter().all(Vec::is_empty)
    };
    let beside = || resolved(&located(&program, &addresses, &mut Symbols::new()).1);
    assert_eq!(beside(), expected, "beside the program");
    let below = scratch.0.join(".debug");
    fs::create_dir(&below).unwrap();
    let debug = &fs::canonicalize(&debug).unwrap();
    let moved = below.join("inlined.debug");
    fs::rename(debug, &moved).unwrap();
    assert_eq!(beside(), expected, "in .debug");
    // The first of that name is of no use, and must not block the search.
    tool("mkfifo", &[text(debug)]);
    assert_eq!(beside(), expected, "behind a FIFO");
    fs::remove_file(debug).unwrap();
    // One that never ends, and one that never answers.
    for device in ["/dev/zero", "/dev/tty"] {
        std::os::unix::fs::symlink(device, debug).unwrap();
        assert_eq!(beside(), expected, "behind {device}");
        fs::remove_file(debug).unwrap();
    }
    fs::File::create(debug).unwrap().set_len(100 << 30).unwrap();
    assert_eq!(beside(), expected, "behind a file of 100 GiB");
    fs::remove_file(debug).unwrap();
    let elsewhere = scratch.0.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(&moved, elsewhere.join("inlined.debug")).unwrap();
    assert!(unnamed(&mut Symbols::new()), "elsewhere");
    let debug = elsewhere.join("inlined.debug");
    let named = |directory: &Path| {
        let mut symbols = Symbols::new().debug_directory(directory);
        resolved(&located(&program, &addresses, &mut symbols).1)
    };
    assert_eq!(named(&directory), expected, "by build id");
    assert_eq!(named(&elsewhere), expected, "by name");
    let with_symbols = scratch.0.join("with-symbols");
    fs::create_dir(&with_symbols).unwrap();
    let copy = with_symbols.join(program.file_name().unwrap());
    fs::copy(&unstripped, copy).unwrap();
    assert_eq!(
        named(&with_symbols),
        expected,
        "the program with its symbols"
    );
    let names = |directory: &Path| {
        let symbols = Symbols::new().debug_directory(directory);
        let mut symbols = symbols.without_compressed_lines();
        let found = resolved(&located(&program, &addresses, &mut symbols).1);
        assert_eq!(symbols.failures(), []);
        found
    };
    assert_eq!(names(&directory), expected, "not compressed");
    let file = by_id.join(format!("{}.debug", &id[2..]));
    tool("objcopy", &["--compress-debug-sections=zlib", text(&file)]);
    assert_eq!(named(&directory), expected, "decompressed");
    let outermost = |functions: &Resolved| {
        let (name, ..) = functions.last().unwrap();
        vec![(name.clone(), String::new(), 0)]
    };
    let without_lines: Vec<Resolved> = expected.iter().map(outermost).collect();
    assert_eq!(names(&directory), without_lines, "by their symbols alone");
    let mut symbols = Symbols::new()
        .debug_directory(&elsewhere)
        .without_debug_info();
    let found = resolved(&located(&program, &addresses, &mut symbols).1);
    assert_eq!(found, without_lines, "without debug information");
    fs::copy(&debug, by_link.join("inlined.debug")).unwrap();
    assert_eq!(named(&mirrored), expected, "by debug link");
    // One of another build.
    let mut other = fs::read(&debug).unwrap();
    other.push(0);
    fs::write(by_link.join("inlined.debug"), other).unwrap();
    assert!(
        unnamed(&mut Symbols::new().debug_directory(&mirrored)),
        "by checksum"
    );
}

/// Distributions leave the names of functions in a compressed section (gdb's manual, "MiniDebugInfo").
#[test]
fn a_stripped_program_is_named_by_the_symbols_that_it_contains() {
    let scratch = Scratch::new("debug-data");
    let Some(program) = program(&scratch) else {
        return;
    };
    let addresses = instructions(&program);
    let symbols = |addresses: &[u64]| {
        let (_, locations) = located(&program, addresses, &mut Symbols::new());
        let name = |location: &Location| location.functions.last().map(|it| it.name.clone());
        locations.iter().map(name).collect::<Vec<_>>()
    };
    let expected = symbols(&addresses);
    let data = scratch.0.join("symbols");
    let script = "objcopy --only-keep-debug \"$1\" \"$2\" && strip --strip-debug \"$2\" && xz -f \"$2\" \
        && strip --strip-all \"$1\" && objcopy --add-section .gnu_debugdata=\"$2.xz\" \"$1\"";
    tool("bash", &["-c", script, "-", text(&program), text(&data)]);
    assert!(expected.iter().all(Option::is_some));
    assert_eq!(symbols(&addresses), expected);
    // Cut short, or damaged.
    let whole = fs::read(&program).unwrap();
    let section = fs::read(data.with_extension("xz")).unwrap();
    let at = whole
        .windows(section.len())
        .position(|it| it == section)
        .unwrap();
    for damaged in [0, section.len() / 2, section.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at + damaged] ^= 0xff;
        fs::write(&program, bytes).unwrap();
        assert!(symbols(&addresses).iter().all(Option::is_none), "{damaged}");
    }
    // The same contents, but decompressing them takes more memory than is given.
    fs::write(&program, whole).unwrap();
    for (dictionary, is_named) in [("64MiB", true), ("1536MiB", false)] {
        let script = "xz -dc \"$2.xz\" | xz --lzma2=dict=$3 > \"$2.other\" \
            && objcopy --update-section .gnu_debugdata=\"$2.other\" \"$1\"";
        tool(
            "bash",
            &["-c", script, "-", text(&program), text(&data), dictionary],
        );
        let named = symbols(&addresses);
        assert!(
            named.iter().all(|it| it.is_some() == is_named),
            "{dictionary}"
        );
    }
}

/// Modes and linkers of Go programs.
const GO_BUILDS: [(&str, &str); 5] = [
    ("exe", "-linkmode=internal"),
    ("pie", "-linkmode=internal"),
    ("exe", "-linkmode=external"),
    ("pie", "-linkmode=external"),
    // It writes no addresses where relocations will.
    ("pie", "-linkmode=external -extldflags=-fuse-ld=lld"),
];

/// A program without symbols and debug information has the functions that those of its twin name, inlined ones included,
/// with files and lines, whatever linker has made it.
#[test]
fn a_stripped_program_of_go_has_the_functions_that_it_keeps_for_itself() {
    for (index, version) in GO_VERSIONS.iter().enumerate() {
        for (build, (mode, linker)) in GO_BUILDS.iter().enumerate() {
            // Each version, each mode and linker, once.
            if (index + 1) % GO_BUILDS.len() == build || tier::runs_all() {
                stripped_go(version, mode, linker);
            }
        }
    }
}

fn stripped_go(version: &str, mode: &str, linker: &str) {
    let linked = format!("-ldflags={linker}");
    let build = GoBuild {
        version,
        architecture: "",
        cgo: false,
        flags: &["-buildmode", mode, &linked],
    };
    let Some(built) = build.build("functions.go") else {
        return;
    };
    let name = format!("{version} {mode} {linker}");
    let scratch = Scratch::new(&format!("go-{version}-{mode}-{}", linker.len()));
    let [whole, stripped] = ["whole", "stripped"].map(|name| scratch.0.join(name));
    fs::copy(&built, &whole).unwrap();
    fs::copy(&built, &stripped).unwrap();
    tool("strip", &["--strip-all", text(&stripped)]);
    let symbols = tool("nm", &["--defined-only", text(&whole)]);
    let address = |symbol: &str| {
        let mut lines = symbols.lines().map(|line| line.splitn(3, ' '));
        let mut line = lines
            .find(|line| line.clone().nth(2) == Some(symbol))
            .unwrap();
        u64::from_str_radix(line.next().unwrap(), 16).unwrap()
    };
    let code = address("runtime.text")..address("runtime.etext");
    // DWARF has other lines for bytes inside of some instructions, Go's tools do not.
    let instructions = tools::code(&whole).into_iter();
    let addresses: Vec<u64> = instructions
        .filter(|it| code.contains(it))
        .step_by(7)
        .collect();
    let found = |program: &Path| {
        let offsets = tools::offsets(program, &addresses);
        tools::found(&mut Symbols::new(), program, &offsets)
    };
    let (found, expected) = (found(&stripped), found(&whole));
    let mut counts = [0; 4];
    for (address, (mut found, mut expected)) in
        addresses.iter().zip(found.into_iter().zip(expected))
    {
        for function in found.iter_mut().chain(&mut expected) {
            function.0 = function.0.replace('·', ".");
            // DWARF has no lines of some of the functions that the compiler adds.
            if function.1 == "<autogenerated>" {
                (function.1, function.2) = (String::new(), 0);
            }
        }
        // Dynamic symbols remain, and have no lines.
        let is_exported = |name: &str| name.starts_with("_cgo") || name == "crosscall2";
        if !matches!(&found[..], [(name, _, 0)] if is_exported(name)) {
            assert_eq!(found, expected, "{name}: {address:#x}");
        }
        counts[found.len().min(3)] += 1;
    }
    // Of one function, of an inlined one, and of more.
    let [none, one, two, more] = counts;
    assert!(
        none < 5 && one > 5000 && two > 1000 && more > 200,
        "{name}: {counts:?}"
    );
}

/// A version to come may have one more field in the structure that says where inlined calls and code are.
#[test]
fn a_structure_of_go_in_another_form_gives_no_wrong_functions() {
    let flags = ["-ldflags=-s -w"];
    let Some(program) = go_program("functions.go", &flags) else {
        return;
    };
    let scratch = Scratch::new("go-field");
    let sections = tool("readelf", &["-SW", text(&program)]);
    let [offset, size] = [4, 5].map(|column| {
        let line = sections.lines().find(|line| line.contains(" .go.module "));
        let words = line.unwrap().split(']').nth(1).unwrap().split_whitespace();
        usize::from_str_radix(words.clone().nth(column - 1).unwrap(), 16).unwrap()
    });
    let addresses: Vec<u64> = tools::code(&program).into_iter().step_by(401).collect();
    let offsets = tools::offsets(&program, &addresses);
    let expected = tools::found(&mut Symbols::new(), &program, &offsets);
    assert!(expected.iter().any(|found| found.len() > 1));
    // Before `gofunc`, the slice `textsectmap` behind it, and `text`.
    for word in [40, 42, 22] {
        let mut bytes = fs::read(&program).unwrap();
        let from = offset + 8 * word;
        bytes.copy_within(from..offset + size - 8, from + 8);
        let changed = scratch.0.join(word.to_string());
        fs::write(&changed, bytes).unwrap();
        let found = tools::found(&mut Symbols::new(), &changed, &offsets);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert_eq!(found[0].0, expected.last().unwrap().0, "{word}");
        }
    }
}

#[test]
fn a_file_is_identified_as_others_do_it() {
    let scratch = Scratch::new("identity");
    let Some(program) = program(&scratch) else {
        return;
    };
    let (profile, locations) = located(&program, &instructions(&program)[..1], &mut Symbols::new());
    let module = profile.module_of(locations[0].place).unwrap();
    let identity = profile.identity(module).unwrap();
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    assert_eq!(hex(&identity.build_id), build_id(&program));
    let script = "{ head -c 4096 \"$1\"; tail -c 4096 \"$1\"; \
        printf \"$(printf '%016x' $(stat -c %s \"$1\") | sed 's/../\\\\x&/g')\"; } | sha256sum";
    let sum = tool("bash", &["-c", script, "-", text(&program)]);
    assert_eq!(hex(&identity.htlhash.unwrap()), sum[..32]);
}

/// Another file at the module's path is not the module: without a build ID, not even a copy is.
/// Its program is gone, or has another name, and its process has ended; another process has it mapped.
#[test]
fn a_file_that_another_process_has_mapped_is_found() {
    let sources = ["threads.c", "variable.c", "publish.c"];
    let flags = ["-O2", "-Wl,--build-id", "-DLINKED", "-rdynamic"];
    let Some(built) = Compiler::gcc().program(&sources, &flags) else {
        return;
    };
    let scratch = Scratch::new("living");
    let (program, renamed) = (scratch.0.join("program"), scratch.0.join("renamed"));
    otelctx_fixtures::copy_program(&built, &program);
    let addresses = tools::instructions(&program, &["main"]);
    let (profile, _) = located(&program, &addresses, &mut Symbols::new());
    let module = profile.catalog().modules().next().unwrap().1;
    let process = ProcessFacts {
        pid: i32::MAX,
        ..ProcessFacts::default()
    };
    let named = |symbols: Symbols| {
        let query = SymbolQuery::new(module, &process);
        let functions = { symbols }.functions(query, &addresses);
        functions.iter().filter(|it| !it.is_empty()).count()
    };
    let other = Target::spawn(&mut Command::new(&program));
    for remove in [false, true] {
        if remove {
            fs::remove_file(&renamed).unwrap();
        } else {
            fs::rename(&program, &renamed).unwrap();
        }
        assert_eq!(named(Symbols::new()), 0);
        assert_eq!(named(Symbols::new().search_processes()), addresses.len());
    }
    drop(other);
    assert_eq!(named(Symbols::new().search_processes()), 0);
}

#[test]
fn a_replaced_file_is_not_taken_for_the_module() {
    let scratch = Scratch::new("replaced");
    let Some(program) = program(&scratch) else {
        return;
    };
    let addresses = instructions(&program);
    let kept = scratch.0.join("kept");
    fs::rename(&program, &kept).unwrap();
    fs::copy(&kept, &program).unwrap();
    let (profile, _) = located(&kept, &addresses, &mut Symbols::new());
    let with_id = profile.catalog().modules().next().unwrap().1;
    let without_id = Module {
        build_id: Vec::new(),
        ..with_id.clone()
    };
    let named = |path: &Path, module: &Module| {
        let module = Module {
            path: text(path).into(),
            ..module.clone()
        };
        let process = ProcessFacts {
            pid: i32::MAX,
            ..ProcessFacts::default()
        };
        let query = SymbolQuery::new(&module, &process);
        Symbols::new().functions(query, &addresses)
    };
    for module in [with_id, &without_id] {
        assert!(!named(&kept, module).iter().any(Vec::is_empty));
    }
    assert!(!named(&program, with_id).iter().any(Vec::is_empty));
    assert!(named(&program, &without_id).iter().all(Vec::is_empty));
    let Some(other) = Compiler::gcc().program(&["inlined.c"], &["-O1", "-Wl,--build-id"]) else {
        return;
    };
    fs::copy(other, &program).unwrap();
    assert!(named(&program, with_id).iter().all(Vec::is_empty));
}

#[test]
fn the_kernels_functions_are_those_of_kallsyms() {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let known: BTreeMap<u64, &str> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            (words.next()? == "T").then_some((address, words.next()?))
        })
        .filter(|(address, _)| *address != 0)
        .collect();
    let Some((address, name)) = known.iter().find(|(_, name)| **name == "schedule") else {
        println!("skipped: without root, the kernel's addresses are hidden");
        return;
    };
    for mut symbols in [Symbols::new(), Symbols::new().without_functions()] {
        let profile = Profile::new(in_kernel(address + 4), &mut symbols);
        assert_eq!(profile.locations()[0].functions[0].name, *name);
        let kernel = profile.module_of(profile.locations()[0].place).unwrap();
        assert!(!profile.identity(kernel).unwrap().build_id.is_empty());
    }
}

/// A recording of one sample at this address in the kernel.
fn in_kernel(address: u64) -> Recording {
    let mut catalog = Catalog::new();
    let process = catalog.add_process(ProcessFacts::default());
    let thread = catalog.thread(process, 1, "t");
    let sample = Sample {
        time: 0,
        cpu: 0,
        thread,
        event: Event::OnCpu,
        found: Found::NotPublished,
        gil: None,
        user_stack: catalog.native_stack(&[]),
        stack_end: None,
        kernel_stack: catalog.native_stack(&[address]),
    };
    Recording {
        catalog,
        samples: vec![sample],
        clock: Clock {
            start: 0,
            end: 1,
            start_unix: 0,
        },
        period: std::num::NonZeroU64::MIN,
        counts: Counts::default(),
    }
}
