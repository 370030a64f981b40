//! The shared records that guards of a thread have attached.
//!
//! The list has two purposes. It keeps the records alive, also when a guard was forgotten and all
//! handles are gone. And it says whether a record is attached already: a guard knows its place by
//! the address of its record, so the same record is attached a second time as a copy.
//!
//! A guard that was forgotten never takes its entry out. So when the list is full, and the slot
//! empty, the list is cleared: no guard can restore anything then. Guards that still live find
//! another generation, and leave the slot alone.

use std::ptr;

use super::out_of_order;
use super::shared::SharedRecord;
use super::shared_block::{self, release, retain};
use super::state::{self, prepare_shared_exit, State};

/// How many records fit into the list before it is moved to the heap: scopes are rarely nested
/// deeper.
const INLINE: usize = 6;
/// How many records guards of one thread may have attached at once. More than this many scopes
/// are not nested: guards were forgotten.
const MAX_ATTACHED: usize = 1024;

/// Shared records that are attached to a thread, or in a gap of it. Each is there once.
///
/// A signal handler may add and remove its own in the middle of any step: it changes what is
/// behind `count` only, and leaves null there.
#[repr(C)]
pub(super) struct AttachedBlocks {
    blocks: [*mut u8; INLINE],
    count: usize,
    /// How many of `blocks` may be used: none before the thread's end is prepared, and none while
    /// there is an overflow.
    limit: usize,
    /// The blocks that do not fit into `blocks`; null when all do.
    overflow: *mut Vec<*mut u8>,
    generation: u32,
}

impl AttachedBlocks {
    #[cfg_attr(all(target_os = "linux", not(miri)), allow(dead_code))]
    pub(super) const NONE: Self = Self {
        blocks: [ptr::null_mut(); INLINE],
        count: 0,
        limit: 0,
        overflow: ptr::null_mut(),
        generation: 0,
    };

