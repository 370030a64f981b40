//! The side of libdd-otel-thread-ctx, with default features, used as its documentation shows.
//!
//! Every record that it writes contains the local root span.

use std::hint::black_box;

use libdd_otel_thread_ctx::linux::OwnedThreadContext;

use super::input::INPUT;

/// See `WORKS`.
pub(crate) static WORKS: [fn(u64); 6] = [
    attach_detach,
    update,
    update,
    update_attributes,
    update_attributes,
    build,
];

fn attach_detach(count: u64) {
    let input = &INPUT;
    let mut record = OwnedThreadContext::new(
        input.trace_id,
        input.span_id,
        input.flags,
        input.local_root,
        &[],
    );
    for _ in 0..count {
        let previous = black_box(record).attach();
        let Some(detached) = OwnedThreadContext::detach() else {
            unreachable!("it was attached by the line above");
        };
        record = detached;
        // Nothing was attached before, so this frees nothing.
        drop(previous);
    }
}

fn update(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        OwnedThreadContext::update(
            input.trace_id,
            input.span_id,
            input.flags,
            input.local_root,
            &[],
        );
    }
    drop(OwnedThreadContext::detach());
}

fn update_attributes(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        OwnedThreadContext::update(
            input.trace_id,
            input.span_id,
            input.flags,
            input.local_root,
            &[(1, input.route), (2, input.user)],
        );
    }
    drop(OwnedThreadContext::detach());
}

/// Replacing drops the record attached in the previous round: one exchange per record, its cheapest
/// usage.
pub(crate) fn build(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let record = OwnedThreadContext::new(
            input.trace_id,
            input.span_id,
            input.flags,
            input.local_root,
            &[(1, input.route), (2, input.user)],
        );
        drop(record.attach());
    }
    drop(OwnedThreadContext::detach());
}
