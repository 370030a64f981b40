//! The payload codec against prost, on random payloads and random bytes. Every case follows
//! from its number alone, so that a failure comes back.

mod messages;

use fastrand::Rng;
use messages::{assert_decoders_agree, assert_encoders_agree};
use otelctx_format::process_context::{Attributes, Payload, Value};

// Miri is some hundred times slower, and checks something else.
const CASES: u64 = if cfg!(miri) { 50 } else { 50_000 };

fn for_each_case(mut check: impl FnMut(&mut Rng)) {
    for case in 0..CASES {
        // Seen only when the check panics.
        println!("case {case}");
        check(&mut Rng::with_seed(case));
    }
}

#[test]
fn payloads_have_the_bytes_that_prost_gives_them() {
    for_each_case(|rng| {
        let payload = payload(rng);
        assert_encoders_agree(&payload);
        assert!(assert_decoders_agree(&payload.encode()));
    });
}

#[test]
fn damaged_payloads_are_judged_as_prost_judges_them() {
    let mut accepted = 0;
    for_each_case(|rng| {
        let mut bytes = payload(rng).encode();
        damage(rng, &mut bytes);
        accepted += u64::from(assert_decoders_agree(&bytes));
    });
    assert_both_verdicts_are_common(accepted);
}

#[test]
fn fields_in_any_order_and_of_any_type_are_judged_as_prost_judges_them() {
    let mut accepted = 0;
    for_each_case(|rng| {
        let mut bytes = Vec::new();
        put_message(rng, &mut bytes, Message::ProcessContext, 0);
        accepted += u64::from(assert_decoders_agree(&bytes));
    });
    assert_both_verdicts_are_common(accepted);
}

/// A comparison in which one verdict hardly occurs would say little.
fn assert_both_verdicts_are_common(accepted: u64) {
    assert!(
        (CASES / 10..CASES - CASES / 10).contains(&accepted),
        "{accepted} of {CASES} accepted"
    );
}

fn payload(rng: &mut Rng) -> Payload {
    let (resource, attributes) = (attributes(rng, 0), attributes(rng, 0));
    Payload {
        resource,
        attributes,
    }
}

fn attributes(rng: &mut Rng, depth: u32) -> Attributes {
    (0..rng.usize(..4))
        .map(|_| (text(rng), value(rng, depth)))
        .collect()
}

fn value(rng: &mut Rng, depth: u32) -> Value {
    // Lists only while there is room: the depth itself has tests of its own.
    match rng.u32(..if depth < 6 { 8 } else { 6 }) {
        0 => Value::Empty,
        1 => text(rng).into(),
        2 => rng.bool().into(),
        3 => (number(rng) as i64).into(),
        4 => f64::from_bits(number(rng)).into(),
        5 => bytes(rng).into(),
        6 => attributes(rng, depth + 1).into(),
        _ => (0..rng.usize(..4))
            .map(|_| value(rng, depth + 1))
            .collect::<Vec<_>>()
            .into(),
    }
}

/// Numbers of every length, so that varints of every length occur.
fn number(rng: &mut Rng) -> u64 {
    rng.u64(..) >> rng.u32(..64)
}

fn text(rng: &mut Rng) -> String {
    let long = if rng.u32(..50) == 0 { 300 } else { 6 };
    (0..rng.usize(..long))
        .map(|_| rng.char('\0'..='\u{1f600}'))
        .collect()
}

fn bytes(rng: &mut Rng) -> Vec<u8> {
    let long = if rng.u32(..50) == 0 { 300 } else { 6 };
    (0..rng.usize(..long)).map(|_| rng.u8(..)).collect()
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.u32(1..4) {
        let at = rng.usize(..=bytes.len());
        match rng.u32(..6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.u8(..)),
            2 => bytes.extend_from_within(at..),
            3 => drop(bytes.drain(at..(at + 3).min(bytes.len()))),
            4 if at < bytes.len() => bytes[at] = rng.u8(..),
            _ if at < bytes.len() => bytes[at] ^= 1 << rng.u32(..8),
            _ => {}
        }
    }
}

#[derive(Clone, Copy)]
enum Message {
    ProcessContext,
    Resource,
    KeyValue,
    AnyValue,
    ArrayValue,
    KeyValueList,
}

/// What a field of a message holds.
#[derive(Clone, Copy)]
enum Field {
    Varint,
    Fixed64,
    Text,
    Bytes,
    Message(Message),
    Unknown,
}

