//! Two versions of this crate and another publisher of the variable in one program.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod packages;

use std::fs;
use std::path::Path;

use packages::{exports, have_cargo, run, Package, OTELCTX};

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
    let mut new = otelctx::Record::new([1; 16], [1; 8]);
    let mut old = older::Record::new([2; 16], [2; 8]);
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
    let _others: Vec<_> = (0..100).map(|_| otelctx::Record::new([9; 16], [9; 8])).collect();
    drop(inner);
    assert_ne!(number(), 2);
    otelctx::thread_record().set([5; 16], [5; 8], otelctx::TraceFlags::NONE);
    assert_eq!(number(), 5);
    otelctx::thread_record().detach();
    assert_eq!(number(), 0);

    // One process context.
    let process = otelctx::ProcessContext::detect().publish().unwrap();
    let error = older::ProcessContext::detect().publish().unwrap_err();
    assert!(matches!(error, older::PublishError::Foreign { .. }), "{error}");
    // What the older version cannot publish, it does not use.
    static KEY: older::Key = older::Key::new("key");
    assert!(older::Record::new([6; 16], [6; 8]).with(&KEY, "value").is_truncated());
    drop(process);
    older::ProcessContext::detect().publish().unwrap();

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
    let package = Package::new("coexisting", &manifest, &[("src/main.rs", MAIN)]);
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
    for profile in [&[][..], &["--release"]] {
        let (file, _) = package.build("coexisting", profile, &[]);
        assert!(exports(&file));
        assert_eq!(run(&file, &[]), "together\n");
    }
}
