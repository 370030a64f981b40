//! Functions: what identifies them, their names, and their places.

use otelctx_reader::sample::{FrameKind, NamedFrame};

use crate::heap::{Heap, Object, small_integer};
use crate::layout::Layout;
use crate::script::{Key, Scripts};
use crate::text::cut;

/// Maximum length of a function's name, in characters, and that of what a frame has of it, in bytes.
const MAX_NAME: u32 = 512;
const MAX_NAME_BYTES: usize = 512;
/// Maximum number of local variables in a context: the names of fewer than this many are in the scope's description itself
/// (`kScopeInfoMaxInlinedLocalNamesSize` in V8).
const MAX_INLINED_LOCALS: u64 = 75;
/// Maximum number of local variables in a context.
const MAX_LOCALS: u64 = 1 << 16;
/// Index of the first variable, and of positions, from V8 13 on.
const FIRST_AFTER_POSITIONS: u64 = 5;

/// Bits of a function's flags with its kind (`FunctionKind` in V8).
const FUNCTION_KIND: u32 = 31;
/// Kinds whose name is the class's, and how V8 shows them.
const INITIALIZERS: [(u32, &str); 2] = [
    (24, "<instance_members_initializer>"),
    (25, "<static_initializer>"),
];

// Bits of a scope's flags (src/objects/scope-info.tq in V8).
const SCOPE_TYPE: u64 = 15;
const MODULE_SCOPE: [u64; 2] = [3, 6];
const SAVED_CLASS_VARIABLE: u64 = 1 << 10;
const FUNCTION_VARIABLE: u64 = 3 << 12;
const INFERRED_NAME: u64 = 1 << 14;

/// What identifies a function in its isolate, whatever the collector moves: neither number is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) script: u32,
    /// The number of the function in its script.
    pub(crate) literal: i32,
}

/// The names and the place of a function.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// Its name. Empty if it has none.
    pub(crate) name: String,
    /// A name that V8 has inferred from how the function is assigned.
    pub(crate) inferred: String,
    /// The positions of its first and last character in its script, if known.
    pub(crate) range: Option<(u32, u32)>,
}

