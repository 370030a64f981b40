//! Kinds of files and of memory, each against binutils.

mod tools;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use otelctx_fixtures::Compiler;
use otelctx_profile::sample::{Catalog, Mapping, Module};
use otelctx_symbolize::{FailureReason, Symbols};
use tools::{Resolved, Scratch, found, in_process, instructions, module, text, tool, truth};

fn program(scratch: &Scratch, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let built = Compiler::gcc().program(&[source], flags)?;
    let path = scratch.0.join("program");
    otelctx_fixtures::copy_program(built, &path);
    Some(path)
}

fn named(name: &str) -> Resolved {
    vec![(name.into(), String::new(), 0)]
}

#[test]
fn debug_information_of_each_version_is_read_packed_or_not() {
    let scratch = Scratch::new("versions");
    for flags in [
        &["-O2", "-gdwarf-4"][..],
        &["-O2", "-gdwarf-5"],
        &["-O2", "-gdwarf-5", "-gz=zlib"],
        &["-O2", "-gdwarf-4", "-gz=zlib"],
        &[
            "-O2",
            "-gdwarf-5",
            "-fdebug-types-section",
            "-gno-as-loc-support",
        ],
    ] {
        let Some(program) = program(&scratch, "inlined.c", flags) else {
            return;
        };
        let addresses = instructions(&program, &["serve", "main"]);
        let expected = truth(&program, &addresses);
        assert!(
            expected.iter().any(|resolved| resolved.len() == 3),
            "{expected:?}"
        );
        let mut symbols = Symbols::new();
        assert_eq!(
            found(&mut symbols, &program, &addresses),
            expected,
            "{flags:?}"
        );
        assert_eq!(symbols.failures(), []);
    }
}

/// What objcopy compresses is one frame; mold's parallel linker makes one of each mebibyte.
#[test]
fn debug_information_that_zstd_has_compressed_is_read() {
    let scratch = Scratch::new("zstd");
    let large = scratch.0.join("large.s");
    let mut bytes = ".section .debug_str,\"MS\",@progbits,1\n".to_owned();
    for index in 0..200_000 {
        bytes += &format!(".asciz \"unused name {index}\"\n");
    }
    fs::write(&large, bytes).unwrap();
    let mold = ["-fuse-ld=mold", "-Wl,--compress-debug-sections=zstd"];
    for (version, flags) in [
        ("-gdwarf-4", &[][..]),
        ("-gdwarf-5", &[]),
        ("-gdwarf-5", &mold),
    ] {
        let mut all = vec!["-O2", version, text(&large), "-Wl,--build-id=none"];
        all.extend(flags);
        let Some(program) = program(&scratch, "inlined.c", &all) else {
            return;
        };
        let addresses = instructions(&program, &["serve", "main"]);
        // This binutils may not know what mold has written.
        let plain = scratch.0.join("plain");
        if flags.is_empty() {
            fs::copy(&program, &plain).unwrap();
            tool(
                "objcopy",
                &["--compress-debug-sections=zstd", text(&program)],
            );
        } else {
            let options = ["--decompress-debug-sections", text(&program), text(&plain)];
            tool("objcopy", &options);
        }
        assert!(tool("readelf", &["-tW", text(&program)]).contains("ZSTD"));
        let expected = truth(&plain, &addresses);
        let has_inlined = expected.iter().any(|resolved| resolved.len() == 3);
        assert!(has_inlined, "{expected:?}");
        let offsets = tools::offsets(&program, &addresses);
        let mut symbols = Symbols::new();
        assert_eq!(found(&mut symbols, &program, &offsets), expected);
        assert_eq!(symbols.failures(), []);

        // In a debug file beside the program, and in a directory of this machine.
        let debug = scratch.0.join("debug");
        fs::create_dir_all(&debug).unwrap();
        let separate = debug.join("program.debug");
        let only_debug = ["--only-keep-debug", text(&program), text(&separate)];
        tool("objcopy", &only_debug);
        assert!(tool("readelf", &["-tW", text(&separate)]).contains("ZSTD"));
        tool("strip", &[text(&program)]);
        let link = format!("--add-gnu-debuglink={}", text(&separate));
        tool("objcopy", &[&link, text(&program)]);
        let mut symbols = Symbols::new().debug_directory(&debug);
        assert_eq!(found(&mut symbols, &program, &offsets), expected);
        let beside = scratch.0.join("program.debug");
        fs::rename(separate, &beside).unwrap();
        let mut symbols = Symbols::new();
        assert_eq!(found(&mut symbols, &program, &offsets), expected);
        assert_eq!(symbols.failures(), []);
        fs::remove_file(beside).unwrap();
    }
}

