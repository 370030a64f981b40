//! The goroutines that no thread runs: their labels, and the functions in which they wait.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use otelctx_reader::format::process_context::Value;
use otelctx_reader::format::record::DecodedContext;
use otelctx_reader::remote::elf::{GoFunction, GoTable};
use otelctx_reader::remote::{LoadedModule, Machine, Target};
use otelctx_reader::runtime::{MAX_FRAMES, RuntimeError, Task};
use otelctx_reader::sample::{Found, FrameKind, NamedFrame};

use crate::file::Data;
use crate::ids::{self, LabelNames};
use crate::labels;
use crate::layout::Layout;

/// Maximum number of goroutines that are read.
const MAX_GOROUTINES: u64 = 1 << 20;
/// Number of addresses of goroutines that are read at once.
const AT_ONCE: usize = 4096;
/// Number of bytes of a stack that are read at once. Most goroutines that wait have no more.
const STACK: usize = 2048;
/// Number of bytes of a goroutine that are read at once: more than up to the last field in use, fewer than the smallest one has.
const GOROUTINE: usize = 384;
/// Maximum numbers of labels, of places in functions and their bytes (32 MiB), and of stacks that are kept to be used again,
/// and of frames of these stacks.
const MAX_LABELS: usize = 1 << 12;
const MAX_PLACES: usize = 1 << 14;
const MAX_PLACE_BYTES: usize = 32 << 20;
const MAX_STACKS: usize = 1 << 12;
const MAX_STACK_FRAMES: usize = 1 << 16;
/// The number of the first goroutine, which is the first of the list and never ends.
const FIRST: u64 = 1;

/// States of a goroutine (`_Grunnable` and others in Go's src/runtime/runtime2.go), and the bit that says that its stack is
/// being scanned.
const SCANNED: u32 = 0x1000;
const RUNNABLE: u32 = 1;
const RUNNING: u32 = 2;
const SYSTEM_CALL: u32 = 3;
const WAITING: u32 = 4;
const MOVING: u32 = 8;
const PREEMPTED: u32 = 9;

/// The list of all goroutines of a process (`runtime.allgs`).
#[derive(Debug)]
pub(crate) struct Goroutines {
    layout: Layout,
    data: Data,
    /// The program, for its functions.
    module: LoadedModule,
    names: Arc<LabelNames>,
    /// The address of the list's slice. `None` if it was not found.
    list: OnceLock<Option<u64>>,
}

/// One process while it is read.
struct Reading<'a> {
    goroutines: &'a Goroutines,
    target: &'a dyn Target,
    functions: Option<Arc<GoTable>>,
    labels: HashMap<u64, Found<DecodedContext>>,
    /// By the addresses of instructions.
    places: HashMap<u64, Place>,
    /// The bytes of their names and files.
    place_bytes: usize,
    /// By the addresses of the instructions in all their functions.
    stacks: HashMap<Box<[u64]>, Arc<[NamedFrame]>>,
    /// The number of frames in there.
    stack_frames: usize,
}

/// An instruction: its function, and the frames there.
#[derive(Clone)]
struct Place {
    /// Innermost first: of functions that were inlined there, and of the function itself.
    frames: Arc<[NamedFrame]>,
    /// The size of the function's frame there, in bytes.
    size: Option<u64>,
    /// The function is the first of a goroutine.
    is_first: bool,
}

impl Goroutines {
    pub(crate) fn new(
        layout: Layout,
        data: Data,
        module: LoadedModule,
        names: Arc<LabelNames>,
    ) -> Self {
        let list = OnceLock::new();
        Self {
            layout,
            data,
            module,
            names,
            list,
        }
    }

