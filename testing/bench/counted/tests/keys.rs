//! An operation that is done while another thread works.

use std::process::Command;

/// Every key that the other thread adds, up to 256 with the three of the program's own, comes with at
/// least one round of 1,000, however the two threads are scheduled.
#[test]
fn rounds_and_added_keys_alternate() {
    let mut counted = Command::new(env!("CARGO_BIN_EXE_otelctx-counted"));
    let output = counted
        .arg("attach + detach while keys are added")
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let times: u64 = text.trim().parse().unwrap();
    assert!(times >= 253 * 1000, "{times}");
}
