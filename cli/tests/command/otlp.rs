//! The contents of the OTLP files that `otelctx record` writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_fixtures::Compiler;
use otelctx_profile::rules;
use prost::Message as _;

use crate::run::{Scratch, given_time, otelctx};
use crate::target::Target;

/// Reads a file, and checks that it keeps all rules and has what backends need.
pub(crate) fn read(path: &str) -> ProfilesData {
    let data = ProfilesData::decode(&fs::read(path).unwrap()[..]).unwrap();
    assert_eq!(rules::violations(&data), [""; 0], "{path}");
    assert_eq!(rules::missed_by_backends(&data), [""; 0], "{path}");
    data
}

/// Returns the GNU build ID and the head-tail hash of each mapped file, or what stands in for one.
fn identities(data: &ProfilesData) -> BTreeMap<String, [Option<String>; 2]> {
    let dictionary = data.dictionary.as_ref().unwrap();
    let text = |index: i32| dictionary.string_table[index as usize].clone();
    let mappings = dictionary.mapping_table[1..].iter().map(|mapping| {
        let id = |name: &str| {
            let entries = mapping.attribute_indices.iter();
            let mut entries = entries.map(|index| &dictionary.attribute_table[*index as usize]);
            let entry = entries.find(|entry| text(entry.key_strindex).ends_with(name))?;
            match entry.value.clone()?.value? {
                Value::StringValue(text) => Some(text),
                other => panic!("{other:?}"),
            }
        };
        let ids = [id("build_id.gnu"), id("build_id.htlhash")];
        (text(mapping.filename_strindex), ids)
    });
    mappings.collect()
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns what other tools say about a file.
fn truth(path: &str) -> [Option<String>; 2] {
    let notes = output_of("readelf", &["-n", path]);
    let mut lines = notes.lines();
    let id = lines.find_map(|line| line.trim().strip_prefix("Build ID: "));
    // OpenTelemetry's semantic conventions: of the first and the last 4 KiB, and the size in eight bytes.
    let script = "{ head -c 4096 \"$1\"; tail -c 4096 \"$1\"; \
        printf \"$(printf '%016x' $(stat -c %s \"$1\") | sed 's/../\\\\x&/g')\"; } | sha256sum";
    let sum = output_of("bash", &["-c", script, "-", path]);
    [id.map(str::to_owned), Some(sum[..32].to_owned())]
}

/// The kernel's own, as `/sys/kernel/notes` has it.
fn kernel_build_id() -> Option<String> {
    // elf(5): the sizes of name and descriptor, the type NT_GNU_BUILD_ID, and the name.
    let head = [4_u32, 20, 3].map(u32::to_ne_bytes).concat();
    let head = [&head[..], b"GNU\0"].concat();
    let notes = fs::read("/sys/kernel/notes").ok()?;
    let at = notes.windows(16).position(|window| window == head)? + 16;
    Some(
        notes[at..at + 20]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
    )
}

/// Compares all of a file, and returns what is mapped in it.
fn compared(path: &str) -> Vec<String> {
    let identities = identities(&read(path));
    for (name, found) in &identities {
        let expected = match &name[..] {
            "[kernel]" => [kernel_build_id(), None],
            name if Path::new(name).is_file() => truth(name),
            _ => [None, None],
        };
        assert_eq!(*found, expected, "{name}");
    }
    identities.into_keys().collect()
}

#[test]
fn mappings_have_the_ids_of_their_very_files() {
    let scratch = Scratch::new("otlp-ids");
    let path = scratch.path("a.otlp");
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let program = program.to_str().unwrap().to_owned();
    given_time(|seconds| {
        otelctx(&["record", "-p", &pid, "-d", seconds, "-o", &path]).expect(0);
        let mapped = compared(&path);
        mapped.contains(&program).then_some(()).ok_or(mapped)
    });
    for id in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let Some(program) = Compiler::gcc().program(&["written_code.c"], &["-O1", id]) else {
            return;
        };
        let program = program.canonicalize().unwrap();
        let program = program.to_str().unwrap();
        let [is_there, _] = truth(program);
        assert_eq!(is_there.is_none(), id.ends_with("none"));
        given_time(|seconds| {
            let arguments = ["record", "-d", seconds, "-o", &path, "--", program];
            // It ends by SIGTERM.
            otelctx(&arguments).expect(128 + 15);
            let mapped = compared(&path);
            let is_complete = mapped.iter().any(|name| name == program)
                && mapped.iter().any(|name| name == "//anon");
            is_complete.then_some(()).ok_or(mapped)
        });
    }
}
