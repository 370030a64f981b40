//! This project's side.

use std::hint::black_box;

use otelctx::{
    Context, Key, ProcessContext, Published, SharedContext, SpanId, TraceFlags, raw::swap_current,
    thread_context,
};

use super::input::INPUT;

// In the order of libdatadog's key map, whose first key is always the local root.
static LOCAL_ROOT: Key = Key::new("datadog.local_root_span_id");
static ROUTE: Key = Key::new("http.route");
static USER: Key = Key::new("user.id");

/// See `WORKS`.
pub(crate) static WORKS: [fn(u64); 6] = [
    attach_detach,
    update,
    update_local_root,
    update_attributes,
    update_all,
    build,
];

pub(crate) fn publish() -> Published {
    ProcessContext::new()
        .with_service_name("bench")
        .publish()
        .expect("a process context can be published here")
}

/// Publishes the process context, which the keys of attributes need.
pub(crate) fn set_up() -> Published {
    let published = publish();
    for key in [&LOCAL_ROOT, &ROUTE, &USER] {
        key.register().expect("there is room for three keys");
    }
    published
}

fn attach_detach(count: u64) {
    let mut record = Context::new(INPUT.trace_id, INPUT.span_id)
        .unwrap()
        .with_sampled(true);
    for _ in 0..count {
        let record = black_box(&mut record);
        drop(record.attach());
    }
}

fn update(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        thread_context()
            .set(input.trace_id, input.span_id, TraceFlags(input.flags))
            .unwrap();
    }
    thread_context().detach();
}

fn update_local_root(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let flags = TraceFlags(input.flags);
        thread_context()
            .set_with(input.trace_id, input.span_id, flags, |attributes| {
                attributes.append_span_id(&LOCAL_ROOT, SpanId::from_bytes(input.local_root));
            })
            .unwrap();
    }
    thread_context().detach();
}

fn update_attributes(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let flags = TraceFlags(input.flags);
        thread_context()
            .set_with(input.trace_id, input.span_id, flags, |attributes| {
                attributes.append(&ROUTE, input.route);
                attributes.append(&USER, input.user);
            })
            .unwrap();
    }
    thread_context().detach();
}

fn update_all(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let flags = TraceFlags(input.flags);
        thread_context()
            .set_with(input.trace_id, input.span_id, flags, |attributes| {
                attributes.append_span_id(&LOCAL_ROOT, SpanId::from_bytes(input.local_root));
                attributes.append(&ROUTE, input.route);
                attributes.append(&USER, input.user);
            })
            .unwrap();
    }
    thread_context().detach();
}

fn shared() -> SharedContext {
    let input = black_box(&INPUT);
    Context::new(input.trace_id, input.span_id)
        .unwrap()
        .with_flags(TraceFlags(input.flags))
        .with_attribute(&ROUTE, input.route)
        .with_attribute(&USER, input.user)
        .share()
}

/// The thread owns the record: it is swapped out, and in again.
#[allow(dead_code)]
pub(crate) fn swap_out_and_in(count: u64) {
    swap_current(Some(shared()));
    for _ in 0..count {
        let record = swap_current(None);
        swap_current(black_box(record));
    }
    swap_current(None);
}

/// With a guard that keeps the record alive.
#[allow(dead_code)]
pub(crate) fn attach_detach_shared(count: u64) {
    let record = shared();
    for _ in 0..count {
        drop(black_box(&record).attach());
    }
}

#[allow(dead_code)]
pub(crate) fn share_attach_drop(count: u64) {
    for _ in 0..count {
        let record = black_box(shared());
        drop(record.attach());
    }
}

fn build(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let mut record = Context::new(input.trace_id, input.span_id)
            .unwrap()
            .with_flags(TraceFlags(input.flags))
            .with_attribute(&ROUTE, input.route)
            .with_attribute(&USER, input.user);
        drop(record.attach());
    }
}
