//! The shared records that guards of a thread have attached.
//!
//! The list has three purposes. It keeps the records alive, also when a guard was forgotten and all
//! handles are gone. It says what is below a record in the thread's chain, which differs by thread.
//! And it says whether a record is attached already: a guard knows its place by the address of its
//! record, so the same record is attached a second time as a copy.
//!
//! Counting a reference takes longer than everything else. So an entry whose guard was dropped keeps
//! its reference, *idle*, until another record is attached in its place, or until all that is left of
//! the record is the entry and the handle that is being dropped.
//!
//! A guard that was forgotten never takes its entry out. So when the list is full, and the slot
//! empty, the list is cleared: no guard can restore anything then. Guards that still live find
//! another generation, and leave the slot alone.

use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use super::chain;
use super::pool;
use super::shared::SharedRecord;
use super::shared_block::{release, release_to_process, retain};
use super::state::{self, exit_has_begun, found_slot, prepare_shared_exit, State};

/// How many records fit into the list before it is moved to the heap: scopes are rarely nested
/// deeper.
const INLINE: usize = 6;
/// How many records guards of one thread may have attached at once. More than this many scopes
/// are not nested: guards were forgotten.
const MAX_ATTACHED: usize = 1024;

/// A shared record that is attached to a thread, or idle.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Entry {
    /// With a reference; null for none.
    pub(super) block: *mut u8,
    /// What is below it in the chain, unless it has a copy.
    pub(super) below: *mut u8,
    /// The block of the thread's pool that is in the chain in its place, because an attribute was
    /// added; null for none.
    pub(super) copy: *mut u8,
}

impl Entry {
    pub(super) const NONE: Self = Self {
        block: ptr::null_mut(),
        below: ptr::null_mut(),
        copy: ptr::null_mut(),
    };
}

/// Shared records that are attached to a thread, or below another publisher's record. Each is there
/// once.
///
/// A signal handler may attach and detach its own in the middle of any step: it changes idle entries
/// only. So an entry is in use before it is filled, and until nothing refers to it.
#[repr(C)]
pub(super) struct AttachedBlocks {
    entries: [Entry; INLINE],
    /// How many entries are in use, plus one. Zero before the thread's end is prepared, after it
    /// has begun, and while there is an overflow.
    next: usize,
    /// All entries, when there are more than fit into `entries`; null otherwise.
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

    /// Changes when the list is cleared.
    #[inline(always)]
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether the thread's end is prepared, and no guard has a shared record attached.
    #[inline(always)]
    pub(super) fn is_ready_and_empty(&self) -> bool {
        self.next == 1
    }

