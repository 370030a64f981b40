//! The parts of `.debug_info` and `.debug_line` in which functions at some addresses are looked up.
//!
//! A Python library with all its debug information has 25 MiB of it, and the functions of a stack are in
//! two or three of its 170 units, which `.debug_aranges` shows.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use gimli::constants::{
    DW_AT_abstract_origin, DW_AT_specification, DW_AT_stmt_list, DW_FORM_implicit_const,
    DW_FORM_indirect, DW_FORM_ref_addr, DW_UT_split_type, DW_UT_type,
};
use gimli::{
    AttributeValue, DebugAbbrev, DebugAranges, DebugInfo, EndianSlice, Reader, RunTimeEndian,
};
use object::elf::{ET_REL, SHF_COMPRESSED};
use object::endian::Endianness;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Endian, Object, ObjectSection, ReadCache, ReadRef};

/// Maximum size of `.debug_aranges` and of `.debug_abbrev`, in bytes.
const MAX_TABLE: u64 = 64 << 20;
/// Maximum number of units of a file, and of needed ones: a stack needs few, and Chromium has 40,000.
const MAX_UNITS: usize = 1 << 18;
const MAX_NEEDED: usize = 1 << 12;
/// Maximum size of the abbreviations of a unit, in bytes.
const MAX_ABBREVIATIONS: usize = 1 << 20;
/// Number of bytes at the start of a unit that have its length and kind.
const UNIT_START: usize = 16;
/// Size of the header of a unit of types (DWARF 5, 7.5.1.3).
const TYPE_UNIT: usize = 24;
/// From here on, a length of 32 bits has another meaning (DWARF 5, 7.4).
const RESERVED_LENGTHS: u64 = 0xffff_fff0;
/// Number of bytes at the start of a unit that have all of its first entry.
const FIRST_ENTRY: u64 = 4096;

/// The parts of a file's debug information that are needed.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The sections that contain them, by their offsets in the file.
    pub(crate) sections: [u64; 2],
    /// Ranges of offsets in the file.
    pub(crate) needed: Vec<Range<u64>>,
    /// Headers to write at offsets in the file: each makes all units before the next needed one a unit of
    /// types, which decoders skip.
    pub(crate) headers: Vec<(u64, UnitHeader)>,
}

/// The header of a unit of types.
pub(crate) type UnitHeader = [u8; TYPE_UNIT];

/// A section's range of offsets in the file.
type Section = Range<u64>;

impl Parts {
    /// Finds the parts that are needed for functions at `addresses`, which are in ascending order. `None` if
    /// the whole file is needed: most parts are, or it is unknown which ones.
    pub(crate) fn find<'d, R: ReadRef<'d>>(
        file: &File,
        elf: &ElfFile64<'d, Endianness, R>,
        addresses: &[u64],
    ) -> Option<Self> {
        let (endian, header) = (elf.endian(), elf.elf_header());
        if header.e_type(endian) == ET_REL {
            return None;
        }
        let section = |name| {
            let section = elf.section_by_name(name)?;
            let flags = section.elf_section_header().sh_flags(endian);
            let (offset, size) = section.file_range()?;
            let is_plain = section.name() == Ok(name) && !flags.contains(SHF_COMPRESSED);
            is_plain.then_some(offset..offset.checked_add(size)?)
        };
        let (info, line) = (section(".debug_info")?, section(".debug_line")?);
        let aranges = table(file, &section(".debug_aranges")?)?;
        let abbreviations = table(file, &section(".debug_abbrev")?)?;
        let endian = if endian.is_big_endian() {
            RunTimeEndian::Big
        } else {
            RunTimeEndian::Little
        };
        let reader = Dwarf {
            file,
            info,
            line,
            abbreviations: EndianSlice::new(&abbreviations, endian),
        };
        reader.parts(EndianSlice::new(&aranges, endian), addresses)
    }
}

/// The parts of an ELF file's debug information that are needed for functions at addresses, for the fuzz target: ranges of
/// offsets in the file, and the offsets of headers that hide the bytes between them.
#[must_use]
pub fn debug_info_parts(file: &File, addresses: &[u64]) -> Option<(Vec<Range<u64>>, Vec<u64>)> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let parts = Parts::find(file, &elf, addresses)?;
    let headers = parts.headers.into_iter().map(|(offset, _)| offset);
    Some((parts.needed, headers.collect()))
}

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

