//! The README's annotated hexdumps show real bytes.

use otelctx_conformance::{header, record};

const README: &str = include_str!("../README.md");

/// The bytes of the fenced block that opens with `hexdump NAME`. Its lines are `OFFSET BYTES | TEXT`, all
/// numbers hexadecimal.
fn hexdump(name: &str) -> Vec<u8> {
    let opening = format!("```hexdump {name}\n");
    let (_, rest) = README
        .split_once(&opening)
        .expect("the README has this hexdump");
    let (block, _) = rest.split_once("```").expect("the hexdump ends");
    let mut bytes = Vec::new();
    for line in block.lines() {
        let (dump, _) = line.split_once('|').expect("every line is annotated");
        let mut numbers = dump.split_whitespace();
        let offset = usize::from_str_radix(numbers.next().unwrap(), 16).unwrap();
        assert_eq!(offset, bytes.len(), "{line}");
        bytes.extend(numbers.map(|digits| u8::from_str_radix(digits, 16).unwrap()));
    }
    bytes
}

#[test]
fn the_annotated_record_is_a_vector() {
    let vectors = record::vectors();
    let vector = vectors
        .iter()
        .find(|it| it.name == "two_attributes")
        .unwrap();
    assert_eq!(hexdump("two_attributes"), vector.hex.to_vec());
}

#[test]
fn the_annotated_header_is_a_vector() {
    let vectors = header::vectors();
    let vector = vectors.iter().find(|it| it.name == "published").unwrap();
    assert_eq!(hexdump("published"), vector.hex.to_vec());
}

#[test]
fn every_verdict_is_documented() {
    for (name, content) in otelctx_conformance::files() {
        let file: serde_json::Value = serde_json::from_str(&content).unwrap();
        for vector in file["vectors"].as_array().unwrap() {
            let appends = vector["appends"].as_array().into_iter().flatten();
            for vector in appends.chain([vector]) {
                for word in [&vector["verdict"], &vector["reason"]] {
                    let Some(word) = word.as_str() else { continue };
                    assert!(README.contains(&format!("`{word}`")), "{word} of {name}");
                }
            }
        }
    }
}
