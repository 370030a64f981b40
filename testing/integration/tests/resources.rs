//! The resources of two providers of OpenTelemetry's SDK, as a reader finds them in the process context.

use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use otelctx_reader::ContextState;
use otelctx_reader::format::process_context::Value as Published;

/// An attribute of the process's own context.
fn published(name: &str) -> Option<Published> {
    let pid = i32::try_from(std::process::id()).unwrap();
    let mut process = otelctx_reader::Process::open(pid).unwrap();
    let ContextState::Published(context) = process.context().unwrap() else {
        panic!("it is published");
    };
    context.payload.resource_attribute(name).cloned()
}

fn install(resource: Resource) -> SdkTracerProvider {
    otelctx_opentelemetry::install(SdkTracerProvider::builder(), ["http.route"])
        .with_resource(resource)
        .build()
}

#[test]
fn resources_keep_their_types_and_a_later_one_is_added() {
    let text = |text: &str| Published::String(text.to_owned());
    let texts = ["a", "b"].map(StringValue::from).to_vec();
    let values = [
        ("whole", Value::from(-42), Published::Int(-42)),
        ("fraction", 0.5.into(), Published::Double(0.5)),
        ("truth", true.into(), Published::Bool(true)),
        (
            "texts",
            Value::Array(Array::String(texts)),
            Published::Array(vec![text("a"), text("b")]),
        ),
        (
            "wholes",
            Value::Array(Array::I64(vec![1, 2])),
            Published::Array(vec![Published::Int(1), Published::Int(2)]),
        ),
        (
            "fractions",
            Value::Array(Array::F64(vec![0.25])),
            Published::Array(vec![Published::Double(0.25)]),
        ),
        (
            "truths",
            Value::Array(Array::Bool(vec![true, false])),
            Published::Array(vec![Published::Bool(true), Published::Bool(false)]),
        ),
    ];
    let attributes = values
        .iter()
        .map(|(name, value, _)| KeyValue::new(*name, value.clone()));
    let first = Resource::builder_empty().with_service_name("shop");
    let _first = install(first.with_attributes(attributes).build());
    otelctx_opentelemetry::check().unwrap();
    let check_first = || {
        assert_eq!(published("service.name"), Some(text("shop")));
        for (name, _, expected) in &values[1..] {
            assert_eq!(published(name).as_ref(), Some(expected), "{name}");
        }
    };
    check_first();
    assert_eq!(published("whole"), Some(Published::Int(-42)));
    assert_eq!(published("other"), None);

    let second = [KeyValue::new("other", "yes"), KeyValue::new("whole", 7)];
    let _second = install(Resource::builder_empty().with_attributes(second).build());
    otelctx_opentelemetry::check().unwrap();
    check_first();
    assert_eq!(published("whole"), Some(Published::Int(7)));
    assert_eq!(published("other"), Some(text("yes")));
}
