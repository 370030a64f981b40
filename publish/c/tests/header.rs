//! The committed header is the one that cbindgen generates.

use std::path::Path;

/// If this variable is set, the test writes the header instead of comparing it.
const UPDATE: &str = "OTELCTX_UPDATE_HEADER";

#[test]
fn the_header_is_current() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(directory.join("cbindgen.toml")).unwrap();
    // Without a build script or Cargo: the crate's own sources are all that it needs.
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in MODULES {
        builder = builder.with_src(directory.join("src").join(module));
    }
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    let generated = String::from_utf8(bytes).unwrap();

    let path = directory.join("include/otelctx.h");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, generated).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = generated
        .lines()
        .zip(committed.lines())
        .position(|(generated, committed)| generated != committed);
    assert!(
        generated == committed,
        "include/otelctx.h differs from line {differs:?} on: \
         {UPDATE}=1 cargo test -p otelctx-ffi --test header"
    );
}

/// In the order of the header.
const MODULES: [&str; 10] = [
    "error.rs",
    "exported.rs",
    "value.rs",
    "process.rs",
    "published.rs",
    "key.rs",
    "context.rs",
    "shared.rs",
    "in_place.rs",
    "current.rs",
];

#[test]
fn every_module_with_functions_is_in_the_header() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let has_functions = std::fs::read_to_string(&path)
            .unwrap()
            .contains("no_mangle");
        assert_eq!(has_functions, MODULES.contains(&&*name), "{name}");
    }
}