    /// Changes when the list is cleared.
    #[inline(always)]
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether a guard of this thread has something attached.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.overflow.is_null()
    }

    /// Adds a block, with a reference. Returns what to attach, and the generation of its guard:
    /// the block itself, a copy of it when it is attached already, or null when there is no room.
    ///
    /// # Safety
    /// `state` is the calling thread's, and `block` a shared one.
    #[inline]
    pub(super) unsafe fn add(state: *mut State, block: *mut u8) -> (*mut u8, u32) {
        // SAFETY: as the caller promises; the first `count` blocks are within the array.
        unsafe {
            let this = &raw mut (*state).shared;
            let count = (*this).count;
            if count >= (*this).limit || Self::is_attached(state, block) {
                return Self::add_slowly(state, block);
            }
            retain(block);
            // The place is taken before it is filled, so that a handler does not fill it.
            (&raw mut (*this).count).write_volatile(count + 1);
            Self::place(this, count).write_volatile(block);
            (block, (*this).generation)
        }
    }

    /// # Safety
    /// That of [`add`](Self::add).
    #[cold]
    #[inline(never)]
    unsafe fn add_slowly(state: *mut State, mut block: *mut u8) -> (*mut u8, u32) {
        // SAFETY: as the caller promises.
        unsafe {
            prepare_shared_exit(state);
            let this = &raw mut (*state).shared;
            let slot = state::slot(state);
            if (*this).overflow.is_null() {
                (*this).limit = INLINE;
            }
            let attached = (*this).count + (*this).overflow.as_ref().map_or(0, Vec::len);
            if attached >= INLINE && slot.read_volatile().is_null() {
                Self::clear(state);
            } else if attached >= MAX_ATTACHED {
                state::clear_slot(state);
                Self::clear(state);
                // A guard of no generation of this thread: it leaves the slot alone.
                return (ptr::null_mut(), (*this).generation.wrapping_sub(1));
            }
            if Self::is_attached(state, block) {
                let class = shared_block::class(block);
                let truncated = shared_block::is_truncated(block);
                block = SharedRecord::copy(block, class, truncated).into_block();
            } else {
                retain(block);
            }
            let count = (*this).count;
            if count < (*this).limit {
                (&raw mut (*this).count).write_volatile(count + 1);
                Self::place(this, count).write_volatile(block);
            } else {
                if (*this).overflow.is_null() {
                    (*this).overflow = Box::into_raw(Box::default());
                    (*this).limit = 0;
                }
                (*(*this).overflow).push(block);
            }
            (block, (*this).generation)
        }
    }

    /// Takes a block out, if it is there, and drops its reference.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    #[inline]
    pub(super) unsafe fn remove(state: *mut State, block: *mut u8) {
        // SAFETY: as above.
        unsafe {
            let this = &raw mut (*state).shared;
            let count = (*this).count;
            if let Some(at) = (0..count).rfind(|at| Self::place(this, *at).read() == block) {
                let last = Self::place(this, count - 1);
                Self::place(this, at).write_volatile(last.read());
                last.write_volatile(ptr::null_mut());
                (&raw mut (*this).count).write_volatile(count - 1);
            } else if !Self::remove_overflow(this, block) {
                return;
            }
            release(|| state, block);
        }
    }

    /// # Safety
    /// `this` is the calling thread's.
    #[cold]
    #[inline(never)]
    unsafe fn remove_overflow(this: *mut Self, block: *mut u8) -> bool {
        // SAFETY: as the caller promises; `overflow` is null or came from Box.
        unsafe {
            let Some(overflow) = (*this).overflow.as_mut() else {
                return false;
            };
            let Some(at) = overflow.iter().rposition(|other| *other == block) else {
                return false;
            };
            overflow.swap_remove(at);
            if overflow.is_empty() {
                drop(Box::from_raw((*this).overflow));
                (*this).overflow = ptr::null_mut();
                (*this).limit = INLINE;
            }
            true
        }
    }

    /// Whether a block is attached already, by a guard or as the thread's current record.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    #[inline]
    pub(super) unsafe fn is_attached(state: *mut State, block: *mut u8) -> bool {
        // SAFETY: as the caller promises.
        unsafe { block == (*state).current || Self::contains(&raw mut (*state).shared, block) }
    }

    /// Whether a block is there.
    ///
    /// # Safety
    /// `this` is the calling thread's.
    #[inline]
    pub(super) unsafe fn contains(this: *mut Self, block: *mut u8) -> bool {
        // SAFETY: as above.
        unsafe {
            (0..(*this).count).any(|at| Self::place(this, at).read() == block)
                || (!(*this).overflow.is_null() && (*(*this).overflow).contains(&block))
        }
    }

    /// Takes all blocks out, and ends the generation: the guards that are alive restore nothing.
    ///
    /// # Safety
    /// `state` is the calling thread's. Nothing of this crate is in the slot or restored by a
    /// guard.
    pub(super) unsafe fn clear(state: *mut State) {
        // SAFETY: as the caller promises.
        unsafe {
            out_of_order::clear(state);
            let this = &raw mut (*state).shared;
            (*this).generation = (*this).generation.wrapping_add(1);
            Self::take_all(state, |block| release(|| state, block));
        }
    }

    /// Takes all blocks out; their references are those of `each`.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    unsafe fn take_all(state: *mut State, each: impl Fn(*mut u8)) {
        // SAFETY: as the caller promises; `overflow` is null or came from Box.
        unsafe {
            let this = &raw mut (*state).shared;
            while (*this).count > 0 {
                let last = (*this).count - 1;
                let place = Self::place(this, last);
                let block = place.read();
                place.write_volatile(ptr::null_mut());
                (&raw mut (*this).count).write_volatile(last);
                each(block);
            }
            let overflow = std::mem::replace(&mut (*this).overflow, ptr::null_mut());
            if !overflow.is_null() {
                (*this).limit = INLINE;
                Box::from_raw(overflow).into_iter().for_each(each);
            }
        }
    }

    /// [`clear`](Self::clear) for a thread that ends. Another publisher whose record is in the slot
    /// may restore what it has replaced: the references are never dropped then.
    ///
    /// # Safety
    /// `state` is the calling thread's, and its slot was [cleared](state::clear_slot).
    pub(super) unsafe fn clear_at_exit(state: *mut State) {
        // SAFETY: as the caller promises.
        unsafe {
            if !state::slot(state).read_volatile().is_null() {
                Self::take_all(state, |_| ());
            }
            Self::clear(state);
        }
    }

    /// # Safety
    /// `at` is an index of `blocks`.
    #[inline]
    unsafe fn place(this: *mut Self, at: usize) -> *mut *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { (&raw mut (*this).blocks).cast::<*mut u8>().add(at) }
    }
}
