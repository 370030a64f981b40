//! Gives this copy of the crate a unique name, and exports the thread-context symbol from
//! executables that depend on it.

mod stub;

use std::env;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let version = env::var("CARGO_PKG_VERSION")?;
    println!("cargo:rustc-env=OTELCTX_TAG={}", tag(&version, &out));

    // A static library is not linked by itself: the linker of the final program would be given the
    // name of a file that exists only in this build directory.
    if env::var_os("CARGO_FEATURE_LINK_EXPORT").is_none() {
        return Ok(());
    }
    // With crt-static there is no dynamic linker to satisfy the stub's reference: rust-lld links
    // it silently and the program crashes before main.
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let crt_static = features.split(',').any(|feature| feature == "crt-static");
    if env::var("CARGO_CFG_TARGET_OS")? != "linux" || crt_static {
        return Ok(());
    }
    let Some(machine) = stub::machine(&env::var("CARGO_CFG_TARGET_ARCH")?) else {
        return Ok(());
    };
    std::fs::write(
        out.join(format!("lib{}.so", stub::NAME)),
        stub::shared_object(machine),
    )?;
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib={}", stub::NAME);
    Ok(())
}

/// Letters that distinguish this copy of the crate from other copies or versions in the same
/// program: 16 letters from g to v, which cannot be a digit in a glob. They are derived from the
/// version and from Cargo's hash of the package, the last part of `OUT_DIR`; nothing above it, so
/// that builds are reproducible.
fn tag(version: &str, out: &Path) -> String {
    let own: PathBuf = out.iter().rev().take(3).collect();
    // FNV-1a, 64 bits.
    let hash = version
        .bytes()
        .chain(own.as_os_str().as_encoded_bytes().iter().copied())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    (0..16)
        .map(|digit| char::from(b'g' + (hash >> (4 * digit) & 0xf) as u8))
        .collect()
}
