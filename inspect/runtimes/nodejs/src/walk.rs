//! Walks from the thread-local structure that a Node.js addon publishes to the record of the active
//! context.
//!
//! Node.js keeps the value of each `AsyncLocalStorage` in a map that V8 passes from one asynchronous
//! call to the next (`AsyncContextFrame`, lib/internal/async_context_frame.js). The structure has the
//! address of that map, the addon's key in it, and the offset of the record in an object of the addon.
//! V8's heap is read as it is between two instructions of the isolate's thread: objects that the
//! garbage collector moves are found by their forwarding addresses.

use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::remote::{Memory, MemoryError};
use otelctx_reader::runtime::RuntimeError;

/// Size of the structure, in bytes.
pub(crate) const PUBLISHED_SIZE: usize = 32;
/// V8 marks pointers to objects by their lowest bit (src/objects/tagged.h).
const TAG: u64 = 1;
/// Size of a word of V8's heap, in bytes. It is 4 with compressed pointers (`kTaggedSize`, src/common/globals.h).
const SIZE_OF_WORD: u64 = 8;
/// Maximum number of entries of a map. A program has a few `AsyncLocalStorage`s.
const MAX_ENTRIES: u64 = 1 << 16;
/// Maximum number of entries in a bucket that are read.
const MAX_CHAIN: usize = 64;
/// Words of an `OrderedHashMap` before its buckets: map, length, elements, deleted elements, buckets
/// (src/objects/ordered-hash-table.h).
const HEADER_WORDS: u64 = 5;
/// Words of an entry: key, value, and the index of the next entry in the bucket.
const ENTRY_WORDS: u64 = 3;
/// Size of the smallest map in words, which are read at once: V8 makes none for fewer than four
/// entries, in two buckets (`OrderedHashTable::kInitialCapacity`). It may end with its page.
const SMALLEST: usize = (HEADER_WORDS + 2 + 4 * ENTRY_WORDS) as usize;
/// Offset of the table in a `JSMap`, in words (src/objects/js-collection.h).
const MAP_TABLE: usize = 3;
/// Number of words read from the start of a `JSMap`, in one read with its table, which mostly follows
/// it: V8 allocates them in this order, the map with room for more fields at first.
const WITH_TABLE: usize = 38;

/// The structure, as the addon publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Address of the isolate's word with the map; 0 while the structure must not be used.
    cped_slot: u64,
    /// Address of a slot with the key, which the garbage collector updates.
    als_handle: u64,
    /// The key's hash.
    als_identity_hash: i32,
    /// Offset of the record's address in an object of the addon, in bytes; 0 in older addons.
    record_slot_offset: u8,
    /// `undefined` as a tagged word, or, in older addons, the address of a slot with it.
    undefined: u64,
}

/// The location of a record's address, from an object of the addon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordPlace {
    /// The structure has the offset, which has precedence over all others.
    Published,
    /// The object has it at this offset, in bytes.
    InObject(u64),
    /// A native object has it at offset `native`; its address is at offset `object` in the object.
    InNative { object: u64, native: u64 },
    /// Pointers in V8's heap are compressed to four bytes, which is not supported.
    Compressed,
}

