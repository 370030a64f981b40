//! What the hot path is made of: no call, no lock, no locked instruction.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod packages;

use std::path::Path;
use std::process::Command;

use packages::{have, have_cargo, Package, OTELCTX};

const MAIN: &str = r#"
use otelctx::{thread_context, Context, TraceFlags};

#[inline(never)]
#[no_mangle]
pub fn hot_attach_and_detach(record: &mut Context) {
    let attached = record.attach();
    std::hint::black_box(());
    drop(attached);
}

#[inline(never)]
#[no_mangle]
pub fn hot_set(trace_id: [u8; 16], span_id: [u8; 8]) {
    thread_context().set(trace_id, span_id, TraceFlags::SAMPLED).unwrap();
}

fn main() {
    hot_attach_and_detach(&mut Context::new([1; 16], [2; 8]).unwrap());
    hot_set([1; 16], [2; 8]);
}
"#;

/// The instructions of a function up to its first return: the way taken when nothing is unusual,
/// because rustc puts what is cold behind it.
fn hot_path(file: &Path, function: &str) -> Vec<String> {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", "-M", "intel"])
        .arg(format!("--disassemble={function}"))
        .arg(file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_once(":\t"));
    let mut instructions = Vec::new();
    for (_, instruction) in lines {
        let instruction = instruction.split_whitespace().collect::<Vec<_>>().join(" ");
        let last = instruction == "ret";
        instructions.push(instruction);
        if last {
            break;
        }
    }
    assert!(instructions.len() > 5, "{text}");
    instructions
}

#[test]
fn attaching_and_rewriting_call_nothing_and_lock_nothing() {
    if !have_cargo() {
        return;
    }
    if !have("objdump") {
        return;
    }
    let manifest = format!("[dependencies]\notelctx.path = {OTELCTX:?}\n");
    let package = Package::new("instructions", &manifest, &[("src/main.rs", MAIN)]);
    let (file, _) = package.build("instructions", &["--release"], &[]);
    for (function, most) in [("hot_attach_and_detach", 21), ("hot_set", 50)] {
        let path = hot_path(&file, function);
        let text = path.join("\n");
        assert!(path.len() <= most, "{} instructions:\n{text}", path.len());
        assert!(
            path.iter()
                .any(|instruction| instruction.contains("fs:0x0")),
            "{text}"
        );
        for instruction in &path {
            let name = instruction.split(' ').next().unwrap();
            // The padding that relaxing the TLS access leaves.
            let padding = instruction == "xchg ax,ax";
            assert!(
                padding || !["lock", "xchg", "call", "mfence"].contains(&name),
                "{text}"
            );
        }
    }
}
