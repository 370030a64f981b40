//! The shared records that guards of a thread have attached.
//!
//! The list has three purposes. It keeps the records alive, even if a guard was forgotten and all
//! handles were dropped. It stores which record is below another one in the thread's chain, which
//! differs by thread. And it tells whether a record is already attached: a guard identifies its
//! place by the address of its record, so a record that is attached a second time is copied.
//!
//! Reference counting is the most expensive part. So an entry whose guard was dropped keeps its
//! reference and becomes *idle*, until its place is used for another record, or until the only
//! other reference, a handle, is dropped.
//!
//! A forgotten guard never removes its entry. So when the list is full and the slot is empty, the
//! list is cleared, because no guard can restore anything then. Guards that are still alive see
//! that the generation has changed, and leave the slot alone.

use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use super::chain;
use super::pool;
use super::shared::SharedContext;
use super::shared_block::{release, release_to_process, retain};
use super::state::{self, exit_has_begun, found_slot, prepare_shared_exit, ThreadState};

/// Number of records in the list before it moves to the heap. Scopes are rarely nested deeper.
const INLINE: usize = 6;
/// Maximum number of records that guards of one thread can have attached at once. Scopes are not
/// nested this deeply, so guards must have been forgotten.
const MAX_ATTACHED: usize = 1024;

/// A shared record that is attached to a thread, or idle.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Entry {
    /// The record, with a counted reference; null for none.
    pub(super) block: *mut u8,
    /// The record below it in the chain, unless it has a copy.
    pub(super) below: *mut u8,
    /// A block of the pool that replaces it in the chain, with an added attribute; null for none.
    pub(super) copy: *mut u8,
}

impl Entry {
    pub(super) const NONE: Self = Self {
        block: ptr::null_mut(),
        below: ptr::null_mut(),
        copy: ptr::null_mut(),
    };
}

/// Shared records, each once, that a thread or another publisher may have attached.
///
/// A signal handler may attach and detach its own records between any two steps: it changes only
/// idle entries. So an entry is marked as in use before it is filled, and until nothing refers to
/// it.
#[repr(C)]
pub(super) struct AttachedBlocks {
    entries: [Entry; INLINE],
    /// Number of entries in use, plus one. Zero before the thread's exit is prepared, after it has
    /// begun, and while `overflow` is in use.
    next: usize,
    /// All entries, if there are more than fit into `entries`; null otherwise.
    overflow: *mut Vec<Entry>,
    generation: u32,
}

impl AttachedBlocks {
    #[cfg_attr(all(target_os = "linux", not(miri)), allow(dead_code))]
    pub(super) const NONE: Self = Self {
        entries: [Entry::NONE; INLINE],
        next: 0,
        overflow: ptr::null_mut(),
        generation: 0,
    };

    /// Returns a number that changes when the list is cleared.
    #[inline(always)]
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns whether the thread's exit is prepared and no guard has a shared record attached.
    #[inline(always)]
    pub(super) fn is_ready_and_empty(&self) -> bool {
        self.next == 1
    }

    /// Prepares the list, and finds the slot.
    pub(super) fn prepare(state: ThreadState) {
        prepare_shared_exit(state);
        state::slot(state);
        Self::use_inline_entries(state);
    }

    fn use_inline_entries(state: ThreadState) {
        // SAFETY: `state` is this thread's.
        unsafe {
            let this = &raw mut (*state.get()).shared;
            if (*this).next == 0 && (*this).overflow.is_null() && !exit_has_begun(state) {
                (*this).next = 1;
            }
        }
    }