#[test]
fn symbols_are_used_if_debug_information_fails_which_is_reported() {
    let scratch = Scratch::new("unknown-compression");
    let Some(program) = program(&scratch, "inlined.c", &["-O2", "-g"]) else {
        return;
    };
    let serve = instructions(&program, &["serve"]);
    tool(
        "objcopy",
        &["--compress-debug-sections=zlib", text(&program)],
    );
    tools::change_compression(&program, |header| header[0] = 9);
    let mut symbols = Symbols::new();
    let all = found(&mut symbols, &program, &serve);
    assert_eq!(all, vec![named("serve"); serve.len()]);
    let [failure] = symbols.failures() else {
        panic!("{:?}", symbols.failures())
    };
    assert_eq!(failure.reason, FailureReason::Malformed);
    assert_eq!(failure.path, text(&program));
}

#[test]
fn a_stripped_library_has_the_names_that_it_exports() {
    let scratch = Scratch::new("exported");
    let flags = ["-O2", "-shared", "-fPIC", "-Wl,--build-id"];
    let Some(library) = program(&scratch, "inlined.c", &flags) else {
        return;
    };
    let serve = instructions(&library, &["serve"]);
    tool("strip", &["--strip-all", text(&library)]);
    let all = found(&mut Symbols::new(), &library, &serve);
    assert_eq!(all, vec![named("serve"); serve.len()]);
}

/// A stub of the procedure linkage table must not go by the name of a neighbour.
#[test]
fn a_stub_of_the_linkage_table_is_named_by_the_function_that_it_calls() {
    let scratch = Scratch::new("plt");
    let source = scratch.0.join("stub.c");
    fs::write(
        &source,
        "int puts(const char *);\nint main(void) { return puts(\"x\"); }\n",
    )
    .unwrap();
    let program = scratch.0.join("stub");
    tool(
        "gcc",
        &["-O1", "-fno-builtin", text(&source), "-o", text(&program)],
    );
    let listing = tool("objdump", &["-d", "--no-show-raw-insn", text(&program)]);
    let stub = listing.lines().find(|line| line.ends_with("<puts@plt>:"));
    let stub = u64::from_str_radix(stub.unwrap().split(' ').next().unwrap(), 16).unwrap();
    let functions = found(&mut Symbols::new(), &program, &[stub, stub + 4]);
    assert_eq!(functions, vec![named("puts@plt"); 2]);
}

#[test]
fn names_of_cpp_and_rust_are_demangled() {
    let scratch = Scratch::new("mangled");
    let source = scratch.0.join("shop.cpp");
    let text_of = "namespace shop { template <class T> struct Cart {\
        __attribute__((noinline)) T add(T a, T b) { return a + b; } }; }\n\
        int main(int n, char **) { return shop::Cart<long>().add(n, 2); }\n";
    fs::write(&source, text_of).unwrap();
    let program = scratch.0.join("cpp");
    tool("g++", &["-O1", "-g", text(&source), "-o", text(&program)]);
    let symbol = "_ZN4shop4CartIlE3addEll";
    let first = instructions(&program, &[symbol])[0];
    let cpp = &found(&mut Symbols::new(), &program, &[first])[0];
    assert_eq!(cpp[0].0, "shop::Cart<long>::add(long, long)");

    let source = scratch.0.join("shop.rs");
    let text_of = "mod cart { pub struct Cart<T>(pub T); impl Cart<u32> { #[inline(never)]\n\
        pub fn add(&self, n: u32) -> u32 { std::hint::black_box(self.0 + n) } } }\n\
        fn main() { std::process::exit(cart::Cart(std::env::args().count() as u32).add(2) as i32) }\n";
    fs::write(&source, text_of).unwrap();
    for version in ["v0", "legacy"] {
        let program = scratch.0.join(version);
        let built = Command::new("rustc")
            .args(["--crate-name=shop", "-Cdebuginfo=0", "-Zunstable-options"])
            .arg(format!("-Csymbol-mangling-version={version}"))
            .arg("-o")
            .args([&program, &source])
            .env("RUSTC_BOOTSTRAP", "1")
            .output();
        let Ok(built) = built else {
            println!("skipped: there is no rustc");
            return;
        };
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let list = tool("nm", &[text(&program)]);
        let line = list
            .lines()
            .find(|line| line.contains("4cart") && line.contains("3add"));
        let address = u64::from_str_radix(line.unwrap().split(' ').next().unwrap(), 16).unwrap();
        // Code has other addresses than offsets here.
        let offsets = tools::offsets(&program, &[address]);
        let rust = &found(&mut Symbols::new(), &program, &offsets)[0];
        let expected = match version {
            "v0" => "<shop::cart::Cart<u32>>::add",
            _ => "shop::cart::Cart<u32>::add",
        };
        assert_eq!(rust[0].0, expected);
    }
}

