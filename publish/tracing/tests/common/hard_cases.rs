// Spans that are not entered and exited one in another. The file that includes this has `install`, which publishes
// `http.route` and `user`, `seen`, and `expected_in`, what is to be seen in a span with these attributes.

use std::future::Future;
use std::sync::Barrier;
use std::task::Poll;

use tracing::field::Empty;
use tracing::{info_span, Instrument, Span};

#[test]
fn a_span_may_be_entered_twice_and_exited_in_any_order() {
    install();
    let first = info_span!("first", http.route = "/first");
    let second = info_span!("second", http.route = "/second");
    let in_first = expected_in(&first, &[("http.route", "/first")]);
    let in_second = expected_in(&second, &[("http.route", "/second")]);
    let outer = first.enter();
    let again = first.enter();
    let inner = second.enter();
    assert_eq!(seen(), in_second);
    drop(outer);
    assert_eq!(seen(), in_second);
    drop(inner);
    assert_eq!(seen(), in_first);
    drop(again);
    assert_eq!(seen(), None);
    let outer = first.enter();
    let inner = second.enter();
    drop(outer);
    assert_eq!(seen(), in_second);
    drop(inner);
    assert_eq!(seen(), None);
}

#[test]
fn a_span_may_be_entered_on_several_threads_recorded_on_one_and_closed_on_another() {
    install();
    let span = info_span!("shared", http.route = "/cart", user = Empty);
    let before = expected_in(&span, &[("http.route", "/cart")]);
    let after = expected_in(&span, &[("http.route", "/cart"), ("user", "u1")]);
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (clone, barrier, before, after) = (span.clone(), &barrier, &before, &after);
            scope.spawn(move || {
                let entered = clone.entered();
                assert_eq!(seen(), *before);
                barrier.wait();
                if number == 0 {
                    entered.record("user", "u1");
                    assert_eq!(seen(), *after);
                }
                barrier.wait();
                drop(info_span!("child").entered());
                // The others see it when they enter it again.
                let span = entered.exit();
                assert_eq!(seen(), None);
                span.in_scope(|| assert_eq!(seen(), *after));
            });
        }
        drop(span);
    });
}

#[test]
fn a_panic_exits_its_spans() {
    install();
    let result = std::panic::catch_unwind(|| {
        let _outer = info_span!("outer").entered();
        info_span!("inner").in_scope(|| panic!("as intended"));
    });
    assert!(result.is_err());
    assert_eq!(seen(), None);
}

#[test]
fn a_future_that_is_cancelled_leaves_nothing() {
    install();
    let span = info_span!("task", http.route = "/cart");
    let in_span = expected_in(&span, &[("http.route", "/cart")]);
    let waits = async {
        assert_eq!(seen(), in_span);
        std::future::poll_fn(|_| Poll::<()>::Pending).await;
    };
    let mut future = Box::pin(waits.instrument(span));
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    assert!(future.as_mut().poll(&mut context).is_pending());
    assert_eq!(seen(), None);
    drop(future);
    assert_eq!(seen(), None);
}
