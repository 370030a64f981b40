//! A program that publishes no process context, or not any longer.

use otelctx::ProcessContext;
use otelctx_tracing::{check, Problem};

#[test]
fn a_process_without_a_context_is_reported() {
    let _layer = otelctx_tracing::layer(["http.route"]);
    let problem = check().unwrap_err();
    assert!(matches!(problem, Problem::NotPublished), "{problem}");
    assert_eq!(
        problem.to_string(),
        "readers see no threads, because the process has no process context: publish one with \
         otelctx::ProcessContext::detect().publish() before this check, and keep what that returns as long as the \
         program runs (let _process = ..., not let _ = ...)"
    );
    let process = ProcessContext::new().with_service_name("test").publish();
    check().unwrap();
    drop(process);
    assert!(matches!(check(), Err(Problem::NotPublished)));
}