impl Heap<'_> {
    /// The `SharedFunctionInfo` of a function.
    pub(crate) fn shared(&self, function: Object) -> Option<Object> {
        let shared = self.object(function, self.layout.function_shared)?;
        self.of_type(shared, self.layout.types.shared)
    }

    /// The script of a function. `None` for a function of V8 itself, and one that a debugger has changed.
    pub(crate) fn script_of(&self, shared: Object) -> Option<Object> {
        self.object(shared, self.layout.shared_script)
    }

    /// What the script of a function is recognized by.
    pub(crate) fn key_of(&self, shared: Object) -> Option<Key> {
        self.script_key(self.script_of(shared)?)
    }

    /// What identifies a function of a script.
    pub(crate) fn identity(&self, shared: Object) -> Option<Identity> {
        let shared = self.of_type(shared, self.layout.types.shared)?;
        Some(Identity {
            script: self.script_id(self.script_of(shared)?)?,
            literal: self.u32_at(shared, self.layout.shared_literal)? as i32,
        })
    }

    /// The bytecode of a function.
    pub(crate) fn bytecode(&self, shared: Object) -> Option<Object> {
        self.bytecode_behind(self.object(shared, Layout::SHARED_DATA)?)
    }

    /// The copy of the interpreter's code that was made for a function.
    pub(crate) fn interpreter_of(&self, shared: Object) -> Option<Object> {
        let mut data = self.object(shared, Layout::SHARED_DATA)?;
        if let Some(baseline) = self.of_type(data, self.layout.types.code) {
            data = self.object(baseline, Layout::CODE_DEOPT)?;
        }
        let data = self.of_type(data, self.layout.types.interpreter_data)?;
        self.object(data, Layout::INTERPRETER_COPY)
    }

    /// The bytecode to which an object leads, such as baseline code.
    pub(crate) fn bytecode_behind(&self, mut data: Object) -> Option<Object> {
        const MAX_LINKS: usize = 4;
        let types = &self.layout.types;
        for _ in 0..MAX_LINKS {
            let kind = self.instance_type(data)?;
            if kind == types.bytecode {
                return Some(data);
            }
            let link = if kind == types.interpreter_data || kind == types.bytecode_wrapper {
                Layout::WRAPPED
            } else if kind == types.code {
                Layout::CODE_DEOPT
            } else {
                return None;
            };
            data = self.object(data, link)?;
        }
        None
    }

    /// The names of a function, and its range.
    pub(crate) fn names(&self, shared: Object) -> Option<Names> {
        let found = self.object(shared, self.layout.shared_name)?;
        let mut names = if self.is_string(found) {
            let name = self.text(found, MAX_NAME)?;
            Names {
                name,
                ..Names::default()
            }
        } else {
            let scope = self.of_type(found, self.layout.types.scope_info)?;
            self.scope_names(scope)?
        };
        let kind = self.u32_at(shared, self.layout.shared_flags)? & FUNCTION_KIND;
        let own = INITIALIZERS.iter().find(|(of, _)| *of == kind);
        if let Some((_, name)) = own {
            (*name).clone_into(&mut names.name);
        }
        Some(names)
    }

    /// The names in the description of a function's scope: its flags, the numbers of parameters and variables, the variables,
    /// and parts that its flags announce.
    fn scope_names(&self, scope: Object) -> Option<Names> {
        let word = |index: u64| self.word(scope, 8 + 8 * index);
        let number = |index: u64| small_integer(word(index)?);
        let position = |index: u64| u32::try_from(number(index)?).ok();
        let flags = word(0)?;
        // Newer versions have no small integer here.
        let flags = small_integer(flags).map_or(flags, |flags| flags as u32 as u64);
        let first = self.layout.scope_first;
        let has_positions_first = first >= FIRST_AFTER_POSITIONS;
        let locals = u64::try_from(number(self.layout.scope_locals)?).ok()?;
        if locals > MAX_LOCALS {
            return None;
        }
        let is_module = flags & SCOPE_TYPE == MODULE_SCOPE[usize::from(has_positions_first)];
        let names = if locals < MAX_INLINED_LOCALS {
            locals
        } else {
            1
        };
        let mut at = first + u64::from(is_module) + names + locals;
        at += u64::from(flags & SAVED_CLASS_VARIABLE != 0);
        let text = |index: u64| {
            let found = Object::strong(word(index)?)?;
            self.is_string(found).then(|| self.text(found, MAX_NAME))?
        };
        let mut names = Names::default();
        if flags & FUNCTION_VARIABLE != 0 {
            // A function without a name may have a place for one.
            names.name = text(at).unwrap_or_default();
            at += 2;
        }
        if flags & INFERRED_NAME != 0 {
            names.inferred = text(at).unwrap_or_default();
            at += 1;
        }
        let range = if has_positions_first { 3 } else { at };
        names.range = position(range).zip(position(range + 1));
        names.range = names.range.filter(|(start, end)| start <= end);
        Some(names)
    }

    /// The frame of a function that executes at a position of its script. The line is that of the function itself if the
    /// position is unknown.
    pub(crate) fn frame(
        &self,
        scripts: &Scripts,
        shared: Object,
        position: Option<u32>,
    ) -> Option<NamedFrame> {
        let names = self.names(shared)?;
        let script = scripts.get(self, self.script_of(shared)?)?;
        let start = names.range.map(|(start, _)| start);
        // A position elsewhere belongs to other code: the tables were not those of this function.
        let position = position.filter(|position| match names.range {
            Some((start, end)) => (start..=end).contains(position),
            None => true,
        });
        let line = |position: Option<u32>| position.and_then(|it| script.line(it)).unwrap_or(0);
        let file = script.name.rsplit('/').next().unwrap_or_default();
        let function = match (&names.name, &names.inferred) {
            (name, _) if !name.is_empty() => name.clone(),
            (_, inferred) if !inferred.is_empty() => inferred.clone(),
            // A program has many of them: the place distinguishes them.
            _ if file.is_empty() => "(anonymous)".to_owned(),
            _ => format!("(anonymous {file}:{})", line(start)),
        };
        Some(NamedFrame {
            kind: FrameKind::V8JS,
            function: cut(function, MAX_NAME_BYTES),
            qualified_name: String::new(),
            line: line(position.or(start)),
            file: script.name.clone(),
        })
    }
}
