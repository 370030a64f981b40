//! A thread's records: memory that is used only for records until the thread ends.
//!
//! A slot may still point to a record that was dropped (its guard was forgotten, or another
//! publisher restored it). So a free block stays a record, marked as invalid, and chunks are freed
//! only when the thread ends.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::{offset, RECOMMENDED_SIZE};

use super::chain;
use super::state::{clear_slot, end_shared, exit_has_begun, prepare_exit, slot, ThreadState};

/// A cache line. Shared records are aligned to it; the format requires 2 (OTEP 4947).
pub(super) const ALIGN: usize = 64;
/// Record sizes, including the header, by size class, in bytes. Together with their [`link`], the
/// smaller ones fill whole cache lines.
pub(super) const SIZES: [usize; 4] = [
    64 - LINK_SIZE,
    128 - LINK_SIZE,
    256 - LINK_SIZE,
    RECOMMENDED_SIZE,
];
/// Size of a [`link`], in bytes.
const LINK_SIZE: usize = size_of::<*mut u8>();
/// The size class of the largest record.
pub(super) const LARGEST: usize = SIZES.len() - 1;

/// Size of a chunk, in bytes: one page on most machines.
const CHUNK_SIZE: usize = 4096;
const CHUNK: Layout = match Layout::from_size_align(CHUNK_SIZE, ALIGN) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

/// Offset of the next free block's address in a free block, which has no attributes.
const NEXT: usize = 32;
const _: () = assert!(NEXT >= offset::ATTRIBUTES && NEXT + 8 <= SIZES[0]);

/// The [`link`] of a block that was not attached since its allocation. No block has this address.
pub(super) const NEVER_ATTACHED: *mut u8 = ptr::NonNull::dangling().as_ptr();

/// Returns where a block stores what is below it in the thread's chain: the word before it.
///
/// # Safety
/// `block` came from [`allocate`].
#[inline(always)]
pub(super) unsafe fn link(block: *mut u8) -> *mut *mut u8 {
    // SAFETY: each block has this word before it, aligned to 8 bytes.
    unsafe { block.sub(LINK_SIZE).cast() }
}

/// # Safety
/// `block` is free.
#[inline]
pub(super) unsafe fn next_free(block: *mut u8) -> *mut u8 {
    // SAFETY: NEXT is a multiple of 8 within the smallest block.
    unsafe { block.add(NEXT).cast::<*mut u8>().read() }
}

/// # Safety
/// `block` is an invalid record, and belongs to this thread or is protected by a lock.
#[inline]
pub(super) unsafe fn set_next_free(block: *mut u8, next: *mut u8) {
    // SAFETY: NEXT is a multiple of 8 within the smallest block.
    unsafe { block.add(NEXT).cast::<*mut u8>().write(next) };
}

/// The start of a chunk.
struct ChunkHeader {
    next: *mut ChunkHeader,
    class: usize,
}
const _: () = assert!(std::mem::size_of::<ChunkHeader>() <= ALIGN);

/// The free blocks of a thread.
#[repr(C)]
pub(super) struct Pool {
    free: [*mut u8; SIZES.len()],
    chunks: *mut ChunkHeader,
    /// Number of blocks in use, including forgotten ones.
    used: usize,
    /// Blocks that another publisher may restore, because its record may be above them.
    forgotten: *mut u8,
    forgotten_count: usize,
}

/// Maximum number of forgotten blocks per thread: at most 640 KiB.
const MAX_FORGOTTEN: usize = 1024;

impl Pool {
    /// A pool without chunks.
    #[cfg_attr(all(target_os = "linux", not(miri)), allow(dead_code))]
    pub(super) const EMPTY: Self = Self {
        free: [ptr::null_mut(); SIZES.len()],
        chunks: ptr::null_mut(),
        used: 0,
        forgotten: ptr::null_mut(),
        forgotten_count: 0,
    };
}

/// Returns the smallest size class for `attributes` bytes of attributes, or the largest.
pub(super) fn class_for(attributes: usize) -> usize {
    let fits = |size: &usize| size - offset::ATTRIBUTES >= attributes;
    SIZES.iter().position(fits).unwrap_or(LARGEST)
}

/// Allocates a block, marked as invalid and without attributes.
#[inline]
pub(super) fn allocate(state: ThreadState, class: usize) -> *mut u8 {
    // SAFETY: `state` is this thread's; a free block has the next one's address.
    unsafe {
        let pool = &raw mut (*state.get()).pool;
        let mut block = (*pool).free[class];
        if block.is_null() {
            block = refill(state, class);
        }
        (*pool).free[class] = next_free(block);
        (*pool).used += 1;
        block
    }
}

/// Adds blocks to the (empty) free list of a size class; returns the first one.
#[cold]
#[inline(never)]
fn refill(state: ThreadState, class: usize) -> *mut u8 {
    // SAFETY: `state` is this thread's.
    unsafe {
        release_unreachable(state);
        let block = (*state.get()).pool.free[class];
        if block.is_null() {
            add_chunk(state, class)
        } else {
            block
        }
    }
}

fn add_chunk(state: ThreadState, class: usize) -> *mut u8 {
    // SAFETY: the layout has a size; each block lies within the chunk, after its first 64 bytes.
    unsafe {
        prepare_exit(state);
        // Initialized: a runtime can write to the thread's record any size up to its own.
        let chunk = alloc_zeroed(CHUNK);
        if chunk.is_null() {
            handle_alloc_error(CHUNK);
        }
        let pool = &raw mut (*state.get()).pool;
        let header = chunk.cast::<ChunkHeader>();
        header.write(ChunkHeader {
            next: (*pool).chunks,
            class,
        });
        (*pool).chunks = header;
        let mut next = ptr::null_mut();
        let stride = LINK_SIZE + SIZES[class];
        let count = (CHUNK_SIZE - ALIGN) / stride;
        for block in (0..count).rev() {
            let block = chunk.add(ALIGN + LINK_SIZE + block * stride);
            link(block).write(NEVER_ATTACHED);
            invalidate(block);
            set_next_free(block, next);
            next = block;
        }
        (*pool).free[class] = next;
        next
    }
}

