//! Facts about the same file by binutils.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::findings;
use crate::run::Answer;

/// readelf and objdump that know the file's architecture.
fn tool(name: &str, aarch64: bool) -> Command {
    match aarch64 {
        true => Command::new(format!("aarch64-linux-gnu-{name}")),
        false => Command::new(name),
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Compares what is said of a linked file with readelf's symbols and relocations, and objdump's
/// instructions.
#[track_caller]
pub(super) fn compare(path: &Path, answer: &Answer, aarch64: bool) {
    let symbols = output(
        tool("readelf", aarch64)
            .args(["-W", "--dyn-syms"])
            .arg(path),
    );
    let is_exported = symbols.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(7).and_then(|name| name.split('@').next());
        name == Some("otel_thread_ctx_v1")
            && words[3] == "TLS"
            && matches!(words[4], "GLOBAL" | "WEAK")
            && words[6] != "UND"
    });
    let found = findings(answer);
    // mold makes a .dynsym for static programs, to which nothing leads.
    let loadable = !found.contains(&"problem static".to_owned());
    assert_eq!(
        found.contains(&"ok exported".to_owned()),
        is_exported && loadable,
        "{symbols}\n{found:?}"
    );

    // Every relocation that is named is there, of the reported type and at the reported place.
    let relocations = output(tool("readelf", aarch64).args(["-W", "--relocs"]).arg(path));
    let json = answer.json();
    let list = json["findings"].as_array().unwrap();
    for access in list.iter().filter(|it| it["id"] == "access") {
        let text = access["text"].as_str().unwrap();
        let mut words = text.split(' ').skip_while(|word| !word.starts_with("R_"));
        let Some(name) = words.next() else { continue };
        let at = words.nth(1).unwrap().trim_end_matches(&[',', ':'][..]);
        let at = u64::from_str_radix(at.trim_start_matches("0x"), 16).unwrap();
        let is_there = relocations.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.len() > 2
                && u64::from_str_radix(words[0], 16) == Ok(at)
                // readelf cuts long names.
                && (words[2].starts_with(name) || name.starts_with(words[2]) && words[2].len() > 12)
        });
        assert!(is_there, "{text}\n{relocations}");
    }
    let of_variables = ["TLSDESC", "TPOFF", "TPREL", "DTPMOD"];
    let accesses = || list.iter().filter(|it| it["id"] == "access");
    if accesses().all(|it| it["access"] == "local-exec") {
        let own = relocations.lines().filter(|line| {
            line.contains("otel_thread_ctx_v1") && of_variables.iter().any(|it| line.contains(it))
        });
        assert_eq!(own.count(), 0, "{relocations}");
    }

    // Relaxed descriptors: the function that leads to the variable has what a linker leaves.
    let relaxed = accesses().any(|it| it["relaxed_from"] != Value::Null);
    let code = output(
        tool("objdump", aarch64)
            .args(["-d", "--no-show-raw-insn", "--disassemble=fixture_slot"])
            .arg(path),
    );
    if code.contains("<fixture_slot>:") {
        let trace = match aarch64 {
            true => code.matches("nop").count() >= 2,
            false => code.contains("xchg   %ax,%ax"),
        };
        assert_eq!(relaxed, trace, "{code}");
    }
}
