//! The README's annotated hexdumps are vectors, and it explains every verdict.

mod read;

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
fn the_annotated_hexdumps_are_vectors() {
    for (file, name) in [("records", "two_attributes"), ("headers", "published")] {
        let vectors = read::vectors(file);
        let vector = vectors.iter().find(|vector| vector["name"] == name);
        assert_eq!(hexdump(name), read::bytes(&vector.unwrap()["hex"]));
    }
}

#[test]
fn every_verdict_is_documented() {
    for file in std::fs::read_dir(read::DIRECTORY).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        for vector in read::vectors(name) {
            let appends = vector["appends"].as_array().into_iter().flatten();
            for vector in appends.chain([&vector]) {
                for word in ["verdict", "reason"].map(|field| &vector[field]) {
                    let Some(word) = word.as_str() else { continue };
                    assert!(README.contains(&format!("`{word}`")), "{word} of {name}");
                }
            }
        }
    }
}
