//! Shared by the tests of publishers and readers against each other: targets run as child processes
//! and print what they publish on standard output.

use otelctx_reader::format::process_context::Value;

/// The lines of a target that start with `word`, without it: one fact per line, its words separated
/// by tabs.
pub fn facts(lines: &[String], word: &str) -> Vec<Vec<String>> {
    let split = lines
        .iter()
        .map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
    split
        .filter(|words| words[0] == word)
        .map(|words| words[1..].to_vec())
        .collect()
}

/// A value as the targets print theirs.
pub fn words(value: &Value) -> String {
    match value {
        Value::Empty => "empty".into(),
        Value::String(text) => format!("{text:?}"),
        Value::Bool(truth) => truth.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Double(number) => format!("{number:?}"),
        Value::Bytes(bytes) => format!("{bytes:?}"),
        Value::Array(items) => {
            format!(
                "[{}]",
                items.iter().map(words).collect::<Vec<_>>().join(", ")
            )
        }
        other => format!("{other:?}"),
    }
}

/// The checksum (FNV-1a) that links the two changing attributes of the `updating` target.
pub fn checksum(number: i64, filler: &str) -> i64 {
    let bytes = number.to_le_bytes().into_iter().chain(filler.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash as i64
}

/// The programs in READMEs compile, and run where they can.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../publish/otelctx/README.md")]
#[doc = include_str!("../../../publish/opentelemetry/README.md")]
#[doc = include_str!("../../../publish/tracing/README.md")]
#[doc = include_str!("../../../docs/publishing.md")]
pub struct Readme;