struct Dwarf<'a> {
    file: &'a File,
    info: Section,
    line: Section,
    abbreviations: Slice<'a>,
}

/// A unit, by its range of offsets in `.debug_info`.
struct Unit {
    range: Range<u64>,
    /// True if it has only types, and no functions.
    is_of_types: bool,
}

impl Dwarf<'_> {
    fn parts(&self, aranges: Slice<'_>, addresses: &[u64]) -> Option<Parts> {
        let described = described_units(aranges, addresses).ok()?;
        let size = self.info.end - self.info.start;
        let (mut whole, mut sum) = (Vec::new(), 0);
        let (mut at, mut units) = (0, 0);
        while at < size {
            let Unit { range, is_of_types } = self.unit(at)?;
            (at, units) = (range.end, units + 1);
            // A unit that `.debug_aranges` does not describe may have any address, or be referred to.
            let is_needed = described.get(&range.start).copied();
            if is_needed.unwrap_or(!is_of_types) {
                sum += range.end - range.start;
                whole.push(range);
            }
            if sum > size / 2 || whole.len() > MAX_NEEDED || units > MAX_UNITS {
                return None;
            }
        }
        let start = self.info.start;
        let in_file = |range: &Range<u64>| start + range.start..start + range.end;
        let mut needed: Vec<Range<u64>> = whole.iter().map(in_file).collect();
        let mut headers = Vec::new();
        let mut end = 0;
        for next in whole.iter().chain([&(size..size)]) {
            match next.start - end {
                0 => {}
                length if length < TYPE_UNIT as u64 => needed.push(start + end..start + next.start),
                length => headers.push((start + end, self.type_unit(length)?)),
            }
            end = next.end;
        }
        for unit in &whole {
            needed.extend(self.line_program(unit).ok()?);
        }
        Some(Parts {
            sections: [self.info.start, self.line.start],
            needed,
            headers,
        })
    }

    /// The header of a unit of types with this length.
    fn type_unit(&self, length: u64) -> Option<UnitHeader> {
        let length = length - 4;
        let is_reserved = length >= RESERVED_LENGTHS;
        let length = u32::try_from(length).ok().filter(|_| !is_reserved)?;
        let (length, version) = match self.abbreviations.endian() {
            RunTimeEndian::Little => (length.to_le_bytes(), 5_u16.to_le_bytes()),
            RunTimeEndian::Big => (length.to_be_bytes(), 5_u16.to_be_bytes()),
        };
        let mut header = [0; TYPE_UNIT];
        header[..4].copy_from_slice(&length);
        header[4..6].copy_from_slice(&version);
        header[6..8].copy_from_slice(&[DW_UT_type.0, 8]);
        Some(header)
    }

    /// The unit whose header is at this offset in `.debug_info`.
    fn unit(&self, start: u64) -> Option<Unit> {
        let mut bytes = [0; UNIT_START];
        let bytes = self.read(&self.info, start, &mut bytes)?;
        let mut header = EndianSlice::new(bytes, self.abbreviations.endian());
        let (length, format) = header.read_initial_length().ok()?;
        let header_length = u64::from(format.initial_length_size());
        let content = start.checked_add(header_length)?;
        let end = content.checked_add(length as u64)?;
        let is_of_types = header.read_u16().ok()? == 5 && {
            let kind = gimli::DwUt(header.read_u8().ok()?);
            kind == DW_UT_type || kind == DW_UT_split_type
        };
        (end <= self.info.end - self.info.start).then_some(Unit {
            range: start..end,
            is_of_types,
        })
    }

    /// The unit's part of `.debug_line`, as a range of offsets in the file. An error if its entries may have
    /// names that are in other units.
    fn line_program(&self, unit: &Range<u64>) -> Result<Option<Range<u64>>, gimli::Error> {
        let endian = self.abbreviations.endian();
        let length = (unit.end - unit.start).min(FIRST_ENTRY);
        let mut bytes = vec![0; length as usize];
        self.read(&self.info, unit.start, &mut bytes)
            .ok_or(gimli::Error::Io)?;
        // As if the unit ended there.
        match bytes.first_chunk_mut() {
            Some(first) if *first != [0xff; 4] => {
                let length = length as u32 - 4;
                *first = match endian {
                    RunTimeEndian::Little => length.to_le_bytes(),
                    RunTimeEndian::Big => length.to_be_bytes(),
                };
            }
            _ => return Err(gimli::Error::Io),
        }
        let info = DebugInfo::new(&bytes, endian);
        let Some(header) = info.units().next()? else {
            return Ok(None);
        };
        let mut table = self.abbreviations;
        table.skip(header.debug_abbrev_offset().0)?;
        table.truncate(table.len().min(MAX_ABBREVIATIONS))?;
        if refers_to_other_units(table)? {
            return Err(gimli::Error::UnsupportedOffset);
        }
        let abbreviations = header.abbreviations(&DebugAbbrev::from(self.abbreviations))?;
        let mut entries = header.entries_raw(&abbreviations, None)?;
        let Some(abbreviation) = entries.read_abbreviation()? else {
            return Ok(None);
        };
        for specification in abbreviation.attributes() {
            let attribute = entries.read_attribute(*specification)?;
            if attribute.name() == DW_AT_stmt_list
                && let AttributeValue::DebugLineRef(offset) = attribute.value()
            {
                return self.program(offset.0 as u64).map(Some);
            }
        }
        Ok(None)
    }

    /// The line program at an offset in `.debug_line`.
    fn program(&self, offset: u64) -> Result<Range<u64>, gimli::Error> {
        let mut bytes = [0; 12];
        let bytes = self.read(&self.line, offset, &mut bytes);
        let bytes = bytes.ok_or(gimli::Error::Io)?;
        let mut header = EndianSlice::new(bytes, self.abbreviations.endian());
        let (length, format) = header.read_initial_length()?;
        let start = self.line.start + offset;
        let end = start.saturating_add(u64::from(format.initial_length_size()));
        Ok(start..end.saturating_add(length as u64).min(self.line.end))
    }

    /// Reads up to this many bytes at an offset in a section.
    fn read<'b>(&self, section: &Section, offset: u64, bytes: &'b mut [u8]) -> Option<&'b [u8]> {
        let at = section.start.checked_add(offset)?;
        let left = section.end.checked_sub(at)?;
        let length = (bytes.len() as u64).min(left) as usize;
        let bytes = &mut bytes[..length];
        self.file.read_exact_at(bytes, at).ok()?;
        Some(bytes)
    }
}

