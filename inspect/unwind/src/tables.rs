//! The sections of an ELF file that rows are made of.

use gimli::{BaseAddresses, EndianSlice, LittleEndian};
use otelctx_remote::elf::{Elf, ElfError, GoTable, Section, Segment};

use crate::arch::Architecture;
use crate::compressed::{decompress, decompress_gnu};
use crate::error::Error;
use crate::instructions::{CodeWork, FunctionCode, Tails};
use crate::records::BehindCall;
use crate::uncovered::Uncovered;

/// Bytes that are read of one section. LLVM's library, the largest at hand, has 8 MiB of tables.
const MAX_SECTION: u64 = 64 << 20;
/// Bytes that are read of a section of linkage stubs.
const MAX_STUBS: u64 = 1 << 20;
/// Bytes that are read of the entry point. C libraries have 34 to 72 there.
const ENTRY_CODE: usize = 80;
/// Maximum size of the code at the entry point, in bytes.
const MAX_ENTRY: u64 = 256;
/// Size of `.eh_frame`, in bytes, up to which a C library counts as built without tables.
const MAX_EH_FRAME: usize = 4096;
/// Bytes of such a library's code that are read. musl has 0.5 MiB.
const MAX_CODE: u64 = 4 << 20;
/// Sections of code that linkers and crti.o make.
const STUBS: [&[u8]; 6] = [
    b".plt",
    b".plt.sec",
    b".plt.got",
    b".iplt",
    b".init",
    b".fini",
];

pub(crate) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The sections that rows are made of.
#[derive(Debug, Default, Hash)]
pub(crate) struct Tables {
    /// Address and bytes.
    pub(crate) eh_frame: Option<(u64, Vec<u8>)>,
    pub(crate) eh_frame_header: u64,
    pub(crate) debug_frame: Option<Vec<u8>>,
    pub(crate) text: u64,
    pub(crate) got: u64,
    pub(crate) entry: u64,
    /// The size of the code there, in bytes; 0 if it is not known.
    pub(crate) entry_size: u64,
    /// The size of the code that is reached from there, in bytes, at most [`MAX_ENTRY`].
    pub(crate) entry_extent: u64,
    pub(crate) stubs: Vec<(u64, Vec<u8>)>,
    /// The table of Go's runtime.
    pub(crate) go: Option<GoTable>,
    /// Return addresses in functions of Go at which stacks end, in order.
    pub(crate) ends_of_growing: Vec<u64>,
    /// Return addresses of threads' first functions, in a C library without tables.
    pub(crate) first_returns: Vec<u64>,
    /// Rules of functions behind calls that their tables are wrong of, in order.
    pub(crate) behind_calls: Vec<BehindCall>,
    /// Code that none of these describes.
    pub(crate) uncovered: Uncovered,
}

impl Tables {
    /// Size of what was read, in bytes.
    pub(crate) fn size(&self) -> usize {
        let eh_frame = self.eh_frame.as_ref().map_or(0, |(_, bytes)| bytes.len());
        let debug_frame = self.debug_frame.as_ref().map_or(0, Vec::len);
        let of_go = self.go.as_ref().map_or(0, GoTable::size);
        let stubs = self.stubs.iter().map(|(_, bytes)| bytes.len());
        eh_frame + debug_frame + of_go + stubs.sum::<usize>() + self.uncovered.size()
    }

