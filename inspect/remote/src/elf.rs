//! A single ELF module, in a file or in memory: segments, sections, symbols, relocations, notes.
//!
//! Every table is bounded before it is read, and nothing is mapped: [`Elf`] reads through a
//! [`Memory`], so files, loaded memory, core files and test images are all treated the same.
//!
//! ```
//! use otelctx_remote::elf::{Elf, FileBytes, Source, SymbolKind};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = std::fs::File::open("/proc/self/exe")?;
//! let bytes = FileBytes(&file);
//! let elf = Elf::read(Source::File(&bytes))?.ok_or("not an ELF file")?;
//! assert!(elf.loads().iter().any(|segment| segment.executable));
//! let main = elf.symbol(b"main")?.ok_or("no symbol main")?;
//! assert_eq!(main.kind, SymbolKind::Function);
//! # Ok(())
//! # }
//! ```

mod go;
mod notes;
pub(crate) mod sections;
mod symbols;

pub use go::{GoCall, GoFunction, GoTable};
pub use sections::Section;
pub(crate) use symbols::FoundSymbol;
pub use symbols::{ElfSymbol, NamedFunction, SymbolKind};

use object::LittleEndian as LE;
use object::elf::{self, Dyn64, FileHeader64, FileType, ProgramHeader64, ProgramType, Rela64};
use object::pod::{self, Pod};

use crate::machine::{Machine, TlsSegment};
pub use crate::memory::FileBytes;
use crate::memory::{Memory, MemoryError};

/// Maximum number of program headers; a linker writes about a dozen.
const MAX_SEGMENTS: usize = 512;
/// Maximum number of entries of the dynamic table; a linker writes about thirty.
const MAX_DYNAMIC: usize = 4096;
/// Maximum number of symbols or relocations of one table: more than browsers have.
const MAX_ENTRIES: u64 = 1 << 23;
/// Number of bytes of a table read at a time.
const CHUNK: u64 = 64 * 1024;

/// Why a module is not readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// Its headers or tables are malformed, or larger than the limits.
    #[error("{0}")]
    Malformed(&'static str),
    /// Some of its bytes cannot be read.
    #[error("{0}")]
    Memory(#[from] MemoryError),
}

use ElfError::Malformed;

/// The place of the module's bytes.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A file: addresses of the [`Memory`] are file offsets.
    File(&'a dyn Memory),
    /// Loaded, with its ELF header at this address.
    Loaded(&'a dyn Memory, u64),
}

/// A program header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Segment {
    /// Offset in the file, in bytes (`p_offset`).
    pub offset: u64,
    /// Address in the module (`p_vaddr`); add the load bias for one in the process.
    pub address: u64,
    /// Size in the file, in bytes (`p_filesz`).
    pub file_size: u64,
    /// Size in memory, in bytes (`p_memsz`).
    pub memory_size: u64,
    /// `p_align`
    pub alignment: u64,
    /// PF_X
    pub executable: bool,
    /// PF_W
    pub writable: bool,
}

impl Segment {
    /// The offset after the last byte of the file that it covers.
    pub fn file_end(&self) -> u64 {
        self.offset.saturating_add(self.file_size)
    }
}

/// The entries of the dynamic table that are used here; 0 if absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DynamicTable {
    strings: u64,
    strings_size: u64,
    symbols: u64,
    hash: u64,
    gnu_hash: u64,
    rela: u64,
    rela_size: u64,
    /// Relative relocations at the start of `rela`.
    rela_count: u64,
    pub(crate) jump_relocations: u64,
    pub(crate) jump_relocations_size: u64,
    soname: Option<u64>,
    pub(crate) flags_1: u64,
    /// True if there is a DT_DEBUG entry: linkers write it into programs only.
    pub(crate) debug: bool,
}

/// A module with its headers read.
pub struct Elf<'a> {
    source: Source<'a>,
    header: FileHeader64<LE>,
    pub(crate) loads: Vec<Segment>,
    pub(crate) tls: Option<Segment>,
    pub(crate) dynamic: Option<Segment>,
    pub(crate) interpreter: bool,
    notes: Vec<Segment>,
    eh_frame_header: Option<Segment>,
    pub(crate) table: DynamicTable,
}

