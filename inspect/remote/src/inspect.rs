//! Collects all facts of a file about one thread-local variable, to explain why a reader finds it
//! or not. Readers use [`Module`], which has fewer.

mod archive;
mod other;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use object::elf;

use crate::Error;
pub use crate::arch::Relaxed;
use crate::elf::sections::{Section, text};
use crate::elf::{Elf, ElfError, FoundSymbol, Source};
use crate::file::require_regular;
use crate::machine::Machine;
use crate::memory::{FileBytes, Memory};
use crate::module::{Access, Module, ModuleFile};

pub use archive::Member;
pub use other::Other;

/// Maximum number of libraries that a file itself needs. Large desktop programs need some 100.
const MAX_NEEDED: usize = 1024;
/// Maximum number of bytes of `.comment` read: it has a line per compiler.
const MAX_COMMENT: u64 = 64 * 1024;
/// Maximum number of bytes of code searched for relaxed accesses: twice the largest browsers' code.
const MAX_CODE: u64 = 1 << 29;
/// Maximum size of the relocations of an object file, in bytes.
const MAX_RELOCATIONS: u64 = 1 << 29;
/// Number of bytes of code read at a time.
const CODE_CHUNK: u64 = 1 << 20;

/// The contents of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// A 64-bit little-endian ELF file.
    Elf(Box<Inspection>),
    /// An ELF file with another word size or byte order.
    Foreign {
        /// The word size in bits.
        bits: u8,
        /// True if the most significant byte comes first.
        big_endian: bool,
        /// `e_machine`
        machine: u16,
    },
    /// A static library.
    Archive {
        /// Number of members.
        count: usize,
        /// The members that define or use the variable, or cannot be read.
        members: Vec<Member>,
    },
    /// Not an ELF file.
    Other(Other),
}

/// The kind of an ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Not linked yet.
    Object,
    /// A program at a fixed address, started by a dynamic linker.
    Executable,
    /// A program at any address, started by a dynamic linker.
    PositionIndependent,
    /// A program without a dynamic linker, at a fixed address.
    Static,
    /// A program without a dynamic linker, which relocates itself.
    StaticPie,
    /// A library for the dynamic linker.
    Library,
    /// The memory of a process that has ended.
    Core,
    /// A file with debug information only, as written by `objcopy --only-keep-debug`.
    DebugInformation,
    /// A type that linkers do not create for Linux.
    Unknown,
}

/// An ELF file's facts about the variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The kind of file.
    pub kind: Kind,
    /// The architecture it was built for.
    pub machine: Machine,
    /// True if it has no `.symtab`.
    pub stripped: bool,
    /// The libraries that it needs (DT_NEEDED).
    pub needed: Vec<String>,
    /// The directories in which the dynamic linker searches for them, separated by colons:
    /// DT_RUNPATH, or DT_RPATH if there is none. `$ORIGIN` is the file's own directory.
    pub search_path: Option<String>,
    /// The compilers and linkers in `.comment`.
    pub made_by: Vec<String>,
    /// Symbols with the name in `.dynsym`.
    pub dynamic: Vec<Entry>,
    /// Symbols with the name in `.symtab`.
    pub local: Vec<Entry>,
    /// The version of the exported symbol.
    pub version: Option<String>,
    /// True if a relocation is for the offset in the block (DTPOFF): of unrelaxed code.
    pub block_offset: bool,
    /// Code sequences that linkers generate for relaxed TLS descriptors.
    pub relaxed: Relaxed,
    /// The access models of an object file's code.
    pub code: Vec<Access>,
    /// True if it contains gcc's intermediate code (-flto), which is not decoded.
    pub intermediate: bool,
    /// The facts that readers use, for a file that can be loaded.
    pub module: Option<Module>,
}

