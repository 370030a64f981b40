//! Records of one thread.

use std::cell::Cell;
use std::ffi::c_char;
use std::{mem, ptr};

use otelctx::{Context, SpanId, TraceFlags, TraceId, raw};

use crate::call::caught;
use crate::error::{
    ATTACHED, INTERNAL, INVALID_ARGUMENT, NOT_ATTACHED, OK, TRUNCATED, WRONG_THREAD, otelctx_result,
};
use crate::key::{self, otelctx_key};
use crate::owner::Owner;
use crate::shared::{self, otelctx_shared};
use crate::text::{ids, text};

/// The W3C trace flag that the trace is sampled.
pub const OTELCTX_SAMPLED: u8 = 1;

/// What a thread is working on: trace, span, flags and attributes, ready to be attached. It belongs
/// to the thread that created it.
pub struct otelctx_record {
    /// Who may use the following.
    owner: Owner,
    /// The thread's slot.
    slot: *mut *mut u8,
    /// `None` once the owner has ended.
    record: Option<Context>,
    /// The thread's other handles: its destructor leaves none with a record.
    next: *mut otelctx_record,
    previous: *mut otelctx_record,
}

/// The first handle of a thread.
struct Handles(Cell<*mut otelctx_record>);

thread_local! {
    static HANDLES: Handles = const { Handles(Cell::new(ptr::null_mut())) };
}

impl Drop for Handles {
    fn drop(&mut self) {
        let mut handle = self.0.replace(ptr::null_mut());
        while !handle.is_null() {
            // SAFETY: the list has the thread's handles that are not freed. After end(), another
            // thread may free this one.
            unsafe {
                let next = (*handle).next;
                // Dropping it detaches it.
                (*handle).record = None;
                (*handle).owner.end();
                handle = next;
            }
        }
    }
}

