//! Two versions of this crate and another publisher of the variable in one program.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod packages;

use std::fs;
use std::path::Path;

use packages::{exports, have_cargo, run, Package, OTELCTX};

/// Both versions publish, in turns.
const CONTEXTS: &str = r#"
/// The line of maps with the one context.
fn context() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut lines = maps.lines().filter(|line| line.contains("OTEL_CTX"));
    let line = lines.next().unwrap();
    assert_eq!(lines.next(), None);
    line.to_owned()
}

fn contexts() {
    // One process context: the version that is asked later takes over, and keys keep their places.
    static OWN: otelctx::Key = otelctx::Key::new("own");
    static KEY: older::Key = older::Key::new("key");
    static LATE: otelctx::Key = otelctx::Key::new("late");
    KEY.register().unwrap();
    OWN.register().unwrap();
    let mut process = otelctx::ProcessContext::detect().publish().unwrap();
    let mapping = context();
    assert_eq!((OWN.index(), KEY.index()), (Some(0), None));
    // What the older version cannot publish, it does not use.
    assert!(older::Context::new([6; 16], [6; 8]).unwrap().with_attribute(&KEY, "value").is_truncated());
    let taken = older::ProcessContext::detect().publish().unwrap();
    assert_ne!(context(), mapping);
    assert_eq!((OWN.index(), KEY.index()), (Some(0), Some(1)));
    let error = process.replace(otelctx::ProcessContext::detect());
    assert_eq!(error, Err(otelctx::PublishError::NotPublished));
    drop(process);
    context();
    assert_eq!(LATE.index(), None);
    let _process = otelctx::ProcessContext::detect().publish().unwrap();
    assert_eq!((OWN.index(), LATE.index()), (Some(0), Some(2)));
    drop(taken);
    context();
}
"#;

const STATIC_MAIN: &str = "fn main() { contexts(); println!(\"together\"); }";

const MAIN: &str = r#"
use libdd_otel_thread_ctx::linux::OwnedThreadContext;

fn slot() -> *mut *mut u8 {
    extern "C" {
        fn dlsym(handle: *mut u8, name: *const std::ffi::c_char) -> *mut *mut u8;
    }
    let slot = unsafe { dlsym(std::ptr::null_mut(), c"otel_thread_ctx_v1".as_ptr()) };
    assert!(!slot.is_null());
    slot
}

fn number() -> u8 {
    let record = unsafe { slot().read() };
    if record.is_null() { 0 } else { unsafe { *record } }
}

fn main() {
    // Three parties, one slot.
    let mut new = otelctx::Context::new([1; 16], [1; 8]).unwrap();
    let mut old = older::Context::new([2; 16], [2; 8]).unwrap();
    for _ in 0..1000 {
        let outer = new.attach();
        assert_eq!(number(), 1);
        let inner = old.attach();
        assert_eq!(number(), 2);
        let previous = OwnedThreadContext::new([3; 16], [3; 8], 0, [0; 8], &[]).attach().unwrap();
        assert_eq!(number(), 3);
        // The way in which that crate wants the previous one restored.
        drop(previous.attach());
        assert_eq!(number(), 2);
        drop(inner);
        assert_eq!(number(), 1);
        drop(outer);
        assert_eq!(number(), 0);
    }

    // The other publisher's below ours, and rewritten by it afterwards.
    OwnedThreadContext::new([4; 16], [4; 8], 0, [0; 8], &[]).attach();
    let outer = new.attach();
    let inner = old.attach();
    // Out of order: the older version's record stays.
    drop(outer);
    assert_eq!(number(), 2);
    drop(new);
    let _others: Vec<_> = (0..100).map(|_| otelctx::Context::new([9; 16], [9; 8]).unwrap()).collect();
    drop(inner);
    assert_ne!(number(), 2);
    otelctx::thread_context().set([5; 16], [5; 8], otelctx::TraceFlags::NONE).unwrap();
    assert_eq!(number(), 5);
    otelctx::thread_context().detach();
    assert_eq!(number(), 0);

    contexts();

    assert_eq!(otelctx::is_exported(), Ok(()));
    assert_eq!(older::is_exported(), Ok(()));
    println!("together");
}
"#;

/// Copies a directory, without what Cargo has built there.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

#[test]
fn two_versions_and_another_publisher_share_the_slot() {
    if !have_cargo() {
        return;
    }
    let manifest = format!(
        "[dependencies]\notelctx.path = {OTELCTX:?}\n\
         older = {{ package = \"otelctx\", path = \"older\" }}\n\
         libdd-otel-thread-ctx = \"2.0.1\"\n"
    );
    let main = [CONTEXTS, MAIN].concat();
    let package = with_an_older_version("coexisting", &manifest, &main);
    for profile in [&[][..], &["--release"]] {
        let (file, _) = package.build("coexisting", profile, &[]);
        assert!(exports(&file));
        assert_eq!(run(&file, &[]), "together\n");
    }
}

#[test]
fn two_versions_in_a_static_program_make_way_for_each_other() {
    if !have_cargo() {
        return;
    }
    let manifest = format!(
        "[dependencies]\notelctx.path = {OTELCTX:?}\n\
         older = {{ package = \"otelctx\", path = \"older\" }}\n"
    );
    let main = [CONTEXTS, STATIC_MAIN].concat();
    let package = with_an_older_version("coexisting-static", &manifest, &main);
    let target = ["--target", "x86_64-unknown-linux-gnu"];
    for flags in ["", " -Crelocation-model=static"] {
        let flags = format!("-Ctarget-feature=+crt-static{flags}");
        let (file, _) = package.build("coexisting-static", &target, &[("RUSTFLAGS", &flags)]);
        assert_eq!(run(&file, &[]), "together\n");
    }
}

/// A package, and in its directory `older` a copy of this crate with another version.
fn with_an_older_version(name: &'static str, manifest: &str, main: &str) -> Package {
    let package = Package::new(name, manifest, &[("src/main.rs", main)]);
    let older = package.directory().join("older");
    for directory in ["src", "build"] {
        copy(&Path::new(OTELCTX).join(directory), &older.join(directory));
    }
    package.write(
        "older/Cargo.toml",
        &format!(
            "[package]\nname = \"otelctx\"\nversion = \"0.0.1\"\nedition = \"2021\"\n\
             build = \"build/main.rs\"\n[dependencies]\nlibc = \"0.2\"\n\
             otelctx-format.path = {:?}\n",
            format!("{OTELCTX}/../format")
        ),
    );
    package
}
