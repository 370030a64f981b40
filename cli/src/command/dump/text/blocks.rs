//! Threads of language runtimes as text: a block for each thread, with its context and its frames.

use std::fmt::Write;

use otelctx_reader::Found;
use otelctx_reader::runtime::{RuntimeReading, RuntimeThread};
use otelctx_reader::sample::{FrameKind, GilState};

use super::super::model::{Report, Support, ThreadReport};
use super::runtimes::{add_frames, facts};
use super::{INVALID, context_cells, stacks, waits};
use crate::output::terminal::escape;

/// Facts about a runtime's structures, which are shown if the user asks for them.
const ADDRESSES: [&str; 3] = ["thread_state", "source", "candidates"];
/// Facts that [`state`] says in words.
const STATES: [&str; 2] = ["holds_gil", "attached"];

/// Returns true if a runtime has threads with an interpreter's state.
pub(super) fn are_wanted(report: &Report) -> bool {
    let mut readings = report.threads.iter().flat_map(|thread| &thread.runtimes);
    readings.any(|reading| {
        let has_state =
            |thread: &RuntimeThread| thread.facts.iter().any(|it| STATES.contains(&&*it.0));
        reading.thread.as_ref().is_ok_and(has_state)
    })
}

/// Formats all threads.
pub(super) fn threads(report: &Report, is_verbose: bool) -> String {
    let mut text = String::new();
    for thread in &report.threads {
        let name = thread.name.as_ref().map(|name| name.to_string_lossy());
        let _ = write!(text, "\n  thread {}", thread.tid);
        let mut words: Vec<String> = name.map(|name| escape(&name)).into_iter().collect();
        for reading in &thread.runtimes {
            words.extend(about(reading, thread, is_verbose));
        }
        words.extend(context(report, thread));
        for word in words.iter().filter(|word| !word.is_empty()) {
            let _ = write!(text, "  {word}");
        }
        text.push('\n');
        text += &waits::line(thread);
        let has_stack = matches!(thread.stack, Some(Ok(_)));
        stacks::add(&mut text, thread, &report.named);
        for reading in &thread.runtimes {
            add_reading(&mut text, reading, has_stack);
        }
    }
    text
}

/// Says what a runtime knows of a thread, apart from its frames.
fn about(reading: &RuntimeReading, thread: &ThreadReport, is_verbose: bool) -> Vec<String> {
    let Ok(known) = &reading.thread else {
        return Vec::new();
    };
    let mut words: Vec<String> = state(known, thread)
        .map(str::to_owned)
        .into_iter()
        .collect();
    let mut others = known.facts.clone();
    others.retain(|(name, _)| {
        let is_address = ADDRESSES.contains(&name.as_str());
        !STATES.contains(&name.as_str()) && (is_verbose || !is_address)
    });
    words.push(facts(&others).trim_start().to_owned());
    words
}

/// Says whether a thread may execute the interpreter. Only a native stack shows that it waits.
fn state(known: &RuntimeThread, thread: &ThreadReport) -> Option<&'static str> {
    let is = |name: &str| {
        use otelctx_reader::format::process_context::Value;
        let (_, value) = known.facts.iter().find(|(fact, _)| fact == name)?;
        Some(*value == Value::Bool(true))
    };
    match (is("holds_gil"), is("attached")) {
        (Some(true), _) => Some("GIL held"),
        (Some(false), _) => {
            let Some(gil) = &known.gil else {
                return Some("GIL not held");
            };
            let Some(Ok(stack)) = &thread.stack else {
                return Some("GIL not held");
            };
            match gil.state_in(&mut stack.native(), FrameKind::CPYTHON) {
                GilState::Waiting => Some("GIL waited for"),
                _ => Some("GIL released"),
            }
        }
        (None, Some(true)) => Some("attached"),
        (None, Some(false)) => Some("not attached"),
        (None, None) => None,
    }
}

/// The thread's context, if the process publishes any.
fn context(report: &Report, thread: &ThreadReport) -> Vec<String> {
    match &thread.context {
        Ok(Found::Attached(context)) => context_cells(context).into(),
        Ok(Found::Invalid) => vec![INVALID.to_owned()],
        Ok(_) if matches!(report.support(), Support::Unpublished) => Vec::new(),
        Ok(_) => vec!["none attached".to_owned()],
        Err(error) => vec![format!("unreadable: {}", escape(error))],
    }
}

/// Adds the frames of a thread, unless they are part of its native stack, or why there are none.
fn add_reading(text: &mut String, reading: &RuntimeReading, has_stack: bool) {
    let name = reading.name;
    let known = match &reading.thread {
        Ok(known) => known,
        Err(error) => {
            let error = escape(&error.to_string());
            let _ = writeln!(text, "    {name} can't be read: {error}");
            return;
        }
    };
    let is_shown = has_stack && !known.stack.interpreter.is_empty();
    if !is_shown {
        add_frames(text, known.stack.frames());
    }
    if known.stack.frames().next().is_none() {
        *text += if known.stack.is_truncated {
            "    its innermost function has just been called, or has returned: not known\n"
        } else {
            "    no function: it has not called any, or the last one has returned\n"
        };
    }
}
