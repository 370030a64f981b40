//! The memory of shared records: reference-counted blocks.
//!
//! A block is never used for anything but a shared record: another publisher may restore its
//! address long after it was freed, and must then find a record that is marked as invalid. So free
//! blocks go into a list, not back to the allocator.
//!
//! Each thread has a list of its own, and there is one for the whole process. The process's list
//! supports two operations: adding a chain, and taking everything. Taking a single block would need
//! its successor, which another thread may change in between (the ABA problem). Nothing here waits,
//! so a forked child can use it regardless of what the threads of its parent were doing.

use std::alloc::{alloc, handle_alloc_error, Layout};
use std::ptr;
use std::sync::atomic::{fence, AtomicPtr, AtomicUsize, Ordering};

use super::attached_blocks::AttachedBlocks;
use super::pool::{invalidate, ALIGN, SIZES};
use super::state::{exit_has_begun, prepare_shared_exit, ThreadState};
use crate::arch;

/// The header before the bytes of a shared record.
#[repr(C, align(64))]
struct Header {
    references: AtomicUsize,
    /// The next free block. Atomic, because another thread with a stale chain may still read it.
    next: AtomicPtr<u8>,
    class: usize,
    truncated: bool,
}
const _: () = assert!(std::mem::size_of::<Header>() == ALIGN);

/// The free blocks of the process, by size class.
static FREE: [AtomicPtr<u8>; SIZES.len()] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SIZES.len()];

/// Maximum number of free blocks per size class that a thread keeps: enough that only a few percent
/// of operations access the process's list, and at most 45 KiB for the largest class.
const MAX_KEPT: usize = 64;

/// The free blocks of a thread.
#[repr(C)]
pub(super) struct FreeBlocks {
    first: [*mut u8; SIZES.len()],
    count: [usize; SIZES.len()],
}

impl FreeBlocks {
    #[cfg_attr(all(target_os = "linux", not(miri)), allow(dead_code))]
    pub(super) const NONE: Self = Self {
        first: [ptr::null_mut(); SIZES.len()],
        count: [0; SIZES.len()],
    };
}

/// # Safety
/// `block` is a shared one.
#[inline(always)]
unsafe fn header(block: *mut u8) -> *mut Header {
    // SAFETY: each block has its header before it.
    unsafe { block.sub(ALIGN).cast() }
}

/// # Safety
/// `block` is a shared one.
#[inline]
unsafe fn next(block: *mut u8) -> &'static AtomicPtr<u8> {
    // SAFETY: each block has its header before it, and is never returned to the allocator.
    unsafe { &(*header(block)).next }
}

/// # Safety
/// `block` is a shared one with a reference.
#[inline]
pub(super) unsafe fn class(block: *mut u8) -> usize {
    // SAFETY: the caller passes a shared `block` with a reference.
    unsafe { (*header(block)).class }
}

/// # Safety
/// `block` is a shared one with a reference.
#[inline]
pub(super) unsafe fn is_truncated(block: *mut u8) -> bool {
    // SAFETY: the caller passes a shared `block` with a reference.
    unsafe { (*header(block)).truncated }
}

/// Returns whether nobody else has the block, and a copy of `other` has room in it.
///
/// # Safety
/// Both are shared blocks with a reference, the first one the caller's.
#[inline]
pub(super) unsafe fn is_unshared(block: *mut u8, other: *mut u8) -> bool {
    // SAFETY: the caller passes two shared blocks with references.
    unsafe {
        (*header(block)).references.load(Ordering::Acquire) == 1 && class(block) >= class(other)
    }
}

/// # Safety
/// `block` is a shared one that nobody else has.
#[inline]
pub(super) unsafe fn set_truncated(block: *mut u8, truncated: bool) {
    // SAFETY: the caller ensures that `block` is a shared one that nobody else has.
    unsafe { (*header(block)).truncated = truncated };
}

/// Adds a reference.
///
/// # Safety
/// `block` is a shared one with a reference.
#[inline]
pub(super) unsafe fn retain(block: *mut u8) {
    // SAFETY: the caller passes a shared `block` with a reference.
    let before = unsafe { (*header(block)).references.fetch_add(1, Ordering::Relaxed) };
    if before > isize::MAX as usize {
        // As in `Arc`: more would overflow the counter; handles must have been forgotten.
        std::process::abort();
    }
}

/// Drops a reference. The last one frees the block; only then, `state` is called.
///
/// # Safety
/// `block` is a shared one, and the reference is the caller's.
#[inline]
pub(super) unsafe fn release(state: impl FnOnce() -> ThreadState, block: *mut u8) {
    // SAFETY: the caller passes a shared `block` with its reference.
    unsafe {
        if drop_reference(block) {
            free(state(), block);
        }
    }
}

/// Drops the reference of a handle. If the only other reference is in the thread's list of attached
/// blocks, and the record is not attached, drops that one, too.
///
/// # Safety
/// `block` is a shared one, and the reference is the caller's.
#[inline(never)]
pub(super) unsafe fn release_handle(block: *mut u8) {
    // SAFETY: the caller passes a shared `block` with its reference. If both references are held
    // here, the count need not be decremented.
    unsafe {
        if (*header(block)).references.load(Ordering::Acquire) == 2 {
            let state = arch::state();
            if AttachedBlocks::take_idle(state, block) {
                return free(state, block);
            }
        }
        release(arch::state, block);
    }
}

/// Drops a reference. The last one frees the block to the process's list, not to the thread's.
///
/// # Safety
/// `block` is a shared one, and the reference is the caller's.
#[inline(never)]
pub(super) unsafe fn release_to_process(block: *mut u8) {
    // SAFETY: the caller passes a shared `block` with its reference.
    unsafe {
        if drop_reference(block) {
            invalidate(block);
            next(block).store(ptr::null_mut(), Ordering::Relaxed);
            give_back(block, class(block));
        }
    }
}

