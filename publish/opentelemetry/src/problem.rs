//! Problems that prevent contexts from being published.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use otelctx::{is_exported, KeyError, NotExported, PublishError};

/// The reason why contexts are not published, or not everything that was asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The program has not called [`install`](crate::install) and [`build`](crate::Install::build).
    NotInstalled,
    /// Another library has set OpenTelemetry's only context observer. No thread contexts are
    /// published. OpenTelemetry does not say which library it is.
    OtherObserver,
    /// The builder that was passed to [`install`](crate::install) already had a sampler or an ID
    /// generator of its own. Only the IDs and flags of its spans are published.
    OwnSampler,
    /// An earlier [`install`](crate::install) was without this one's
    /// [`baggage`](crate::Install::with_baggage), [`span_name`](crate::Install::with_span_name) or
    /// [`local_root_span_id`](crate::Install::with_local_root_span_id). The options of the first
    /// apply to all providers.
    OtherOptions,
    /// An attribute cannot be published.
    Key(KeyError),
    /// The process context was not published.
    ProcessContext(PublishError),
    /// The executable does not export the variable by which readers find thread contexts.
    NotExported(NotExported),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => f.write_str(
                "otelctx_opentelemetry is not installed: build the tracer provider with \
                 otelctx_opentelemetry::install(...).build()",
            ),
            Self::OtherObserver => f.write_str(
                "thread contexts are not published: another library has set OpenTelemetry's \
                 context observer (GlobalContextObserver::set), and a process has only one; \
                 remove it, or install otelctx_opentelemetry first",
            ),
            Self::OwnSampler => f.write_str(
                "attributes of spans are not published: the builder has a sampler or an ID \
                 generator of its own; pass it to Install::with_sampler or Install::with_id_generator instead",
            ),
            Self::OtherOptions => f.write_str(
                "not everything that was asked for is published: an earlier install was without this one's \
                 baggage, span_name or local_root_span_id; give the first install the options of all",
            ),
            Self::Key(error) => write!(f, "an attribute is not published: {error}"),
            Self::ProcessContext(error) => error.fmt(f),
            Self::NotExported(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Problem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Key(error) => Some(error),
            Self::ProcessContext(error) => Some(error),
            Self::NotExported(error) => Some(error),
            _ => None,
        }
    }
}

enum State {
    NotInstalled,
    Installed,
    Failed(Problem),
}

static STATE: Mutex<State> = Mutex::new(State::NotInstalled);

/// Returns whether everything that was asked for is published: for a health check or at start-up.
///
/// # Errors
/// The first [`Problem`] since the program started. It was also reported as a warning, as
/// OpenTelemetry's SDK does (feature `internal-logs`), if `tracing` had a subscriber.
pub fn check() -> Result<(), Problem> {
    match &*STATE.lock().unwrap_or_else(PoisonError::into_inner) {
        State::NotInstalled => Err(Problem::NotInstalled),
        State::Failed(problem) => Err(problem.clone()),
        State::Installed => is_exported().map_err(Problem::NotExported),
    }
}

/// Notes that a provider was built.
pub(crate) fn installed() {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if matches!(*state, State::NotInstalled) {
        *state = State::Installed;
    }
    drop(state);
    if let Err(error) = is_exported() {
        warn(&Problem::NotExported(error));
    }
}

/// Reports a problem, and keeps the first one for [`check`].
pub(crate) fn report(problem: Problem) {
    warn(&problem);
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if !matches!(*state, State::Failed(_)) {
        *state = State::Failed(problem);
    }
}

fn warn(problem: &Problem) {
    let message = &*problem.to_string();
    opentelemetry::otel_warn!(name: "otelctx.Install", message = message);
}
