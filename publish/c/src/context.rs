//! Contexts of one thread.

use std::cell::Cell;
use std::ffi::c_char;
use std::{mem, ptr};

use otelctx::{Context, SpanId, TraceFlags, TraceId, raw};

use crate::call::{caught, code, pointer};
use crate::error::{
    ATTACHED, INTERNAL, INVALID_ARGUMENT, NOT_ATTACHED, OK, TRUNCATED, WRONG_THREAD, otelctx_result,
};
use crate::key::{self, otelctx_key};
use crate::owner::Owner;
use crate::shared::{self, otelctx_shared};
use crate::text::{ids, text};

/// The W3C trace flag that the trace is sampled.
pub const OTELCTX_SAMPLED: u8 = 1;

/// The work of a thread: trace, span, flags and attributes, ready to be attached.
pub struct otelctx_context {
    /// The thread that may use the following fields.
    owner: Owner,
    /// The thread's slot.
    slot: *mut *mut u8,
    /// `None` once the owner has ended.
    context: Option<Context>,
    /// The thread's other handles: its destructor leaves none with a context.
    next: *mut otelctx_context,
    previous: *mut otelctx_context,
}

/// The first handle of a thread.
struct Handles(Cell<*mut otelctx_context>);

thread_local! {
    static HANDLES: Handles = const { Handles(Cell::new(ptr::null_mut())) };
}

impl Drop for Handles {
    fn drop(&mut self) {
        let mut handle = self.0.replace(ptr::null_mut());
        while !handle.is_null() {
            // SAFETY: the list has handles that are not freed. After end(), any thread may do so.
            unsafe {
                let next = (*handle).next;
                // Dropping it detaches it.
                (*handle).context = None;
                (*handle).owner.end();
                handle = next;
            }
        }
    }
}

impl otelctx_context {
    /// Creates a handle for a context of the calling thread; `None` while the thread ends.
    pub(crate) fn handle(context: Context) -> Option<*mut Self> {
        let added = HANDLES.try_with(|handles| {
            let next = handles.0.get();
            let handle = Box::into_raw(Box::new(Self {
                owner: Owner::this(),
                slot: raw::thread_slot(),
                context: Some(context),
                next,
                previous: ptr::null_mut(),
            }));
            if !next.is_null() {
                // SAFETY: the list has only handles that are not freed.
                unsafe { (*next).previous = handle };
            }
            handles.0.set(handle);
            handle
        });
        added.ok()
    }

    /// Takes a handle out of the calling thread's list.
    ///
    /// # Safety
    /// `handle` is in the list, or the thread has emptied it.
    unsafe fn unlink(handle: *mut Self) {
        // SAFETY: the list has only handles that are not freed.
        unsafe {
            let (next, previous) = ((*handle).next, (*handle).previous);
            if !next.is_null() {
                (*next).previous = previous;
            }
            if previous.is_null() {
                // While the thread ends, its list is empty and the handle is not in it.
                let _ = HANDLES.try_with(|handles| {
                    if handles.0.get() == handle {
                        handles.0.set(next);
                    }
                });
            } else {
                (*previous).next = next;
            }
        }
    }

    /// Returns the context of a handle of the calling thread.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    unsafe fn own<'a>(handle: *const Self) -> Result<&'a Context, otelctx_result> {
        // SAFETY: the caller passes null or a handle that is not freed.
        unsafe {
            Self::check(handle)?;
            (*handle).context.as_ref().ok_or(WRONG_THREAD)
        }
    }

    /// Checks that a handle is one of the calling thread.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    #[inline(always)]
    unsafe fn check(handle: *const Self) -> Result<(), otelctx_result> {
        if handle.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller passes null or a handle that is not freed.
        if unsafe { (*handle).owner.is_this() } {
            Ok(())
        } else {
            Err(WRONG_THREAD)
        }
    }

    /// Returns the context and the thread's slot of a handle that passes the check.
    ///
    /// # Safety
    /// `handle` is one of the calling thread, which uses its context for nothing else meanwhile.
    #[inline(always)]
    unsafe fn parts<'a>(handle: *mut Self) -> (&'a mut Context, *mut *mut u8) {
        // SAFETY: the caller passes its thread's handle, which has a context while its owner runs.
        unsafe {
            let context = (*handle).context.as_mut();
            (context.unwrap_unchecked(), (*handle).slot)
        }
    }

    /// Replaces the context of a handle that is not attached.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    unsafe fn replace(handle: *mut Self, f: impl FnOnce(Context) -> Context) -> otelctx_result {
        // SAFETY: the caller passes null or a handle that is not freed.
        code(|| unsafe {
            if Self::own(handle)?.is_attached() == Some(true) {
                return Err(ATTACHED);
            }
            (*handle).owner.pause();
            let emptied = Emptied(handle);
            (*handle).context = (*handle).context.take().map(f);
            mem::forget(emptied);
            (*handle).owner.resume();
            Ok(())
        })
    }
}

/// A handle whose context is being replaced. Dropping it, after a panic, leaves the handle as one
/// whose thread has ended: in no list, so that any thread may free it.
struct Emptied(*mut otelctx_context);

