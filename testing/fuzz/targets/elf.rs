//! What an ELF file says about a thread-local variable.
//!
//! Input: the file.
#![no_main]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};
use otelctx_reader::SYMBOL as NAME;
use otelctx_remote::Module;
use otelctx_remote::module::Symbol;

/// A file that costs no disk, and its path.
static FILE: LazyLock<(File, PathBuf)> = LazyLock::new(|| {
    let file = File::from(memfd_create(c"elf", MFdFlags::empty()).expect("a memfd is to be had"));
    let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    (file, path)
});

fn write(bytes: &[u8]) -> io::Result<()> {
    FILE.0.set_len(0)?;
    FILE.0.write_all_at(bytes, 0)
}

fuzz_target!(|bytes: &[u8]| {
    write(bytes).expect("a memfd can be written");
    let Ok(module) = Module::open(&FILE.1, NAME) else {
        return;
    };
    assert!(bytes.starts_with(b"\x7fELF"));
    assert!(module.soname.as_ref().is_none_or(|name| name.len() <= 255));
    assert!(module.relocations.len() <= 64);
    if module.symbol.definition().is_some() {
        // The name stands in the file, and ends there.
        let name = format!("{NAME}\0");
        assert!(
            bytes
                .windows(name.len())
                .any(|window| window == name.as_bytes())
        );
    }
    if matches!(module.symbol, Symbol::Absent | Symbol::NotThreadLocal) {
        assert!(module.relocations.is_empty());
    }
    assert_eq!(
        Module::open(&FILE.1, NAME).expect("it was readable"),
        module
    );
});
