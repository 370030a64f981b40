//! The offsets of Go's structures by the debug information of a program, which Go writes without
//! `-ldflags=-w`.

use std::collections::HashMap;
use std::io::Read;

use flate2::read::ZlibDecoder;
use gimli::{
    AttributeValue, DW_AT_data_member_location, DW_AT_name, DebuggingInformationEntry, Dwarf,
    EndianSlice, LittleEndian, UnitHeader,
};
use otelctx_reader::remote::elf::{Elf, ElfError, Section};

/// Maximum size of a section with debug information, in bytes, before and after it is decompressed. A larger program has
/// the offsets of its version.
const MAX_SECTION: u64 = 64 << 20;
/// Size of the header of a compressed section (`Elf64_Chdr`: type, padding, size, alignment), in bytes, and the type of zlib.
const HEADER: usize = 24;
const ZLIB: u32 = 1;
/// The package with the structures.
const PACKAGE: &str = "runtime";
/// The structures: `runtime.g`.
const STRUCTURES: [&str; 3] = ["g", "m", "gobuf"];

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Offsets in bytes, by structure and field: `g.goid`.
pub(crate) type Offsets = HashMap<String, u64>;

/// Reads the offsets. `None` if there is no debug information, or it does not have them.
pub(crate) fn offsets(elf: &Elf<'_>) -> Result<Option<Offsets>, ElfError> {
    const NAMES: [&[u8]; 3] = [b".debug_info", b".debug_abbrev", b".debug_str"];
    let [info, abbreviations, strings] = elf.sections_named(NAMES)?;
    let (Some(info), Some(abbreviations)) = (info, abbreviations) else {
        return Ok(None);
    };
    let (Some(info), Some(abbreviations)) = (read(elf, &info)?, read(elf, &abbreviations)?) else {
        return Ok(None);
    };
    let strings = match strings {
        Some(strings) => read(elf, &strings)?.unwrap_or_default(),
        None => Vec::new(),
    };
    let slice = |bytes| EndianSlice::new(bytes, LittleEndian);
    let dwarf = Dwarf {
        debug_info: slice(&info).into(),
        debug_abbrev: slice(&abbreviations).into(),
        debug_str: slice(&strings).into(),
        ..Dwarf::default()
    };
    Ok(of_package(&dwarf).unwrap_or(None))
}

/// The contents of a section. `None` if it is too large, or compressed in another way or wrongly.
fn read(elf: &Elf<'_>, section: &Section) -> Result<Option<Vec<u8>>, ElfError> {
    if section.size > MAX_SECTION {
        return Ok(None);
    }
    let bytes = elf.section_bytes(section, MAX_SECTION)?;
    Ok(match section.compressed {
        true => decompress(&bytes),
        false => Some(bytes),
    })
}

fn decompress(section: &[u8]) -> Option<Vec<u8>> {
    let kind = u32::from_le_bytes(*section.first_chunk()?);
    let size = u64::from_le_bytes(*section.get(8..)?.first_chunk()?);
    if kind != ZLIB || size > MAX_SECTION {
        return None;
    }
    let mut bytes = Vec::new();
    let stream = ZlibDecoder::new(section.get(HEADER..)?);
    stream.take(size).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == size).then_some(bytes)
}

fn of_package(dwarf: &Dwarf<Slice<'_>>) -> gimli::Result<Option<Offsets>> {
    let mut units = dwarf.units();
    while let Some(unit) = units.next()? {
        // Go's assembler makes other units of the package.
        let offsets = of_unit(dwarf, &unit)?;
        if !offsets.is_empty() {
            return Ok(Some(offsets));
        }
    }
    Ok(None)
}

/// The offsets in a unit; none if it is another package's.
fn of_unit(dwarf: &Dwarf<Slice<'_>>, unit: &UnitHeader<Slice<'_>>) -> gimli::Result<Offsets> {
    let mut offsets = Offsets::new();
    let mut structure = None;
    let abbreviations = unit.abbreviations(&dwarf.debug_abbrev)?;
    let mut entries = unit.entries(&abbreviations);
    while let Some(entry) = entries.next_dfs()? {
        match entry.tag() {
            gimli::DW_TAG_compile_unit if name(dwarf, entry)? != PACKAGE => break,
            gimli::DW_TAG_structure_type => {
                let name = name(dwarf, entry)?;
                let name = name.strip_prefix("runtime.").map(str::to_owned);
                structure = name.filter(|name| STRUCTURES.contains(&&**name));
            }
            gimli::DW_TAG_member => {
                let Some(structure) = &structure else {
                    continue;
                };
                let offset = entry.attr_value(DW_AT_data_member_location);
                if let Some(offset) = offset.and_then(|it| it.udata_value()) {
                    let name = name(dwarf, entry)?;
                    offsets.insert(format!("{structure}.{name}"), offset);
                }
            }
            _ => structure = None,
        }
    }
    Ok(offsets)
}

/// The name of an entry; empty if it has none.
fn name(
    dwarf: &Dwarf<Slice<'_>>,
    entry: &DebuggingInformationEntry<Slice<'_>>,
) -> gimli::Result<String> {
    let name = match entry.attr_value(DW_AT_name) {
        Some(AttributeValue::String(name)) => name,
        Some(AttributeValue::DebugStrRef(at)) => dwarf.debug_str.get_str(at)?,
        _ => return Ok(String::new()),
    };
    Ok(name.to_string_lossy().into_owned())
}
