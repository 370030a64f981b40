//! Sets how the addon is linked.

fn main() {
    println!("cargo:rerun-if-changed=build");
    // Node.js unloads an addon when the last thread that uses it ends. But V8 may still call it
    // then, and a thread's structure must not disappear while it is read.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
