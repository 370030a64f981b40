//! Functions for a recorded file.
//!
//! Input: an OTLP file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_profile::{Function, UnnamedModule, rules, unnamed_modules, write_named};
use prost::Message;

/// The function at each offset, but for some.
fn named(module: UnnamedModule) -> (UnnamedModule, Vec<Vec<Function>>) {
    let function = |offset: &u64| Function {
        name: format!("function {}", offset / 64),
        line: *offset as u32,
        ..Function::default()
    };
    let functions = |offset| match offset % 5 {
        0 => Vec::new(),
        1 => vec![function(&offset), function(&0)],
        _ => vec![function(&offset)],
    };
    let all = module.offsets.iter().copied().map(functions).collect();
    (module, all)
}

fuzz_target!(|bytes: &[u8]| {
    // An empty file is refused before.
    let (false, Ok(modules)) = (bytes.is_empty(), unnamed_modules(bytes)) else {
        return;
    };
    for module in &modules {
        assert!(!module.offsets.is_empty());
        assert!(module.offsets.is_sorted_by(|one, other| one < other));
    }
    let all: Vec<_> = modules.into_iter().map(named).collect();
    let mut written = Vec::new();
    write_named(bytes, &all, &mut written).expect("it was readable");
    let left = unnamed_modules(&written).expect("it violates no rule");
    let unnamed = |(module, functions): &(UnnamedModule, Vec<Vec<Function>>)| {
        let offsets = module.offsets.iter().zip(functions);
        offsets.filter(|(_, it)| it.is_empty()).count()
    };
    let expected: usize = all.iter().map(unnamed).sum();
    assert_eq!(
        left.iter().map(|it| it.offsets.len()).sum::<usize>(),
        expected
    );
    // A file of one message: everything but the dictionary is as it was.
    if let (Ok(before), Ok(after)) = (
        ProfilesData::decode(bytes),
        ProfilesData::decode(&written[..]),
    ) {
        assert_eq!(before.resource_profiles, after.resource_profiles);
        assert_eq!(rules::violations(&after), [""; 0]);
    }
});
