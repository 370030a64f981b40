//! Publishes a process context and the contexts of three threads with the published crates of
//! another vendor, prints what it published, and waits until standard input ends.
//!
//! One fact per line, its words separated by tabs: `resource KEY VALUE`, `attribute KEY VALUE`,
//! `keys NAME…`, `thread TID TRACE SPAN FLAGS NAME=VALUE…`.

use std::io::Read;
use std::sync::{Arc, Barrier, Mutex};

use libdd_library_config::otel_process_ctx;
use libdd_library_config::tracer_metadata::{ThreadLocalMetadata, TracerMetadata};
use libdd_otel_thread_ctx::linux::OwnedThreadContext;
use libdd_trace_protobuf::opentelemetry::proto::common::v1::{KeyValue, any_value::Value};

/// The first key of libdatadog's key map.
const ROOT_KEY: &str = "datadog.local_root_span_id";

fn main() {
    let metadata = TracerMetadata {
        runtime_id: Some("0190b8c1-4e6a-7e2f-8f11-000000000001".into()),
        tracer_language: "rust".into(),
        tracer_version: "1.0.0".into(),
        hostname: "host-1".into(),
        service_name: Some("payments".into()),
        service_env: Some("test".into()),
        service_version: Some("3.2.1".into()),
        process_tags: Some("region:eu".into()),
        threadlocal_metadata: Some(ThreadLocalMetadata {
            attribute_keys: vec!["http.route".into(), "user".into()],
            schema_version: None,
            extra_attributes: vec![("layout".into(), Value::IntValue(-7))],
        }),
        ..TracerMetadata::default()
    };
    let context = metadata.to_otel_process_ctx();
    otel_process_ctx::publish(&context).expect("libdd publishes");
    for pair in context
        .resource
        .iter()
        .flat_map(|resource| &resource.attributes)
    {
        println!("resource\t{}\t{}", pair.key, text(pair));
    }
    for pair in &context.extra_attributes {
        println!("attribute\t{}\t{}", pair.key, text(pair));
    }
    println!("keys\t{ROOT_KEY}\thttp.route\tuser");

    let threads = 3;
    let ready = Arc::new(Barrier::new(threads + 1));
    let output = Arc::new(Mutex::new(()));
    for number in 1..=threads as u8 {
        let (ready, output) = (ready.clone(), output.clone());
        std::thread::spawn(move || {
            let (trace, span, root) = ([number; 16], [number + 16; 8], [number + 32; 8]);
            let user = format!("user-{number}");
            let attributes = [(1, "/pay"), (2, user.as_str())];
            OwnedThreadContext::new(trace, span, number, root, &attributes).attach();
            // SAFETY: gettid takes nothing and cannot fail.
            let tid = unsafe { libc::gettid() };
            let guard = output.lock().expect("no thread panics");
            println!(
                "thread\t{tid}\t{}\t{}\t{number}\t{ROOT_KEY}={}\thttp.route=/pay\tuser={user}",
                hex(&trace),
                hex(&span),
                hex(&root),
            );
            drop(guard);
            ready.wait();
            loop {
                std::thread::park();
            }
        });
    }
    ready.wait();
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A value in the words of [`otelctx_integration::words`].
fn text(pair: &KeyValue) -> String {
    fn words(value: Option<&Value>) -> String {
        match value {
            None => "empty".into(),
            Some(Value::StringValue(text)) => format!("{text:?}"),
            Some(Value::BoolValue(truth)) => truth.to_string(),
            Some(Value::IntValue(number)) => number.to_string(),
            Some(Value::DoubleValue(number)) => format!("{number:?}"),
            Some(Value::BytesValue(bytes)) => format!("{bytes:?}"),
            Some(Value::ArrayValue(list)) => {
                let items = list.values.iter().map(|item| words(item.value.as_ref()));
                format!("[{}]", items.collect::<Vec<_>>().join(", "))
            }
            Some(other) => format!("{other:?}"),
        }
    }
    words(pair.value.as_ref().and_then(|value| value.value.as_ref()))
}
