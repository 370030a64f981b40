//! Facts about a Go program, by its file.

use std::ops::Range;

use otelctx_reader::remote::Machine;
use otelctx_reader::remote::elf::{Elf, ElfError, Segment, SymbolKind};

use crate::build_info::Version;
use crate::dwarf;
use crate::layout::Layout;

/// The variable with the goroutine that a thread runs: Go's linker's, and on aarch64 the runtime's, which is the first one
/// there.
const VARIABLE: &[u8] = b"runtime.tlsg";
const AARCH64_VARIABLE: &[u8] = b"runtime.tls_g";
/// Its size in bytes.
const VARIABLE_SIZE: u64 = 8;
/// `R_X86_64_TPOFF64` and `R_AARCH64_TLS_TPREL`: the relocation of a slot with an offset from the thread pointer.
const X86_64_OFFSET: u32 = 18;
const AARCH64_OFFSET: u32 = 1030;
/// Size of what is between the thread pointer and a program's variables on aarch64, in bytes.
const AARCH64_RESERVED: u64 = 16;

/// A Go program, or a library with Go's runtime.
#[derive(Clone, Debug)]
pub(crate) struct GoFile {
    pub(crate) version: Version,
    /// `None` for a version that is unknown.
    pub(crate) layout: Option<Layout>,
    pub(crate) variable: Variable,
    /// Where it keeps its variables.
    pub(crate) data: Data,
}

/// Where a thread keeps the address of its goroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variable {
    /// At this offset from the thread pointer.
    Offset(i64),
    /// At the offset that is at this address of the module once that is loaded.
    Slot(u64),
    /// In a register alone: aarch64, in programs without cgo.
    Register,
    Unknown,
}

impl GoFile {
    /// Reads the facts, given the address of the section with the version. `None` if there is no version that Go's linker writes.
    pub(crate) fn read(
        elf: &Elf<'_>,
        build_info: u64,
        is_program: bool,
    ) -> Result<Option<Self>, ElfError> {
        let Some(version) = Version::read(elf, build_info)? else {
            return Ok(None);
        };
        let by_debug_information = dwarf::offsets(elf)?
            .and_then(|offsets| Layout::of(version.minor, |field| offsets.get(field).copied()));
        let layout = by_debug_information.or_else(|| Layout::of_minor(version.minor));
        let variable = Variable::find(elf, is_program)?;
        Ok(Some(Self {
            version,
            layout,
            variable,
            data: Data::read(elf)?,
        }))
    }
}

/// Where a module keeps its variables: addresses of its headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    /// The segments that can be written.
    pub(crate) segments: Vec<Range<u64>>,
    /// `runtime.allm`, the first thread of a list, if there is a symbol for it.
    pub(crate) threads: Option<u64>,
    /// `runtime.allgs`, a slice of all goroutines.
    pub(crate) goroutines: Option<u64>,
}

impl Data {
    fn read(elf: &Elf<'_>) -> Result<Self, ElfError> {
        let written = elf.loads().iter().filter(|load| load.writable);
        let range = |load: &Segment| load.address..load.address.saturating_add(load.memory_size);
        let symbol = |name| elf.symbol(name).map(|it| it.map(|it| it.value));
        Ok(Self {
            segments: written.map(range).collect(),
            threads: symbol(b"runtime.allm")?,
            goroutines: symbol(b"runtime.allgs")?,
        })
    }

    /// The same in a process that has loaded the module with this bias.
    pub(crate) fn loaded(&self, bias: u64) -> Self {
        let moved = |address: u64| address.wrapping_add(bias);
        let segment = |it: &Range<u64>| moved(it.start)..moved(it.end);
        Self {
            segments: self.segments.iter().map(segment).collect(),
            threads: self.threads.map(moved),
            goroutines: self.goroutines.map(moved),
        }
    }
}

