//! The process context's payload, against prost.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use otelctx_format::process_context::Payload;

#[path = "../../../publish/format/tests/messages/mod.rs"]
mod messages;

fuzz_target!(|bytes: &[u8]| {
    if !messages::assert_decoders_agree(bytes) {
        return;
    }
    let mut payload = Payload::decode(bytes).expect("it was accepted a moment ago");
    let encoded = payload.encode();
    let again = Payload::decode(&encoded).expect("what is written can be read");
    assert_eq!(again.encode(), encoded);

    let before = payload.resource.len() + payload.attributes.len();
    let problems = payload.take_problems();
    let after = payload.resource.len() + payload.attributes.len();
    assert_eq!(before, after + problems.len());
    for attributes in [&payload.resource, &payload.attributes] {
        let names: HashSet<_> = attributes.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), attributes.len());
        assert!(!names.contains(&String::new()));
    }
    assert!(payload.take_problems().is_empty());
});
