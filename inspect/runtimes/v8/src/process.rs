//! V8 in one process.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, PoisonError};

use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::remote::mappings::ExecutableMapping;
use otelctx_reader::remote::{Device, FrameRecord, GeneratedCode, Target};
use otelctx_reader::runtime::{
    LimitedMemory, ReadLimit, RuntimeError, RuntimeProcess, RuntimeThread, ThreadView,
};
use otelctx_reader::sample::{Frame, FrameKind, NamedFrame};

use crate::builtins::Builtins;
use crate::code::{Called, Code, CodeFinder};
use crate::heap::Heap;
use crate::kept::{Kept, KeptFrames};
use crate::layout::Layout;
use crate::record::{Place, Record, is_native_caller};
use crate::script::Scripts;
use crate::walker::Walker;

/// Maximum number of ranges of generated code. A large program has some hundred.
const MAX_RANGES: usize = 1 << 14;
/// Maximum size of unmapped memory between parts of the same region: V8 reserves 128 MiB for the code of an isolate.
const MAX_GAP: u64 = 512 << 20;

/// The name of code that executes a regular expression.
const REGULAR_EXPRESSION: &str = "(regular expression)";

#[derive(Debug)]
pub(crate) struct V8Process {
    pub(crate) layout: Arc<Layout>,
    pub(crate) builtins: Arc<Builtins>,
    /// The file that has V8.
    pub(crate) file: (Device, u64),
    pub(crate) finder: Arc<CodeFinder>,
    pub(crate) scripts: Scripts,
    pub(crate) work: Arc<ReadLimit>,
    pub(crate) walker: Mutex<Option<Arc<Walker>>>,
    pub(crate) kept: Mutex<KeptFrames>,
}

/// The functions of a frame, and the code that they are in, if that is generated.
type Found = (Arc<[Frame]>, Option<Code>);

