//! Rules of instructions, compared with those of the tables that compilers wrote for the same code.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use otelctx_fixtures::tier::left_to_all;
use otelctx_fixtures::{Compiler, debian_library};
use otelctx_remote::elf::{FileBytes, Source};

use super::super::*;
use super::UD2;
use crate::arch::Architecture;
use crate::file::FileRows;
use crate::rule::{Cfa, Dictionary, FrameRule, ReturnAddress, Saved};
use crate::tables::Tables;
use crate::{functions, maker};

/// A file whose tables are known.
struct Known<'a> {
    elf: Elf<'a>,
    rows: FileRows,
    functions: Vec<Function>,
    segments: Vec<Segment>,
    reader: &'static CodeReader,
    stack_pointer: u8,
}

impl Known<'_> {
    /// The start of the function at an address, or before it.
    fn function_at(&self, address: u64) -> u64 {
        let behind = self.functions.partition_point(|it| it.start <= address);
        let function = behind.checked_sub(1).map(|it| self.functions[it]);
        function.map_or(0, |function| function.start)
    }
}

/// Compares a file's rules with `compare`. `None` if it is not installed.
fn with_file(path: &Path, compare: impl Fn(&Known<'_>) -> Tally) -> Option<Tally> {
    let file = File::open(path).ok()?;
    let bytes = FileBytes(&file);
    let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
    let architecture = Architecture::of(elf.machine()).unwrap();
    let rows = FileRows::of(&elf, &Arc::new(Dictionary::new())).unwrap();
    let tables = Tables::read(&elf, architecture).unwrap();
    let segments = elf.loads().iter().filter(|it| it.executable);
    let segments: Vec<Segment> = segments.copied().collect();
    let functions = maker::functions(&tables, architecture, &segments).unwrap();
    let tally = compare(&Known {
        elf,
        rows,
        functions: functions
            .into_iter()
            .filter(|it| it.source == functions::Source::EhFrame)
            .collect(),
        segments,
        reader: &architecture.code,
        stack_pointer: architecture.stack_pointer,
    });
    println!("{}: {tally}", path.display());
    Some(tally)
}

/// Rules of functions whose addresses and sizes are known, compared with those of the tables.
fn compare_functions(path: &Path) -> Option<Tally> {
    with_file(path, |known| {
        let mut tally = Tally::default();
        for function in &known.functions {
            let mut bytes = vec![0; (function.end - function.start) as usize];
            known.elf.read_at(function.start, &mut bytes).unwrap();
            let code = FunctionCode {
                bytes: &bytes,
                address: function.start,
                start: function.start,
                end: function.end,
                starts: &[],
                tails: Tails::NONE,
                is_function: false,
            };
            let rules = (known.reader.function)(&code, &mut CodeWork::default());
            tally.functions += 1;
            tally.undecided_functions += u64::from(rules.is_none());
            let rules = rules.unwrap_or_default().rules;
            tally.compare(&rules, known, |at| code.from(at));
        }
        tally
    })
}

/// Rules of a file whose tables and symbols are withheld, compared with those of its tables.
fn compare_whole(path: &Path) -> Option<Tally> {
    with_file(path, |known| {
        let uncovered = Uncovered {
            pieces: read_pieces(&known.elf, &known.segments, &[]),
            starts: Vec::new(),
            listed: Vec::new(),
        };
        let rules = uncovered.rules(known.reader, &mut CodeWork::default());
        let mut tally = Tally::default();
        for function in &known.functions {
            let behind = rules.partition_point(|rule| rule.0 <= function.start);
            let rule = behind.checked_sub(1).map(|index| rules[index].1);
            let is_undecided = matches!(rule, None | Some(Rule::Gap | Rule::Unsupported));
            tally.functions += 1;
            tally.undecided_functions += u64::from(is_undecided);
        }
        tally.compare(&rules, known, |at| {
            let piece = uncovered.piece_at(at)?;
            piece.bytes.get((at - piece.start) as usize..)
        });
        tally
    })
}

/// Bytes of code, by how their rules compare with those of the tables.
#[derive(Debug, Default)]
struct Tally {
    functions: u64,
    undecided_functions: u64,
    equal: u64,
    undecided: u64,
    /// Equal but for the register that they count from.
    of_other_register: u64,
    others: u64,
    different: u64,
    /// Functions with rules that differ, and the first of each.
    different_functions: BTreeMap<u64, String>,
}

impl Tally {
    /// Compares rules in the order of addresses, whose ranges end with gaps, with those of the tables. `code` returns the
    /// code from an address on.
    fn compare<'c>(
        &mut self,
        rules: &[(u64, Rule)],
        known: &Known<'_>,
        code: impl Fn(u64) -> Option<&'c [u8]>,
    ) {
        // LLVM's tables can have the rule of a function's start there, after a jump through a table.
        let is_trap = |at: u64| code(at).is_some_and(|code| code.starts_with(&UD2));
        for pair in rules.windows(2) {
            let [(start, found), (end, _)] = pair else {
                continue;
            };
            if *found == Rule::Gap {
                continue;
            }
            for at in *start..*end {
                let by_tables = known.rows.rule_at(at);
                match (*found, by_tables) {
                    _ if is_trap(at) || at > *start && is_trap(at - 1) => {}
                    (Rule::Unsupported, _) => self.undecided += 1,
                    (found, by_tables) if found == by_tables => self.equal += 1,
                    (Rule::Frame(found), Rule::Frame(by_tables)) => {
                        match compare(&found, &by_tables, known.stack_pointer) {
                            Comparison::Undecided => self.undecided += 1,
                            Comparison::OtherRegister => self.of_other_register += 1,
                            Comparison::Other => self.others += 1,
                            Comparison::Different => {
                                self.different += 1;
                                let function = known.function_at(at);
                                let first = self.different_functions.entry(function);
                                first.or_insert_with(|| {
                                    format!("{at:#x}: {found:?}, not {by_tables:?}")
                                });
                            }
                        }
                    }
                    _ => self.others += 1,
                }
            }
        }
    }

    /// Checks that no rule is different, and that less than one in `min_decided` functions is undecided.
    #[track_caller]
    fn check(&self, min_equal: u64, min_decided: u64) {
        assert_eq!(self.different, 0, "{:?}", self.different_functions);
        assert!(self.equal >= min_equal, "{self}");
        assert!(self.undecided * 20 < self.equal, "{self}");
        assert!(self.others * 1000 < self.equal.max(100_000), "{self}");
        assert!(
            self.undecided_functions * min_decided < self.functions,
            "{self}"
        );
    }
}

