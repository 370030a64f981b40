//! Debug information that is in several files: a program's `.dwo` files or its `.dwp` file (DWARF 5, 7.3.2 "Split DWARF
//! Object Files"; GNU's format for DWARF 4), and a supplementary file (DWARF 5, 7.3.6; dwz(1)).
//!
//! blazesym finds these files by their paths alone, but the files of targets are decoded from copies. It reads no
//! `.dwo` files, and no inlined functions whose names are in a supplementary file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{DwarfPackage, EndianArcSlice, LittleEndian, Reader, SectionId};
use object::endian::Endianness;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ReadCache};
use otelctx_sample::Function;

use crate::decompress;
use crate::demangle::demangle;
use crate::related::Related;

/// Maximum size of all sections that are read for the addresses in one file, in bytes.
const MAX_SECTIONS: u64 = 1 << 30;
/// Maximum number of `.dwo` files that are read for the addresses in one file.
const MAX_OBJECTS: usize = 1024;
/// Maximum number of units whose headers are read.
const MAX_UNITS: usize = 1 << 18;
/// Maximum number of functions at an address.
const MAX_DEPTH: usize = 1024;
/// Size of the part of a unit's header that shows its kind (DWARF 5, 7.5.1), in bytes, and that kind.
const UNIT_START: usize = 16;
const DW_UT_SKELETON: u8 = 4;
/// A length of 64 bits follows (DWARF 5, 7.4).
const LONG_LENGTH: u32 = 0xffff_ffff;

type Slice = EndianArcSlice<LittleEndian>;
type Dwarf = gimli::Dwarf<Slice>;

/// What the other files of a program add.
#[derive(Debug, Default)]
pub(crate) struct Added {
    /// For each address, innermost first; empty where they add nothing.
    pub(crate) functions: Vec<Vec<Function>>,
    /// The `.dwo` file, and the supplementary file, that was not found; the first of each kind.
    pub(crate) missing_object: Option<String>,
    pub(crate) missing_supplement: Option<String>,
}

/// Finds the functions at addresses of a file with debug information, if that is in several files.
pub(crate) fn functions(file: &File, addresses: &[u64], related: &Related<'_>) -> Option<Added> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    elf.section_by_name(".debug_info")?;
    let is_split = is_split(file, &elf);
    if elf.endian() != Endianness::Little || !(is_split || related.supplement().is_some()) {
        return None;
    }
    let mut sections = Sections { left: MAX_SECTIONS };
    let mut dwarf = sections.dwarf(file, |id| Some(id.name()))?;
    let mut added = Added::default();
    if let Some(link) = related.supplement() {
        match related.open_supplement() {
            Some(file) => dwarf.sup = sections.dwarf(&file, |id| Some(id.name())).map(Arc::new),
            None => added.missing_supplement = Some(link.name()),
        }
    }
    if !is_split && added.missing_supplement.is_some() {
        return Some(added);
    }
    let mut objects = Objects {
        related,
        package: is_split.then(|| sections.package(related)).flatten(),
        sections,
        opened: 0,
        missing: None,
    };
    let context = Context::from_dwarf(dwarf).ok()?;
    let at = |address: &u64| at(&context, *address, &mut objects).unwrap_or_default();
    added.functions = addresses.iter().map(at).collect();
    added.missing_object = objects.missing;
    Some(added)
}

/// The functions at an address, innermost first.
fn at(context: &Context<Slice>, address: u64, objects: &mut Objects<'_>) -> Option<Vec<Function>> {
    let mut lookup = context.find_frames(address);
    let mut frames = loop {
        match lookup {
            LookupResult::Output(found) => break found.ok()?,
            LookupResult::Load { load, continuation } => {
                lookup = continuation.resume(objects.load(&load));
            }
        }
    };
    let mut functions = Vec::new();
    while let Some(frame) = frames.next().ok()?
        && functions.len() < MAX_DEPTH
    {
        // Without the outermost name, a symbol says more.
        let name = frame.function?;
        let place = frame.location.as_ref();
        functions.push(Function {
            name: demangle(&name.raw_name().ok()?),
            system_name: String::new(),
            file: place.and_then(|it| it.file).unwrap_or_default().to_owned(),
            line: place.and_then(|it| it.line).unwrap_or(0),
            column: place.and_then(|it| it.column).unwrap_or(0),
        });
    }
    Some(functions)
}