/// An entry of a symbol table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// True if it is a thread-local variable (STT_TLS).
    pub thread_local: bool,
    /// True if this file defines it.
    pub defined: bool,
    /// Size, in bytes.
    pub size: u64,
    /// True if it is visible only in its own module or object file (STB_LOCAL).
    pub local: bool,
    /// True if it is visible only in its own module once linked (STV_HIDDEN).
    pub hidden: bool,
}

impl Contents {
    /// Inspects the file at `path`, on the reader's side, for the variable `name`.
    pub fn open(path: &Path, name: &str) -> Result<Self, Error> {
        let file = require_regular(path)?;
        Self::of(&file, name).map_err(|reason| Error::Elf {
            path: path.into(),
            reason,
        })
    }

    /// Inspects an open file; the error is the reason.
    pub fn of(file: &File, name: &str) -> Result<Self, String> {
        let size = file.metadata().map_err(|error| error.to_string())?.len();
        let bytes = FileBytes(file);
        let contents = if archive::is_archive(&bytes) {
            archive::read(&bytes, size, name)
        } else {
            Self::of_memory(&bytes, size, name)
        };
        contents.map_err(|error| match error {
            ElfError::Memory(_) => format!("it is truncated after {size} bytes"),
            error => error.to_string(),
        })
    }

    /// Returns whether a file is a 32-bit ELF file. Reads nothing else.
    pub fn is_32_bit(file: &File) -> bool {
        let mut start = [0; 5];
        let read = FileBytes(file).read(0, &mut start);
        read.is_ok() && start.starts_with(&elf::ELFMAG) && start[4] == elf::ELFCLASS32.0
    }

    fn of_memory(memory: &dyn Memory, size: u64, name: &str) -> Result<Self, ElfError> {
        let mut start = [0; other::START];
        let length = size.min(start.len() as u64) as usize;
        memory.read(0, &mut start[..length])?;
        let start = &start[..length];
        if !start.starts_with(&elf::ELFMAG) {
            return Ok(Self::Other(Other::of(start)));
        }
        // e_ident[EI_CLASS], e_ident[EI_DATA]; e_machine is the 10th half-word in either class.
        if let &[_, _, _, _, class, data, ..] = start
            && let Some(&[low, high]) = start.get(18..20)
            && (class == elf::ELFCLASS32.0 || data == elf::ELFDATA2MSB.0)
        {
            let big_endian = data == elf::ELFDATA2MSB.0;
            let machine = if big_endian {
                u16::from_be_bytes([low, high])
            } else {
                u16::from_le_bytes([low, high])
            };
            return Ok(Self::Foreign {
                bits: if class == elf::ELFCLASS32.0 { 32 } else { 64 },
                big_endian,
                machine,
            });
        }
        let Some(elf) = Elf::read(Source::File(memory))? else {
            return Ok(Self::Other(Other::Unknown));
        };
        Ok(Self::Elf(Box::new(Inspection::read(&elf, name)?)))
    }
}

impl Inspection {
    fn read(elf: &Elf<'_>, name: &str) -> Result<Self, ElfError> {
        let sections = elf.sections()?;
        let table = |kind| sections.iter().find(|section| section.kind == kind);
        let named = |table: Option<&Section>| match table {
            Some(table) => elf.symbols_named(&sections, table, name.as_bytes()),
            None => Ok(Vec::new()),
        };
        let kind = kind(elf, &sections);
        let machine = elf.machine();
        let mut inspection = Self {
            kind,
            machine,
            stripped: table(elf::SHT_SYMTAB).is_none(),
            needed: needed(elf)?,
            search_path: elf.search_path()?,
            made_by: made_by(elf, &sections)?,
            dynamic: Vec::new(),
            local: Vec::new(),
            version: None,
            block_offset: false,
            relaxed: Relaxed::default(),
            code: Vec::new(),
            intermediate: false,
            module: None,
        };
        if matches!(kind, Kind::Core | Kind::DebugInformation | Kind::Unknown) {
            return Ok(inspection);
        }
        let dynamic = named(table(elf::SHT_DYNSYM))?;
        let local = named(table(elf::SHT_SYMTAB))?;
        inspection.dynamic = dynamic.iter().map(Entry::of).collect();
        inspection.local = local.iter().map(Entry::of).collect();
        if kind == Kind::Object {
            inspection.code = in_code(elf, &sections, machine, &local)?;
            inspection.intermediate = elf.section_like(&sections, b".gnu.lto_")?.is_some();
            return Ok(inspection);
        }
        if let Some(exported) = dynamic.iter().find(|it| it.defined && !it.local) {
            inspection.version = elf.version(&sections, exported.index)?;
        }
        let indices: Vec<u32> = dynamic.iter().map(|it| it.index).collect();
        elf.relocations(&mut |_, number, by, _| {
            inspection.block_offset |= machine.is_block_offset(number) && indices.contains(&by);
            Ok(())
        })?;
        let module = Module::of(elf, Arc::new(ModuleFile::of(elf)?), name)?;
        inspection.relaxed = relaxed(elf, &module)?;
        inspection.module = Some(module);
        Ok(inspection)
    }

