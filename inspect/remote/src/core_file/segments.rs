//! The memory in a core file, according to its program headers.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};

use crate::Permissions;
use crate::elf::{read_struct, read_structs};
use crate::machine::Machine;
use crate::memory::{FileBytes, MemoryError, Omission};

/// Maximum number of mappings: eight times the kernel's default limit (`vm.max_map_count`).
const MAX_SEGMENTS: u64 = 1 << 19;
/// Maximum number of note segments; there is usually one.
const MAX_NOTES: usize = 16;
/// Number of program headers read at a time.
const CHUNK: u64 = 1024;
/// The smallest page size of the supported architectures, in bytes.
const PAGE: u64 = 4096;

/// A PT_LOAD segment: a mapping of the process. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) start: u64,
    pub(crate) memory_size: u64,
    /// The part that is in the core file.
    pub(crate) file_size: u64,
    offset: u64,
    pub(crate) permissions: Permissions,
}

impl Load {
    /// The address after its last one.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.memory_size)
    }
}

#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) machine: Machine,
    /// Sorted by their addresses.
    pub(crate) loads: Vec<Load>,
    /// Offset and size of the notes.
    pub(crate) notes: Vec<(u64, u64)>,
    pub(crate) more_notes: bool,
    /// The size that the file must have to contain everything, in bytes.
    pub(crate) expected_size: u64,
}

impl Segments {
    pub(crate) fn read(file: &File) -> Result<Self, String> {
        let memory = FileBytes(file);
        let mut magic = [0; 4];
        if file.read_exact_at(&mut magic, 0).is_err() || magic != elf::ELFMAG {
            return Err("it is not an ELF file".to_string());
        }
        let cut = |_| "it is truncated in its headers".to_string();
        let header: FileHeader64<LE> = read_struct(&memory, 0).map_err(cut)?;
        if header.e_ident.data != elf::ELFDATA2LSB {
            return Err("it is not little-endian".to_string());
        }
        if header.e_ident.class != elf::ELFCLASS64 {
            return Err("it is from a 32-bit process, which is not supported".to_string());
        }
        if header.e_type.get(LE) != elf::ET_CORE {
            return Err("it is a program or a library".to_string());
        }
        if usize::from(header.e_phentsize.get(LE)) != size_of::<ProgramHeader64<LE>>() {
            return Err("its program headers have an unknown size".to_string());
        }
        let mut count = u64::from(header.e_phnum.get(LE));
        if count == u64::from(elf::PN_XNUM) {
            // The number exceeds the field: it is in the first section header (elf(5)).
            let section: SectionHeader64<LE> =
                read_struct(&memory, header.e_shoff.get(LE)).map_err(cut)?;
            count = u64::from(section.sh_info.get(LE));
        }
        let mut segments = Segments {
            machine: Machine::from_elf(header.e_machine.get(LE)),
            loads: Vec::new(),
            notes: Vec::new(),
            more_notes: false,
            expected_size: 0,
        };
        if count > MAX_SEGMENTS {
            return Err(format!(
                "it has {count} segments, more than the limit of {MAX_SEGMENTS}"
            ));
        }
        let mut done = 0;
        while done < count {
            let take = CHUNK.min(count - done);
            let at = (done * size_of::<ProgramHeader64<LE>>() as u64)
                .checked_add(header.e_phoff.get(LE))
                .ok_or("its e_phoff overflows")?;
            let headers: Vec<ProgramHeader64<LE>> =
                read_structs(&memory, at, take as usize).map_err(cut)?;
            headers.iter().for_each(|header| segments.add(header));
            done += take;
        }
        segments.loads.sort_unstable_by_key(|load| load.start);
        Ok(segments)
    }

    fn add(&mut self, header: &ProgramHeader64<LE>) {
        let (offset, file_size) = (header.p_offset.get(LE), header.p_filesz.get(LE));
        match header.p_type.get(LE) {
            elf::PT_LOAD => {
                let memory_size = header.p_memsz.get(LE);
                let flags = header.p_flags.get(LE).0;
                self.loads.push(Load {
                    start: header.p_vaddr.get(LE),
                    memory_size,
                    file_size: file_size.min(memory_size),
                    offset,
                    permissions: Permissions {
                        read: flags & elf::PF_R.0 != 0,
                        write: flags & elf::PF_W.0 != 0,
                        execute: flags & elf::PF_X.0 != 0,
                        // A core file does not contain this.
                        shared: false,
                    },
                });
            }
            elf::PT_NOTE if self.notes.len() < MAX_NOTES => self.notes.push((offset, file_size)),
            elf::PT_NOTE => self.more_notes = true,
            _ => return,
        }
        if file_size > 0 {
            self.expected_size = self.expected_size.max(offset.saturating_add(file_size));
        }
    }

    pub(crate) fn load(&self, address: u64) -> Option<&Load> {
        let behind = self.loads.partition_point(|load| load.start <= address);
        let load = self.loads.get(behind.checked_sub(1)?)?;
        (address < load.end()).then_some(load)
    }

    /// The offset of an address in the file, and the number of bytes that the file has from there
    /// on.
    pub(crate) fn covered(&self, address: u64) -> Result<(u64, u64), Omission> {
        let load = self.load(address).ok_or(Omission::NotMentioned)?;
        let skip = address - load.start;
        let length = load.file_size.checked_sub(skip).filter(|it| *it > 0);
        let offset = load.offset.checked_add(skip);
        offset.zip(length).ok_or(Omission::LeftOut)
    }
}

/// The error for a page that the core file lacks.
pub(crate) fn missing(address: u64, why: Omission) -> MemoryError {
    MemoryError::NotInCore {
        page: address & !(PAGE - 1),
        why,
    }
}
