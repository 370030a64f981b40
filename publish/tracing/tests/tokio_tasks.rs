//! Tasks of tokio that are spawned without a span, with the feature `tokio` and `--cfg tokio_unstable`.

#![cfg(all(feature = "tokio", tokio_unstable))]

use std::time::Duration;

use otelctx::{SpanId, TraceId};
use tokio::task::yield_now;
use tracing::{info_span, Instrument};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn seen() -> Option<(TraceId, SpanId, Vec<(String, String)>)> {
    let context = otelctx::visible_to_readers()?;
    Some((context.trace_id, context.span_id, context.attributes))
}

#[test]
fn a_task_publishes_what_was_published_where_it_was_spawned() {
    let process = otelctx::ProcessContext::new()
        .with_service_name("test")
        .publish();
    let _process = process.unwrap();
    let layer = otelctx_tracing::layer(["http.route"]);
    tracing_subscriber::registry().with(layer).init();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(4).enable_time();
    let runtime = otelctx_tracing::inherit(&mut builder).build().unwrap();

    let task = |number: usize| async move {
        let route = format!("/{number}");
        let request = info_span!("request", http.route = route);
        let work = async move {
            let expected = seen();
            assert_eq!(expected.as_ref().unwrap().2[0].1, route);
            // Without a span.
            let spawned = tokio::spawn(async move {
                for round in 0..20 {
                    assert_eq!(seen(), expected);
                    match round % 5 {
                        0 => tokio::time::sleep(Duration::from_millis(1)).await,
                        _ => yield_now().await,
                    }
                    let late = info_span!(parent: None, "late", http.route = tracing::field::Empty);
                    late.in_scope(|| {
                        late.record("http.route", "/late");
                        assert_eq!(seen().unwrap().2[0].1, "/late");
                    });
                    assert_eq!(seen(), expected);
                    let own = info_span!(parent: None, "own");
                    own.in_scope(|| assert_ne!(seen().unwrap().0, expected.as_ref().unwrap().0));
                    assert_eq!(seen(), expected);
                    let below = tokio::spawn({
                        let expected = expected.clone();
                        async move { assert_eq!(seen(), expected) }
                    });
                    below.await.unwrap();
                }
            });
            spawned.await.unwrap();
        };
        work.instrument(request).await;
    };
    runtime.block_on(async {
        let tasks: Vec<_> = (0..64).map(|number| tokio::spawn(task(number))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        tokio::spawn(async { assert_eq!(seen(), None) })
            .await
            .unwrap();
    });
    assert_eq!(seen(), None);
}
