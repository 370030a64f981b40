//! The mapping with the header.

use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use otelctx_format::process_context::{Header, DESCRIPTOR_OFFSET, HEADER_SIZE};

use super::{copies, errno, system_error};
use crate::process_context::PublishError;

/// [`otelctx_format::process_context::MAPPING_NAME`] as a C string.
const NAME: &std::ffi::CStr = c"OTEL_CTX";
/// `MFD_NOEXEC_SEAL` of linux/memfd.h (Linux 6.3).
const MFD_NOEXEC_SEAL: libc::c_uint = 8;
/// `PR_SET_VMA` and `PR_SET_VMA_ANON_NAME` of linux/prctl.h (Linux 5.17).
const PR_SET_VMA: libc::c_int = 0x5356_4d41;
const PR_SET_VMA_ANON_NAME: libc::c_ulong = 0;

/// The mapping of this process. Dropping it does not unmap it; [`Mapping::withdraw`] does.
pub(super) struct Mapping {
    address: *mut u8,
    /// If the mapping is anonymous and has no name yet, the `errno` of `memfd_create`.
    nameless: Option<i32>,
}

impl Mapping {
    /// Creates a mapping of zeroes that forked children do not inherit.
    pub(super) fn new() -> Result<Self, PublishError> {
        let (address, nameless) = match memfd() {
            Ok(file) => (map_file(file)?, None),
            Err(errno) => (map(libc::MAP_ANONYMOUS, -1)?, Some(errno)),
        };
        let mapping = Self {
            address: address.cast(),
            nameless,
        };
        // SAFETY: the mapping belongs to `mapping`.
        if unsafe { libc::madvise(address, page_size(), libc::MADV_DONTFORK) } != 0 {
            let error = system_error("madvise(MADV_DONTFORK)");
            // Report the first failure.
            let _ = mapping.withdraw();
            return Err(error);
        }
        Ok(mapping)
    }

    pub(super) fn address(&self) -> usize {
        self.address as usize
    }

    /// Makes `payload` visible, replacing a previous one.
    pub(super) fn store(&self, payload: &[u8], timestamp: u64) {
        let header = Header {
            payload_size: payload.len() as u32,
            monotonic_published_at_ns: 0,
            payload_address: payload.as_ptr() as u64,
        };
        let published_at = self.field(Header::TIMESTAMP_OFFSET);
        // SAFETY: the mapping is a page; only the holder of the lock writes it.
        unsafe {
            let mark = self.address.add(DESCRIPTOR_OFFSET).cast::<copies::Mark>();
            mark.write(copies::Mark::new());
            published_at.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let bytes = header.encode();
            let words = bytes[..Header::TIMESTAMP_OFFSET].chunks_exact(mem::size_of::<u32>());
            for (word, bytes) in words.enumerate() {
                let word = self.address.cast::<AtomicU32>().add(word);
                let bytes = u32::from_ne_bytes(bytes.try_into().expect("4"));
                (*word).store(bytes, Ordering::Relaxed);
            }
        }
        let address = self.field(Header::PAYLOAD_ADDRESS_OFFSET);
        address.store(header.payload_address, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        published_at.store(timestamp, Ordering::Relaxed);
    }

    /// Returns the field of the header at this offset.
    fn field(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the mapping starts with a header, until `withdraw` is called last.
        unsafe { &*self.address.add(offset).cast() }
    }

    /// Names the mapping. A reader that observes `prctl` notices updates by this call.
    ///
    /// # Errors
    /// If the mapping has no name at all. (A memfd has one, and an earlier name is kept if a
    /// sandbox denies naming it again.)
    pub(super) fn name(&mut self) -> Result<(), PublishError> {
        // SAFETY: the mapping belongs to `self`; the kernel copies the name.
        let result = unsafe {
            libc::prctl(
                PR_SET_VMA,
                PR_SET_VMA_ANON_NAME,
                self.address,
                page_size(),
                NAME.as_ptr(),
            )
        };
        match self.nameless {
            Some(memfd) if result != 0 => Err(PublishError::Invisible {
                memfd,
                naming: errno(),
            }),
            _ => {
                self.nameless = None;
                Ok(())
            }
        }
    }

    /// Marks the mapping as empty for readers, and unmaps it.
    pub(super) fn withdraw(&self) -> Result<(), PublishError> {
        let published_at = self.field(Header::TIMESTAMP_OFFSET);
        published_at.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // SAFETY: the mapping belongs to `self`, and is no longer used.
        if unsafe { libc::munmap(self.address.cast(), page_size()) } != 0 {
            return Err(system_error("munmap"));
        }
        Ok(())
    }
}

const _: () = assert!(HEADER_SIZE <= 4096);

/// Returns a sealable memfd, or the `errno` of `memfd_create`.
fn memfd() -> Result<libc::c_int, i32> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let create = |flags: libc::c_uint| {
        // SAFETY: the name is a C string. Called directly because glibc before 2.27 has no function
        // for it.
        unsafe { libc::syscall(libc::SYS_memfd_create, NAME.as_ptr(), flags) as libc::c_int }
    };
    let mut file = create(flags | MFD_NOEXEC_SEAL);
    if file < 0 {
        // Linux before 6.3 does not support the flag.
        file = create(flags);
    }
    if file < 0 {
        return Err(errno());
    }
    Ok(file)
}

/// Grows the file to one page, maps it, and closes it.
fn map_file(file: libc::c_int) -> Result<*mut c_void, PublishError> {
    // SAFETY: the file is open, and ours to close.
    unsafe {
        let address = match libc::ftruncate(file, page_size() as libc::off_t) {
            0 => map(0, file),
            _ => Err(system_error("ftruncate")),
        };
        libc::close(file);
        address
    }
}

fn map(flags: libc::c_int, file: libc::c_int) -> Result<*mut c_void, PublishError> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe {
        let address = libc::mmap(
            ptr::null_mut(),
            page_size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | flags,
            file,
            0,
        );
        match address {
            libc::MAP_FAILED => Err(system_error("mmap")),
            address => Ok(address),
        }
    }
}

pub(super) fn page_size() -> usize {
    // SAFETY: the call takes no pointers, and cannot fail for this name.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}
