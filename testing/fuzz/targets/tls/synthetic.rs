//! A process made of bytes: architecture, threads, mappings, the files of its modules, memory.
//!
//! The bytes are parts with [`SEPARATOR`] between them, so that a mutation of one leaves the
//! others where they are. The first byte of a part says what it is; malformed parts are skipped.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufRead as _;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use nix::sys::memfd::{MFdFlags, memfd_create};
use otelctx_remote::mappings::{self, Walk};
use otelctx_remote::memory::Image;
use otelctx_remote::module::Machine;
use otelctx_remote::{Device, Error, Mapping, Memory, MemoryError, Target};

/// Between two parts.
pub const SEPARATOR: &[u8] = b"\xf5TLS\xf5";
/// The process runs on aarch64, not on x86-64. Nothing follows.
pub const AARCH64: u8 = b'A';
/// A thread: 8 bytes, its thread pointer.
pub const THREAD: u8 = b'T';
/// Lines of `/proc/PID/maps`. The inode of a mapping is the number of its file and 1; one that
/// there is not is a file that was deleted.
pub const MAPPINGS: u8 = b'M';
/// Some of a file: 1 byte, its number; 4 bytes, the offset; the bytes there.
pub const FILE: u8 = b'F';
/// Some of the memory: 8 bytes, the address; the bytes there.
pub const PIECE: u8 = b'P';
/// As [`PIECE`], with 4 bytes, the length, behind the address: the bytes again and again.
pub const REPEATED: u8 = b'R';

/// Files that can be given.
pub const FILES: usize = 8;
/// Limit on threads that are resolved.
const THREADS: usize = 8;
/// Maximum size of a file, including holes, and of repeated memory, in bytes: more than glibc's
/// libc.so has.
const MAX_SIZE: u32 = 4 << 20;

/// Files that cost no disk.
static POOL: LazyLock<[File; FILES]> = LazyLock::new(|| {
    [(); FILES].map(|()| {
        File::from(memfd_create(c"module", MFdFlags::empty()).expect("a memfd is to be had"))
    })
});

/// See the module.
pub struct Synthetic {
    machine: Machine,
    /// Thread pointers.
    pub threads: Vec<u64>,
    mappings: Vec<u8>,
    given: [bool; FILES],
    memory: Image,
    reads: Cell<u64>,
}

impl Synthetic {
    /// Makes it. There is one at a time: the next one has the same files.
    pub fn new(bytes: &[u8]) -> Self {
        let mut process = Synthetic {
            machine: Machine::X86_64,
            threads: Vec::new(),
            mappings: Vec::new(),
            given: [false; FILES],
            memory: Image::new(),
            reads: Cell::new(0),
        };
        let mut rest = bytes;
        loop {
            let end = end_of_part(rest);
            process.part(&rest[..end.unwrap_or(rest.len())]);
            match end {
                Some(end) => rest = &rest[end + SEPARATOR.len()..],
                None => return process,
            }
        }
    }

    fn part(&mut self, part: &[u8]) -> Option<()> {
        let (kind, mut rest) = part.split_first()?;
        match *kind {
            AARCH64 => self.machine = Machine::Aarch64,
            THREAD if self.threads.len() < THREADS => {
                self.threads.push(u64::from_le_bytes(take(&mut rest)?));
            }
            MAPPINGS => self.mappings.extend_from_slice(rest),
            FILE => {
                let [number] = take(&mut rest)?;
                let number = usize::from(number);
                let offset = u32::from_le_bytes(take(&mut rest)?);
                let file = POOL.get(number)?;
                if offset.checked_add(u32::try_from(rest.len()).ok()?)? > MAX_SIZE {
                    return None;
                }
                if !std::mem::replace(&mut self.given[number], true) {
                    file.set_len(0).expect("a memfd can be cut");
                }
                file.write_all_at(rest, u64::from(offset))
                    .expect("a memfd can be written");
            }
            PIECE => {
                let address = u64::from_le_bytes(take(&mut rest)?);
                self.memory.map(address, rest);
            }
            REPEATED => {
                let address = u64::from_le_bytes(take(&mut rest)?);
                let length = u32::from_le_bytes(take(&mut rest)?).min(MAX_SIZE);
                let bytes: Vec<u8> = rest.iter().copied().cycle().take(length as usize).collect();
                self.memory.map(address, bytes);
            }
            _ => {}
        }
        Some(())
    }

    /// How often its memory has been read.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }
}

/// Where the next separator is. Found by the standard library, in which no comparison is traced.
fn end_of_part(bytes: &[u8]) -> Option<usize> {
    let mut behind = 0;
    loop {
        let mut rest = &bytes[behind..];
        match rest.skip_until(SEPARATOR[0]) {
            Ok(1..) => behind = bytes.len() - rest.len(),
            _ => return None,
        }
        if bytes[behind - 1..].starts_with(SEPARATOR) {
            return Some(behind - 1);
        }
    }
}

/// Takes bytes off the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*first)
}

impl Memory for Synthetic {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.reads.set(self.reads.get() + 1);
        self.memory.read(address, buffer)
    }
}

impl Target for Synthetic {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error> {
        Ok(mappings::walk(&self.mappings[..], visit).expect("bytes can be read"))
    }

    fn mapped_file(
        &self,
        _: (u64, u64),
        _: &[u8],
        _: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        let number = usize::try_from(inode.wrapping_sub(1)).unwrap_or(FILES);
        match self.given.get(number) {
            Some(true) => Ok(POOL[number].try_clone().expect("a descriptor is to be had")),
            _ => Err(None),
        }
    }

    fn machine(&self) -> Machine {
        self.machine
    }

    fn name(&self) -> OsString {
        "the process".into()
    }
}