    /// Attaches a block. Returns the attached block and the generation of its guard: the block
    /// itself, a copy if it was already attached, or null if the list is full.
    ///
    /// # Safety
    /// `block` is a shared block with a reference.
    #[inline]
    pub(super) unsafe fn attach(state: ThreadState, block: *mut u8) -> (*mut u8, u32) {
        // SAFETY: the caller passes a counted block; `state` is this thread's, and `at` an index.
        unsafe {
            let this = &raw mut (*state.get()).shared;
            let at = (*this).next.wrapping_sub(1);
            let is_first = at == 0 && block != (*state.get()).current.block;
            if !is_first && (at >= INLINE || Self::is_attached(state, block)) {
                return Self::attach_slowly(state, block);
            }
            Self::set_next(this, at + 2);
            let entry = Self::entry(this, at);
            if (&raw mut (*entry).block).read_volatile() != block {
                retain(block);
                Self::fill(entry, block);
            }
            Self::put_into_slot(state, entry);
            (block, (*this).generation)
        }
    }

    /// Fills an entry that was just marked as in use. Takes over the reference.
    ///
    /// # Safety
    /// The entry belongs to the calling thread.
    unsafe fn fill(entry: *mut Entry, block: *mut u8) {
        // SAFETY: the caller passes an entry of its thread; an idle block has a reference.
        unsafe {
            let idle = (*entry).block;
            (&raw mut (*entry).block).write_volatile(block);
            if !idle.is_null() {
                // This may be a signal handler, which must not touch the thread's free blocks.
                release_to_process(idle);
            }
        }
    }

    /// # Safety
    /// The entry belongs to the calling thread.
    #[inline(always)]
    unsafe fn put_into_slot(state: ThreadState, entry: *mut Entry) {
        // SAFETY: the caller passes an entry of its thread, whose slot lives as long.
        unsafe {
            let slot = found_slot(state);
            (*entry).below = slot.read();
            compiler_fence(Ordering::Release);
            slot.write_volatile((*entry).block);
        }
    }

    /// # Safety
    /// Same as [`attach`](Self::attach).
    #[cold]
    #[inline(never)]
    unsafe fn attach_slowly(state: ThreadState, mut block: *mut u8) -> (*mut u8, u32) {
        // SAFETY: the caller passes a counted block; `state` is this thread's.
        unsafe {
            Self::prepare(state);
            let this = &raw mut (*state.get()).shared;
            if !Self::make_room(state) {
                // No guard of this thread has this generation, so it will leave the slot alone.
                return (ptr::null_mut(), (*this).generation.wrapping_sub(1));
            }
            if Self::is_attached(state, block) {
                block = SharedContext::copy_of(block).into_block();
            } else {
                retain(block);
            }
            let entry = Self::add(state, block);
            Self::put_into_slot(state, entry);
            (block, (*this).generation)
        }
    }

    /// Clears the list if nobody restores anything, or if it is full. Returns false in the latter
    /// case: the slot is empty then, unless it contains another publisher's record.
    ///
    /// # Safety
    /// `state` is [prepared](Self::prepare).
    pub(super) unsafe fn make_room(state: ThreadState) -> bool {
        // SAFETY: `state` is this thread's.
        unsafe {
            let attached = Self::entries(state).count();
            if attached >= INLINE && found_slot(state).read_volatile().is_null() {
                Self::clear(state);
                return true;
            }
            if attached < MAX_ATTACHED {
                return true;
            }
            state::clear_slot(state);
            Self::clear(state);
            false
        }
    }

    /// Adds an entry for a block. Takes over the reference.
    ///
    /// # Safety
    /// There is [room](Self::make_room).
    pub(super) unsafe fn add(state: ThreadState, block: *mut u8) -> *mut Entry {
        // SAFETY: `state` is this thread's; `overflow` is null or came from Box.
        unsafe {
            let this = &raw mut (*state.get()).shared;
            let at = (*this).next.wrapping_sub(1);
            if at < INLINE {
                Self::set_next(this, at + 2);
                let entry = Self::entry(this, at);
                Self::fill(entry, block);
                (*entry).below = ptr::null_mut();
                return entry;
            }
            if (*this).overflow.is_null() {
                // There are none if `next` is zero; otherwise all are in use.
                let entries: Vec<Entry> = Self::entries(state).map(|entry| *entry).collect();
                (*this).next = 0;
                (*this).entries = [Entry::NONE; INLINE];
                (*this).overflow = Box::into_raw(Box::new(entries));
            }
            let entries = &mut *(*this).overflow;
            entries.push(Entry {
                block,
                ..Entry::NONE
            });
            entries.as_mut_ptr().add(entries.len() - 1)
        }
    }

