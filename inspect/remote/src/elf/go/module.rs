//! The structure from which Go's runtime finds its own tables (`moduledata` in Go's src/runtime/symtab.go). It is in
//! stripped programs as well, and says what their sections do not: where the table of functions is if a linker has put it
//! into a section of another name, where Go's code begins beside that of C, and where the inlined calls are.

use object::LittleEndian as LE;
use object::elf::{self, Rela64};

use super::super::{Elf, ElfError, Section, structs};
use super::{Header, MAX_TABLE};
use crate::machine::Machine;

/// Maximum number of bytes of a section that are searched: 16 MiB. Kubernetes' kubelet, a large program, has fewer than one.
const MAX_SEARCHED: u64 = 16 << 20;
/// Maximum number of pairs of relocations that are tried; programs have about ten that could be the structure's.
const MAX_CANDIDATES: usize = 256;
/// Maximum size of the table's header, behind which the names are, in bytes. It has 72.
const MAX_HEADER: u64 = 1024;
/// Number of its words that are read, and the places of those in use: the table's header, the slices of names and of
/// functions (address, length and capacity each), where functions begin and end (`minpc`, `maxpc`), the address of Go's
/// code, and of what functions refer to (`gofunc`).
const WORDS: usize = 50;
const TABLE: usize = 0;
const NAMES: usize = 1;
const FUNCTIONS: usize = 13;
const START: usize = 20;
const END: usize = 21;
const TEXT: usize = 22;
const REFERRED: usize = 40;
/// Lengths of the slices `textsectmap`, `typelinks` and `itablinks`, which are behind it up to Go 1.25, and of the first two
/// since Go 1.26, where they follow the end of what functions refer to.
const SLICES: [usize; 3] = [42, 45, 48];
const NEW_SLICES: [usize; 2] = [43, 46];

type Words = [u64; WORDS];

/// Addresses of the program's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Module {
    /// The table of functions, and its size in bytes.
    pub(super) table: u64,
    pub(super) size: u64,
    /// Go's code.
    pub(super) text: u64,
    /// The first and the last address of functions, from there on.
    pub(super) ends: (u64, u64),
    /// What functions refer to, such as trees of inlined calls. `None` before Go 1.20, and in versions that have the
    /// structure in another form.
    pub(super) referred: Option<u64>,
}

impl Module {
    /// Finds the structure in one of a file's sections. `None` if it is not there, or not in this form.
    pub(super) fn find(elf: &Elf<'_>, section: &Section) -> Result<Option<Self>, ElfError> {
        let bytes = elf.section_bytes(section, MAX_SEARCHED)?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let mut candidates = words.windows(WORDS).filter(|words| {
            let (start, names) = (words[TABLE], words[NAMES]);
            is_header(start, names) && words[NAMES + 1] == words[NAMES + 2]
        });
        let in_place = candidates.find_map(|words| Self::new(elf, words.first_chunk()?));
        if in_place.is_some() {
            return Ok(in_place);
        }
        // A position-independent program has its addresses in relocations.
        let mut last = None;
        let mut candidates: Vec<(u64, Words)> = Vec::new();
        relative(elf, &mut |at, address| {
            if let Some((before, start)) = last.replace((at, address))
                && at.wrapping_sub(before) == 8
                && is_header(start, address)
                && candidates.len() < MAX_CANDIDATES
                && let Some(from) = before.checked_sub(section.address)
                && let Some(words) = words.get((from / 8) as usize..)
                && let Some(words) = words.first_chunk()
            {
                candidates.push((before, *words));
            }
        })?;
        candidates.retain(|(_, words)| words[NAMES + 1] == words[NAMES + 2]);
        relative(elf, &mut |at, address| {
            for (start, words) in &mut candidates {
                let index = usize::try_from(at.wrapping_sub(*start) / 8).unwrap_or(WORDS);
                if let Some(word) = words.get_mut(index) {
                    *word = address;
                }
            }
        })?;
        Ok(candidates.iter().find_map(|it| Self::new(elf, &it.1)))
    }

    /// `None` if the words are not those of the structure, whose parts must be where the table's header says.
    fn new(elf: &Elf<'_>, words: &Words) -> Option<Self> {
        let (table, text) = (words[TABLE], words[TEXT]);
        let mut header = [0; 72];
        elf.read_at(table, &mut header).ok()?;
        let header = Header::parse(&header)?;
        let is_at =
            |part: usize, index: usize| table.checked_add(part as u64) == Some(words[index]);
        if !is_at(header.names, NAMES) || !is_at(header.functions, FUNCTIONS) {
            return None;
        }
        let size = (header.functions as u64).checked_add(words[FUNCTIONS + 1])?;
        let are_slices = |lengths: &[usize]| {
            let mut lengths = lengths.iter().map(|at| (words[*at], words[*at + 1]));
            lengths.all(|(length, capacity)| length != 0 && length == capacity)
        };
        let referred = words[REFERRED];
        // Since Go 1.26, it is right behind the table.
        let is_known = match table.checked_add(size) == Some(referred) {
            true => are_slices(&NEW_SLICES),
            false => are_slices(&SLICES),
        };
        (size <= MAX_TABLE).then_some(Self {
            table,
            size,
            text,
            ends: (
                words[START].checked_sub(text)?,
                words[END].checked_sub(text)?,
            ),
            referred: (header.is_new && is_known).then_some(referred),
        })
    }
}

/// Returns whether names at an address can be those behind a header at another one.
fn is_header(start: u64, names: u64) -> bool {
    start != 0 && (1..MAX_HEADER).contains(&names.wrapping_sub(start))
}

/// Calls `visit` with the address and the value of each relative relocation.
fn relative(elf: &Elf<'_>, visit: &mut dyn FnMut(u64, u64)) -> Result<(), ElfError> {
    let kind = match elf.machine() {
        Machine::X86_64 => elf::R_X86_64_RELATIVE.0,
        Machine::Aarch64 => elf::R_AARCH64_RELATIVE.0,
        Machine::Other(_) => return Ok(()),
    };
    let (at, size) = (elf.table.rela, elf.table.rela_size);
    elf.for_chunks(at, size, size_of::<Rela64<LE>>() as u64, |bytes| {
        let relocations = structs::<Rela64<LE>>(bytes).iter();
        for it in relocations.filter(|it| it.r_type(LE, false).0 == kind) {
            visit(it.r_offset.get(LE), it.r_addend.get(LE) as u64);
        }
        Ok(())
    })
}
