//! The key map, which maps the one-byte indexes in a record to attribute names.
//!
//! The process context carries two attributes for this (OTEP 4947, "Process-level reference
//! data"): the schema that the thread-local variable follows, and the list of keys.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::process_context::{Payload, Problem, Value};

/// Prefix of all process-context attributes that describe thread contexts. They describe the
/// mechanism and never appear in exported telemetry.
pub const THREADLOCAL: &str = "threadlocal.";
/// The process-context attribute that names the [`Schema`].
pub const SCHEMA_VERSION: &str = "threadlocal.schema_version";
/// The process-context attribute that holds the [`KeyMap`] as an array of strings.
pub const KEY_MAP: &str = "threadlocal.attribute_key_map";
/// Maximum number of keys: an index is one byte.
pub const MAX_KEYS: usize = 256;

/// The thread-local variable that points to a thread's record (OTEP 4947): 8 bytes, exported.
pub const SYMBOL: &str = "otel_thread_ctx_v1";
/// The thread-local symbol of the schema for Node.js, exported by an addon.
pub const NODEJS_SYMBOL: &str = "otel_thread_ctx_nodejs_v1";

/// A way in which the threads of a process, or other units of execution, carry their context.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schema {
    /// `tlsdesc_v1_dev`: the thread-local variable of OTEP 4947, by the name that readers accept
    /// now.
    TlsdescV1Dev,
    /// `tls_v1`: the same variable, under its final name.
    TlsV1,
    /// Any other schema, by name.
    Other(String),
}