enum Comparison {
    Undecided,
    OtherRegister,
    /// They may mean the same.
    Other,
    Different,
}

/// Compares two rules that are not equal.
fn compare(found: &FrameRule, by_tables: &FrameRule, stack_pointer: u8) -> Comparison {
    let counts_from_stack = |rule: &FrameRule| matches!(rule.cfa, Cfa::Register { register, .. } if register == stack_pointer);
    let is_same_cfa = found.cfa == by_tables.cfa;
    let is_same_return = found.return_address == by_tables.return_address;
    if is_same_cfa && is_same_return && found.frame_pointer == Saved::Unknown {
        return Comparison::Undecided;
    }
    // Clang's tables say that a register is saved when all are.
    let is_later = matches!(by_tables.return_address, ReturnAddress::Register(_));
    if is_same_cfa && (is_same_return || is_later) && by_tables.frame_pointer == Saved::Same {
        return Comparison::Other;
    }
    // Counted from different registers, it is the same frame only if all else is.
    let is_same = is_same_return && found.frame_pointer == by_tables.frame_pointer;
    match is_same && !(counts_from_stack(found) && counts_from_stack(by_tables)) {
        true => Comparison::OtherRegister,
        false => Comparison::Different,
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            functions,
            undecided_functions,
            equal,
            undecided,
            of_other_register,
            others,
            different,
            ..
        } = self;
        write!(
            out,
            "{equal} bytes equal, {of_other_register} of another register, {undecided} undecided, {others} of another kind, {different} different; \
            {undecided_functions} of {functions} functions undecided"
        )
    }
}

#[test]
fn rules_of_instructions_are_those_of_the_tables() {
    // Not the C library, whose assembly has pushes that its tables leave out.
    for path in ["/proc/self/exe", "/bin/bash", "/usr/bin/perl"] {
        if let Some(tally) = compare_functions(Path::new(path)) {
            tally.check(500_000, 8);
        }
    }
}