impl Drop for Emptied {
    fn drop(&mut self) {
        // SAFETY: the handle is one of the calling thread, and not freed.
        unsafe {
            otelctx_context::unlink(self.0);
            (*self.0).owner.end();
        }
    }
}

/// Creates a context with these IDs and W3C trace flags (OTELCTX_SAMPLED), without attributes. Null
/// if an ID is refused, and while the calling thread frees its thread-local data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_new(
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
) -> *mut otelctx_context {
    pointer(|| {
        // SAFETY: C passes null or valid pointers (otelctx.h).
        let context = match unsafe { ids(trace_id, span_id) }.ok()? {
            None => Context::without_ids(),
            Some((trace_id, span_id)) => Context::new(trace_id, span_id).ok()?,
        };
        otelctx_context::handle(context.with_flags(TraceFlags(flags)))
    })
}

/// Frees a context, and detaches it before if it is attached. A context whose thread has ended may
/// be freed by any thread; otherwise another thread gets OTELCTX_WRONG_THREAD and nothing is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_free(context: *mut otelctx_context) -> otelctx_result {
    caught(INTERNAL, || {
        if context.is_null() {
            return OK;
        }
        // SAFETY: C passes a handle that is not freed yet (otelctx.h).
        unsafe {
            if (*context).owner.is_this() {
                otelctx_context::unlink(context);
            } else if !(*context).owner.has_ended() {
                return WRONG_THREAD;
            }
            drop(Box::from_raw(context));
            OK
        }
    })
}

/// Makes the context what the calling thread is working on, until it is detached. Contexts may be
/// detached in any order: the last one that is still attached stays in effect.
/// OTELCTX_ATTACHED if it is attached already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_attach(context: *mut otelctx_context) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h). Only the context's thread passes the
    // check, and only while there is a context.
    unsafe {
        if let Err(code) = otelctx_context::check(context) {
            return code;
        }
        let (own, slot) = otelctx_context::parts(context);
        if raw::try_attach(own, slot) {
            return OK;
        }
        attach_slowly(context)
    }
}

/// Attaches a context of the calling thread unless it is attached. Not a Rust function, so that the
/// caller ends with a jump, and needs neither a frame nor a landing pad.
///
/// # Safety
/// The handle has a context.
#[cold]
#[inline(never)]
unsafe extern "C" fn attach_slowly(context: *mut otelctx_context) -> otelctx_result {
    // SAFETY: the caller passes a handle that has a context.
    caught(INTERNAL, || unsafe {
        let (own, slot) = otelctx_context::parts(context);
        if own.is_attached() == Some(true) {
            return ATTACHED;
        }
        raw::attach(own, slot);
        OK
    })
}

/// Detaches the context: restores what was attached before it, or removes it from below others.
/// OTELCTX_NOT_ATTACHED if it is not attached, also because otelctx_thread_set() or
/// otelctx_swap_current() has replaced it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_detach(context: *mut otelctx_context) -> otelctx_result {
    // SAFETY: as for otelctx_context_attach().
    unsafe {
        if let Err(code) = otelctx_context::check(context) {
            return code;
        }
        let (own, slot) = otelctx_context::parts(context);
        if raw::try_detach(own, slot) {
            return OK;
        }
        detach_slowly(context)
    }
}

/// Detaches a context of the calling thread that was not attached last. See [`attach_slowly`].
///
/// # Safety
/// The handle has a context.
#[cold]
#[inline(never)]
unsafe extern "C" fn detach_slowly(context: *mut otelctx_context) -> otelctx_result {
    // SAFETY: the caller passes a handle that has a context.
    caught(INTERNAL, || unsafe {
        let (own, slot) = otelctx_context::parts(context);
        if own.is_attached() == Some(false) {
            return NOT_ATTACHED;
        }
        raw::detach(own, slot);
        OK
    })
}

/// Appends an attribute. A value is cut to 255 bytes, at a character boundary. A context has room
/// for 612 bytes of attributes, each of which takes the length of its value plus 2. While the
/// context is attached, readers see the whole attribute or nothing of it; it then has only the
/// space that it had before, see otelctx_context_reserve(). The last value of a key counts.
/// OTELCTX_TRUNCATED if the value was cut or the attribute left out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_append(
    context: *mut otelctx_context,
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    code(|| unsafe {
        let (key, value) = attribute(key, value, length)?;
        let own = otelctx_context::own(context)?;
        let before = own.attributes_size();
        if own.is_attached() != Some(false) {
            own.append(key, value);
        } else {
            match otelctx_context::replace(context, |own| own.with_attribute(key, value)) {
                OK => {}
                code => return Err(code),
            }
        }
        let size = otelctx_context::own(context)?.attributes_size();
        if size == before + 2 + value.len() {
            Ok(())
        } else {
            Err(TRUNCATED)
        }
    })
}

