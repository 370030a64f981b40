//! Partial answers: only some threads of a process were read.

use otelctx_reader::sweep::{Partial, PartialReason};
use serde::{Deserialize, Serialize};

use crate::error::MORE_TIME;
use crate::output::text::grouped;

/// Says how many threads were read, and why not more.
pub(super) fn sentence(partial: &Partial) -> String {
    let (read, of) = (grouped(partial.read), grouped(partial.of));
    format!("{read} of {of} threads: {}", partial.why)
}

/// Says how to read the rest.
pub(super) fn hint(partial: &Partial) -> Option<&'static str> {
    match partial.why {
        PartialReason::Deadline(_) | PartialReason::Modules(_) => Some(MORE_TIME),
        _ => None,
    }
}

/// The same as JSON (docs/json.md).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartialJson {
    pub(super) read: usize,
    pub(super) of: usize,
    pub(super) text: String,
}

impl PartialJson {
    pub(super) fn of(partial: &Partial) -> Self {
        Self {
            read: partial.read,
            of: partial.of,
            text: sentence(partial),
        }
    }
}
