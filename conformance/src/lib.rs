//! Test vectors of the process context and thread context formats: bytes, and what a reader or
//! writer must make of them. `README.md` describes the files for people who write another
//! implementation.
//!
//! Each module builds one file of `vectors/`: its bytes are put together by hand, field by
//! field, and its verdicts are stated by hand, so that a file does not merely repeat what the code does. A test
//! decodes every vector with `otelctx-format` and compares.

mod bytes;
pub mod header;
pub mod key_map;
pub mod payload;
pub mod record;
pub mod record_write;
mod value;

use std::path::{Path, PathBuf};

pub use bytes::Hex;
use serde::Serialize;

/// A file of `vectors/`.
#[derive(Serialize)]
struct File<V> {
    /// What the file holds, for somebody who opens it first.
    about: &'static str,
    byte_order: &'static str,
    vectors: Vec<V>,
}

/// Where the files lie.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

/// Name and content of every file.
#[must_use]
pub fn files() -> Vec<(&'static str, String)> {
    vec![
        (
            "records.json",
            file(
                "context records, and the context that a reader takes from each",
                record::vectors(),
            ),
        ),
        (
            "record_writes.json",
            file(
                "contexts, and the record that a writer makes of each",
                record_write::vectors(),
            ),
        ),
        (
            "headers.json",
            file(
                "process-context headers, and whether a reader goes on to the payload",
                header::vectors(),
            ),
        ),
        (
            "payloads.json",
            file(
                "process-context payloads, and what a reader takes from each",
                payload::vectors(),
            ),
        ),
        (
            "key_maps.json",
            file(
                "payloads, and the thread-context schema and key map they announce",
                key_map::vectors(),
            ),
        ),
    ]
}

fn file<V: Serialize>(about: &'static str, vectors: Vec<V>) -> String {
    let file = File {
        about,
        byte_order: "little",
        vectors,
    };
    let mut text =
        serde_json::to_string_pretty(&file).expect("vectors have string keys and finite numbers");
    text.push('\n');
    text
}
