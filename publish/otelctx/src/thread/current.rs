//! The current context of the calling thread, without a scope.

use otelctx_format::record::{self, ENTRY_HEADER_SIZE, HEADER_SIZE, MAX_VALUE_SIZE};
use otelctx_format::KeyMap;

use super::attached_blocks::{AttachedBlocks, Entry};
use super::attributes::Attributes;
use super::bytes::{copy, is_valid, set_used, used};
use super::in_place::{thread_context, MAX_ATTRIBUTES_SIZE};
use super::keys::{usable_names, Key};
use super::pool::{self, SIZES};
use super::shared::SharedContext;
use super::shared_block::{release, retain};
use super::state::{self, exit_has_begun, found_slot, is_own, ThreadState};
use crate::arch;

/// Makes `context` what the calling thread is working on, and returns the previous context set by
/// this function: for frameworks that set what is current without a scope, and in any order.
///
/// The thread owns the context until it is swapped out or the thread ends. As with
/// [`thread_context`], a guard that is alive then restores nothing, and a guard that finds another
/// record than its own leaves it there. `None` detaches the current context, unless it belongs to
/// another publisher.
///
/// While the thread's thread-local variables are dropped, nothing is attached and `None` is
/// returned. Must not be called in signal handlers.
///
/// ```
/// use otelctx::{raw, visible_to_readers, Context};
///
/// let request = Context::new([1; 16], [1; 8])?.share();
/// // A framework enters the request's context ...
/// let before = raw::swap_current(Some(request));
/// assert_eq!(visible_to_readers().unwrap().trace_id, [1; 16].into());
/// // ... and leaves it.
/// raw::swap_current(before);
/// assert_eq!(visible_to_readers(), None);
/// # Ok::<(), otelctx::ZeroId>(())
/// ```
#[doc(alias("ddog_otel_thread_ctx_attach", "ddog_otel_thread_ctx_detach"))]
#[inline]
pub fn swap_current(context: Option<SharedContext>) -> Option<SharedContext> {
    let state = arch::state();
    let new = context.map_or(std::ptr::null_mut(), SharedContext::into_block);
    // SAFETY: the state and the slot belong to this thread, which owns one reference to each block.
    unsafe {
        let old = (*state.get()).current.block;
        if !(*state.get()).shared.is_ready_and_empty()
            || found_slot(state).read() != old
            || (*state.get()).current_is_unowned
        {
            return swap_slowly(state, new);
        }
        (*state.get()).current.block = new;
        found_slot(state).write_volatile(new);
        (!old.is_null()).then(|| SharedContext::from_block(old))
    }
}

/// # Safety
/// `new` is null, or a shared block with a reference.
#[cold]
#[inline(never)]
unsafe fn swap_slowly(state: ThreadState, mut new: *mut u8) -> Option<SharedContext> {
    // SAFETY: the caller passes null or a counted block; `state` is this thread's.
    unsafe {
        if exit_has_begun(state) {
            if !new.is_null() {
                release(|| state, new);
            }
            return None;
        }
        AttachedBlocks::prepare(state);
        // A guard would mistake the record for its own.
        if AttachedBlocks::find(state, new).is_some() {
            let copy = SharedContext::copy_of(new);
            release(|| state, new);
            new = copy.into_block();
        }
        let slot = found_slot(state);
        let foreign = !is_own(state, slot.read_volatile());
        if foreign && !(*state.get()).current.block.is_null() {
            // While the other record is in the slot: later, this could remove the new one.
            AttachedBlocks::make_room(state);
        }
        let old = take(state);
        (*state.get()).current.block = new;
        if !foreign || !new.is_null() {
            slot.write_volatile(new);
        }
        if old.block.is_null() {
            return None;
        }
        if foreign {
            // The other publisher may restore it, so it stays alive, until too many do.
            retain(old.block);
            let kept = AttachedBlocks::add(state, old.block);
            (*kept).copy = old.copy;
        } else if let Some(class) = pool::class_of(state, old.copy) {
            pool::put(state, old.copy, class);
        }
        Some(SharedContext::from_block(old.block))
    }
}

