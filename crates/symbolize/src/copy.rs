//! A copy of a target's file, which the target can't change.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use nix::fcntl::OFlag;
use object::endian::Endianness;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Object, ObjectSection, ObjectSegment, ReadCache};

/// The largest file that is copied, in bytes: 4 GiB.
const LARGEST: u64 = 4 << 30;
/// The most that is read of a section of names, in bytes.
const LARGEST_NAMES: u64 = 1 << 20;

/// Sections that name another file: the target's choice, which must not be followed.
const LINKS: [&[u8]; 3] = [b".gnu_debuglink\0", b".gnu_debugaltlink\0", b".debug_sup\0"];

/// A copy of an ELF file that has no name and goes away with this value.
#[derive(Debug)]
pub(crate) struct Copy {
    file: File,
    /// What is loaded from where: the file's offset, its size there, the address.
    segments: Vec<(u64, u64, u64)>,
    /// The name and the CRC-32 in `.gnu_debuglink`.
    pub(crate) debug_link: Option<(Vec<u8>, u32)>,
}

impl Copy {
    /// Copies `original`. An error if it is no 64-bit ELF file, or too large.
    pub(crate) fn of(original: &File) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_TMPFILE.bits())
            .open(std::env::temp_dir())?;
        let copied = io::copy(&mut original.take(LARGEST), &mut &file)?;
        if copied == LARGEST {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let malformed = |_| io::Error::from(io::ErrorKind::InvalidData);
        let cache = ReadCache::new(&file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(malformed)?;
        let segments = elf.segments().map(|segment| {
            let (offset, size) = segment.file_range();
            (offset, size, segment.address())
        });
        let segments = segments.collect();
        let debug_link = elf.gnu_debuglink().map_err(malformed)?;
        let debug_link = debug_link.map(|(name, crc)| (name.to_vec(), crc));
        let names = section_names(&elf);
        let copy = Self {
            segments,
            debug_link,
            file: file.try_clone()?,
        };
        if let Some((offset, size)) = names {
            copy.unlink(offset, size)?;
        }
        Ok(copy)
    }

    /// Renames the sections that lead to other files, so that no decoder finds them.
    fn unlink(&self, offset: u64, size: u64) -> io::Result<()> {
        let size = size.min(LARGEST_NAMES);
        let mut names = vec![0; usize::try_from(size).unwrap_or(0)];
        self.file.read_exact_at(&mut names, offset)?;
        for link in LINKS {
            // A name may also be the end of a longer one.
            for at in 0..names.len().saturating_sub(link.len() - 1) {
                if names[at..].starts_with(link) {
                    self.file.write_all_at(b"-", offset + at as u64)?;
                }
            }
        }
        Ok(())
    }

    /// A path that leads to it, in this process.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// The address that the file gives to what stands at `offset`.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(start, size, address)| {
            let within = offset.checked_sub(*start)?;
            (within < *size).then(|| address.wrapping_add(within))
        })
    }
}

/// Where the names of sections are: offset and size.
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