impl otelctx_record {
    /// A handle for a record of the calling thread; null while the thread ends.
    pub(crate) fn handle(record: Context) -> *mut Self {
        let added = HANDLES.try_with(|handles| {
            let next = handles.0.get();
            let handle = Box::into_raw(Box::new(Self {
                owner: Owner::this(),
                slot: raw::thread_slot(),
                record: Some(record),
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
        added.unwrap_or(ptr::null_mut())
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

    /// Calls `f` with the record of a handle.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    unsafe fn with(
        handle: *const Self,
        f: impl FnOnce(&Context) -> otelctx_result,
    ) -> otelctx_result {
        caught(INTERNAL, || {
            // SAFETY: as the caller promises; only the owning thread passes the check.
            match unsafe { Self::own(handle) } {
                Ok(record) => f(record),
                Err(code) => code,
            }
        })
    }

    /// The record of a handle of the calling thread.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    unsafe fn own<'a>(handle: *const Self) -> Result<&'a Context, otelctx_result> {
        // SAFETY: as the caller promises; only the owning thread passes the check.
        unsafe {
            Self::check(handle)?;
            (*handle).record.as_ref().ok_or(WRONG_THREAD)
        }
    }

    /// Whether a handle is one of the calling thread.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    #[inline(always)]
    unsafe fn check(handle: *const Self) -> Result<(), otelctx_result> {
        if handle.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: as the caller promises.
        match unsafe { (*handle).owner.is_this() } {
            true => Ok(()),
            false => Err(WRONG_THREAD),
        }
    }

    /// The record and the thread's slot of a handle that passes the check.
    ///
    /// # Safety
    /// `handle` is one of the calling thread, which uses its record for nothing else meanwhile.
    #[inline(always)]
    unsafe fn parts<'a>(handle: *mut Self) -> (&'a mut Context, *mut *mut u8) {
        // SAFETY: as the caller promises; a handle whose owner runs has a record.
        unsafe {
            let record = (*handle).record.as_mut();
            (record.unwrap_unchecked(), (*handle).slot)
        }
    }

    /// Replaces the record of a handle that is not attached.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    unsafe fn replace(handle: *mut Self, f: impl FnOnce(Context) -> Context) -> otelctx_result {
        caught(INTERNAL, || {
            // SAFETY: as the caller promises.
            unsafe {
                match Self::own(handle) {
                    Err(code) => return code,
                    Ok(record) if record.is_attached() == Some(true) => return ATTACHED,
                    Ok(_) => {}
                }
                (*handle).owner.pause();
                let emptied = Emptied(handle);
                (*handle).record = (*handle).record.take().map(f);
                mem::forget(emptied);
                (*handle).owner.resume();
                OK
            }
        })
    }
}

/// A handle whose record is being replaced. Dropping it, after a panic, leaves the handle as one whose
/// thread has ended: in no list, so that any thread may free it.
struct Emptied(*mut otelctx_record);

impl Drop for Emptied {
    fn drop(&mut self) {
        // SAFETY: the handle is one of the calling thread, and not freed.
        unsafe {
            otelctx_record::unlink(self.0);
            (*self.0).owner.end();
        }
    }
}

/// Creates a record with these IDs and W3C trace flags (OTELCTX_SAMPLED), without attributes. IDs of
/// zeroes or null: a record without a trace, which can have attributes.
///
/// Null while the calling thread frees its thread-local data.
///
/// Threads: the record belongs to the calling thread. Signal handlers: no. Fork: as for all
/// functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_new(
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
) -> *mut otelctx_record {
    caught(ptr::null_mut(), || {
        // SAFETY: C's promise.
        let context = match unsafe { ids(trace_id, span_id) } {
            Ok(None) => Ok(Context::without_ids()),
            Ok(Some((trace_id, span_id))) => Context::new(trace_id, span_id),
            Err(_) => return ptr::null_mut(),
        };
        context.map_or(ptr::null_mut(), |context| {
            otelctx_record::handle(context.with_flags(TraceFlags(flags)))
        })
    })
}

/// Frees a record, and detaches it before if it is attached. A record whose thread has ended may be
/// freed by any thread; otherwise another thread gets OTELCTX_WRONG_THREAD and nothing is freed.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_free(record: *mut otelctx_record) -> otelctx_result {
    caught(INTERNAL, || {
        if record.is_null() {
            return OK;
        }
        // SAFETY: C's promise: it is not freed yet.
        unsafe {
            if (*record).owner.is_this() {
                otelctx_record::unlink(record);
            } else if !(*record).owner.has_ended() {
                return WRONG_THREAD;
            }
            drop(Box::from_raw(record));
            OK
        }
    })
}

/// Makes the record what the calling thread is working on, until it is detached. Detaching restores
/// what was attached before. Records may be detached in any order: the one attached last, of those
/// that still are, stays in effect.
///
/// OTELCTX_ATTACHED if it is attached already.
///
/// Threads: the record's own. Signal handlers: yes, if the thread has attached a record before, and
/// the handler detaches what it attaches. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_attach(record: *mut otelctx_record) -> otelctx_result {
    // SAFETY: C's promise. Only the record's thread passes the check, and only while there is a record.
    unsafe {
        if let Err(code) = otelctx_record::check(record) {
            return code;
        }
        let (own, slot) = otelctx_record::parts(record);
        if raw::try_attach(own, slot) {
            return OK;
        }
        attach_slowly(record)
    }
}

/// Attaches a record of the calling thread unless it is attached. Not a Rust function, so that the caller
/// ends with a jump, and needs neither a frame nor a landing pad.
///
/// # Safety
/// The handle has a record.
#[cold]
#[inline(never)]
unsafe extern "C" fn attach_slowly(record: *mut otelctx_record) -> otelctx_result {
    // SAFETY: as the caller promises.
    caught(INTERNAL, || unsafe {
        let (own, slot) = otelctx_record::parts(record);
        if own.is_attached() == Some(true) {
            return ATTACHED;
        }
        raw::attach(own, slot);
        OK
    })
}

