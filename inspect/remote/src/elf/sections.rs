//! Sections, which are not needed at run time.

use memchr::memmem::Finder;
use object::LittleEndian as LE;
use object::elf::{self, Dyn64, DynamicTag, Rela64, SectionHeader64, SectionType, Sym64};

use super::ElfError::Malformed;
use super::{CHUNK, Elf, ElfError, FoundSymbol, MAX_DYNAMIC, Source};
use super::{chunks, read_struct, read_structs, structs};

/// Maximum number of sections. A large object file, with one for each function, has ten thousand.
const MAX_SECTIONS: u64 = 1 << 18;
/// Maximum size of the table of section names, in bytes. A program's has a few hundred.
const MAX_SECTION_NAMES: u64 = 1 << 20;
/// Maximum size of a string table, in bytes: more than the largest browsers have.
const MAX_STRINGS: u64 = 1 << 29;
/// Maximum number of positions in a string table with the name; linkers share them.
const MAX_SPELLINGS: usize = 64;
/// Maximum size of a library's name or search path, in bytes: PATH_MAX.
const MAX_STRING: u64 = 4096;
/// Maximum number of bytes of a segment that are searched for a section's first bytes.
const MAX_SEARCHED: u64 = 1 << 20;
/// Maximum number of symbols with the name in one table: every object file may have a local one.
const MAX_NAMESAKES: usize = 1024;

/// A section, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    name: u32,
    pub(crate) kind: SectionType,
    /// SHF_EXECINSTR
    pub executable: bool,
    /// SHF_COMPRESSED
    pub compressed: bool,
    /// Address in the module (`sh_addr`), 0 for a section that is not loaded.
    pub address: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Size, in bytes.
    pub size: u64,
    pub(crate) link: u32,
    pub(crate) info: u32,
}

