//! Stacks as they are shown: without plumbing between functions of a program.

use super::plumbing::{PLUMBING, plumbing_of};
use super::tables::{Id, Tables};
use crate::report;

/// A function that is shown: a function of the recording, or beyond the last one's number, a kind of
/// plumbing at the end of stacks.
pub(super) type Folded = Id;

/// A frame of a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) function: Folded,
    /// No frame further in is of the same function: it counts once.
    pub(super) is_first: bool,
}

/// Leaves out what is not shown.
pub(super) struct Folding<'t> {
    tables: &'t Tables,
    with_plumbing: bool,
    /// Kinds of frames; empty for all.
    kinds: Vec<&'static str>,
    /// The kind of plumbing of each function, once it is known.
    plumbing: Vec<Option<Option<usize>>>,
    /// The number of the last stack that a function was seen in.
    seen: Vec<Option<Id>>,
    frames: Vec<Frame>,
}

impl<'t> Folding<'t> {
    pub(super) fn new(tables: &'t Tables, with_plumbing: bool, languages: &[String]) -> Self {
        let functions = tables.functions.len();
        Self {
            tables,
            with_plumbing,
            kinds: languages.iter().filter_map(|it| kind_of(it)).collect(),
            plumbing: vec![None; functions],
            seen: vec![None; functions],
            frames: Vec::new(),
        }
    }

    /// Returns the number of functions and kinds of plumbing.
    pub(super) fn len(&self) -> usize {
        self.tables.functions.len() + PLUMBING.len()
    }

    /// Returns the shown frames of a stack, innermost first. Each stack is asked for once.
    pub(super) fn frames(&mut self, stack: Id) -> &[Frame] {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        let mut box_of = None;
        for line in self.tables.frames(stack) {
            let function = &self.tables.functions[line.function as usize];
            let is_kind = |kinds: &[&str]| kinds.contains(&self.tables.text(function.kind));
            if !self.kinds.is_empty() && !is_kind(&self.kinds) {
                continue;
            }
            match self.plumbing(line.function) {
                None => {
                    let seen = self.seen[line.function as usize].replace(stack);
                    frames.push(Frame {
                        function: line.function,
                        is_first: seen != Some(stack),
                    });
                }
                Some(found) if frames.is_empty() => box_of = box_of.or(Some(found)),
                Some(_) => {}
            }
        }
        if let Some(plumbing) = box_of {
            let function = (self.tables.functions.len() + plumbing) as Id;
            frames.insert(
                0,
                Frame {
                    function,
                    is_first: true,
                },
            );
        }
        self.frames = frames;
        &self.frames
    }

    /// Returns the kind of plumbing of a function.
    fn plumbing(&mut self, function: Id) -> Option<usize> {
        if self.with_plumbing {
            return None;
        }
        let known = &mut self.plumbing[function as usize];
        *known.get_or_insert_with(|| {
            let function = &self.tables.functions[function as usize];
            let text = |id| self.tables.text(id);
            plumbing_of(
                text(function.kind),
                text(function.name),
                text(function.file),
            )
        })
    }

    /// Returns what a report says of a function.
    pub(super) fn function(&self, folded: Folded) -> report::Function {
        match self.tables.functions.get_index(folded as usize) {
            Some(function) => report::Function {
                name: self.tables.text(function.name).to_owned(),
                file: self.tables.text(function.file).to_owned(),
                line: self.tables.line_of(folded),
                kind: self.tables.text(function.kind).to_owned(),
            },
            None => {
                let kind = folded as usize - self.tables.functions.len();
                report::Function {
                    name: format!("[{}]", PLUMBING[kind].name),
                    ..report::Function::default()
                }
            }
        }
    }
}

/// Returns the kind of frames of a language.
fn kind_of(language: &str) -> Option<&'static str> {
    let mut all = report::LANGUAGES.into_iter();
    all.find(|(name, _)| *name == language)
        .map(|(_, kind)| kind)
}
