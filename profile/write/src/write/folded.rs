//! Folded stacks: one per line, frames from the root separated by `;`, and the number of samples.

use otelctx_sample::GilState;

use crate::attributes::{GIL, attribute};
use crate::report::NO_ATTRIBUTE;
use crate::{Group, Kind, Location, Options, Profile};

/// Returns on-CPU stacks with their counts. The first frames are the requested attribute, the
/// process and the thread.
pub(super) fn stacks<'p>(
    profile: &'p Profile,
    options: &'p Options,
) -> impl Iterator<Item = (String, usize)> + 'p {
    let groups = profile.groups().filter(|group| group.kind == Kind::OnCpu);
    // The text of each location, once it is needed.
    let mut texts: Vec<Option<String>> = vec![None; profile.locations().len()];
    groups.map(move |group| {
        let mut stack = String::new();
        if let Some(name) = &options.by {
            let value = attribute_of(profile, &group, name);
            push(&mut stack, value.unwrap_or(NO_ATTRIBUTE));
        }
        push(&mut stack, &super::name_of(profile.process(group.process)));
        push(&mut stack, &profile.thread(group.thread).name);
        for &index in group.stack.iter().rev() {
            let text = texts[index.index()].get_or_insert_with(|| {
                let mut text = String::new();
                let location = profile.location(index);
                each_frame(profile, location, |frame| push(&mut text, frame));
                text
            });
            if !stack.is_empty() {
                stack.push(';');
            }
            stack.push_str(text);
        }
        end_without_count(&mut stack);
        (stack, group.samples.len())
    })
}

/// Returns the value of an attribute of a group of samples: [`GIL`], or one of its context.
fn attribute_of<'p>(profile: &'p Profile, group: &Group<'_>, name: &str) -> Option<&'p str> {
    if name == GIL {
        return group.gil.map(GilState::name);
    }
    attribute(profile.context(group.context?), name)
}

/// Visits the names of a location's functions, outermost first, or the name of its file.
pub(super) fn each_frame(profile: &Profile, location: &Location, mut each: impl FnMut(&str)) {
    profile.each_function(location, |name, _, _| each(name));
}

/// The name of a frame without text: the frames after it keep their depth.
const EMPTY: &str = "(empty)";

/// Adds a frame. Replaces characters that this format uses, or that a line cannot have.
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

/// Replaces characters that a line or XML (<https://www.w3.org/TR/xml/#charsets>) cannot have.
pub(super) fn in_a_line(character: char) -> char {
    match character {
        '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        character if character.is_control() => ' ',
        character => character,
    }
}

/// Replaces the space before a final number, as of a thread `worker 3` without a stack: it would be
/// read as a first count, as `difffolded.pl` writes two.
fn end_without_count(stack: &mut String) {
    stack.truncate(stack.trim_end().len());
    let is_digit = |digit: char| digit.is_ascii_digit() || digit == '.';
    if let Some(space) = stack.rfind(' ')
        && stack[space + 1..].chars().all(is_digit)
    {
        stack.replace_range(space..=space, "_");
    }
}