/// The name at the first instruction of the function with this symbol.
fn name_of(program: &Path, symbol: &str) -> String {
    let list = tool("nm", &[text(program)]);
    let line = list.lines().find(|line| line.get(19..) == Some(symbol));
    let line = line.unwrap_or_else(|| panic!("no {symbol}"));
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let offsets = tools::offsets(program, &[address]);
    found(&mut Symbols::new(), program, &offsets)[0]
        .last()
        .unwrap()
        .0
        .clone()
}

/// Builds a program; `None`, with a line, where there is no such compiler.
fn built(scratch: &Scratch, source: &str, contents: &str, command: &[&str]) -> Option<PathBuf> {
    let path = scratch.0.join(source);
    fs::write(&path, contents).unwrap();
    let [compiler, arguments @ ..] = command else {
        panic!("no compiler")
    };
    let mut command = Command::new(compiler);
    // Crystal and Free Pascal write other files beside these.
    command.args(arguments).arg(&path).current_dir(&scratch.0);
    let Ok(output) = command.env("CRYSTAL_CACHE_DIR", &scratch.0).output() else {
        println!("skipped: there is no {compiler}");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    Some(scratch.0.join("program"))
}

#[test]
fn names_of_d_are_demangled() {
    let scratch = Scratch::new("d");
    let contents = "module shop.cart;\n\
        class Shop { long sell(int n, string[string] m) const { return n + m.length; } }\n\
        int main(string[] args) { return cast(int) (new Shop).sell(1, null); }\n";
    for compiler in [
        ["gdc", "-o", "program"].as_slice(),
        &["ldc2", "-of=program"],
    ] {
        for debug in [&["-g"][..], &[]] {
            let command = [compiler, debug].concat();
            let Some(program) = built(&scratch, "shop.d", contents, &command) else {
                continue;
            };
            assert_eq!(
                name_of(&program, "_D4shop4cart4Shop4sellMxFiHAyaQdZl"),
                "shop.cart.Shop.sell(int, immutable(char)[][immutable(char)[]]) const",
                "{command:?}"
            );
            assert_eq!(name_of(&program, "_Dmain"), "D main", "{command:?}");
        }
    }
}

#[test]
fn names_of_crystal_are_whole() {
    let scratch = Scratch::new("crystal");
    let contents = "class Foo(T)\n  @[NoInline]\n  def bar(n : T) : T\n    n &+ 1\n  end\nend\n\
        puts Foo(Int32).new.bar(3)\n";
    for debug in ["--debug", "--no-debug"] {
        let command = ["crystal", "build", "-o", "program", debug];
        let Some(program) = built(&scratch, "foo.cr", contents, &command) else {
            return;
        };
        let name = "*Foo(Int32)@Foo(T)#bar<Int32>:Int32";
        assert_eq!(name_of(&program, name), name, "{command:?}");
    }
}

#[test]
fn names_of_free_pascal_are_whole() {
    let scratch = Scratch::new("pascal");
    let contents = "program Shop; {$mode objfpc}{$H+}\n\
        type TCart = class procedure Add(n: longint); end;\nvar total: int64;\n\
        procedure TCart.Add(n: longint); begin total := total + n; end;\n\
        procedure Spin(a: longint; s: ansistring); begin total := total + a; end;\n\
        begin TCart.Create.Add(3); Spin(1, 'x'); writeln(total); end.\n";
    for debug in [&["-g"][..], &["-gw2"], &["-gw3"], &[]] {
        let command = [&["fpc", "-Xs-", "-oprogram"][..], debug].concat();
        let Some(program) = built(&scratch, "shop.pas", contents, &command) else {
            return;
        };
        for name in [
            "P$SHOP$_$TCART_$__$$_ADD$LONGINT",
            "P$SHOP_$$_SPIN$LONGINT$ANSISTRING",
        ] {
            assert_eq!(name_of(&program, name), name, "{command:?}");
        }
    }
}

/// A program that waits, and ends with this value.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// The first mapping whose name has this, with its offset.
    fn mapping(&self, name: &str) -> (Mapping, String) {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let line = maps.lines().find(|line| line.contains(name));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        let (start, end) = words[0].split_once('-').unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mapping = Mapping {
            start: number(start),
            end: number(end),
            offset: number(words[2]),
            module: Catalog::new().module(Module::kernel()),
            since: 0,
        };
        (mapping, words[5].to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of `cat` that waits for its input.
fn waiting(path: &Path) -> Command {
    let source = path.with_extension("c");
    let text_of = "#include <stdio.h>\n__attribute__((noinline)) int serve(void) {\n\
        puts(\"ready\"); fflush(stdout); return getchar(); }\nint main(void) { return serve(); }\n";
    fs::write(&source, text_of).unwrap();
    tool("gcc", &["-O1", "-g", text(&source), "-o", text(path)]);
    Command::new(path)
}

#[test]
fn a_file_that_was_deleted_is_read_from_who_has_it_mapped() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root may open files by mapping");
        return;
    }
    let scratch = Scratch::new("deleted");
    let path = scratch.0.join("waiting");
    let running = Running::start(&mut waiting(&path));
    let (module, serve) = (module(&path), instructions(&path, &["serve"]));
    let expected = truth(&path, &serve);
    fs::remove_file(&path).unwrap();
    // Another file of that name is not it.
    fs::copy("/bin/true", &path).unwrap();
    let (mapping, _) = running.mapping("/waiting");
    let symbols = &mut Symbols::new();
    let resolved = in_process(symbols, &module, running.pid(), Some(&mapping), &serve);
    assert_eq!(resolved, expected);
}

#[test]
fn a_file_in_another_mount_namespace_is_read_there() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root may mount");
        return;
    }
    let scratch = Scratch::new("namespace");
    let path = scratch.0.join("waiting");
    waiting(&path);
    let serve = instructions(&path, &["serve"]);
    let expected = truth(&path, &serve);
    // The program is seen only there.
    let inside = scratch.0.join("inside");
    fs::create_dir(&inside).unwrap();
    let script = format!(
        "mount -t tmpfs none {0} && cp {1} {0}/waiting && exec {0}/waiting",
        text(&inside),
        text(&path)
    );
    let mut command = Command::new("unshare");
    let running = Running::start(command.args(["-m", "sh", "-c", &script]));
    let seen = format!("/proc/{}/root{}/waiting", running.pid(), text(&inside));
    let module = Module {
        path: format!("{}/waiting", text(&inside)),
        ..module(Path::new(&seen))
    };
    let (mapping, _) = running.mapping("/inside/waiting");
    let symbols = &mut Symbols::new();
    let resolved = in_process(symbols, &module, running.pid(), Some(&mapping), &serve);
    assert_eq!(resolved, expected);
}