impl Elf<'_> {
    /// All section headers; none for a loaded module, or if they were stripped.
    ///
    /// # Errors
    /// If there are more than 262,144, or the headers cannot be read.
    pub fn sections(&self) -> Result<Vec<Section>, ElfError> {
        let Source::File(file) = self.source else {
            return Ok(Vec::new());
        };
        let at = self.header.e_shoff.get(LE);
        let size = usize::from(self.header.e_shentsize.get(LE));
        if at == 0 || size != size_of::<SectionHeader64<LE>>() {
            return Ok(Vec::new());
        }
        let mut count = u64::from(self.header.e_shnum.get(LE));
        if count == 0 {
            // The number exceeds the field: it is in the first header (ELF, "Section Header").
            let first: SectionHeader64<LE> = read_struct(file, at)?;
            count = first.sh_size.get(LE);
        }
        if count > MAX_SECTIONS {
            return Err(Malformed("it has more than 262,144 sections"));
        }
        let headers: Vec<SectionHeader64<LE>> = read_structs(file, at, count as usize)?;
        let section = |header: &SectionHeader64<LE>| Section {
            name: header.sh_name.get(LE),
            kind: header.sh_type.get(LE),
            executable: header.sh_flags.get(LE).contains(elf::SHF_EXECINSTR),
            compressed: header.sh_flags.get(LE).contains(elf::SHF_COMPRESSED),
            address: header.sh_addr.get(LE),
            offset: header.sh_offset.get(LE),
            size: header.sh_size.get(LE),
            link: header.sh_link.get(LE),
            info: header.sh_info.get(LE),
        };
        Ok(headers.iter().map(section).collect())
    }

    fn section_names<'s>(&self, sections: &'s [Section]) -> Option<&'s Section> {
        let mut names = usize::from(self.header.e_shstrndx.get(LE).0);
        if names == usize::from(elf::SHN_XINDEX.0) {
            names = sections.first().map_or(0, |first| first.link as usize);
        }
        sections.get(names)
    }

    /// Returns the first section of each of these names, all of which are read at once.
    pub fn sections_named<const N: usize>(
        &self,
        names: [&[u8]; N],
    ) -> Result<[Option<Section>; N], ElfError> {
        let sections = self.sections()?;
        let strings = match self.section_names(&sections) {
            Some(strings) => self.section_bytes(strings, MAX_SECTION_NAMES)?,
            None => Vec::new(),
        };
        let mut found = [None; N];
        for section in &sections {
            let rest = strings.get(section.name as usize..).unwrap_or_default();
            for (name, found) in names.iter().zip(&mut found) {
                let is_name = rest.starts_with(name) && rest.get(name.len()) == Some(&0);
                if is_name && found.is_none() {
                    *found = Some(*section);
                }
            }
        }
        Ok(found)
    }

    /// The first section whose name has this prefix.
    pub(crate) fn section_like(
        &self,
        sections: &[Section],
        prefix: &[u8],
    ) -> Result<Option<Section>, ElfError> {
        let Some(names) = self.section_names(sections) else {
            return Ok(None);
        };
        let mut start = vec![0; prefix.len()];
        for section in sections {
            let end = u64::from(section.name).saturating_add(prefix.len() as u64);
            if end > names.size {
                continue;
            }
            let at = names.offset.saturating_add(section.name.into());
            self.memory().read(at, &mut start)?;
            if start == prefix {
                return Ok(Some(*section));
            }
        }
        Ok(None)
    }

    /// The section with this name, if there is one.
    pub fn section_named(&self, name: &[u8]) -> Result<Option<Section>, ElfError> {
        let terminated = [name, b"\0"].concat();
        self.section_like(&self.sections()?, &terminated)
    }

    /// The address of these bytes in the first megabyte of a segment that can be written, at a multiple of 16.
    pub(crate) fn find_written(&self, bytes: &[u8]) -> Result<Option<u64>, ElfError> {
        const STEP: u64 = 16;
        let finder = Finder::new(bytes);
        for load in self.loads.iter().filter(|load| load.writable) {
            let mut data = vec![0; load.memory_size.min(MAX_SEARCHED) as usize];
            // What was mapped may be less.
            let read = |data: &mut [u8]| self.read_at(load.address, data);
            if read(&mut data).is_err() {
                data.truncate(load.file_size.min(MAX_SEARCHED) as usize);
                read(&mut data)?;
            }
            let mut places = finder.find_iter(&data);
            let address = places.find_map(|at| {
                let address = load.address.wrapping_add(at as u64);
                (address % STEP == 0).then_some(address)
            });
            if address.is_some() {
                return Ok(address);
            }
        }
        Ok(None)
    }

    /// The first `limit` bytes of a section.
    pub fn section_bytes(&self, section: &Section, limit: u64) -> Result<Vec<u8>, ElfError> {
        let size = section.size.min(limit);
        let bytes = self.memory().read_vec(section.offset, size, size as usize);
        Ok(bytes?)
    }

    /// Calls `visit` with the type and the symbol index of every relocation in a section.
    pub(crate) fn relocations_of(
        &self,
        section: &Section,
        visit: &mut dyn FnMut(u32, u32),
    ) -> Result<(), ElfError> {
        let file = self.memory();
        let entry = size_of::<Rela64<LE>>() as u64;
        chunks(section.size, entry, |skip, length| {
            let at = section.offset.wrapping_add(skip);
            for rela in structs::<Rela64<LE>>(&file.read_vec(at, length, CHUNK as usize)?) {
                visit(rela.r_type(LE, false).0, rela.r_sym(LE, false));
            }
            Ok(())
        })
    }

    /// The names of the libraries that it needs (DT_NEEDED), at most `most` of them.
    pub fn needed(&self, most: usize) -> Result<Vec<String>, ElfError> {
        self.dynamic_strings(elf::DT_NEEDED, most)
    }

    /// The directories in which the dynamic linker searches for its libraries, separated by colons:
    /// DT_RUNPATH, or DT_RPATH if there is none.
    pub fn search_path(&self) -> Result<Option<String>, ElfError> {
        for tag in [elf::DT_RUNPATH, elf::DT_RPATH] {
            if let Some(path) = self.dynamic_strings(tag, 1)?.pop() {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// The strings of the dynamic section's entries with this tag, at most `most` of them.
    fn dynamic_strings(&self, tag: DynamicTag, most: usize) -> Result<Vec<String>, ElfError> {
        let Some(dynamic) = self.dynamic else {
            return Ok(Vec::new());
        };
        let entry = size_of::<Dyn64<LE>>() as u64;
        let size = dynamic.file_size.min(MAX_DYNAMIC as u64 * entry);
        let file = self.memory();
        let bytes = file.read_vec(dynamic.offset, size, size as usize)?;
        let entries = structs::<Dyn64<LE>>(&bytes[..bytes.len() - bytes.len() % entry as usize]);
        let mut names = Vec::new();
        for entry in entries.iter().filter(|it| it.d_tag.get(LE) == tag) {
            let offset = entry.d_val.get(LE);
            let length = self.table.strings_size.saturating_sub(offset);
            let mut name = vec![0; length.min(MAX_STRING) as usize];
            self.read_at(self.table.strings.saturating_add(offset), &mut name)?;
            names.push(text(&name));
            if names.len() == most {
                break;
            }
        }
        Ok(names)
    }

    /// All symbols with this name in a symbol table, of any type.
    pub(crate) fn symbols_named(
        &self,
        sections: &[Section],
        table: &Section,
        name: &[u8],
    ) -> Result<Vec<FoundSymbol>, ElfError> {
        let Some(strings) = sections.get(table.link as usize) else {
            return Err(Malformed("a symbol table has no string table"));
        };
        let spellings = self.spellings(strings, name)?;
        let mut found = Vec::new();
        if spellings.is_empty() {
            return Ok(found);
        }
        let mut index = 0;
        let file = self.memory();
        chunks(table.size, size_of::<Sym64<LE>>() as u64, |skip, length| {
            let at = table.offset.wrapping_add(skip);
            for symbol in structs::<Sym64<LE>>(&file.read_vec(at, length, CHUNK as usize)?) {
                if spellings.contains(&symbol.st_name.get(LE)) && found.len() < MAX_NAMESAKES {
                    found.push(FoundSymbol::new(index, symbol));
                }
                index += 1;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The offsets of `name` in a string table: faster than reading the name of each symbol.
    fn spellings(&self, strings: &Section, name: &[u8]) -> Result<Vec<u32>, ElfError> {
        if strings.size > MAX_STRINGS {
            return Err(Malformed("a string table has more than 512 MiB"));
        }
        let spelling = [name, b"\0"].concat();
        let finder = Finder::new(&spelling);
        let mut found = Vec::new();
        let mut start = 0;
        while start < strings.size {
            // Chunks overlap, so that the name is not split.
            let length = (strings.size - start).min(CHUNK + spelling.len() as u64 - 1);
            let at = strings.offset.wrapping_add(start);
            let bytes = self.memory().read_vec(at, length, 2 * CHUNK as usize)?;
            let left = MAX_SPELLINGS - found.len();
            let indexes = finder.find_iter(&bytes).take(left);
            found.extend(indexes.map(|index| (start + index as u64) as u32));
            start += CHUNK;
        }
        Ok(found)
    }

    /// The name of a `.dynsym` symbol's version, if any (System V ABI, "Symbol Versioning").
    pub(crate) fn version(
        &self,
        sections: &[Section],
        symbol: u32,
    ) -> Result<Option<String>, ElfError> {
        /// VER_NDX_GLOBAL; larger indexes have a name.
        const GLOBAL: u16 = 1;
        /// Maximum number of versions of a library; glibc has about forty.
        const MAX_VERSIONS: usize = 4096;
        /// VERSYM_HIDDEN: the linker does not bind new references to this version.
        const HIDDEN: u16 = 0x8000;

        let of_kind = |kind| sections.iter().find(|section| section.kind == kind);
        let (Some(numbers), Some(definitions)) =
            (of_kind(elf::SHT_GNU_VERSYM), of_kind(elf::SHT_GNU_VERDEF))
        else {
            return Ok(None);
        };
        let file = self.memory();
        let at = numbers.offset.saturating_add(2 * u64::from(symbol));
        let number = file.read_u16(at)? & !HIDDEN;
        if number <= GLOBAL {
            return Ok(None);
        }
        let mut at = definitions.offset;
        for _ in 0..MAX_VERSIONS {
            let definition: elf::Verdef<LE> = read_struct(file, at)?;
            if definition.vd_ndx.get(LE) == elf::VersionIndex(number) {
                let aux = at.saturating_add(definition.vd_aux.get(LE).into());
                let name: elf::Verdaux<LE> = read_struct(file, aux)?;
                let strings = sections.get(definitions.link as usize);
                let offset = strings.map_or(0, |it| it.offset);
                let at = offset.saturating_add(name.vda_name.get(LE).into());
                return Ok(Some(text(&file.read_vec(at, 64, 64)?)));
            }
            match definition.vd_next.get(LE) {
                0 => break,
                next => at = at.saturating_add(next.into()),
            }
        }
        Ok(Some(number.to_string()))
    }
}

/// Bytes up to the first NUL.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}