impl<'a> Elf<'a> {
    /// Reads the headers and the dynamic table of a little-endian 64-bit module. `None` if it is
    /// not ELF.
    pub fn read(source: Source<'a>) -> Result<Option<Self>, ElfError> {
        let Some(mut module) = Self::read_headers(source)? else {
            return Ok(None);
        };
        if let Some(dynamic) = module.dynamic {
            module.table = module.read_dynamic(dynamic)?;
        }
        Ok(Some(module))
    }

    pub(crate) fn read_headers(source: Source<'a>) -> Result<Option<Self>, ElfError> {
        let (memory, base) = match source {
            Source::File(memory) => (memory, 0),
            Source::Loaded(memory, base) => (memory, base),
        };
        let mut magic = [0; 4];
        match memory.read(base, &mut magic) {
            Ok(()) if magic == elf::ELFMAG => {}
            Ok(()) | Err(MemoryError::Unmapped { .. }) => return Ok(None),
            // It is unknown whether it is a module.
            Err(error) => return Err(error.into()),
        }
        let header: FileHeader64<LE> = read_struct(memory, base)?;
        if header.e_ident.class != elf::ELFCLASS64 {
            return Err(Malformed("it is not a 64-bit module"));
        }
        if header.e_ident.data != elf::ELFDATA2LSB {
            return Err(Malformed("it is not little-endian"));
        }
        let count = usize::from(header.e_phnum.get(LE));
        if count > MAX_SEGMENTS {
            return Err(Malformed("it has more than 512 program headers"));
        }
        if count > 0 && usize::from(header.e_phentsize.get(LE)) != size_of::<ProgramHeader64<LE>>()
        {
            return Err(Malformed("its program headers have an unknown size"));
        }
        let at = base
            .checked_add(header.e_phoff.get(LE))
            .ok_or(Malformed("e_phoff overflows"))?;
        let segments: Vec<ProgramHeader64<LE>> = read_structs(memory, at, count)?;

        let all = |kind: ProgramType| {
            segments
                .iter()
                .filter(move |segment| segment.p_type.get(LE) == kind)
                .map(|segment| Segment {
                    offset: segment.p_offset.get(LE),
                    address: segment.p_vaddr.get(LE),
                    file_size: segment.p_filesz.get(LE),
                    memory_size: segment.p_memsz.get(LE),
                    alignment: segment.p_align.get(LE),
                    executable: segment.p_flags.get(LE).contains(elf::PF_X),
                    writable: segment.p_flags.get(LE).contains(elf::PF_W),
                })
        };
        Ok(Some(Elf {
            source,
            header,
            loads: all(elf::PT_LOAD).collect(),
            tls: all(elf::PT_TLS).next(),
            dynamic: all(elf::PT_DYNAMIC).next(),
            interpreter: all(elf::PT_INTERP).next().is_some(),
            notes: all(elf::PT_NOTE).collect(),
            eh_frame_header: all(elf::PT_GNU_EH_FRAME).next(),
            table: DynamicTable::default(),
        }))
    }

    pub(crate) fn file_type(&self) -> FileType {
        self.header.e_type.get(LE)
    }

    /// The architecture that it was built for.
    pub fn machine(&self) -> Machine {
        Machine::from_elf(self.header.e_machine.get(LE))
    }

    /// The address at which its code starts to run (`e_entry`), 0 if it has none.
    pub fn entry(&self) -> u64 {
        self.header.e_entry.get(LE)
    }

    /// Its PT_LOAD segments, in the order of the program headers.
    pub fn loads(&self) -> &[Segment] {
        &self.loads
    }

    /// The header of its unwind tables, `.eh_frame_hdr` (PT_GNU_EH_FRAME).
    pub fn eh_frame_header(&self) -> Option<Segment> {
        self.eh_frame_header
    }

    /// Its thread-local storage (PT_TLS).
    pub fn tls(&self) -> Option<TlsSegment> {
        self.tls.map(|tls| TlsSegment {
            address: tls.address,
            file_size: tls.file_size,
            memory_size: tls.memory_size,
            alignment: tls.alignment,
        })
    }

