//! Stacks as they are shown: without plumbing between functions of a program.

use super::plumbing::{PLUMBING, plumbing_of};
use super::tables::{Id, Known, Tables};
use crate::report;
use crate::wait::FRAME_KIND;

/// A function that is shown: a function of the recording, or beyond the last one's number, a kind of
/// plumbing at the end of stacks.
pub(super) type Folded = Id;

/// A frame of a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) function: Folded,
    /// No frame further in is of the same function: it counts once.
    pub(super) is_first: bool,
    /// Number of frames of plumbing that are left out between it and the next one further out; for
    /// plumbing at the end of a stack, the number of frames in its place.
    pub(super) through: u32,
}

/// What is shown of a function.
#[derive(Clone, Copy, Debug)]
enum Shown {
    Itself,
    /// Nothing, but for a box of this kind where a stack ends in plumbing.
    Plumbing(usize),
}

/// Leaves out what is not shown.
pub(super) struct Folding<'t> {
    tables: &'t Tables,
    with_plumbing: bool,
    /// What is shown of each function, once it is known.
    shown: Vec<Option<Shown>>,
    /// The only function of each location, once that is known.
    locations: Known<Option<Id>>,
    /// The number of the last call for a stack that a function was seen in.
    seen: Vec<u32>,
    calls: u32,
    frames: Vec<Frame>,
}

impl<'t> Folding<'t> {
    pub(super) fn new(tables: &'t Tables, with_plumbing: bool) -> Self {
        let functions = tables.functions.len();
        Self {
            tables,
            with_plumbing,
            shown: vec![None; functions],
            locations: vec![None; tables.locations.len()],
            seen: vec![0; functions],
            calls: 0,
            frames: Vec::new(),
        }
    }

    /// Returns the number of functions and kinds of plumbing.
    pub(super) fn len(&self) -> usize {
        self.tables.functions.len() + PLUMBING.len()
    }

    /// Returns the shown frames of a stack, innermost first.
    pub(super) fn frames(&mut self, stack: Id) -> &[Frame] {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        let mut box_of = None;
        let mut ended_in = 0;
        // No worker process has memory for 2^31 stacks, each of which is asked for twice at most.
        self.calls += 1;
        let mut add = |this: &mut Self, function| match this.shown(function) {
            Shown::Itself => {
                let seen = std::mem::replace(&mut this.seen[function as usize], this.calls);
                frames.push(Frame {
                    function,
                    is_first: seen != this.calls,
                    through: 0,
                });
            }
            Shown::Plumbing(found) => match frames.last_mut() {
                Some(frame) => frame.through += 1,
                None => {
                    box_of = box_of.or(Some(found));
                    ended_in += 1;
                }
            },
        };
        for location in &self.tables.stacks[stack as usize] {
            match self.only_function(*location) {
                Some(function) => add(self, function),
                None => {
                    let lines = &self.tables.locations[*location as usize].lines;
                    lines.iter().for_each(|line| add(self, line.function));
                }
            }
        }
        if let Some(plumbing) = box_of {
            let function = (self.tables.functions.len() + plumbing) as Id;
            frames.insert(
                0,
                Frame {
                    function,
                    is_first: true,
                    through: ended_in,
                },
            );
        }
        self.frames = frames;
        &self.frames
    }

    /// Returns the function of a location without inlined ones.
    fn only_function(&mut self, location: Id) -> Option<Id> {
        *self.locations[location as usize].get_or_insert_with(|| {
            match &self.tables.locations[location as usize].lines[..] {
                [line] => Some(line.function),
                _ => None,
            }
        })
    }

    /// Returns what is shown of a function.
    fn shown(&mut self, function: Id) -> Shown {
        *self.shown[function as usize].get_or_insert_with(|| {
            let function = &self.tables.functions[function as usize];
            let text = |id| self.tables.text(id);
            let kind = text(function.kind);
            if self.with_plumbing || kind == FRAME_KIND {
                return Shown::Itself;
            }
            let plumbing = plumbing_of(kind, text(function.name), text(function.file));
            plumbing.map_or(Shown::Itself, Shown::Plumbing)
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
            None => report::Function {
                name: plumbing_name(self.tables, folded),
                ..report::Function::default()
            },
        }
    }
}

/// Returns what stands for plumbing at the end of stacks.
pub(super) fn plumbing_name(tables: &Tables, folded: Folded) -> String {
    let kind = folded as usize - tables.functions.len();
    format!("[{}]", PLUMBING[kind].name)
}
