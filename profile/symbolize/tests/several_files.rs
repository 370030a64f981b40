//! Debug information in several files: split by gcc and clang, and with a supplementary file of dwz.

mod tools;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_symbolize::{FailureReason, Symbols};
use tools::{Resolved, Scratch, found, instructions, text, tool, truth};

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../testing/fixtures/programs/inlined.c"
);

fn has(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        println!("skipped: there is no {program}");
    }
    is_there
}

/// A program whose debug information is in a file of the directory that it was compiled in.
struct Split {
    scratch: Scratch,
    program: PathBuf,
    object: PathBuf,
    addresses: Vec<u64>,
    expected: Vec<Resolved>,
}

impl Split {
    fn new(compiler: &str, version: &str) -> Self {
        let scratch = Scratch::new(&format!("split-{compiler}{version}"));
        for folder in ["built", "installed", "debug"] {
            fs::create_dir_all(scratch.0.join(folder)).unwrap();
        }
        let built = scratch.0.join("built");
        let run = |arguments: &[&str]| {
            let mut command = Command::new(compiler);
            command.args(["-O2", version]).args(arguments);
            let status = command.current_dir(&built).status().unwrap();
            assert!(status.success(), "{compiler} {arguments:?}");
        };
        run(&["-c", SOURCE, "-o", "whole.o"]);
        run(&["whole.o", "-o", "whole"]);
        run(&["-gsplit-dwarf", "-c", SOURCE, "-o", "split.o"]);
        let program = scratch.0.join("installed/program");
        run(&["split.o", "-o", text(&program)]);
        let whole = built.join("whole");
        let addresses = instructions(&whole, &["serve", "main"]);
        assert_eq!(instructions(&program, &["serve", "main"]), addresses);
        let expected = truth(&whole, &addresses);
        assert!(expected.iter().any(|functions| functions.len() == 3));
        Self {
            object: built.join("split.dwo"),
            scratch,
            program,
            addresses,
            expected,
        }
    }