    /// Returns whether this is a file: only files have sections and `.symtab`.
    pub fn is_file(&self) -> bool {
        matches!(self.source, Source::File(_))
    }

    /// The load bias, which is added to an address of the module; 0 for a file.
    pub fn bias(&self) -> u64 {
        match (self.source, self.loads.first()) {
            (Source::Loaded(_, base), Some(load)) => bias(base, 0, load),
            _ => 0,
        }
    }

    /// Fills `buffer` from an address of the module, as in its headers.
    pub fn read_at(&self, address: u64, buffer: &mut [u8]) -> Result<(), ElfError> {
        let at = match self.source {
            Source::File(_) => self.file_offset(address, buffer.len() as u64)?,
            Source::Loaded(..) => self.bias().wrapping_add(address),
        };
        Ok(self.memory().read(at, buffer)?)
    }

    pub(crate) fn read_u32(&self, address: u64) -> Result<u32, ElfError> {
        let mut bytes = [0; 4];
        self.read_at(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub(crate) fn read_u64(&self, address: u64) -> Result<u64, ElfError> {
        let mut bytes = [0; 8];
        self.read_at(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn memory(&self) -> &'a dyn Memory {
        match self.source {
            Source::File(memory) | Source::Loaded(memory, _) => memory,
        }
    }

    fn file_offset(&self, address: u64, length: u64) -> Result<u64, ElfError> {
        self.loads
            .iter()
            .find_map(|load| {
                let inside = address.checked_sub(load.address)?;
                let end = inside.checked_add(length)?;
                (end <= load.file_size)
                    .then(|| load.offset.checked_add(inside))
                    .flatten()
            })
            .ok_or(Malformed("an address is outside the file"))
    }

    fn read_dynamic(&self, dynamic: Segment) -> Result<DynamicTable, ElfError> {
        let count = dynamic.memory_size as usize / size_of::<Dyn64<LE>>();
        let mut bytes = vec![0; count.min(MAX_DYNAMIC) * size_of::<Dyn64<LE>>()];
        match self.source {
            Source::File(memory) => {
                let length = bytes.len().min(dynamic.file_size as usize);
                bytes.truncate(length / size_of::<Dyn64<LE>>() * size_of::<Dyn64<LE>>());
                memory.read(dynamic.offset, &mut bytes)?;
            }
            Source::Loaded(..) => self.read_at(dynamic.address, &mut bytes)?,
        }
        let mut table = DynamicTable::default();
        let (mut rela_entry, mut jump_kind) = (size_of::<Rela64<LE>>() as u64, elf::DT_RELA.0);
        for entry in structs::<Dyn64<LE>>(&bytes) {
            let value = entry.d_val.get(LE);
            // glibc's rtld (elf/get-dynamic-info.h) rewrites these entries of a loaded module
            // into absolute addresses; musl does not.
            let address = || value.checked_sub(self.bias()).unwrap_or(value);
            match entry.d_tag.get(LE) {
                elf::DT_NULL => break,
                elf::DT_STRTAB => table.strings = address(),
                elf::DT_STRSZ => table.strings_size = value,
                elf::DT_SYMTAB => table.symbols = address(),
                elf::DT_HASH => table.hash = address(),
                elf::DT_GNU_HASH => table.gnu_hash = address(),
                elf::DT_RELA => table.rela = address(),
                elf::DT_RELASZ => table.rela_size = value,
                elf::DT_RELAENT => rela_entry = value,
                elf::DT_RELACOUNT => table.rela_count = value,
                elf::DT_JMPREL => table.jump_relocations = address(),
                elf::DT_PLTRELSZ => table.jump_relocations_size = value,
                elf::DT_PLTREL => jump_kind = value as i64,
                elf::DT_SONAME => table.soname = Some(value),
                elf::DT_FLAGS_1 => table.flags_1 = value,
                elf::DT_DEBUG => table.debug = true,
                _ => {}
            }
        }
        if rela_entry != size_of::<Rela64<LE>>() as u64 || jump_kind != elf::DT_RELA.0 {
            return Err(Malformed("its relocations are not RELA"));
        }
        Ok(table)
    }

    /// The name in the module itself (DT_SONAME), at most 255 bytes. `None` also if it is outside.
    pub fn soname(&self) -> Result<Option<Vec<u8>>, ElfError> {
        let Some(offset) = self.table.soname else {
            return Ok(None);
        };
        let left = self.table.strings_size.saturating_sub(offset);
        let mut name = vec![0; left.min(255) as usize];
        match self.read_at(self.table.strings.wrapping_add(offset), &mut name) {
            Ok(()) => {}
            Err(Malformed(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        let end = name.iter().position(|byte| *byte == 0);
        Ok(end.map(|end| name[..end].to_vec()))
    }

    /// Calls `visit` with the address, type, symbol index and addend of every relocation that is
    /// not relative: those of DT_RELA after DT_RELACOUNT, and those of DT_JMPREL.
    ///
    /// # Errors
    /// If the tables are malformed or cannot be read, or if `visit` fails.
    pub fn relocations(
        &self,
        visit: &mut dyn FnMut(u64, u32, u32, i64) -> Result<(), ElfError>,
    ) -> Result<(), ElfError> {
        let table = &self.table;
        let size = size_of::<Rela64<LE>>() as u64;
        let relative = table.rela_count.saturating_mul(size).min(table.rela_size);
        let rela_at = table.rela.wrapping_add(relative);
        for (at, length) in [
            (rela_at, table.rela_size - relative),
            (table.jump_relocations, table.jump_relocations_size),
        ] {
            self.for_chunks(at, length, size, |bytes| {
                for rela in structs::<Rela64<LE>>(bytes) {
                    visit(
                        rela.r_offset.get(LE),
                        rela.r_type(LE, false).0,
                        rela.r_sym(LE, false),
                        rela.r_addend.get(LE),
                    )?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn for_chunks(
        &self,
        at: u64,
        total: u64,
        entry: u64,
        mut visit: impl FnMut(&[u8]) -> Result<(), ElfError>,
    ) -> Result<(), ElfError> {
        let mut buffer = Vec::new();
        chunks(total, entry, |skip, length| {
            buffer.resize(length as usize, 0);
            self.read_at(at.wrapping_add(skip), &mut buffer)?;
            visit(&buffer)
        })
    }
}

/// The load bias of a module whose segment `load` is mapped with the file's `offset` at `start`.
pub(crate) fn bias(start: u64, offset: u64, load: &Segment) -> u64 {
    start
        .wrapping_sub(offset)
        .wrapping_sub(load.address.wrapping_sub(load.offset))
}

/// Splits a table of `total` bytes into whole entries, at most [`CHUNK`] bytes at a time.
fn chunks(
    total: u64,
    entry: u64,
    mut visit: impl FnMut(u64, u64) -> Result<(), ElfError>,
) -> Result<(), ElfError> {
    if total / entry > MAX_ENTRIES {
        return Err(Malformed("a table has more than 8 million entries"));
    }
    let step = CHUNK / entry * entry;
    let total = total / entry * entry;
    let mut skip = 0;
    while skip < total {
        let length = step.min(total - skip);
        visit(skip, length)?;
        skip += length;
    }
    Ok(())
}

pub(crate) fn structs<T: Pod>(bytes: &[u8]) -> &[T] {
    pod::slice_from_all_bytes(bytes).unwrap_or_default()
}

pub(crate) fn read_struct<T: Pod>(memory: &dyn Memory, address: u64) -> Result<T, ElfError> {
    let mut read = read_structs(memory, address, 1)?;
    read.pop().ok_or(Malformed("it is truncated"))
}

pub(crate) fn read_structs<T: Pod>(
    memory: &dyn Memory,
    address: u64,
    count: usize,
) -> Result<Vec<T>, ElfError> {
    let mut bytes = vec![0; count * size_of::<T>()];
    memory.read(address, &mut bytes)?;
    Ok(structs::<T>(&bytes).to_vec())
}

#[cfg(test)]
mod tests;
