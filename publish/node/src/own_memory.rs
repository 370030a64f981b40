//! Reads this process's own memory at addresses that may not be readable.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

/// Copies memory through a pipe: the kernel refuses what cannot be read.
pub(crate) struct OwnMemory {
    from: File,
    to: OwnedFd,
}

/// Maximum size of a read, in bytes: an empty pipe has room for a page at least.
const MAX_READ: usize = 4096;

impl OwnMemory {
    pub(crate) fn open() -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: the array has room for two descriptors, which are owned from here on.
        unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self {
                from: File::from_raw_fd(ends[0]),
                to: OwnedFd::from_raw_fd(ends[1]),
            })
        }
    }

    /// Returns the bytes at an address, up to the first unreadable one, and at most [`MAX_READ`].
    pub(crate) fn bytes(&mut self, address: usize, size: usize) -> Vec<u8> {
        use std::os::fd::AsRawFd;
        let size = size.min(MAX_READ);
        // SAFETY: the kernel checks the address.
        let written =
            unsafe { libc::write(self.to.as_raw_fd(), address as *const libc::c_void, size) };
        let mut bytes = vec![0; usize::try_from(written).unwrap_or_default()];
        match self.from.read_exact(&mut bytes) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }

    /// Returns the words from an address on, as far as they can be read.
    pub(crate) fn words(&mut self, address: usize, count: usize) -> Vec<usize> {
        let bytes = self.bytes(address, count * size_of::<usize>());
        let words = bytes.chunks_exact(size_of::<usize>());
        let word = |bytes: &[u8]| usize::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        words.map(word).collect()
    }

    pub(crate) fn word(&mut self, address: usize) -> Option<usize> {
        self.words(address, 1).first().copied()
    }
}
