//! For the project's own crates. Of the crates that publish the contexts of other libraries, one owns the
//! thread's context.

use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::call::caught;

static OBSERVED: AtomicBool = AtomicBool::new(false);

/// Says that `otelctx-opentelemetry` publishes each context that OpenTelemetry attaches.
pub fn set_observed() {
    OBSERVED.store(true, Ordering::Release);
}

/// Whether `otelctx-opentelemetry` publishes each context that OpenTelemetry attaches.
#[inline]
#[must_use]
pub fn is_observed() -> bool {
    OBSERVED.load(Ordering::Acquire)
}
