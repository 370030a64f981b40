//! ELF files made by hand.

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;

use nix::libc;

/// Where the code starts.
pub(crate) const CODE: u64 = 0x10_0000;
/// Where `.eh_frame` is loaded.
const EH_FRAME: u64 = 0x1000;

/// The sections that can hold unwind tables. They differ in how entries refer to common entries, and in the id of common
/// entries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Section {
    EhFrame,
    DebugFrame,
}

impl Section {
    /// Both. Prints each, so that a failed test shows which one it was.
    pub(crate) fn each() -> impl Iterator<Item = Self> {
        let both = [Self::EhFrame, Self::DebugFrame].into_iter();
        both.inspect(|section| println!("{section:?}"))
    }

    /// The name of the section's size in errors.
    pub(crate) fn bytes(self) -> &'static str {
        match self {
            Self::EhFrame => "bytes of .eh_frame",
            Self::DebugFrame => "bytes of .debug_frame",
        }
    }

    /// The id of common entries (Linux Standard Base, Exception Frames; DWARF 5, section 7.24).
    fn common_id(self) -> u32 {
        match self {
            Self::EhFrame => 0,
            Self::DebugFrame => u32::MAX,
        }
    }
}

/// A file with code and unwind tables.
pub(crate) struct Image {
    pub(crate) table: Table,
    /// Size of the section as its header has it, if not its own.
    pub(crate) size: Option<u64>,
    /// Address and size of each executable segment.
    pub(crate) code: Vec<(u64, u64)>,
}

impl Image {
    pub(crate) fn new(table: Table) -> Self {
        Image {
            table,
            size: None,
            code: vec![(CODE, 1 << 30)],
        }
    }

    /// Writes the file: header, program headers, section headers, names, tables.
    pub(crate) fn file(&self) -> File {
        const NAMES: &[u8] = b"\0.eh_frame\0.shstrtab\0.debug_frame\0";
        let (name, address) = match self.table.section {
            Section::EhFrame => (1, EH_FRAME),
            Section::DebugFrame => (21, 0),
        };
        let segments = self.code.len() as u64;
        let sections = 64 + segments * 56;
        let names = sections + 3 * 64;
        let start = names + NAMES.len() as u64;
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let u16 = |bytes: &mut Vec<u8>, value: u16| bytes.extend(value.to_le_bytes());
        let u32 = |bytes: &mut Vec<u8>, value: u32| bytes.extend(value.to_le_bytes());
        let u64 = |bytes: &mut Vec<u8>, value: u64| bytes.extend(value.to_le_bytes());
        // A shared object for x86-64.
        u16(&mut bytes, 3);
        u16(&mut bytes, 62);
        u32(&mut bytes, 1);
        for value in [0, 64, sections] {
            u64(&mut bytes, value);
        }
        u32(&mut bytes, 0);
        for value in [64, 56, segments as u16, 64, 3, 2] {
            u16(&mut bytes, value);
        }
        for (address, size) in &self.code {
            // PT_LOAD, readable and executable
            u32(&mut bytes, 1);
            u32(&mut bytes, 5);
            for value in [0, *address, *address, 0, *size, 4096] {
                u64(&mut bytes, value);
            }
        }
        let size = self.size.unwrap_or(self.table.bytes.len() as u64);
        // PROGBITS, STRTAB
        for (name, kind, address, offset, size) in [
            (0, 0, 0, 0, 0),
            (name, 1, address, start, size),
            (11, 3, 0, names, NAMES.len() as u64),
        ] {
            u32(&mut bytes, name);
            u32(&mut bytes, kind);
            for value in [0, address, offset, size] {
                u64(&mut bytes, value);
            }
            u64(&mut bytes, 0);
            u64(&mut bytes, 1);
            u64(&mut bytes, 0);
        }
        bytes.extend(NAMES);
        bytes.extend(&self.table.bytes);
        // SAFETY: memfd_create takes a string, and returns a descriptor that nobody else has.
        let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"elf".as_ptr(), 0)) };
        file.write_all(&bytes).expect("memory is to be had");
        if let Some(size) = self.size {
            // A sparse file costs its maker nothing.
            file.set_len(start + size).expect("a length");
        }
        file
    }
}

/// Unwind tables, entry by entry.
pub(crate) struct Table {
    pub(crate) section: Section,
    pub(crate) bytes: Vec<u8>,
}

impl Table {
    pub(crate) fn new(section: Section) -> Self {
        Self {
            section,
            bytes: Vec::new(),
        }
    }

    /// A common entry without augmentation: addresses are absolute, of 8 bytes.
    pub(crate) fn common(&mut self, instructions: &[u8]) -> usize {
        // Version, augmentation, code alignment 1, data alignment -8, return address in column 16;
        // the CFA is rsp + 8, the return address at CFA - 8.
        let head = [1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
        self.entry(self.section.common_id(), &[&head, instructions].concat())
    }

    pub(crate) fn function(&mut self, common: usize, start: u64, size: u64, code: &[u8]) -> usize {
        let body = [&start.to_le_bytes()[..], &size.to_le_bytes(), code].concat();
        self.entry(self.reference(common), &body)
    }

    /// The id by which the next entry refers to another one.
    pub(crate) fn reference(&self, to: usize) -> u32 {
        match self.section {
            // The distance from the id itself.
            Section::EhFrame => (self.bytes.len() + 4).wrapping_sub(to) as u32,
            // The place in the section.
            Section::DebugFrame => to as u32,
        }
    }

    pub(crate) fn entry(&mut self, id: u32, body: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend((body.len() as u32 + 4).to_le_bytes());
        self.bytes.extend(id.to_le_bytes());
        self.bytes.extend(body);
        at
    }
}
