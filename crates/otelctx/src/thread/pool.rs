//! A thread's records: memory that is never anything but a record until the thread ends.
//!
//! A slot may go on pointing at a record that was dropped (its guard was forgotten, or another
//! publisher restored it). So a free block stays a record, one that says it is not valid, and
//! whole chunks go back to the allocator only when the thread ends.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::{offset, RECOMMENDED_SIZE};

use super::chain;
use super::state::{clear_slot, end_shared, exit_has_begun, prepare_exit, slot, State};

/// A cache line. Shared records are aligned to it; the format demands 2 (OTEP 4947).
pub(super) const ALIGN: usize = 64;
/// Bytes of a record, header included, by size class. With their [`link`], the smaller ones are whole
/// cache lines.
pub(super) const SIZES: [usize; 4] = [
    64 - LINK_SIZE,
    128 - LINK_SIZE,
    256 - LINK_SIZE,
    RECOMMENDED_SIZE,
];
/// Bytes of a [`link`].
const LINK_SIZE: usize = size_of::<*mut u8>();
/// The size class of the largest record.
pub(super) const LARGEST: usize = SIZES.len() - 1;

/// Bytes of a chunk: one page of most machines.
const CHUNK_SIZE: usize = 4096;
const CHUNK: Layout = match Layout::from_size_align(CHUNK_SIZE, ALIGN) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

/// Where a free block keeps the address of the next one: among its attributes, of which it has
/// none.
const NEXT: usize = 32;
const _: () = assert!(NEXT >= offset::ATTRIBUTES && NEXT + 8 <= SIZES[0]);

/// The [`link`] of a block that was not attached since it was allocated. Nothing has this address.
pub(super) const NEVER_ATTACHED: *mut u8 = ptr::NonNull::dangling().as_ptr();

/// Where a block has what is below it in the thread's chain: the word before it.
///
/// # Safety
/// `block` came from [`allocate`].
#[inline(always)]
pub(super) unsafe fn link(block: *mut u8) -> *mut *mut u8 {
    // SAFETY: each block has that word before it, at a multiple of 8.
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
/// `block` is a record to ignore, and this thread's or under a lock.
#[inline]
pub(super) unsafe fn set_next_free(block: *mut u8, next: *mut u8) {
    // SAFETY: as above.
    unsafe { block.add(NEXT).cast::<*mut u8>().write(next) };
}

/// What a chunk starts with.
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
    /// Blocks in use, forgotten ones included.
    used: usize,
    /// Blocks that another publisher may restore, because its record may be above them.
    forgotten: *mut u8,
    forgotten_count: usize,
}

/// How many forgotten blocks a thread keeps: at most 640 KiB.
const MAX_FORGOTTEN: usize = 1024;

impl Pool {
    /// A pool that owns nothing.
    #[cfg_attr(all(target_os = "linux", not(miri)), allow(dead_code))]
    pub(super) const EMPTY: Self = Self {
        free: [ptr::null_mut(); SIZES.len()],
        chunks: ptr::null_mut(),
        used: 0,
        forgotten: ptr::null_mut(),
        forgotten_count: 0,
    };
}

/// The smallest size class with room for `attributes` bytes of attributes; the largest when none
/// has.
pub(super) fn class_for(attributes: usize) -> usize {
    SIZES
        .iter()
        .position(|size| size - offset::ATTRIBUTES >= attributes)
        .unwrap_or(LARGEST)
}

/// Takes a block. It says that it is not valid and has no attributes.
///
/// # Safety
/// `state` is the calling thread's.
#[inline]
pub(super) unsafe fn allocate(state: *mut State, class: usize) -> *mut u8 {
    // SAFETY: as the caller promises; a free block holds the address of the next at NEXT.
    unsafe {
        let pool = &raw mut (*state).pool;
        let mut block = (*pool).free[class];
        if block.is_null() {
            block = refill(state, class);
        }
        (*pool).free[class] = next_free(block);
        (*pool).used += 1;
        block
    }
}

/// Adds blocks to the (empty) free list of a size class; returns the first.
///
/// # Safety
/// `state` is the calling thread's.
#[cold]
#[inline(never)]
unsafe fn refill(state: *mut State, class: usize) -> *mut u8 {
    // SAFETY: as the caller promises.
    unsafe {
        release_unreachable(state);
        let block = (*state).pool.free[class];
        if block.is_null() {
            return add_chunk(state, class);
        }
        block
    }
}

