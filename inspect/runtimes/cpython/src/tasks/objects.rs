//! Reads objects of the target. The names of their types distinguish them.

use std::collections::HashMap;

use otelctx_reader::remote::Memory;
use otelctx_reader::runtime::RuntimeError;

use super::layout::{Attributes, Keys};
use crate::code;
use crate::layout::Layout;
use crate::structure::Structure;

/// `PyObject.ob_type`.
pub(super) const TYPE: u64 = 8;
/// The first field of an object, after its type.
pub(super) const FIRST: u64 = 16;
/// `tp_name`, `tp_basicsize`, `tp_base` and `tp_dictoffset` of `PyTypeObject` (`Include/cpython/object.h`).
const TYPE_NAME: u64 = 24;
const TYPE_SIZE: u64 = 32;
const TYPE_BASE: u64 = 256;
const TYPE_DICTIONARY: u64 = 288;
/// `used`, `mask` and `table` of `PySetObject`.
const USED: u64 = 24;
const MASK: u64 = 32;
const TABLE: u64 = 40;
/// `ma_keys` and `ma_values` of `PyDictObject`.
const KEYS: u64 = 32;
const VALUES: u64 = 40;
/// Maximum number of keys that objects share: `SHARED_KEYS_MAX_SIZE` is 30.
const MAX_SHARED_KEYS: u64 = 64;
/// Maximum number of a type's bases, one of the other.
const MAX_BASES: usize = 64;
/// Maximum size of a type's name, in bytes.
const MAX_TYPE_NAME: usize = 128;
/// Maximum number of types that are kept.
const MAX_TYPES: usize = 4096;
/// Maximum number of entries of a dictionary or set, used or not: four times the number of tasks kept.
const MAX_ENTRIES: u64 = 64 << 10;
/// Maximum number of characters of a name.
const MAX_NAME: u64 = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Task,
    Coroutine,
    Generator,
    /// The result of `__await__` of a coroutine, or of methods of an asynchronous generator: its first
    /// field is the object that it belongs to.
    Wrapper,
    Dictionary,
    Set,
    WeakReference,
    Module,
    Text,
    Integer,
    Context,
    ContextVariable,
    /// `BitmapNode`, `ArrayNode` and `CollisionNode` of `Python/hamt.c`.
    BitmapNode,
    ArrayNode,
    CollisionNode,
    /// `otelctx.Context` and `otelctx.Entry`.
    OwnContext,
    OwnEntry,
    Other(String),
}

/// An entry of a dictionary.
struct Entry {
    /// `None` in dictionaries whose keys are strings, from 3.11 on.
    hash: Option<u64>,
    key: u64,
    value: u64,
}

/// Reads objects. Each type is read once.
pub(super) struct Objects<'m> {
    pub(super) memory: &'m dyn Memory,
    layout: &'m Layout,
    /// The expected size of a task, in bytes.
    task_size: u64,
    kinds: HashMap<u64, Kind>,
}

impl<'m> Objects<'m> {
    pub(super) fn new(memory: &'m dyn Memory, layout: &'m Layout, task_size: u64) -> Self {
        Self {
            memory,
            layout,
            task_size,
            kinds: HashMap::new(),
        }
    }

    pub(super) fn kind(&mut self, address: u64) -> Result<Kind, RuntimeError> {
        let object_type = self.memory.read_u64(address.wrapping_add(TYPE))?;
        self.kind_of(object_type)
    }

    pub(super) fn kind_of(&mut self, object_type: u64) -> Result<Kind, RuntimeError> {
        if let Some(known) = self.kinds.get(&object_type) {
            return Ok(known.clone());
        }
        let kind = self.read_kind(object_type)?;
        if self.kinds.len() == MAX_TYPES {
            self.kinds.clear();
        }
        self.kinds.insert(object_type, kind.clone());
        Ok(kind)
    }

    fn read_kind(&self, object_type: u64) -> Result<Kind, RuntimeError> {
        let fields = [TYPE_NAME, TYPE_SIZE, TYPE_BASE];
        let structure = Structure::read(self.memory, object_type, &fields)?;
        let name = self.c_string(structure.pointer(TYPE_NAME))?;
        Ok(match name.rsplit('.').next().unwrap_or(&name) {
            "coroutine" => Kind::Coroutine,
            "generator" | "async_generator" => Kind::Generator,
            "coroutine_wrapper" | "async_generator_asend" | "async_generator_athrow" => {
                Kind::Wrapper
            }
            "dict" => Kind::Dictionary,
            "set" => Kind::Set,
            "weakref" | "ReferenceType" => Kind::WeakReference,
            "module" => Kind::Module,
            "str" => Kind::Text,
            "int" => Kind::Integer,
            "Context" if name.starts_with("otelctx.") => Kind::OwnContext,
            "Entry" if name.starts_with("otelctx.") => Kind::OwnEntry,
            "Context" => Kind::Context,
            "ContextVar" => Kind::ContextVariable,
            "hamt_bitmap_node" => Kind::BitmapNode,
            "hamt_array_node" => Kind::ArrayNode,
            "hamt_collision_node" => Kind::CollisionNode,
            _ if self.is_task(object_type)? => Kind::Task,
            _ => Kind::Other(name),
        })
    }

