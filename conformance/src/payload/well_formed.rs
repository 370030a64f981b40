//! The payloads that a reader reads, and those that are well formed but beyond its limits.

use otelctx_format::process_context::{Attributes, Payload, Value};

use super::{Outcome, Reported, Vector};
use crate::Hex;
use crate::bytes::{field, key_value, string};
use crate::value::payload_to_json;

fn ok(
    name: &'static str,
    canonical: bool,
    hex: Vec<u8>,
    payload: &Payload,
    problems: Vec<Reported>,
) -> Vector {
    let payload = payload_to_json(payload);
    Vector {
        name,
        hex: hex.into(),
        canonical,
        may_be_accepted: false,
        outcome: Outcome::Ok { payload, problems },
    }
}

/// One attribute `a` of the context whose `AnyValue` has these bytes, as no writer would write them.
fn odd(name: &'static str, any: &[u8], value: impl Into<Value>) -> Vector {
    ok(
        name,
        false,
        field(2, &key_value("a", any)),
        &attribute(value),
        vec![],
    )
}

/// The same, as every writer writes it.
fn plain(name: &'static str, any: &[u8], value: impl Into<Value>) -> Vector {
    Vector {
        canonical: true,
        ..odd(name, any, value)
    }
}

fn attribute(value: impl Into<Value>) -> Payload {
    attributes(vec![("a", value.into())])
}

fn attributes(attributes: Vec<(&str, Value)>) -> Payload {
    Payload {
        resource: vec![],
        attributes: named(attributes),
    }
}

fn named(attributes: Vec<(&str, Value)>) -> Attributes {
    attributes
        .into_iter()
        .map(|(key, value)| (key.into(), value))
        .collect()
}

/// The payload that a small service publishes.
pub(crate) fn service() -> Vec<u8> {
    let resource = [
        field(1, &key_value("service.name", &string("shop"))),
        field(1, &key_value("telemetry.sdk.language", &string("rust"))),
    ];
    let keys = [field(1, &string("http.route")), field(1, &string("city"))].concat();
    [
        field(1, &resource.concat()),
        field(
            2,
            &key_value("threadlocal.schema_version", &string("tlsdesc_v1_dev")),
        ),
        field(
            2,
            &key_value("threadlocal.attribute_key_map", &field(5, &keys)),
        ),
    ]
    .concat()
}

pub(super) fn vectors() -> Vec<Vector> {
    let mut vectors = whole();
    vectors.extend(values());
    vectors.extend(unknown_fields());
    vectors.extend(merged());
    vectors.extend(problems());
    vectors.extend(nested());
    vectors
}

fn whole() -> Vec<Vector> {
    let shop = Payload {
        resource: named(vec![
            ("service.name", "shop".into()),
            ("telemetry.sdk.language", "rust".into()),
        ]),
        attributes: named(vec![
            ("threadlocal.schema_version", "tlsdesc_v1_dev".into()),
            (
                "threadlocal.attribute_key_map",
                vec!["http.route".into(), Value::from("city")].into(),
            ),
        ]),
    };
    let attribute = field(2, &key_value("b", &string("y")));
    let resource = field(1, &field(1, &key_value("a", &string("x"))));
    let both = Payload {
        resource: named(vec![("a", "x".into())]),
        attributes: named(vec![("b", "y".into())]),
    };
    vec![
        ok("a_service", true, service(), &shop, vec![]),
        ok("no_bytes", true, vec![], &Payload::default(), vec![]),
        ok(
            "a_resource_without_attributes",
            false,
            field(1, &[]),
            &Payload::default(),
            vec![],
        ),
        ok(
            "attributes_before_the_resource",
            false,
            [attribute, resource].concat(),
            &both,
            vec![],
        ),
    ]
}

