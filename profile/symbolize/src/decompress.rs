//! Sections that are compressed with Zstandard, which blazesym would decompress with a library in C.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use object::endian::Endianness;
use object::read::elf::{ElfFile64, ElfSection64, FileHeader};
use object::{CompressionFormat, Object, ObjectSection, ReadCache, ReadRef};
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
    /// Offset and size of its compressed bytes.
    offset: u64,
    compressed: u64,
    size: u64,
}

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
    let sizes = sections.iter().map(|section| section.size);
    if sizes.fold(0, u64::saturating_add) > MAX_SIZE {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    for section in sections {
        let start = file.metadata()?.len().next_multiple_of(ALIGNMENT);
        if section.decompress(file, start)? {
            let mut flags = [0; 8];
            file.read_exact_at(&mut flags, section.header + FLAGS)?;
            let flags = u64::from_le_bytes(flags) & !COMPRESSED;
            for (field, value) in [(FLAGS, flags), (OFFSET, start), (SIZE, section.size)] {
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
    is_needed.then_some(Section {
        header,
        offset: range.offset,
        compressed: range.compressed_size,
        size: range.uncompressed_size,
    })
}

impl Section {
    /// Writes its contents to an offset in the file. Returns false if it is damaged.
    fn decompress(&self, mut file: &File, to: u64) -> io::Result<bool> {
        file.seek(SeekFrom::Start(self.offset))?;
        let mut source = BufReader::new(file.take(self.compressed));
        let (mut buffer, mut written) = (vec![0; BUFFER], 0);
        // Linkers compress parts of a section side by side, each to a frame of its own (mold).
        while !source.fill_buf()?.is_empty() {
            let Ok(mut frame) = StreamingDecoder::new(&mut source) else {
                return Ok(false);
            };
            loop {
                let length = match frame.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => length,
                    Err(_) => return Ok(false),
                };
                if length as u64 > self.size - written {
                    return Ok(false);
                }
                file.write_all_at(&buffer[..length], to + written)?;
                written += length as u64;
            }
        }
        Ok(written == self.size)
    }
}
