//! The published process context.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use otelctx::{ProcessContext, PublishError, Published};

use crate::call::reported;
use crate::error::{
    BUSY, Failure, INVALID_ARGUMENT, failure, otelctx_error, otelctx_result, publish_failure,
};
use crate::process::otelctx_process;

/// A publication. It lasts until otelctx_unpublish(), or until the process ends.
pub struct otelctx_published {
    /// The PID of the process in which a thread uses `guard`, or 0. A child ignores its parent's.
    user: AtomicU32,
    guard: UnsafeCell<Published>,
}

impl otelctx_published {
    /// Calls `f` with the guard, unless another thread uses it.
    ///
    /// # Safety
    /// `handle` is null or not freed.
    unsafe fn with(
        handle: *mut Self,
        f: impl FnOnce(&mut Published) -> Result<(), PublishError>,
    ) -> Result<(), Failure> {
        // SAFETY: the caller passes null or a handle that is not freed.
        let published = unsafe { handle.as_ref() }.ok_or_else(|| failure(INVALID_ARGUMENT))?;
        let (own, user) = (std::process::id(), published.user.load(Ordering::Relaxed));
        let taken = user != own
            && published
                .user
                .compare_exchange(user, own, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !taken {
            return Err(failure(BUSY));
        }
        let _leave = Leave(&published.user);
        // SAFETY: `user` admits one thread of this process.
        f(unsafe { &mut *published.guard.get() }).map_err(|error| publish_failure(&error))
    }
}

/// Lets other threads use a publication again, also after a panic.
struct Leave<'a>(&'a AtomicU32);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Publishes a process context, so that other processes can find it. The process has one: if
/// another copy of otelctx has published one (a Rust program, the Python or the Node.js package),
/// that one is withdrawn, and contexts keep their meaning.
///
/// Null if it fails; nothing is published then. `error` tells why: OTELCTX_ALREADY_PUBLISHED,
/// OTELCTX_FOREIGN, OTELCTX_REJECTED, OTELCTX_SYSTEM, or the failure of an earlier call that set an
/// attribute. A forked child may publish its own context with this function or otelctx_replace().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_publish(
    process: *const otelctx_process,
    error: *mut otelctx_error,
) -> *mut otelctx_published {
    let mut published = ptr::null_mut();
    let publish = || {
        // SAFETY: C passes null or valid pointers (otelctx.h).
        let guard = unsafe { context(process) }?.publish();
        let guard = guard.map_err(|error| publish_failure(&error))?;
        let (user, guard) = (AtomicU32::new(0), UnsafeCell::new(guard));
        published = Box::into_raw(Box::new(otelctx_published { user, guard }));
        Ok(())
    };
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { reported(error, publish) };
    published
}

/// # Safety
/// `process` is null or not freed.
unsafe fn context(process: *const otelctx_process) -> Result<ProcessContext, Failure> {
    // SAFETY: the caller ensures that `process` is null or not freed.
    let process = unsafe { process.as_ref() };
    process.ok_or_else(|| failure(INVALID_ARGUMENT))?.context()
}

/// Replaces the published context, including changes by otelctx_modify(). Readers see the old one,
/// the new one, or that it is being updated. If it fails, the old one stays. In a forked child,
/// publishes the context as the child's own.
///
/// OTELCTX_NOT_PUBLISHED if another copy of otelctx has taken over; publish again to take it back.
/// OTELCTX_BUSY if another thread uses the publication.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_replace(
    published: *mut otelctx_published,
    process: *const otelctx_process,
    error: *mut otelctx_error,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        reported(error, || {
            let context = context(process)?;
            otelctx_published::with(published, |guard| guard.replace(context))
        })
    }
}

/// A function that changes a process context, for otelctx_modify().
pub type otelctx_change =
    Option<unsafe extern "C" fn(process: *mut otelctx_process, data: *mut c_void)>;

/// Changes the context that this library has published in this process, without needing the
/// publication: for a library that adds to the application's context. `change` gets a copy of it
/// and `data`; it may be called again if another thread changes the context at the same time. No
/// lock is held meanwhile. It must return: no exception and no longjmp may leave it. If it fails,
/// also because a function that `change` called has failed, the context is unchanged.
/// OTELCTX_NOT_PUBLISHED in a forked child that has no context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_modify(
    change: otelctx_change,
    data: *mut c_void,
    error: *mut otelctx_error,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers, also for the function (otelctx.h).
    unsafe {
        reported(error, || {
            let change = change.ok_or_else(|| failure(INVALID_ARGUMENT))?;
            modify(|process| change(process, data))
        })
    }
}

fn modify(mut change: impl FnMut(*mut otelctx_process)) -> Result<(), Failure> {
    let mut problem = None;
    let result = ProcessContext::modify(|before| {
        let mut process = otelctx_process::lend(before.clone());
        change(&raw mut process);
        let context = process.context();
        problem = context.as_ref().err().cloned();
        context.unwrap_or(before)
    });
    result.map_err(|error| publish_failure(&error))?;
    problem.map_or(Ok(()), Err)
}

/// Publishes the context again in every later child of this process, and in their children, with
/// the child's `process.pid` and a random `service.instance.id`, if they were detected: for servers
/// with forked workers. When fork() returns, the child's context is published: handlers run in the
/// thread that forks, and make only system calls in the child. posix_spawn(), vfork() and clone()
/// do not run them. Programs that call fork() in signal handlers cannot use this.
/// OTELCTX_NOT_PUBLISHED if this publication is not in effect any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_republish_after_fork(
    published: *mut otelctx_published,
    error: *mut otelctx_error,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        reported(error, || {
            otelctx_published::with(published, Published::republish_after_fork)
        })
    }
}

/// Withdraws the process context, and frees the publication, also if it fails. If the context is
/// not this publication's any more, or in a forked child without one, it only frees the
/// publication.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_unpublish(
    published: *mut otelctx_published,
    error: *mut otelctx_error,
) -> otelctx_result {
    let unpublish = || {
        if published.is_null() {
            return Ok(());
        }
        // SAFETY: C passes a handle that is not freed yet (otelctx.h).
        let published = unsafe { Box::from_raw(published) };
        let unpublished = published.guard.into_inner().unpublish();
        unpublished.map_err(|error| publish_failure(&error))
    };
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { reported(error, unpublish) }
}

#[cfg(test)]
mod tests {
    use super::{otelctx_published, otelctx_unpublish};
    use crate::call::caught;
    use crate::error::{Failure, INTERNAL, OK, failure};
    use otelctx::ProcessContext;
    use std::cell::UnsafeCell;
    use std::ptr;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_publication_can_be_used_after_a_panic() {
        let guard = UnsafeCell::new(
            ProcessContext::new()
                .with_service_name("a")
                .publish()
                .unwrap(),
        );
        let published = Box::into_raw(Box::new(otelctx_published {
            user: AtomicU32::new(0),
            guard,
        }));
        // SAFETY: it is freed at the end.
        unsafe {
            let with = |f: fn(&mut otelctx::Published) -> Result<(), otelctx::PublishError>| {
                let failed: Result<(), Failure> = Err(failure(INTERNAL));
                caught(failed, || otelctx_published::with(published, f))
            };
            assert_eq!(with(|_| panic!("on purpose")), Err(failure(INTERNAL)));
            assert_eq!(with(|_| Ok(())), Ok(()));
            assert_eq!(otelctx_unpublish(published, ptr::null_mut()), OK);
        }
    }
}
