//! The variable is exported from what a user builds, without flags, by each linker.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod packages;
#[path = "../build/stub.rs"]
mod stub;

use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{elf, Object, ObjectSymbol};
use packages::{exports, have, have_cargo, run, Package, OTELCTX};

const MAIN: &str = r#"
fn main() {
    let mut record = otelctx::Context::new([1; 16], [2; 8]).unwrap();
    let _attached = record.attach();
    match otelctx::is_exported() {
        Ok(()) => println!("exported"),
        Err(why) => println!("{why}"),
    }
}
"#;

/// Takes its orders from the environment: the linker, and whether to help.
const BUILD: &str = r#"
fn main() {
    println!("cargo:rerun-if-env-changed=TEST_LINKER");
    println!("cargo:rerun-if-env-changed=TEST_HELPER");
    if let Ok(linker) = std::env::var("TEST_LINKER") {
        println!("cargo:rustc-link-arg=-fuse-ld={linker}");
    }
    if std::env::var_os("TEST_HELPER").is_some() {
        otelctx_build::export();
    }
}
"#;

fn program(name: &'static str) -> Package {
    let manifest = format!(
        "[dependencies]\notelctx.path = {OTELCTX:?}\n\
         [build-dependencies]\notelctx-build.path = {:?}\n",
        format!("{OTELCTX}/../build")
    );
    Package::new(
        name,
        &manifest,
        &[("src/main.rs", MAIN), ("build.rs", BUILD)],
    )
}

const HELPER: (&str, &str) = ("TEST_HELPER", "1");

#[test]
fn executables_export_the_variable() {
    if !have_cargo() {
        return;
    }
    let package = program("exporting-executable");
    for (linker, alone) in [
        ("lld", true),
        ("gold", true),
        ("bfd", false),
        ("mold", false),
    ] {
        let tool = if linker == "mold" {
            "mold".into()
        } else {
            format!("ld.{linker}")
        };
        if !have(&tool) {
            continue;
        }
        let choice = ("TEST_LINKER", linker);
        let (file, _) = package.build("exporting-executable", &[], &[choice]);
        assert_eq!(exports(&file), alone, "{linker} without help");
        let says = run(&file, &[]);
        if alone {
            assert_eq!(says, "exported\n", "{linker}");
        } else {
            let path = file.display();
            let hidden = format!("otel_thread_ctx_v1 is defined in {path} but not exported");
            assert!(says.starts_with(&hidden), "{linker}: {says}");
            assert!(
                says.contains("otelctx_build::export();"),
                "{linker}: {says}"
            );
        }
        let (file, _) = package.build("exporting-executable", &[], &[choice, HELPER]);
        assert!(exports(&file), "{linker} with help");
        assert_eq!(run(&file, &[]), "exported\n", "{linker}");
    }
    // What a plain `cargo build` gives, and that it needs no other library for that.
    for profile in [&[][..], &["--release"]] {
        let (file, _) = package.build("exporting-executable", profile, &[]);
        assert!(exports(&file));
        assert_eq!(run(&file, &[]), "exported\n");
        let data = std::fs::read(&file).unwrap();
        assert!(
            !needed(&data).iter().any(|name| name.contains("otelctx")),
            "{profile:?}"
        );
    }
}