impl Variable {
    fn find(elf: &Elf<'_>, is_program: bool) -> Result<Self, ElfError> {
        let machine = elf.machine();
        let Some(tls) = elf.tls() else {
            // Go's linker reserves the word below the thread pointer, and needs no segment for it
            // (runtime.settls in its src/runtime/sys_linux_amd64.s). On aarch64, a register has the goroutine.
            return Ok(match machine {
                Machine::X86_64 => Self::Offset(-(VARIABLE_SIZE as i64)),
                Machine::Aarch64 => Self::Register,
                Machine::Other(_) => Self::Unknown,
            });
        };
        let (name, size) = match machine {
            Machine::Aarch64 => (AARCH64_VARIABLE, 2 * VARIABLE_SIZE),
            _ => (VARIABLE, VARIABLE_SIZE),
        };
        let symbol = elf.symbol(name)?;
        let symbol = symbol.filter(|it| it.kind == SymbolKind::ThreadLocal);
        let offset = match symbol {
            Some(symbol) => symbol.value,
            // Nothing else is thread-local in it.
            None if tls.memory_size == size => 0,
            None => return Ok(Self::Unknown),
        };
        let alignment = tls.alignment.max(1);
        if !alignment.is_power_of_two() || alignment > 1 << 16 || tls.memory_size > 1 << 32 {
            return Ok(Self::Unknown);
        }
        let slot = match machine {
            Machine::X86_64 => X86_64_OFFSET,
            Machine::Aarch64 => AARCH64_OFFSET,
            Machine::Other(_) => return Ok(Self::Unknown),
        };
        let mut found = Self::Unknown;
        elf.relocations(&mut |address, kind, symbol, addend| {
            if kind == slot && symbol == 0 && addend.cast_unsigned() == offset {
                found = Self::Slot(address);
            }
            Ok(())
        })?;
        if found != Self::Unknown || !is_program {
            return Ok(found);
        }
        // The program's variables have a fixed place (ELF Handling For Thread-Local Storage, 3.4.6 and 3.4.1).
        let offset = match machine {
            Machine::X86_64 => {
                let size = tls.memory_size.next_multiple_of(alignment);
                offset as i64 - size as i64
            }
            _ => (AARCH64_RESERVED.next_multiple_of(alignment) + offset) as i64,
        };
        Ok(Self::Offset(offset))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use otelctx_fixtures::{GO_VERSIONS, GoBuild};
    use otelctx_reader::remote::elf::Source;
    use otelctx_reader::remote::{FileBytes, Module};

    use super::*;
    use crate::build_info::SECTION;

    /// The facts about `labels.go`. `None` if its compiler is not installed.
    fn read(version: &str, architecture: &str, cgo: bool, flags: &[&str]) -> Option<GoFile> {
        let build = GoBuild {
            version,
            architecture,
            cgo,
            flags,
        };
        let path = build.build("labels.go")?;
        let file = File::open(&path).unwrap();
        let bytes = FileBytes(&file);
        let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
        let section = elf.section_named(SECTION.as_bytes()).unwrap().unwrap();
        let is_program = Module::open(&path, "").unwrap().executable;
        let read = GoFile::read(&elf, section.address, is_program).unwrap();
        Some(read.unwrap())
    }

    #[test]
    fn the_variable_is_found_in_each_kind_of_program() {
        const STRIPPED: &[&str] = &["-ldflags=-s -w"];
        const LIBRARY: &[&str] = &["-buildmode=c-shared", "-ldflags=-s -w"];
        let version = GO_VERSIONS[GO_VERSIONS.len() - 1];
        let variable = |architecture, cgo, flags| {
            let read = read(version, architecture, cgo, flags)?;
            assert_eq!(read.version.text, format!("go{version}"));
            Some(read.variable)
        };
        let (below, above) = (Variable::Offset(-8), Variable::Offset(16));
        for flags in [&[], STRIPPED] {
            for (architecture, cgo, expected) in [
                ("amd64", false, below),
                ("amd64", true, below),
                ("arm64", false, Variable::Register),
                ("arm64", true, above),
            ] {
                let Some(variable) = variable(architecture, cgo, flags) else {
                    continue;
                };
                assert_eq!(variable, expected, "{architecture}, {cgo}, {flags:?}");
            }
        }
        for architecture in ["amd64", "arm64"] {
            if let Some(variable) = variable(architecture, true, LIBRARY) {
                assert!(
                    matches!(variable, Variable::Slot(_)),
                    "{architecture}: {variable:?}"
                );
            }
        }
    }
}
