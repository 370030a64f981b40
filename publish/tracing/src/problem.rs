//! Problems that prevent spans from being published.

use std::fmt;
use std::sync::OnceLock;

use otelctx::{integration, is_exported, KeyError, NotExported};

/// The reason why spans are not published, or not all of their fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The process has no process context, without which readers read none of its threads.
    NotPublished,
    /// A field cannot be published.
    Key(KeyError),
    /// The executable does not export the variable by which readers find thread contexts.
    NotExported(NotExported),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPublished => f.write_str(
                "readers see no threads, because the process has no process context: publish one with \
                 otelctx::ProcessContext::detect().publish() before this check, and keep what that returns as \
                 long as the program runs (let _process = ..., not let _ = ...)",
            ),
            Self::Key(error) => write!(f, "a field is not published: {error}"),
            Self::NotExported(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Problem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Key(error) => Some(error),
            Self::NotExported(error) => Some(error),
            Self::NotPublished => None,
        }
    }
}

/// The first name that could not be registered.
static REFUSED: OnceLock<KeyError> = OnceLock::new();

pub(crate) fn refused(error: &KeyError) {
    let _ = REFUSED.set(error.clone());
}

/// Returns whether readers can see all fields that were passed to [`layer`](crate::layer): for a
/// health check, or a line at start-up.
///
/// # Errors
/// If the process has no process context, if a layer of this program could not register a name (the
/// first one), or if the executable does not export the variable.
pub fn check() -> Result<(), Problem> {
    if !integration::is_process_published() {
        return Err(Problem::NotPublished);
    }
    match REFUSED.get() {
        Some(error) => Err(Problem::Key(error.clone())),
        None => is_exported().map_err(Problem::NotExported),
    }
}