    /// Makes the list ready, and finds the slot.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    pub(super) unsafe fn prepare(state: *mut State) {
        // SAFETY: as the caller promises.
        unsafe {
            prepare_shared_exit(state);
            state::slot(state);
            Self::use_inline_entries(state);
        }
    }

    /// # Safety
    /// That of [`prepare`](Self::prepare).
    unsafe fn use_inline_entries(state: *mut State) {
        // SAFETY: as the caller promises.
        unsafe {
            let this = &raw mut (*state).shared;
            if (*this).next == 0 && (*this).overflow.is_null() && !exit_has_begun(state) {
                (*this).next = 1;
            }
        }
    }

    /// Attaches a block. Returns what is attached, and the generation of its guard: the block
    /// itself, a copy of it when it is attached already, or null when there is no room.
    ///
    /// # Safety
    /// `state` is the calling thread's, and `block` a shared one with a reference.
    #[inline]
    pub(super) unsafe fn attach(state: *mut State, block: *mut u8) -> (*mut u8, u32) {
        // SAFETY: as the caller promises; `at` is an index.
        unsafe {
            let this = &raw mut (*state).shared;
            let at = (*this).next.wrapping_sub(1);
            let is_first = at == 0 && block != (*state).current.block;
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

    /// Fills an entry that is in use now. The reference becomes the entry's.
    ///
    /// # Safety
    /// The entry is the calling thread's.
    unsafe fn fill(entry: *mut Entry, block: *mut u8) {
        // SAFETY: as the caller promises; an idle block has a reference.
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
    /// `state` is the calling thread's, and so is the entry.
    #[inline(always)]
    unsafe fn put_into_slot(state: *mut State, entry: *mut Entry) {
        // SAFETY: as the caller promises; the slot lives as long as its thread.
        unsafe {
            let slot = found_slot(state);
            (*entry).below = slot.read();
            compiler_fence(Ordering::Release);
            slot.write_volatile((*entry).block);
        }
    }

    /// # Safety
    /// That of [`attach`](Self::attach).
    #[cold]
    #[inline(never)]
    unsafe fn attach_slowly(state: *mut State, mut block: *mut u8) -> (*mut u8, u32) {
        // SAFETY: as the caller promises.
        unsafe {
            Self::prepare(state);
            let this = &raw mut (*state).shared;
            let attached = Self::entries(this).count();
            if attached >= INLINE && found_slot(state).read_volatile().is_null() {
                Self::clear(state);
            } else if attached >= MAX_ATTACHED {
                state::clear_slot(state);
                Self::clear(state);
                // A guard of no generation of this thread: it leaves the slot alone.
                return (ptr::null_mut(), (*this).generation.wrapping_sub(1));
            }
            if Self::is_attached(state, block) {
                block = SharedRecord::copy_of(block).into_block();
            } else {
                retain(block);
            }
            let entry = Self::add(state, block);
            Self::put_into_slot(state, entry);
            (block, (*this).generation)
        }
    }

    /// Adds an entry for a block, whose reference becomes the list's.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    pub(super) unsafe fn add(state: *mut State, block: *mut u8) -> *mut Entry {
        // SAFETY: as the caller promises; `overflow` is null or came from Box.
        unsafe {
            let this = &raw mut (*state).shared;
            let at = (*this).next.wrapping_sub(1);
            if at < INLINE {
                Self::set_next(this, at + 2);
                let entry = Self::entry(this, at);
                Self::fill(entry, block);
                (*entry).below = ptr::null_mut();
                return entry;
            }
            if (*this).overflow.is_null() {
                // When `next` is zero there are none, and when it is not, all are in use.
                let entries: Vec<Entry> = Self::entries(this).map(|entry| *entry).collect();
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

    /// Detaches a block if it is in the slot and was attached last: the short way of dropping a guard.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    #[inline(always)]
    pub(super) unsafe fn detach(state: *mut State, block: *mut u8) -> bool {
        // SAFETY: as the caller promises; `at` is an index.
        unsafe {
            let this = &raw mut (*state).shared;
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

    /// Takes a block out of the chain and out of the list, and drops its reference. Where it may be
    /// below another publisher's record, it stays in the list, which keeps it alive.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    pub(super) unsafe fn detach_out_of_order(state: *mut State, block: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe {
            let this = &raw mut (*state).shared;
            let Some(entry) = Self::find(this, block) else {
                return;
            };
            let shown = match (*entry).copy.is_null() {
                true => block,
                false => (*entry).copy,
            };
            if chain::unlink(state, shown) {
                let removed = Self::remove(state, entry);
                removed.release(state);
            }
        }
    }

    /// # Safety
    /// `state` is the calling thread's, and `entry` one that is in use.
    unsafe fn remove(state: *mut State, entry: *mut Entry) -> Entry {
        // SAFETY: as the caller promises; `overflow` is null or came from Box.
        unsafe {
            let this = &raw mut (*state).shared;
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

    /// Makes an idle entry's reference the caller's, if the block has such an entry where the next
    /// one would be.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    #[inline]
    pub(super) unsafe fn take_idle(state: *mut State, block: *mut u8) -> bool {
        // SAFETY: as the caller promises; `at` is an index.
        unsafe {
            let this = &raw mut (*state).shared;
            let at = (*this).next.wrapping_sub(1);
            if at >= INLINE || (*Self::entry(this, at)).block != block {
                return false;
            }
            // In use meanwhile, so that a signal handler leaves it alone.
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

    /// Whether a block is attached already, by a guard or as the thread's current record.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    #[inline(never)]
    pub(super) unsafe fn is_attached(state: *mut State, block: *mut u8) -> bool {
        // SAFETY: as the caller promises.
        unsafe {
            let this = &raw mut (*state).shared;
            block == (*state).current.block || Self::find(this, block).is_some()
        }
    }

    /// The entry of a block.
    ///
    /// # Safety
    /// `this` is the calling thread's.
    #[inline]
    pub(super) unsafe fn find(this: *mut Self, block: *mut u8) -> Option<*mut Entry> {
        // SAFETY: as the caller promises.
        unsafe { Self::entries(this).find(|entry| (**entry).block == block) }
    }

    /// The entries in use.
    ///
    /// # Safety
    /// `this` is the calling thread's, and its list does not change meanwhile.
    #[inline]
    pub(super) unsafe fn entries(this: *mut Self) -> impl Iterator<Item = *mut Entry> {
        // SAFETY: as the caller promises; `overflow` is null or came from Box.
        unsafe {
            let (first, count) = match (*this).overflow.as_mut() {
                None => (Self::entry(this, 0), (*this).next.saturating_sub(1)),
                Some(entries) => (entries.as_mut_ptr(), entries.len()),
            };
            (0..count).map(move |at| first.add(at))
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
            let this = &raw mut (*state).shared;
            (*this).generation = (*this).generation.wrapping_add(1);
            Self::take_all(state, |entry| entry.release(state));
        }
    }

    /// Takes all entries out, also idle ones; their references are those of `each`.
    ///
    /// # Safety
    /// `state` is the calling thread's.
    unsafe fn take_all(state: *mut State, each: impl Fn(Entry)) {
        // SAFETY: as the caller promises; `overflow` is null or came from Box.
        unsafe {
            let this = &raw mut (*state).shared;
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

    #[inline(always)]
    unsafe fn set_next(this: *mut Self, next: usize) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: `this` is the calling thread's.
        unsafe { (&raw mut (*this).next).write_volatile(next) };
        compiler_fence(Ordering::SeqCst);
    }

    /// # Safety
    /// `at` is an index of `entries`.
    #[inline(always)]
    unsafe fn entry(this: *mut Self, at: usize) -> *mut Entry {
        // SAFETY: as the caller promises.
        unsafe { (&raw mut (*this).entries).cast::<Entry>().add(at) }
    }
}

impl Entry {
    /// Drops what the entry has.
    ///
    /// # Safety
    /// `state` is the calling thread's, and the entry in no list any more.
    pub(super) unsafe fn release(self, state: *mut State) {
        // SAFETY: as the caller promises; the copy is a block of the thread's pool.
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
