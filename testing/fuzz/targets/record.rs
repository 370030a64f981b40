//! The context record: decoded twice, by the crate and by a few lines that follow the
//! proposal's words, and written again.
//!
//! Input: one byte, how many keys the key map has; then the record.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use otelctx_format::record::{self, Appended, DecodedContext, HEADER_SIZE, Skipped};
use otelctx_format::{KeyMap, SpanId, TraceFlags, TraceId};

/// Names and key map by their number.
static KEYS: LazyLock<Vec<(Vec<String>, KeyMap)>> = LazyLock::new(|| {
    let names = |count| -> Vec<_> { (0..count).map(|index| format!("key {index}")).collect() };
    let keys = |count| KeyMap::new(names(count)).expect("255 keys at most");
    (0..=u8::MAX)
        .map(|count| (names(count), keys(count)))
        .collect()
});

fuzz_target!(|data: &[u8]| {
    let Some((&count, bytes)) = data.split_first() else {
        return;
    };
    let (names, keys) = &KEYS[usize::from(count)];
    let Ok(record) = record::decode(bytes) else {
        assert!(bytes.len() < HEADER_SIZE || bytes[24] != 1);
        return;
    };
    assert_eq!(record.header().encode(), bytes[..HEADER_SIZE]);

    let context = record.resolve(keys);
    assert_eq!(context, expected(names, bytes));

    // What lies behind the announced end does not matter.
    let announced = usize::from(record.header().attributes_size);
    if bytes.len() >= HEADER_SIZE + announced {
        let cut = record::decode(&bytes[..HEADER_SIZE + announced]).expect("it was valid");
        assert_eq!(cut.resolve(keys), context);
    }
    rewrite(&record, bytes.len(), keys, &context);
});

/// Reads the record as OTEP 4947 tells, with no thought of speed.
fn expected(names: &[String], bytes: &[u8]) -> DecodedContext {
    let mut context = DecodedContext::default();
    context.trace_id = TraceId::from_bytes(bytes[..16].try_into().unwrap());
    context.span_id = SpanId::from_bytes(bytes[16..24].try_into().unwrap());
    context.trace_flags = TraceFlags(bytes[25]);
    let announced = usize::from(u16::from_ne_bytes([bytes[26], bytes[27]]));
    let mut skipped = Skipped::default();
    let mut at = 0;
    while at + 2 <= announced && HEADER_SIZE + at + 2 <= bytes.len() {
        let (key, length) = (bytes[HEADER_SIZE + at], bytes[HEADER_SIZE + at + 1]);
        let end = at + 2 + usize::from(length);
        if end > announced || HEADER_SIZE + end > bytes.len() {
            break;
        }
        let value = &bytes[HEADER_SIZE + at + 2..HEADER_SIZE + end];
        at = end;
        match (
            names.get(usize::from(key)),
            String::from_utf8(value.to_vec()),
        ) {
            (None, _) => skipped.unknown_key += 1,
            (Some(name), Err(_)) => {
                skipped.not_utf8 += 1;
                // An earlier value is out of date.
                context.attributes.retain(|(earlier, _)| earlier != name);
            }
            (Some(name), Ok(value)) => {
                match context
                    .attributes
                    .iter_mut()
                    .find(|(earlier, _)| earlier == name)
                {
                    Some((_, earlier)) => *earlier = value,
                    None => context.attributes.push((name.clone(), value)),
                }
            }
        }
    }
    skipped.incomplete_bytes = announced - at;
    context.skipped = skipped;
    context
}

/// Writes every entry again and reads what was written.
fn rewrite(record: &record::Record<'_>, size: usize, keys: &KeyMap, context: &DecodedContext) {
    let mut bytes = vec![0; size];
    let mut used = 0;
    let mut lost = 0;
    for (position, entry) in record.entries().enumerate() {
        let mut later = record.entries().skip(position + 1);
        let is_stale =
            later.any(|it| it.key == entry.key && std::str::from_utf8(it.value).is_err());
        match std::str::from_utf8(entry.value) {
            Ok(_) if is_stale => {}
            Ok(value) => {
                let appended =
                    record::append(&mut bytes[HEADER_SIZE..], &mut used, entry.key, value);
                assert_eq!(appended, Appended::Whole);
            }
            Err(_) => lost += 1,
        }
    }
    let header = record::Header {
        attributes_size: u16::try_from(used).expect("no more than was read"),
        ..*record.header()
    };
    bytes[..HEADER_SIZE].copy_from_slice(&header.encode());
    let again = record::decode(&bytes).expect("it is valid").resolve(keys);
    assert_eq!(again.attributes, context.attributes);
    assert_eq!(again.skipped.not_utf8, 0);
    assert_eq!(again.skipped.incomplete_bytes, 0);
    assert!(context.skipped.not_utf8 <= lost);
}
