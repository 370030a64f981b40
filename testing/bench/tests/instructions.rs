//! Counting instructions on a machine without callgrind.

use std::process::Command;

#[test]
fn without_valgrind_no_operation_is_counted_and_the_rest_goes_on() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_otelctx-bench"));
    let output = bench
        .args(["instructions", "--check"])
        .env("PATH", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    let skipped = "skipped: instructions: every operation: there is no valgrind here\n";
    assert_eq!(text, skipped);
}