    /// Returns whether gcc, clang, rustc or a linker has written this name into `.comment`.
    pub fn is_made_by(&self, tool: &str) -> bool {
        self.made_by.iter().any(|line| line.contains(tool))
    }
}

impl Entry {
    fn of(symbol: &FoundSymbol) -> Self {
        Self {
            thread_local: symbol.kind == elf::STT_TLS,
            defined: symbol.defined,
            size: symbol.size,
            local: symbol.local,
            hidden: symbol.hidden,
        }
    }
}

fn kind(elf: &Elf<'_>, sections: &[Section]) -> Kind {
    let program = elf.table.flags_1 & elf::DF_1_PIE.0 != 0 || (elf.interpreter && elf.table.debug);
    let without_code = |it: &Section| it.executable && it.kind == elf::SHT_NOBITS;
    if sections.iter().any(without_code) {
        return Kind::DebugInformation;
    }
    match elf.file_type() {
        elf::ET_REL => Kind::Object,
        elf::ET_CORE => Kind::Core,
        elf::ET_EXEC if elf.dynamic.is_some() => Kind::Executable,
        elf::ET_EXEC => Kind::Static,
        elf::ET_DYN if program && elf.interpreter => Kind::PositionIndependent,
        elf::ET_DYN if program => Kind::StaticPie,
        elf::ET_DYN => Kind::Library,
        _ => Kind::Unknown,
    }
}

fn needed(elf: &Elf<'_>) -> Result<Vec<String>, ElfError> {
    let needed = elf.needed(MAX_NEEDED + 1)?;
    if needed.len() > MAX_NEEDED {
        return Err(ElfError::Malformed("it needs more than 1024 libraries"));
    }
    Ok(needed)
}

fn made_by(elf: &Elf<'_>, sections: &[Section]) -> Result<Vec<String>, ElfError> {
    let comment = match elf.section_like(sections, b".comment\0")? {
        Some(section) => elf.section_bytes(&section, MAX_COMMENT)?,
        None => return Ok(Vec::new()),
    };
    let lines = comment.split(|byte| *byte == 0);
    Ok(lines.filter(|it| !it.is_empty()).map(text).collect())
}

/// The distinct access models of an object file's code, from its relocations.
fn in_code(
    elf: &Elf<'_>,
    sections: &[Section],
    machine: Machine,
    symbols: &[FoundSymbol],
) -> Result<Vec<Access>, ElfError> {
    let mut found = Vec::new();
    let relocations = || sections.iter().filter(|it| it.kind == elf::SHT_RELA);
    let size = relocations().fold(0_u64, |sum, it| sum.saturating_add(it.size));
    if size > MAX_RELOCATIONS {
        let reason = "it has more than 512 MiB of relocations";
        return Err(ElfError::Malformed(reason));
    }
    for section in relocations() {
        let code = sections.get(section.info as usize);
        if !code.is_some_and(|code| code.executable) {
            continue;
        }
        elf.relocations_of(section, &mut |number, by| {
            if symbols.iter().any(|symbol| symbol.index == by)
                && let Some(access) = machine.access_in_code(number)
                && !found.contains(&access)
            {
                found.push(access);
            }
        })?;
    }
    Ok(found)
}

