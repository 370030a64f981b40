//! Other copies of this crate in the process: another version, or another language's library.
//!
//! A process has one context, so the copy that publishes last makes the earlier copy withdraw its
//! context. It finds the earlier copy by its mapping, where the address of a [`Descriptor`] follows
//! the header. No symbols are looked up, so this also works for libraries loaded with `RTLD_LOCAL`,
//! two versions in one executable, and static programs.
//!
//! If the library with the earlier copy was unloaded, nobody can withdraw its context: the later
//! copy unmaps it. That it is the context of a copy is written behind the address of the
//! descriptor, and the key map comes from the payload, which stays in memory.
//!
//! Records of the earlier copy stay attached, and it may attach more. So the later copy's key map
//! starts with the earlier one's, whose later keys are not published.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::slice;

use otelctx_format::process_context::{Header, Payload, COPY_MARK, DESCRIPTOR_OFFSET, HEADER_SIZE};
use otelctx_format::KeyMap;

use super::foreign;
use super::lock::Locked;
use super::mapping::page_size;
use super::owner::Owner;
use crate::call::caught;
use crate::thread::{self, Name};

/// The data after the header in a copy's mapping, where other publishers may have anything.
#[repr(C)]
pub(super) struct Mark {
    /// The address of a [`Descriptor`].
    descriptor: u64,
    magic: [u8; 16],
}

impl Mark {
    pub(super) fn new() -> Self {
        Self {
            descriptor: own_descriptor(),
            magic: COPY_MARK,
        }
    }
}

/// Maximum size of a payload that is read for its key map, in bytes. An application can publish
/// more, and no reader reads that.
const MAX_ADOPTED_PAYLOAD: u32 = 16 << 20;

/// Withdraws the context, if there is one and `adopt` returns true. Returns whether this copy no
/// longer publishes a context. `adopt` is passed the names that records may refer to, in order,
/// which are readable during the call.
type Withdraw = extern "C" fn(adopt: unsafe extern "C" fn(*const Name, usize) -> bool) -> bool;

/// The functions and data that other copies can access. This layout is permanent; a later version
/// that needs another layout uses another [`COPY_MARK`].
#[repr(C, align(32))]
struct Descriptor {
    magic: [u8; 16],
    withdraw: Withdraw,
}

static DESCRIPTOR: Descriptor = Descriptor {
    magic: COPY_MARK,
    withdraw,
};
const _: () = assert!(mem::size_of::<Descriptor>() == HEADER_SIZE);

fn own_descriptor() -> u64 {
    ptr::from_ref(&DESCRIPTOR) as u64
}

/// Adds [`otelctx_withdraw`] to the dynamic symbol table of a cdylib, as `EXPORT` in `export.rs`
/// does for the thread's variable.
#[unsafe(export_name = concat!("otelctx_withdra[w", env!("OTELCTX_TAG"), "]"))]
#[allow(unreachable_pub)]
pub static EXPORT: u8 = 0;

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}

// Weak, so that several copies of this crate can be linked into one program.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
std::arch::global_asm!(
    ".pushsection .text.otelctx_withdraw,\"ax\",%progbits",
    ".weak otelctx_withdraw",
    ".type otelctx_withdraw, %function",
    "otelctx_withdraw:",
    concat!(jump!(), " {withdraw}"),
    ".size otelctx_withdraw, . - otelctx_withdraw",
    ".popsection",
    withdraw = sym otelctx_withdraw,
);

/// `bool otelctx_withdraw(void)`, exported by libraries for publishers other than this crate.
/// Withdraws this library's context, unless records may refer to its keys. Returns whether it no
/// longer publishes a context.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
extern "C" fn otelctx_withdraw() -> bool {
    unsafe extern "C" fn no_keys(_: *const Name, count: usize) -> bool {
        count == 0
    }
    withdraw(no_keys)
}

extern "C" fn withdraw(adopt: unsafe extern "C" fn(*const Name, usize) -> bool) -> bool {
    caught(false, || {
        // The other copy calls this while it holds its own lock: waiting here could deadlock.
        let Some(locked) = Locked::try_acquire() else {
            return false;
        };
        let mut owner = Owner::of(locked);
        let names = thread::published_key_map();
        let adopted = owner.publication().is_none()
            // SAFETY: the names of this copy are never freed.
            || unsafe { adopt(names.as_ptr(), names.len()) };
        if adopted {
            // If this fails, the mapping stays, but readers recognize it as empty.
            let _ = owner.make_way();
        }
        adopted
    })
}

