//! What contexts of Node.js lack, and how a program gets it: its OpenTelemetry says neither.

use otelctx_profile::sample::{Catalog, ThreadId};

use super::filter::ROUTE;
use crate::output::attributes::language;

/// Samples of Node.js processes that publish contexts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeContexts {
    with_route: u64,
    without_route: u64,
    detached: u64,
}

impl NodeContexts {
    /// Adds samples of a thread. `context` says whether a context was attached, and whether it has a route.
    pub(crate) fn add(
        &mut self,
        catalog: &Catalog,
        thread: ThreadId,
        context: Option<bool>,
        samples: u64,
    ) {
        let process = catalog.thread_facts(thread).process;
        if language(&catalog.process(process).resource) != Some("nodejs") {
            return;
        }
        *match context {
            Some(true) => &mut self.with_route,
            Some(false) => &mut self.without_route,
            None => &mut self.detached,
        } += samples;
    }

    /// Returns the hint, if no sample has a context, or none of them a route.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self {
                with_route: 0,
                without_route: 0,
                detached: 1..,
            } => Some(
                "Node.js: no sample has a context; it had no request, or OpenTelemetry creates no spans \
                 because it has no exporter, as with OTEL_TRACES_EXPORTER=none",
            ),
            Self {
                with_route: 0,
                without_route: 1..,
                ..
            } => Some(
                "Node.js: no context has http.route; a program of ES modules needs \
                 --experimental-loader=@opentelemetry/instrumentation/hook.mjs",
            ),
            _ => None,
        }
    }
}

/// Whether a context with these attributes has a route.
pub(crate) fn has_route(attributes: &[(String, String)]) -> bool {
    attributes.iter().any(|(name, _)| name == ROUTE)
}