impl RecordPlace {
    /// Reads the attributes of the process context, in which older addons publish the offsets.
    /// `@datadog/pprof` 5.18 has a native object, 5.19 only the object. The first draft of the schema
    /// had other names, and the record's address at a fixed offset in the native object.
    pub(crate) fn announced(attributes: &Attributes) -> Self {
        let number = |name: &str| {
            let (_, value) = attributes.iter().find(|(key, _)| key == name)?;
            match value {
                Value::Int(number) => u64::try_from(*number).ok(),
                Value::String(number) => number.parse().ok(),
                _ => None,
            }
        };
        let wrapped = number("threadlocal.wrapped_object_offset");
        let native = number("threadlocal.native_wrap_fields_offset");
        let is_compressed = |name| number(name).is_some_and(|size| size != SIZE_OF_WORD);
        if is_compressed("threadlocal.tagged_size")
            || is_compressed("threadlocal.nodejs_v1.tagged_size")
        {
            return Self::Compressed;
        }
        const DRAFT: &str = "threadlocal.nodejs_v1.wrapped_object_offset";
        if let Some(object) = number(DRAFT) {
            return Self::InNative { object, native: 24 };
        }
        let in_object = number("threadlocal.js_object_record_offset");
        match (in_object, wrapped, native) {
            (Some(offset), ..) => Self::InObject(offset),
            (None, Some(object), Some(native)) => Self::InNative { object, native },
            _ => Self::Published,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walked {
    /// The addon has closed its gate, or has not opened it yet.
    Unpublished,
    /// No asynchronous context is active.
    NoFrame,
    /// The active context has no value of the addon.
    NotInFrame,
    /// The addon's value is `undefined`: the context was left.
    Detached,
    /// The object has freed its record.
    TornDown,
    /// The address of the record.
    Record(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Published,
    Undefined,
    Frame,
    Table,
    Key,
    Entry,
    Record,
}

/// A step that failed, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Unreadable(Step, MemoryError),
    /// The words are not those of such an object.
    Inconsistent(Step),
    /// [`RecordPlace::Compressed`].
    Compressed,
}

impl Walked {
    /// Its name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unpublished => "unpublished",
            Self::NoFrame => "no_frame",
            Self::NotInFrame => "not_in_frame",
            Self::Detached => "detached",
            Self::TornDown => "torn_down",
            Self::Record(_) => "record",
        }
    }
}

impl Broken {
    pub(crate) fn into_error(self) -> RuntimeError {
        let what = |step| match step {
            Step::Published => "what its addon publishes",
            Step::Undefined => "V8's undefined",
            Step::Frame => "the active asynchronous context",
            Step::Table | Step::Entry => "the map of the asynchronous context",
            Step::Key => "the key of the addon",
            Step::Record => "the object of the addon",
        };
        RuntimeError::new(match self {
            Self::Unreadable(step, error) => format!("{}: {error}", what(step)),
            Self::Inconsistent(step) => format!("{} is inconsistent", what(step)),
            Self::Compressed => "V8 with compressed pointers is not supported".to_owned(),
        })
    }
}

impl Published {
    pub(crate) fn read(memory: &dyn Memory, address: u64) -> Result<Self, Broken> {
        let mut words = [[0; 8]; PUBLISHED_SIZE / 8];
        let read = memory.read(address, words.as_flattened_mut());
        read.map_err(|error| Broken::Unreadable(Step::Published, error))?;
        let [cped_slot, als_handle, key, undefined] = words;
        let [hash @ .., record_slot_offset, _, _, _] = key;
        Ok(Self {
            cped_slot: u64::from_ne_bytes(cped_slot),
            als_handle: u64::from_ne_bytes(als_handle),
            als_identity_hash: i32::from_ne_bytes(hash),
            record_slot_offset,
            undefined: u64::from_ne_bytes(undefined),
        })
    }
}

/// Follows the structure at `address` to the record of the active context.
pub(crate) fn walk(
    memory: &dyn Memory,
    address: u64,
    place: RecordPlace,
) -> Result<Walked, Broken> {
    let published = Published::read(memory, address)?;
    if published.cped_slot == 0 {
        return Ok(Walked::Unpublished);
    }
    if place == RecordPlace::Compressed {
        return Err(Broken::Compressed);
    }
    let heap = Heap { memory };
    let undefined = match published.undefined & TAG {
        TAG => published.undefined,
        _ => heap.word(Step::Undefined, published.undefined)?,
    };
    let frame = heap.word(Step::Frame, published.cped_slot)?;
    if frame == undefined {
        return Ok(Walked::NoFrame);
    }
    let table = heap.table(frame)?;
    let key = heap.word(Step::Key, published.als_handle)?;
    let Some(value) = heap.look_up(&table, key, published.als_identity_hash)? else {
        return Ok(Walked::NotInFrame);
    };
    if value == undefined {
        return Ok(Walked::Detached);
    }
    let record = match (published.record_slot_offset, place) {
        (0, RecordPlace::Published) => return Err(Broken::Inconsistent(Step::Published)),
        (1.., _) => heap.field(Step::Record, value, published.record_slot_offset.into())?,
        (0, RecordPlace::InObject(offset)) => heap.internal_field(value, offset)?,
        (0, RecordPlace::InNative { object, native }) => {
            match heap.internal_field(value, object)? {
                0 => 0,
                wrapper => heap.word(Step::Record, wrapper.wrapping_add(native))?,
            }
        }
        (0, RecordPlace::Compressed) => return Err(Broken::Compressed),
    };
    Ok(match record {
        0 => Walked::TornDown,
        record => Walked::Record(record),
    })
}

/// An `OrderedHashMap`.
struct Table {
    start: u64,
    beginning: [u64; SMALLEST],
}

/// V8's heap without compressed pointers.
struct Heap<'m> {
    memory: &'m dyn Memory,
}

