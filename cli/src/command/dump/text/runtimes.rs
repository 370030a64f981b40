//! The readings of language runtimes, as text.

use std::fmt::Write as _;
use std::io;

use otelctx_reader::Found;
use otelctx_reader::format::process_context::Attributes;
use otelctx_reader::format::record::DecodedContext;
use otelctx_reader::runtime::Task;
use otelctx_reader::sample::{FrameKind, NamedFrame};

use super::super::model::Report;
use super::context_cells;
use crate::command::runtimes::sentence;
use crate::output::attributes::{pairs, string};
use crate::output::terminal::{Terminal, escape};
use crate::output::text::count;

/// Formats the runtimes of a process, one per line, and the number of threads with contradictory
/// contexts.
pub(super) fn head(report: &Report, terminal: &Terminal) -> String {
    let mut text = String::new();
    for present in &*report.swept.runtimes {
        text += &terminal.sentence("  runtime   ", &sentence(present));
    }
    match report.conflicts() {
        0 => text,
        conflicts => text + &terminal.sentence("  conflict  ", &conflict(conflicts)),
    }
}

/// Says that this number of threads have sources with contradictory contexts.
fn conflict(threads: usize) -> String {
    format!(
        "{} contexts from several sources with different IDs; the native record is shown",
        count(threads, "thread has", "threads have")
    )
}

/// Formats the frames of each thread that a runtime knows, unless they are part of its stack.
pub(super) fn threads(report: &Report) -> String {
    let mut text = String::new();
    for thread in &report.threads {
        for reading in &thread.runtimes {
            let (tid, name) = (thread.tid, reading.name);
            match &reading.thread {
                // Its context is all that the runtime knows.
                Ok(known) if known.facts.is_empty() && known.stack.calls.is_empty() => {}
                Ok(known) => {
                    let (meaning, facts) = (meaning(&known.facts), facts(&known.facts));
                    let _ = write!(text, "\n  thread {tid}  {name}{facts}{meaning}\n");
                    let is_in_stack = !known.stack.interpreter.is_empty();
                    if !(is_in_stack && matches!(thread.stack, Some(Ok(_)))) {
                        add_frames(&mut text, known.stack.frames());
                    }
                    if known.stack.is_truncated {
                        text += "    and more\n";
                    }
                }
                Err(error) => {
                    let error = escape(&error.to_string());
                    let _ = write!(text, "\n  thread {tid}  {name} can't be read: {error}\n");
                }
            }
        }
    }
    text
}

/// Writes each task, with its context.
pub(super) fn write_tasks(report: &Report, out: &mut dyn io::Write) -> io::Result<()> {
    for reading in &report.swept.tasks {
        let name = reading.name;
        let tasks = match &reading.tasks {
            Ok(tasks) => tasks,
            Err(error) => {
                let error = escape(&error.to_string());
                write!(out, "\n  tasks of {name} can't be read: {error}\n")?;
                continue;
            }
        };
        for task in tasks {
            out.write_all(of_task(task, name).as_bytes())?;
        }
        if tasks.is_empty() {
            write!(out, "\n  no tasks of {name}\n")?;
        }
        if let Some(missing) = &reading.missing {
            let missing = escape(&missing.to_string());
            write!(out, "\n  other tasks of {name} can't be read: {missing}\n")?;
        }
        if reading.is_truncated {
            write!(out, "\n  and more tasks of {name}\n")?;
        }
    }
    Ok(())
}

fn of_task(task: &Task, name: &str) -> String {
    let (context, facts) = (context(&task.context), facts(&task.facts));
    let mut text = format!("\n  task {}  {name}{facts}  {context}\n", task.id);
    let mut frames = task.frames.iter();
    add_frames(&mut text, frames.clone());
    let is_marked = frames.any(|it| it.kind == FrameKind::ABORT_MARKER);
    if task.is_truncated && !is_marked {
        text += "    and more\n";
    }
    text
}

pub(super) fn facts(facts: &Attributes) -> String {
    let facts = pairs(facts);
    facts.iter().map(|fact| format!("  {fact}")).collect()
}

/// Says in words why JavaScript has no context, with `  (` before it.
fn meaning(facts: &Attributes) -> &'static str {
    match string(facts, "state") {
        Some("no_frame") => "  (its call has no asynchronous context)",
        Some("not_in_frame") => "  (its call's asynchronous context has none of the publisher)",
        Some("detached") => "  (the context was left)",
        Some("torn_down") => "  (the publisher has freed the record)",
        Some("invalid") => "  (its span has ended, or the record was being changed)",
        _ => "",
    }
}

fn context(found: &Found<DecodedContext>) -> String {
    match found.attached() {
        Some(context) => context_cells(context).join("  "),
        None if matches!(found, Found::Unreadable(_)) => "unreadable".to_owned(),
        None => "none attached".to_owned(),
    }
}

pub(super) fn add_frames<'f>(text: &mut String, frames: impl Iterator<Item = &'f NamedFrame>) {
    for frame in frames {
        let place = match (frame.file.as_str(), frame.line) {
            ("", _) => String::new(),
            (file, 0) => format!("  {file}"),
            (file, line) => format!("  {file}:{line}"),
        };
        let _ = writeln!(text, "    {}{}", escape(frame.name()), escape(&place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_javascript_is_said_in_words() {
        let of = |name: &str, value: &str| meaning(&vec![(name.into(), value.into())]);
        assert_eq!(
            of("state", "no_frame"),
            "  (its call has no asynchronous context)"
        );
        // Of Python's thread states, and of a later version's.
        assert_eq!([of("thread_state", "0x7f"), of("state", "other")], [""; 2]);
    }

    #[test]
    fn conflicts_are_counted_in_the_singular_and_plural() {
        assert!(conflict(1).starts_with("1 thread has contexts from "));
        assert!(conflict(2).starts_with("2 threads have contexts from "));
    }
}
