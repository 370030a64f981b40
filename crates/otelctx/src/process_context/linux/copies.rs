//! Other copies of this crate in the process: another version, or a library for another language
//! that carries one.
//!
//! A process has one context, so the copy that publishes last makes the earlier copy withdraw its
//! context. It finds the earlier copy by its mapping, where the address of a [`Descriptor`] follows
//! the header. No symbols are looked up, so this also works for libraries loaded with `RTLD_LOCAL`,
//! two versions in one executable, and static programs.
//!
//! Records of the earlier copy stay attached, and it may attach more. So the later copy's key map
//! starts with the earlier one's. Keys registered with the earlier copy afterwards are not
//! published.

use std::mem;
use std::ptr;
use std::slice;

use otelctx_format::process_context::HEADER_SIZE;

use super::foreign;
use super::lock::Locked;
use super::owner::Owner;
use crate::thread::{self, Name};

/// Offset of the descriptor's address, a `u64`, in bytes from the mapping's start. Contexts of
/// other publishers may have anything there.
pub(super) const OFFSET: usize = HEADER_SIZE;

/// The first bytes of a descriptor.
const MAGIC: [u8; 16] = *b"otelctx_withdraw";

/// Withdraws the context, if there is one and `adopt` returns true. Returns whether this copy no
/// longer publishes a context. `adopt` is passed the names that records may refer to, in order,
/// which are readable during the call.
type Withdraw = extern "C" fn(adopt: unsafe extern "C" fn(*const Name, usize) -> bool) -> bool;

/// What other copies can access. This layout is permanent; a later version that needs another
/// layout uses another [`MAGIC`].
#[repr(C, align(32))]
struct Descriptor {
    magic: [u8; 16],
    withdraw: Withdraw,
}

static DESCRIPTOR: Descriptor = Descriptor {
    magic: MAGIC,
    withdraw,
};
const _: () = assert!(mem::size_of::<Descriptor>() == HEADER_SIZE);

pub(super) fn descriptor() -> u64 {
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
    // The other copy calls this while it holds its own lock: waiting here could deadlock.
    let Some(locked) = Locked::try_acquire() else {
        return false;
    };
    let mut owner = Owner::of(locked);
    let names = thread::published_key_map();
    // SAFETY: the names of this copy are never freed.
    let adopted = owner.publication().is_none() || unsafe { adopt(names.as_ptr(), names.len()) };
    if adopted {
        // If this fails, the mapping stays, but readers recognize it as empty.
        let _ = owner.make_way();
    }
    adopted
}

/// Makes the copy of this crate that publishes the context at `address` withdraw it. Returns
/// whether to search again: `false` if the publisher is not a copy of this crate, or the key maps
/// differ.
pub(super) fn withdraw_other(_owner: &Owner, address: usize) -> bool {
    // SAFETY: plain old data.
    let read = |address| foreign::read(address).ok();
    let Some([a, b, c, d, e, f, g, h, ..]) = read(address + OFFSET) else {
        return false;
    };
    let descriptor = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
    let Some(bytes) = read(descriptor as usize).filter(|bytes| bytes.starts_with(&MAGIC)) else {
        return false;
    };
    // SAFETY: the magic bytes identify a descriptor.
    let descriptor = unsafe { bytes.as_ptr().cast::<Descriptor>().read_unaligned() };
    (descriptor.withdraw)(adopt)
}

/// Called by the other copy, while this one holds its lock.
unsafe extern "C" fn adopt(names: *const Name, count: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { thread::adopt_key_map(slice::from_raw_parts(names, count)) }
}
