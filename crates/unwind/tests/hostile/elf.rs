//! ELF files made by hand.

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;

use nix::libc;

/// Where the code starts.
pub(crate) const CODE: u64 = 0x10_0000;
/// Where `.eh_frame` is loaded.
pub(crate) const EH_FRAME: u64 = 0x1000;

/// A file with code and `.eh_frame`.
pub(crate) struct Image {
    pub(crate) eh_frame: Vec<u8>,
    /// Size of `.eh_frame` as its header has it, if not its own.
    pub(crate) size: Option<u64>,
    /// Address and size of each executable segment.
    pub(crate) code: Vec<(u64, u64)>,
}

impl Image {
    pub(crate) fn new(eh_frame: Vec<u8>) -> Self {
        Image {
            eh_frame,
            size: None,
            code: vec![(CODE, 1 << 30)],
        }
    }

    /// Writes the file: header, program headers, section headers, names, `.eh_frame`.
    pub(crate) fn file(&self) -> File {
        const NAMES: &[u8] = b"\0.eh_frame\0.shstrtab\0";
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
        let size = self.size.unwrap_or(self.eh_frame.len() as u64);
        // PROGBITS, STRTAB
        for (name, kind, address, offset, size) in [
            (0, 0, 0, 0, 0),
            (1, 1, EH_FRAME, start, size),
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
        bytes.extend(&self.eh_frame);
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

/// `.eh_frame`, entry by entry.
#[derive(Default)]
pub(crate) struct EhFrame(pub(crate) Vec<u8>);

impl EhFrame {
    /// A common entry without augmentation: addresses are absolute, of 8 bytes.
    pub(crate) fn common(&mut self, instructions: &[u8]) -> usize {
        // Version, augmentation, code alignment 1, data alignment -8, return address in column 16;
        // the CFA is rsp + 8, the return address at CFA - 8.
        let head = [1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
        self.entry(|_| 0, &[&head, instructions].concat())
    }

    pub(crate) fn function(&mut self, common: usize, start: u64, size: u64, code: &[u8]) -> usize {
        let body = [&start.to_le_bytes()[..], &size.to_le_bytes(), code].concat();
        self.entry(|at| (at + 4 - common) as u32, &body)
    }

    /// An entry with an id that depends on where it is.
    pub(crate) fn entry(&mut self, id: impl Fn(usize) -> u32, body: &[u8]) -> usize {
        let at = self.0.len();
        self.0.extend((body.len() as u32 + 4).to_le_bytes());
        self.0.extend(id(at).to_le_bytes());
        self.0.extend(body);
        at
    }
}