    /// Detaches a block if it is in the slot and was attached last: the fast path of a guard.
    #[inline(always)]
    pub(super) fn detach(state: ThreadState, block: *mut u8) -> bool {
        // SAFETY: `state` is this thread's; `at` is an index.
        unsafe {
            let this = &raw mut (*state.get()).shared;
            let at = (*this).next.wrapping_sub(2);
            if at >= INLINE {
                return false;
            }
            let (slot, entry) = (found_slot(state), Self::entry(this, at));
            let is_last = (*entry).block == block && slot.read() == block;
            if is_last {
                slot.write_volatile((*entry).below);
                Self::set_next(this, at + 1);
            }
            is_last
        }
    }

    /// Removes a block from the chain and from the list, and drops its reference. If it may be
    /// below another publisher's record, it stays in the list, which keeps it alive.
    ///
    /// # Safety
    /// The block belongs to a guard that is being dropped.
    pub(super) unsafe fn detach_out_of_order(state: ThreadState, block: *mut u8) {
        // SAFETY: `state` is this thread's.
        unsafe {
            let Some(entry) = Self::find(state, block) else {
                return;
            };
            let copy = (*entry).copy;
            let shown = if copy.is_null() { block } else { copy };
            if chain::unlink(state, shown) {
                Self::remove(state, entry).release(state);
            }
        }
    }

    /// # Safety
    /// `entry` is in use.
    unsafe fn remove(state: ThreadState, entry: *mut Entry) -> Entry {
        // SAFETY: the caller passes an entry that is in use; `state` is this thread's.
        unsafe {
            let this = &raw mut (*state.get()).shared;
            let removed = *entry;
            if (*this).overflow.is_null() {
                let count = (*this).next - 1;
                let last = Self::entry(this, count - 1);
                entry.write_volatile(*last);
                last.write_volatile(Entry::NONE);
                Self::set_next(this, count);
                return removed;
            }
            let entries = &mut *(*this).overflow;
            let at = entry.offset_from(entries.as_mut_ptr()) as usize;
            entries.swap_remove(at);
            if entries.is_empty() {
                drop(Box::from_raw((*this).overflow));
                (*this).overflow = ptr::null_mut();
                Self::use_inline_entries(state);
            }
            removed
        }
    }

    /// Transfers the reference of an idle entry to the caller, if the block has such an entry at
    /// the next free position.
    #[inline]
    pub(super) fn take_idle(state: ThreadState, block: *mut u8) -> bool {
        // SAFETY: `state` is this thread's; `at` is an index.
        unsafe {
            let this = &raw mut (*state.get()).shared;
            let at = (*this).next.wrapping_sub(1);
            if at >= INLINE || (*Self::entry(this, at)).block != block {
                return false;
            }
            // In use for now, so that a signal handler leaves it alone.
            Self::set_next(this, at + 2);
            let place = &raw mut (*Self::entry(this, at)).block;
            let is_idle = place.read_volatile() == block;
            if is_idle {
                place.write_volatile(ptr::null_mut());
            }
            Self::set_next(this, at + 1);
            is_idle
        }
    }

    /// Returns whether a block is already attached, by a guard or as the thread's current record.
    #[inline(never)]
    pub(super) fn is_attached(state: ThreadState, block: *mut u8) -> bool {
        // SAFETY: `state` is this thread's.
        let current = unsafe { (*state.get()).current.block };
        block == current || Self::find(state, block).is_some()
    }

