//! Publish the contexts of OpenTelemetry's SDK for profilers, debuggers and security agents.
//!
//! With one line, a program that already traces with [`opentelemetry`] also publishes which trace,
//! span and route each of its threads is working on ([OTEP 4947]), and its resource ([OTEP 4719]).
//! A tool that may read the program's memory, for example `otelctx top` or a profiler, sees them.
//!
//! ```
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use opentelemetry_sdk::Resource;
//!
//! let provider = otelctx_opentelemetry::install(SdkTracerProvider::builder(), ["http.route"])
//!     .with_resource(Resource::builder().with_service_name("shop").build())
//!     .build();
//! opentelemetry::global::set_tracer_provider(provider);
//! # otelctx_opentelemetry::check().unwrap();
//! ```
//!
//! # What is published
//!
//! - The trace ID, span ID and flags of the context that is attached to the thread
//!   ([`Context::attach`], [`FutureExt::with_context`], `tracing-opentelemetry`), of sampled and of
//!   dropped spans, of any tracer.
//! - The attributes that were named in [`install`], with the values that a span of this provider is
//!   *started* with. Child spans in this process inherit them. OpenTelemetry does not report an attribute that is
//!   set later: publish such a value with [`with_attribute`].
//! - The provider's resource, with the types of its values; a forked child publishes it again.
//! - On request: [the span's name](Install::with_span_name), [the local root span](Install::with_local_root_span_id), and
//!   [entries of the baggage](Install::with_baggage).
//!
//! Spans that no local span is the parent of also get the attribute `pyroscope.profile.id`, which
//! links a trace to its profile in Grafana; see [`Install::with_profile_id`].
//!
//! # How
//!
//! OpenTelemetry calls an observer whenever a context is attached or detached (feature
//! `experimental_context_observer`, from 0.33). A record of 28 bytes and the attributes is written
//! once for each context, and made current with a swap of one pointer. The attributes come from the
//! sampler, which sees those of every span: [`install`] wraps it. A process has one observer;
//! [`check`] tells if another one was first.
//!
//! # Costs
//!
//! 7 to 10 ns to attach and detach a context, and 32 to 36 ns for a span. Without
//! [`Install::with_resource`], the resource comes from a span processor, and OpenTelemetry
//! copies each span's data for each processor if there are several.
//!
//! [OTEP 4719]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md
//! [OTEP 4947]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md
//! [`Context::attach`]: opentelemetry::Context::attach
//! [`FutureExt::with_context`]: opentelemetry::trace::FutureExt::with_context

mod added;
mod ids;
mod install;
mod observer;
mod problem;
mod resource;
mod sampler;
mod started;
mod truncated;

pub use added::with_attribute;
pub use install::{install, Install};
pub use problem::{check, Problem};
pub use truncated::truncated;