impl Heap<'_> {
    fn word(&self, step: Step, address: u64) -> Result<u64, Broken> {
        let word = self.memory.read_u64(address);
        word.map_err(|error| Broken::Unreadable(step, error))
    }

    /// The word at an offset, in bytes, of the object that a tagged word points to.
    fn field(&self, step: Step, object: u64, offset: u64) -> Result<u64, Broken> {
        let address = untagged(step, object)?;
        self.word(step, address.wrapping_add(offset))
    }

    /// An internal field of an object. Addons that publish 24 bytes for the first one mean 32 from Node.js 23 on,
    /// where an object has another word before it.
    fn internal_field(&self, object: u64, offset: u64) -> Result<u64, Broken> {
        const PUBLISHED: u64 = 24;
        const MEANT: u64 = 32;
        match self.field(Step::Record, object, offset)? {
            0 if offset == PUBLISHED => self.field(Step::Record, object, MEANT),
            field => Ok(field),
        }
    }

    fn words<const N: usize>(&self, address: u64) -> Result<[u64; N], MemoryError> {
        let mut bytes = [[0; 8]; N];
        self.memory.read(address, bytes.as_flattened_mut())?;
        Ok(bytes.map(u64::from_ne_bytes))
    }

    /// The table of a `JSMap`.
    fn table(&self, map: u64) -> Result<Table, Broken> {
        let start_of_map = untagged(Step::Frame, map)?;
        let words = self.words::<WITH_TABLE>(start_of_map);
        let table = match &words {
            Ok(words) => words[MAP_TABLE],
            // The mapping may end before that.
            Err(_) => self.field(Step::Frame, map, 8 * MAP_TABLE as u64)?,
        };
        let start = untagged(Step::Table, table)?;
        let distance = start.wrapping_sub(start_of_map);
        let known = words.ok().and_then(|words| {
            let first = usize::try_from(distance / 8).ok()?;
            let words = words.get(first..)?.first_chunk().copied();
            words.filter(|_| distance % 8 == 0)
        });
        let beginning = known.map_or_else(|| self.words(start), Ok);
        let beginning = beginning.map_err(|error| Broken::Unreadable(Step::Table, error))?;
        Ok(Table { start, beginning })
    }

    /// The value of a key in an `OrderedHashMap`.
    fn look_up(&self, table: &Table, key: u64, hash: i32) -> Result<Option<u64>, Broken> {
        let Table { start, beginning } = *table;
        let inconsistent = || Broken::Inconsistent(Step::Table);
        let word = |index: u64| {
            let known = usize::try_from(index).ok();
            match known.and_then(|index| beginning.get(index)) {
                Some(word) => Ok(*word),
                None => self.word(Step::Entry, start.wrapping_add(8 * index)),
            }
        };
        let [_, length, elements, deleted, buckets, ..] = beginning;
        let number = |word: u64| small_integer(word).and_then(|it| u64::try_from(it).ok());
        let [length, elements, deleted, buckets] = [length, elements, deleted, buckets].map(number);
        let (Some(length), Some(elements), Some(deleted), Some(buckets)) =
            (length, elements, deleted, buckets)
        else {
            return Err(inconsistent());
        };
        let used = elements + deleted;
        let is_table = buckets.is_power_of_two()
            && used <= 2 * buckets
            && used <= MAX_ENTRIES
            // Elements, deleted elements and buckets are part of it.
            && length >= 3 + buckets + 2 * buckets * ENTRY_WORDS;
        if !is_table {
            return Err(inconsistent());
        }
        let first_entry = HEADER_WORDS + buckets;
        let bucket = u64::from(hash.cast_unsigned()) & (buckets - 1);
        let mut next = word(HEADER_WORDS + bucket)?;
        for _ in 0..MAX_CHAIN {
            let index = small_integer(next).ok_or(Broken::Inconsistent(Step::Entry))?;
            if index == -1 {
                return Ok(None);
            }
            let index = u64::try_from(index).ok().filter(|index| *index < used);
            let index = index.ok_or(Broken::Inconsistent(Step::Entry))?;
            let entry = first_entry + ENTRY_WORDS * index;
            if self.is_same(word(entry)?, key) {
                return word(entry + 1).map(Some);
            }
            next = word(entry + 2)?;
        }
        Err(Broken::Inconsistent(Step::Entry))
    }

    /// Returns whether two tagged words are the same object, of which one may be the place that the
    /// garbage collector has just moved it from: the first word there is the new address, without a
    /// tag (src/objects/map-word.h).
    fn is_same(&self, one: u64, other: u64) -> bool {
        let forwards = |from: u64, to: u64| {
            let (Ok(from), Ok(to)) = (untagged(Step::Key, from), untagged(Step::Key, to)) else {
                return false;
            };
            let first = self.memory.read_u64(from);
            first.is_ok_and(|first| first & TAG == 0 && first == to)
        };
        one == other || forwards(one, other) || forwards(other, one)
    }
}

/// The address of the object that a tagged word points to.
fn untagged(step: Step, word: u64) -> Result<u64, Broken> {
    match word & TAG {
        TAG => Ok(word - TAG),
        _ => Err(Broken::Inconsistent(step)),
    }
}

/// The number in a tagged word: the upper half (src/objects/smi.h).
fn small_integer(word: u64) -> Option<i32> {
    (word & 0xffff_ffff == 0).then_some((word >> 32) as i32)
}

#[cfg(test)]
mod tests;
