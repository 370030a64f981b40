//! Walking an ELF module, in a file or in memory, with every step bounded.

use object::LittleEndian as LE;
use object::elf::{
    self, Dyn64, FileHeader64, FileType, Machine, ProgramHeader64, ProgramType, Rela64,
    SectionHeader64, Sym64, SymbolType,
};
use object::pod::{self, Pod};

use crate::memory::{Memory, MemoryError};

/// Program headers that are read; a linker writes about a dozen.
const MAX_SEGMENTS: usize = 512;
/// Entries of the dynamic table that are read; a linker writes about thirty.
const MAX_DYNAMIC: usize = 4096;
/// Links of one hash chain that are followed, and symbols whose names are compared one by one.
/// Linkers keep chains to a handful; a program has a few hundred thread-local variables.
const MAX_CHAIN: u64 = 1 << 16;
/// Symbols or relocations of one table that are looked at: 384 MiB of relocations, above what
/// the largest browsers have.
const MAX_ENTRIES: u64 = 1 << 24;
/// Bytes of a table read at a time.
const CHUNK: u64 = 64 * 1024;

/// Why a module is not readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ElfError {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("{0}")]
    Memory(#[from] MemoryError),
}

use ElfError::Malformed;

const TOO_MANY_VARIABLES: ElfError =
    Malformed("it has more than 65,536 thread-local variables to look through");

/// Where the module's bytes are.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// In a file: addresses of the [`Memory`] are file offsets.
    File(&'a dyn Memory),
    /// Loaded, with its ELF header at this address.
    Loaded(&'a dyn Memory, u64),
}

/// A PT_LOAD, PT_TLS or PT_DYNAMIC segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) file_size: u64,
    pub(crate) memory_size: u64,
    pub(crate) alignment: u64,
}

/// The dynamic table's entries that are used here; 0 where absent.
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
}

/// A symbol that was asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundSymbol {
    /// Its index in `.dynsym`; 0 for one from `.symtab`.
    pub(crate) index: u32,
    pub(crate) value: u64,
    pub(crate) size: u64,
    pub(crate) kind: SymbolType,
    pub(crate) defined: bool,
}

/// A module with its headers read.
pub(crate) struct Elf<'a> {
    source: Source<'a>,
    header: FileHeader64<LE>,
    pub(crate) loads: Vec<Segment>,
    pub(crate) tls: Option<Segment>,
    pub(crate) dynamic: Option<Segment>,
    pub(crate) interpreter: bool,
    pub(crate) table: DynamicTable,
}

