//! Code objects: the names of functions, their files and tables of lines.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use otelctx_reader::remote::{Memory, MemoryError};
use otelctx_reader::runtime::RuntimeError;

use crate::identity::Identity;
use crate::layout::{Layout, LineFormat, TextLayout};
use crate::lines;
use crate::structure::Structure;

/// `PyStringObject.ob_sval` of Python 2: the bytes.
const STRING: u64 = 36;

/// Maximum number of characters kept of a name.
const MAX_NAME: u64 = 512;
/// Maximum number of characters kept of a path.
const MAX_PATH: u64 = 4096;
/// Maximum size of a table of lines, in bytes: a hundred times that of a large function. Functions with a
/// larger one have no lines.
const MAX_LINE_TABLE: usize = 64 << 10;
/// Maximum memory of the functions kept of one process, and of all processes, in bytes.
const MAX_MEMORY: usize = 8 << 20;
const MAX_TOTAL: usize = 64 << 20;
/// Memory of the functions that every process may use, even if [`MAX_TOTAL`] is exceeded.
const MIN_MEMORY: usize = 128 << 10;
/// Maximum number of lines kept of one process.
const MAX_LINES: usize = 64 << 10;
/// Maximum work for one process a second, in bytes that are read of its functions or searched for a
/// line: some 50 ms. A process could otherwise keep the reader from reading others.
const MAX_WORK: usize = 16 << 20;

#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) name: String,
    /// Empty before 3.11.
    pub(crate) qualified_name: String,
    pub(crate) file: String,
    first_line: i32,
    line_table: Vec<u8>,
    line_format: LineFormat,
}

impl Code {
    fn read(memory: &dyn Memory, layout: &Layout, address: u64) -> Result<Self, RuntimeError> {
        let code = &layout.code;
        let (name, lines) = (code.name, code.line_table);
        let qualified_name = code.qualified_name.unwrap_or(name);
        let fields = [code.filename, name, qualified_name, code.first_line, lines];
        let structure = Structure::read(memory, address, &fields)?;
        let text = |offset, limit| text(memory, layout, structure.pointer(offset), limit);
        let name = |offset| text(offset, MAX_NAME);
        Ok(Self {
            name: name(code.name)?,
            qualified_name: code.qualified_name.map_or(Ok(String::new()), name)?,
            file: text(code.filename, MAX_PATH)?,
            first_line: structure.int(code.first_line),
            line_table: match line_table(memory, layout, structure.pointer(code.line_table)) {
                Err(MemoryError::Limit { .. }) => Vec::new(),
                table => table?,
            },
            line_format: code.line_format,
        })
    }

    fn memory(&self) -> usize {
        let texts = [&self.name, &self.qualified_name, &self.file];
        let texts: usize = texts.iter().map(|text| text.len()).sum();
        size_of::<Self>() + self.line_table.len() + texts
    }
}

/// The cached code objects of one process.
#[derive(Debug, Default)]
pub(crate) struct Codes {
    /// Code objects by address and [`Identity::hash`]: they may have been freed.
    known: HashMap<(u64, u64), Arc<Code>>,
    /// Memory of `known`, in bytes.
    memory: usize,
    /// Memory of all processes, in bytes.
    total: Arc<AtomicUsize>,
    /// Lines by the address of a [`Code`] here, and the offset of an instruction.
    lines: HashMap<(usize, i64), u32>,
    work: Work,
    /// The address of `PyCode_Type`, once it is known.
    code_type: Option<u64>,
}

/// The work of the current second, in bytes.
#[derive(Debug, Default)]
struct Work {
    since: Option<Instant>,
    bytes: usize,
}

impl Work {
    /// Adds work. False if the limit is exceeded.
    fn add(&mut self, bytes: usize) -> bool {
        let is_over = |since: Instant| since.elapsed() >= Duration::from_secs(1);
        if self.since.is_none_or(is_over) {
            (self.since, self.bytes) = (Some(Instant::now()), 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.bytes <= MAX_WORK
    }
}

impl Drop for Codes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.memory, Ordering::Relaxed);
    }
}