impl V8Process {
    pub(crate) fn new(layout: Arc<Layout>, builtins: Arc<Builtins>, file: (Device, u64)) -> Self {
        let work = Arc::<ReadLimit>::default();
        Self {
            layout,
            builtins,
            file,
            finder: Arc::default(),
            scripts: Scripts::new(work.clone()),
            work,
            walker: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// The functions of a frame. `None` if they cannot be read, or may be another frame's.
    fn functions(&self, heap: &Heap<'_>, record: &Record) -> Option<Found> {
        let is_same = || match record.function {
            Some((shared, identity)) => heap.identity(shared) == Some(identity),
            None => true,
        };
        if !is_same() {
            return None;
        }
        let is_in_code = record.place.is_in_code();
        let code = is_in_code.then(|| self.code_at(heap, record.instruction));
        let code = code.flatten();
        let called = match (&code, record.function) {
            (Some(found), _) if heap.is_regular_expression(found) => {
                let frames = marker(REGULAR_EXPRESSION);
                return heap.is_still(found).then_some((frames, code));
            }
            (Some(code), _) if heap.is_optimized(code) => self.optimized(heap, code, record)?,
            (Some(code), Some((shared, _))) => {
                // Else the code was replaced by another function's, the function by another one, or neither says.
                (heap.is_code_of(code, shared) == Some(true)).then_some(())?;
                let position = self.position(heap, record, Some(code));
                vec![Called { shared, position }]
            }
            // The frame had the function's bytecode.
            (None, Some((shared, _))) if !record.place.is_in_code() => {
                let position = self.position(heap, record, None);
                vec![Called { shared, position }]
            }
            _ => return None,
        };
        let frames = called.iter().map(|it| {
            let frame = heap.frame(&self.scripts, it.shared, it.position)?;
            Some(Frame::from(frame))
        });
        let frames: Arc<[Frame]> = frames.collect::<Option<_>>()?;
        let is_same_code = code.as_ref().is_none_or(|code| heap.is_still(code));
        (is_same() && is_same_code).then_some((frames, code))
    }

    /// The functions that were inlined at an instruction of optimized code, and the one that was optimized.
    fn optimized(&self, heap: &Heap<'_>, code: &Code, record: &Record) -> Option<Vec<Called>> {
        let distance = record.instruction.checked_sub(code.range.start)?;
        let called = heap.optimized(code, distance, record.place == Place::Call)?;
        let outer = called.last()?;
        let identity = heap.identity(outer.shared)?;
        // Code alone says nothing: it may have replaced another function's since the stack was copied.
        let (_, expected) = record.function?;
        (identity == expected).then_some(called)
    }

    /// The position of a frame in its function, unless the code is optimized.
    fn position(&self, heap: &Heap<'_>, record: &Record, code: Option<&Code>) -> Option<u32> {
        let (shared, _) = record.function?;
        let bytecode = heap.bytecode(shared)?;
        let offset = match (record.place, code) {
            (Place::Bytecode(offset), _) => offset,
            (Place::Instruction | Place::Call, Some(code)) if heap.is_baseline(code) => {
                let distance = record.instruction.checked_sub(code.range.start)?;
                let sizes = self.builtins.sizes.as_ref()?;
                heap.baseline_offset(code, bytecode, distance, sizes)?
            }
            _ => return None,
        };
        heap.bytecode_position(bytecode, offset.into())
    }

    /// Returns whether a frame executes a function: other code is that of WebAssembly, and calls it.
    fn is_function(&self, heap: &Heap<'_>, record: &Record) -> bool {
        let is_compiled = || {
            let code = self.code_at(heap, record.instruction);
            code.is_some_and(|code| heap.is_compiled(&code))
        };
        !record.place.is_in_code() || record.function.is_some() || is_compiled()
    }

    fn code_at(&self, heap: &Heap<'_>, address: u64) -> Option<Code> {
        let walker = self.walker.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = walker.as_ref()?.start_of_code(address)?;
        drop(walker);
        self.finder.find(heap, address, floor)
    }

    /// The functions of a record that was read before, if the same code of the same function is still there: new code of
    /// another function may have its place, its size and its description's address.
    fn known(&self, heap: &Heap<'_>, key: &FrameRecord, record: &Record) -> Option<Arc<[Frame]>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.get(key)?;
        drop(kept);
        let Kept {
            frames,
            code,
            script,
        } = found;
        let (shared, identity) = record.function?;
        let is_still = code.is_none_or(|code| {
            heap.is_still(&code) && heap.is_code_of(&code, shared) == Some(true)
        });
        let is_same =
            heap.identity(shared) == Some(identity) && heap.key_of(shared) == Some(script);
        (is_still && is_same).then_some(frames)
    }
}

impl RuntimeProcess for V8Process {
    fn facts(&self) -> Attributes {
        let version = self.layout.version.to_string();
        vec![("version".into(), Value::String(version))]
    }

    fn reads_threads(&self) -> bool {
        false
    }

    fn thread(&self, _: &dyn Target, _: ThreadView) -> Result<Option<RuntimeThread>, RuntimeError> {
        Ok(None)
    }

    fn generated(&self, target: &dyn Target) -> Option<Arc<dyn GeneratedCode>> {
        let mut walker = Walker {
            layout: self.layout.clone(),
            builtins: self.builtins.clone(),
            finder: self.finder.clone(),
            code: Vec::new(),
            regions: Vec::new(),
            copies: Vec::new(),
        };
        let mut is_behind_code = false;
        let visited = target.executable_mappings(&mut |found| {
            let range = found.mapping.start..found.mapping.end;
            let is_code = found.mapping.inode == 0 && found.mapping.name.is_empty();
            match walker.regions.last_mut() {
                // Those of a core file may overlap.
                Some(last)
                    if is_code
                        && is_behind_code
                        && range.start.saturating_sub(last.end) <= MAX_GAP =>
                {
                    last.end = last.end.max(range.end);
                }
                _ if is_code => walker.regions.push(range.clone()),
                _ => walker.copies.extend(self.builtins_in(found)),
            }
            walker.code.extend(is_code.then_some(range));
            is_behind_code = is_code;
            if walker.code.len() + walker.copies.len() < MAX_RANGES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        visited.ok()?;
        let walker = Arc::new(walker);
        let mut last = self.walker.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(walker.clone());
        Some(walker)
    }

    fn frames(&self, target: &dyn Target, address: u64, record: &FrameRecord) -> Arc<[Frame]> {
        let native = |is_caller| {
            if is_caller {
                Arc::new([Frame::return_address(address)])
            } else {
                Arc::new([Frame::instruction(address)])
            }
        };
        if let Some(is_caller) = is_native_caller(record) {
            return native(is_caller);
        }
        let Some(decoded) = Record::decoded(record) else {
            return unnamed();
        };
        let heap = Heap {
            memory: target,
            layout: &self.layout,
        };
        if let Some(known) = self.known(&heap, record, &decoded) {
            return known;
        }
        // Before the functions are read: if it is another one then, it is not kept for that.
        let script = decoded.function.and_then(|(it, _)| heap.key_of(it));
        let limited = LimitedMemory::new(target, &self.work);
        let heap = Heap {
            memory: &limited,
            ..heap
        };
        let found = self.functions(&heap, &decoded);
        match found.filter(|_| !limited.was_denied()) {
            Some((frames, code)) => {
                if let Some(script) = script {
                    let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                    let frames = frames.clone();
                    let found = Kept {
                        frames,
                        code,
                        script,
                    };
                    kept.insert(*record, found);
                }
                frames
            }
            None if limited.was_denied() || self.is_function(&heap, &decoded) => unnamed(),
            None => native(decoded.place == Place::Call),
        }
    }
}

impl V8Process {
    /// The part of a mapping that has builtins. Its first address is that of the first builtin.
    fn builtins_in(&self, found: &ExecutableMapping<'_>) -> Option<Range<u64>> {
        let mapping = &found.mapping;
        let size = self.builtins.range.end - self.builtins.range.start;
        let skip = self.builtins.offset.checked_sub(mapping.offset)?;
        let start = mapping.start.checked_add(skip)?;
        let end = start.checked_add(size)?.min(mapping.end);
        let is_there = (mapping.device, mapping.inode) == self.file && start < end;
        is_there.then_some(start..end)
    }
}

/// A function whose name is not known.
fn unnamed() -> Arc<[Frame]> {
    marker("[JavaScript]")
}

/// A frame with this name, and no place.
fn marker(name: &str) -> Arc<[Frame]> {
    let frame = NamedFrame {
        kind: FrameKind::V8JS,
        function: name.into(),
        ..NamedFrame::default()
    };
    Arc::new([Frame::from(frame)])
}
