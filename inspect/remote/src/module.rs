//! Facts about an ELF file, and about its definition and use of one thread-local variable.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use object::elf;

use crate::Error;
use crate::arch::TlsRelocation;
use crate::elf::{Elf, ElfError, FoundSymbol, Segment, Source};
use crate::file::require_regular;
use crate::file_cache::{MAX_READ, read_within};
use crate::libc;
pub use crate::machine::{Access, Machine, TlsSegment};
use crate::memory::{FileBytes, Image};

pub use crate::file::{open_mapped, open_regular};

/// Maximum number of relocations kept of one module; a linker writes one or two for a variable.
const MAX_RELOCATIONS: usize = 64;

/// Facts about an ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleFile {
    /// The architecture it was built for.
    pub machine: Machine,
    /// True if it is a program (including a position-independent one), not a library.
    pub executable: bool,
    /// True if it has a dynamic table: the dynamic linker can export its symbols.
    pub dynamic: bool,
    /// True if it names a dynamic linker (PT_INTERP). An executable without one is static.
    pub interpreter: bool,
    /// Its SONAME (DT_SONAME).
    pub soname: Option<Vec<u8>>,
    /// Its thread-local storage.
    pub tls: Option<TlsSegment>,
    pub(crate) first_load: Segment,
    /// The first segment with code, which determines the load bias.
    pub(crate) first_code: Segment,
    pub(crate) end: u64,
    /// The addresses of DT_JMPREL.
    pub(crate) jump_relocations: Range<u64>,
    pub(crate) libc: libc::FileFacts,
}

/// Facts about an ELF file and one thread-local variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The file.
    pub file: Arc<ModuleFile>,
    /// Its symbol for the variable.
    pub symbol: Symbol,
    /// The slots through which its code accesses the variable; none for local exec.
    pub relocations: Vec<Relocation>,
}

impl AsRef<ModuleFile> for ModuleFile {
    fn as_ref(&self) -> &ModuleFile {
        self
    }
}

impl AsRef<ModuleFile> for Module {
    fn as_ref(&self) -> &ModuleFile {
        &self.file
    }
}

impl Deref for Module {
    type Target = ModuleFile;

    fn deref(&self) -> &ModuleFile {
        &self.file
    }
}

/// A module's symbol for the variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    /// Defined in `.dynsym`: readers find it.
    Exported {
        /// Offset in the module's TLS block (`st_value`).
        offset: u64,
        /// Size in bytes (`st_size`).
        size: u64,
    },
    /// Defined in `.symtab` only: the linker kept it local, or the program is static.
    Local {
        /// Offset in the module's TLS block (`st_value`).
        offset: u64,
        /// Size in bytes (`st_size`).
        size: u64,
    },
    /// Referenced, but defined elsewhere.
    Undefined,
    /// Defined in `.dynsym`, but not as a thread-local variable.
    NotThreadLocal,
    /// Not mentioned.
    Absent,
}

/// A location in a module that the dynamic linker fills in so that code can access the variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// The access model of the code that uses it.
    pub access: Access,
    /// Its address in the module, as in the headers; one word (initial exec) or two.
    pub slot: u64,
    /// True if it names the symbol, so that the dynamic linker may bind it to another module's
    /// definition. Otherwise the linker has bound it to this module's own definition.
    pub named: bool,
}

impl Symbol {
    /// Offset in the module's TLS block and size, if the module defines the variable.
    pub fn definition(&self) -> Option<(u64, u64)> {
        match *self {
            Symbol::Exported { offset, size } | Symbol::Local { offset, size } => {
                Some((offset, size))
            }
            Symbol::Undefined | Symbol::NotThreadLocal | Symbol::Absent => None,
        }
    }
}

