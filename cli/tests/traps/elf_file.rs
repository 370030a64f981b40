//! A shared library whose tables are changed into what no linker writes.

use std::fs;
use std::path::Path;

/// The bytes of an ELF file, 64-bit and little-endian, and how much follows them: a hole.
pub(crate) struct ElfFile {
    bytes: Vec<u8>,
    hole: u64,
}

/// Offsets in the header, a program header and a dynamic entry (<elf.h>).
const E_PHOFF: usize = 32;
const E_PHNUM: usize = 56;
const PROGRAM_HEADERS: usize = 64;
const PROGRAM_HEADER: usize = 56;
const P_OFFSET: usize = 8;
const P_VADDR: usize = 16;
const P_FILESZ: usize = 32;
const P_MEMSZ: usize = 40;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_TLS: u64 = 7;

const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_RELACOUNT: u64 = 0x6fff_fff9;

impl ElfFile {
    pub(crate) fn open(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        Self { bytes, hole: 0 }
    }

    pub(crate) fn write(&self, path: &Path) {
        fs::write(path, &self.bytes).unwrap();
        let length = self.bytes.len() as u64 + self.hole;
        fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(length)
            .unwrap();
    }

    /// Sets the trap of this name.
    pub(crate) fn patch(&mut self, name: &str) {
        match name {
            "" => {}
            "segments" => self.bytes[E_PHNUM..E_PHNUM + 2].fill(0xff),
            "segments-nowhere" => self.set(E_PHOFF, 1 << 62),
            "strings-nowhere" => self.set_dynamic(DT_STRTAB, 1 << 60),
            "tables-in-themselves" => {
                let dynamic = self.segment(PT_DYNAMIC);
                let address = self.get(dynamic + P_VADDR);
                for tag in [DT_STRTAB, DT_SYMTAB, DT_GNU_HASH] {
                    self.set_dynamic(tag, address);
                }
            }
            // One bucket, a filter that lets everything through, and a chain of zeroes: none of its
            // links says that it is the last.
            "gnu-hash-endless" => {
                let words: [u32; 7] = [1, 1, 1, 0, u32::MAX, u32::MAX, 1];
                let address = self.append(&words, 1 << 20);
                self.set_dynamic(DT_GNU_HASH, address);
            }
            // One bucket, whose chain is symbol 1, endlessly.
            "hash-cycle" => {
                let address = self.append(&[1, u32::MAX, 1, 0, 1], 0);
                self.rename_dynamic(DT_GNU_HASH, DT_HASH);
                self.set_dynamic(DT_HASH, address);
            }
            "relocations-endless" => self.set_dynamic(DT_RELASZ, 1 << 40),
            // Two million, that take no room on the disk.
            "relocations-in-a-hole" => {
                let size = 24 << 21;
                let address = self.append(&[0], size);
                self.set_dynamic(DT_RELA, address);
                self.set_dynamic(DT_RELASZ, size);
                self.rename_dynamic(DT_RELACOUNT, 0x7000_0000);
            }
            "storage-too-small" => {
                let storage = self.segment(PT_TLS);
                self.set(storage + P_MEMSZ, 4);
            }
            other => panic!("no trap {other}"),
        }
    }

    fn get(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    fn set(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns the offset of the last program header of this kind.
    fn segment(&self, kind: u64) -> usize {
        let count = usize::from(self.bytes[E_PHNUM]);
        let mut all = (0..count).map(|index| PROGRAM_HEADERS + index * PROGRAM_HEADER);
        all.rfind(|at| self.get(*at) & u64::from(u32::MAX) == kind)
            .unwrap()
    }

    /// Returns the offset of a dynamic entry; a file need not have all.
    fn dynamic(&self, tag: u64) -> Option<usize> {
        let dynamic = self.segment(PT_DYNAMIC);
        let (start, size) = (self.get(dynamic + P_OFFSET), self.get(dynamic + P_FILESZ));
        let mut all = (start..start + size).step_by(16).map(|at| at as usize);
        all.find(|at| self.get(*at) == tag)
    }

    fn set_dynamic(&mut self, tag: u64, value: u64) {
        let at = self.dynamic(tag).unwrap();
        self.set(at + 8, value);
    }

    fn rename_dynamic(&mut self, tag: u64, new: u64) {
        if let Some(at) = self.dynamic(tag) {
            self.set(at, new);
        }
    }

    /// Adds words and a hole behind them to the last segment; returns their address.
    fn append(&mut self, words: &[u32], hole: u64) -> u64 {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(4096), 0);
        let at = self.bytes.len() as u64;
        self.bytes
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.hole = hole;
        let segment = self.segment(PT_LOAD);
        let inside = at - self.get(segment + P_OFFSET);
        let size = inside + 4 * words.len() as u64 + hole;
        self.set(segment + P_FILESZ, size);
        self.set(segment + P_MEMSZ, size);
        self.get(segment + P_VADDR) + inside
    }
}
