//! Reads the labels of a goroutine.

use otelctx_reader::remote::Memory;
use otelctx_reader::runtime::RuntimeError;

use crate::layout::LabelLayout;

/// Maximum number of labels that are read of one goroutine.
pub(crate) const MAX_LABELS: usize = 64;
/// Maximum length of a label's name and of its value, in bytes. Longer ones are cut.
pub(crate) const MAX_NAME: usize = 128;
pub(crate) const MAX_VALUE: usize = 256;
/// Maximum number of labels that a slice may have: a larger number is none of Go's.
const MAX_COUNT: u64 = 1 << 20;
/// Size of an entry of a slice: two strings, each of an address and a length.
const ENTRY: usize = 32;

/// A map (`hmap` in src/runtime/map.go up to Go 1.23): offsets in bytes.
const MAP_SIZE: usize = 32;
const MAP_FLAGS: usize = 8;
const MAP_BITS: usize = 9;
const MAP_BUCKETS: usize = 16;
const MAP_OLD: usize = 24;
/// The flag of a map that grows into as many buckets as it had (`sameSizeGrow`).
const SAME_SIZE: u8 = 8;
/// The logarithm of the maximum number of buckets that are read: more have more than [`MAX_LABELS`] at least once.
const MAX_BITS: u8 = 7;
/// A bucket (`bmap`): the tops of eight hashes, eight names, eight values, and the address of the next one.
const BUCKET_ENTRIES: usize = 8;
const BUCKET_SIZE: usize = 8 + BUCKET_ENTRIES * ENTRY + 8;
/// The tops of entries' hashes begin with this one; lower ones say that an entry is empty, or has been moved.
const MIN_TOP: u8 = 5;
/// An entry in the first place of a bucket from which all entries have been moved has one of these (`evacuated`).
const MOVED: std::ops::Range<u8> = 2..MIN_TOP;
/// Maximum number of buckets in a chain.
const MAX_CHAIN: usize = 16;

/// Labels in the order of their names, and how many more there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels {
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) skipped: usize,
}

/// A string of Go's: address and length.
type Text = (u64, u64);

/// Reads the labels at the address that a goroutine has.
pub(crate) fn read(
    memory: &dyn Memory,
    layout: LabelLayout,
    address: u64,
) -> Result<Labels, RuntimeError> {
    if address == 0 {
        return Ok(Labels::default());
    }
    let (entries, count) = match layout {
        LabelLayout::Slice => slice(memory, address)?,
        LabelLayout::Map => map(memory, address)?,
    };
    let mut labels = Vec::with_capacity(entries.len());
    for (name, value) in &entries {
        let name = text(memory, *name, MAX_NAME)?;
        labels.push((name, text(memory, *value, MAX_VALUE)?));
    }
    labels.sort();
    Ok(Labels {
        skipped: count.saturating_sub(entries.len()),
        labels,
    })
}

type Entries = (Vec<(Text, Text)>, usize);

fn slice(memory: &dyn Memory, address: u64) -> Result<Entries, RuntimeError> {
    let mut header = [0; 24];
    memory.read(address, &mut header)?;
    let (data, count, room) = (word(&header, 0), word(&header, 8), word(&header, 16));
    if count > room || count > MAX_COUNT {
        let reason = format!("its slice has {count} labels, and room for {room}");
        return Err(RuntimeError::new(reason));
    }
    let kept = (count as usize).min(MAX_LABELS);
    let bytes = memory.read_vec(data, (kept * ENTRY) as u64, MAX_LABELS * ENTRY)?;
    let text = |entry: &[u8], at| (word(entry, at), word(entry, at + 8));
    let entries = bytes.chunks_exact(ENTRY);
    let entries = entries.map(|entry| (text(entry, 0), text(entry, 16)));
    Ok((entries.collect(), count as usize))
}

fn map(memory: &dyn Memory, variable: u64) -> Result<Entries, RuntimeError> {
    let map = memory.read_u64(variable)?;
    if map == 0 {
        return Ok((Vec::new(), 0));
    }
    let mut header = [0; MAP_SIZE];
    memory.read(map, &mut header)?;
    let (labels, bits) = (word(&header, 0), header[MAP_BITS]);
    if bits > MAX_BITS || labels > MAX_COUNT {
        let reason = format!("its map has {labels} labels in 2^{bits} buckets");
        return Err(RuntimeError::new(reason));
    }
    let mut entries = Vec::new();
    let (buckets, old) = (word(&header, MAP_BUCKETS), word(&header, MAP_OLD));
    let is_same_size = header[MAP_FLAGS] & SAME_SIZE != 0;
    let old_count = match (old, bits) {
        (0, _) | (_, 0) => 0,
        (_, bits) => 1_u64 << (bits - u8::from(!is_same_size)),
    };
    // Entries that have not been moved into the new buckets are in the old ones: nobody goes on with that.
    // A map without entries may have no buckets yet.
    for (start, count, is_old) in [(old, old_count, true), (buckets, 1 << bits, false)] {
        for index in 0..if start == 0 { 0 } else { count } {
            let at = start.wrapping_add(index * BUCKET_SIZE as u64);
            chain(memory, at, is_old, &mut entries)?;
            if entries.len() >= MAX_LABELS {
                entries.truncate(MAX_LABELS);
                return Ok((entries, labels as usize));
            }
        }
    }
    if entries.len() as u64 != labels {
        let reason = format!("its map has {} labels, not {labels}", entries.len());
        return Err(RuntimeError::new(reason));
    }
    Ok((entries, labels as usize))
}

/// Adds the entries of a bucket, and of its followers.
fn chain(
    memory: &dyn Memory,
    mut at: u64,
    is_old: bool,
    entries: &mut Vec<(Text, Text)>,
) -> Result<(), RuntimeError> {
    for _ in 0..MAX_CHAIN {
        let mut bucket = [0; BUCKET_SIZE];
        memory.read(at, &mut bucket)?;
        if is_old && MOVED.contains(&bucket[0]) {
            return Ok(());
        }
        let text = |index: usize| {
            let at = 8 + 16 * index;
            (word(&bucket, at), word(&bucket, at + 8))
        };
        for index in (0..BUCKET_ENTRIES).filter(|index| bucket[*index] >= MIN_TOP) {
            entries.push((text(index), text(BUCKET_ENTRIES + index)));
        }
        at = word(&bucket, BUCKET_SIZE - 8);
        if at == 0 {
            return Ok(());
        }
    }
    let reason = format!("a bucket of its map has more than {MAX_CHAIN} followers");
    Err(RuntimeError::new(reason))
}

/// Reads a string, of which at most `limit` bytes are kept.
fn text(
    memory: &dyn Memory,
    (address, length): Text,
    limit: usize,
) -> Result<String, RuntimeError> {
    let length = length.min(limit as u64);
    let bytes = memory.read_vec(address, length, limit)?;
    Ok(String::from_utf8_lossy(whole_characters(&bytes, limit)).into_owned())
}

/// A text of at most `limit` bytes without a character that is cut at its end.
pub(crate) fn whole_characters(bytes: &[u8], limit: usize) -> &[u8] {
    if bytes.len() < limit {
        return bytes;
    }
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

/// The word at an offset of a structure that was read as a whole.
fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into();
    u64::from_ne_bytes(bytes.expect("eight bytes"))
}

#[cfg(test)]
mod tests;