#[test]
fn rules_of_files_without_tables_and_symbols_are_those_of_the_tables() {
    for (compiler, flags) in [
        (Compiler::gcc(), ["-O2", "-fomit-frame-pointer"]),
        (Compiler::gcc(), ["-Os", "-fcf-protection=full"]),
        (Compiler::gcc(), ["-O3", "-fstack-protector-all"]),
        (Compiler::clang(), ["-O2", "-fomit-frame-pointer"]),
    ] {
        if let Some(library) = compiler.library(&["stacks.c"], &flags) {
            compare_whole(&library).unwrap().check(1000, 3);
        }
    }
    // Not those of the C library, whose assembly has pushes that its tables leave out.
    let libraries = "/usr/lib/x86_64-linux-gnu";
    for name in ["libz.so.1", "libexpat.so.1", "libsqlite3.so.0", "libm.so.6"] {
        if let Some(tally) = compare_whole(&Path::new(libraries).join(name)) {
            tally.check(50_000, 3);
        }
    }
}

#[test]
fn rules_of_aarch64_are_those_of_the_tables() {
    for flags in [
        &["-O2", "-fomit-frame-pointer"][..],
        &["-O2", "-mbranch-protection=standard"],
        &["-Os", "-fstack-protector-all"],
        &["-O0"],
    ] {
        // With the C library's objects.
        let flags = [flags, &["-static"]].concat();
        if let Some(program) = Compiler::aarch64_gcc().program(&["stacks.c"], &flags) {
            compare_functions(&program).unwrap().check(100_000, 8);
        }
    }
    let libraries = Path::new("/usr/aarch64-linux-gnu/lib");
    if let Some(tally) = compare_functions(&libraries.join("libm.so.6")) {
        tally.check(200_000, 8);
    }
    if let Some(tally) = compare_whole(&libraries.join("libm.so.6")) {
        tally.check(200_000, 8);
    }
}

/// Libraries with assembly, and large ones of C and C++, in Debian 12; how many bytes of rules are equal at least; and how
/// many functions have tables that are known to be wrong, or about another frame, which was decided by hand.
const LIBRARIES: [(&str, u64, usize); 14] = [
    (
        "arm64/tree/usr/lib/aarch64-linux-gnu/libgmp.so.10",
        250_000,
        0,
    ),
    // setcontext, whose table is about the frame that it switches to.
    ("arm64/tree/lib/aarch64-linux-gnu/libc.so.6", 900_000, 1),
    (
        "arm64/tree/usr/lib/aarch64-linux-gnu/libcrypto.so.3",
        1_900_000,
        0,
    ),
    // The end of _PyEval_EvalFrameDefault, which nothing reaches, and where nothing shows that it belongs to that.
    (
        "arm64/tree/usr/lib/aarch64-linux-gnu/libpython3.11.so.1.0",
        2_600_000,
        1,
    ),
    (
        "arm64/tree/usr/lib/aarch64-linux-gnu/libx264.so.164",
        1_000_000,
        0,
    ),
    (
        "arm64/tree/usr/lib/aarch64-linux-gnu/libstdc++.so.6",
        600_000,
        0,
    ),
    ("arm64/tree/lib/aarch64-linux-gnu/libm.so.6", 270_000, 0),
    ("arm64/tree/lib/aarch64-linux-musl/libc.so", 15_000, 0),
    (
        "amd64/tree/usr/lib/x86_64-linux-gnu/libgmp.so.10",
        320_000,
        0,
    ),
    // Assembly whose directives are behind another instruction than the one that they are about.
    (
        "amd64/tree/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        2_000_000,
        4,
    ),
    // x264_param_parse: `ret` has the rule from before `pop %rbp`.
    (
        "amd64/tree/usr/lib/x86_64-linux-gnu/libx264.so.164",
        1_100_000,
        1,
    ),
    // __mpn_add_n and __mpn_sub_n, whose tables leave out pushes.
    ("amd64/tree/lib/x86_64-linux-gnu/libc.so.6", 1_200_000, 2),
    (
        "amd64/tree/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0",
        2_600_000,
        0,
    ),
    (
        "amd64/tree/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        800_000,
        0,
    ),
];

#[test]
fn rules_of_libraries_are_those_of_their_tables() {
    if left_to_all("libraries with assembly") {
        return;
    }
    for (path, min_equal, wrong_tables) in LIBRARIES {
        let Some(path) = debian_library(path) else {
            continue;
        };
        for compare in [compare_functions, compare_whole] {
            let tally = compare(&path).unwrap();
            let different = &tally.different_functions;
            assert!(different.len() <= wrong_tables, "{different:?}");
            assert!(tally.equal >= min_equal, "{tally}");
        }
    }
}
