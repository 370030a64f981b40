//! A thread's records: memory that is never anything but a record until the thread ends.
//!
//! A slot may go on pointing at a record that was dropped (its guard was forgotten, or another
//! publisher restored it). So a free block stays a record, one that says it is not valid, and
//! whole chunks go back to the allocator only when the thread ends.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::{offset, RECOMMENDED_SIZE};

use super::out_of_order;
use super::state::{
    clear_slot, end_shared, exit_has_begun, forget_record, prepare_exit, slot, State,
};

/// Records are aligned to a cache line; the format demands 2 (OTEP 4947).
pub(super) const ALIGN: usize = 64;
/// Bytes of a record, header included, by size class.
pub(super) const SIZES: [usize; 4] = [64, 128, 256, RECOMMENDED_SIZE];
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
const LINK: usize = 32;
const _: () = assert!(LINK >= offset::ATTRIBUTES && LINK + 8 <= SIZES[0]);

/// # Safety
/// `block` is free.
#[inline]
pub(super) unsafe fn next_free(block: *mut u8) -> *mut u8 {
    // SAFETY: LINK is a multiple of 8 within the smallest block.
    unsafe { block.add(LINK).cast::<*mut u8>().read() }
}

/// # Safety
/// `block` is a record to ignore, and this thread's or under a lock.
#[inline]
pub(super) unsafe fn set_next_free(block: *mut u8, next: *mut u8) {
    // SAFETY: as above.
    unsafe { block.add(LINK).cast::<*mut u8>().write(next) };
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
    /// Blocks that a later guard may restore, because the guard of their record was forgotten.
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
    // SAFETY: as the caller promises; a free block holds the address of the next at LINK.
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
        let count = (CHUNK_SIZE - ALIGN) / SIZES[class];
        for block in (0..count).rev() {
            let block = chunk.add(ALIGN + block * SIZES[class]);
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

/// Gives the block of a record back.
///
/// # Safety
/// `state` is the calling thread's, and the block came from [`allocate`] with this class.
#[inline]
pub(super) unsafe fn release(state: *mut State, block: *mut u8, class: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        forget_record(state, block);
        put(state, block, class);
    }
}

/// Gives back the block of a record whose guard was forgotten. A later guard may restore it, so
/// nobody gets it while anything is attached: it says that it is not valid.
///
/// # Safety
/// That of [`release`].
#[cold]
#[inline(never)]
pub(super) unsafe fn forget(state: *mut State, block: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        invalidate(block);
        forget_record(state, block);
        let pool = &raw mut (*state).pool;
        set_next_free(block, (*pool).forgotten);
        (*pool).forgotten = block;
        (*pool).forgotten_count += 1;
        if (*pool).forgotten_count == MAX_FORGOTTEN {
            clear_slot(state);
            out_of_order::clear(state);
            release_forgotten(state);
        }
        release_unreachable(state);
    }
}

/// When the slot is empty, no guard restores anything: makes the forgotten blocks free.
///
/// # Safety
/// `state` is the calling thread's.
#[inline(never)]
unsafe fn release_unreachable(state: *mut State) {
    // SAFETY: as the caller promises.
    unsafe {
        if slot(state).read_volatile().is_null() {
            out_of_order::clear(state);
            release_forgotten(state);
        }
    }
}

/// Makes the forgotten blocks free, because no guard restores them any more.
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

/// Gives a block back that is not in the slot.
///
/// # Safety
/// That of [`release`].
#[inline]
pub(super) unsafe fn put(state: *mut State, block: *mut u8, class: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        invalidate(block);
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
