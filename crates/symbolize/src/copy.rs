//! A copy of a target's file, which the target cannot change.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use lzma_rust2::XzReader;
use nix::fcntl::OFlag;
use object::elf::{SHF_ALLOC, SHT_NOBITS, SHT_PROGBITS};
use object::endian::Endianness;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Object, ObjectSection, ObjectSegment, ReadCache};
use rustix::fs::{MemfdFlags, memfd_create};

/// Maximum number of bytes copied of a file: 4 GiB.
const MAX_COPIED: u64 = 4 << 30;
/// Maximum size of the contents of `.gnu_debugdata`, in bytes: 256 MiB.
const MAX_DEBUG_DATA: u64 = 256 << 20;
/// Number of bytes at the start of a file that are always copied: its headers.
const HEAD: u64 = 1 << 16;
/// Maximum size of the section of section names, in bytes.
const MAX_NAMES: u64 = 1 << 20;

/// Sections that refer to another file, which the target chooses and which must not be opened; and
/// a section with an unknown compression, which would prevent the others from being decoded.
const HIDDEN: [&[u8]; 4] = [
    b".gnu_debuglink\0",
    b".gnu_debugaltlink\0",
    b".debug_sup\0",
    b".gnu_debugdata\0",
];

/// A copy of an ELF file without a name, removed on drop.
#[derive(Debug)]
pub(crate) struct Copy {
    file: File,
    /// Loaded segments: offset in the file, size in the file, address.
    segments: Vec<(u64, u64, u64)>,
    /// Start and end addresses of each section.
    sections: Vec<(u64, u64)>,
    /// The name and the CRC-32 in `.gnu_debuglink`.
    pub(crate) debug_link: Option<(Vec<u8>, u32)>,
    /// Offset and size of `.gnu_debugdata`.
    debug_data: Option<(u64, u64)>,
}

impl Copy {
    /// Copies `original` without its code and data. Fails if it is not a 64-bit ELF file, or too large.
    pub(crate) fn of(original: &File) -> io::Result<Self> {
        let size = original.metadata()?.len();
        let file = nameless()?;
        // Bytes that are not copied read as zeroes and take no space.
        file.set_len(size)?;
        let mut copied = 0;
        let mut take = |offset: u64, length: u64| {
            let length = length.min(size.saturating_sub(offset));
            copied += length;
            if copied > MAX_COPIED {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
            let (mut from, mut to) = (original, &file);
            from.seek(SeekFrom::Start(offset))?;
            to.seek(SeekFrom::Start(offset))?;
            io::copy(&mut from.take(length), &mut to).map(drop)
        };
        take(0, HEAD)?;
        let malformed = |_| io::Error::from(io::ErrorKind::InvalidData);
        {
            let cache = ReadCache::new(original);
            let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(malformed)?;
            let (endian, header) = (elf.endian(), elf.elf_header());
            let entries = |count: u16, size: u16| u64::from(count) * u64::from(size);
            let segments = entries(header.e_phnum(endian), header.e_phentsize(endian));
            take(header.e_phoff(endian), segments)?;
            // Extended numbering has the count in the first section's header.
            let sections = elf.sections().count() as u64 + 1;
            let sections = sections * u64::from(header.e_shentsize(endian));
            take(header.e_shoff(endian), sections)?;
            for section in elf.sections() {
                let header = section.elf_section_header();
                let kind = header.sh_type(endian);
                let flags = header.sh_flags(endian);
                let is_loaded = kind == SHT_PROGBITS && flags.contains(SHF_ALLOC);
                if kind != SHT_NOBITS && !is_loaded {
                    take(header.sh_offset(endian), header.sh_size(endian))?;
                }
            }
        }
        // From here on, only the copy is read.
        let cache = ReadCache::new(&file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(malformed)?;
        let segments = elf.segments().map(|segment| {
            let (offset, size) = segment.file_range();
            (offset, size, segment.address())
        });
        let segments = segments.collect();
        let loaded = elf.sections().filter(|section| section.address() != 0);
        let range = |start: u64, size| (start, start.saturating_add(size));
        let sections = loaded.map(|section| range(section.address(), section.size()));
        let sections = sections.collect();
        let debug_link = elf.gnu_debuglink().map_err(malformed)?;
        let debug_link = debug_link.map(|(name, crc)| (name.to_vec(), crc));
        let debug_data = elf.section_by_name(".gnu_debugdata");
        let debug_data = debug_data.and_then(|section| section.file_range());
        let names = section_names(&elf);
        let copy = Self {
            segments,
            sections,
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
        let mut decoded = XzReader::new(&compressed[..], false).take(MAX_DEBUG_DATA);
        io::copy(&mut decoded, &mut &file).ok()?;
        Self::of(&file).ok()
    }

    /// Renames the sections of [`HIDDEN`], so that no decoder finds them.
    fn hide(&self, offset: u64, size: u64) -> io::Result<()> {
        let size = size.min(MAX_NAMES);
        let mut names = vec![0; usize::try_from(size).unwrap_or(0)];
        self.file.read_exact_at(&mut names, offset)?;
        for link in HIDDEN {
            // A name may also be the end of a longer one.
            for at in 0..names.len().saturating_sub(link.len() - 1) {
                if names[at..].starts_with(link) {
                    self.file.write_all_at(b"-", offset + at as u64)?;
                }
            }
        }
        Ok(())
    }

    /// Its path, for this process only.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Whether both addresses are in one section.
    pub(crate) fn is_one_section(&self, one: u64, other: u64) -> bool {
        let has = |(start, end): &(u64, u64), address| (*start..*end).contains(&address);
        let mut sections = self.sections.iter();
        sections.any(|section| has(section, one) && has(section, other))
    }

    /// The address of the byte at `offset`.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(start, size, address)| {
            let within = offset.checked_sub(*start)?;
            (within < *size).then(|| address.wrapping_add(within))
        })
    }
}

/// Creates a file without a name: on disk, or in memory if the file system has no such files
/// (overlay before Linux 6.3).
pub(crate) fn nameless() -> io::Result<File> {
    let on_disk = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_TMPFILE.bits())
        .open(std::env::temp_dir());
    on_disk.or_else(|_| Ok(memfd_create(c"otelctx", MemfdFlags::CLOEXEC)?.into()))
}

/// Offset and size of the section names.
fn section_names<'d, R: object::ReadRef<'d>>(
    elf: &ElfFile64<'d, Endianness, R>,
) -> Option<(u64, u64)> {
    let header = elf.elf_header();
    let index = header.shstrndx(elf.endian(), elf.data()).ok()?;
    let section = elf
        .section_by_index(object::SectionIndex(index as usize))
        .ok()?;
    section.file_range()
}