impl Codes {
    /// `total` counts the memory of all processes.
    pub(crate) fn new(total: Arc<AtomicUsize>) -> Self {
        let mut codes = Self::default();
        codes.total = total;
        codes
    }

    /// The code object at `address`.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub(crate) fn get(
        &mut self,
        memory: &dyn Memory,
        layout: &Layout,
        address: u64,
    ) -> Result<Arc<Code>, RuntimeError> {
        let identity = Identity::read(memory, layout, address)?;
        self.check_type(memory, layout, identity.object_type, address)?;
        if let Some(known) = self.known.get(&(address, identity.hash)) {
            return Ok(known.clone());
        }
        let code = self.read(memory, layout, address)?;
        self.keep((address, identity.hash), code.clone());
        Ok(code)
    }

    /// The code object that was at `address` when a sample was taken, with this hash. `None` if it is no
    /// longer there.
    pub(crate) fn sampled(
        &mut self,
        memory: &dyn Memory,
        layout: &Layout,
        address: u64,
        hash: u64,
    ) -> Option<Arc<Code>> {
        if let Some(known) = self.known.get(&(address, hash)) {
            return Some(known.clone());
        }
        let is_same = || {
            let identity = Identity::read(memory, layout, address);
            identity.is_ok_and(|it| it.is_alive && it.hash == hash)
        };
        if !is_same() {
            return None;
        }
        let code = self.read(memory, layout, address).ok()?;
        // The process runs: it may have freed the object meanwhile.
        if !is_same() {
            return None;
        }
        self.keep((address, hash), code.clone());
        Some(code)
    }

    fn read(
        &mut self,
        memory: &dyn Memory,
        layout: &Layout,
        address: u64,
    ) -> Result<Arc<Code>, RuntimeError> {
        if !self.work.add(0) {
            return Err(RuntimeError::new("its functions take too much time"));
        }
        let code = Code::read(memory, layout, address)?;
        self.work.add(code.memory());
        Ok(Arc::new(code))
    }

    /// The line of the instruction at this offset of a code object, in bytes; 0 if it has none.
    pub(crate) fn line(&mut self, code: &Arc<Code>, at: i64) -> u32 {
        let key = (Arc::as_ptr(code).addr(), at);
        if let Some(line) = self.lines.get(&key) {
            return *line;
        }
        if !self.work.add(code.line_table.len()) {
            return 0;
        }
        let line = lines::line(code.line_format, &code.line_table, code.first_line, at);
        if self.lines.len() >= MAX_LINES {
            self.lines.clear();
        }
        self.lines.insert(key, line);
        line
    }

    fn keep(&mut self, key: (u64, u64), code: Arc<Code>) {
        let added = code.memory();
        let is_full = self.memory + added > MAX_MEMORY
            || self.memory + added > MIN_MEMORY
                && self.total.load(Ordering::Relaxed) + added > MAX_TOTAL;
        if is_full || self.known.contains_key(&key) {
            // Other functions may get their addresses, which are keys of `lines`.
            self.lines.clear();
            self.known.clear();
            self.total.fetch_sub(self.memory, Ordering::Relaxed);
            self.memory = 0;
        }
        self.memory += added;
        self.total.fetch_add(added, Ordering::Relaxed);
        self.known.insert(key, code);
    }

    /// Checks that an object's type is `code`, by the type's name.
    fn check_type(
        &mut self,
        memory: &dyn Memory,
        layout: &Layout,
        found: u64,
        address: u64,
    ) -> Result<(), RuntimeError> {
        if self.code_type == Some(found) {
            return Ok(());
        }
        let mut name = [0; 5];
        let at = memory.read_u64(found.wrapping_add(layout.object.type_name()));
        let read = at.and_then(|at| memory.read(at, &mut name));
        if read.is_err() || &name != b"code\0" {
            let reason = format!("there is no code object at {address:#x}");
            return Err(RuntimeError::new(reason));
        }
        self.code_type = Some(found);
        Ok(())
    }
}