/// # Safety
/// `state` is the calling thread's.
unsafe fn add_chunk(state: *mut State, class: usize) -> *mut u8 {
    // SAFETY: the layout has a size; each block lies within the chunk, behind its first 64 bytes.
    unsafe {
        prepare_exit(state);
        let chunk = alloc(CHUNK);
        if chunk.is_null() {
            handle_alloc_error(CHUNK);
        }
        let pool = &raw mut (*state).pool;
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

/// Makes a block a record to ignore, without attributes.
///
/// # Safety
/// `block` is one.
#[inline]
pub(super) unsafe fn invalidate(block: *mut u8) {
    // SAFETY: both fields lie within the smallest block, the second at a multiple of 2.
    unsafe {
        block.add(offset::VALID).write_volatile(0);
        compiler_fence(Ordering::SeqCst);
        block.add(offset::ATTRIBUTES_SIZE).cast::<u16>().write(0);
    }
}

/// Gives the block of a record back. It is attached still if its guard was forgotten.
///
/// # Safety
/// `state` is the calling thread's, and the block came from [`allocate`] with this class.
#[inline]
pub(super) unsafe fn release(state: *mut State, block: *mut u8, class: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let attached = slot(state).read_volatile();
        let below = link(block).read();
        // A record is in the chain once, so what is in the slot is not below this one as well.
        if attached.is_null() || below == attached || below == NEVER_ATTACHED {
            put(state, block, class);
        } else {
            release_attached(state, block, class);
        }
    }
}

/// # Safety
/// That of [`release`].
#[cold]
#[inline(never)]
unsafe fn release_attached(state: *mut State, block: *mut u8, class: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        if chain::unlink(state, block) {
            put(state, block, class);
        } else {
            forget(state, block);
        }
    }
}

/// Gives back a block that another publisher may restore: nobody gets it while anything is attached,
/// and it says that it is not valid.
///
/// # Safety
/// `state` is the calling thread's, and the block came from [`allocate`].
#[cold]
#[inline(never)]
pub(super) unsafe fn forget(state: *mut State, block: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        invalidate(block);
        let pool = &raw mut (*state).pool;
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

/// When the slot is empty, nobody restores anything: makes the forgotten blocks free.
///
/// # Safety
/// `state` is the calling thread's.
#[inline(never)]
unsafe fn release_unreachable(state: *mut State) {
    // SAFETY: as the caller promises.
    unsafe {
        if slot(state).read_volatile().is_null() {
            release_forgotten(state);
        }
    }
}

/// Makes the forgotten blocks free, because nobody restores them any more.
///
/// # Safety
/// `state` is the calling thread's.
#[inline(never)]
pub(super) unsafe fn release_forgotten(state: *mut State) {
    // SAFETY: as the caller promises; the blocks are of the pool.
    unsafe {
        let pool = &raw mut (*state).pool;
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

/// Gives a block back that is not in the chain.
///
/// # Safety
/// That of [`release`].
#[inline]
pub(super) unsafe fn put(state: *mut State, block: *mut u8, class: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        invalidate(block);
        link(block).write(NEVER_ATTACHED);
        let pool = &raw mut (*state).pool;
        set_next_free(block, (*pool).free[class]);
        (*pool).free[class] = block;
        (*pool).used -= 1;
        if exit_has_begun(state) {
            free_if_unused(state);
        }
    }
}

/// The size class of a block of this thread; `None` when the address is no block of its pool.
///
/// # Safety
/// `state` is the calling thread's.
pub(super) unsafe fn class_of(state: *mut State, address: *mut u8) -> Option<usize> {
    // SAFETY: each chunk starts with its header.
    unsafe {
        let mut chunk = (*state).pool.chunks;
        while !chunk.is_null() {
            if (address as usize).wrapping_sub(chunk as usize) < CHUNK_SIZE {
                return Some((*chunk).class);
            }
            chunk = (*chunk).next;
        }
        None
    }
}

/// Once the thread's end has begun: gives the chunks back to the allocator unless a block is in
/// use, by a record in a thread-local that is dropped later.
///
/// # Safety
/// `state` is the calling thread's.
#[cold]
#[inline(never)]
pub(super) unsafe fn free_if_unused(state: *mut State) {
    // SAFETY: as the caller promises; no block is in use and the slot points at none of them.
    unsafe {
        if !exit_has_begun(state) || (*state).pool.used != 0 {
            return;
        }
        clear_slot(state);
        end_shared(state);
        let mut chunk = (*state).pool.chunks;
        (*state).pool.chunks = ptr::null_mut();
        (*state).pool.free = [ptr::null_mut(); SIZES.len()];
        while !chunk.is_null() {
            let next = (*chunk).next;
            dealloc(chunk.cast(), CHUNK);
            chunk = next;
        }
    }
}