/// Takes the current entry, with a reference to its block.
fn take(state: ThreadState) -> Entry {
    // SAFETY: `state` is this thread's; an uncounted block is kept by its owner.
    unsafe {
        let current = std::mem::replace(&mut (*state.get()).current, Entry::NONE);
        let is_unowned = std::mem::take(&mut (*state.get()).current_is_unowned);
        if is_unowned && !current.block.is_null() {
            retain(current.block);
        }
        current
    }
}

/// Like [`swap_current`], for a framework that keeps the context itself: no reference is counted,
/// which takes most of the time.
///
/// # Safety
/// A handle to the context must exist until this thread has set another one or none, with
/// this function or with [`swap_current`], or has ended; and
/// [`replace_by_copy`](super::raw::replace_by_copy) must not be called on it until then.
///
/// ```
/// use otelctx::{raw, visible_to_readers, Context};
///
/// let request = Context::new([1; 16], [1; 8])?.share();
/// // SAFETY: the handle is dropped after another context is set.
/// unsafe { raw::set_current(Some(&request)) };
/// assert_eq!(visible_to_readers().unwrap().trace_id, [1; 16].into());
/// // SAFETY: no context needs a handle.
/// unsafe { raw::set_current(None) };
/// assert_eq!(visible_to_readers(), None);
/// # Ok::<(), otelctx::ZeroId>(())
/// ```
#[inline]
pub unsafe fn set_current(context: Option<&SharedContext>) {
    let state = arch::state();
    let new = context.map_or(std::ptr::null_mut(), SharedContext::block);
    // SAFETY: the state and the slot belong to this thread.
    unsafe {
        let old = (*state.get()).current.block;
        if !(*state.get()).shared.is_ready_and_empty()
            || found_slot(state).read() != old
            || !(old.is_null() || (*state.get()).current_is_unowned)
        {
            return set_slowly(state, new);
        }
        (*state.get()).current.block = new;
        (*state.get()).current_is_unowned = true;
        found_slot(state).write_volatile(new);
    }
}

/// # Safety
/// `new` is null, or a shared block that the caller of [`set_current`] keeps.
#[cold]
#[inline(never)]
unsafe fn set_slowly(state: ThreadState, new: *mut u8) {
    // SAFETY: `new` is null, or set_current()'s caller keeps it. The reference is dropped again,
    // unless the thread has a copy instead.
    unsafe {
        if !new.is_null() {
            retain(new);
        }
        drop(swap_slowly(state, new));
        if !new.is_null() && (*state.get()).current.block == new {
            (*state.get()).current_is_unowned = true;
            release(|| state, new);
        }
    }
}

/// Returns the context that [`swap_current`] or [`set_current`] made current on this thread, if
/// any, without the attributes that [`append_current`](crate::append_current) added.
///
/// For frameworks that derive a context from the current one. Not for signal handlers.
#[must_use]
pub fn current() -> Option<SharedContext> {
    // SAFETY: the state belongs to this thread, and the block has a reference: this thread's, or
    // one that the caller of set_current() keeps.
    unsafe {
        let block = (*arch::state().get()).current.block;
        (!block.is_null()).then(|| {
            retain(block);
            SharedContext::from_block(block)
        })
    }
}

/// Appends an attribute to what the calling thread is working on, for facts that become known
/// later.
///
/// The thread's own contexts ([`Context`](crate::Context), [`thread_context`]) are changed
/// in place. For a [`SharedContext`], the attribute is visible on this thread until the context is
/// detached; the shared context does not change.
///
/// Returns whether readers can see the attribute (cut to 255 bytes if necessary). They cannot if no
/// record of this crate is attached, it has no room, or the key is not published.
pub fn append_current(key: &Key, value: &str) -> bool {
    let state = arch::state();
    // SAFETY: the state belongs to this thread, and the slot contains a record or null.
    unsafe { append_to(state, state::slot(state).read_volatile(), key, value) }
}

