//! A copy of a target's file, which the target cannot change.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use lzma_rust2::XzReader;
use nix::fcntl::OFlag;
use object::elf::{SHF_ALLOC, SHT_DYNSYM, SHT_NOBITS, SHT_NOTE, SHT_STRTAB, SHT_SYMTAB};
use object::endian::Endianness;
use object::read::elf::{ElfFile64, ElfSegment64, FileHeader, SectionHeader};
use object::{Object, ObjectSection, ObjectSegment, ReadCache};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::decompress;
use crate::parts::{Parts, UnitHeader};
use crate::supplement::Supplement;

/// Maximum number of bytes copied of a file: 4 GiB.
const MAX_COPIED: u64 = 4 << 30;
/// Maximum number of bytes that are copied to memory, which takes half the time of a file on disk.
const MAX_IN_MEMORY: u64 = 16 << 20;
/// Number of bytes that are copied at a time.
const BUFFER: usize = 256 << 10;
/// Maximum size of the contents of `.gnu_debugdata`, in bytes: 256 MiB.
const MAX_DEBUG_DATA: u64 = 256 << 20;
/// Maximum memory for decompressing it, in KiB: 128 MiB. Files that xz -9 makes take 65 MiB (xz(1)).
const MAX_DEBUG_DATA_MEMORY: u32 = 128 << 10;
/// Number of bytes at the start of a file that are always copied: its headers.
const HEAD: u64 = 1 << 16;
/// Maximum size of the section of section names, in bytes.
const MAX_NAMES: u64 = 1 << 20;

/// Sections that refer to another file, which the target chooses: only `debug_file` opens one, after its checks. And a
/// section whose compression the decoder does not know, so that it would decode no other.
const HIDDEN: [&[u8]; 4] = [
    b".gnu_debuglink\0",
    b".gnu_debugaltlink\0",
    b".debug_sup\0",
    b".gnu_debugdata\0",
];
/// Sections in which no function is looked up. A decoder would decompress them all the same.
const UNUSED: [&[u8]; 6] = [
    b".debug_loc\0",
    b".debug_loclists\0",
    b".debug_macinfo\0",
    b".debug_macro\0",
    b".debug_names\0",
    b".debug_types\0",
];

/// Sections of which each names functions that a file does not export.
const WITH_SYMBOLS: [&str; 3] = [".symtab", ".gnu_debugdata", ".debug_info"];

/// A copy of an ELF file without a name, removed on drop.
#[derive(Debug)]
pub(crate) struct Copy {
    file: File,
    segments: Vec<Segment>,
    /// The addresses of each section.
    sections: Vec<Range<u64>>,
    /// The name and the CRC-32 in `.gnu_debuglink`.
    pub(crate) debug_link: Option<(Vec<u8>, u32)>,
    /// Offset and size of `.gnu_debugdata`.
    debug_data: Option<(u64, u64)>,
    /// True if it has symbols that it does not export, or debug information.
    pub(crate) has_symbols: bool,
    /// The supplementary file that its debug information refers to.
    pub(crate) supplement: Option<Supplement>,
}

impl Copy {
    /// Copies `original` without its code and data. Fails if it is not a 64-bit ELF file, or too large.
    ///
    /// If `offsets` of code are given, units of its debug information without any of them may be missing.
    pub(crate) fn of(original: &File, offsets: Option<&[u64]>) -> io::Result<Self> {
        let size = original.metadata()?.len();
        let Needed { ranges, headers } = Needed::of(original, offsets).map_err(malformed)?;
        let ranges = ranges.into_iter();
        let ranges: Vec<Range<u64>> = ranges.map(|it| it.start..it.end.min(size)).collect();
        let sum = ranges.iter().map(|it| it.end.saturating_sub(it.start));
        let sum = sum.fold(0, u64::saturating_add);
        let file = if sum <= MAX_IN_MEMORY {
            in_memory().or_else(|_| on_disk())?
        } else if sum <= MAX_COPIED {
            nameless()?
        } else {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        };
        // Bytes that are not copied read as zeroes and take no space.
        file.set_len(size)?;
        let mut buffer = vec![0; BUFFER];
        for range in ranges {
            copy(original, &file, range, &mut buffer)?;
        }
        for (offset, header) in headers {
            file.write_all_at(&header, offset)?;
        }
        Self::parse(file)
    }