    pub(crate) fn read(elf: &Elf<'_>, architecture: &'static Architecture) -> Result<Self, Error> {
        let read = |section: &Section, limit: u64, what| {
            if section.size > limit {
                return Err(Error::Limit { what, limit });
            }
            Ok(elf.section_bytes(section, limit)?)
        };
        let [eh_frame, debug_frame, gnu_debug_frame, text, got] = elf.sections_named([
            b".eh_frame",
            b".debug_frame",
            b".zdebug_frame",
            b".text",
            b".got",
        ])?;
        let mut tables = Tables::default();
        if let Some(section) = eh_frame {
            let bytes = read(&section, MAX_SECTION, "bytes of .eh_frame")?;
            tables.eh_frame = Some((section.address, bytes));
        } else {
            tables.eh_frame = eh_frame_of_segments(elf)?;
        }
        tables.go = GoTable::read(elf)?;
        // What Go's compiler writes there ends with its first functions, and does not say so.
        if tables.go.is_none() {
            let what = "bytes of .debug_frame";
            let section = |section: Section| {
                let bytes = read(&section, MAX_SECTION, what)?;
                match section.compressed {
                    true => decompress(&bytes, MAX_SECTION, what),
                    false => Ok(bytes),
                }
            };
            let gnu = |section: Section| {
                let bytes = read(&section, MAX_SECTION, what)?;
                decompress_gnu(&bytes, MAX_SECTION, what)
            };
            tables.debug_frame = match debug_frame.map(section) {
                Some(bytes) => Some(bytes?),
                None => gnu_debug_frame.map(gnu).transpose()?,
            };
        }
        tables.entry = elf.entry();
        let mut code = [0; ENTRY_CODE];
        if elf.read_at(tables.entry, &mut code).is_ok() {
            tables.entry_size = (architecture.entry)(&code) as u64;
        }
        tables.eh_frame_header = elf.eh_frame_header().map_or(0, |it| it.address);
        tables.text = text.map_or(0, |text| text.address);
        tables.got = got.map_or(0, |got| got.address);
        for section in elf.sections_named(STUBS)?.into_iter().flatten() {
            if section.executable && section.size <= MAX_STUBS {
                let bytes = elf.section_bytes(&section, MAX_STUBS)?;
                tables.stubs.push((section.address, bytes));
            }
        }
        tables.first_returns = first_returns(elf, &tables, architecture);
        Ok(tables)
    }

    /// Finds the size of the code at the entry point, in bytes, once code without tables was read.
    pub(crate) fn extent_of_entry(&self, elf: &Elf<'_>, architecture: &Architecture) -> u64 {
        let next = self.uncovered.next_start(self.entry);
        let size = next.map_or(MAX_ENTRY, |next| MAX_ENTRY.min(next - self.entry));
        let mut bytes = vec![0; size as usize];
        // The segment may end before.
        while !bytes.is_empty() && elf.read_at(self.entry, &mut bytes).is_err() {
            bytes.truncate(bytes.len() / 2);
        }
        let code = FunctionCode {
            bytes: &bytes,
            address: self.entry,
            start: self.entry,
            end: self.entry.saturating_add(bytes.len() as u64),
            starts: &[],
            tails: Tails::NONE,
            is_function: false,
        };
        (architecture.code.extent)(&code, &mut CodeWork::default())
    }
}

/// Finds the return addresses of first functions in musl, which passes their results to `exit`
/// (src/env/__libc_start_main.c) and `pthread_exit` (src/thread/pthread_create.c).
fn first_returns(elf: &Elf<'_>, tables: &Tables, architecture: &Architecture) -> Vec<u64> {
    let size = tables.eh_frame.as_ref().map_or(0, |(_, bytes)| bytes.len());
    let address = |name| Some(elf.exported_symbol(name).ok()??.value);
    let is_c_library = || address(b"__libc_start_main").is_some();
    let mut found = Vec::new();
    if size > MAX_EH_FRAME || tables.debug_frame.is_some() || !is_c_library() {
        return found;
    }
    let ends = [&b"exit"[..], b"pthread_exit"].into_iter();
    let ends: Vec<u64> = ends.filter_map(address).collect();
    let mut left = MAX_CODE;
    for segment in elf.loads().iter().filter(|it| it.executable) {
        let mut code = vec![0; segment.file_size.min(left) as usize];
        left -= code.len() as u64;
        if elf.read_at(segment.address, &mut code).is_ok() {
            (architecture.first_returns)(&code, segment.address, &ends, &mut found);
        }
    }
    found
}