fn values() -> Vec<Vector> {
    let double = |number: f64| [&[0x21][..], &number.to_le_bytes()].concat();
    let everything = [
        field(1, &[]),
        field(1, &string("x")),
        field(1, &[0x10, 1]),
        field(1, &[0x18, 5]),
        field(1, &double(0.25)),
        field(1, &field(5, &[])),
        field(1, &field(6, &[])),
        field(1, &field(7, &[1, 2])),
    ];
    let all = vec![
        Value::Empty,
        "x".into(),
        true.into(),
        5.into(),
        0.25.into(),
        Value::Array(vec![]),
        Value::Map(vec![]),
        Value::Bytes(vec![1, 2]),
    ];
    let map = [
        field(1, &key_value("k", &[0x10, 0])),
        field(1, &key_value("l", &field(6, &[]))),
    ];
    let minimum = [&[0x18][..], &[0x80; 9], &[1]].concat();
    let maximum = [&[0x18][..], &[0xff; 8], &[0x7f]].concat();
    vec![
        plain("string", &string("Zürich"), "Zürich"),
        plain("empty_string", &string(""), ""),
        plain("true", &[0x10, 1], true),
        plain("false", &[0x10, 0], false),
        odd("any_number_but_0_is_true", &[0x10, 0x80, 2], true),
        plain("int_0", &[0x18, 0], 0),
        plain("int_minus_1", &[&[0x18][..], &[0xff; 9], &[1]].concat(), -1),
        plain("smallest_int", &minimum, i64::MIN),
        plain("largest_int", &maximum, i64::MAX),
        plain("double", &double(0.1), 0.1),
        plain("double_minus_0", &double(-0.0), -0.0),
        plain("double_nan", &double(f64::NAN), f64::NAN),
        plain("double_infinity", &double(f64::INFINITY), f64::INFINITY),
        plain(
            "double_minus_infinity",
            &double(f64::NEG_INFINITY),
            f64::NEG_INFINITY,
        ),
        plain("bytes", &field(7, &[0, 0xff, 0x80]), vec![0, 0xff, 0x80_u8]),
        plain("no_bytes_as_value", &field(7, &[]), Value::Bytes(vec![])),
        plain("empty_array", &field(5, &[]), Value::Array(vec![])),
        plain("array_of_every_type", &field(5, &everything.concat()), all),
        plain("empty_map", &field(6, &[]), Value::Map(vec![])),
        plain(
            "map",
            &field(6, &map.concat()),
            named(vec![("k", false.into()), ("l", Value::Map(vec![]))]),
        ),
        plain("value_of_no_type", &[], Value::Empty),
        ok(
            "no_value",
            false,
            field(2, &field(1, b"a")),
            &attribute(Value::Empty),
            vec![],
        ),
    ]
}

fn unknown_fields() -> Vec<Vector> {
    let known = field(2, &key_value("a", &string("x")));
    let behind = |unknown: &[u8]| [unknown, &known].concat();
    let read = attribute("x");
    let odd_key_value = [&field(1, b"a")[..], &[0x18, 5], &field(2, &string("x"))].concat();
    let top = |name, unknown: &[u8]| ok(name, false, behind(unknown), &read, vec![]);
    vec![
        top("unknown_varint", &[0x18, 0xff, 1]),
        top("unknown_fixed64", &[0x19, 1, 2, 3, 4, 5, 6, 7, 8]),
        top("unknown_bytes", &[0x1a, 2, 0xff, 0xff]),
        top("unknown_group", &[0x1b, 0x08, 1, 0x23, 0x24, 0x1c]),
        top("unknown_fixed32", &[0x1d, 1, 2, 3, 4]),
        top(
            "unknown_field_of_the_largest_number",
            &[0xf8, 0xff, 0xff, 0xff, 0x0f, 0],
        ),
        top(
            "resource_with_dropped_attributes_count",
            &field(1, &[0x10, 7]),
        ),
        ok(
            "key_strindex_of_newer_otlp",
            false,
            field(2, &odd_key_value),
            &read,
            vec![],
        ),
        odd(
            "string_value_strindex_of_newer_otlp",
            &[0x40, 9],
            Value::Empty,
        ),
        odd(
            "string_and_string_value_strindex",
            &[&string("x")[..], &[0x40, 9]].concat(),
            "x",
        ),
        odd(
            "unknown_field_in_an_array",
            &field(5, &[0x10, 1]),
            Value::Array(vec![]),
        ),
        odd(
            "unknown_field_in_a_map",
            &field(6, &[0x10, 1]),
            Value::Map(vec![]),
        ),
    ]
}

/// What Protocol Buffers say of fields that stand twice: the last scalar counts, messages and lists merge.
fn merged() -> Vec<Vector> {
    let resource = |key| field(1, &field(1, &key_value(key, &string("x"))));
    let two_resources = Payload {
        resource: named(vec![("a", "x".into()), ("b", "x".into())]),
        attributes: vec![],
    };
    let array = |text| field(5, &field(1, &string(text)));
    let map = |key| field(6, &field(1, &key_value(key, &[])));
    let two_keys = [field(1, b"b"), field(1, b"a"), field(2, &string("x"))].concat();
    let two_values = [field(1, b"a"), field(2, &array("x")), field(2, &array("y"))].concat();
    let long_length = [0x12, 0x85, 0x80, 0x00, 0x0a, 1, b'a', 0x12, 0].to_vec();
    let x_y = vec![Value::from("x"), "y".into()];
    let twice = |name, bytes: Vec<u8>, payload| ok(name, false, bytes, &payload, vec![]);
    vec![
        twice(
            "two_resources_are_one",
            [resource("a"), resource("b")].concat(),
            two_resources,
        ),
        twice("the_last_key_counts", field(2, &two_keys), attribute("x")),
        twice(
            "two_values_are_merged",
            field(2, &two_values),
            attribute(x_y.clone()),
        ),
        odd(
            "the_last_string_counts",
            &[string("x"), string("y")].concat(),
            "y",
        ),
        odd(
            "the_last_type_counts",
            &[&string("x")[..], &[0x18, 5]].concat(),
            5,
        ),
        odd(
            "two_arrays_are_one",
            &[array("x"), array("y")].concat(),
            x_y,
        ),
        odd(
            "two_arrays_with_a_string_between_are_two",
            &[array("x"), string("z"), array("y")].concat(),
            vec![Value::from("y")],
        ),
        odd(
            "two_maps_are_one",
            &[map("k"), map("l")].concat(),
            named(vec![("k", Value::Empty), ("l", Value::Empty)]),
        ),
        twice(
            "a_length_in_more_bytes_than_it_needs",
            long_length,
            attribute(Value::Empty),
        ),
    ]
}

