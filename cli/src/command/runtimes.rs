//! The language runtimes of a process.

use otelctx_reader::runtime::Present;
use serde::Serialize;
use serde::ser::Serializer;

use crate::output::attributes::pairs;
use crate::output::json::{AttributeMap, OrError};
use crate::output::terminal::escape;

pub(super) struct RuntimesJson<'r>(pub(super) &'r [Present]);

impl Serialize for RuntimesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|present| {
            let value = match &present.process {
                Ok(process) => OrError::Value(AttributeMap(process.facts())),
                Err(error) => OrError::error(error),
            };
            (present.name, value)
        }))
    }
}

/// Formats a runtime on one line: its name and its facts, or why it cannot be read.
pub(super) fn sentence(present: &Present) -> String {
    let name = present.name;
    match &present.process {
        Ok(process) => {
            let facts = pairs(&process.facts()).join("  ");
            format!("{name} {facts}").trim_end().to_owned()
        }
        Err(error) => format!("{name} can't be read: {}", escape(&error.to_string())),
    }
}
