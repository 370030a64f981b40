//! The process context.

use std::sync::{Mutex, PoisonError};

use otelctx::{Key, ProcessContext, PublishError, Published, Schema, Value as Attribute};

use crate::napi::{Call, Value, value_type};
use crate::probe::{MAP_TABLE, TABLE_HEADER, TAGGED_SIZE};

/// The schema of what `tls` publishes.
const SCHEMA: &str = "nodejs_v1_dev";
/// Maximum depth of arrays in an attribute.
const MAX_DEPTH: usize = 4;

/// The state that all environments of the process share.
struct Process {
    published: Option<Published>,
    /// The names of attributes, in the order in which they were registered.
    keys: Vec<IndexedKey>,
}

struct IndexedKey {
    key: Key,
    /// Its index in records. Other publishers in the process can have indexes in between.
    index: usize,
}

static PROCESS: Mutex<Process> = Mutex::new(Process {
    published: None,
    keys: Vec::new(),
});

/// Returns V8's layout as attributes of the process context, for readers of the schema.
pub(crate) fn layout(record_offset: usize) -> [(&'static str, usize); 4] {
    [
        ("threadlocal.js_object_record_offset", record_offset),
        ("threadlocal.tagged_size", TAGGED_SIZE),
        ("threadlocal.js_map_table_offset", MAP_TABLE),
        ("threadlocal.ordered_hash_map_header_size", TABLE_HEADER),
    ]
}

/// Registers names of attributes, and publishes them if a process context is. Returns their
/// indexes, which the process has as long as it runs. If `are_positional`, each index must be the
/// position.
pub(crate) fn register_keys(
    call: Call,
    names: Value,
    are_positional: bool,
) -> Result<Vec<u32>, String> {
    let names: Option<Vec<String>> = call
        .elements(names)
        .and_then(|names| names.map(|name| call.string_of(name?)).collect());
    let names = names.ok_or("keys must be an array of strings")?;
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let index_of = |process: &Process, name: &str| {
        let mut keys = process.keys.iter();
        let known = keys.find(|known| known.key.name() == name)?;
        Some(known.index)
    };
    if are_positional {
        for (position, name) in names.iter().enumerate() {
            let mut keys = process.keys.iter();
            let known = keys.find(|known| known.index == position);
            if let Some(known) = known.filter(|known| known.key.name() != name) {
                return Err(format!(
                    "key {position} is {:?} in this process, not {name:?}: append keys, and keep the others",
                    known.key.name()
                ));
            }
            let index = index_of(&process, name);
            if let Some(index) = index.filter(|index| *index != position) {
                return Err(format!(
                    "{name:?} is key {index} in this process, not {position}"
                ));
            }
        }
    }
    let mut indexes = Vec::new();
    for (position, name) in names.into_iter().enumerate() {
        let index = match index_of(&process, &name) {
            Some(index) => index,
            None => {
                let key = Key::from_string(name).map_err(|error| error.to_string())?;
                let next = process.keys.iter().map(|known| known.index + 1).max();
                let next = next.unwrap_or_default();
                // Beside another publisher, its index avoids that one's.
                let index = match &process.published {
                    Some(_) => key.index().map_or(next, usize::from),
                    None => next,
                };
                process.keys.push(IndexedKey { key, index });
                index
            }
        };
        if are_positional && index != position {
            return Err(format!(
                "the index {position} is taken in this process: use makeNamedContext"
            ));
        }
        indexes.push(index as u32);
    }
    process.check_indexes()?;
    Ok(indexes)
}

/// Returns the names that are registered, by their indexes. The index of another publisher's name has `#`
/// and the index.
pub(crate) fn keys() -> Vec<String> {
    let process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut names = Vec::new();
    for IndexedKey { key, index } in &process.keys {
        while names.len() <= *index {
            names.push(format!("#{}", names.len()));
        }
        key.name().clone_into(&mut names[*index]);
    }
    names
}

/// Returns whether another publisher has published a second process context, after this one.
pub(crate) fn has_other() -> bool {
    is_published() && ProcessContext::find_other().is_some()
}

/// Returns whether the process context is published.
pub(crate) fn is_published() -> bool {
    let process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    process.published.is_some()
}

/// Publishes the process context: what the environment variables say, and these attributes, pairs
/// of a name and a value. Replaces the one that was published before.
pub(crate) fn publish(call: Call, pairs: Value, record_offset: usize) -> Result<(), String> {
    let pairs = call.elements(pairs).ok_or("attributes must be an object")?;
    let mut context = ProcessContext::detect().with_schema(Schema::Other(SCHEMA.into()));
    for pair in pairs {
        let mut pair = pair
            .and_then(|pair| call.elements(pair))
            .into_iter()
            .flatten();
        let (Some(Some(name)), Some(Some(value))) = (pair.next(), pair.next()) else {
            return Err("attributes must be an object".into());
        };
        let name = call.string_of(name).ok_or("a name must be a string")?;
        let value = attribute(call, value, MAX_DEPTH);
        let value = value.ok_or_else(|| format!("{name:?} has a value of an unknown type"))?;
        context = context.with_attribute(name, value);
    }
    for (name, value) in layout(record_offset) {
        context = context.with_schema_attribute(name, value as i64);
    }
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let published = process.published.as_mut();
    match published.map(|it| it.replace(context.clone())) {
        // Not yet, or another copy of the publisher has taken over.
        None | Some(Err(PublishError::NotPublished)) => {
            let published = context.publish().map_err(explain)?;
            process.published = Some(published);
        }
        Some(updated) => updated.map_err(explain)?,
    }
    process.check_indexes()
}

/// Returns the reason in words for programs of Node.js.
fn explain(error: PublishError) -> String {
    match error {
        PublishError::Foreign { .. } => {
            "another publisher in this process, such as dd-trace or another version of otelctx (npm ls otelctx), has \
             published a process context, and a process has only one: remove one of them"
                .into()
        }
        error => error.to_string(),
    }
}

impl Process {
    /// Another copy of the publisher in the process can have other names at the same indexes.
    fn check_indexes(&self) -> Result<(), String> {
        if self.published.is_none() {
            return Ok(());
        }
        for IndexedKey { key, index } in &self.keys {
            if key.index().map(usize::from) != Some(*index) {
                let name = key.name();
                return Err(format!(
                    "the index {index} of {name:?} is taken in this process"
                ));
            }
        }
        Ok(())
    }
}

/// Returns an attribute's value: a string, boolean, number, bigint, `Uint8Array`, or array.
fn attribute(call: Call, value: Value, depth: usize) -> Option<Attribute> {
    match call.type_of(value)? {
        value_type::STRING => call.string_of(value).map(|text| text.as_str().into()),
        value_type::BOOLEAN => call.bool_of(value).map(Into::into),
        value_type::BIGINT => call.i64_of(value).map(Into::into),
        value_type::NUMBER => call.f64_of(value).map(|number| {
            // The integers that a number of JavaScript represents exactly.
            let is_integer = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
            if is_integer {
                (number as i64).into()
            } else {
                number.into()
            }
        }),
        value_type::OBJECT => match call.elements(value) {
            Some(items) => {
                let depth = depth.checked_sub(1)?;
                let items = items.map(|item| attribute(call, item?, depth));
                items.collect::<Option<_>>().map(Attribute::Array)
            }
            None => call.bytes_of(value).map(Attribute::Bytes),
        },
        _ => None,
    }
}