#[test]
fn the_vdso_has_the_names_that_it_exports() {
    let scratch = Scratch::new("vdso");
    let running = Running::start(&mut waiting(&scratch.0.join("waiting")));
    let (mapping, name) = running.mapping("[vdso]");
    let mut image = vec![0; (mapping.end - mapping.start) as usize];
    let memory = fs::File::open(format!("/proc/{}/mem", running.pid())).unwrap();
    memory.read_exact_at(&mut image, mapping.start).unwrap();
    let dumped = scratch.0.join("vdso.so");
    fs::write(&dumped, image).unwrap();
    let list = tool("nm", &["-D", "--defined-only", text(&dumped)]);
    let line = list.lines().find(|line| line.contains("_clock_gettime"));
    let address = u64::from_str_radix(line.unwrap().split(' ').next().unwrap(), 16).unwrap();
    let module = Module {
        path: name,
        ..Module::default()
    };
    let asked = [mapping.start + address + 1];
    let symbols = &mut Symbols::new();
    let resolved = in_process(symbols, &module, running.pid(), Some(&mapping), &asked);
    let names = [
        "clock_gettime",
        "__vdso_clock_gettime",
        "__kernel_clock_gettime",
    ];
    assert!(names.contains(&&resolved[0][0].0[..]), "{resolved:?}");
    // Elsewhere in memory without a file there are no names, whatever it is called.
    let module = Module {
        path: "[anon]".into(),
        ..Module::default()
    };
    let resolved = in_process(symbols, &module, running.pid(), Some(&mapping), &asked);
    assert_eq!(resolved, [[]]);
}