/// Detaches the record: restores what was attached before it, or removes it from below other
/// records.
///
/// OTELCTX_NOT_ATTACHED if it is not attached, or otelctx_thread_set() or otelctx_swap_current() has
/// replaced it.
///
/// Threads: the record's own. Signal handlers: yes, for what the handler has attached. Fork: as for
/// all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_detach(record: *mut otelctx_record) -> otelctx_result {
    // SAFETY: as for attaching.
    unsafe {
        if let Err(code) = otelctx_record::check(record) {
            return code;
        }
        let (own, slot) = otelctx_record::parts(record);
        if raw::try_detach(own, slot) {
            return OK;
        }
        detach_slowly(record)
    }
}

/// Detaches a record of the calling thread that was not attached last. See [`attach_slowly`].
///
/// # Safety
/// The handle has a record.
#[cold]
#[inline(never)]
unsafe extern "C" fn detach_slowly(record: *mut otelctx_record) -> otelctx_result {
    // SAFETY: as the caller promises.
    caught(INTERNAL, || unsafe {
        let (own, slot) = otelctx_record::parts(record);
        if own.is_attached() == Some(false) {
            return NOT_ATTACHED;
        }
        raw::detach(own, slot);
        OK
    })
}

/// Adds an attribute. A value is cut to 255 bytes, at a character boundary. A record has room for
/// 612 bytes of attributes, each of which takes the length of its value plus 2. While the record is
/// attached, readers see the whole attribute or nothing of it; it then has only the space that it
/// had before, see otelctx_record_reserve(). If a key is added again, the last value counts.
///
/// OTELCTX_TRUNCATED if the value was cut or the attribute left out.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_add(
    record: *mut otelctx_record,
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> otelctx_result {
    caught(INTERNAL, || {
        // SAFETY: C's promise.
        let (key, value) = match unsafe { attribute(key, value, length) } {
            Ok(attribute) => attribute,
            Err(code) => return code,
        };
        // SAFETY: C's promise.
        unsafe {
            let own = match otelctx_record::own(record) {
                Ok(own) => own,
                Err(code) => return code,
            };
            let before = own.attributes_size();
            if own.is_attached() != Some(false) {
                own.append(key, value);
            } else {
                let result =
                    otelctx_record::replace(record, |record| record.with_attribute(key, value));
                if result != OK {
                    return result;
                }
            }
            otelctx_record::own(record).map_or(INTERNAL, |own| added(own, before, value))
        }
    })
}

/// Whether the whole value was added to a record that had this size.
fn added(record: &Context, before: usize, value: &str) -> otelctx_result {
    match record.attributes_size() == before + 2 + value.len() {
        true => OK,
        false => TRUNCATED,
    }
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

/// Key and value of an attribute.
///
/// # Safety
/// C's promises.
pub(crate) unsafe fn attribute<'a>(
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> Result<(&'static otelctx::Key, &'a str), otelctx_result> {
    // SAFETY: as the caller promises.
    unsafe {
        let key = key::inner(key).ok_or(INVALID_ARGUMENT)?;
        Ok((key, text(value, length)?))
    }
}

/// Makes room for this many bytes of attributes in total, at most 612, for adding some while the
/// record is attached.
///
/// OTELCTX_ATTACHED if it is attached.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_reserve(
    record: *mut otelctx_record,
    size: usize,
) -> otelctx_result {
    // SAFETY: C's promise.
    unsafe { otelctx_record::replace(record, |record| record.with_capacity(size)) }
}

/// Removes an attribute, for a record that was copied from another one and gets another value. Without
/// such an attribute, nothing changes.
///
/// OTELCTX_ATTACHED if the record is attached.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_remove(
    record: *mut otelctx_record,
    key: *const otelctx_key,
) -> otelctx_result {
    // SAFETY: C's promise.
    unsafe {
        match key::inner(key) {
            Some(key) => otelctx_record::replace(record, |record| record.without_attribute(key)),
            None => INVALID_ARGUMENT,
        }
    }
}

/// Replaces IDs and flags of a record that is not attached, and keeps its attributes.
///
/// OTELCTX_ATTACHED if it is attached.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_set_ids(
    record: *mut otelctx_record,
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
) -> otelctx_result {
    // SAFETY: C's promise.
    unsafe {
        match ids(trace_id, span_id) {
            Ok(ids) => otelctx_record::replace(record, |own| with_ids(own, ids, flags)),
            Err(code) => code,
        }
    }
}

