//! Names of Go's functions, which its runtime keeps for its own stack traces, also in stripped programs (`-ldflags=-s`).
//!
//! The table is that of Go 1.18 and later (`pcHeader`, `functab` and `_func` in Go's src/runtime). Up to Go 1.20, it has
//! `[...]` in the place of types.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::endian::Endianness;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ReadCache};

/// Maximum size of the table, in bytes: 128 MiB. Kubernetes' kubelet, a large program, has 25 MiB.
const MAX_TABLE: u64 = 128 << 20;
/// Maximum length of a name that is kept, in bytes.
const MAX_NAME: usize = 4096;
/// Its section; the second in position-independent programs of external linkers.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// The first four bytes, of Go 1.18 and 1.19, and of Go 1.20 and later.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// Functions at the entry point of programs that Go's own linker has made.
const ENTRIES: [&[u8]; 2] = [b"_rt0_amd64_linux\0", b"_rt0_arm64_linux\0"];

/// The functions of a Go program.
pub(crate) struct GoFunctions {
    table: Vec<u8>,
    header: Header,
    /// The address that the functions' addresses count from.
    text: u64,
}

/// The offsets of the table's parts, in bytes.
#[derive(Clone, Copy)]
struct Header {
    /// Number of functions.
    count: usize,
    names: usize,
    /// The table of functions: the address and the offset of each.
    functions: usize,
    /// The address that addresses count from; 0 if the table has none.
    text: u64,
}

impl GoFunctions {
    /// The functions of a program. `None` if it is not one of Go's, or its functions' addresses are not known.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let mut names = SECTIONS.into_iter();
        let section = names.find_map(|name| elf.section_by_name(name))?;
        let (offset, size) = section.file_range()?;
        if size > MAX_TABLE {
            return None;
        }
        let mut table = vec![0; usize::try_from(size).ok()?];
        file.read_exact_at(&mut table, offset).ok()?;
        let text = elf.section_by_name(".text")?.address();
        Self::parse(table, elf.entry(), text)
    }

    /// The functions in a table, the address of the program's entry point, and that of its code.
    pub(crate) fn parse(table: Vec<u8>, entry: u64, text: u64) -> Option<Self> {
        let header = Header::parse(&table)?;
        let mut functions = Self {
            table,
            header,
            text: header.text,
        };
        if functions.text == 0 {
            // Position-independent programs, and all from Go 1.26 on. Go's own linker has only Go's code in the section.
            let start = (0..header.count).find(|index| {
                let name = functions.name_bytes(*index);
                name.is_some_and(|name| ENTRIES.iter().any(|it| name.starts_with(it)))
            })?;
            if entry.checked_sub(functions.start(start)?) != Some(text) {
                return None;
            }
            functions.text = text;
        }
        Some(functions)
    }

    /// The name of the function at an address of the program's headers.
    pub(crate) fn name(&self, address: u64) -> Option<String> {
        let offset = address.checked_sub(self.text)?;
        // The entry after the last function is its end.
        if offset >= self.start(self.header.count)? {
            return None;
        }
        let (mut first, mut behind) = (0, self.header.count);
        while behind - first > 1 {
            let middle = first.midpoint(behind);
            if self.start(middle)? <= offset {
                first = middle;
            } else {
                behind = middle;
            }
        }
        if self.start(first)? > offset {
            return None;
        }
        let name = self.name_bytes(first)?;
        let name = &name[..name.len().min(MAX_NAME)];
        let end = name.iter().position(|byte| *byte == 0);
        let name = String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]);
        // As Go's linker writes it into symbol tables (putelfsym in its elf.go).
        (!name.is_empty()).then(|| name.replace('·', "."))
    }

    /// The address of a function, from the start of Go's code; with the count, the end of the last one.
    fn start(&self, index: usize) -> Option<u64> {
        let entry = self.header.functions.checked_add(index.checked_mul(8)?)?;
        u32_at(&self.table, entry).map(u64::from)
    }

    /// The rest of the table, from the name of a function on.
    fn name_bytes(&self, index: usize) -> Option<&[u8]> {
        let entry = self.header.functions.checked_add(index.checked_mul(8)?)?;
        let function = u32_at(&self.table, entry.checked_add(4)?)? as usize;
        let function = self.header.functions.checked_add(function)?;
        let name = u32_at(&self.table, function.checked_add(4)?)? as usize;
        self.table.get(self.header.names.checked_add(name)?..)
    }
}

impl Header {
    fn parse(table: &[u8]) -> Option<Self> {
        // Two bytes are zero, then the smallest size of an instruction, and that of a pointer.
        if !MAGICS.contains(&u32_at(table, 0)?) || table.get(4..6)? != [0, 0] || table.get(7)? != &8
        {
            return None;
        }
        let word = |index: usize| {
            let bytes = table.get(8 + 8 * index..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let place = |index| usize::try_from(word(index)?).ok();
        Some(Self {
            // Bounded by the table.
            count: place(0)?.min(table.len() / 8),
            text: word(2)?,
            names: place(3)?,
            functions: place(7)?,
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}
