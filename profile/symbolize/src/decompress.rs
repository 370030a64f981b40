//! Compressed sections. blazesym would decompress Zstandard with a library in C.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use flate2::bufread::ZlibDecoder;
use object::endian::Endianness;
use object::read::elf::{ElfFile64, ElfSection64, FileHeader};
use object::{CompressedFileRange, CompressionFormat, Object, ObjectSection, ReadCache, ReadRef};
use ruzstd::decoding::StreamingDecoder;

/// Maximum size of all decompressed sections of a file, in bytes: as much as a decoder may take for sections that are
/// compressed with zlib.
const MAX_SIZE: u64 = 4 << 30;
/// Sections that are decompressed.
const PREFIX: &[u8] = b".debug_";
/// Alignment of a section in the file, in bytes.
const ALIGNMENT: u64 = 16;
/// Number of bytes that are decompressed at a time.
const BUFFER: usize = 256 << 10;
/// `SHF_COMPRESSED`, and the offsets of fields in a section header of a 64-bit file: flags, file offset and size.
const COMPRESSED: u64 = 1 << 11;
const FLAGS: u64 = 8;
const OFFSET: u64 = 24;
const SIZE: u64 = 32;

/// A compressed section.
struct Section {
    /// Offset of its header in the file.
    header: u64,
    bytes: Bytes,
}

/// The bytes of a section.
struct Bytes(CompressedFileRange);

/// Returns true if debug information of an ELF file is compressed with Zstandard.
pub(crate) fn is_needed(file: &File) -> bool {
    sections(file).is_some_and(|sections| !sections.is_empty())
}

/// Decompresses debug information of a copy of an ELF file: the sections move to its end. A damaged section stays as it
/// is, so that its decoder refuses it.
///
/// # Errors
/// If the sections are too large, or the file cannot be written.
pub(crate) fn decompress(file: &File) -> io::Result<()> {
    let sections = sections(file).unwrap_or_default();
    let sizes = sections
        .iter()
        .map(|section| section.bytes.0.uncompressed_size);
    if sizes.fold(0, u64::saturating_add) > MAX_SIZE {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    for section in sections {
        let start = file.metadata()?.len().next_multiple_of(ALIGNMENT);
        let mut written = start;
        let is_whole = section.bytes.read(file, |bytes| {
            file.write_all_at(bytes, written)?;
            written += bytes.len() as u64;
            Ok(())
        });
        if is_whole? {
            let mut flags = [0; 8];
            file.read_exact_at(&mut flags, section.header + FLAGS)?;
            let flags = u64::from_le_bytes(flags) & !COMPRESSED;
            for (field, value) in [
                (FLAGS, flags),
                (OFFSET, start),
                (SIZE, section.bytes.0.uncompressed_size),
            ] {
                file.write_all_at(&value.to_le_bytes(), section.header + field)?;
            }
        }
    }
    Ok(())
}

fn sections(file: &File) -> Option<Vec<Section>> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let (endian, header) = (elf.endian(), elf.elf_header());
    if endian != Endianness::Little {
        return None;
    }
    let (table, entry) = (header.e_shoff(endian), header.e_shentsize(endian));
    let sections = elf.sections().filter_map(|section| {
        let index = section.index().0 as u64;
        of(&section, table.saturating_add(index * u64::from(entry)))
    });
    Some(sections.collect())
}

/// The section with the header at this offset, if it is one to decompress.
fn of<'d, R: ReadRef<'d>>(
    section: &ElfSection64<'d, '_, Endianness, R>,
    header: u64,
) -> Option<Section> {
    let name = section.name_bytes().ok()?;
    let range = section.compressed_file_range().ok()?;
    let is_needed = name.starts_with(PREFIX) && range.format == CompressionFormat::Zstandard;
    let bytes = Bytes(range);
    is_needed.then_some(Section { header, bytes })
}

