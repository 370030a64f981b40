//! Two providers of which the later one asks for something that the first did not.

use opentelemetry_sdk::trace::SdkTracerProvider;
use otelctx_opentelemetry::{check, install, Problem};

#[test]
fn options_that_the_first_provider_did_not_have_are_reported() {
    let builder = || install(SdkTracerProvider::builder(), ["http.route"]);
    let _first = builder()
        .with_baggage(["tenant"])
        .with_span_name("span.name")
        .build();
    let _same = builder().with_span_name("span.name").build();
    check().unwrap();
    let _other = builder().with_local_root_span_id("root").build();
    let problem = check().unwrap_err();
    assert!(matches!(problem, Problem::OtherOptions), "{problem}");
}