/// Makes the copy of this crate that publishes the context at `address` withdraw it, or unmaps it
/// if that copy was unloaded. Returns whether to search again: `false` if the publisher is no copy
/// of this crate, or the key maps differ. This copy has no publication.
pub(super) fn withdraw_other(_owner: &Owner, address: usize) -> bool {
    let found = match Found::read(address) {
        Ok(found) => found,
        // It was withdrawn in the meantime.
        Err(libc::EFAULT) => return true,
        Err(_) => return false,
    };
    let descriptor = match foreign::read(found.descriptor() as usize) {
        Ok(bytes) => bytes.starts_with(&COPY_MARK).then_some(bytes),
        Err(libc::EFAULT) => None,
        Err(_) => return false,
    };
    // This copy may have been loaded again at the same address, without state for this context.
    if let Some(bytes) = descriptor.filter(|_| found.descriptor() != own_descriptor()) {
        // SAFETY: the magic bytes identify a descriptor.
        let descriptor = unsafe { bytes.as_ptr().cast::<Descriptor>().read_unaligned() };
        if !(descriptor.withdraw)(adopt) {
            return false;
        }
        // If the mapping is the same, the descriptor is that of another copy, loaded at that
        // address.
        if Found::read(address) != Ok(found) {
            return true;
        }
    }
    // The library that published it was unloaded, so only other copies of this crate unmap it.
    found.is_of_a_copy() && found.adopt_keys() && {
        found.unmap(address);
        true
    }
}

/// Continues the key maps of other publishers, whose contexts are at these addresses. Returns whether
/// the keys of this copy must be published again.
pub(super) fn continue_keys(_owner: &Owner, addresses: &[usize]) -> bool {
    let keys = addresses
        .iter()
        .filter_map(|address| keys_of_other(*address));
    let keys: Vec<KeyMap> = keys.filter(thread::is_regular).collect();
    thread::continue_key_maps(&keys)
}

/// Returns the key map of another publisher; `None` if it has none, or it cannot be read.
fn keys_of_other(address: usize) -> Option<KeyMap> {
    let found = Found::read(address).ok()?;
    // Copies of this crate continue each other's key maps when they publish.
    if found.is_of_a_copy() {
        return None;
    }
    let keys = found.keys()??;
    // It may be updated at this moment.
    (Found::read(address) == Ok(found)).then_some(keys)
}

/// The first bytes of a mapping: the header, and what follows it.
#[derive(Clone, Copy, PartialEq)]
struct Found {
    header: [u8; HEADER_SIZE],
    mark: [u8; HEADER_SIZE],
}
const _: () = assert!(mem::size_of::<Mark>() <= HEADER_SIZE);

impl Found {
    fn read(address: usize) -> Result<Self, i32> {
        Ok(Self {
            header: foreign::read(address)?,
            mark: foreign::read(address + DESCRIPTOR_OFFSET)?,
        })
    }

    /// Unmaps it, unless another copy of this crate has done so.
    fn unmap(self, address: usize) {
        /// Ends the iteration at the first module.
        unsafe extern "C" fn unmap(
            _module: *mut libc::dl_phdr_info,
            _size: usize,
            data: *mut c_void,
        ) -> c_int {
            // SAFETY: `data` is that of the call below; nobody uses an unloaded library's mapping.
            unsafe {
                let (address, found) = *data.cast::<(usize, Found)>();
                if Found::read(address) == Ok(found) {
                    libc::munmap(address as *mut c_void, page_size());
                }
            }
            1
        }
        let mut data = (address, self);
        // Under a lock that all copies share, or another mapping could take this one's place after
        // it was compared: glibc holds a lock of the process during each call. musl unloads no
        // libraries.
        // SAFETY: the data outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(unmap), (&raw mut data).cast()) };
    }

    fn descriptor(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.mark;
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    fn is_of_a_copy(&self) -> bool {
        self.mark[mem::offset_of!(Mark, magic)..].starts_with(&COPY_MARK)
    }

    /// Like [`adopt`], for the key map in the payload. Returns false also if that cannot be read.
    fn adopt_keys(&self) -> bool {
        self.keys().is_some_and(|keys| {
            let names = keys.iter().flat_map(KeyMap::names);
            thread::adopt_key_map(names.map(String::as_str))
        })
    }

    /// Reads the key map; `None` if that is not possible.
    fn keys(&self) -> Option<Option<KeyMap>> {
        let header = Header::decode(&self.header).ok()?;
        if header.payload_size > MAX_ADOPTED_PAYLOAD {
            return None;
        }
        let mut payload = vec![0; header.payload_size as usize];
        foreign::read_into(&mut payload, header.payload_address as usize).ok()?;
        KeyMap::of(&Payload::decode(&payload).ok()?).ok()
    }
}

/// Called by the other copy, while this one holds its lock.
unsafe extern "C" fn adopt(names: *const Name, count: usize) -> bool {
    caught(false, || {
        // SAFETY: the caller's promise.
        let names = unsafe { slice::from_raw_parts(names, count) };
        // SAFETY: as above.
        thread::adopt_key_map(names.iter().map(|name| unsafe { name.read() }))
    })
}
