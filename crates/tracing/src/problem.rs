//! What prevents spans from being published.

use std::fmt;
use std::sync::OnceLock;

use otelctx::{is_exported, KeyError, NotExported};

/// Why spans are not published, or not all of their fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// A field cannot be published.
    Key(KeyError),
    /// The executable does not export the variable by which readers find thread contexts.
    NotExported(NotExported),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
        }
    }
}

/// The first name that could not be registered.
static REFUSED: OnceLock<KeyError> = OnceLock::new();

pub(crate) fn refused(error: &KeyError) {
    let _ = REFUSED.set(error.clone());
}

/// Whether readers can see all fields that were passed to [`layer`](crate::layer): for a health check, or a line at
/// start-up.
///
/// # Errors
/// The first name that a layer of this program could not register, or that the executable does not export the
/// variable.
pub fn check() -> Result<(), Problem> {
    match REFUSED.get() {
        Some(error) => Err(Problem::Key(error.clone())),
        None => is_exported().map_err(Problem::NotExported),
    }
}