/// Drops a reference. Returns whether it was the last one.
///
/// # Safety
/// `block` is a shared one, and the reference is the caller's.
#[inline]
unsafe fn drop_reference(block: *mut u8) -> bool {
    // SAFETY: the caller passes a shared `block` with its reference. The holder of the only
    // reference need not decrement the count: no other thread can add a reference.
    let references = unsafe { &(*header(block)).references };
    if references.load(Ordering::Acquire) != 1 {
        if references.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        fence(Ordering::Acquire);
    }
    true
}

/// Allocates a block with one reference, marked as invalid.
#[inline]
pub(super) fn allocate(state: ThreadState, class: usize, truncated: bool) -> *mut u8 {
    // SAFETY: `state` is this thread's.
    unsafe {
        let own = &raw mut (*state.get()).free_shared;
        let mut block = (*own).first[class];
        if block.is_null() {
            block = refill(state, class);
        } else {
            (*own).first[class] = next(block).load(Ordering::Relaxed);
            (*own).count[class] -= 1;
        }
        let header = header(block);
        (*header).references.store(1, Ordering::Relaxed);
        (*header).truncated = truncated;
        block
    }
}

/// # Safety
/// There are no references to `block`.
#[inline]
unsafe fn free(state: ThreadState, block: *mut u8) {
    // SAFETY: the caller passes an unreferenced block; `state` is this thread's.
    unsafe {
        invalidate(block);
        let class = class(block);
        let own = &raw mut (*state.get()).free_shared;
        if (*own).first[class].is_null() || (*own).count[class] == MAX_KEPT {
            return free_slowly(state, block, class);
        }
        next(block).store((*own).first[class], Ordering::Relaxed);
        (*own).first[class] = block;
        (*own).count[class] += 1;
    }
}

/// # Safety
/// Same as [`free`]; `class` is the block's.
#[cold]
#[inline(never)]
unsafe fn free_slowly(state: ThreadState, block: *mut u8, class: usize) {
    // SAFETY: the caller passes an unreferenced block; `state` is this thread's.
    unsafe {
        next(block).store(ptr::null_mut(), Ordering::Relaxed);
        if exit_has_begun(state) {
            return give_back(block, class);
        }
        prepare_shared_exit(state);
        let own = &raw mut (*state.get()).free_shared;
        let full = std::mem::replace(&mut (*own).first[class], block);
        (*own).count[class] = 1;
        if !full.is_null() {
            give_back(full, class);
        }
    }
}

/// Adds a chain of free blocks to the process's list.
///
/// # Safety
/// The blocks are free, have this size class, and no other code refers to them.
unsafe fn give_back(first: *mut u8, class: usize) {
    let list = &FREE[class];
    let mut head = ptr::null_mut();
    let mut last: *mut u8 = ptr::null_mut();
    // The end of the chain is searched only if needed: not if the list is empty.
    while let Err(now) =
        list.compare_exchange_weak(head, first, Ordering::Release, Ordering::Relaxed)
    {
        head = now;
        // SAFETY: the caller passes free blocks that no other code uses, up to null.
        unsafe {
            if last.is_null() {
                last = first;
                while let Some(block) = non_null(next(last).load(Ordering::Relaxed)) {
                    last = block;
                }
            }
            next(last).store(head, Ordering::Relaxed);
        }
    }
}

fn non_null(block: *mut u8) -> Option<*mut u8> {
    (!block.is_null()).then_some(block)
}

/// Takes a block from the process's list, and fills the thread's from it; or allocates one.
#[cold]
#[inline(never)]
fn refill(state: ThreadState, class: usize) -> *mut u8 {
    let block = FREE[class].swap(ptr::null_mut(), Ordering::Acquire);
    if block.is_null() {
        return allocate_new(class);
    }
    // SAFETY: `state` is this thread's; only this thread has the chain now.
    unsafe {
        let keep = if exit_has_begun(state) { 0 } else { MAX_KEPT };
        let (mut last, mut kept) = (block, 0);
        while kept < keep {
            let Some(more) = non_null(next(last).load(Ordering::Relaxed)) else {
                break;
            };
            last = more;
            kept += 1;
        }
        if let Some(rest) = non_null(next(last).swap(ptr::null_mut(), Ordering::Relaxed)) {
            give_back(rest, class);
        }
        let own = &raw mut (*state.get()).free_shared;
        (*own).first[class] = next(block).load(Ordering::Relaxed);
        (*own).count[class] = kept;
        if kept > 0 {
            prepare_shared_exit(state);
        }
        block
    }
}

fn allocate_new(class: usize) -> *mut u8 {
    let layout = Layout::from_size_align(ALIGN + SIZES[class], ALIGN).expect("a power of two");
    // SAFETY: the layout has a size, and room for the header and the record.
    unsafe {
        let start = alloc(layout);
        if start.is_null() {
            handle_alloc_error(layout);
        }
        start.cast::<Header>().write(Header {
            references: AtomicUsize::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
            class,
            truncated: false,
        });
        let block = start.add(ALIGN);
        invalidate(block);
        block
    }
}

/// Moves the free blocks of a thread that ends to the process's list.
pub(super) fn give_back_all(state: ThreadState) {
    // SAFETY: `state` is this thread's.
    unsafe {
        let own = &raw mut (*state.get()).free_shared;
        for class in 0..SIZES.len() {
            let first = std::mem::replace(&mut (*own).first[class], ptr::null_mut());
            (*own).count[class] = 0;
            if !first.is_null() {
                give_back(first, class);
            }
        }
    }
}
