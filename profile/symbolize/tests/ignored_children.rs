//! A program that was started with its children's ends ignored, as some supervisors do. That holds for a
//! whole process, so this test has one of its own.

mod tools;

use nix::sys::signal::{SigHandler, Signal, signal};
use otelctx_symbolize::Symbols;
use tools::{Scratch, found, instructions, text, tool, truth};

#[test]
fn functions_are_resolved_even_if_sigchld_is_ignored() {
    let scratch = Scratch::new("ignored");
    let source = scratch.0.join("a.c");
    std::fs::write(&source, "int serve(int n) { return n * n; }\n").unwrap();
    let path = scratch.0.join("a.so");
    tool(
        "gcc",
        &["-g", "-O1", "-shared", text(&source), "-o", text(&path)],
    );
    let addresses = instructions(&path, &["serve"]);
    let truth = truth(&path, &addresses);
    assert_eq!(truth[0][0].0, "serve");
    // SAFETY: ignoring runs no code.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }.unwrap();
    let mut symbols = Symbols::new();
    assert_eq!(found(&mut symbols, &path, &addresses), truth);
    assert_eq!(symbols.failures(), []);
}