#[test]
fn a_static_executable_runs_and_says_what_it_lacks() {
    if !have_cargo() {
        return;
    }
    let package = program("static-executable");
    let target = ["--target", "x86_64-unknown-linux-gnu"];
    let flags = ("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    let (file, _) = package.build("static-executable", &target, &[flags]);
    let says = run(&file, &[]);
    assert!(
        says.contains("is not exported") || says.contains("not exported"),
        "{says}"
    );

    let (file, _) = package.build("static-executable", &target, &[flags, HELPER]);
    assert!(exports(&file));
    assert_eq!(run(&file, &[]), "exported\n");

    // GNU ld would make a program that crashes before main.
    let flags = (
        "RUSTFLAGS",
        "-Ctarget-feature=+crt-static -Clink-arg=-fuse-ld=bfd",
    );
    let (file, messages) = package.build("static-executable", &target, &[flags, HELPER]);
    assert!(
        messages.contains("crashes before main when GNU ld has linked it"),
        "{messages}"
    );
    assert!(!exports(&file));
    run(&file, &[]);
}

#[test]
fn the_helper_asks_rustc_which_linker_it_uses() {
    if !have_cargo() {
        return;
    }
    // A distribution's toolchain: of a version that has its own lld, but built without.
    let package = program("other-toolchain");
    let rustc = package.script("rustc", "exec rustc \"$@\" -Clinker-features=-lld");
    let (file, messages) = package.build(
        "other-toolchain",
        &["--target", "x86_64-unknown-linux-gnu"],
        &[
            ("RUSTFLAGS", "-Ctarget-feature=+crt-static"),
            ("RUSTC", &rustc),
            HELPER,
        ],
    );
    assert!(
        messages.contains("crashes before main when GNU ld has linked it"),
        "{messages}"
    );
    assert!(!exports(&file));
    run(&file, &[]);
}

#[test]
fn the_helper_gives_an_old_gnu_ld_a_dynamic_list() {
    if !have_cargo() || !have("ld.bfd") {
        return;
    }
    let package = program("old-binutils");
    let linker = package.script(
        "cc",
        "case \"$*\" in *--export-dynamic-symbol*)\n  \
         echo \"ld: unrecognized option '--export-dynamic-symbol'\" >&2; exit 1\nesac\n\
         exec cc -fuse-ld=bfd \"$@\"",
    );
    let flags = format!("-Clinker={linker} -Clinker-features=-lld");
    let (file, _) = package.build("old-binutils", &[], &[("RUSTFLAGS", &flags), HELPER]);
    assert!(exports(&file));
    assert_eq!(run(&file, &[]), "exported\n");
}

#[test]
fn libraries_for_other_languages_export_the_variable() {
    if !have_cargo() {
        return;
    }
    let manifest =
        format!("[lib]\ncrate-type = [\"cdylib\"]\n[dependencies]\notelctx.path = {OTELCTX:?}\n");
    let library = r#"
#[no_mangle]
pub extern "C" fn attach_forever() {
    std::mem::forget(Box::leak(Box::new(otelctx::Context::new([1; 16], [2; 8]).unwrap())).attach());
}
#[no_mangle]
pub extern "C" fn is_exported() -> bool {
    otelctx::is_exported().is_ok()
}
#[no_mangle]
pub extern "C" fn publish_forever() {
    std::mem::forget(otelctx::ProcessContext::detect().publish());
}
"#;
    let build = BUILD.replace("otelctx_build::export();", "");
    let files = [("src/lib.rs", library), ("build.rs", &build)];
    let package = Package::new("exporting-library", &manifest, &files);
    for linker in ["lld", "gold", "bfd", "mold"] {
        let tool = if linker == "mold" {
            "mold".into()
        } else {
            format!("ld.{linker}")
        };
        if !have(&tool) {
            continue;
        }
        for profile in [&[][..], &["--release"]] {
            let choice = ("TEST_LINKER", linker);
            let (file, _) = package.build("libexporting_library.so", profile, &[choice]);
            assert!(exports(&file), "{linker} {profile:?}");
            let data = std::fs::read(&file).unwrap();
            assert!(has_tlsdesc(&data), "{linker} {profile:?}");
            assert!(exports_withdraw(&data), "{linker} {profile:?}");
            assert!(
                !needed(&data).iter().any(|name| name.contains("otelctx")),
                "{linker}"
            );
        }
    }
}

#[test]
fn a_static_library_needs_nothing_that_only_its_build_has() {
    if !have_cargo() || !have("cc") {
        return;
    }
    let manifest = format!(
        "[lib]\ncrate-type = [\"staticlib\"]\n[dependencies.otelctx]\npath = {OTELCTX:?}\n\
         default-features = false\n[features]\nlink-export = [\"otelctx/link-export\"]\n"
    );
    let library = r#"
#[no_mangle]
pub extern "C" fn attach_forever() {
    std::mem::forget(Box::leak(Box::new(otelctx::Context::new([1; 16], [2; 8]).unwrap())).attach());
}
#[no_mangle]
pub extern "C" fn is_exported() -> bool {
    otelctx::is_exported().is_ok()
}
"#;
    let main = "#include <stdbool.h>\nvoid attach_forever(void);\nbool is_exported(void);\n\
                int main(void) { attach_forever(); return is_exported() ? 0 : 1; }\n";
    let files = [("src/lib.rs", library), ("main.c", main)];
    let package = Package::new("static-library", &manifest, &files);
    let print = ("RUSTFLAGS", "--print=native-static-libs");
    let libraries = |features: &[&str]| {
        let (file, messages) = package.build("libstatic_library.a", features, &[print]);
        let line = messages
            .lines()
            .find_map(|line| line.split_once("native-static-libs: "))
            .unwrap_or_else(|| panic!("{messages}"));
        (file, line.1.to_owned())
    };
    let (_, with) = libraries(&["--features", "link-export"]);
    assert!(with.contains("-lotelctx_export"), "{with}");
    let (file, without) = libraries(&[]);
    assert!(!without.contains("otelctx"), "{without}");

    let program = package.directory().join("program");
    let output = std::process::Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(package.directory().join("main.c"))
        .arg(file)
        .args(without.split_whitespace())
        .arg("-Wl,--export-dynamic-symbol=otel_thread_ctx_v1")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(exports(&program));
    run(&program, &[]);
}

#[test]
fn the_stub_holds_an_undefined_reference_and_nothing_else() {
    for (arch, expected) in [
        ("x86_64", object::Architecture::X86_64),
        ("aarch64", object::Architecture::Aarch64),
    ] {
        let data = stub::shared_object(stub::machine(arch).unwrap());
        assert!(data.len() < 1024, "{}", data.len());
        let file = object::File::parse(&*data).unwrap();
        assert_eq!(
            (file.architecture(), file.kind()),
            (expected, object::ObjectKind::Dynamic)
        );
        let symbols: Vec<_> = file.dynamic_symbols().collect();
        let [symbol] = &symbols[..] else {
            panic!("{symbols:?}");
        };
        assert_eq!(symbol.name(), Ok("otel_thread_ctx_v1"));
        assert!(symbol.is_undefined() && symbol.kind() == object::SymbolKind::Tls);
        assert_eq!(needed(&data), [""; 0]);
    }
    assert_eq!(stub::machine("riscv64"), None);
}

/// The libraries that a file needs (DT_NEEDED).
fn needed(data: &[u8]) -> Vec<String> {
    let file = ElfFile64::<object::Endianness>::parse(data).unwrap();
    let endian = file.endian();
    let (sections, header) = (file.elf_section_table(), file.elf_header());
    let (dynamic, strings) = sections.dynamic(endian, data).unwrap().unwrap();
    let strings = sections.strings(endian, data, strings).unwrap();
    assert!(header.is_type_64());
    dynamic
        .iter()
        .filter(|entry| entry.tag(endian) == elf::DT_NEEDED)
        .map(|entry| String::from_utf8_lossy(entry.string(endian, strings).unwrap()).into_owned())
        .collect()
}

/// Whether a file exports the function that withdraws its process context.
fn exports_withdraw(data: &[u8]) -> bool {
    let file = object::File::parse(data).unwrap();
    let found = file.dynamic_symbols().any(|symbol| {
        symbol.name() == Ok("otelctx_withdraw")
            && !symbol.is_undefined()
            && symbol.kind() == object::SymbolKind::Text
    });
    found
}

/// Whether a file has a relocation for a TLS descriptor of the variable.
fn has_tlsdesc(data: &[u8]) -> bool {
    let file = object::File::parse(data).unwrap();
    let variable = file
        .dynamic_symbols()
        .find(|symbol| symbol.name() == Ok("otel_thread_ctx_v1"))
        .map(|symbol| object::RelocationTarget::Symbol(symbol.index()));
    let found = file.dynamic_relocations().unwrap().any(|(_, relocation)| {
        matches!(
            relocation.flags(),
            object::RelocationFlags::Elf {
                r_type: elf::R_X86_64_TLSDESC
            }
        ) && Some(relocation.target()) == variable
    });
    found
}
