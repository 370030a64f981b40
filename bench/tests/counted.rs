//! Counting instructions: the program that callgrind runs, and a machine without callgrind.

use std::process::Command;

/// Every key that the other thread adds, up to 256 with the three of the program's own, comes with at
/// least one round of 1,000, however the two threads are scheduled.
#[test]
fn rounds_and_added_keys_alternate() {
    let mut counted = Command::new(env!("CARGO_BIN_EXE_counted"));
    let output = counted
        .arg("attach + detach while keys are added")
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let times: u64 = text.trim().parse().unwrap();
    assert!(times >= 253 * 1000, "{times}");
}

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