/// Replaces the IDs and flags of a context.
pub(crate) fn with_ids(mut context: Context, ids: Option<(TraceId, SpanId)>, flags: u8) -> Context {
    match ids {
        // `ids` are not zero, so nothing fails.
        Some((trace_id, span_id)) => drop(context.set_ids(trace_id, span_id, TraceFlags(flags))),
        None => context.clear_ids(),
    }
    context
}

/// Reads the key and value of an attribute.
///
/// # Safety
/// The pointers are null, or valid as otelctx.h requires.
pub(crate) unsafe fn attribute<'a>(
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> Result<(&'static otelctx::Key, &'a str), otelctx_result> {
    // SAFETY: the caller ensures that the pointers are null or valid.
    unsafe {
        Ok((
            key::inner(key).ok_or(INVALID_ARGUMENT)?,
            text(value, length)?,
        ))
    }
}

/// Makes room for this many bytes of attributes in total, at most 612, for adding some while the
/// context is attached. OTELCTX_ATTACHED if it is attached already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_reserve(
    context: *mut otelctx_context,
    size: usize,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { otelctx_context::replace(context, |own| own.with_capacity(size)) }
}

/// Removes an attribute, if it is there, for a context that was copied from another one and gets
/// another value. OTELCTX_ATTACHED if the context is attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_remove(
    context: *mut otelctx_context,
    key: *const otelctx_key,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        let Some(key) = key::inner(key) else {
            return INVALID_ARGUMENT;
        };
        otelctx_context::replace(context, |own| own.without_attribute(key))
    }
}

/// Replaces IDs and flags, and keeps the attributes. OTELCTX_ATTACHED if the context is attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_set_ids(
    context: *mut otelctx_context,
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        match ids(trace_id, span_id) {
            Ok(ids) => otelctx_context::replace(context, |own| with_ids(own, ids, flags)),
            Err(code) => code,
        }
    }
}

/// Returns the size of the attributes in bytes: a mark for otelctx_context_shrink_to().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_attributes_size(context: *const otelctx_context) -> usize {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught(0, || unsafe {
        otelctx_context::own(context).map_or(0, Context::attributes_size)
    })
}

/// Removes the attributes that were added since their size was this many bytes; one that extends
/// over it is removed, too. The context may be attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_shrink_to(
    context: *mut otelctx_context,
    size: usize,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    code(|| unsafe { otelctx_context::own(context) }.map(|own| own.shrink_to(size)))
}

/// Returns whether a value was cut or an attribute left out since the context was created.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_is_truncated(context: *const otelctx_context) -> bool {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    caught(false, || unsafe {
        otelctx_context::own(context).is_ok_and(Context::is_truncated)
    })
}

/// Creates a context with these IDs and flags and another one's attributes, as for a child span.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_copy(
    context: *const otelctx_context,
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
) -> *mut otelctx_context {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    pointer(|| unsafe {
        let own = otelctx_context::own(context).ok()?;
        let ids = ids(trace_id, span_id).ok()?;
        otelctx_context::handle(with_ids(own.to_shared().to_context(), ids, flags))
    })
}

/// Creates an immutable copy that any thread may attach. The context stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_share(
    context: *const otelctx_context,
) -> *mut otelctx_shared {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    let own = || unsafe { otelctx_context::own(context) };
    pointer(|| Some(shared::handle(own().ok()?.to_shared())))
}

#[cfg(test)]
mod tests {
    use super::{otelctx_context, otelctx_context_free, otelctx_context_new};
    use crate::error::{INTERNAL, OK, WRONG_THREAD};
    use std::ptr;

    #[test]
    fn a_panic_while_a_record_is_replaced_leaves_a_handle_that_any_thread_may_free() {
        // SAFETY: the handles are freed once each, and the order is that of the threads.
        unsafe {
            let new = || otelctx_context_new(ptr::null(), ptr::null(), 0);
            let (first, emptied, last) = (new(), new(), new());
            let result = otelctx_context::replace(emptied, |_| panic!("on purpose"));
            assert_eq!(result, INTERNAL);
            assert_eq!(otelctx_context::replace(emptied, |it| it), WRONG_THREAD);
            // The list goes on without it.
            assert_eq!((*last).next, first);
            assert_eq!((*first).previous, last);
            let address = emptied as usize;
            let freed = std::thread::spawn(move || otelctx_context_free(address as *mut _) as u32);
            assert_eq!(freed.join().unwrap(), OK as u32);
            assert_eq!(otelctx_context::replace(first, |it| it), OK);
            assert_eq!(otelctx_context_free(last), OK);
            assert_eq!(otelctx_context_free(first), OK);
        }
    }

    #[test]
    fn a_record_that_is_being_replaced_is_not_freed_by_another_thread() {
        // SAFETY: the handle is freed once.
        unsafe {
            let context = otelctx_context_new(ptr::null(), ptr::null(), 0);
            let address = context as usize;
            let result = otelctx_context::replace(context, |it| {
                let free = move || otelctx_context_free(address as *mut _) as u32;
                let freed = std::thread::spawn(free).join().unwrap();
                assert_eq!(freed, WRONG_THREAD as u32);
                it
            });
            assert_eq!(result, OK);
            assert_eq!(otelctx_context_free(context), OK);
        }
    }
}
