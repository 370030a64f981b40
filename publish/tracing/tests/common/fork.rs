// A process that forks in a span. The file that includes this has `install`.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tracing::info_span;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[test]
fn a_child_that_is_forked_in_a_span_goes_on_with_it() {
    let mut process = otelctx::ProcessContext::new()
        .with_service_name("test")
        .publish()
        .unwrap();
    process.republish_after_fork().unwrap();
    install();
    let request = info_span!("request", http.route = "/cart");
    let entered = request.enter();
    let expected = otelctx::visible_to_readers();
    // SAFETY: there is no thread that could have a lock, and the child ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            assert_eq!(otelctx::visible_to_readers(), expected);
            let step = info_span!("step", user = "child").entered();
            let (step_context, request_context) = (otelctx::visible_to_readers().unwrap(), expected.unwrap());
            assert_eq!(step_context.trace_id, request_context.trace_id);
            assert_ne!(step_context.span_id, request_context.span_id);
            let both = [("http.route", "/cart"), ("user", "child")];
            let both = both.map(|(key, value)| (key.to_owned(), value.to_owned()));
            assert_eq!(step_context.attributes, both);
            drop(step);
            drop(entered);
            assert_eq!(otelctx::visible_to_readers(), None);
        }));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the child is ours.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child failed");
    assert!(expected.is_some());
    assert_eq!(otelctx::visible_to_readers(), expected);
    drop(entered);
    assert_eq!(otelctx::visible_to_readers(), None);
}
