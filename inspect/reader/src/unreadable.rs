//! Reasons why threads have no readable contexts.

use std::ffi::OsString;
use std::fmt;

use otelctx_format::{KeyMapError, SYMBOL, Schema};
use otelctx_sample::{Found, ReadStep};

use crate::process_context::Broken;

/// The reason why the threads of a process have no readable contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreadable {
    /// The process publishes no process context.
    NoProcessContext,
    /// Its process context is unreadable.
    BrokenProcessContext(Broken),
    /// Its process context has no `threadlocal.schema_version`.
    NoSchema,
    /// Its process context announces another schema.
    UnsupportedSchema(Schema),
    /// The `threadlocal.attribute_key_map` in its process context is invalid.
    KeyMap(KeyMapError),
    /// No module defines the variable.
    NotFound {
        /// Modules that could not be read, with the reason.
        unreadable: Vec<(OsString, String)>,
    },
}

impl Unreadable {
    /// Converts the reason to the outcome of each thread.
    pub(crate) fn found<C>(&self) -> Found<C> {
        match self {
            Self::NoProcessContext | Self::NoSchema => Found::NotPublished,
            _ => Found::Unreadable(ReadStep::Access),
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcessContext => write!(f, "no process context"),
            Self::BrokenProcessContext(why) => write!(f, "broken process context: {why}"),
            Self::NoSchema => write!(
                f,
                "no schema: it does not publish {}",
                otelctx_format::SCHEMA_VERSION
            ),
            Self::UnsupportedSchema(schema) if schema.is_go_labels() => {
                write!(
                    f,
                    "contexts are labels of Go's profiler ({schema}), which are not read"
                )
            }
            Self::UnsupportedSchema(schema) => {
                write!(f, "unsupported schema {}", schema.as_str().escape_debug())
            }
            Self::KeyMap(error) => error.fmt(f),
            Self::NotFound { unreadable } if unreadable.is_empty() => write!(
                f,
                "{SYMBOL} is not exported by any module: the library that defines it may not be \
                 loaded yet"
            ),
            Self::NotFound { unreadable } => {
                let (module, reason) = &unreadable[0];
                write!(
                    f,
                    "{SYMBOL} was not found, and {} of the modules could not be read ({}: {})",
                    unreadable.len(),
                    module.to_string_lossy().escape_debug(),
                    reason.escape_debug()
                )
            }
        }
    }
}