/// Reads a section, unless it is too large.
fn table(file: &File, section: &Section) -> Option<Vec<u8>> {
    let size = section.end - section.start;
    // Nothing is allocated for a size beyond the end of the file.
    let left = file.metadata().ok()?.len().checked_sub(section.start)?;
    if size > MAX_TABLE.min(left) {
        return None;
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, section.start).ok()?;
    Some(bytes)
}

/// The units whose code `.debug_aranges` describes, by offset, with whether it has one of the addresses.
fn described_units(
    aranges: Slice<'_>,
    addresses: &[u64],
) -> Result<HashMap<u64, bool>, gimli::Error> {
    let mut units = HashMap::new();
    let mut headers = DebugAranges::from(aranges).headers();
    while let Some(header) = headers.next()? {
        let mut entries = header.entries();
        while let Some(entry) = entries.next()? {
            let gimli::Range { begin: start, end } = entry.range();
            if start < end {
                let from = addresses.partition_point(|address| *address < start);
                let has_one = addresses.get(from).is_some_and(|address| *address < end);
                let unit = header.debug_info_offset().0 as u64;
                *units.entry(unit).or_default() |= has_one;
            }
        }
    }
    Ok(units)
}

/// Returns true if functions of a unit with these abbreviations may be named by entries of other
/// units.
fn refers_to_other_units(mut abbreviations: Slice<'_>) -> Result<bool, gimli::Error> {
    while abbreviations.read_uleb128()? != 0 {
        let _tag = abbreviations.read_uleb128()?;
        let _has_children = abbreviations.read_u8()?;
        loop {
            let (name, form) = (abbreviations.read_uleb128()?, abbreviations.read_uleb128()?);
            let is = |constant: gimli::DwForm| form == u64::from(constant.0);
            let is_named = |constant: gimli::DwAt| name == u64::from(constant.0);
            if is(DW_FORM_implicit_const) {
                abbreviations.read_sleb128()?;
            }
            if is(DW_FORM_indirect) {
                return Ok(true);
            }
            let is_origin = is_named(DW_AT_abstract_origin) || is_named(DW_AT_specification);
            if is_origin && is(DW_FORM_ref_addr) {
                return Ok(true);
            }
            if (name, form) == (0, 0) {
                break;
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use object::ObjectSymbol;
    use otelctx_sample::Function;

    use super::*;
    use crate::copy::Copy;

    /// Number of source files of a program.
    const FILES: usize = 12;

    /// A directory that is removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("otelctx-parts-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A program of a main file and [`FILES`] others, each with a function `serve0` … that inlines another one.
    fn program(directory: &Path, flags: &[&str]) -> Option<PathBuf> {
        let mut main = String::from("int main(void) { return 0");
        let mut sources = Vec::new();
        for file in 0..FILES {
            let path = directory.join(format!("file{file}.c"));
            let source = format!(
                "int count{file};\n\
                 static inline __attribute__((always_inline)) void add{file}(int by) {{\n\
                 \tcount{file} += by;\n}}\n\
                 __attribute__((noipa, externally_visible)) int serve{file}(int by) {{\n\tadd{file}(by);\n\treturn count{file};\n}}\n"
            );
            fs::write(&path, source).unwrap();
            sources.push(path);
            main.push_str(&format!(" + serve{file}({file})"));
        }
        main.push_str("; }\n");
        let path = directory.join("main.c");
        // Debug information is after the start of the file, which is always copied.
        let data = "char data[1 << 18] = {1};";
        fs::write(&path, format!("{data} int serve0(); {main}")).unwrap();
        sources.push(path);
        let output = directory.join("program");
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu89", "-w", "-O2"])
            .args(flags)
            .args(&sources);
        let built = gcc.arg("-o").arg(&output).status();
        let is_built = built.is_ok_and(|status| status.success());
        if !is_built {
            println!("skipped: gcc cannot build this");
        }
        is_built.then_some(output)
    }

    /// The functions at an offset in the file by a whole copy, and by its needed parts, with their
    /// size if some are missing.
    fn functions(file: &File, offset: u64) -> ([Vec<Function>; 2], Option<(u64, u64)>) {
        let found = [None, Some(&[offset][..])].map(|offsets| {
            let copy = Copy::of(file, offsets).unwrap();
            let found = crate::resolve::in_copy(&copy, None, &[offset], true).unwrap();
            assert!(!found.is_broken);
            found.functions.into_iter().next().unwrap()
        });
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).unwrap();
        let address = Copy::of(file, None).unwrap().address(offset).unwrap();
        let size = |name| elf.section_by_name(name).unwrap().size();
        let whole = size(".debug_info") + size(".debug_line");
        let parts = Parts::find(file, &elf, &[address]);
        let needed = parts.map(|it| it.needed.iter().map(|range| range.end - range.start).sum());
        (found, needed.map(|needed| (needed, whole)))
    }

    /// The offset of the second instruction of each `serve`.
    fn serve(file: &File) -> Vec<u64> {
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).unwrap();
        let address = |index| {
            let name = format!("serve{index}");
            let mut symbols = elf.symbols();
            let symbol = symbols.find(|it| it.name() == Ok(&name)).unwrap();
            // In code, addresses and offsets are the same.
            symbol.address() + 1
        };
        (0..FILES).map(address).collect()
    }

    #[test]
    fn of_many_units_those_with_the_address_are_needed() {
        let scratch = Scratch::new("units");
        for flags in [
            &["-gdwarf-4"][..],
            &["-gdwarf-5"],
            &["-gdwarf-5", "-gdwarf64"],
        ] {
            let Some(program) = program(&scratch.0, flags) else {
                return;
            };
            let file = File::open(program).unwrap();
            for (index, offset) in serve(&file).into_iter().enumerate() {
                let ([whole, of_parts], sizes) = functions(&file, offset);
                assert_eq!(whole, of_parts, "{flags:?}");
                let names: Vec<&str> = whole.iter().map(|it| &it.name[..]).collect();
                let expected = [format!("add{index}"), format!("serve{index}")];
                assert_eq!(names, expected, "{flags:?}");
                assert!(whole.iter().all(|function| function.line > 0), "{whole:?}");
                if flags == ["-gdwarf-5", "-gdwarf64"] {
                    // Compilers make it only with an option.
                    assert_eq!(sizes, None);
                    continue;
                }
                let (needed, all) = sizes.unwrap();
                assert!(needed < all / 2, "{needed} of {all} bytes");
            }
        }
    }

    #[test]
    fn names_in_other_units_are_references_of_the_whole_section() {
        // A function, and its attributes: DW_AT_abstract_origin (0x31), DW_AT_specification (0x47) and DW_AT_type
        // (0x49); DW_FORM_ref4 (0x13), DW_FORM_ref_addr (0x10), DW_FORM_indirect (0x16), DW_FORM_implicit_const (0x21).
        let refers = |attributes: &[u8]| {
            let table = [&[1, 0x2e, 0][..], attributes, &[0, 0, 0]].concat();
            refers_to_other_units(EndianSlice::new(&table, RunTimeEndian::Little))
        };
        assert_eq!(refers(&[0x31, 0x13, 0x47, 0x13]), Ok(false));
        assert_eq!(refers(&[0x49, 0x10]), Ok(false));
        assert_eq!(refers(&[0x31, 0x10]), Ok(true));
        assert_eq!(refers(&[0x03, 0x08, 0x47, 0x10]), Ok(true));
        assert_eq!(refers(&[0x0b, 0x21, 0x7f, 0x31, 0x13]), Ok(false));
        assert_eq!(refers(&[0x0b, 0x21, 0x7f, 0x31, 0x10]), Ok(true));
        assert_eq!(refers(&[0x49, 0x16]), Ok(true));
        let cut = EndianSlice::new(&[1, 0x2e], RunTimeEndian::Little);
        assert!(refers_to_other_units(cut).is_err());
    }

    /// The bytes are malformed on purpose, as a hostile target could have them.
    #[test]
    fn millions_of_units_are_a_limit() {
        let path = Scratch::new("limits");
        let path = path.0.join("file");
        let units = |of_one: &[u8], size: u64| {
            fs::write(&path, of_one.repeat(MAX_UNITS + 1)).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            file.set_len(size).unwrap();
            let dwarf = Dwarf {
                file: &file,
                info: 0..size,
                line: 0..0,
                abbreviations: EndianSlice::new(&[], RunTimeEndian::Little),
            };
            let aranges = EndianSlice::new(&[], RunTimeEndian::Little);
            dwarf.parts(aranges, &[]).map(|parts| parts.needed.len())
        };
        // Without a length, in a file without contents.
        assert_eq!(units(&[], 1 << 40), None);
        let of_types = [4, 0, 0, 0, 5, 0, DW_UT_type.0, 0];
        assert_eq!(units(&of_types, (MAX_UNITS * 8) as u64), Some(0));
        assert_eq!(units(&of_types, (MAX_UNITS * 8 + 8) as u64), None);
    }

    /// With link-time optimization, a function is named where it was declared, in another unit.
    #[test]
    fn units_that_refer_to_others_are_not_separated() {
        let scratch = Scratch::new("origins");
        let Some(program) = program(&scratch.0, &["-g", "-flto"]) else {
            return;
        };
        let file = File::open(program).unwrap();
        for (index, offset) in serve(&file).into_iter().enumerate() {
            let ([whole, of_parts], sizes) = functions(&file, offset);
            assert_eq!(whole, of_parts);
            assert_eq!(whole.last().unwrap().name, format!("serve{index}"));
            assert_eq!(sizes, None);
        }
    }
}