    /// Finds the entry of a block.
    #[inline]
    pub(super) fn find(state: ThreadState, block: *mut u8) -> Option<*mut Entry> {
        // SAFETY: nothing changes the list meanwhile.
        Self::entries(state).find(|entry| unsafe { (**entry).block == block })
    }

    /// Returns the entries in use. They are valid until the list changes.
    #[inline]
    pub(super) fn entries(state: ThreadState) -> impl Iterator<Item = *mut Entry> {
        // SAFETY: `state` is this thread's; `overflow` is null or came from Box.
        let (first, count) = unsafe {
            let this = &raw mut (*state.get()).shared;
            match (*this).overflow.as_mut() {
                None => (Self::entry(this, 0), (*this).next.saturating_sub(1)),
                Some(entries) => (entries.as_mut_ptr(), entries.len()),
            }
        };
        (0..count).map(move |at| first.wrapping_add(at))
    }

    /// Removes all blocks, and starts a new generation, so that living guards restore nothing.
    ///
    /// # Safety
    /// No record of this crate is in the slot or will be restored by a guard.
    pub(super) unsafe fn clear(state: ThreadState) {
        // SAFETY: `state` is this thread's.
        unsafe {
            let this = &raw mut (*state.get()).shared;
            (*this).generation = (*this).generation.wrapping_add(1);
            Self::take_all(state, |entry| entry.release(state));
        }
    }

    /// Removes all entries, including idle ones, and passes their references to `each`.
    ///
    /// # Safety
    /// Same as [`clear`](Self::clear).
    unsafe fn take_all(state: ThreadState, each: impl Fn(Entry)) {
        // SAFETY: `state` is this thread's; `overflow` is null or came from Box.
        unsafe {
            let this = &raw mut (*state.get()).shared;
            let overflow = std::mem::replace(&mut (*this).overflow, ptr::null_mut());
            for at in (0..INLINE).rev() {
                let entry = Self::entry(this, at);
                let taken = entry.replace(Entry::NONE);
                (*this).next = (*this).next.min(at + 1);
                if !taken.block.is_null() {
                    each(taken);
                }
            }
            if exit_has_begun(state) {
                (*this).next = 0;
            }
            if !overflow.is_null() {
                Box::from_raw(overflow).into_iter().for_each(each);
            }
            Self::use_inline_entries(state);
        }
    }

    /// [`clear`](Self::clear) for a thread that ends. If another publisher's record is in the slot,
    /// it may restore an earlier one, so the references are leaked.
    ///
    /// # Safety
    /// The slot was [cleared](state::clear_slot).
    pub(super) unsafe fn clear_at_exit(state: ThreadState) {
        // SAFETY: the caller has cleared the slot; `state` is this thread's.
        unsafe {
            if !state::slot(state).read_volatile().is_null() {
                Self::take_all(state, |_| ());
            }
            Self::clear(state);
        }
    }

    #[inline(always)]
    unsafe fn set_next(this: *mut Self, next: usize) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: `this` is the calling thread's.
        unsafe { (&raw mut (*this).next).write_volatile(next) };
        compiler_fence(Ordering::SeqCst);
    }

    /// # Safety
    /// `at` is a valid index of `entries`.
    #[inline(always)]
    unsafe fn entry(this: *mut Self, at: usize) -> *mut Entry {
        // SAFETY: the caller ensures that `at` is a valid index of `entries`.
        unsafe { (&raw mut (*this).entries).cast::<Entry>().add(at) }
    }
}

impl Entry {
    /// Releases the blocks of the entry.
    ///
    /// # Safety
    /// The entry is no longer in a list.
    pub(super) unsafe fn release(self, state: ThreadState) {
        // SAFETY: `state` is this thread's; the copy is a block of the thread's pool.
        unsafe {
            if let Some(class) = pool::class_of(state, self.copy) {
                pool::put(state, self.copy, class);
            }
            if !self.block.is_null() {
                release(|| state, self.block);
            }
        }
    }
}
