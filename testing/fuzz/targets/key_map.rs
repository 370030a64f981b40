//! The key map: what a process may put into its attribute.
//!
//! Input: the attribute's `AnyValue` message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_format::process_context::{Payload, Value};
use otelctx_format::{KEY_MAP, KeyMap, KeyMapError, MAX_KEYS, SCHEMA_VERSION, Schema};

fuzz_target!(|any: &[u8]| {
    for (name, read) in [(KEY_MAP, key_map as fn(&Payload)), (SCHEMA_VERSION, schema)] {
        let attribute = [field(1, name.as_bytes()), field(2, any)].concat();
        let Ok(payload) = Payload::decode(&field(2, &attribute)) else {
            return;
        };
        read(&payload);
    }
});

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    [&bytes, content].concat()
}

fn key_map(payload: &Payload) {
    let Some(value) = payload.attribute(KEY_MAP) else {
        panic!("the attribute is there");
    };
    match (KeyMap::of(payload), value) {
        (Ok(None), _) => panic!("a key map was not found"),
        (Ok(Some(keys)), value) => {
            assert_eq!(&keys.to_value(), value);
            assert!(keys.names().len() <= MAX_KEYS);
            for index in 0..=u8::MAX {
                let expected = keys.names().get(usize::from(index)).map(String::as_str);
                assert_eq!(keys.get(index), expected);
            }
        }
        (Err(KeyMapError::TooMany), Value::Array(items)) => assert!(items.len() > MAX_KEYS),
        (Err(KeyMapError::NotAString { position }), Value::Array(items)) => {
            assert!(!matches!(items[position], Value::String(_)));
            assert!(
                items[..position]
                    .iter()
                    .all(|it| matches!(it, Value::String(_)))
            );
        }
        (Err(KeyMapError::NotAnArray), value) => assert!(!matches!(value, Value::Array(_))),
        (Err(error), value) => panic!("{error} of {value:?}"),
    }
}

fn schema(payload: &Payload) {
    match (Schema::of(payload), payload.attribute(SCHEMA_VERSION)) {
        (Some(schema), Some(Value::String(name))) => {
            assert_eq!(schema.as_str(), name);
            let known = ["tlsdesc_v1_dev", "tls_v1"].contains(&name.as_str());
            assert_eq!(schema.is_thread_local_record(), known);
        }
        (schema, value) => assert!(schema.is_none(), "{value:?}"),
    }
}