/// Marks a block as an invalid record without attributes.
///
/// # Safety
/// `block` is a block of a pool.
#[inline]
pub(super) unsafe fn invalidate(block: *mut u8) {
    // SAFETY: both fields lie within the smallest block, the second aligned to 2 bytes.
    unsafe {
        block.add(offset::VALID).write_volatile(0);
        compiler_fence(Ordering::SeqCst);
        block.add(offset::ATTRIBUTES_SIZE).cast::<u16>().write(0);
    }
}

/// Frees the block of a record. It is still attached if its guard was forgotten.
///
/// # Safety
/// The block came from [`allocate`] with this class.
#[inline]
pub(super) unsafe fn release(state: ThreadState, block: *mut u8, class: usize) {
    // SAFETY: the caller passes a block from `allocate` with this class.
    unsafe {
        let attached = slot(state).read_volatile();
        let below = link(block).read();
        // A record is in the chain only once, so the record in the slot is not also below this one.
        if attached.is_null() || below == attached || below == NEVER_ATTACHED {
            put(state, block, class);
        } else {
            release_attached(state, block, class);
        }
    }
}

/// # Safety
/// Same as [`release`].
#[cold]
#[inline(never)]
unsafe fn release_attached(state: ThreadState, block: *mut u8, class: usize) {
    // SAFETY: the caller passes a block from `allocate` with this class.
    unsafe {
        if chain::unlink(state, block) {
            put(state, block, class);
        } else {
            forget(state, block);
        }
    }
}

/// Frees a block that another publisher may restore: it is not reused while anything is attached,
/// and is marked as invalid.
///
/// # Safety
/// The block came from [`allocate`].
#[cold]
#[inline(never)]
pub(super) unsafe fn forget(state: ThreadState, block: *mut u8) {
    // SAFETY: the caller passes a block from `allocate`; `state` is this thread's.
    unsafe {
        invalidate(block);
        let pool = &raw mut (*state.get()).pool;
        set_next_free(block, (*pool).forgotten);
        (*pool).forgotten = block;
        (*pool).forgotten_count += 1;
        if (*pool).forgotten_count == MAX_FORGOTTEN {
            clear_slot(state);
            release_forgotten(state);
        }
        release_unreachable(state);
    }
}

/// Frees the forgotten blocks if the slot is empty, because no publisher can restore anything then.
#[inline(never)]
fn release_unreachable(state: ThreadState) {
    // SAFETY: `state` is this thread's.
    unsafe {
        if slot(state).read_volatile().is_null() {
            release_forgotten(state);
        }
    }
}

/// Frees the forgotten blocks, because no publisher can restore them any more.
#[inline(never)]
pub(super) fn release_forgotten(state: ThreadState) {
    // SAFETY: `state` is this thread's; the blocks belong to the pool.
    unsafe {
        let pool = &raw mut (*state.get()).pool;
        let mut block = std::mem::replace(&mut (*pool).forgotten, ptr::null_mut());
        (*pool).forgotten_count = 0;
        while !block.is_null() {
            let next = next_free(block);
            if let Some(class) = class_of(state, block) {
                put(state, block, class);
            }
            block = next;
        }
    }
}

/// Frees a block that is not in the chain.
///
/// # Safety
/// Same as [`release`].
#[inline]
pub(super) unsafe fn put(state: ThreadState, block: *mut u8, class: usize) {
    // SAFETY: the caller passes a block from `allocate` with this class.
    unsafe {
        invalidate(block);
        link(block).write(NEVER_ATTACHED);
        let pool = &raw mut (*state.get()).pool;
        set_next_free(block, (*pool).free[class]);
        (*pool).free[class] = block;
        (*pool).used -= 1;
        if exit_has_begun(state) {
            free_if_unused(state);
        }
    }
}

/// Returns the size class of a block of this thread's pool; `None` for other addresses.
pub(super) fn class_of(state: ThreadState, address: *mut u8) -> Option<usize> {
    // SAFETY: each chunk starts with its header.
    unsafe {
        let mut chunk = (*state.get()).pool.chunks;
        while !chunk.is_null() {
            if (address as usize).wrapping_sub(chunk as usize) < CHUNK_SIZE {
                return Some((*chunk).class);
            }
            chunk = (*chunk).next;
        }
        None
    }
}

/// Once the thread's exit has begun: frees the chunks unless a block is still used by a record in a
/// thread-local that is dropped later.
#[cold]
#[inline(never)]
pub(super) fn free_if_unused(state: ThreadState) {
    // SAFETY: `state` is this thread's; no block is in use, nor in the slot.
    unsafe {
        if !exit_has_begun(state) || (*state.get()).pool.used != 0 {
            return;
        }
        clear_slot(state);
        end_shared(state);
        let mut chunk = (*state.get()).pool.chunks;
        (*state.get()).pool.chunks = ptr::null_mut();
        (*state.get()).pool.free = [ptr::null_mut(); SIZES.len()];
        while !chunk.is_null() {
            let next = (*chunk).next;
            dealloc(chunk.cast(), CHUNK);
            chunk = next;
        }
    }
}
