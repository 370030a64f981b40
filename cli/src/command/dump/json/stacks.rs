//! Stacks as JSON.

use otelctx_profile::Function;
use otelctx_reader::sample::{Frame, NamedFrame};
use serde::Serialize;
use serde::ser::Serializer;

use super::super::model::{Report, ThreadReport};
use super::super::stack::{Named, ThreadStack};
use crate::output::json::OrError;

/// A thread's stack in JSON (docs/json.md).
#[derive(Serialize)]
pub(super) struct StackJson<'r> {
    #[serde(serialize_with = "serialize_frames")]
    frames: (Vec<Frame>, &'r Named),
    complete: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    native_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<String>,
}

impl<'r> StackJson<'r> {
    pub(super) fn of(
        report: &'r Report,
        thread: &'r ThreadReport,
        stack: &'r ThreadStack,
    ) -> OrError<Self> {
        match stack {
            Ok(stack) => {
                let (frames, is_whole) = stack.mixed(&thread.runtimes, &report.named);
                let end = stack.why_incomplete().filter(|_| !is_whole);
                OrError::Value(Self {
                    frames: (frames, &report.named),
                    complete: end.is_none(),
                    native_only: stack.lacks_frames(&thread.runtimes),
                    end,
                })
            }
            Err(error) => OrError::error(error),
        }
    }
}

/// Serializes the frames, converting them one by one.
fn serialize_frames<S: Serializer>(
    (frames, named): &(Vec<Frame>, &Named),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(frames.iter().flat_map(|frame| FrameJson::of(frame, named)))
}

#[derive(Default, Serialize)]
pub(super) struct FrameJson<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qualname: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inlined: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<&'static str>,
}

impl<'r> FrameJson<'r> {
    fn of(frame: &'r Frame, named: &'r Named) -> Vec<Self> {
        match frame {
            Frame::Named(frame) => vec![Self::of_named(frame)],
            Frame::Native { address, .. } => {
                let lookup = frame.lookup_address().unwrap_or(*address);
                Self::of_native(*address, lookup, named).collect()
            }
        }
    }

    /// Converts a frame of a thread's runtime, beside the runtime's name.
    pub(super) fn of_runtime(frame: &'r NamedFrame) -> Self {
        Self {
            runtime: None,
            ..Self::of_named(frame)
        }
    }

    fn of_named(frame: &'r NamedFrame) -> Self {
        let text = |text: &'r str| (!text.is_empty()).then_some(text);
        Self {
            function: Some(&frame.function),
            qualname: text(&frame.qualified_name),
            file: text(&frame.file),
            line: (frame.line > 0).then_some(frame.line),
            runtime: Some(frame.kind.name()),
            ..Self::default()
        }
    }

    fn of_native(address: u64, lookup: u64, named: &'r Named) -> impl Iterator<Item = Self> {
        let functions = named.functions(lookup);
        let module = named.module(lookup);
        // The return address, as in `address`.
        let skipped = address.wrapping_sub(lookup);
        let callee = functions.len().saturating_sub(1);
        let one = move |index: usize, function: Option<&'r Function>| Self {
            function: function.map(|it| it.name.as_str()),
            file: (function.map(|it| it.file.as_str())).filter(|it| !it.is_empty()),
            line: function.map(|it| it.line).filter(|line| *line > 0),
            inlined: index < callee,
            module: module.map(|(path, _)| path),
            offset: module.map(|(_, offset)| format!("{:#x}", offset.wrapping_add(skipped))),
            address: Some(format!("{address:#x}")),
            ..Self::default()
        };
        let none = functions.is_empty().then(|| one(0, None));
        let all = functions.iter().enumerate();
        none.into_iter()
            .chain(all.map(move |(index, function)| one(index, Some(function))))
    }
}
