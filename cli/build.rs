//! Exports the thread contexts of the demo's service also where the linker is GNU ld.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    otelctx_build::export();
}