impl ModuleFile {
    pub(crate) fn of(elf: &Elf<'_>) -> Result<Self, ElfError> {
        let soname = elf.soname()?;
        let table = &elf.table;
        let jump_relocations = table.jump_relocations;
        let pie = table.flags_1 & elf::DF_1_PIE.0 != 0;
        let is_static = !elf.interpreter && (elf.file_type() == elf::ET_EXEC || pie);
        let first_code = elf.loads.iter().find(|load| load.executable);
        let end = |load: &Segment| load.address.saturating_add(load.memory_size);
        Ok(ModuleFile {
            machine: elf.machine(),
            // Without DF_1_PIE (before binutils 2.26), PT_INTERP is not sufficient: glibc's libc.so
            // has it, and so has every library linked by gold or mold through musl-gcc.
            executable: elf.file_type() == elf::ET_EXEC || pie || (elf.interpreter && table.debug),
            dynamic: elf.dynamic.is_some(),
            interpreter: elf.interpreter,
            libc: libc::FileFacts::read(elf, soname.as_deref(), is_static)?,
            soname,
            tls: elf.tls(),
            first_load: elf.loads.first().copied().unwrap_or_default(),
            first_code: first_code.copied().unwrap_or_default(),
            end: elf.loads.iter().map(end).max().unwrap_or(0),
            jump_relocations: jump_relocations
                ..jump_relocations.saturating_add(table.jump_relocations_size),
        })
    }

    /// Returns whether an address of the process lies within the module loaded at `bias`.
    pub(crate) fn contains(&self, bias: u64, address: u64) -> bool {
        self.range(bias).contains(&address)
    }

    /// The addresses of the module loaded at `bias`.
    pub(crate) fn range(&self, bias: u64) -> Range<u64> {
        bias.wrapping_add(self.first_load.address)..bias.wrapping_add(self.end)
    }
}

impl Module {
    /// Reads the facts about the variable `name` in the file at `path`, on the reader's side.
    pub fn open(path: &Path, name: &str) -> Result<Self, Error> {
        let file = require_regular(path)?;
        let reason = match Self::read(Source::File(&FileBytes(&file)), name) {
            Ok(Some(module)) => return Ok(module),
            Ok(None) => "it is not an ELF file".to_string(),
            Err(reason) => reason,
        };
        let path = path.into();
        Err(Error::Elf { path, reason })
    }

    /// [`Self::open`] for an open file. `None` if it is not a readable ELF file.
    pub fn of_file(file: &File, name: &str) -> Option<Self> {
        Self::read(Source::File(&FileBytes(file)), name).ok()?
    }

    /// [`Self::open`] for the bytes of a file. `None` if they are not a readable ELF file.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Option<Self> {
        let mut image = Image::new();
        image.map(0, bytes);
        Self::read(Source::File(&image), name).ok()?
    }

    /// Reads the facts from a module, within the limit for one file.
    pub(crate) fn read(source: Source<'_>, name: &str) -> Result<Option<Self>, String> {
        Self::read_within(MAX_READ, source, name).0
    }

    pub(crate) fn read_within(
        limit: u64,
        source: Source<'_>,
        name: &str,
    ) -> (Result<Option<Self>, String>, u64) {
        read_within(limit, source, |elf| {
            Self::of(elf, Arc::new(ModuleFile::of(elf)?), name)
        })
    }

    /// The facts about the variable in `elf`, whose facts as a file are given.
    pub(crate) fn of(elf: &Elf<'_>, file: Arc<ModuleFile>, name: &str) -> Result<Self, ElfError> {
        let local = |found: FoundSymbol| Symbol::Local {
            offset: found.value,
            size: found.size,
        };
        let found = elf.dynamic_symbol(name.as_bytes())?;
        let symbol = match found {
            Some(found) if found.defined && found.kind != elf::STT_TLS => Symbol::NotThreadLocal,
            Some(found) if found.defined && found.local => local(found),
            Some(found) if found.defined => Symbol::Exported {
                offset: found.value,
                size: found.size,
            },
            Some(_) => Symbol::Undefined,
            None if elf.tls.is_none() => Symbol::Absent,
            None => elf
                .static_tls_symbol(name.as_bytes())?
                .map_or(Symbol::Absent, local),
        };
        let relocations = match symbol {
            Symbol::NotThreadLocal | Symbol::Absent => Vec::new(),
            _ => relocations(elf, file.machine, found, symbol)?,
        };
        Ok(Module {
            file,
            symbol,
            relocations,
        })
    }
}