impl Schema {
    /// Returns the schema's name, as in [`SCHEMA_VERSION`].
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::TlsdescV1Dev => "tlsdesc_v1_dev",
            Self::TlsV1 => "tls_v1",
            Self::Other(name) => name,
        }
    }

    /// Returns the schema with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        match name {
            "tlsdesc_v1_dev" => Self::TlsdescV1Dev,
            "tls_v1" => Self::TlsV1,
            other => Self::Other(other.into()),
        }
    }

    /// Returns the schema that a payload announces; `None` if it announces no string.
    #[must_use]
    pub fn of(payload: &Payload) -> Option<Self> {
        match payload.attribute(SCHEMA_VERSION)? {
            Value::String(name) => Some(Self::from_name(name)),
            _ => None,
        }
    }

    /// Returns whether a Node.js addon publishes contexts through [`NODEJS_SYMBOL`]:
    /// `nodejs_v1_dev`, or its future name `nodejs_v1`.
    #[must_use]
    pub fn is_nodejs(&self) -> bool {
        matches!(self.as_str(), "nodejs_v1_dev" | "nodejs_v1")
    }

    /// Returns whether contexts are the labels of goroutines, as `runtime/pprof` sets them:
    /// `go_pprof_labels_v1`.
    #[must_use]
    pub fn is_go_labels(&self) -> bool {
        self.as_str() == "go_pprof_labels_v1"
    }

    /// Returns whether each thread has a pointer to its record in `otel_thread_ctx_v1`.
    #[must_use]
    pub fn is_thread_local_record(&self) -> bool {
        matches!(self, Self::TlsdescV1Dev | Self::TlsV1)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The attribute names that records refer to by index, at most [`MAX_KEYS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyMap {
    names: Vec<String>,
    /// Indexes that have no certain name, in ascending order, see [`KeyMap::agreed`].
    contested: Vec<u8>,
    /// Number of names at the end that not all publishers had, see [`KeyMap::is_provisional`].
    provisional: usize,
}

impl KeyMap {
    /// Creates a key map of these names, in this order.
    ///
    /// # Errors
    /// [`KeyMapError::TooMany`] if there are more than [`MAX_KEYS`].
    pub fn new<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Result<Self, KeyMapError> {
        let keys = keys.into_iter().take(MAX_KEYS + 1);
        let keys: Vec<String> = keys.map(Into::into).collect();
        if keys.len() > MAX_KEYS {
            return Err(KeyMapError::TooMany);
        }
        Ok(Self::certain(keys))
    }

    fn certain(names: Vec<String>) -> Self {
        Self {
            names,
            ..Self::default()
        }
    }

    /// Returns the names on which the key maps of several publishers in one process agree, for
    /// records that may belong to each of them. An index is contested if two maps have different
    /// names for it, and if a map is `None`: its names are unknown. The name of a contested index is
    /// `#` with the index. A name that only some maps have is [provisional](Self::is_provisional).
    #[must_use]
    pub fn agreed<'m>(maps: impl IntoIterator<Item = Option<&'m Self>>) -> Self {
        let maps: Vec<Option<&Self>> = maps.into_iter().collect();
        let length = |map: &Option<&Self>| map.map_or(MAX_KEYS, |map| map.names.len());
        let certain = |map: &Option<&Self>| map.map_or(MAX_KEYS, Self::certain_length);
        let all = maps.iter().map(length).max().unwrap_or(0);
        let known_by_all = maps.iter().map(certain).min().unwrap_or(0);
        let mut agreed = Self::default();
        for index in (0..=u8::MAX).take(all) {
            // `None` for a name that is contested or unknown; maps without the index have no say.
            let mut names = maps.iter().filter_map(|map| match map {
                Some(map) if usize::from(index) >= map.names.len() => None,
                Some(map) if !map.is_contested(index) => Some(map.get(index)),
                _ => Some(None),
            });
            let first = names.next().flatten();
            match first.filter(|first| names.all(|name| name == Some(*first))) {
                Some(name) => agreed.names.push(name.into()),
                None => {
                    agreed.names.push(format!("#{index}"));
                    agreed.contested.push(index);
                }
            }
        }
        agreed.provisional = all - known_by_all;
        agreed
    }

    /// Returns these names as far as no record of a former publisher has the same index for another
    /// name: its context is gone, but its records may still be attached. `None` if its names are
    /// unknown. Indexes that it alone has are contested as well.
    #[must_use]
    pub fn contested_by(&self, former: Option<&Self>) -> Self {
        let mut names = self.clone();
        let end = former.map_or(MAX_KEYS, |former| former.names.len());
        for index in (0..=u8::MAX).take(end) {
            let is_same = former.is_some_and(|former| former.get(index) == self.get(index));
            if is_same {
                continue;
            }
            let name = format!("#{index}");
            match names.names.get_mut(usize::from(index)) {
                Some(known) => *known = name,
                None => names.names.push(name),
            }
            if let Err(position) = names.contested.binary_search(&index) {
                names.contested.insert(position, index);
            }
        }
        names.provisional = names.names.len() - self.certain_length();
        names
    }

    fn certain_length(&self) -> usize {
        self.names.len() - self.provisional
    }

    /// Returns whether a record with this index tells that the key map may be out of date: one of
    /// several publishers had no name for it. It publishes a name before it uses the index, so the
    /// name is certain if the key maps, read again after the record, are still the same.
    #[must_use]
    pub fn is_provisional(&self, index: u8) -> bool {
        (self.certain_length()..self.names.len()).contains(&usize::from(index))
    }

    /// Returns the key map without [provisional](Self::is_provisional) names.
    #[must_use]
    pub fn without_provisional(&self) -> Self {
        let kept = self.certain_length();
        let contested = self.contested.iter().copied();
        Self {
            names: self.names[..kept].to_vec(),
            contested: contested.filter(|it| usize::from(*it) < kept).collect(),
            provisional: 0,
        }
    }

    /// Returns the indexes that have no certain name, in ascending order: see [`KeyMap::agreed`].
    #[must_use]
    pub fn contested(&self) -> &[u8] {
        &self.contested
    }

    /// Returns whether this index has no certain name.
    #[must_use]
    pub fn is_contested(&self, index: u8) -> bool {
        self.contested.binary_search(&index).is_ok()
    }

    /// Returns the key map that a payload announces; `Ok(None)` if it announces none.
    ///
    /// # Errors
    /// If the attribute is not an array of at most [`MAX_KEYS`] strings.
    pub fn of(payload: &Payload) -> Result<Option<Self>, KeyMapError> {
        let Some(value) = payload.attribute(KEY_MAP) else {
            return Ok(None);
        };
        let Value::Array(items) = value else {
            return Err(KeyMapError::NotAnArray);
        };
        if items.len() > MAX_KEYS {
            return Err(KeyMapError::TooMany);
        }
        let name = |(position, item): (usize, &Value)| match item {
            Value::String(name) => Ok(name.clone()),
            _ => Err(KeyMapError::NotAString { position }),
        };
        let keys = items.iter().enumerate().map(name);
        Ok(Some(Self::certain(keys.collect::<Result<_, _>>()?)))
    }

    /// Removes the names beyond [`MAX_KEYS`] from the key map of a payload, and says so if there were
    /// any. Publishers must not write them; a reader can use the others.
    pub fn take_excess(payload: &mut Payload) -> Option<Problem> {
        let attributes = payload.attributes.iter_mut();
        let mut maps = attributes.filter(|(key, _)| key == KEY_MAP);
        match maps.next() {
            Some((_, Value::Array(names))) if names.len() > MAX_KEYS => {
                let number = names.len();
                names.truncate(MAX_KEYS);
                Some(Problem::TooManyKeys(number))
            }
            _ => None,
        }
    }

    /// Returns the name at `index`: `#` with the index if it is contested.
    #[must_use]
    pub fn get(&self, index: u8) -> Option<&str> {
        self.names.get(usize::from(index)).map(String::as_str)
    }

    /// Returns all names, in the order of their indexes.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the attribute value to publish under [`KEY_MAP`].
    #[must_use]
    pub fn to_value(&self) -> Value {
        Value::Array(self.names.iter().cloned().map(Value::String).collect())
    }
}

