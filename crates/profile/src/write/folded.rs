//! Folded stacks: one a line, frames from the root on, separated by `;`, and how many samples.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::attributes::attribute;
use crate::{Kind, Location, Options, Place, Profile};

pub(super) fn write(
    profile: &Profile,
    options: &Options,
    writer: &mut dyn Write,
) -> io::Result<()> {
    for (stack, count) in lines(profile, options) {
        writeln!(writer, "{stack} {count}")?;
    }
    Ok(())
}

/// What stands at the root of a sample that has no such attribute.
const WITHOUT: &str = "(none)";

/// Each stack on a processor with its count, in the order of their text. The first frames are the
/// attribute that was asked for, the process and the thread.
pub(super) fn lines(profile: &Profile, options: &Options) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for group in profile.groups().filter(|group| group.kind == Kind::OnCpu) {
        let mut stack = String::new();
        if let Some(name) = &options.by {
            let context = group.context.map(|context| profile.context(context));
            let value = context.and_then(|context| attribute(context, name));
            push(&mut stack, value.unwrap_or(WITHOUT));
        }
        push(&mut stack, &profile.process(group.process).comm);
        push(&mut stack, &profile.thread(group.thread).name);
        for &index in group.stack.iter().rev() {
            each_frame(profile, profile.location(index), |frame| {
                push(&mut stack, frame)
            });
        }
        end_without_count(&mut stack);
        *lines.entry(stack).or_default() += group.samples.len();
    }
    lines
}

/// The names of a location's functions, the outermost first; or where it is, if it has none.
pub(super) fn each_frame(profile: &Profile, location: &Location, mut each: impl FnMut(&str)) {
    for function in location.functions.iter().rev() {
        each(&function.name);
    }
    if location.functions.is_empty() {
        each(&unnamed(profile, location.place));
    }
}

/// What stands for all functions of a file that have no name. Its addresses would be a frame each,
/// among which nothing is found again.
fn unnamed(profile: &Profile, place: Place) -> String {
    let Some(module) = profile.module_of(place) else {
        return "[unknown]".to_owned();
    };
    let path = &profile.catalog().module_facts(module).path;
    let name = path.rsplit('/').next().unwrap_or(path);
    format!("[{}]", name.trim_matches(['[', ']']))
}

/// What stands for a frame without any text, so that those behind it stay where they belong.
const EMPTY: &str = "(empty)";

/// Adds a frame. What has a meaning in this format, or none in a line of text, is replaced.
fn push(stack: &mut String, frame: &str) {
    if !stack.is_empty() {
        stack.push(';');
    }
    let frame = if frame.is_empty() { EMPTY } else { frame };
    stack.extend(frame.chars().map(|character| match character {
        ';' => ':',
        character => in_a_line(character),
    }));
}

/// A character, or what stands for one that has no place in a line of text or in XML
/// (<https://www.w3.org/TR/xml/#charsets>).
pub(super) fn in_a_line(character: char) -> char {
    match character {
        '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        character if character.is_control() => ' ',
        character => character,
    }
}

/// A number behind a space would be read as a first count, before the one that follows (`difffolded.pl`
/// writes two), as of a thread `worker 3` without a stack.
fn end_without_count(stack: &mut String) {
    stack.truncate(stack.trim_end().len());
    let is_number = |text: &str| {
        text.chars()
            .all(|digit| digit.is_ascii_digit() || digit == '.')
    };
    if let Some(space) = stack.rfind(' ')
        && is_number(&stack[space + 1..])
    {
        stack.replace_range(space..=space, "_");
    }
}
