//! More names than a process can have.

use otelctx_tracing::Problem;
use tracing::info_span;
use tracing_subscriber::layer::SubscriberExt;

#[test]
fn names_and_values_without_room_are_reported() {
    let process = otelctx::ProcessContext::new()
        .with_service_name("test")
        .publish();
    let _process = process.unwrap();
    let names = (0..300).map(|number| format!("name-{number}"));
    let layer = otelctx_tracing::layer(["http.route".to_owned()].into_iter().chain(names));
    assert_eq!(layer.refused().len(), 301 - 256);
    let problem = otelctx_tracing::check().unwrap_err();
    assert!(matches!(problem, Problem::Key(_)), "{problem}");
    assert!(problem.to_string().contains("\"name-255\""), "{problem}");
    let before = otelctx_tracing::truncated();
    // A second layer in one subscriber has nothing to publish, and does no harm.
    let second = otelctx_tracing::layer(["user"]);
    let subscriber = tracing_subscriber::registry().with(layer).with(second);
    tracing::subscriber::with_default(subscriber, || {
        let long = "x".repeat(1000);
        info_span!("long", http.route = long).in_scope(|| {
            let attributes = otelctx::visible_to_readers().unwrap().attributes;
            assert_eq!(attributes, [("http.route".to_owned(), "x".repeat(255))]);
        });
        info_span!("short", http.route = "/", user = "u").in_scope(|| {
            let attributes = otelctx::visible_to_readers().unwrap().attributes;
            assert_eq!(attributes, [("http.route".to_owned(), "/".to_owned())]);
        });
    });
    assert_eq!(otelctx_tracing::truncated(), before + 1);
    assert_eq!(otelctx::visible_to_readers(), None);
}