/// `.eh_frame` of a module without sections: its header has the address, and its segment the end.
fn eh_frame_of_segments(elf: &Elf<'_>) -> Result<Option<(u64, Vec<u8>)>, Error> {
    let Some(segment) = elf.eh_frame_header() else {
        return Ok(None);
    };
    // Version, three encodings, and a pointer of at most 8 bytes.
    let mut head = vec![0; segment.memory_size.min(16) as usize];
    elf.read_at(segment.address, &mut head)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(segment.address);
    let header = gimli::EhFrameHdr::new(&head, LittleEndian).parse(&bases, 8);
    let Ok(address) = header.map(|header| header.eh_frame_ptr().pointer()) else {
        return Err(ElfError::Malformed("its .eh_frame_hdr is malformed").into());
    };
    let end = |load: &Segment| load.address.saturating_add(load.file_size);
    let mut loads = elf.loads().iter();
    let Some(load) = loads.find(|load| (load.address..end(load)).contains(&address)) else {
        return Err(ElfError::Malformed("its .eh_frame is in no segment").into());
    };
    // The segment goes on after the table, which a terminator ends.
    let mut bytes = vec![0; (end(load) - address).min(MAX_SECTION) as usize];
    elf.read_at(address, &mut bytes)?;
    let length = terminated(&bytes);
    bytes.truncate(length);
    Ok(Some((address, bytes)))
}

/// Bytes of the entries up to the terminator, a length of 0.
fn terminated(bytes: &[u8]) -> usize {
    let mut offset: usize = 0;
    while let Some(length) = bytes.get(offset..).and_then(|rest| rest.first_chunk()) {
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 {
            return offset;
        }
        offset = offset.saturating_add(4).saturating_add(length);
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use otelctx_fixtures::{Compiler, DEBUG_FRAME};
    use otelctx_remote::Machine;
    use otelctx_remote::elf::{FileBytes, Source};

    use super::*;

    #[test]
    fn the_code_of_the_entry_point_of_aarch64_ends_with_its_second_call() {
        for flag in ["-Wl,--discard-none", "-s"] {
            let compiler = Compiler::aarch64_gcc();
            let Some(program) = compiler.program(&["stacks.c"], &[flag]) else {
                return;
            };
            let file = File::open(program).unwrap();
            let bytes = FileBytes(&file);
            let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
            let architecture = Architecture::of(Machine::Aarch64).unwrap();
            let tables = Tables::read(&elf, architecture).unwrap();
            let extent = tables.extent_of_entry(&elf, architecture);
            // glibc's `_start` has 13 instructions, and the next function follows it.
            assert_eq!(extent, 52, "{flag}");
        }
    }

    /// Some distributions compress debug information by default.
    #[test]
    fn compressed_tables_of_debug_information_are_read() {
        // Not every linker has zstd.
        let help = Command::new("ld").arg("--help").output();
        let help = help.map_or(Vec::new(), |output| output.stdout);
        let has_zstd = String::from_utf8_lossy(&help).contains("zlib-gabi|zstd");
        let kinds = ["none", "zlib", "zlib-gnu", "zstd"];
        let tables = kinds.iter().take(if has_zstd { 4 } else { 3 }).map(|kind| {
            let compression = format!("-Wl,--compress-debug-sections={kind}");
            let flags = [&[compression.as_str()][..], &DEBUG_FRAME].concat();
            let program = Compiler::gcc().program(&["stacks.c"], &flags)?;
            let file = File::open(program).unwrap();
            let bytes = FileBytes(&file);
            let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
            let architecture = Architecture::of(elf.machine()).unwrap();
            Tables::read(&elf, architecture).unwrap().debug_frame
        });
        let tables: Vec<_> = tables.collect();
        let Some(Some(plain)) = tables.first() else {
            return;
        };
        assert!(plain.len() > 1000);
        for (kind, table) in kinds.iter().zip(&tables) {
            assert!(table.as_ref() == Some(plain), "{kind}");
        }
    }
}
