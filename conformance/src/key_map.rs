//! `key_maps.json`.

use otelctx_format::process_context::Payload;
use otelctx_format::{KeyMap, KeyMapError, Schema};
use serde::Serialize;

use crate::Hex;
use crate::bytes::{field, key_value, string};

/// A payload, and what it says of thread contexts.
#[derive(Serialize)]
pub struct Vector {
    /// Short and unique in its file.
    pub name: &'static str,
    /// The payload's bytes.
    pub hex: Hex,
    /// What it says.
    #[serde(flatten)]
    pub announced: Announced,
}

/// What a payload says of thread contexts.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Announced {
    /// The schema's name; null when there is none.
    pub schema: Option<String>,
    /// Whether this schema means a thread-local variable with a pointer to a record.
    pub thread_local_record: bool,
    /// What a reader makes of the key map.
    pub verdict: Verdict,
    /// The keys in order of their index, where the verdict is `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<String>>,
}

/// What a reader makes of a key map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Uses it.
    Ok,
    /// There is none.
    Absent,
    /// The attribute is no array.
    NotAnArray,
    /// An entry is no string.
    NotAString,
    /// More than 256 keys.
    TooMany,
}

const SCHEMA: &str = "threadlocal.schema_version";
const KEYS: &str = "threadlocal.attribute_key_map";

fn attribute(key: &str, any: &[u8]) -> Vec<u8> {
    field(2, &key_value(key, any))
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    let items: Vec<u8> = items.iter().flat_map(|item| field(1, item)).collect();
    field(5, &items)
}

/// A payload of schema `tls_v1` and a key map of these bytes.
fn with_keys(
    name: &'static str,
    any: &[u8],
    verdict: Verdict,
    keys: Option<Vec<String>>,
) -> Vector {
    let hex = [attribute(SCHEMA, &string("tls_v1")), attribute(KEYS, any)]
        .concat()
        .into();
    let schema = Some("tls_v1".into());
    Vector {
        name,
        hex,
        announced: Announced {
            schema,
            thread_local_record: true,
            verdict,
            keys,
        },
    }
}

/// A payload with this schema and no key map.
fn with_schema(
    name: &'static str,
    any: &[u8],
    schema: Option<&str>,
    thread_local_record: bool,
) -> Vector {
    let announced = Announced {
        schema: schema.map(Into::into),
        thread_local_record,
        verdict: Verdict::Absent,
        keys: None,
    };
    Vector {
        name,
        hex: attribute(SCHEMA, any).into(),
        announced,
    }
}

/// All vectors of the file.
#[must_use]
pub fn vectors() -> Vec<Vector> {
    let texts = |texts: &[&str]| texts.iter().map(|text| string(text)).collect::<Vec<_>>();
    let numbered = |count: u32| (0..count).map(|n| format!("k{n}")).collect::<Vec<_>>();
    let encoded = |keys: &[String]| array(&keys.iter().map(|key| string(key)).collect::<Vec<_>>());
    let good = |name, keys: &[&str]| {
        let names = keys.iter().map(|&key| key.to_owned()).collect();
        with_keys(name, &array(&texts(keys)), Verdict::Ok, Some(names))
    };
    let bad = |name, any: &[u8], verdict| with_keys(name, any, verdict, None);
    let (most, too_many) = (numbered(256), numbered(257));
    let in_resource = field(1, &field(1, &key_value(KEYS, &array(&texts(&["a"])))));
    vec![
        good("two_keys", &["http.route", "db.system.name"]),
        good("no_keys", &[]),
        // A reader can do no better than to keep both; a writer must not repeat a key.
        good("a_repeated_and_an_empty_key", &["a", "", "a"]),
        with_keys("256_keys", &encoded(&most), Verdict::Ok, Some(most.clone())),
        bad("257_keys", &encoded(&too_many), Verdict::TooMany),
        bad(
            "a_string_in_place_of_the_array",
            &string("http.route"),
            Verdict::NotAnArray,
        ),
        bad(
            "a_map_in_place_of_the_array",
            &field(6, &[]),
            Verdict::NotAnArray,
        ),
        bad(
            "a_value_of_no_type_in_place_of_the_array",
            &[],
            Verdict::NotAnArray,
        ),
        bad(
            "a_number_among_the_keys",
            &array(&[string("a"), vec![0x18, 1]]),
            Verdict::NotAString,
        ),
        bad(
            "bytes_among_the_keys",
            &array(&[field(7, b"a")]),
            Verdict::NotAString,
        ),
        bad(
            "a_value_of_no_type_among_the_keys",
            &array(&[vec![]]),
            Verdict::NotAString,
        ),
        with_schema(
            "schema_tlsdesc_v1_dev",
            &string("tlsdesc_v1_dev"),
            Some("tlsdesc_v1_dev"),
            true,
        ),
        with_schema("schema_tls_v1", &string("tls_v1"), Some("tls_v1"), true),
        with_schema(
            "schema_nodejs_v1_dev",
            &string("nodejs_v1_dev"),
            Some("nodejs_v1_dev"),
            false,
        ),
        with_schema(
            "schema_go_pprof_labels_v1",
            &string("go_pprof_labels_v1"),
            Some("go_pprof_labels_v1"),
            false,
        ),
        with_schema(
            "schema_that_nobody_knows",
            &string("tls_v9"),
            Some("tls_v9"),
            false,
        ),
        with_schema("schema_that_is_no_string", &[0x18, 1], None, false),
        Vector {
            name: "attributes_of_the_resource_announce_nothing",
            hex: in_resource.into(),
            announced: Announced {
                schema: None,
                thread_local_record: false,
                verdict: Verdict::Absent,
                keys: None,
            },
        },
    ]
}

/// What `otelctx-format` makes of the bytes.
///
/// # Panics
/// When they are no payload.
#[must_use]
pub fn judge(bytes: &[u8]) -> Announced {
    let payload = Payload::decode(bytes).expect("payloads that are none have a file of their own");
    let schema = Schema::of(&payload);
    let (verdict, keys) = match KeyMap::of(&payload) {
        Ok(Some(keys)) => (Verdict::Ok, Some(keys.names().to_vec())),
        Ok(None) => (Verdict::Absent, None),
        Err(KeyMapError::NotAnArray) => (Verdict::NotAnArray, None),
        Err(KeyMapError::NotAString { .. }) => (Verdict::NotAString, None),
        Err(KeyMapError::TooMany) => (Verdict::TooMany, None),
        Err(other) => panic!("the files have no name for: {other}"),
    };
    Announced {
        thread_local_record: schema.as_ref().is_some_and(Schema::is_thread_local_record),
        schema: schema.map(|schema| schema.to_string()),
        verdict,
        keys,
    }
}
