//! The language runtimes of a process.

use otelctx_reader::format::record::Context;
use otelctx_reader::runtime::{Present, RuntimeError};
use otelctx_reader::{Error, Found, StopReason, Thread};
use serde::Serialize;
use serde::ser::Serializer;

use crate::output::attributes::pairs;
use crate::output::json::{AttributeMap, OrError};
use crate::output::terminal::escape;

/// The runtimes of a process, by name.
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

/// A runtime on one line: its name and its facts, or why it cannot be read.
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

/// A thread of a process with runtimes.
pub(super) struct AllSources {
    pub(super) outcome: Result<Found<Context>, Error>,
    /// Why it was stopped.
    pub(super) stop: Option<StopReason>,
    /// Why a runtime could not be read, if no source has a context.
    pub(super) unreadable: Option<RuntimeError>,
}

impl AllSources {
    pub(super) fn read(thread: &Thread<'_>, present: &[Present]) -> Self {
        let state = match thread.state(present, None) {
            Ok(state) => state,
            Err(error) => {
                return Self {
                    outcome: Err(error),
                    stop: None,
                    unreadable: None,
                };
            }
        };
        let chosen = state.choose().ok();
        let is_attached = chosen
            .as_ref()
            .is_some_and(|chosen| chosen.context.attached().is_some());
        let mut errors = state.runtimes.into_iter().filter_map(|it| it.thread.err());
        Self {
            outcome: chosen.map_or(state.native, |chosen| Ok(chosen.context)),
            stop: state.stop,
            unreadable: errors.next().filter(|_| !is_attached),
        }
    }
}