impl Message {
    fn field(self, number: u32) -> Field {
        use Message::*;
        match (self, number) {
            (ProcessContext, 1) => Field::Message(Resource),
            (ProcessContext, 2) | (Resource | KeyValueList, 1) => Field::Message(KeyValue),
            (Resource, 2) | (AnyValue, 2 | 3) => Field::Varint,
            (KeyValue | AnyValue, 1) => Field::Text,
            (KeyValue, 2) | (ArrayValue, 1) => Field::Message(AnyValue),
            (AnyValue, 4) => Field::Fixed64,
            (AnyValue, 5) => Field::Message(ArrayValue),
            (AnyValue, 6) => Field::Message(KeyValueList),
            (AnyValue, 7) => Field::Bytes,
            _ => Field::Unknown,
        }
    }
}

/// Fields as no encoder writes them: out of order, repeated, merged, unknown, now and then of the
/// wrong wire type or with a length that is off by one.
fn put_message(rng: &mut Rng, output: &mut Vec<u8>, message: Message, depth: u32) {
    for _ in 0..rng.u32(1..5) {
        let highest = if rng.bool() { 2 } else { 8 };
        let number = rng.u32(1..=highest);
        let field = match rng.u32(..200) {
            0 => Field::Unknown,
            _ => message.field(number),
        };
        match field {
            Field::Varint => {
                put_key(rng, output, number, 0);
                put_varint(rng, output);
            }
            Field::Fixed64 => {
                put_key(rng, output, number, 1);
                output.extend(rng.u64(..).to_le_bytes());
            }
            Field::Text => {
                let content = text(rng).into_bytes();
                put_content(rng, output, number, content);
            }
            Field::Bytes => {
                let content = bytes(rng);
                put_content(rng, output, number, content);
            }
            Field::Message(inner) => {
                let mut content = Vec::new();
                if depth < 8 {
                    put_message(rng, &mut content, inner, depth + 1);
                }
                put_content(rng, output, number, content);
            }
            Field::Unknown => put_unknown(rng, output, number, depth),
        }
    }
}

fn put_unknown(rng: &mut Rng, output: &mut Vec<u8>, number: u32, depth: u32) {
    // 6 and 7 are no wire types.
    let types = if rng.u32(..20) == 0 { 8 } else { 6 };
    let wire_type = rng.u32(..types);
    match wire_type {
        // A group's end where none began is an error.
        4 if rng.u32(..20) != 0 => return,
        3 if depth >= 8 => return,
        _ => put_key(rng, output, number, wire_type),
    }
    match wire_type {
        0 => put_varint(rng, output),
        1 => output.extend(rng.u64(..).to_le_bytes()),
        2 => {
            let content = bytes(rng);
            put_length(rng, output, content.len());
            output.extend(content);
        }
        3 => {
            for _ in 0..rng.u32(..3) {
                let inner = rng.u32(1..=8);
                put_unknown(rng, output, inner, depth + 1);
            }
            let end = if rng.u32(..20) == 0 {
                number + 1
            } else {
                number
            };
            put_key(rng, output, end, 4);
        }
        5 => output.extend(rng.u32(..).to_le_bytes()),
        _ => {}
    }
}

fn put_content(rng: &mut Rng, output: &mut Vec<u8>, number: u32, content: Vec<u8>) {
    put_key(rng, output, number, 2);
    put_length(rng, output, content.len());
    output.extend(content);
}

fn put_length(rng: &mut Rng, output: &mut Vec<u8>, length: usize) {
    let length = match rng.u32(..200) {
        0 => length + 1,
        1 => length.saturating_sub(1),
        _ => length,
    };
    put_exactly(output, length as u64, rng.usize(..40) / 38);
}

fn put_key(rng: &mut Rng, output: &mut Vec<u8>, number: u32, wire_type: u32) {
    let key = u64::from(number << 3 | wire_type);
    put_exactly(output, key, rng.usize(..40) / 38);
}

/// A number, now and then one that 64 bits cannot hold.
fn put_varint(rng: &mut Rng, output: &mut Vec<u8>) {
    match rng.u32(..100) {
        0 => output.extend([0xff; 9].iter().chain(&[rng.u8(..4)])),
        _ => put_exactly(output, number(rng), rng.usize(..3)),
    }
}

/// `value` as a varint, with `longer` bytes more than it needs (ten at most): legal, if odd.
fn put_exactly(output: &mut Vec<u8>, mut value: u64, longer: usize) {
    let needed = (64 - (value | 1).leading_zeros() as usize).div_ceil(7);
    let size = (needed + longer).min(10);
    for index in 1..=size {
        let more = if index < size { 0x80 } else { 0 };
        output.push((value & 0x7f) as u8 | more);
        value >>= 7;
    }
}