    fn all() -> impl Iterator<Item = (Self, &'static str)> {
        let compilers = ["gcc", "clang"].into_iter().filter(|it| has(it));
        compilers.flat_map(|compiler| {
            let versions = ["-gdwarf-4", "-gdwarf-5"];
            versions.map(|version| (Self::new(compiler, version), compiler))
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.0.join(name)
    }

    #[track_caller]
    fn assert_found(&self, mut symbols: Symbols) {
        let ours = found(&mut symbols, &self.program, &self.addresses);
        assert_eq!(ours, self.expected);
        assert_eq!(symbols.failures(), []);
    }

    /// The program's own part has the names of symbols, and lines.
    #[track_caller]
    fn assert_missing(&self, mut symbols: Symbols) {
        let ours = found(&mut symbols, &self.program, &self.addresses);
        let outermost = |functions: &Resolved| functions.last().unwrap().0.clone();
        let names: Vec<_> = self.expected.iter().map(outermost).collect();
        for ((functions, name), whole) in ours.iter().zip(names).zip(&self.expected) {
            let expected = [(name, whole[0].1.clone(), whole[0].2)];
            assert_eq!(functions[..], expected);
        }
        let [failure] = symbols.failures() else {
            panic!("{:?}", symbols.failures())
        };
        assert_eq!(failure.reason, FailureReason::NoSplitFile);
        let program = text(&self.program);
        let name = "neither split.dwo nor a .dwp file was found";
        let expected = format!("{program}: no inlined functions: {name}");
        assert_eq!(failure.to_string(), expected);
    }
}

#[test]
fn a_dwo_file_is_found_where_it_was_compiled_beside_the_program_and_in_given_directories() {
    for (split, _) in Split::all() {
        split.assert_found(Symbols::new());
        for place in ["installed/split.dwo", "debug/split.dwo"] {
            let moved = split.at(place);
            fs::rename(&split.object, &moved).unwrap();
            let symbols = Symbols::new().debug_directory(split.at("debug"));
            split.assert_found(symbols);
            fs::rename(&moved, &split.object).unwrap();
        }
        let mirrored = split.at(&format!("debug{}", text(&split.object)));
        fs::create_dir_all(mirrored.parent().unwrap()).unwrap();
        fs::rename(&split.object, mirrored).unwrap();
        split.assert_missing(Symbols::new());
        split.assert_found(Symbols::new().debug_directory(split.at("debug")));
    }
}

#[test]
fn a_compressed_dwo_file_is_read() {
    for (split, _) in Split::all() {
        for kind in ["zlib", "zstd"] {
            let compress = format!("--compress-debug-sections={kind}");
            tool("objcopy", &[&compress, text(&split.object)]);
            let sections = tool("readelf", &["-tW", text(&split.object)]);
            assert!(sections.contains(&kind.to_uppercase()), "{sections}");
            split.assert_found(Symbols::new());
            let plain = ["--decompress-debug-sections", text(&split.object)];
            tool("objcopy", &plain);
        }
        // And a program of which each part is compressed.
        tool(
            "objcopy",
            &["--compress-debug-sections=zlib", text(&split.program)],
        );
        split.assert_found(Symbols::new());
    }
}

/// llvm-dwp 14 does not end with what gcc writes.
#[test]
fn a_dwp_file_is_found_beside_the_program_and_in_given_directories() {
    if !has("llvm-dwp") {
        return;
    }
    for (split, _) in Split::all().filter(|(_, compiler)| *compiler == "clang") {
        let package = split.at("installed/program.dwp");
        tool("llvm-dwp", &[text(&split.object), "-o", text(&package)]);
        fs::remove_file(&split.object).unwrap();
        split.assert_found(Symbols::new());
        fs::rename(package, split.at("debug/program.dwp")).unwrap();
        split.assert_missing(Symbols::new());
        split.assert_found(Symbols::new().debug_directory(split.at("debug")));
    }
}

#[test]
fn the_dwo_files_of_a_debug_file_are_found() {
    for (split, _) in Split::all() {
        let debug = split.at("debug/program.debug");
        let whole = text(&split.program);
        tool("objcopy", &["--only-keep-debug", whole, text(&debug)]);
        tool("strip", &["--remove-section=.note.gnu.build-id", whole]);
        let link = format!("--add-gnu-debuglink={}", text(&debug));
        tool("objcopy", &[&link, whole]);
        split.assert_found(Symbols::new().debug_directory(split.at("debug")));
    }
}

/// Whatever is in the place of a `.dwo` file is neither waited for nor read to its end.
#[test]
fn another_file_in_the_place_of_a_dwo_file_is_not_used() {
    for (split, compiler) in Split::all() {
        let object = text(&split.object);
        let other = split.at("other.c");
        fs::write(&other, "int serve(int n) { return n; }\n").unwrap();
        let compile = ["-g", "-gsplit-dwarf", "-c", text(&other), "-o"];
        let output = split.at("built/split.o");
        tool(compiler, &[&compile[..], &[text(&output)]].concat());
        split.assert_missing(Symbols::new());
        for link in [
            "/proc/kmsg",
            "/dev/zero",
            "/sys/kernel/notes",
            text(&split.program),
        ] {
            fs::remove_file(&split.object).unwrap();
            std::os::unix::fs::symlink(link, &split.object).unwrap();
            split.assert_missing(Symbols::new());
        }
        fs::remove_file(&split.object).unwrap();
        tool("mkfifo", &[object]);
        split.assert_missing(Symbols::new());
        fs::remove_file(&split.object).unwrap();
        let hole = fs::File::create(&split.object).unwrap();
        if hole.set_len(100 << 30).is_ok() {
            hole.write_all_at(b"\x7fELF", 0).unwrap();
            split.assert_missing(Symbols::new());
        }
    }
}

#[test]
fn a_dwo_file_is_read_wherever_it_is_cut_or_changed() {
    let Some((split, _)) = Split::all().last() else {
        return;
    };
    let whole = fs::read(&split.object).unwrap();
    for length in (0..whole.len()).step_by(97) {
        fs::write(&split.object, &whole[..length]).unwrap();
        let ours = found(&mut Symbols::new(), &split.program, &split.addresses);
        assert!(
            ours.iter().all(|functions| !functions.is_empty()),
            "{length}"
        );
    }
    for at in (0..whole.len()).step_by(31) {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        fs::write(&split.object, changed).unwrap();
        let ours = found(&mut Symbols::new(), &split.program, &split.addresses);
        assert!(ours.iter().all(|functions| !functions.is_empty()), "{at}");
    }
}

/// Two programs whose common debug information is in a supplementary file, in GNU's form or that of DWARF 5.
#[test]
fn a_supplementary_file_is_found_beside_the_program_and_in_given_directories() {
    if !has("dwz") {
        return;
    }
    let gnu: &[&str] = &[];
    for (version, form) in [
        ("-gdwarf-4", gnu),
        ("-gdwarf-5", gnu),
        ("-gdwarf-5", &["-5"]),
    ] {
        let scratch = Scratch::new("supplement");
        let debug = scratch.0.join("debug");
        fs::create_dir(&debug).unwrap();
        let paths = ["one", "other"].map(|name| scratch.0.join(name));
        for path in &paths {
            let flags = ["-O2", version, "-include", "stdio.h", "-Wl,--build-id"];
            let files = [SOURCE, "-o", text(path)];
            tool("gcc", &[&flags[..], &files].concat());
        }
        let program = &paths[0];
        let addresses = instructions(program, &["serve", "main"]);
        let expected = truth(program, &addresses);
        let supplement = scratch.0.join("supplement");
        let options = [
            "-r",
            "-m",
            text(&supplement),
            text(program),
            text(&paths[1]),
        ];
        tool("dwz", &[form, &options[..]].concat());
        let sections = tool("readelf", &["-SW", text(program)]);
        let section = if form == ["-5"] {
            ".debug_sup"
        } else {
            ".gnu_debugaltlink"
        };
        assert!(sections.contains(section), "{sections}");
        let mut symbols = Symbols::new();
        assert_eq!(found(&mut symbols, program, &addresses), expected);
        assert_eq!(symbols.failures(), []);

        let moved = debug.join("supplement");
        fs::rename(&supplement, &moved).unwrap();
        let mut symbols = Symbols::new().debug_directory(&debug);
        assert_eq!(found(&mut symbols, program, &addresses), expected);
        assert_eq!(symbols.failures(), []);

        // Of a debug file, beside that.
        let separate = debug.join("program.debug");
        let keep = ["--only-keep-debug", text(program), text(&separate)];
        tool("objcopy", &keep);
        let stripped = scratch.0.join("stripped");
        let options = [
            "-R.gnu_debugaltlink",
            "-R.debug_sup",
            "--remove-section=.note.gnu.build-id",
        ];
        let files = [text(program), "-o", text(&stripped)];
        tool("strip", &[&options[..], &files].concat());
        let link = format!("--add-gnu-debuglink={}", text(&separate));
        tool("objcopy", &[&link, text(&stripped)]);
        let mut symbols = Symbols::new().debug_directory(&debug);
        assert_eq!(found(&mut symbols, &stripped, &addresses), expected);
        // And elsewhere.
        let elsewhere = scratch.0.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::rename(&moved, elsewhere.join("supplement")).unwrap();
        let mut symbols = symbols.debug_directory(&elsewhere);
        assert_eq!(found(&mut symbols, &stripped, &addresses), expected);
        assert_eq!(symbols.failures(), []);

        // Another file of that name is not used.
        fs::copy(program, &supplement).unwrap();
        assert_no_supplement(program, &addresses);
        fs::remove_file(&supplement).unwrap();
        tool("mkfifo", &[text(&supplement)]);
        assert_no_supplement(program, &addresses);
    }
}

#[track_caller]
fn assert_no_supplement(program: &Path, addresses: &[u64]) {
    let mut symbols = Symbols::new();
    let ours = found(&mut symbols, program, addresses);
    let name = |functions: &Resolved| functions.last().unwrap().0.clone();
    let mut names: Vec<_> = ours.iter().map(name).collect();
    names.dedup();
    assert_eq!(names, ["main", "serve"]);
    let shown: Vec<_> = symbols.failures().iter().map(ToString::to_string).collect();
    let expected = format!(
        "{}: fewer names and no inlined functions: the supplementary debug file supplement was not found",
        text(program)
    );
    assert!(shown.contains(&expected), "{shown:?}");
}
