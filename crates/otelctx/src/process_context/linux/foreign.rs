//! A process context that another publisher made in this process.

use std::fs::File;
use std::io::{self, Read};

use otelctx_format::process_context::{Header, HEADER_SIZE};

/// How the names of mappings that may hold a context start (OTEP 4719, "Reading").
const NAMES: [&str; 3] = [
    "[anon_shmem:OTEL_CTX]",
    "[anon:OTEL_CTX]",
    "/memfd:OTEL_CTX",
];

/// How many times to read a context that is being updated, one millisecond apart.
const MAX_READS: u32 = 5;

/// The line of `/proc/self/maps` that shows a valid context, when there is one. Call it only
/// while this copy of the crate has none.
///
/// Where `/proc` is not mounted nothing is found: then readers in the same place find nothing
/// either.
pub(super) fn find() -> Option<String> {
    let maps = maps().ok()?;
    let line = maps
        .split(|byte| *byte == b'\n')
        .find(|line| is_context(line))?;
    Some(String::from_utf8_lossy(line).into_owned())
}

/// `/proc/self/maps`, in the pieces of 4 KiB that the kernel gives.
fn maps() -> io::Result<Vec<u8>> {
    let mut file = File::open("/proc/self/maps")?;
    let mut maps = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(maps),
            size => maps.extend_from_slice(&piece[..size]),
        }
    }
}

/// Whether a line of `/proc/self/maps` (proc_pid_maps(5)) shows a valid context.
fn is_context(line: &[u8]) -> bool {
    // Behind addresses, permissions, offset, device, inode and spaces; the numbers have no such
    // character.
    let name = line
        .iter()
        .position(|byte| b"/[".contains(byte))
        .map_or(&[][..], |at| &line[at..]);
    if !NAMES.iter().any(|start| name.starts_with(start.as_bytes())) {
        return false;
    }
    let address = line.iter().map_while(|byte| char::from(*byte).to_digit(16));
    let address = address.fold(0, |address, digit| address << 4 | digit as usize);
    for _ in 0..MAX_READS {
        match read(address).map(|bytes| Header::decode(&bytes)) {
            // Unmapped meanwhile.
            Err(libc::EFAULT) => return false,
            // Nobody but a publisher gives a mapping this name.
            Err(_) => return true,
            Ok(Err(_)) => return false,
            Ok(Ok(header)) if header.monotonic_published_at_ns != 0 => return true,
            Ok(Ok(_)) => {
                // SAFETY: no pointers.
                unsafe { libc::usleep(1000) };
            }
        }
    }
    // Withdrawn, and not unmapped.
    false
}

/// Reads a header of this process through the kernel, because another thread may unmap it.
fn read(address: usize) -> Result<[u8; HEADER_SIZE], i32> {
    let mut bytes = [0; HEADER_SIZE];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: HEADER_SIZE,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: HEADER_SIZE,
    };
    // SAFETY: the local buffer is as long as it says; the kernel checks the other.
    let count = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if count == HEADER_SIZE as isize {
        Ok(bytes)
    } else {
        Err(super::errno())
    }
}
