//! The payloads that are none.

use super::{Outcome, Reason, Vector};
use crate::bytes::{field, key_value, string};

fn refused(name: &'static str, reason: Reason, bytes: &[u8]) -> Vector {
    let outcome = Outcome::Malformed { reason };
    Vector {
        name,
        hex: bytes.to_vec().into(),
        canonical: false,
        may_be_accepted: false,
        outcome,
    }
}

/// What Protocol Buffers leave to the reader: Google's libraries pass over a known field of another
/// wire type and drop the bits above 64; prost refuses both, and so does `otelctx-format`.
fn lenient(vector: Vector) -> Vector {
    Vector {
        may_be_accepted: true,
        ..vector
    }
}

/// One attribute of the context whose `AnyValue` has these bytes.
fn any(name: &'static str, reason: Reason, any: &[u8]) -> Vector {
    refused(name, reason, &field(2, &key_value("a", any)))
}

pub(super) fn vectors() -> Vec<Vector> {
    let mut vectors = cut_short();
    vectors.extend(wire_types());
    vectors.extend(wire_types_of_other_fields().map(lenient));
    vectors.extend(others());
    vectors
}

fn cut_short() -> Vec<Vector> {
    use Reason::CutShort;
    let service = super::service();
    vec![
        refused(
            "cut_inside_the_last_value",
            CutShort,
            &service[..service.len() - 1],
        ),
        refused("cut_inside_a_field_key", CutShort, &[0x98]),
        refused("cut_behind_a_field_key", CutShort, &[0x18]),
        refused("cut_inside_a_varint", CutShort, &[0x18, 0xff, 0xff]),
        refused(
            "cut_inside_a_fixed64",
            CutShort,
            &[0x19, 1, 2, 3, 4, 5, 6, 7],
        ),
        refused("cut_inside_a_fixed32", CutShort, &[0x1d, 1, 2, 3]),
        refused("cut_inside_a_length", CutShort, &[0x12, 0x80]),
        refused("cut_behind_a_length", CutShort, &[0x12, 1]),
        refused("cut_inside_unknown_bytes", CutShort, &[0x1a, 3, 1, 2]),
        refused("cut_inside_a_group", CutShort, &[0x1b, 0x08, 1]),
        refused(
            "length_of_4_gib",
            CutShort,
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f],
        ),
        refused(
            "length_of_64_bits",
            CutShort,
            &[&[0x12][..], &[0xff; 9], &[1]].concat(),
        ),
        refused(
            "key_beyond_its_attribute",
            CutShort,
            &[0x12, 3, 0x0a, 2, b'a', b'b'],
        ),
        any("string_beyond_its_value", CutShort, &[0x0a, 2, b'x']),
        any("bool_beyond_its_value", CutShort, &[0x10]),
        any(
            "double_beyond_its_value",
            CutShort,
            &[0x21, 0, 0, 0, 0, 0, 0, 0],
        ),
        any("array_beyond_its_value", CutShort, &[0x2a, 1]),
        any("map_beyond_its_value", CutShort, &[0x32, 1]),
        any("bytes_beyond_their_value", CutShort, &[0x3a, 2, 1]),
    ]
}

fn wire_types_of_other_fields() -> impl Iterator<Item = Vector> {
    use Reason::WireType;
    let in_attribute = |name, bytes: &[u8]| refused(name, WireType, &field(2, bytes));
    vec![
        refused("resource_as_varint", WireType, &[0x08, 0]),
        refused(
            "attributes_as_fixed64",
            WireType,
            &[0x11, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        refused(
            "resource_attributes_as_group",
            WireType,
            &field(1, &[0x0b, 0x0c]),
        ),
        refused(
            "dropped_attributes_count_as_bytes",
            WireType,
            &field(1, &[0x12, 0]),
        ),
        in_attribute("key_as_varint", &[0x08, 0]),
        in_attribute("value_as_fixed32", &[0x15, 0, 0, 0, 0]),
        any("string_as_varint", WireType, &[0x08, 0]),
        any("bool_as_bytes", WireType, &[0x12, 0]),
        any("int_as_fixed64", WireType, &[0x19, 0, 0, 0, 0, 0, 0, 0, 0]),
        any("double_as_fixed32", WireType, &[0x25, 0, 0, 0, 0]),
        any("array_as_varint", WireType, &[0x28, 0]),
        any("map_as_group", WireType, &[0x33, 0x34]),
        any("bytes_as_varint", WireType, &[0x38, 0]),
    ]
    .into_iter()
}

fn wire_types() -> Vec<Vector> {
    use Reason::WireType;
    vec![
        refused("wire_type_6", WireType, &[0x1e, 0]),
        refused("wire_type_7", WireType, &[0x1f, 0]),
        refused("end_of_a_group_that_did_not_begin", WireType, &[0x1c]),
        refused("end_of_another_group", WireType, &[0x1b, 0x24]),
    ]
}

fn others() -> Vec<Vector> {
    use Reason::{FieldNumber, NotUtf8, Varint};
    let not_utf8_key = [field(1, &[0xff]), field(2, &string("x"))].concat();
    vec![
        lenient(refused(
            "number_of_65_bits",
            Varint,
            &[&[0x18][..], &[0xff; 9], &[2]].concat(),
        )),
        refused(
            "number_of_eleven_bytes",
            Varint,
            &[&[0x18][..], &[0x80; 10], &[0]].concat(),
        ),
        refused("field_number_0", FieldNumber, &[0x00, 0]),
        refused(
            "field_key_of_33_bits",
            FieldNumber,
            &[0x80, 0x80, 0x80, 0x80, 0x10, 0],
        ),
        refused("key_that_is_not_utf8", NotUtf8, &field(2, &not_utf8_key)),
        any("string_that_is_not_utf8", NotUtf8, &field(1, &[b'x', 0xc3])),
        any(
            "string_with_a_surrogate",
            NotUtf8,
            &field(1, &[0xed, 0xa0, 0x80]),
        ),
    ]
}