fn line_table(memory: &dyn Memory, layout: &Layout, address: u64) -> Result<Vec<u8>, MemoryError> {
    let start = match layout.text {
        TextLayout::Bytes => STRING,
        TextLayout::Unicode { .. } => layout.object.after_hash(),
    };
    let size = memory.read_u64(address.wrapping_add(layout.object.size()))?;
    memory.read_vec(address.wrapping_add(start), size, MAX_LINE_TABLE)
}

/// A string object, or its first `limit` characters.
pub(crate) fn text(
    memory: &dyn Memory,
    layout: &Layout,
    address: u64,
    limit: u64,
) -> Result<String, RuntimeError> {
    let size = layout.object.size();
    let (interned, ascii, other) = match layout.text {
        TextLayout::Bytes => {
            let length = memory.read_u64(address.wrapping_add(size))?.min(limit);
            let bytes = memory.read_vec(address.wrapping_add(STRING), length, usize::MAX)?;
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        TextLayout::Unicode {
            interned,
            ascii,
            other,
        } => (interned, ascii, other),
    };
    let structure = Structure::read(memory, address, &[size, layout.object.after_hash()])?;
    let length = structure.pointer(size).min(limit);
    let state = structure.int(layout.object.after_hash()) >> interned;
    let (kind, is_compact, is_ascii) = (state & 7, state >> 3 & 1, state >> 4 & 1);
    let start = address.wrapping_add(if is_ascii == 1 { ascii } else { other });
    let characters = |size| memory.read_vec(start, length * size, usize::MAX);
    match (is_compact, kind) {
        (1, 1) => Ok(characters(1)?.into_iter().map(char::from).collect()),
        (1, 2) => {
            let bytes = characters(2)?;
            let units = bytes.as_chunks().0.iter();
            let units: Vec<u16> = units.map(|unit| u16::from_ne_bytes(*unit)).collect();
            Ok(String::from_utf16_lossy(&units))
        }
        (1, 4) => {
            let bytes = characters(4)?;
            let units = bytes.as_chunks().0.iter();
            let decoded = units.map(|unit| char::from_u32(u32::from_ne_bytes(*unit)));
            let text = decoded.map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER));
            Ok(text.collect())
        }
        _ => {
            let reason = format!("there is no string at {address:#x}");
            Err(RuntimeError::new(reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use otelctx_reader::remote::TargetImage;

    use super::*;
    use crate::version::Version;

    #[test]
    fn each_process_keeps_functions_however_many_others_have() {
        let layout = Layout::of(&TargetImage::new(), Version::new(3, 11, 2), None).unwrap();
        let code = |name: usize| {
            Arc::new(Code {
                name: name.to_string(),
                qualified_name: String::new(),
                file: String::new(),
                first_line: 1,
                line_table: vec![0; 1000],
                line_format: layout.code.line_format,
            })
        };
        let total = Arc::new(AtomicUsize::new(MAX_TOTAL));
        let mut codes = Codes::new(total.clone());
        let mut most = 0;
        for number in 0..1000 {
            codes.keep((number as u64, 0), code(number));
            most = most.max(codes.known.len());
            assert!(codes.memory <= MIN_MEMORY);
        }
        assert!(most > 80, "{most}");
        assert_eq!(total.load(Ordering::Relaxed), MAX_TOTAL + codes.memory);
        total.store(codes.memory, Ordering::Relaxed);
        for number in 0..20_000 {
            codes.keep((number as u64, 1), code(number));
            assert!(codes.memory <= MAX_MEMORY);
        }
        assert!(codes.memory > MIN_MEMORY);
        drop(codes);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }
}
