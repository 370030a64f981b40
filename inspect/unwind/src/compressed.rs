//! Compressed sections: debug information, with its unwind tables, often is.

use std::io::Read;

use flate2::read::ZlibDecoder;
use ruzstd::decoding::StreamingDecoder;

use crate::error::Error;

/// Size of the header of a compressed section (`Elf64_Chdr`: type, padding, size, alignment), in bytes.
const HEADER: usize = 24;
/// `ELFCOMPRESS_ZLIB`
const ZLIB: u32 = 1;
/// `ELFCOMPRESS_ZSTD`
const ZSTD: u32 = 2;
/// What a section whose name starts with `.zdebug` begins with, before its size (big-endian): GNU's format before there
/// was one of ELF's.
const GNU_MARK: &[u8] = b"ZLIB";
/// Size of that header, in bytes.
const GNU_HEADER: usize = 12;

/// Decompresses a section with SHF_COMPRESSED, up to `limit` bytes. What is damaged is cut, as a table may be.
///
/// # Errors
/// If it says that it is larger.
pub(crate) fn decompress(section: &[u8], limit: u64, what: &'static str) -> Result<Vec<u8>, Error> {
    let word = |at: usize| {
        let bytes = section.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let size = section.get(8..).and_then(|it| it.first_chunk());
    let (Some(kind), Some(size), Some(bytes)) = (word(0), size, section.get(HEADER..)) else {
        return Ok(Vec::new());
    };
    let size = checked(u64::from_le_bytes(*size), limit, what)?;
    Ok(match kind {
        ZLIB => read(ZlibDecoder::new(bytes), size),
        ZSTD => frames(bytes, size),
        _ => Vec::new(),
    })
}

/// The same for a section whose name starts with `.zdebug`.
///
/// # Errors
/// If it says that it is larger.
pub(crate) fn decompress_gnu(
    section: &[u8],
    limit: u64,
    what: &'static str,
) -> Result<Vec<u8>, Error> {
    let size = section.strip_prefix(GNU_MARK);
    let size = size.and_then(|it| it.first_chunk());
    let (Some(size), Some(bytes)) = (size, section.get(GNU_HEADER..)) else {
        return Ok(Vec::new());
    };
    let size = checked(u64::from_be_bytes(*size), limit, what)?;
    Ok(read(ZlibDecoder::new(bytes), size))
}

fn checked(size: u64, limit: u64, what: &'static str) -> Result<u64, Error> {
    match size <= limit {
        true => Ok(size),
        false => Err(Error::Limit { what, limit }),
    }
}

/// Reads at most `size` bytes, up to an error.
fn read(decoder: impl Read, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // The buffer has what was read before an error.
    let _ = decoder.take(size).read_to_end(&mut bytes);
    bytes
}

/// The same for frames of Zstandard: linkers compress parts of a section side by side, each to a frame of its own (mold).
fn frames(mut source: &[u8], size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !source.is_empty() {
        let left = size - bytes.len() as u64;
        let Ok(frame) = StreamingDecoder::new(&mut source) else {
            break;
        };
        if left == 0 || frame.take(left).read_to_end(&mut bytes).is_err() {
            break;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn section(kind: u32, size: u64, bytes: &[u8]) -> Vec<u8> {
        let head = [u64::from(kind), size, 1];
        let head = head.iter().flat_map(|word| word.to_le_bytes());
        head.chain(bytes.iter().copied()).collect()
    }

    fn inflated(section: &[u8]) -> Result<Vec<u8>, Error> {
        decompress(section, LIMIT, "bytes")
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// RFC 8878: a frame without a size, with a window of 128 KiB, of blocks that repeat a byte.
    fn zstd(byte: u8, sizes: &[u32]) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
        for (index, size) in sizes.iter().enumerate() {
            let is_last = u32::from(index + 1 == sizes.len());
            frame.extend(&(is_last | 1 << 1 | size << 3).to_le_bytes()[..3]);
            frame.push(byte);
        }
        frame
    }

    #[test]
    fn sections_are_decompressed() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|it| (it * it) as u8).collect();
        assert_eq!(
            inflated(&section(ZLIB, 10_000, &zlib(&bytes))).unwrap(),
            bytes
        );
        assert_eq!(
            inflated(&section(ZSTD, 300, &zstd(7, &[100, 200]))).unwrap(),
            [7; 300]
        );
        let frames = [zstd(7, &[100]), zstd(8, &[50, 50])].concat();
        let expected = [[7; 100], [8; 100]].concat();
        assert_eq!(inflated(&section(ZSTD, 200, &frames)).unwrap(), expected);
        let size = 10_000_u64.to_be_bytes();
        let gnu = [GNU_MARK, &size, &zlib(&bytes)].concat();
        assert_eq!(decompress_gnu(&gnu, LIMIT, "bytes").unwrap(), bytes);
    }

    /// A file of some kilobytes that would take gigabytes.
    #[test]
    fn no_more_than_the_limit_is_decompressed() {
        let large = zlib(&vec![0; 64 << 20]);
        let larger = zstd(0, &[0x2_0000; 1 << 13]);
        assert!(large.len() < 100_000 && larger.len() < 100_000);
        for (kind, bytes) in [(ZLIB, &large), (ZSTD, &larger)] {
            let found = inflated(&section(kind, LIMIT, bytes)).unwrap();
            assert_eq!(found.len() as u64, LIMIT);
            assert!(found.capacity() as u64 <= 2 * LIMIT, "{}", found.capacity());
            let error = inflated(&section(kind, LIMIT + 1, bytes)).unwrap_err();
            assert!(
                matches!(error, Error::Limit { limit: LIMIT, .. }),
                "{error}"
            );
            assert!(inflated(&section(kind, u64::MAX, bytes)).is_err());
        }
        let many = zstd(7, &[1]).repeat(1000);
        let found = inflated(&section(ZSTD, 10, &many)).unwrap();
        assert_eq!(found, [7; 10]);
        let gnu = [GNU_MARK, &u64::MAX.to_be_bytes(), &large].concat();
        assert!(decompress_gnu(&gnu, LIMIT, "bytes").is_err());
    }

    #[test]
    fn damaged_sections_are_cut() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|it| ((it * it) >> 3) as u8).collect();
        let whole = zlib(&bytes);
        for length in 0..whole.len() {
            let found = inflated(&section(ZLIB, 10_000, &whole[..length])).unwrap();
            assert!(bytes.starts_with(&found));
        }
        let whole = section(ZSTD, 300, &zstd(7, &[100, 200]));
        for length in 0..whole.len() {
            let found = inflated(&whole[..length]).unwrap();
            assert!([7; 300].starts_with(&found), "{length}");
        }
        // The largest window that a frame can ask for: 3.75 TiB.
        let mut huge = section(ZSTD, 300, &zstd(7, &[100, 200]));
        huge[HEADER + 5] = 0xff;
        assert_eq!(inflated(&huge).unwrap(), [0; 0]);
        // Another kind, and no header.
        assert_eq!(inflated(&section(3, 10, &[1; 10])).unwrap(), [0; 0]);
        assert_eq!(inflated(&[1, 0, 0, 0]).unwrap(), [0; 0]);
        assert_eq!(decompress_gnu(b"GZIP", LIMIT, "bytes").unwrap(), [0; 0]);
        assert_eq!(decompress_gnu(b"ZLIB", LIMIT, "bytes").unwrap(), [0; 0]);
    }
}
