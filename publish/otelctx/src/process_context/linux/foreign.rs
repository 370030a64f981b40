//! A process context that another publisher has published in this process.

use otelctx_format::process_context::{Header, HEADER_SIZE, MAPPING_PREFIXES};

use super::errno;

/// Maximum number of reads of a context that is being updated, one millisecond apart.
const MAX_READS: u32 = 5;

/// A valid context.
pub(super) struct Foreign {
    /// The line of `/proc/self/maps` with its mapping.
    pub(super) line: String,
    pub(super) address: usize,
}

/// Maximum number of contexts that are found; normally there is one.
const MAX_FOUND: usize = 8;

/// Searches `/proc/thread-self/maps` for a valid context, except the one at `own`. (`self` is empty after the main thread.)
pub(super) fn find(own: Option<usize>) -> Option<Foreign> {
    let mut found = None;
    search(&mut |line, address| {
        if Some(address) != own {
            let line = String::from_utf8_lossy(line).into_owned();
            found = Some(Foreign { line, address });
        }
        found.is_none()
    });
    found
}

/// Like [`find`], for all other contexts. Returns their addresses.
pub(super) fn find_all_but(own: usize) -> Vec<usize> {
    let mut found = Vec::new();
    search(&mut |_, address| {
        if address != own {
            found.push(address);
        }
        found.len() < MAX_FOUND
    });
    found
}

/// Calls `visit` with the line and the address of each valid context, until it returns false.
///
/// If `/proc` is not mounted, this finds nothing, and neither would readers. The kernel returns at
/// most 4 KiB at a time, and lines are not kept: regardless of the number of mappings, this takes 8
/// KiB of stack and no lock.
fn search(visit: &mut dyn FnMut(&[u8], usize) -> bool) {
    // SAFETY: the path is a C string, and the file is closed below.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let file = libc::open(c"/proc/thread-self/maps".as_ptr(), flags);
        if file >= 0 {
            search_in(file, visit);
            libc::close(file);
        }
    }
}

fn search_in(file: libc::c_int, visit: &mut dyn FnMut(&[u8], usize) -> bool) {
    let mut buffer = [0_u8; 8192];
    let mut used = 0;
    loop {
        let free = &mut buffer[used..];
        // SAFETY: the buffer has that many bytes.
        let size = unsafe { libc::read(file, free.as_mut_ptr().cast(), free.len()) };
        let Ok(size @ 1..) = usize::try_from(size) else {
            if size < 0 && errno() == libc::EINTR {
                continue;
            }
            return;
        };
        used += size;
        let mut start = 0;
        while let Some(end) = find_byte(&buffer[start..used], b'\n') {
            let line = &buffer[start..start + end];
            if context_in(line).is_some_and(|address| !visit(line, address)) {
                return;
            }
            start += end + 1;
        }
        buffer.copy_within(start..used, 0);
        used -= start;
        if used == buffer.len() {
            // The line is too long to be a context: a path has at most 4,096 bytes.
            used = 0;
        }
    }
}

/// Uses the C library's function, which is fast and adds little code.
fn find_byte(bytes: &[u8], byte: u8) -> Option<usize> {
    // SAFETY: it reads within the slice, and returns null or an address in it.
    let found = unsafe { libc::memchr(bytes.as_ptr().cast(), byte.into(), bytes.len()) };
    (!found.is_null()).then(|| found as usize - bytes.as_ptr() as usize)
}

/// Returns the address of the valid context in the mapping of this line (proc_pid_maps(5)).
fn context_in(line: &[u8]) -> Option<usize> {
    // Before the name are addresses, permissions, numbers and spaces, without these characters.
    let at = find_byte(line, b'/').or_else(|| find_byte(line, b'['));
    let name = at.map_or(&[][..], |at| &line[at..]);
    if !MAPPING_PREFIXES.iter().any(|start| name.starts_with(start)) {
        return None;
    }
    let address = line.iter().map_while(|byte| char::from(*byte).to_digit(16));
    let address = address.fold(0, |address, digit| address << 4 | digit as usize);
    for _ in 0..MAX_READS {
        match read(address).map(|bytes| Header::decode(&bytes)) {
            // It was unmapped in the meantime.
            Err(libc::EFAULT) => return None,
            // Only a publisher gives a mapping this name.
            Err(_) => return Some(address),
            Ok(Err(_)) => return None,
            Ok(Ok(header)) if header.monotonic_published_at_ns != 0 => return Some(address),
            Ok(Ok(_)) => {
                // SAFETY: no pointers.
                unsafe { libc::usleep(1000) };
            }
        }
    }
    // It was withdrawn, but not unmapped.
    None
}

/// Reads memory of this process through the kernel, because another thread may unmap it.
#[inline(never)]
pub(super) fn read(address: usize) -> Result<[u8; HEADER_SIZE], i32> {
    let mut bytes = [0; HEADER_SIZE];
    read_into(&mut bytes, address)?;
    Ok(bytes)
}

/// [`read`] as many bytes as there is room for.
pub(super) fn read_into(bytes: &mut [u8], address: usize) -> Result<(), i32> {
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: the local buffer is as long as it says; the kernel checks the other. The thread's ID
    // works even after the main thread, whose ID is the process's, has ended.
    let count = unsafe {
        let tid = libc::syscall(libc::SYS_gettid) as libc::pid_t;
        libc::process_vm_readv(tid, &local, 1, &remote, 1, 0)
    };
    match count {
        count if count == bytes.len() as isize => Ok(()),
        -1 => Err(errno()),
        // The rest is not mapped.
        _ => Err(libc::EFAULT),
    }
}
