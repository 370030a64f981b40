//! Futures that attach a record whenever they are polled.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::attached::Attached;
use super::record::Record;
use super::shared::{AttachedShared, SharedRecord};

/// A future with a record: made by [`Record::in_scope`] and [`SharedRecord::in_scope`].
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct InScope<R, F> {
    record: R,
    future: F,
}

/// What [`InScope`] attaches: `&mut Record` or `SharedRecord`.
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
    impl Sealed for &mut super::Record {}
    impl Sealed for super::SharedRecord {}
}

impl Attach for &mut Record {
    type Attached<'a>
        = Attached<'a>
    where
        Self: 'a;

    #[inline]
    fn attach(&mut self) -> Attached<'_> {
        Record::attach(self)
    }
}

impl Attach for SharedRecord {
    type Attached<'a> = AttachedShared<'a>;

    #[inline]
    fn attach(&mut self) -> AttachedShared<'_> {
        SharedRecord::attach(self)
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
            (&mut this.record, Pin::new_unchecked(&mut this.future))
        };
        let _attached = record.attach();
        future.poll(context)
    }
}
