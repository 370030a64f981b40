//! Stacks as text.

use std::fmt::Write;

use otelctx_reader::sample::{Frame, NamedFrame};

use super::super::model::{Report, ThreadReport};
use super::super::stack::Named;
use crate::output::terminal::escape;

pub(super) fn lines(report: &Report) -> String {
    let mut text = String::new();
    for thread in &report.threads {
        let Some(stack) = &thread.stack else {
            continue;
        };
        let tid = thread.tid;
        let name = thread.name.as_ref().map(|name| name.to_string_lossy());
        let name = name.map_or(String::new(), |name| format!(" of {}", escape(&name)));
        match stack {
            Ok(_) => {
                let _ = write!(text, "\n  thread {tid}  stack{name}\n");
                add(&mut text, thread, &report.named);
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

/// Adds the lines of a thread's stack, if it was read.
pub(super) fn add(text: &mut String, thread: &ThreadReport, named: &Named) {
    match &thread.stack {
        None => {}
        Some(Ok(stack)) => {
            let (frames, is_whole) = stack.mixed(&thread.runtimes, named);
            for frame in frames {
                match &frame {
                    Frame::Named(frame) => add_named(text, frame),
                    Frame::Native { address, .. } => {
                        let lookup = frame.lookup_address().unwrap_or(*address);
                        add_frame(text, *address, lookup, named);
                    }
                }
            }
            if let Some(reason) = stack.why_incomplete().filter(|_| !is_whole) {
                let _ = writeln!(text, "    incomplete: {}", escape(&reason));
            }
            if stack.lacks_frames(&thread.runtimes) {
                *text += "    native frames alone: the thread ran before its runtime was read \
                             (--no-stop)\n";
            }
        }
        Some(Err(error)) => {
            let _ = writeln!(text, "    its stack can't be read: {}", escape(error));
        }
    }
}

/// Adds a line for each function of a frame: those inlined at its address, then the one they are in.
fn add_frame(text: &mut String, address: u64, lookup: u64, named: &Named) {
    let functions = named.functions(lookup);
    let module = named.module(lookup);
    let Some(callee) = functions.len().checked_sub(1) else {
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
        let inlined = if index < callee { " inlined" } else { "" };
        let (name, place) = (escape(&function.name), escape(&place));
        let _ = writeln!(text, "    {name}{place}{inlined}");
    }
}

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
