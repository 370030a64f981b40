//! References to supplementary files, to which dwz moves what several files have in common.

use std::fs::File;

use gimli::{EndianSlice, LittleEndian, Reader};
use object::endian::Endianness;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ReadCache, ReadRef};

/// Maximum size of the section that refers to a supplementary file, in bytes.
const MAX_SUPPLEMENT: u64 = 64 << 10;

/// The reference to a supplementary file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Supplement {
    pub(crate) path: Vec<u8>,
    /// Its build ID, or the checksum that takes its place.
    pub(crate) build_id: Vec<u8>,
}

impl Supplement {
    /// The reference in an ELF file: of GNU's form, or that of DWARF 5 (7.3.6).
    pub(crate) fn of<'d, R: ReadRef<'d>>(elf: &ElfFile64<'d, Endianness, R>) -> Option<Self> {
        if let Ok(Some((path, build_id))) = elf.gnu_debugaltlink() {
            let (path, build_id) = (path.to_vec(), build_id.to_vec());
            return Some(Self { path, build_id });
        }
        let (is_supplementary, link) = of_dwarf_5(elf)?;
        (!is_supplementary).then_some(link)
    }

    /// The same in a file.
    pub(crate) fn in_file(file: &File) -> Option<Self> {
        let cache = ReadCache::new(file);
        Self::of(&ElfFile64::parse(&cache).ok()?)
    }

    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// Returns true if this is the file.
    pub(crate) fn is(&self, file: &File) -> bool {
        let cache = ReadCache::new(file);
        let Ok(elf) = ElfFile64::<Endianness, _>::parse(&cache) else {
            return false;
        };
        // Its notes are in no segment, which it has none of.
        if elf.build_id().is_ok_and(|id| id == Some(&self.build_id)) {
            return true;
        }
        of_dwarf_5(&elf)
            .is_some_and(|(is_supplementary, it)| is_supplementary && it.build_id == self.build_id)
    }
}

/// The contents of `.debug_sup`: whether the file is a supplementary one; the other one's path, and its checksum.
fn of_dwarf_5<'d, R: ReadRef<'d>>(
    elf: &ElfFile64<'d, Endianness, R>,
) -> Option<(bool, Supplement)> {
    let section = elf.section_by_name(".debug_sup")?;
    if section.size() > MAX_SUPPLEMENT {
        return None;
    }
    let bytes = EndianSlice::new(section.data().ok()?, LittleEndian);
    let (mut rest, mut path) = (bytes, Vec::new());
    let version = rest.read_u16().ok()?;
    let is_supplementary = rest.read_u8().ok()? != 0;
    loop {
        match rest.read_u8().ok()? {
            0 => break,
            byte => path.push(byte),
        }
    }
    let size = usize::try_from(rest.read_uleb128().ok()?).ok()?;
    let build_id = rest.split(size).ok()?.slice().to_vec();
    let is_usable = (2..=5).contains(&version) && !build_id.is_empty();
    is_usable.then_some((is_supplementary, Supplement { path, build_id }))
}