    /// Returns whether a type is asyncio's task in C, or has it as a base.
    fn is_task(&self, object_type: u64) -> Result<bool, RuntimeError> {
        let mut next = object_type;
        for _ in 0..MAX_BASES {
            if next == 0 {
                break;
            }
            let fields = [TYPE_NAME, TYPE_SIZE, TYPE_BASE];
            let structure = Structure::read(self.memory, next, &fields)?;
            if self.c_string(structure.pointer(TYPE_NAME))? == "_asyncio.Task" {
                let (size, expected) = (structure.pointer(TYPE_SIZE), self.task_size);
                let unknown = || {
                    let sizes = format!("{size} bytes, not {expected}");
                    RuntimeError::new(format!("its tasks have an unknown layout: {sizes}"))
                };
                return (size == expected).then_some(true).ok_or_else(unknown);
            }
            next = structure.pointer(TYPE_BASE);
        }
        Ok(false)
    }

    fn c_string(&self, address: u64) -> Result<String, RuntimeError> {
        let bytes = self.memory.read_c_string(address, MAX_TYPE_NAME)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Checks the kind of an object.
    pub(super) fn expect(&mut self, address: u64, kind: &Kind) -> Result<(), RuntimeError> {
        let found = self.kind(address)?;
        let unexpected = || {
            RuntimeError::new(format!(
                "the object at {address:#x} is not the expected one: {found:?}, not {kind:?}"
            ))
        };
        (found == *kind).then_some(()).ok_or_else(unexpected)
    }

    pub(super) fn string(&mut self, address: u64) -> Result<String, RuntimeError> {
        self.expect(address, &Kind::Text)?;
        code::text(self.memory, self.layout, address, MAX_NAME)
    }

    /// The name of a task. From 3.13 on, it is a number until the program requests it as a string.
    pub(super) fn task_name(&mut self, address: u64) -> Result<String, RuntimeError> {
        /// `PyLongObject.long_value` of 3.12: the number of digits in bits 3 and up, then digits of 30 bits.
        const TAG: u64 = 16;
        const DIGITS: u64 = 24;
        if self.kind(address)? != Kind::Integer {
            return self.string(address);
        }
        let structure = Structure::read(self.memory, address, &[TAG, DIGITS])?;
        let digit = |shift: u32| structure.pointer(DIGITS) >> shift & 0x3fff_ffff;
        let number = match structure.pointer(TAG) >> 3 {
            0 => 0,
            1 => digit(0),
            2 => digit(0) | digit(32) << 30,
            _ => return Err(RuntimeError::new("a task has an impossible number")),
        };
        Ok(format!("Task-{number}"))
    }

    /// The value of a key in a dictionary whose keys are strings. `None` if there is no such key.
    pub(super) fn get(
        &mut self,
        dictionary: u64,
        keys: Keys,
        key: &str,
    ) -> Result<Option<u64>, RuntimeError> {
        for (candidate, value) in self.items(dictionary, keys)? {
            if self.is_text(candidate, key) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The keys and values of a dictionary (`Objects/dictobject.c`).
    pub(super) fn items(
        &mut self,
        dictionary: u64,
        keys: Keys,
    ) -> Result<Vec<(u64, u64)>, RuntimeError> {
        let entries = self.combined(dictionary, keys)?.into_iter();
        let pairs = entries.map(|entry| (entry.key, entry.value));
        let used = pairs.filter(|(key, value)| *key != 0 && *value != 0);
        Ok(used.collect())
    }

    /// The value of a number in a dictionary whose keys are numbers.
    pub(super) fn by_number(
        &mut self,
        dictionary: u64,
        keys: Keys,
        number: u64,
    ) -> Result<Option<u64>, RuntimeError> {
        /// The modulus of the hash of a number (`_PyHASH_MODULUS`).
        const MODULUS: u64 = (1 << 61) - 1;
        let entries = self.combined(dictionary, keys)?.into_iter();
        let hash = Some(number % MODULUS);
        let mut used = entries.filter(|it| it.key != 0 && it.value != 0 && it.hash == hash);
        Ok(used.next().map(|entry| entry.value))
    }

    /// The entries of a dictionary that does not share its keys.
    fn combined(&mut self, dictionary: u64, keys: Keys) -> Result<Vec<Entry>, RuntimeError> {
        self.expect(dictionary, &Kind::Dictionary)?;
        let structure = Structure::read(self.memory, dictionary, &[KEYS, VALUES])?;
        if structure.pointer(VALUES) != 0 {
            return Err(RuntimeError::new("a dictionary shares its keys"));
        }
        self.entries(structure.pointer(KEYS), keys, MAX_ENTRIES)
    }

    /// The entries of a dictionary's keys, used or not; an error if there are more than `most`.
    fn entries(&self, address: u64, keys: Keys, most: u64) -> Result<Vec<Entry>, RuntimeError> {
        let structure = Structure::read(self.memory, address, &[8, 24, 32])?;
        let (start, count, has_hash) = match keys {
            Keys::Sized => {
                let size = structure.pointer(8);
                let bytes = match size {
                    0..=0xff => 1,
                    0x100..=0xffff => 2,
                    _ => 4,
                };
                let indices = size.min(MAX_ENTRIES * 2) * bytes;
                (40 + indices, structure.pointer(32), true)
            }
            Keys::Logarithmic => {
                let indices = 1_u64.checked_shl(structure.byte(9).into()).unwrap_or(0);
                (32 + indices, structure.pointer(24), structure.byte(10) == 0)
            }
        };
        if count > most {
            let reason = format!("a dictionary has more than {most} entries");
            return Err(RuntimeError::new(reason));
        }
        let words = if has_hash { 3 } else { 2 };
        let entries = self.words(address.wrapping_add(start), count * words)?;
        let entries = entries.chunks_exact(words as usize).map(|entry| Entry {
            hash: has_hash.then_some(entry[0]),
            key: entry[words as usize - 2],
            value: entry[words as usize - 1],
        });
        Ok(entries.collect())
    }

    /// The value of an attribute of an object in Python, which its instance has. `None` if it has none.
    pub(super) fn attribute(
        &mut self,
        object: u64,
        attributes: Attributes,
        keys: Keys,
        name: &str,
    ) -> Result<Option<u64>, RuntimeError> {
        let (values, dictionary) = self.attributes(object, attributes)?;
        if dictionary == 0 {
            let object_type = self.memory.read_u64(object.wrapping_add(TYPE))?;
            return self.shared_attribute(object_type, values, keys, name);
        }
        self.expect(dictionary, &Kind::Dictionary)?;
        let structure = Structure::read(self.memory, dictionary, &[KEYS, VALUES])?;
        match structure.pointer(VALUES) {
            0 => self.get(dictionary, keys, name),
            values => {
                let values = attributes.first_value(values);
                self.value(structure.pointer(KEYS), values, keys, name)
            }
        }
    }

    /// The value of an attribute among those of an object whose type has their keys: `ht_cached_keys`, whose place
    /// depends on the version (`PyHeapTypeObject`).
    fn shared_attribute(
        &mut self,
        object_type: u64,
        values: u64,
        keys: Keys,
        name: &str,
    ) -> Result<Option<u64>, RuntimeError> {
        /// All structures that come before it are larger than this, and it is among the words after them.
        const START: u64 = 800;
        const WORDS: u64 = 24;
        let candidates = self.words(object_type.wrapping_add(START), WORDS)?;
        for candidate in candidates.into_iter().filter(|it| *it != 0 && it % 8 == 0) {
            if let Ok(Some(value)) = self.value(candidate, values, keys, name) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The value with this name, by keys that objects share.
    fn value(
        &mut self,
        shared: u64,
        values: u64,
        keys: Keys,
        name: &str,
    ) -> Result<Option<u64>, RuntimeError> {
        let entries = self.entries(shared, keys, MAX_SHARED_KEYS)?;
        for (index, entry) in entries.iter().enumerate() {
            if entry.key != 0 && self.is_text(entry.key, name) {
                let value = values.wrapping_add(8 * index as u64);
                let value = self.memory.read_u64(value)?;
                return Ok((value != 0).then_some(value));
            }
        }
        Ok(None)
    }

    /// Returns whether an object is this string.
    fn is_text(&mut self, address: u64, text: &str) -> bool {
        let length = self.memory.read_u64(address.wrapping_add(FIRST));
        length == Ok(text.len() as u64)
            && self.kind(address) == Ok(Kind::Text)
            && self.string(address).is_ok_and(|it| it == text)
    }

    /// The objects among the first 1,024 entries of a set, and the number of others.
    pub(super) fn set(&mut self, address: u64) -> Result<(Vec<u64>, u64), RuntimeError> {
        const MAX_SMALL_SET: u64 = 1024;
        /// The hash of a deleted entry.
        const DELETED: u64 = u64::MAX;
        self.expect(address, &Kind::Set)?;
        let structure = Structure::read(self.memory, address, &[USED, MASK, TABLE])?;
        let (used, mask) = (structure.pointer(USED), structure.pointer(MASK));
        if used > mask {
            let reason = format!("the set at {address:#x} has more objects than entries");
            return Err(RuntimeError::new(reason));
        }
        let count = mask.saturating_add(1).min(MAX_SMALL_SET);
        let entries = self.words(structure.pointer(TABLE), count * 2)?;
        let entries = entries.chunks_exact(2);
        let all = entries.filter(|entry| entry[0] != 0 && entry[1] != DELETED);
        let all: Vec<u64> = all.map(|entry| entry[0]).collect();
        let others = used.saturating_sub(all.len() as u64);
        Ok((all, others))
    }

    /// The objects that a `WeakSet` refers to, and the number of others, which are unknown.
    pub(super) fn weak_set(
        &mut self,
        address: u64,
        attributes: Attributes,
        keys: Keys,
    ) -> Result<(Vec<u64>, u64), RuntimeError> {
        let (mut found, mut unknown) = (Vec::new(), 0);
        for set in self.sets_of(address, attributes, keys)? {
            let structure = Structure::read(self.memory, set, &[USED, MASK, TABLE])?;
            let (used, mask) = (structure.pointer(USED), structure.pointer(MASK));
            let count = mask.saturating_add(1);
            if count > 2 * MAX_ENTRIES {
                let reason = format!("its set of tasks has more than {} entries", 2 * MAX_ENTRIES);
                return Err(RuntimeError::new(reason));
            }
            let entries = self.words(structure.pointer(TABLE), count * 2)?;
            let before = found.len();
            for entry in entries.chunks_exact(2) {
                // Deleted entries have keys of another type, and so have entries of `_iterating`.
                if entry[0] == 0 || self.kind(entry[0]) != Ok(Kind::WeakReference) {
                    continue;
                }
                found.push(self.memory.read_u64(entry[0].wrapping_add(FIRST))?);
            }
            let references = (found.len() - before) as u64;
            if references > 0 {
                unknown += used.abs_diff(references);
            }
        }
        Ok((found, unknown))
    }

    /// The addresses of the values of an object's attributes, and of its dictionary; one of them may be 0.
    fn attributes(&self, address: u64, attributes: Attributes) -> Result<(u64, u64), RuntimeError> {
        let before = |words: u64| self.memory.read_u64(address.wrapping_sub(8 * words));
        let object_type = self.memory.read_u64(address.wrapping_add(TYPE))?;
        Ok(match attributes {
            Attributes::Dictionary => {
                let offset = object_type.wrapping_add(TYPE_DICTIONARY);
                let offset = self.memory.read_u64(offset)?;
                (0, self.memory.read_u64(address.wrapping_add(offset))?)
            }
            Attributes::Two => (before(4)?, before(3)?),
            Attributes::One => match before(3)? {
                values if values & 1 == 1 => (values.wrapping_add(1), 0),
                dictionary => (0, dictionary),
            },
            Attributes::Inline => {
                let size = self.memory.read_u64(object_type.wrapping_add(TYPE_SIZE))?;
                let values = address.wrapping_add(size);
                (attributes.first_value(values), before(3)?)
            }
        })
    }

    /// The sets of a `WeakSet`: `data` and, unless it has a dictionary of its own, `_iterating`.
    fn sets_of(
        &mut self,
        address: u64,
        attributes: Attributes,
        keys: Keys,
    ) -> Result<Vec<u64>, RuntimeError> {
        /// Number of its attributes.
        const COUNT: u64 = 4;
        let no_data = || RuntimeError::new("its set of tasks has no data");
        let (mut values, dictionary) = self.attributes(address, attributes)?;
        if dictionary != 0 {
            self.expect(dictionary, &Kind::Dictionary)?;
            values = self.memory.read_u64(dictionary.wrapping_add(VALUES))?;
            if values == 0 {
                let set = self.get(dictionary, keys, "data")?.ok_or_else(no_data)?;
                self.expect(set, &Kind::Set)?;
                return Ok(vec![set]);
            }
            values = attributes.first_value(values);
        }
        let mut sets = Vec::new();
        for value in self.words(values, COUNT)? {
            if value != 0 && self.kind(value)? == Kind::Set {
                sets.push(value);
            }
        }
        if sets.is_empty() {
            return Err(no_data());
        }
        Ok(sets)
    }

    /// Words of memory; the caller limits their number.
    pub(super) fn words(&self, address: u64, count: u64) -> Result<Vec<u64>, RuntimeError> {
        let bytes = self.memory.read_vec(address, count * 8, usize::MAX)?;
        let words = bytes.as_chunks().0.iter();
        Ok(words.map(|word| u64::from_ne_bytes(*word)).collect())
    }
}
