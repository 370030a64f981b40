//! Futures that attach a record whenever they are polled.

use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{self, Poll};

use super::attached::Attached;
use super::context::Context;
use super::shared::{AttachedShared, SharedContext};

/// A future with a record, created by [`Context::in_scope`] and [`SharedContext::in_scope`].
///
/// The record is attached while the future is polled, and while it is dropped.
#[must_use = "futures do nothing unless polled"]
pub struct InScope<R: Attach, F> {
    record: R,
    future: ManuallyDrop<F>,
}

/// A record that [`InScope`] can attach: `&mut Context` or `SharedContext`.
pub trait Attach: private::Sealed {
    /// The guard.
    type Attached<'a>
    where
        Self: 'a;

    /// Attaches the record to the calling thread.
    fn attach(&mut self) -> Self::Attached<'_>;
}

mod private {
    pub trait Sealed {}
    impl Sealed for &mut super::Context {}
    impl Sealed for super::SharedContext {}
}

impl Attach for &mut Context {
    type Attached<'a>
        = Attached<'a>
    where
        Self: 'a;

    #[inline]
    fn attach(&mut self) -> Attached<'_> {
        Context::attach(self)
    }
}

impl Attach for SharedContext {
    type Attached<'a> = AttachedShared<'a>;

    #[inline]
    fn attach(&mut self) -> AttachedShared<'_> {
        SharedContext::attach(self)
    }
}

impl<R: Attach, F> InScope<R, F> {
    pub(super) fn new(record: R, future: F) -> Self {
        Self {
            record,
            future: ManuallyDrop::new(future),
        }
    }

    /// Returns the future without the record.
    pub fn into_inner(self) -> F {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so each field is moved out once.
        unsafe {
            std::ptr::drop_in_place(&raw mut this.record);
            ManuallyDrop::take(&mut this.future)
        }
    }
}

impl<R: Attach, F> Drop for InScope<R, F> {
    fn drop(&mut self) {
        let _attached = self.record.attach();
        // SAFETY: it is dropped only here; it does not move, so it may be pinned.
        unsafe { ManuallyDrop::drop(&mut self.future) };
    }
}

impl<R: Attach + fmt::Debug, F: fmt::Debug> fmt::Debug for InScope<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InScope")
            .field("record", &self.record)
            .field("future", &*self.future)
            .finish()
    }
}

impl<R: Attach, F: Future> Future for InScope<R, F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is pinned whenever `self` is (dropping does not move it, and Unpin is
        // derived from both fields); `record` is only borrowed.
        let (record, future) = unsafe {
            let this = self.get_unchecked_mut();
            (&mut this.record, Pin::new_unchecked(&mut *this.future))
        };
        let _attached = record.attach();
        future.poll(context)
    }
}