/// The size of the attributes in bytes: a mark for otelctx_record_shrink_to(). 0 for a record of
/// another thread.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_attributes_size(record: *const otelctx_record) -> usize {
    // SAFETY: C's promise.
    caught(0, || unsafe {
        otelctx_record::own(record).map_or(0, Context::attributes_size)
    })
}

/// Removes the attributes that were added since their size was this many bytes; one that extends
/// over it is removed, too. The record may be attached.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_shrink_to(
    record: *mut otelctx_record,
    size: usize,
) -> otelctx_result {
    // SAFETY: C's promise.
    unsafe {
        otelctx_record::with(record, |record| {
            record.shrink_to(size);
            OK
        })
    }
}

/// Whether a value was cut or an attribute left out since the record was created.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_is_truncated(record: *const otelctx_record) -> bool {
    // SAFETY: C's promise.
    caught(false, || unsafe {
        otelctx_record::own(record).is_ok_and(Context::is_truncated)
    })
}

/// Creates a record with these IDs and flags and the attributes of another one, for example for a
/// child span. Null for a record of another thread.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_copy(
    record: *const otelctx_record,
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
) -> *mut otelctx_record {
    // SAFETY: C's promise.
    caught(ptr::null_mut(), || unsafe {
        match (otelctx_record::own(record), ids(trace_id, span_id)) {
            (Ok(own), Ok(ids)) => {
                otelctx_record::handle(with_ids(own.to_shared().to_context(), ids, flags))
            }
            _ => ptr::null_mut(),
        }
    })
}

/// Creates an immutable copy that any thread may attach. The record stays. Null for a record of
/// another thread.
///
/// Threads: the record's own. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_record_share(
    record: *const otelctx_record,
) -> *mut otelctx_shared {
    // SAFETY: C's promise.
    caught(ptr::null_mut(), || unsafe {
        let own = otelctx_record::own(record);
        own.map_or(ptr::null_mut(), |record| shared::handle(record.to_shared()))
    })
}

#[cfg(test)]
mod tests {
    use super::{otelctx_record, otelctx_record_free, otelctx_record_new};
    use crate::error::{INTERNAL, OK, WRONG_THREAD};
    use std::ptr;

    #[test]
    fn a_panic_while_a_record_is_replaced_leaves_a_handle_that_any_thread_may_free() {
        // SAFETY: the handles are freed once each, and the order is that of the threads.
        unsafe {
            let new = || otelctx_record_new(ptr::null(), ptr::null(), 0);
            let (first, emptied, last) = (new(), new(), new());
            let result = otelctx_record::replace(emptied, |_| panic!("on purpose"));
            assert_eq!(result, INTERNAL);
            assert_eq!(otelctx_record::replace(emptied, |it| it), WRONG_THREAD);
            // The list goes on without it.
            assert_eq!((*last).next, first);
            assert_eq!((*first).previous, last);
            let address = emptied as usize;
            let freed = std::thread::spawn(move || otelctx_record_free(address as *mut _) as u32);
            assert_eq!(freed.join().unwrap(), OK as u32);
            assert_eq!(otelctx_record::replace(first, |it| it), OK);
            assert_eq!(otelctx_record_free(last), OK);
            assert_eq!(otelctx_record_free(first), OK);
        }
    }

    #[test]
    fn a_record_that_is_being_replaced_is_not_freed_by_another_thread() {
        // SAFETY: the handle is freed once.
        unsafe {
            let record = otelctx_record_new(ptr::null(), ptr::null(), 0);
            let address = record as usize;
            let result = otelctx_record::replace(record, |it| {
                let free = move || otelctx_record_free(address as *mut _) as u32;
                let freed = std::thread::spawn(free).join().unwrap();
                assert_eq!(freed, WRONG_THREAD as u32);
                it
            });
            assert_eq!(result, OK);
            assert_eq!(otelctx_record_free(record), OK);
        }
    }
}