    /// Reads the copy: from here on, the original is not used.
    fn parse(file: File) -> io::Result<Self> {
        let cache = ReadCache::new(&file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(malformed)?;
        let loaded = elf.sections().filter(|section| section.address() != 0);
        let range = |start: u64, size| start..start.saturating_add(size);
        let sections = loaded.map(|section| range(section.address(), section.size()));
        let debug_link = elf.gnu_debuglink().map_err(malformed)?;
        let debug_link = debug_link.map(|(name, crc)| (name.to_vec(), crc));
        let debug_data = elf.section_by_name(".gnu_debugdata");
        let debug_data = debug_data.and_then(|section| section.file_range());
        let names = section_names(&elf);
        let has_table = |name: &&str| elf.section_by_name(name).is_some();
        let copy = Self {
            supplement: Supplement::of(&elf),
            has_symbols: WITH_SYMBOLS.iter().any(has_table),
            segments: Segment::all(&elf),
            sections: sections.collect(),
            debug_link,
            debug_data,
            file: file.try_clone()?,
        };
        if let Some((offset, size)) = names {
            copy.hide(offset, size)?;
        }
        Ok(copy)
    }

    /// The file that `.gnu_debugdata` contains: the symbols that were stripped from this one, at the
    /// same addresses (gdb's manual, "MiniDebugInfo"). `None` if there is none, or it is malformed.
    pub(crate) fn debug_data(&self) -> Option<Self> {
        let (offset, size) = self.debug_data?;
        let mut compressed = vec![0; usize::try_from(size.min(MAX_DEBUG_DATA)).ok()?];
        self.file.read_exact_at(&mut compressed, offset).ok()?;
        let file = nameless().ok()?;
        let decoded = XzReader::new_mem_limit(&compressed[..], false, MAX_DEBUG_DATA_MEMORY);
        let mut decoded = decoded.take(MAX_DEBUG_DATA);
        io::copy(&mut decoded, &mut &file).ok()?;
        Self::of(&file, None).ok()
    }

    /// Decompresses what blazesym cannot.
    ///
    /// # Errors
    /// If that is too large.
    pub(crate) fn decompress(&self) -> io::Result<()> {
        decompress::decompress(&self.file)
    }

    /// Its size, in bytes.
    pub(crate) fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Renames the sections of [`HIDDEN`] and [`UNUSED`], so that no decoder finds them.
    fn hide(&self, offset: u64, size: u64) -> io::Result<()> {
        let size = size.min(MAX_NAMES);
        let mut names = vec![0; usize::try_from(size).unwrap_or(0)];
        self.file.read_exact_at(&mut names, offset)?;
        for link in HIDDEN.into_iter().chain(UNUSED) {
            // A name may also be the end of a longer one.
            for at in 0..names.len().saturating_sub(link.len() - 1) {
                if names[at..].starts_with(link) {
                    self.file.write_all_at(b"-", offset + at as u64)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Its path, for this process only.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Returns true if both addresses are in one section.
    pub(crate) fn is_one_section(&self, one: u64, other: u64) -> bool {
        let has_both = |it: &Range<u64>| it.contains(&one) && it.contains(&other);
        self.sections.iter().any(has_both)
    }

    /// The address of the byte at `offset`.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        address(&self.segments, offset)
    }
}

/// The parts of a file that are copied.
struct Needed {
    /// Ranges of offsets in the file, which may exceed it.
    ranges: Vec<Range<u64>>,
    /// Headers to write at offsets, see [`Parts::headers`].
    headers: Vec<(u64, UnitHeader)>,
}

impl Needed {
    fn of(file: &File, offsets: Option<&[u64]>) -> object::read::Result<Self> {
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache)?;
        let (endian, header) = (elf.endian(), elf.elf_header());
        let range = |start: u64, size: u64| start..start.saturating_add(size);
        let entries = |start, count: u64, size: u16| range(start, count * u64::from(size));
        // Extended numbering has the count of sections in the first section's header.
        let sections = elf.sections().count() as u64 + 1;
        let segments = header.e_phnum(endian).into();
        let mut ranges = vec![
            0..HEAD,
            entries(header.e_phoff(endian), segments, header.e_phentsize(endian)),
            entries(header.e_shoff(endian), sections, header.e_shentsize(endian)),
        ];
        let parts = offsets.and_then(|offsets| {
            let segments = Segment::all(&elf);
            let address = |offset: &u64| address(&segments, *offset);
            let mut addresses: Vec<u64> = offsets.iter().filter_map(address).collect();
            addresses.sort_unstable();
            Parts::find(file, &elf, &addresses)
        });
        for section in elf.sections() {
            let header = section.elf_section_header();
            let kind = header.sh_type(endian);
            let is_loaded = header.sh_flags(endian).contains(SHF_ALLOC)
                && ![SHT_DYNSYM, SHT_NOTE, SHT_STRTAB, SHT_SYMTAB].contains(&kind);
            let offset = header.sh_offset(endian);
            let in_parts = parts.as_ref();
            let in_parts = in_parts.is_some_and(|parts| parts.sections.contains(&offset));
            let name = section.name_bytes().unwrap_or_default();
            let is_unused = UNUSED.iter().any(|it| it.strip_suffix(b"\0") == Some(name));
            if kind != SHT_NOBITS && !is_loaded && !in_parts && !is_unused {
                ranges.push(range(offset, header.sh_size(endian)));
            }
        }
        let headers = parts.map_or(Vec::new(), |parts| {
            ranges.extend(parts.needed);
            parts.headers
        });
        Ok(Self { ranges, headers })
    }
}

fn malformed(_: object::read::Error) -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}

/// A loaded segment.
#[derive(Debug)]
struct Segment {
    offset: u64,
    /// Its size in the file.
    size: u64,
    address: u64,
}

impl Segment {
    fn all<'d, R: object::ReadRef<'d>>(elf: &ElfFile64<'d, Endianness, R>) -> Vec<Self> {
        let segment = |segment: ElfSegment64<'d, '_, Endianness, R>| Self {
            offset: segment.file_range().0,
            size: segment.file_range().1,
            address: segment.address(),
        };
        elf.segments().map(segment).collect()
    }
}

/// The address of the byte at `offset` of a file with these segments.
fn address(segments: &[Segment], offset: u64) -> Option<u64> {
    segments.iter().find_map(|segment| {
        let within = offset.checked_sub(segment.offset)?;
        (within < segment.size).then(|| segment.address.wrapping_add(within))
    })
}

/// Copies the part of a range that a file has, to the same offset.
fn copy(from: &File, to: &File, mut range: Range<u64>, buffer: &mut [u8]) -> io::Result<()> {
    while !range.is_empty() {
        let length = (range.end - range.start).min(buffer.len() as u64) as usize;
        let read = match from.read_at(&mut buffer[..length], range.start) {
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        to.write_all_at(&buffer[..read], range.start)?;
        range.start += read as u64;
    }
    Ok(())
}

/// Creates a file without a name: on disk, or in memory if the file system has no such files
/// (overlay before Linux 6.3).
pub(crate) fn nameless() -> io::Result<File> {
    on_disk().or_else(|_| in_memory())
}

fn on_disk() -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_TMPFILE.bits())
        .open(std::env::temp_dir())
}

fn in_memory() -> io::Result<File> {
    Ok(memfd_create(c"otelctx", MemfdFlags::CLOEXEC)?.into())
}

/// Offset and size of the section names.
fn section_names<'d, R: object::ReadRef<'d>>(
    elf: &ElfFile64<'d, Endianness, R>,
) -> Option<(u64, u64)> {
    let header = elf.elf_header();
    let index = header.shstrndx(elf.endian(), elf.data()).ok()?;
    let index = object::SectionIndex(index as usize);
    elf.section_by_index(index).ok()?.file_range()
}
