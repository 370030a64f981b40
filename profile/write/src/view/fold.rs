//! Stacks as they are shown: without plumbing between functions of a program.

use super::plumbing::{PLUMBING, plumbing_of};
use super::tables::{Id, Tables};
use crate::report;

/// A function that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Folded {
    /// A function of the recording.
    Function(Id),
    /// Stands for plumbing of this kind at the end of a stack.
    Plumbing(usize),
}

/// Leaves out what is not shown.
pub(super) struct Folding<'t> {
    tables: &'t Tables,
    with_plumbing: bool,
    /// Kinds of frames; empty for all.
    kinds: Vec<&'static str>,
    /// Functions by name, file and kind, which are shown alike: of several, the first one.
    plumbing: Vec<Option<Option<usize>>>,
    frames: Vec<Folded>,
}

impl<'t> Folding<'t> {
    pub(super) fn new(tables: &'t Tables, with_plumbing: bool, languages: &[String]) -> Self {
        Self {
            tables,
            with_plumbing,
            kinds: languages.iter().filter_map(|it| kind_of(it)).collect(),
            plumbing: vec![None; tables.functions.len()],
            frames: Vec::new(),
        }
    }

    /// Returns the shown functions of a stack, innermost first.
    pub(super) fn functions(&mut self, stack: Id) -> &[Folded] {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        let mut box_of = None;
        for line in self.tables.frames(stack) {
            let function = &self.tables.functions[line.function as usize];
            let kind = self.tables.text(function.kind);
            if !self.kinds.is_empty() && !self.kinds.contains(&kind) {
                continue;
            }
            match self.plumbing(line.function) {
                None => frames.push(Folded::Function(line.function)),
                Some(found) if frames.is_empty() => box_of = box_of.or(Some(found)),
                Some(_) => {}
            }
        }
        if let Some(plumbing) = box_of {
            frames.insert(0, Folded::Plumbing(plumbing));
        }
        self.frames = frames;
        &self.frames
    }

    /// Returns the kind of plumbing of a function.
    pub(super) fn plumbing(&mut self, function: Id) -> Option<usize> {
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
        match folded {
            Folded::Function(id) => {
                let function = &self.tables.functions[id as usize];
                report::Function {
                    name: self.tables.text(function.name).to_owned(),
                    file: self.tables.text(function.file).to_owned(),
                    line: self.tables.line_of(id),
                    kind: self.tables.text(function.kind).to_owned(),
                }
            }
            Folded::Plumbing(kind) => report::Function {
                name: format!("[{}]", PLUMBING[kind].name),
                ..report::Function::default()
            },
        }
    }
}

/// Returns the value of `profile.frame.type` of a language.
pub(super) fn kind_of(language: &str) -> Option<&'static str> {
    Some(match language {
        "python" => "cpython",
        "javascript" => "v8js",
        "java" => "jvm",
        "go" => "go",
        "ruby" => "ruby",
        "php" => "php",
        "erlang" => "beam",
        "dotnet" => "dotnet",
        "native" => "native",
        "kernel" => "kernel",
        _ => return None,
    })
}
