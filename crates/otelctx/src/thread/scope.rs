//! Futures that attach a record whenever they are polled.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::attached::Attached;
use super::record::Record;
use super::shared::SharedRecord;

/// A future with a record: made by [`Record::in_scope`] and [`SharedRecord::in_scope`].
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct InScope<R, F> {
    record: R,
    future: F,
}

/// What [`InScope`] can attach.
pub trait Attach: private::Sealed {
    /// Attaches the record to the calling thread.
    fn attach_record(&self) -> Attached<'_>;
}

mod private {
    pub trait Sealed {}
    impl Sealed for &super::Record {}
    impl Sealed for super::SharedRecord {}
}

impl Attach for &Record {
    #[inline]
    fn attach_record(&self) -> Attached<'_> {
        self.attach()
    }
}

impl Attach for SharedRecord {
    #[inline]
    fn attach_record(&self) -> Attached<'_> {
        self.attach()
    }
}

impl<R, F> InScope<R, F> {
    pub(super) fn new(record: R, future: F) -> Self {
        Self { record, future }
    }
}

impl<R: Attach, F: Future> Future for InScope<R, F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is pinned whenever `self` is (there is no Drop, and Unpin is derived
        // from both fields); `record` is only borrowed.
        let (record, future) = unsafe {
            let this = self.get_unchecked_mut();
            (&this.record, Pin::new_unchecked(&mut this.future))
        };
        let _attached = record.attach_record();
        future.poll(context)
    }
}