fn problems() -> Vec<Vector> {
    let each = |number: u8, key, text| field(number, &key_value(key, &string(text)));
    let a = || attribute("x");
    let without_key = field(2, &field(2, &string("y")));
    let in_both = [field(1, &each(1, "a", "x")), each(2, "a", "x")].concat();
    let both = Payload {
        resource: a().attributes,
        ..a()
    };
    let resource = [each(1, "a", "x"), each(1, "a", "y"), each(1, "", "z")].concat();
    let map = [
        each(1, "k", "x"),
        each(1, "k", "y"),
        field(1, &field(2, &string("z"))),
    ]
    .concat();
    let in_map = named(vec![("k", "x".into()), ("k", "y".into()), ("", "z".into())]);
    let repeated = || Reported::RepeatedKey("a".into());
    vec![
        ok(
            "empty_key",
            false,
            [each(2, "a", "x"), each(2, "", "y")].concat(),
            &a(),
            vec![Reported::EmptyKey],
        ),
        ok(
            "no_key",
            false,
            [without_key, each(2, "a", "x")].concat(),
            &a(),
            vec![Reported::EmptyKey],
        ),
        ok(
            "the_first_of_a_repeated_key_stays",
            false,
            [each(2, "a", "x"), each(2, "a", "y"), each(2, "a", "x")].concat(),
            &a(),
            vec![repeated(), repeated()],
        ),
        ok(
            "problems_in_the_resource",
            false,
            field(1, &resource),
            &Payload {
                resource: a().attributes,
                attributes: vec![],
            },
            vec![repeated(), Reported::EmptyKey],
        ),
        ok(
            "the_same_key_in_resource_and_context_is_no_problem",
            true,
            in_both,
            &both,
            vec![],
        ),
        plain("keys_inside_a_map_are_not_judged", &field(6, &map), in_map),
    ]
}

/// Values inside one another, as deep as `otelctx-format` goes and a step further.
fn nested() -> Vec<Vector> {
    let arrays = |depth| (0..depth).fold(vec![], |inner, _| field(5, &field(1, &inner)));
    let maps = |depth| {
        (0..depth).fold(vec![], |inner, _| {
            field(6, &field(1, &key_value("k", &inner)))
        })
    };
    let array_value = (0..32).fold(Value::Empty, |inner, _| Value::Array(vec![inner]));
    let map_value = (0..24).fold(Value::Empty, |inner, _| {
        Value::Map(vec![("k".into(), inner)])
    });
    let groups = |depth| [[0x1b].repeat(depth), [0x1c].repeat(depth)].concat();
    let endless = Hex::default().repeated(&[0x1b], 65_536);
    let too = |name, hex: Hex, outcome| Vector {
        name,
        hex,
        canonical: false,
        may_be_accepted: true,
        outcome,
    };
    let too_deep = |name, any: Vec<u8>| {
        too(
            name,
            field(2, &key_value("a", &any)).into(),
            Outcome::TooDeep,
        )
    };
    vec![
        plain("arrays_32_deep", &arrays(32), array_value),
        too_deep("arrays_33_deep", arrays(33)),
        // As deep as common JSON parsers let the file itself nest.
        plain("maps_24_deep", &maps(24), map_value),
        too_deep("maps_33_deep", maps(33)),
        ok(
            "groups_32_deep",
            false,
            groups(32),
            &Payload::default(),
            vec![],
        ),
        too("groups_33_deep", groups(33).into(), Outcome::TooDeep),
        Vector {
            may_be_accepted: false,
            ..too("groups_without_end", endless, Outcome::TooDeep)
        },
        too(
            "values_65537",
            Hex::default().repeated(&[0x12, 0], 65_537),
            Outcome::TooManyValues,
        ),
    ]
}
