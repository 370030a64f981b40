//! Publish the spans of `tracing` for profilers, debuggers and security agents.
//!
//! With one line, a program that is instrumented with `tracing` publishes which trace, span and
//! route each of its threads is working on ([OTEP 4947]):
//!
//! ```
//! use tracing_subscriber::layer::SubscriberExt;
//! use tracing_subscriber::util::SubscriberInitExt;
//!
//! let _process = otelctx::ProcessContext::detect().with_service_name("shop").publish()?;
//! tracing_subscriber::registry()
//!     // .with(tracing_opentelemetry::layer()...)
//!     .with(otelctx_tracing::layer(["http.route"]))
//!     .init();
//! otelctx_tracing::check()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is published
//!
//! - The span that is entered on the thread. Spans may be entered several times, on several threads, and
//!   exited in any order.
//! - Its IDs. With a feature such as `opentelemetry_0_33`, they are those of OpenTelemetry's current context:
//!   add this layer after `tracing-opentelemetry`'s, which attaches it from 0.32 on; before, they are those of its
//!   data for the span, whose flags are the parent's until the sampler decides. A span without one, because
//!   OpenTelemetry does not know it or `with_context_activation(false)` was set, has no IDs, but its
//!   attributes. Without a feature, the layer generates IDs: a trace for each span without parent.
//! - The fields that are named in [`layer`], also when they are recorded late. Child spans inherit them.
//!
//! A span that a filter disables for this layer publishes nothing: what its parent publishes stays.
//!
//! # Tasks of tokio
//!
//! A task that is spawned without a span publishes nothing. With the feature `tokio`, and
//! `RUSTFLAGS="--cfg tokio_unstable"`, `inherit(&mut builder)` makes the tasks of a runtime publish
//! what the thread that spawns them is working on.
//!
//! # With `otelctx-opentelemetry`
//!
//! That crate is cheaper, and needs OpenTelemetry 0.33. If both are installed, it publishes the
//! contexts, and this layer adds fields that were recorded late. The layer needs the feature
//! `opentelemetry_0_33` for that.
//!
//! [OTEP 4947]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md

mod fields;
mod ids;
#[cfg(all(feature = "tokio", tokio_unstable))]
mod inherit;
mod layer;
mod problem;
mod stack;

#[cfg(all(feature = "tokio", tokio_unstable))]
pub use inherit::inherit;
pub use layer::{layer, truncated, ContextLayer};
pub use problem::{check, Problem};
