//! Stacks as text and as JSON.

use std::fmt::Write;

use otelctx_profile::Function;
use otelctx_reader::sample::{Frame, NamedFrame};
use otelctx_unwind::StackEnd;
use serde::Serialize;
use serde::ser::Serializer;

use super::Stack;
use super::names::Named;
use crate::command::dump::report::{Report, ThreadReport};
use crate::output::json::OrError;
use crate::output::terminal::escape;

/// Why a stack is incomplete.
fn reason(stack: &Stack) -> Option<String> {
    match &stack.end {
        StackEnd::Start => None,
        _ if stack.needs_stop() => Some(
            "its unwind tables need a register that is only known while the thread is stopped \
             (--stop-sleeping)"
                .into(),
        ),
        end => Some(end.to_string()),
    }
}

/// The stacks of all threads.
pub(in crate::command::dump) fn lines(report: &Report) -> String {
    let mut text = String::new();
    for thread in &report.reports {
        let Some(stack) = &thread.stack else {
            continue;
        };
        let tid = thread.tid;
        let name = thread.name.as_ref().map(|name| name.to_string_lossy());
        let name = name.map_or(String::new(), |name| format!(" of {}", escape(&name)));
        match stack {
            Ok(stack) => {
                let _ = write!(text, "\n  thread {tid}  stack{name}\n");
                let (frames, is_whole) = stack.mixed(&thread.runtimes, &report.named);
                for frame in frames {
                    match &frame {
                        Frame::Named(frame) => add_named(&mut text, frame),
                        Frame::Native { address, .. } => {
                            let lookup = frame.lookup_address().unwrap_or(*address);
                            add_frame(&mut text, *address, lookup, &report.named);
                        }
                    }
                }
                if let Some(reason) = reason(stack).filter(|_| !is_whole) {
                    let _ = writeln!(text, "    incomplete: {}", escape(&reason));
                }
                if stack.lacks_frames(&thread.runtimes) {
                    text += "    native frames alone: the thread ran before its runtime was read (--no-stop)\n";
                }
            }
            Err(error) => {
                let error = escape(error);
                let _ = write!(
                    text,
                    "\n  thread {tid}  stack{name} can't be read: {error}\n"
                );
            }
        }
    }
    text
}

/// A line for each function of a frame: those inlined at its address, then the one they are part of.
fn add_frame(text: &mut String, address: u64, lookup: u64, named: &Named) {
    let functions = named.functions(lookup);
    let module = named.module(lookup);
    let Some((_, inlined)) = functions.split_last() else {
        let _ = match module {
            Some((path, offset)) => writeln!(text, "    {}+{offset:#x}", escape(file_name(path))),
            None if named.is_anonymous(lookup) => writeln!(text, "    {address:#x} ([anon])"),
            None => writeln!(text, "    {address:#x}"),
        };
        return;
    };
    for (index, function) in functions.iter().enumerate() {
        let place = match (function.file.as_str(), function.line, module) {
            ("", _, Some((path, _))) => format!(" ({})", file_name(path)),
            ("", ..) => String::new(),
            (file, 0, _) => format!(" ({file})"),
            (file, line, _) => format!(" ({file}:{line})"),
        };
        let inlined = if index < inlined.len() {
            " inlined"
        } else {
            ""
        };
        let (name, place) = (escape(&function.name), escape(&place));
        let _ = writeln!(text, "    {name}{place}{inlined}");
    }
}

/// A line for a frame that a runtime has named.
fn add_named(text: &mut String, frame: &NamedFrame) {
    let place = match (frame.file.as_str(), frame.line) {
        ("", _) => String::new(),
        (file, 0) => format!(" ({file})"),
        (file, line) => format!(" ({file}:{line})"),
    };
    let _ = writeln!(text, "    {}{}", escape(frame.name()), escape(&place));
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A thread's stack in JSON (docs/json.md).
#[derive(Serialize)]
pub(in crate::command::dump) struct StackJson<'r> {
    #[serde(serialize_with = "serialize_frames")]
    frames: (Vec<Frame>, &'r Named),
    complete: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    native_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<String>,
}

impl<'r> StackJson<'r> {
    pub(in crate::command::dump) fn of(
        report: &'r Report,
        thread: &'r ThreadReport,
        stack: &'r super::ThreadStack,
    ) -> OrError<Self> {
        match stack {
            Ok(stack) => {
                let (frames, is_whole) = stack.mixed(&thread.runtimes, &report.named);
                let end = reason(stack).filter(|_| !is_whole);
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

/// The frames, converted one by one as they are written.
fn serialize_frames<S: Serializer>(
    (frames, named): &(Vec<Frame>, &Named),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(frames.iter().flat_map(|frame| FrameJson::of(frame, named)))
}

#[derive(Default, Serialize)]
struct FrameJson<'r> {
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
            file: function
                .map(|it| it.file.as_str())
                .filter(|it| !it.is_empty()),
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
