//! Every committed file is what the code generates, and every vector holds.

use std::collections::BTreeSet;
use std::fs;

use otelctx_conformance::{directory, files, header, key_map, payload, record, record_write};
use otelctx_format::process_context::Payload;

#[test]
fn the_committed_files_are_what_the_code_generates() {
    let mut expected = BTreeSet::new();
    for (name, content) in files() {
        let committed = fs::read_to_string(directory().join(name)).unwrap_or_default();
        assert!(
            committed == content,
            "vectors/{name} differs; `cargo run -p otelctx-conformance -- generate` writes it"
        );
        expected.insert(name.to_owned());
    }
    let there = fs::read_dir(directory()).unwrap();
    let there: BTreeSet<_> = there
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(there, expected, "a file that nothing checks");
}

fn assert_unique<'a>(names: impl Iterator<Item = &'a str>) {
    let mut seen = BTreeSet::new();
    for name in names {
        assert!(seen.insert(name), "two vectors are called {name}");
    }
    assert!(!seen.is_empty());
}

#[test]
fn records_are_read_as_stated() {
    for vector in &record::vectors() {
        let read = record::judge(&vector.hex.to_vec(), &vector.keys);
        assert_eq!(read.0, vector.verdict, "{}", vector.name);
        assert_eq!(read.1, vector.context, "{}", vector.name);
    }
    assert_unique(record::vectors().iter().map(|it| it.name));
}

#[test]
fn records_are_written_as_stated() {
    for vector in &record_write::vectors() {
        let (bytes, verdicts) = record_write::judge(vector);
        assert_eq!(bytes, vector.hex.to_vec(), "{}", vector.name);
        let stated: Vec<_> = vector.appends.iter().map(|it| it.verdict).collect();
        assert_eq!(verdicts, stated, "{}", vector.name);
    }
    assert_unique(record_write::vectors().iter().map(|it| it.name));
}

#[test]
fn headers_are_read_as_stated() {
    for vector in &header::vectors() {
        let (verdict, fields) = header::judge(&vector.hex.to_vec());
        assert_eq!(verdict, vector.verdict, "{}", vector.name);
        assert_eq!(fields, vector.fields, "{}", vector.name);
    }
    assert_unique(header::vectors().iter().map(|it| it.name));
}

#[test]
fn payloads_are_read_as_stated() {
    for vector in &payload::vectors() {
        let bytes = vector.hex.to_vec();
        assert_eq!(payload::judge(&bytes), vector.outcome, "{}", vector.name);
        let rewritten = Payload::decode(&bytes).map(|mut payload| {
            payload.take_problems();
            payload.encode()
        });
        assert_eq!(rewritten == Ok(bytes), vector.canonical, "{}", vector.name);
    }
    assert_unique(payload::vectors().iter().map(|it| it.name));
}

#[test]
fn key_maps_are_read_as_stated() {
    for vector in &key_map::vectors() {
        assert_eq!(
            key_map::judge(&vector.hex.to_vec()),
            vector.announced,
            "{}",
            vector.name
        );
    }
    assert_unique(key_map::vectors().iter().map(|it| it.name));
}
