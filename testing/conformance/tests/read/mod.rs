//! Reads the files of `vectors/`.

use serde_json::Value as Json;

pub(crate) const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors");

/// The vectors of a file.
pub(crate) fn vectors(name: &str) -> Vec<Json> {
    let path = format!("{DIRECTORY}/{name}.json");
    let text = std::fs::read_to_string(&path).expect("the file is there");
    let file: Json = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(file["byte_order"], "little", "{path}");
    assert!(!array(&file["vectors"]).is_empty(), "{path}");
    array(&file["vectors"]).to_vec()
}

/// The bytes of a vector: hexadecimal digits, or an array of `[digits, times]`.
pub(crate) fn bytes(hex: &Json) -> Vec<u8> {
    let decode = |digits: &str| -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
        (0..digits.len()).step_by(2).map(byte).collect()
    };
    match hex {
        Json::String(digits) => decode(digits),
        pieces => {
            let piece = |piece: &Json| {
                let times = piece[1].as_u64().expect("a number of times");
                decode(text(&piece[0])).repeat(times as usize)
            };
            array(pieces).iter().flat_map(piece).collect()
        }
    }
}

pub(crate) fn array(json: &Json) -> &[Json] {
    json.as_array().expect("an array")
}

pub(crate) fn text(json: &Json) -> &str {
    json.as_str().expect("a string")
}