impl<'a> Elf<'a> {
    /// Reads headers and dynamic table of a little-endian 64-bit module. `Ok(None)` if the bytes
    /// are no ELF at all.
    pub(crate) fn read(source: Source<'a>) -> Result<Option<Self>, ElfError> {
        let (memory, base) = match source {
            Source::File(memory) => (memory, 0),
            Source::Loaded(memory, base) => (memory, base),
        };
        let mut magic = [0; 4];
        if memory.read(base, &mut magic).is_err() || magic != elf::ELFMAG {
            return Ok(None);
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
                })
        };
        let mut module = Elf {
            source,
            header,
            loads: all(elf::PT_LOAD).collect(),
            tls: all(elf::PT_TLS).next(),
            dynamic: all(elf::PT_DYNAMIC).next(),
            interpreter: all(elf::PT_INTERP).next().is_some(),
            table: DynamicTable::default(),
        };
        if let Some(dynamic) = module.dynamic {
            module.table = module.read_dynamic(dynamic)?;
        }
        Ok(Some(module))
    }

    pub(crate) fn file_type(&self) -> FileType {
        self.header.e_type.get(LE)
    }

    pub(crate) fn machine(&self) -> Machine {
        self.header.e_machine.get(LE)
    }

    /// What is added to the module's addresses where it is loaded; 0 for a file.
    pub(crate) fn bias(&self) -> u64 {
        match (self.source, self.loads.first()) {
            (Source::Loaded(_, base), Some(load)) => bias(base, 0, load),
            _ => 0,
        }
    }

    /// Reads at an address of the module, as its headers count.
    pub(crate) fn read_at(&self, address: u64, buffer: &mut [u8]) -> Result<(), ElfError> {
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
            .ok_or(Malformed(
                "an address lies outside of what the file provides",
            ))
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
            let address = || {
                let bias = self.bias();
                if bias != 0 && value >= bias {
                    value - bias
                } else {
                    value
                }
            };
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
                _ => {}
            }
        }
        if rela_entry != size_of::<Rela64<LE>>() as u64 || jump_kind != elf::DT_RELA.0 {
            return Err(Malformed("its relocations are not of the RELA kind"));
        }
        Ok(table)
    }

    /// The name that the module gives itself (DT_SONAME), at most 255 bytes of it.
    pub(crate) fn soname(&self) -> Option<Vec<u8>> {
        let offset = self.table.soname?;
        let length = self.table.strings_size.checked_sub(offset)?.min(255);
        let mut name = vec![0; length as usize];
        self.read_at(self.table.strings.checked_add(offset)?, &mut name)
            .ok()?;
        let end = name.iter().position(|byte| *byte == 0)?;
        name.truncate(end);
        Some(name)
    }

    /// Looks a symbol up in `.dynsym`: a definition through the hash table, else a reference.
    pub(crate) fn dynamic_symbol(&self, name: &[u8]) -> Result<Option<FoundSymbol>, ElfError> {
        let table = &self.table;
        if table.symbols == 0 || table.strings == 0 {
            return Ok(None);
        }
        if table.gnu_hash != 0 {
            self.gnu_lookup(name)
        } else if table.hash != 0 {
            self.sysv_lookup(name)
        } else {
            Ok(None)
        }
    }

    /// DT_GNU_HASH: {buckets, first hashed symbol, bloom words, bloom shift}, bloom filter,
    /// buckets, chains. Symbols that are only referred to come before the first hashed one.
    fn gnu_lookup(&self, name: &[u8]) -> Result<Option<FoundSymbol>, ElfError> {
        let at = self.table.gnu_hash;
        let mut head = [0; 16];
        self.read_at(at, &mut head)?;
        let word = |index: usize| {
            u64::from(u32::from_le_bytes([
                head[4 * index],
                head[4 * index + 1],
                head[4 * index + 2],
                head[4 * index + 3],
            ]))
        };
        let (buckets, first, bloom_words, bloom_shift) = (word(0), word(1), word(2), word(3));
        if buckets == 0 || bloom_words == 0 || bloom_shift >= 32 {
            return Err(Malformed(
                "its DT_GNU_HASH has no buckets or an impossible filter",
            ));
        }
        let hash = u64::from(elf::gnu_hash(name));
        let bloom_at = at.wrapping_add(16);
        let buckets_at = bloom_at.wrapping_add(8 * bloom_words);
        let chains_at = buckets_at.wrapping_add(4 * buckets);

        let bloom = self.read_u64(bloom_at.wrapping_add(8 * ((hash / 64) % bloom_words)))?;
        let both = (1 << (hash % 64)) | (1 << ((hash >> bloom_shift) % 64));
        if bloom & both == both {
            let start = self.read_u32(buckets_at.wrapping_add(4 * (hash % buckets)))?;
            let mut index = u64::from(start);
            let mut links = 0;
            while index >= first && start != 0 {
                let link = u64::from(self.read_u32(chains_at.wrapping_add(4 * (index - first)))?);
                if link | 1 == hash | 1
                    && let Some(symbol) = self.dynamic_symbol_if_named(index, name)?
                {
                    return Ok(Some(symbol));
                }
                links += 1;
                if link & 1 == 1 {
                    break;
                }
                if links > MAX_CHAIN {
                    return Err(Malformed("a chain of its DT_GNU_HASH does not end"));
                }
                index += 1;
            }
        }
        self.undefined_tls_symbol(first.saturating_sub(1), name)
    }

    /// DT_HASH: {buckets, chains}, buckets, chains.
    fn sysv_lookup(&self, name: &[u8]) -> Result<Option<FoundSymbol>, ElfError> {
        let at = self.table.hash;
        let buckets = u64::from(self.read_u32(at)?);
        let chains = u64::from(self.read_u32(at.wrapping_add(4))?);
        if buckets == 0 {
            return Ok(None);
        }
        let hash = u64::from(elf::hash(name));
        let mut index = u64::from(self.read_u32(at.wrapping_add(8 + 4 * (hash % buckets)))?);
        let chains_at = at.wrapping_add(8 + 4 * buckets);
        for _ in 0..MAX_CHAIN.min(chains) {
            if index == 0 || index >= chains {
                break;
            }
            if let Some(symbol) = self.dynamic_symbol_if_named(index, name)? {
                return Ok(Some(symbol));
            }
            index = u64::from(self.read_u32(chains_at.wrapping_add(4 * index))?);
        }
        Ok(None)
    }

    fn dynamic_symbol_if_named(
        &self,
        index: u64,
        name: &[u8],
    ) -> Result<Option<FoundSymbol>, ElfError> {
        let size = size_of::<Sym64<LE>>() as u64;
        let mut bytes = [0; size_of::<Sym64<LE>>()];
        self.read_at(
            self.table.symbols.wrapping_add(size.wrapping_mul(index)),
            &mut bytes,
        )?;
        let [symbol] = structs::<Sym64<LE>>(&bytes) else {
            return Ok(None);
        };
        let named = self.is_named(symbol, name)?;
        Ok(named.then(|| FoundSymbol::new(index as u32, symbol)))
    }

    fn is_named(&self, symbol: &Sym64<LE>, name: &[u8]) -> Result<bool, ElfError> {
        let offset = u64::from(symbol.st_name.get(LE));
        let length = name.len() as u64 + 1;
        if offset
            .checked_add(length)
            .is_none_or(|end| end > self.table.strings_size)
        {
            return Ok(false);
        }
        let mut bytes = vec![0; name.len() + 1];
        self.read_at(self.table.strings.wrapping_add(offset), &mut bytes)?;
        Ok(bytes.split_last() == Some((&0, name)))
    }

    /// Looks through `.dynsym` from index 1 for a reference to a thread-local variable.
    fn undefined_tls_symbol(
        &self,
        count: u64,
        name: &[u8],
    ) -> Result<Option<FoundSymbol>, ElfError> {
        let size = size_of::<Sym64<LE>>() as u64;
        let from = self.table.symbols.wrapping_add(size);
        let mut found = None;
        let mut index = 1;
        let mut compared = 0;
        self.for_chunks(from, count.saturating_mul(size), size, |bytes| {
            for symbol in structs::<Sym64<LE>>(bytes) {
                if symbol.st_type() == elf::STT_TLS && found.is_none() {
                    compared += 1;
                    if compared > MAX_CHAIN {
                        return Err(TOO_MANY_VARIABLES);
                    }
                    if self.is_named(symbol, name)? {
                        found = Some(FoundSymbol::new(index, symbol));
                    }
                }
                index += 1;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Looks a thread-local definition up in `.symtab`, which only files have.
    pub(crate) fn static_tls_symbol(&self, name: &[u8]) -> Result<Option<FoundSymbol>, ElfError> {
        let Source::File(file) = self.source else {
            return Ok(None);
        };
        let (at, count) = (
            self.header.e_shoff.get(LE),
            usize::from(self.header.e_shnum.get(LE)),
        );
        let size = usize::from(self.header.e_shentsize.get(LE));
        if at == 0 || size != size_of::<SectionHeader64<LE>>() {
            return Ok(None);
        }
        let sections: Vec<SectionHeader64<LE>> = read_structs(file, at, count)?;
        let Some(table) = sections
            .iter()
            .find(|it| it.sh_type.get(LE) == elf::SHT_SYMTAB)
        else {
            return Ok(None);
        };
        let Some(strings) = sections.get(table.sh_link.get(LE) as usize) else {
            return Err(Malformed("its .symtab has no string table"));
        };
        let (strings_at, strings_size) = (strings.sh_offset.get(LE), strings.sh_size.get(LE));
        let entry = size_of::<Sym64<LE>>() as u64;
        let mut found: Option<FoundSymbol> = None;
        let mut expected = vec![0; name.len() + 1];
        let mut compared = 0;
        chunks(table.sh_size.get(LE), entry, |skip, length| {
            let bytes = file.read_vec(
                table.sh_offset.get(LE).wrapping_add(skip),
                length,
                CHUNK as usize,
            )?;
            for symbol in structs::<Sym64<LE>>(&bytes) {
                let local = FoundSymbol::new(0, symbol);
                let offset = u64::from(symbol.st_name.get(LE));
                if local.kind != elf::STT_TLS
                    || !local.defined
                    || found.is_some()
                    || offset + expected.len() as u64 > strings_size
                {
                    continue;
                }
                compared += 1;
                if compared > MAX_CHAIN {
                    return Err(TOO_MANY_VARIABLES);
                }
                file.read(strings_at.wrapping_add(offset), &mut expected)?;
                if expected.split_last() == Some((&0, name)) {
                    found = Some(local);
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Calls `visit` with the address, type, symbol index and addend of every relocation that is
    /// not relative: those of DT_RELA behind DT_RELACOUNT, and those of DT_JMPREL.
    pub(crate) fn relocations(
        &self,
        visit: &mut dyn FnMut(u64, u32, u32, i64) -> Result<(), ElfError>,
    ) -> Result<(), ElfError> {
        let table = &self.table;
        let size = size_of::<Rela64<LE>>() as u64;
        let relative = table.rela_count.saturating_mul(size).min(table.rela_size);
        for (at, length) in [
            (
                table.rela.wrapping_add(relative),
                table.rela_size - relative,
            ),
            (table.jump_relocations, table.jump_relocations_size),
        ] {
            if length == 0 {
                continue;
            }
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

impl FoundSymbol {
    fn new(index: u32, symbol: &Sym64<LE>) -> Self {
        FoundSymbol {
            index,
            value: symbol.st_value.get(LE),
            size: symbol.st_size.get(LE),
            kind: symbol.st_type(),
            defined: symbol.st_shndx.get(LE) != elf::SHN_UNDEF,
        }
    }
}

/// What is added to the addresses of a module whose first PT_LOAD segment is `load`, when the
/// page of the file at `offset` (that segment's first) is mapped at `start`.
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
        return Err(Malformed("a table has more than 16 million entries"));
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

fn structs<T: Pod>(bytes: &[u8]) -> &[T] {
    pod::slice_from_all_bytes(bytes).unwrap_or_default()
}

fn read_struct<T: Pod>(memory: &dyn Memory, address: u64) -> Result<T, ElfError> {
    let mut read = read_structs(memory, address, 1)?;
    read.pop().ok_or(Malformed("it is cut short"))
}

fn read_structs<T: Pod>(
    memory: &dyn Memory,
    address: u64,
    count: usize,
) -> Result<Vec<T>, ElfError> {
    let mut bytes = vec![0; count * size_of::<T>()];
    memory.read(address, &mut bytes)?;
    Ok(structs::<T>(&bytes).to_vec())
}
