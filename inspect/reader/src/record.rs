//! Reads and decodes the record of a thread (OTEP 4947, "Reading").

use otelctx_format::KeyMap;
use otelctx_format::record::{self, DecodedContext};
use otelctx_remote::{Memory, MemoryError};
use otelctx_sample::Found;

/// The smallest size of a page, in bytes.
const PAGE: u64 = 4096;

/// Decodes a record with these keys. `newer_keys` is called if one is unknown or not certain.
pub(crate) fn decode(
    record: &[u8],
    keys: &KeyMap,
    newer_keys: impl FnOnce() -> Newer,
) -> Found<DecodedContext> {
    let Ok(record) = record::decode(record) else {
        return Found::Invalid;
    };
    let context = record.resolve(keys);
    if context.skipped.unknown_key == 0 && !record.is_provisional(keys) {
        return Found::Attached(context);
    }
    Found::Attached(match newer_keys() {
        Newer::Keys(keys) => record.resolve(&keys),
        Newer::Same => context,
        Newer::Unknown => record.resolve(&keys.without_provisional()),
    })
}

/// The key map, read once more.
pub(crate) enum Newer {
    /// It has changed.
    Keys(KeyMap),
    /// It is the same.
    Same,
    /// It could not be read.
    Unknown,
}

/// Reads the record at `pointer`, as far as it fits into `buffer`. Returns its size, in bytes.
///
/// # Errors
/// If the record cannot be read.
///
/// # Panics
/// If `buffer` is smaller than a header.
pub fn read_record(
    memory: &dyn Memory,
    pointer: u64,
    buffer: &mut [u8],
) -> Result<usize, MemoryError> {
    // The memory after a short record may be unmapped if it is in another page.
    let one_read = pointer % PAGE + buffer.len() as u64 <= PAGE;
    let first = if one_read {
        buffer.len()
    } else {
        record::HEADER_SIZE
    };
    memory.read(pointer, &mut buffer[..first])?;
    let at = record::offset::ATTRIBUTES_SIZE;
    let attributes = u16::from_ne_bytes([buffer[at], buffer[at + 1]]);
    let announced = record::HEADER_SIZE + usize::from(attributes);
    let size = announced.min(buffer.len());
    if size > first {
        memory.read(pointer + first as u64, &mut buffer[first..size])?;
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use otelctx_remote::memory::Image;

    /// A record with this many bytes of attributes.
    fn record(attributes: u16) -> Vec<u8> {
        let mut bytes = vec![0xa5; record::HEADER_SIZE + usize::from(attributes)];
        bytes[record::offset::ATTRIBUTES_SIZE..record::HEADER_SIZE]
            .copy_from_slice(&attributes.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_record_may_end_where_its_mapping_ends() {
        for attributes in [0, 1, 36, 612] {
            let bytes = record(attributes);
            let pointer = 2 * PAGE - bytes.len() as u64;
            let mut image = Image::new();
            image.map(pointer, bytes.clone());
            let mut buffer = vec![0; record::RECOMMENDED_SIZE];
            let size = read_record(&image, pointer, &mut buffer);
            assert_eq!(size, Ok(bytes.len()));
            assert_eq!(buffer[..bytes.len()], bytes);
        }
    }

    #[test]
    fn a_record_is_read_up_to_the_buffers_size() {
        let bytes = record(u16::MAX);
        let mut image = Image::new();
        image.map(PAGE, bytes.clone());
        for size in [
            record::HEADER_SIZE,
            record::RECOMMENDED_SIZE,
            record::MAX_SIZE,
        ] {
            let mut buffer = vec![0; size];
            assert_eq!(read_record(&image, PAGE, &mut buffer), Ok(size));
            assert_eq!(buffer, bytes[..size]);
        }
    }

    #[test]
    fn a_record_that_announces_more_than_is_mapped_is_an_error() {
        let mut image = Image::new();
        image.map(2 * PAGE - 40, record(12));
        let mut longer = record(13);
        longer.truncate(40);
        image.map(2 * PAGE - 40, longer);
        let mut buffer = vec![0; record::RECOMMENDED_SIZE];
        assert!(read_record(&image, 2 * PAGE - 40, &mut buffer).is_err());
        assert!(read_record(&image, u64::MAX - 1, &mut buffer).is_err());
    }

    #[test]
    fn a_name_that_one_publisher_alone_had_counts_if_the_key_maps_are_still_the_same() {
        let map = |names: &[&str]| KeyMap::new(names.iter().copied()).unwrap();
        let both = |other: &[&str]| KeyMap::agreed([Some(&map(&["a", "b"])), Some(&map(other))]);
        let decoded = |index: u8, newer: Newer| {
            let mut bytes = record(3);
            bytes[record::offset::VALID] = record::VALID;
            bytes[record::HEADER_SIZE..].copy_from_slice(&[index, 1, b'v']);
            let mut is_read = false;
            let newer_keys = || {
                is_read = true;
                newer
            };
            let Found::Attached(context) = decode(&bytes, &both(&["a"]), newer_keys) else {
                panic!()
            };
            let names = context.attributes.into_iter().map(|(name, _)| name);
            (names.collect::<Vec<_>>(), is_read)
        };
        let named = |name: &str| (vec![name.to_owned()], true);
        assert_eq!(decoded(1, Newer::Same), named("b"));
        assert_eq!(decoded(1, Newer::Keys(both(&["a", "x"]))), named("#1"));
        assert_eq!(decoded(1, Newer::Unknown), (vec![], true));
        assert_eq!(decoded(0, Newer::Unknown), (vec!["a".into()], false));
    }
}
