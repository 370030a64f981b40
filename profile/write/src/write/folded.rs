//! Folded stacks: one per line, frames from the root separated by `;`, and the number of samples, or
//! microseconds.

use std::borrow::Cow;

use otelctx_sample::{ContextId, ProcessId};

use crate::attributes::{GIL, attribute, text_of};
use crate::report::{Level, NO_ATTRIBUTE};
use crate::{Group, Kind, Location, Options, Profile};

/// A stack, its kind, its number of samples, and its time in nanoseconds.
pub(super) struct Stack {
    pub(super) text: String,
    pub(super) kind: Kind,
    pub(super) samples: u64,
    pub(super) nanoseconds: u64,
}

/// Returns stacks. The first frames are the requested levels, the process and the thread; the last
/// one of a wait is its reason. Notes which levels have a value.
pub(super) fn stacks<'p>(
    profile: &'p Profile,
    options: &'p Options,
    has_value: &'p mut [bool],
) -> impl Iterator<Item = Stack> + 'p {
    let groups = profile.groups();
    let levels: Vec<Level> = options.by.iter().map(|name| Level::of(name)).collect();
    let groups = groups.filter(|group| options.with_idle || !super::is_idle(group));
    // The text of each location, once it is needed.
    let mut texts: Vec<Option<String>> = vec![None; profile.locations().len()];
    groups.map(move |group| {
        let mut stack = String::new();
        for (level, has_value) in levels.iter().zip(&mut *has_value) {
            let value = value_of(profile, &group, level);
            *has_value |= value.is_some();
            push(&mut stack, value.as_deref().unwrap_or(NO_ATTRIBUTE));
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
        if let Some(wait) = profile.wait(&group) {
            push(&mut stack, &wait.frame());
        }
        end_without_count(&mut stack);
        Stack {
            text: stack,
            kind: group.kind,
            samples: group.samples.len() as u64,
            nanoseconds: group.nanoseconds(profile.period()),
        }
    })
}

/// Returns the value of a level of a group of samples.
fn value_of<'p>(profile: &'p Profile, group: &Group<'_>, level: &Level) -> Option<Cow<'p, str>> {
    let process = profile.process(group.process);
    match level {
        Level::Service => Some(super::name_of(process)),
        Level::Process => Some(format!("{} {}", super::name_of(process), process.pid).into()),
        Level::Thread => {
            let name = &profile.thread(group.thread).name;
            (!name.is_empty()).then(|| name[..].into())
        }
        Level::Trace => {
            let trace = profile.context(group.context?).trace_id;
            (!trace.is_zero()).then(|| trace.to_string().into())
        }
        Level::Function | Level::File | Level::Line => None,
        Level::Attribute(name) => attribute_of(profile, group, name),
    }
}

/// Returns the value of an attribute of a group of samples: one that the recorder found, or of its
/// context, or else of its process's resource.
fn attribute_of<'p>(profile: &'p Profile, group: &Group<'_>, name: &str) -> Option<Cow<'p, str>> {
    if name == GIL {
        return group.gil.map(|state| state.name().into());
    }
    if let Some(wait) = profile.wait(group) {
        let mut known = wait.attributes().into_iter().flatten();
        if let Some((_, value)) = known.find(|(key, _)| *key == name) {
            return Some(value.into());
        }
    }
    published_attribute(profile, group.context, group.process, name)
}

/// Returns the value of an attribute of a context, or else of a process's resource.
pub(super) fn published_attribute<'p>(
    profile: &'p Profile,
    context: Option<ContextId>,
    process: ProcessId,
    name: &str,
) -> Option<Cow<'p, str>> {
    let context = context.map(|context| profile.context(context));
    if let Some(value) = context.and_then(|context| attribute(context, name)) {
        return Some(value.into());
    }
    let process = profile.process(process);
    match process.resource.iter().find(|(key, _)| key == name) {
        Some((_, value)) => text_of(value),
        None => super::otlp::detected_text(process, name).map(Cow::from),
    }
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
