//! Futures that carry a record with them.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::{self, Poll, Wake, Waker};
use std::thread;

use common::{attached, number};
use otelctx::Context;

struct NoWake;
impl Wake for NoWake {
    fn wake(self: Arc<Self>) {}
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::new(NoWake));
    future.poll(&mut task::Context::from_waker(&waker))
}

fn yield_once() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |_| match std::mem::replace(&mut yielded, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    })
}

fn record(number: u8) -> Context {
    Context::new([number; 16], [number; 8]).unwrap()
}

#[test]
fn a_record_is_attached_whenever_its_future_is_polled() {
    let (mut outer, mut inner) = (record(1), record(2));
    let mut other = record(3);
    let mut future = pin!(outer.in_scope(async {
        assert_eq!(number(), Some(1));
        inner
            .in_scope(async {
                assert_eq!(number(), Some(2));
                yield_once().await;
                assert_eq!(number(), Some(2));
            })
            .await;
        assert_eq!(number(), Some(1));
        7
    }));
    assert!(poll(future.as_mut()).is_pending());
    assert!(attached().is_null());
    let guard = other.attach();
    assert_eq!(poll(future), Poll::Ready(7));
    assert_eq!(number(), Some(3));
    drop(guard);
}

#[test]
fn a_record_is_attached_while_its_future_is_dropped() {
    struct OnDrop(u8);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            assert_eq!(number(), Some(self.0));
        }
    }
    let holding = |number| async move {
        let _on_drop = OnDrop(number);
        std::future::pending::<()>().await;
    };
    let mut own = record(1);
    let mut future = Box::pin(own.in_scope(holding(1)));
    assert!(poll(future.as_mut()).is_pending());
    drop(future);
    assert!(attached().is_null());
    let shared = record(2).share();
    let mut future = Box::pin(shared.in_scope(holding(2)));
    drop(shared);
    assert!(poll(future.as_mut()).is_pending());
    thread::spawn(move || {
        drop(future);
        assert!(attached().is_null());
    })
    .join()
    .unwrap();
}

#[test]
fn the_future_can_be_had_back_without_its_record() {
    struct Detached;
    impl Drop for Detached {
        fn drop(&mut self) {
            assert!(attached().is_null());
        }
    }
    let detached = Detached;
    let future = record(1).share().in_scope(async move {
        assert!(attached().is_null());
        drop(detached);
        5
    });
    assert_eq!(poll(pin!(future.into_inner())), Poll::Ready(5));
}

#[test]
fn a_future_with_a_shared_record_moves_between_threads() {
    let shared = record(1).share();
    let nested = shared.clone();
    let mut future: Pin<Box<dyn Future<Output = thread::ThreadId> + Send>> =
        Box::pin(shared.in_scope(async move {
            for _ in 0..100 {
                assert_eq!(number(), Some(1));
                // The same record once more, inside.
                nested.in_scope(yield_once()).await;
            }
            thread::current().id()
        }));
    drop(shared);
    for _ in 0..50 {
        future = thread::spawn(move || {
            assert!(poll(future.as_mut()).is_pending());
            assert!(attached().is_null());
            future
        })
        .join()
        .unwrap();
        assert!(poll(future.as_mut()).is_pending());
        assert!(attached().is_null());
    }
    assert_eq!(poll(future.as_mut()), Poll::Ready(thread::current().id()));
}