/// Searches the code for TLS descriptor accesses that the linker relaxed.
fn relaxed(elf: &Elf<'_>, module: &Module) -> Result<Relaxed, ElfError> {
    let mut all = Relaxed::default();
    let offset = module.symbol.definition().and_then(|(offset, _)| {
        let block = module.machine.executable_block(&module.tls?)?;
        let address = block.wrapping_add_unsigned(offset);
        module.executable.then_some(address)
    });
    let slots: Vec<u64> = module.relocations.iter().map(|it| it.slot).collect();
    if offset.is_none() && slots.is_empty() {
        return Ok(all);
    }
    let overlap = module.machine.max_sequence() as u64 - 1;
    let mut left = MAX_CODE;
    let mut code = Vec::new();
    for load in elf.loads.iter().filter(|load| load.executable) {
        let size = load.file_size.min(left);
        left -= size;
        let mut start = 0;
        while start < size {
            let length = (size - start).min(CODE_CHUNK + overlap);
            code.resize(length as usize, 0);
            let address = load.address.wrapping_add(start);
            elf.read_at(address, &mut code)?;
            let found = module.machine.find_relaxed(&code, address, offset, &slots);
            all.to_local_exec += found.to_local_exec;
            all.to_initial_exec += found.to_initial_exec;
            start += CODE_CHUNK;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use otelctx_fixtures::Compiler;

    use super::*;
    use crate::memory::Image;

    const NAME: &str = "otel_thread_ctx_v1";

    fn of(bytes: &[u8]) -> Result<Contents, ElfError> {
        let mut image = Image::new();
        image.map(0, bytes);
        if archive::is_archive(&image) {
            archive::read(&image, bytes.len() as u64, NAME)
        } else {
            Contents::of_memory(&image, bytes.len() as u64, NAME)
        }
    }

    /// A static library with one member.
    fn archive_of(member: &[u8]) -> Vec<u8> {
        let mut bytes = b"!<arch>\n".to_vec();
        let size = member.len();
        bytes.extend(format!("{:<48}{size:<10}`\n", "object.o/").bytes());
        bytes.extend(member);
        bytes
    }

    fn samples() -> Option<[Vec<u8>; 3]> {
        let gcc = Compiler::gcc();
        let library = gcc.library(&["variable.c"], &["-mtls-dialect=gnu2"])?;
        let object = gcc.program(&["variable.c"], &["-c", "-fPIC"])?;
        let object = std::fs::read(object).unwrap();
        Some([std::fs::read(library).unwrap(), archive_of(&object), object])
    }

    #[test]
    fn an_archive_tells_its_members() {
        let Some([_, archive, object]) = samples() else {
            return;
        };
        let Ok(Contents::Elf(alone)) = of(&object) else {
            panic!("no ELF file")
        };
        assert_eq!(alone.code, [Access::GeneralDynamic]);
        let member = Member {
            name: "object.o".into(),
            contents: Ok(alone),
        };
        let expected = Contents::Archive {
            count: 1,
            members: vec![member],
        };
        assert_eq!(of(&archive), Ok(expected));
    }

    #[test]
    fn cut_anywhere_and_any_byte_wrong() {
        let Some(samples) = samples() else { return };
        for bytes in samples {
            for length in (0..bytes.len()).step_by(61) {
                let _ = of(&bytes[..length]);
            }
            let mut broken = bytes.clone();
            for at in (0..bytes.len()).step_by(3) {
                for value in [0, 0x7f, 0xff] {
                    broken[at] = value;
                    let _ = of(&broken);
                }
                broken[at] = bytes[at];
            }
        }
    }
}
