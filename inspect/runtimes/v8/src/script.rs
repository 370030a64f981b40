//! Scripts: their names, and the lines of positions in them.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use otelctx_reader::runtime::ReadLimit;

use crate::heap::{Heap, Object};
use crate::layout::Layout;
use crate::text::cut;

/// What is left for the names of functions by the sources of scripts, in bytes that may be read.
const RESERVE: u64 = 64 << 20;
/// Maximum length of a script's name, in characters, and in bytes.
const MAX_NAME: u32 = 4096;
const MAX_NAME_BYTES: usize = 4096;
/// Maximum length of a source whose lines are counted, in characters.
const MAX_SOURCE: u32 = 64 << 20;
/// Maximum number of lines of a script.
const MAX_LINES: usize = 1 << 20;
/// Maximum number of scripts that are kept, and of their memory in bytes.
const MAX_SCRIPTS: usize = 4096;
const MAX_MEMORY: usize = 8 << 20;

/// What a script was recognized by: the collector may put another script where one was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    address: u64,
    id: u32,
    name: u64,
    source: u64,
    length: u32,
}

/// A script.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// Its file or URL. Empty if it has none.
    pub(crate) name: String,
    /// Line of its first character in that file, from 0.
    first_line: i32,
    /// Positions of the ends of its lines, in ascending order. `None` if the source cannot be read.
    line_ends: Option<Vec<u32>>,
}

impl Script {
    fn memory(&self) -> usize {
        let lines = self.line_ends.as_deref().map_or(0, size_of_val);
        size_of::<(Key, Self)>() + self.name.len() + lines
    }

    /// The line of a position, from 1.
    pub(crate) fn line(&self, position: u32) -> Option<u32> {
        let ends = self.line_ends.as_ref()?;
        let before = ends.partition_point(|end| *end < position);
        let line = i64::from(self.first_line) + before as i64 + 1;
        u32::try_from(line).ok()
    }
}

/// The scripts that were read of a process.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    kept: Mutex<Kept>,
    work: Arc<ReadLimit>,
}

#[derive(Debug, Default)]
struct Kept {
    scripts: HashMap<Key, Arc<Script>>,
    /// Memory of `scripts`, in bytes.
    memory: usize,
}

impl Scripts {
    /// `work` limits the reads of the process.
    pub(crate) fn new(work: Arc<ReadLimit>) -> Self {
        Self {
            kept: Mutex::default(),
            work,
        }
    }

    /// A script, whose type was checked. `None` if it cannot be read.
    pub(crate) fn get(&self, heap: &Heap<'_>, script: Object) -> Option<Arc<Script>> {
        let key = heap.script_key(script)?;
        let kept = |it: &Kept| it.scripts.get(&key).cloned();
        if let Some(known) = kept(&self.kept.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Some(known);
        }
        // Of two bytes each.
        let size = 2 * u64::from(key.length);
        let may_read = self.work.has_room(size, RESERVE, Instant::now());
        let read = Arc::new(heap.read_script(script, key, may_read)?);
        // It may have been moved meanwhile.
        if heap.script_key(script)? != key {
            return None;
        }
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let added = read.memory();
        if all.memory + added > MAX_MEMORY || all.scripts.len() >= MAX_SCRIPTS {
            *all = Kept::default();
        }
        // Another thread may have been faster.
        if may_read && !all.scripts.contains_key(&key) {
            all.memory += added;
            all.scripts.insert(key, read.clone());
        }
        Some(read)
    }
}

impl Heap<'_> {
    /// The ID of a script, which no other script of its isolate ever gets.
    pub(crate) fn script_id(&self, script: Object) -> Option<u32> {
        let script = self.of_type(script, self.layout.types.script)?;
        let id = self.integer(script, self.layout.script_id)?;
        u32::try_from(id).ok()
    }

    pub(crate) fn script_key(&self, script: Object) -> Option<Key> {
        let source = self.word(script, self.layout.script_source)?;
        let text = Object::strong(source).filter(|source| self.is_string(*source));
        let length = text.map_or(Some(0), |text| self.length(text));
        Some(Key {
            address: script.address(),
            id: self.script_id(script)?,
            name: self.word(script, self.layout.script_name)?,
            source,
            length: length?,
        })
    }

    fn read_script(&self, script: Object, key: Key, has_lines: bool) -> Option<Script> {
        let name = Object::strong(key.name).filter(|name| self.is_string(*name));
        let name = name.map_or(Some(String::new()), |name| self.text(name, MAX_NAME))?;
        let source = Object::strong(key.source).filter(|source| self.is_string(*source));
        let source = source.filter(|_| has_lines);
        Some(Script {
            name: cut(name, MAX_NAME_BYTES),
            first_line: self.integer(script, Layout::SCRIPT_LINE)?,
            line_ends: source.and_then(|source| self.line_ends(source, key.length)),
        })
    }

    /// Finds the ends of lines as V8 does (`String::CalculateLineEnds`): line feeds, carriage returns without one, and the
    /// separators of lines and paragraphs.
    fn line_ends(&self, source: Object, length: u32) -> Option<Vec<u32>> {
        const SEPARATORS: [u16; 2] = [0x2028, 0x2029];
        let (feed, carriage_return) = (u16::from(b'\n'), u16::from(b'\r'));
        if length > MAX_SOURCE {
            return None;
        }
        let mut ends = Vec::new();
        let (mut position, mut after_return) = (0, false);
        self.visit_characters(source, length, &mut |characters| {
            for character in characters {
                if after_return && *character != feed {
                    ends.push(position - 1);
                }
                after_return = *character == carriage_return;
                if *character == feed || SEPARATORS.contains(character) {
                    ends.push(position);
                }
                position += 1;
            }
            if ends.len() > MAX_LINES {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if after_return {
            ends.push(position - 1);
        }
        ends.shrink_to_fit();
        (position == length).then_some(ends)
    }
}