/// The reason why a [`KEY_MAP`] attribute is not a key map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyMapError {
    /// More than [`MAX_KEYS`] entries.
    TooMany,
    /// The attribute's value is not an array.
    NotAnArray,
    /// An entry is not a string.
    NotAString {
        /// The index of the entry, from 0.
        position: usize,
    },
}

impl fmt::Display for KeyMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(
                f,
                "{KEY_MAP} has more than {MAX_KEYS} keys; an index is one byte"
            ),
            Self::NotAnArray => write!(f, "{KEY_MAP} is not an array of strings"),
            Self::NotAString { position } => {
                write!(f, "{KEY_MAP}: entry {position} is not a string")
            }
        }
    }
}

impl core::error::Error for KeyMapError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    fn payload(value: Value) -> Payload {
        Payload {
            resource: vec![],
            attributes: vec![(KEY_MAP.into(), value)],
        }
    }

    #[test]
    fn a_key_map_survives_its_attribute() {
        let keys = KeyMap::new(["http.route", "db.name"]).unwrap();
        let read = KeyMap::of(&payload(keys.to_value())).unwrap().unwrap();
        assert_eq!(read, keys);
        assert_eq!((read.get(1), read.get(2)), (Some("db.name"), None));
        assert_eq!(KeyMap::of(&Payload::default()), Ok(None));
    }

    #[test]
    fn attributes_that_are_not_key_maps_are_distinguished() {
        assert_eq!(
            KeyMap::of(&payload(Value::Int(1))),
            Err(KeyMapError::NotAnArray)
        );
        let mixed = Value::Array(vec![Value::String("a".into()), Value::Bool(true)]);
        assert_eq!(
            KeyMap::of(&payload(mixed)),
            Err(KeyMapError::NotAString { position: 1 })
        );
        assert!(KeyMap::new((0..256).map(|n| n.to_string())).is_ok());
        assert_eq!(
            KeyMap::new((0..257).map(|n| n.to_string())),
            Err(KeyMapError::TooMany)
        );
        let many = Value::Array(vec![Value::String("a".into()); 257]);
        assert_eq!(KeyMap::of(&payload(many)), Err(KeyMapError::TooMany));
    }

    #[test]
    fn names_beyond_the_last_index_are_taken_out() {
        for number in [0, 1, 256, 257, 1000] {
            let names = Value::Array((0..number).map(Value::Int).collect());
            let mut payload = payload(names.clone());
            payload.resource = payload.attributes.clone();
            let excess = (number > 256).then_some(Problem::TooManyKeys(number as usize));
            assert_eq!(KeyMap::take_excess(&mut payload), excess);
            let kept = Value::Array((0..number.min(256)).map(Value::Int).collect());
            assert_eq!(payload.attributes, [(KEY_MAP.into(), kept)]);
            assert_eq!(payload.resource, [(KEY_MAP.into(), names)]);
        }
        assert_eq!(KeyMap::take_excess(&mut payload(Value::Int(7))), None);
        assert_eq!(KeyMap::take_excess(&mut Payload::default()), None);
    }

    #[test]
    fn several_maps_name_only_what_they_agree_on() {
        let map = |names: &[&str]| KeyMap::new(names.iter().copied()).unwrap();
        let (one, other) = (map(&["a", "b", "c"]), map(&["a", "x"]));
        for maps in [[&one, &other], [&other, &one]] {
            let agreed = KeyMap::agreed(maps.map(Some));
            assert_eq!(agreed.names(), ["a", "#1", "c"]);
            assert_eq!(agreed.contested(), [1]);
            let contested = [0, 1, 2, 3].map(|index| agreed.is_contested(index));
            assert_eq!(contested, [false, true, false, false]);
            let provisional = [0, 1, 2, 3].map(|index| agreed.is_provisional(index));
            assert_eq!(provisional, [false, false, true, false]);
            let certain = agreed.without_provisional();
            assert_eq!(certain.names(), ["a", "#1"]);
            assert_eq!(certain.contested(), [1]);
            assert!(!certain.is_provisional(1));
            // With a third that has none, all are.
            let third = KeyMap::agreed([Some(&agreed), Some(&KeyMap::default())]);
            assert_eq!(third.names(), agreed.names());
            let provisional = [0, 1, 2].map(|index| third.is_provisional(index));
            assert_eq!(provisional, [true; 3]);
            assert_eq!(third.without_provisional(), KeyMap::default());
        }
        assert_eq!(KeyMap::agreed([Some(&one)]), one);
        assert_eq!(KeyMap::agreed([Some(&one), Some(&one)]), one);
        assert_eq!(KeyMap::agreed([]), KeyMap::default());

        // What is contested once stays so, even if another map has the name of a contested index.
        let agreed = KeyMap::agreed([Some(&one), Some(&other)]);
        let named = map(&["a", "#1", "c"]);
        assert_eq!(KeyMap::agreed([Some(&agreed), Some(&named)]), agreed);

        // Of a publisher whose names are unknown, a record may have each index.
        let unknown = KeyMap::agreed([Some(&one), None]);
        assert_eq!(
            (unknown.names().len(), unknown.contested().len()),
            (256, 256)
        );
        assert_eq!(unknown.get(255), Some("#255"));
    }

    #[test]
    fn a_former_publisher_contests_the_names_that_it_did_not_have() {
        let map = |names: &[&str]| KeyMap::new(names.iter().copied()).unwrap();
        let names = map(&["a", "b"]);
        for former in [&[][..], &["a"], &["a", "b"]] {
            assert_eq!(names.contested_by(Some(&map(former))), names, "{former:?}");
        }
        let contested = names.contested_by(Some(&map(&["a", "x", "c"])));
        assert_eq!(contested.names(), ["a", "#1", "#2"]);
        assert_eq!(contested.contested(), [1, 2]);
        // The publisher may register a name for the last one.
        let provisional = [0, 1, 2].map(|index| contested.is_provisional(index));
        assert_eq!(provisional, [false, false, true]);
        let twice = contested.contested_by(Some(&map(&["y"])));
        assert_eq!(
            (twice.names()[0].as_str(), twice.contested()),
            ("#0", &[0, 1, 2][..])
        );

        let unknown = names.contested_by(None);
        assert_eq!(
            (unknown.names().len(), unknown.contested().len()),
            (256, 256)
        );
    }

    #[test]
    fn schemas_go_by_their_published_names() {
        for name in ["tlsdesc_v1_dev", "tls_v1"] {
            assert_eq!(Schema::from_name(name).to_string(), name);
            assert!(Schema::from_name(name).is_thread_local_record());
        }
        assert!(!Schema::from_name("nodejs_v1_dev").is_thread_local_record());
    }
}