/// The build ID of an ELF file (NT_GNU_BUILD_ID). `None` if it has none, or is not readable.
pub fn build_id(file: &File) -> Option<Vec<u8>> {
    let bytes = FileBytes(file);
    headers(&bytes)?.build_id().ok()?
}

/// The build ID of a file with code, that of Go's linker if there is no other one. `None` also for a file with debug information only (`objcopy
/// --only-keep-debug`), which has the same build ID as the program.
pub fn code_build_id(file: &File) -> Option<Vec<u8>> {
    let bytes = FileBytes(file);
    let elf = headers(&bytes)?;
    let has_code = |load: &Segment| load.executable && load.file_size > 0;
    if !elf.loads.iter().any(has_code) {
        return None;
    }
    elf.content_id().ok()?
}

/// Opens the file at `path`, on the reader's side, if it has this build ID.
pub fn open_by_build_id(path: &Path, build_id: &[u8]) -> Option<File> {
    let file = open_regular(path).ok()??;
    (self::build_id(&file)? == build_id).then_some(file)
}

/// Reads the headers of a file whose path is untrusted. Files of size 0, such as those in /proc,
/// are not read: a line read from `/proc/kmsg` is gone for other readers.
fn headers<'f>(bytes: &'f FileBytes<'_>) -> Option<Elf<'f>> {
    let has_content = bytes.0.metadata().is_ok_and(|found| found.len() > 0);
    has_content.then(|| Elf::read_headers(Source::File(bytes)).ok())??
}

/// The relocations that concern the variable: the ones that name it, and, for a definition, those
/// without symbol that mean its place in the module's own block.
fn relocations(
    elf: &Elf<'_>,
    machine: Machine,
    dynamic: Option<FoundSymbol>,
    symbol: Symbol,
) -> Result<Vec<Relocation>, ElfError> {
    let mut found: Vec<Relocation> = Vec::new();
    let offset = symbol.definition().map(|(offset, _)| offset);
    elf.relocations(&mut |slot, number, by, addend| {
        let Some(kind) = machine.tls_relocation(number) else {
            return Ok(());
        };
        let by_symbol = dynamic.filter(|symbol| by != 0 && by == symbol.index);
        if by_symbol.is_none() && by != 0 {
            return Ok(());
        }
        // The dynamic linker resolves a local symbol only within the module.
        let named = by_symbol.is_some_and(|symbol| !symbol.local);
        let own = |value: u64| {
            let base = by_symbol.map_or(0, |symbol| symbol.value);
            offset == Some(base.wrapping_add(value))
        };
        let is_own = || named || own(addend as u64);
        let access = match kind {
            TlsRelocation::Descriptor if is_own() => Access::Tlsdesc,
            TlsRelocation::ThreadPointerOffset if is_own() => Access::InitialExec,
            TlsRelocation::ModuleId if by_symbol.is_some() => Access::GeneralDynamic,
            TlsRelocation::ModuleId if offset.is_some() => {
                // The linker put the offset into the next word, or left it 0 for local dynamic.
                match elf.read_u64(slot.wrapping_add(8)) {
                    Ok(next) if own(next) => Access::GeneralDynamic,
                    Ok(0) => Access::LocalDynamic,
                    Err(error @ ElfError::Memory(_)) => return Err(error),
                    _ => return Ok(()),
                }
            }
            _ => return Ok(()),
        };
        let relocation = Relocation {
            access,
            slot,
            named,
        };
        if found.len() < MAX_RELOCATIONS && !found.contains(&relocation) {
            found.push(relocation);
        }
        Ok(())
    })?;
    // References to the module's local variables are irrelevant if the variable is bound by name.
    if found.iter().any(|relocation| relocation.named) {
        found.retain(|relocation| relocation.named);
    }
    Ok(found)
}