    /// Calls `visit` with each goroutine that no thread runs until it breaks.
    ///
    /// # Errors
    /// If their list is not found or cannot be read. A goroutine that cannot be read is skipped.
    pub(crate) fn visit(
        &self,
        target: &dyn Target,
        visit: &mut dyn FnMut(Task) -> ControlFlow<()>,
    ) -> Result<(), RuntimeError> {
        let list = *self.list.get_or_init(|| self.find(target));
        let list = list.ok_or_else(|| RuntimeError::new("its list of goroutines was not found"))?;
        let first = target.read_u64(list)?;
        let count = target.read_u64(list.wrapping_add(8))?;
        if count > MAX_GOROUTINES {
            let reason = format!("its list has {count} goroutines, more than {MAX_GOROUTINES}");
            return Err(RuntimeError::new(reason));
        }
        let mut reading = Reading {
            goroutines: self,
            target,
            functions: self.functions(target),
            labels: HashMap::new(),
            places: HashMap::new(),
            place_bytes: 0,
            stacks: HashMap::new(),
            stack_frames: 0,
        };
        let mut addresses = [[0; 8]; AT_ONCE];
        for from in (0..count as usize).step_by(AT_ONCE) {
            let addresses = &mut addresses[..(count as usize - from).min(AT_ONCE)];
            let at = first.wrapping_add(8 * from as u64);
            target.read(at, addresses.as_flattened_mut())?;
            for address in addresses.iter().map(|it| u64::from_ne_bytes(*it)) {
                // It may have been freed while the list was read: the process need not be stopped as a whole.
                let Ok(Some(task)) = reading.task(address) else {
                    continue;
                };
                if visit(task).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The table of the program's functions, which is read once per file.
    fn functions(&self, target: &dyn Target) -> Option<Arc<GoTable>> {
        struct Functions(Option<Arc<GoTable>>);
        let functions = self.module.fact(target, "", |elf| {
            // A damaged table is as good as none.
            Ok(Functions(GoTable::read(elf).ok().flatten().map(Arc::new)))
        });
        functions.ok()?.0.clone()
    }

    /// Finds the list: by its symbol, or as a slice whose first element is the first goroutine.
    fn find(&self, target: &dyn Target) -> Option<u64> {
        if self.data.goroutines.is_some() {
            return self.data.goroutines;
        }
        let mut found = None;
        let mut last = [(0, 0); 2];
        self.data.words(target, &mut |at, word| {
            // Three words that follow each other: the address, the length and the capacity.
            let [(start, address), (_, length)] = last;
            last = [last[1], (at, word)];
            let is_slice = at == start + 16 && (1..=word).contains(&length);
            if found.is_none()
                && is_slice
                && length <= MAX_GOROUTINES
                && self.is_list(target, address)
            {
                found = Some(start);
            }
        });
        found
    }

    /// Returns whether the first element of a slice is the first goroutine.
    fn is_list(&self, target: &dyn Target, address: u64) -> bool {
        let goroutine = &self.layout.goroutine;
        let word = |address: u64, offset| target.read_u64(address.wrapping_add(offset));
        let Ok(first) = word(address, 0) else {
            return false;
        };
        // Its stack's bounds are its first words.
        let bounds = word(first, 0).and_then(|low| Ok(low..word(first, 8)?));
        let stack_pointer = word(first, goroutine.stack_pointer);
        let is_first = word(first, goroutine.id) == Ok(FIRST);
        match (bounds, stack_pointer) {
            (Ok(bounds), Ok(at)) => is_first && bounds.contains(&at),
            _ => false,
        }
    }
}

impl Reading<'_> {
    /// Reads a goroutine. `None` if it has ended, or a thread runs it.
    fn task(&mut self, address: u64) -> Result<Option<Task>, RuntimeError> {
        let layout = &self.goroutines.layout;
        let (goroutine, target) = (&layout.goroutine, self.target);
        let mut bytes = [0; GOROUTINE];
        target.read(address, &mut bytes)?;
        let word = |offset: u64| match bytes.get(offset as usize..).and_then(|it| it.first_chunk())
        {
            Some(bytes) => Ok(u64::from_ne_bytes(*bytes)),
            None => target.read_u64(address.wrapping_add(offset)),
        };
        let status = word(goroutine.status)? as u32 & !SCANNED;
        let state = match status {
            RUNNABLE => "runnable",
            WAITING => "waiting",
            PREEMPTED => "preempted",
            MOVING => "moving",
            RUNNING | SYSTEM_CALL => "",
            _ => return Ok(None),
        };
        let thread = word(goroutine.thread)?;
        if thread != 0 {
            let current = thread.wrapping_add(layout.thread.goroutine);
            if target.read_u64(current)? == address {
                return Ok(None);
            }
        }
        let mut task = Task::new(word(goroutine.id)?);
        if !state.is_empty() {
            task.facts = vec![("state".into(), Value::String(state.into()))];
        }
        task.context = self.context(word(goroutine.labels)?)?;
        // Its stack is where it was, or is copied to.
        if status != MOVING {
            let (stack_pointer, pc) = (word(goroutine.stack_pointer)?, word(goroutine.pc)?);
            (task.frames, task.is_truncated) = self.frames(stack_pointer, pc);
        }
        Ok(Some(task))
    }

    fn context(&mut self, address: u64) -> Result<Found<DecodedContext>, RuntimeError> {
        if let Some(known) = self.labels.get(&address) {
            return Ok(known.clone());
        }
        let kind = self.goroutines.layout.labels;
        let labels = labels::read(self.target, kind, address)?;
        let context = match labels.labels.is_empty() {
            true => Found::Detached,
            false => Found::Attached(ids::context(labels.labels, &self.goroutines.names)),
        };
        if self.labels.len() < MAX_LABELS {
            self.labels.insert(address, context.clone());
        }
        Ok(context)
    }

    /// The frames of a goroutine that will go on at this address with this stack pointer; and whether there are more.
    fn frames(&mut self, mut stack_pointer: u64, mut pc: u64) -> (Arc<[NamedFrame]>, bool) {
        let Some(table) = self.functions.clone() else {
            return (Arc::default(), true);
        };
        let stack = Stack::read(self.target, stack_pointer);
        let (mut addresses, mut places) = (Vec::new(), Vec::new());
        let mut is_whole = false;
        let mut count = 0;
        while !is_whole {
            let after = pc.wrapping_sub(self.goroutines.module.bias);
            // A goroutine that has not begun is at the first instruction of its function.
            let function = places.is_empty().then(|| table.function_at(after));
            let is_start = function
                .flatten()
                .is_some_and(|it| it.range().start == after);
            let at = if is_start {
                after
            } else {
                after.wrapping_sub(1)
            };
            let Some(place) = self.place(&table, at) else {
                break;
            };
            let caller = place
                .size
                .and_then(|size| stack.caller(stack_pointer, size));
            count += place.frames.len();
            if count > MAX_FRAMES {
                break;
            }
            is_whole = place.is_first;
            addresses.push(at);
            places.push(place);
            let Some(caller) = caller else { break };
            (pc, stack_pointer) = caller;
        }
        (self.stack(addresses, &places), !is_whole)
    }

    /// The place of an instruction at an address in the table.
    fn place(&mut self, table: &GoTable, at: u64) -> Option<Place> {
        if let Some(known) = self.places.get(&at) {
            return Some(known.clone());
        }
        let function = table.function_at(at)?;
        let (target, bias) = (self.target, self.goroutines.module.bias);
        let mut read = |address: u64, buffer: &mut [u8]| {
            target.read(address.wrapping_add(bias), buffer).is_ok()
        };
        let calls = function.calls(at, &mut read).into_iter();
        let frames = calls.map(|call| NamedFrame {
            function: without_types(&call.name),
            kind: FrameKind::new("go"),
            file: call.file,
            line: call.line,
            ..NamedFrame::default()
        });
        let place = Place {
            frames: frames.collect(),
            size: size_at(&function, at),
            is_first: function.is_first(),
        };
        let bytes: usize = place.frames.iter().map(NamedFrame::memory).sum();
        if self.places.len() < MAX_PLACES && self.place_bytes + bytes <= MAX_PLACE_BYTES {
            self.place_bytes += bytes;
            self.places.insert(at, place.clone());
        }
        Some(place)
    }

    /// The frames of these places, which goroutines share that wait in the same ones.
    fn stack(&mut self, addresses: Vec<u64>, places: &[Place]) -> Arc<[NamedFrame]> {
        if let Some(known) = self.stacks.get(&addresses[..]) {
            return known.clone();
        }
        let frames = places.iter().flat_map(|place| place.frames.iter().cloned());
        let frames: Arc<[NamedFrame]> = frames.collect();
        if self.stacks.len() < MAX_STACKS && self.stack_frames + frames.len() <= MAX_STACK_FRAMES {
            self.stack_frames += frames.len();
            self.stacks.insert(addresses.into(), frames.clone());
        }
        frames
    }
}

/// The size of a function's frame at an address, in bytes.
fn size_at(function: &GoFunction<'_>, address: u64) -> Option<u64> {
    let mut size = None;
    function.stack_sizes(&mut |from, new| {
        if from > address {
            return ControlFlow::Break(());
        }
        size = u64::try_from(new).ok();
        ControlFlow::Continue(())
    });
    size
}

/// A function's name with `[...]` in the place of types, as Go's tools write it: `main.sum[...]`.
fn without_types(name: &str) -> String {
    match (name.find('['), name.rfind(']')) {
        (Some(from), Some(to)) if from < to => {
            format!("{}[...]{}", &name[..from], &name[to + 1..])
        }
        _ => name.to_owned(),
    }
}

/// A stack's beginning, and the memory that has more of it.
struct Stack<'a> {
    target: &'a dyn Target,
    start: u64,
    bytes: Vec<u8>,
    is_x86_64: bool,
}

impl<'a> Stack<'a> {
    fn read(target: &'a dyn Target, start: u64) -> Self {
        let mut bytes = vec![0; STACK];
        if target.read(start, &mut bytes).is_err() {
            bytes.clear();
        }
        Self {
            target,
            start,
            bytes,
            is_x86_64: target.machine() == Machine::X86_64,
        }
    }

    /// The address that a function returns to, and the stack pointer then.
    fn caller(&self, stack_pointer: u64, size: u64) -> Option<(u64, u64)> {
        let end = stack_pointer.checked_add(size)?;
        match self.is_x86_64 {
            true => Some((self.word(end)?, end.checked_add(8)?)),
            // The link register was stored at the lowest address; a function without a frame has not stored it.
            false if size == 0 => None,
            false => Some((self.word(stack_pointer)?, end)),
        }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        match self.bytes.get(at..).and_then(|it| it.first_chunk()) {
            Some(bytes) => Some(u64::from_ne_bytes(*bytes)),
            None => self.target.read_u64(address).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_generic_functions_are_left_out_of_names() {
        for (name, readable) in [
            ("main.sum[go.shape.int]", "main.sum[...]"),
            ("main.(*list[go.shape.[]int]).add", "main.(*list[...]).add"),
            ("main.sum[...]", "main.sum[...]"),
            ("main.(*shop).serve", "main.(*shop).serve"),
            ("main.]odd[", "main.]odd["),
        ] {
            assert_eq!(without_types(name), readable);
        }
    }
}
