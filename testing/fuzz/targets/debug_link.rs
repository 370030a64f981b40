//! Where a file's separate debug file is searched.
//!
//! Input: which of the two (1 byte), an ELF file or the contents of its `.gnu_debuglink`.
#![no_main]

mod sections;

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::debug_file_places;

/// A directory of debug files, the file's own directory, and those of all machines.
const FOLDERS: [&str; 4] = [
    "/given",
    "/own/bin",
    "/usr/lib/debug",
    "/usr/local/lib/debug",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let made = (kind % 2 == 1).then(|| sections::elf(&[(".gnu_debuglink", rest)]));
    let file = sections::file_of(made.as_deref().unwrap_or(rest));
    let places = debug_file_places(file, "/own/bin/program", Path::new(FOLDERS[0]));
    // The name leads to no other directory.
    for place in &places {
        assert!(
            FOLDERS.iter().any(|folder| place.starts_with(folder)),
            "{place:?}"
        );
        let mut parts = place.components();
        assert!(parts.all(|it| matches!(it, Component::RootDir | Component::Normal(_))));
    }
    assert_eq!(
        debug_file_places(file, "/own/bin/program", Path::new(FOLDERS[0])),
        places
    );
});
