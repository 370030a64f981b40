//! This project's side.

use std::hint::black_box;

use otelctx::{Key, ProcessContext, Record, SpanId, TraceFlags, thread_record};

use super::input::INPUT;

// In the order that libdatadog's key map has: its local root comes first, always.
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

/// Publishes the process context, which the keys of attributes need.
pub(crate) fn set_up() {
    let published = ProcessContext::new()
        .service_name("bench")
        .publish()
        .expect("a process context can be published here");
    std::mem::forget(published);
    for key in [&LOCAL_ROOT, &ROUTE, &USER] {
        key.register().expect("there is room for three keys");
    }
}

fn attach_detach(count: u64) {
    let mut record = Record::new(INPUT.trace_id, INPUT.span_id).sampled(true);
    for _ in 0..count {
        let record = black_box(&mut record);
        drop(record.attach());
    }
}

fn update(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        thread_record().set(input.trace_id, input.span_id, TraceFlags(input.flags));
    }
    thread_record().detach();
}

fn update_local_root(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let flags = TraceFlags(input.flags);
        thread_record().set_with(input.trace_id, input.span_id, flags, |attributes| {
            attributes.add_span_id(&LOCAL_ROOT, SpanId::from_bytes(input.local_root));
        });
    }
    thread_record().detach();
}

fn update_attributes(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let flags = TraceFlags(input.flags);
        thread_record().set_with(input.trace_id, input.span_id, flags, |attributes| {
            attributes.add(&ROUTE, input.route);
            attributes.add(&USER, input.user);
        });
    }
    thread_record().detach();
}

fn update_all(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let flags = TraceFlags(input.flags);
        thread_record().set_with(input.trace_id, input.span_id, flags, |attributes| {
            attributes.add_span_id(&LOCAL_ROOT, SpanId::from_bytes(input.local_root));
            attributes.add(&ROUTE, input.route);
            attributes.add(&USER, input.user);
        });
    }
    thread_record().detach();
}

fn build(count: u64) {
    for _ in 0..count {
        let input = black_box(&INPUT);
        let mut record = Record::new(input.trace_id, input.span_id)
            .flags(TraceFlags(input.flags))
            .with(&ROUTE, input.route)
            .with(&USER, input.user);
        drop(record.attach());
    }
}
