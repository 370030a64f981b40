//! Calls for the project's own crates. Of the crates that publish the contexts of other libraries,
//! one owns the thread's context.

use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::call::caught;
use crate::process_context::platform;

static OBSERVED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has a process context: without one, readers read no threads.
#[must_use]
pub fn is_process_published() -> bool {
    platform::is_published()
}

/// Says that `otelctx-opentelemetry` publishes each context that OpenTelemetry attaches.
pub fn set_observed() {
    OBSERVED.store(true, Ordering::Release);
}

/// Returns whether `otelctx-opentelemetry` publishes each context that OpenTelemetry attaches.
#[inline]
#[must_use]
pub fn is_observed() -> bool {
    OBSERVED.load(Ordering::Acquire)
}