/// Returns true if a unit of an ELF file refers to a `.dwo` file.
fn is_split<'d, R: object::ReadRef<'d>>(file: &File, elf: &ElfFile64<'d, Endianness, R>) -> bool {
    // Skeletons have the addresses that their other file refers to.
    if elf.section_by_name(".debug_addr").is_none() {
        return false;
    }
    let Some(info) = elf.section_by_name(".debug_info") else {
        return false;
    };
    let Ok(range) = info.compressed_file_range() else {
        return false;
    };
    if range.format == object::CompressionFormat::None {
        let read = |at: u64, bytes: &mut [u8]| {
            file.read_exact_at(bytes, range.offset.checked_add(at)?)
                .ok()
        };
        return has_skeletons(range.uncompressed_size, read);
    }
    let bytes = decompress::contents(file, elf, ".debug_info", MAX_SECTIONS);
    let bytes = bytes.unwrap_or_default();
    let read = |at: u64, to: &mut [u8]| {
        let from = bytes.get(usize::try_from(at).ok()?..)?;
        to.copy_from_slice(from.get(..to.len())?);
        Some(())
    };
    has_skeletons(bytes.len() as u64, read)
}

/// Returns true if one of the units in `size` bytes of `.debug_info` may be a skeleton.
fn has_skeletons(size: u64, read: impl Fn(u64, &mut [u8]) -> Option<()>) -> bool {
    let mut start = 0;
    for _ in 0..MAX_UNITS {
        let mut header = [0; UNIT_START];
        if start >= size || read(start, &mut header).is_none() {
            return false;
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let (length, rest) = match word(0) {
            LONG_LENGTH => (u64::from(word(4)) | u64::from(word(8)) << 32, 12),
            length => (u64::from(length), 4),
        };
        let version = u16::from_le_bytes([header[rest], header[rest + 1]]);
        // Before DWARF 5, only skeletons have a use for the section of addresses.
        if version == 4 || version == 5 && header[rest + 2] == DW_UT_SKELETON {
            return true;
        }
        let next = length.checked_add(start + rest as u64);
        match next {
            Some(next) if next > start => start = next,
            _ => return false,
        }
    }
    false
}

/// Reads sections up to a total size.
struct Sections {
    left: u64,
}

impl Sections {
    /// Reads the sections of a file that have these names. `None` if it is not an ELF file, or too large.
    fn dwarf(
        &mut self,
        file: &File,
        name: impl Fn(SectionId) -> Option<&'static str>,
    ) -> Option<Dwarf> {
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        Dwarf::load(|id| self.section(file, &elf, name(id)).ok_or(gimli::Error::Io)).ok()
    }

    fn package(&mut self, related: &Related<'_>) -> Option<DwarfPackage<Slice>> {
        let file = related.open_package()?;
        let cache = ReadCache::new(&file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let section = |id: SectionId| {
            let section = self.section(&file, &elf, id.dwo_name());
            section.ok_or(gimli::Error::Io)
        };
        DwarfPackage::load(section, Slice::new(Arc::default(), LittleEndian)).ok()
    }

    /// A section, empty if there is none of that name. `None` if it is too large or damaged.
    fn section<'d, R: object::ReadRef<'d>>(
        &mut self,
        file: &File,
        elf: &ElfFile64<'d, Endianness, R>,
        name: Option<&str>,
    ) -> Option<Slice> {
        let name = name.filter(|name| elf.section_by_name(name).is_some());
        let bytes = match name {
            Some(name) => decompress::contents(file, elf, name, self.left)?,
            None => Vec::new(),
        };
        self.left -= bytes.len() as u64;
        Some(Slice::new(bytes.into(), LittleEndian))
    }
}

/// Loads the units that skeletons refer to.
struct Objects<'r> {
    related: &'r Related<'r>,
    package: Option<DwarfPackage<Slice>>,
    sections: Sections,
    opened: usize,
    /// The first file that was not found.
    missing: Option<String>,
}

impl Objects<'_> {
    fn load(&mut self, load: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf>> {
        let package = self.package.as_ref();
        let packed = package.and_then(|it| it.find_cu(load.dwo_id, &load.parent).ok()?);
        if let Some(unit) = packed {
            return Some(Arc::new(unit));
        }
        let text = |reader: &Option<Slice>| {
            let bytes = reader.as_ref()?.to_slice().ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let (directory, name) = (text(&load.comp_dir).unwrap_or_default(), text(&load.path)?);
        let mut found = None;
        for file in self.related.objects(&directory, &name) {
            self.opened += 1;
            if self.opened > MAX_OBJECTS {
                break;
            }
            found = self.object(&file, load);
            if found.is_some() {
                break;
            }
        }
        if found.is_none() && self.missing.is_none() {
            self.missing = Some(name);
        }
        found
    }

    /// The unit in a `.dwo` file, if it is the one that the skeleton belongs to.
    fn object(&mut self, file: &File, load: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf>> {
        let mut dwarf = self.sections.dwarf(file, SectionId::dwo_name)?;
        let header = dwarf.units().next().ok()??;
        let is_same = dwarf.unit(header).ok()?.dwo_id == Some(load.dwo_id);
        dwarf.make_dwo(&load.parent);
        is_same.then(|| Arc::new(dwarf))
    }
}