/// Reads a whole section of an ELF file, up to `limit` bytes. `None` if it is larger, damaged, or not there.
pub(crate) fn contents<'d, R: ReadRef<'d>>(
    file: &File,
    elf: &ElfFile64<'d, Endianness, R>,
    name: &str,
    limit: u64,
) -> Option<Vec<u8>> {
    let section = elf.section_by_name(name)?;
    let bytes = Bytes(section.compressed_file_range().ok()?);
    // Nothing is allocated for a size beyond the end of the file.
    let end = bytes.0.offset.checked_add(bytes.0.compressed_size)?;
    if bytes.0.uncompressed_size > limit || end > file.metadata().ok()?.len() {
        return None;
    }
    let mut contents = Vec::new();
    let is_whole = bytes.read(file, |part| {
        contents.extend_from_slice(part);
        Ok(())
    });
    is_whole.ok()?.then_some(contents)
}

impl Bytes {
    /// Passes them on part by part, decompressed. Returns false if they are damaged.
    fn read(
        &self,
        mut file: &File,
        mut pass_on: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let range = &self.0;
        file.seek(SeekFrom::Start(range.offset))?;
        let mut source = BufReader::with_capacity(BUFFER, file.take(range.compressed_size));
        let mut left = range.uncompressed_size;
        // Linkers compress parts of a section side by side, each to a frame of its own (mold).
        while !source.fill_buf()?.is_empty() {
            let is_whole = match range.format {
                CompressionFormat::None => drain(&mut source, &mut left, &mut pass_on)?,
                CompressionFormat::Zlib => {
                    drain(ZlibDecoder::new(&mut source), &mut left, &mut pass_on)?
                }
                CompressionFormat::Zstandard => match StreamingDecoder::new(&mut source) {
                    Ok(frame) => drain(frame, &mut left, &mut pass_on)?,
                    Err(_) => false,
                },
                _ => false,
            };
            if !is_whole {
                return Ok(false);
            }
        }
        Ok(left == 0)
    }
}

/// Passes on what a decoder reads. Returns false if that fails, or is more than what is left.
fn drain(
    mut decoder: impl Read,
    left: &mut u64,
    pass_on: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<bool> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let Ok(length) = decoder.read(&mut buffer) else {
            return Ok(false);
        };
        if length as u64 > *left {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
        pass_on(&buffer[..length])?;
        *left -= length as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn read(format: CompressionFormat, bytes: &[u8], uncompressed_size: u64) -> Option<Vec<u8>> {
        let mut file = File::from(memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(bytes).unwrap();
        let range = CompressedFileRange {
            format,
            offset: 0,
            compressed_size: bytes.len() as u64,
            uncompressed_size,
        };
        let mut found = Vec::new();
        let is_whole = Bytes(range).read(&file, |part| {
            found.extend_from_slice(part);
            Ok(())
        });
        is_whole.unwrap().then_some(found)
    }

    /// A linker with an option to compress debug information may do so with a section without contents.
    #[test]
    fn an_empty_section_is_whole_and_empty() {
        let zstd = CompressionFormat::Zstandard;
        // RFC 8878: a frame that says that it has no contents, of one raw block without any; the same with a window, and a checksum.
        let frames: [&[u8]; 3] = [
            &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0],
            &[0x28, 0xb5, 0x2f, 0xfd, 0, 0x38, 1, 0, 0],
            &[
                0x28, 0xb5, 0x2f, 0xfd, 0x24, 0, 1, 0, 0, 0x99, 0xe9, 0xd8, 0x51,
            ],
        ];
        for frame in frames {
            assert_eq!(read(zstd, frame, 0), Some(Vec::new()), "{frame:x?}");
            // Contents that are missing are damage.
            assert_eq!(read(zstd, frame, 1), None, "{frame:x?}");
        }
        // zlib's stream of nothing.
        let zlib = [0x78, 0x9c, 3, 0, 0, 0, 0, 1];
        let format = CompressionFormat::Zlib;
        assert_eq!(read(format, &zlib, 0), Some(Vec::new()));
        assert_eq!(read(CompressionFormat::None, &[], 0), Some(Vec::new()));
    }
}