/// Adds an attribute to a shared record that a guard attached, if the record is in the slot.
pub(super) fn append_to_shared(state: ThreadState, block: *mut u8, key: &Key, value: &str) -> bool {
    // SAFETY: `state` is this thread's; the slot contains a record or null.
    unsafe {
        let attached = state::slot(state).read_volatile();
        !attached.is_null()
            && holder(state, attached).is_some_and(|holder| (*holder).block == block)
            && append_to(state, attached, key, value)
    }
}

/// Adds an attribute to the record in the slot.
///
/// # Safety
/// `attached` is the content of the thread's slot.
unsafe fn append_to(state: ThreadState, attached: *mut u8, key: &Key, value: &str) -> bool {
    // SAFETY: the caller passes the content of the slot; `state` is this thread's.
    unsafe {
        if attached.is_null() || !is_valid(attached) {
            return false;
        }
        if attached == (*state.get()).in_place {
            return thread_context().try_append(key, value);
        }
        let own = pool::class_of(state, attached);
        if own.is_some_and(|class| append(attached, class, key, value)) {
            return true;
        }
        let Some(holder) = holder(state, attached) else {
            return false;
        };
        let size = used(attached) + ENTRY_HEADER_SIZE + value.len().min(MAX_VALUE_SIZE);
        let class = pool::class_for(size);
        let block = pool::allocate(state, class);
        copy(attached, block);
        if !append(block, class, key, value) {
            pool::put(state, block, class);
            return false;
        }
        let below = own.map_or((*holder).below, |_| pool::link(attached).read());
        pool::link(block).write(below);
        (*holder).copy = block;
        state::slot(state).write_volatile(block);
        if let Some(class) = own {
            pool::put(state, attached, class);
        }
        true
    }
}

/// Returns the entry whose shared record or copy this is.
fn holder(state: ThreadState, attached: *mut u8) -> Option<*mut Entry> {
    // SAFETY: `state` is this thread's, and nothing changes its list meanwhile.
    unsafe {
        AttachedBlocks::entries(state)
            .chain([&raw mut (*state.get()).current])
            .find(|entry| attached == (**entry).block || attached == (**entry).copy)
    }
}

/// Adds an attribute at the end of a block of this size class. Returns false if it does not fit, or
/// the key is not published.
///
/// # Safety
/// Only the calling thread changes the block.
unsafe fn append(block: *mut u8, class: usize, key: &Key, value: &str) -> bool {
    // SAFETY: the caller ensures that only the calling thread changes the block.
    unsafe {
        let before = used(block);
        let mut attributes = Attributes::new(block, SIZES[class], before);
        attributes.append(key, value);
        set_used(block, attributes.used());
        attributes.used() != before
    }
}

/// Returns what readers see of the calling thread: the record in its slot, with the names of the
/// keys registered in this copy of the crate. Intended for tests.
///
/// `None` if nothing is attached, or the record is marked as invalid.
#[must_use]
pub fn visible_to_readers() -> Option<record::DecodedContext> {
    // SAFETY: the slot contains a record of the size that it states (OTEP 4947). Only the record
    // that is rewritten in place may state any size.
    let bytes = unsafe {
        let state = arch::state();
        let attached = state::slot(state).read_volatile();
        if attached.is_null() {
            return None;
        }
        let mut size = used(attached);
        if attached == (*state.get()).in_place {
            size = size.min(MAX_ATTRIBUTES_SIZE);
        }
        std::slice::from_raw_parts(attached, HEADER_SIZE + size)
    };
    let keys = KeyMap::new(usable_names()).ok()?;
    Some(record::decode(bytes).ok()?.resolve(&keys))
}
