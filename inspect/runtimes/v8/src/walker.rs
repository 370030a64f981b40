//! Steps from a frame in V8's code to its caller. All of V8's functions have frame pointers, from the first instructions on.

use std::ops::Range;
use std::sync::Arc;

use otelctx_reader::remote::{
    FrameRecord, FrameRegisters, GeneratedCode, GeneratedEnd, GeneratedFrame, Memory, MemoryError,
};

use crate::builtins::Builtins;
use crate::code::{Code, CodeFinder};
use crate::heap::{Heap, Object, small_integer};
use crate::layout::Layout;
use crate::record::{Place, Record, native};
use crate::stage::Stage;

// Registers by their DWARF numbers (System V ABI for x86-64, figure 3.36), and what V8 has in them.
const FUNCTION: u8 = 5;
const FRAME_POINTER: u8 = 6;
const STACK_POINTER: u8 = 7;
const BYTECODE_OFFSET: u8 = 9;
/// While a function removes its arguments.
const RETURN_ADDRESS: u8 = 10;

/// Maximum size of a frame, in bytes: that of the stack.
const MAX_FRAME: u64 = 8 << 20;
/// Bytes below the frame pointer that are read of a frame, and in all.
const BELOW: u64 = 48;
const FRAME: usize = 64;
/// The place of the function in a frame, below the return address, in bytes.
const BELOW_RETURN_ADDRESS: u64 = 24;
/// Number of words below which the return address of a builtin without a frame is.
const MAX_PUSHED: u64 = 12;
/// The code of V8 in a process.
#[derive(Debug)]
pub(crate) struct Walker {
    pub(crate) layout: Arc<Layout>,
    pub(crate) builtins: Arc<Builtins>,
    pub(crate) finder: Arc<CodeFinder>,
    /// Memory with generated code, in ascending order.
    pub(crate) code: Vec<Range<u64>>,
    /// The same, with unmapped memory between parts of it that have no other code between them.
    pub(crate) regions: Vec<Range<u64>>,
    /// Addresses of builtins in the process. V8 can have them twice, for calls over a short distance.
    pub(crate) copies: Vec<Range<u64>>,
}

/// What an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Area {
    /// Generated code, in a mapping that starts at this address.
    Generated(u64),
    /// The interpreter's code, which executes in the frame of the function.
    Interpreter,
    Builtin,
}

impl Walker {
    fn area(&self, address: u64) -> Option<Area> {
        let inside = |range: &&Range<u64>| range.contains(&address);
        if let Some(copy) = self.copies.iter().find(inside) {
            let in_module = self.builtins.range.start + (address - copy.start);
            return Some(if self.builtins.is_interpreter(in_module) {
                Area::Interpreter
            } else {
                Area::Builtin
            });
        }
        let behind = self.code.partition_point(|it| it.start <= address);
        let range = behind.checked_sub(1).map(|at| &self.code[at]);
        let range = range.filter(|range| range.contains(&address));
        range.map(|range| Area::Generated(range.start))
    }

    /// The start of the mapping with generated code at an address.
    pub(crate) fn start_of_code(&self, address: u64) -> Option<u64> {
        match self.area(address)? {
            Area::Generated(start) => Some(start),
            _ => None,
        }
    }

    /// The record of a frame with this function. Without one, code alone says which function it is.
    fn record(
        heap: &Heap<'_>,
        instruction: u64,
        function: Option<Object>,
        place: Place,
    ) -> FrameRecord {
        let function = function.and_then(|function| {
            let shared = heap.shared(function)?;
            Some((shared, heap.identity(shared)?))
        });
        let record = Record {
            instruction,
            function,
            place,
        };
        record.encoded()
    }

    /// A frame whose frame pointer is its caller's.
    fn without_frame(
        &self,
        heap: &Heap<'_>,
        frame: &FrameRegisters,
        area: Area,
        stage: Stage,
    ) -> Result<GeneratedFrame, GeneratedEnd> {
        let stack = register(frame, STACK_POINTER)?;
        let pushed = if stage == Stage::Pushed { 8 } else { 0 };
        let return_address = heap.memory.read_u64(stack.wrapping_add(pushed))?;
        let mut caller = FrameRegisters::new(return_address);
        caller.set(STACK_POINTER, stack.wrapping_add(pushed + 8));
        if stage == Stage::Pushed {
            caller.set(FRAME_POINTER, heap.memory.read_u64(stack)?);
        } else if let Some(pointer) = frame.get(FRAME_POINTER) {
            caller.set(FRAME_POINTER, pointer);
        }
        let record = if matches!(area, Area::Generated(_)) {
            let function = match stage {
                // It is still where the frame was.
                Stage::Returning => {
                    let at = stack.wrapping_sub(BELOW_RETURN_ADDRESS);
                    heap.memory.read_u64(at).ok()
                }
                _ => frame.get(FUNCTION),
            };
            let function = function.and_then(|word| heap.function(word));
            Self::record(
                heap,
                frame.instruction_pointer,
                function,
                Place::Instruction,
            )
        } else {
            native(false)
        };
        let record = Some(record);
        Ok(GeneratedFrame { caller, record })
    }

    /// Returns whether an address to return to is in the function whose frame has these words. The stack may be older than the
    /// heap, and the function have been moved since: then it is another one.
    fn returns_into(
        &self,
        heap: &Heap<'_>,
        words: &Words,
        function: Object,
        return_address: u64,
    ) -> bool {
        let called = return_address.wrapping_sub(1);
        let Some(shared) = heap.shared(function) else {
            return false;
        };
        match self.area(called) {
            Some(Area::Generated(start)) => {
                let code = self.finder.find(heap, called, start);
                code.and_then(|code| heap.is_code_of(&code, shared)) == Some(true)
            }
            Some(Area::Interpreter) => words.is_of(heap, shared),
            Some(Area::Builtin) | None => false,
        }
    }

    /// The caller of a builtin that has no frame of its own, which is called by the function whose frame is there.
    fn caller_of_builtin(
        &self,
        heap: &Heap<'_>,
        stack: u64,
        words: &Words,
        function: Object,
    ) -> Option<FrameRegisters> {
        let count = (words.pointer.checked_sub(stack)? / 8).min(MAX_PUSHED);
        let places = (0..count).map(|index| stack + 8 * index);
        let mut places = places.filter_map(|at| Some((at, heap.memory.read_u64(at).ok()?)));
        let is_it = |(_, word): &(u64, u64)| self.returns_into(heap, words, function, *word);
        let (at, return_address) = places.find(is_it)?;
        let mut caller = FrameRegisters::new(return_address);
        caller.set(STACK_POINTER, at + 8);
        caller.set(FRAME_POINTER, words.pointer);
        Some(caller)
    }

    /// The caller of a function that has left its frame, so that the frame pointer leads to another function's: the return
    /// address is on top of the stack, or taken from it to remove the arguments. `None` if it has not.
    fn caller_of_left(
        &self,
        heap: &Heap<'_>,
        frame: &FrameRegisters,
        code: &Code,
        words: &Words,
        function: Object,
    ) -> Option<FrameRegisters> {
        let is_other = heap.is_code_of(code, heap.shared(function)?) == Some(false);
        let stack = frame.get(STACK_POINTER).filter(|_| is_other)?;
        let top = heap.memory.read_u64(stack).ok();
        let mut addresses = [top, frame.get(RETURN_ADDRESS)].into_iter().flatten();
        let is_it = |word: &u64| self.returns_into(heap, words, function, *word);
        let mut caller = FrameRegisters::new(addresses.find(is_it)?);
        // There is the return address, or an argument.
        caller.set(STACK_POINTER, stack.wrapping_add(8));
        caller.set(FRAME_POINTER, words.pointer);
        Some(caller)
    }

    /// Returns whether generated code is a function's copy of the interpreter's, which executes in the frame of the function.
    fn is_copied_interpreter(
        &self,
        heap: &Heap<'_>,
        words: &Words,
        function: Object,
        address: u64,
        start: u64,
    ) -> bool {
        // Frames of other code have no integer there, and reading that takes less than finding the code.
        let code = small_integer(words.bytecode_offset)
            .and_then(|_| self.finder.find(heap, address, start))
            .filter(|code| heap.is_interpreter(code));
        let shared = heap.shared(function);
        let is_its = code.zip(shared);
        is_its.and_then(|(code, shared)| heap.is_code_of(&code, shared)) == Some(true)
    }

    /// The frame of an interpreted function.
    fn interpreted(
        &self,
        heap: &Heap<'_>,
        frame: &FrameRegisters,
        words: &Words,
        is_innermost: bool,
    ) -> GeneratedFrame {
        let is_its = |function: &Object| {
            let shared = heap.shared(*function);
            shared.is_some_and(|shared| words.is_of(heap, shared))
        };
        let function = words.function(heap).filter(is_its);
        let register = frame.get(BYTECODE_OFFSET).filter(|_| is_innermost);
        let place = self.bytecode_offset(heap, words, register);
        let instruction = frame.instruction_pointer;
        GeneratedFrame {
            caller: words.caller(),
            record: Some(Self::record(heap, instruction, function, place)),
        }
    }

    /// The offset in the bytecode of an interpreted function that was interrupted, or calls another.
    fn bytecode_offset(&self, heap: &Heap<'_>, words: &Words, register: Option<u64>) -> Place {
        // From the array's start, whose address is its own with the tag.
        let header = self.layout.bytecode_data - 1;
        let array = Object::strong(words.bytecode);
        let array = array.and_then(|it| heap.of_type(it, self.layout.types.bytecode));
        let length = array.and_then(|array| heap.bytecode_length(array));
        let offset = |value: u64| {
            let offset = u32::try_from(value.checked_sub(header)?).ok()?;
            length
                .is_some_and(|length| offset < length)
                .then_some(offset)
        };
        // The frame has that of the last call.
        let saved = small_integer(words.bytecode_offset).and_then(|it| u64::try_from(it).ok());
        let found = register.and_then(offset).or_else(|| offset(saved?));
        found.map_or(Place::Unknown, Place::Bytecode)
    }
}

/// The words around a frame pointer.
struct Words {
    pointer: u64,
    bytecode_offset: u64,
    bytecode: u64,
    function: u64,
    context_or_type: u64,
    frame_pointer: u64,
    return_address: u64,
}

impl Words {
    fn read(memory: &dyn Memory, pointer: u64) -> Result<Self, MemoryError> {
        let start = pointer.wrapping_sub(BELOW);
        let mut bytes = [0; FRAME];
        // Copies of stacks are read by words.
        let all = memory.read(start, &mut bytes).map(|()| bytes);
        let word = |index: usize| match &all {
            Ok(bytes) => Ok(u64::from_le_bytes(bytes.as_chunks::<8>().0[index])),
            Err(_) => memory.read_u64(start.wrapping_add(8 * index as u64)),
        };
        Ok(Self {
            pointer,
            bytecode_offset: word(1)?,
            bytecode: word(2)?,
            function: word(4)?,
            context_or_type: word(5)?,
            frame_pointer: word(6)?,
            return_address: word(7)?,
        })
    }

    /// The caller of the frame.
    fn caller(&self) -> FrameRegisters {
        let mut caller = FrameRegisters::new(self.return_address);
        caller.set(STACK_POINTER, self.pointer.wrapping_add(16));
        caller.set(FRAME_POINTER, self.frame_pointer);
        caller
    }

    /// Returns whether the frame has its type where a function's frame has its context.
    fn is_typed(&self) -> bool {
        self.context_or_type & 1 == 0
    }

    /// Returns whether the frame has a function's bytecode, as those of interpreted functions and of baseline code.
    fn is_of(&self, heap: &Heap<'_>, shared: Object) -> bool {
        let bytecode = Object::strong(self.bytecode);
        bytecode.is_some() && heap.bytecode(shared) == bytecode
    }

    /// The function of the frame.
    fn function(&self, heap: &Heap<'_>) -> Option<Object> {
        (!self.is_typed()).then(|| heap.function(self.function))?
    }
}

/// Returns whether a function is of a script, and not one of V8's own.
fn is_of_script(heap: &Heap<'_>, function: Object) -> bool {
    let shared = heap.shared(function);
    shared.is_some_and(|shared| heap.identity(shared).is_some())
}

fn register(frame: &FrameRegisters, number: u8) -> Result<u64, GeneratedEnd> {
    frame.get(number).ok_or(GeneratedEnd::UnknownRegister)
}

impl GeneratedCode for Walker {
    fn ranges(&self) -> Vec<Range<u64>> {
        let ranges = self.regions.iter().chain(&self.copies);
        let mut ranges: Vec<_> = ranges.cloned().collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    fn has_frame_pointers(&self) -> bool {
        true
    }

    fn covers(&self, address: u64) -> bool {
        self.area(address).is_some()
    }

    fn step(
        &self,
        memory: &dyn Memory,
        frame: &FrameRegisters,
        is_innermost: bool,
    ) -> Result<GeneratedFrame, GeneratedEnd> {
        let heap = Heap {
            memory,
            layout: &self.layout,
        };
        let pc = frame.instruction_pointer;
        let instruction = pc.wrapping_sub(u64::from(!is_innermost));
        let area = self.area(instruction);
        let area = area.ok_or(GeneratedEnd::Unexpected("it is not V8's"))?;
        let (mut stage, mut code) = (Stage::Built, None);
        if is_innermost {
            if let Area::Generated(start) = area {
                code = self.finder.find(&heap, pc, start);
            }
            stage = Stage::at(&heap, pc, code.as_ref());
            if !matches!(stage, Stage::Built | Stage::Unfilled) {
                return self.without_frame(&heap, frame, area, stage);
            }
        }
        let (stack, pointer) = (
            register(frame, STACK_POINTER)?,
            register(frame, FRAME_POINTER)?,
        );
        let is_frame = pointer.is_multiple_of(8) && pointer.wrapping_sub(stack) < MAX_FRAME;
        if !is_frame {
            let why = "the frame pointer is not in the stack";
            return Err(GeneratedEnd::Unexpected(why));
        }
        let words = Words::read(memory, pointer)?;
        let function = match stage {
            Stage::Unfilled => frame.get(FUNCTION).and_then(|word| heap.function(word)),
            _ => words.function(&heap),
        };
        let of_script = function.filter(|function| is_of_script(&heap, *function));
        if let (Some(code), Some(function)) = (&code, of_script)
            && let Some(caller) = self.caller_of_left(&heap, frame, code, &words, function)
        {
            let place = Place::Instruction;
            let record = Some(Self::record(&heap, instruction, None, place));
            return Ok(GeneratedFrame { caller, record });
        }
        let is_interpreted = |function| match area {
            Area::Interpreter => true,
            Area::Generated(start) => {
                self.is_copied_interpreter(&heap, &words, function, instruction, start)
            }
            Area::Builtin => false,
        };
        if of_script.is_some_and(is_interpreted) {
            return Ok(self.interpreted(&heap, frame, &words, is_innermost));
        }
        if area == Area::Builtin
            && is_innermost
            && let Some(function) = of_script
            && let Some(caller) = self.caller_of_builtin(&heap, stack, &words, function)
        {
            let record = Some(native(false));
            return Ok(GeneratedFrame { caller, record });
        }
        let place = match area {
            Area::Generated(_) if is_innermost => Place::Instruction,
            Area::Generated(_) => Place::Call,
            // Its own frame is not there, and its caller's place not known.
            Area::Interpreter | Area::Builtin => Place::Unknown,
        };
        // A function that was moved and overwritten since is not known.
        let is_lost = match area {
            Area::Generated(_) => true,
            Area::Interpreter => !words.is_typed() && function.is_none(),
            Area::Builtin => false,
        };
        // A builtin that builds a function's frame, or whose caller's place is not known.
        let is_its = |function: &Object| {
            let shared = heap.shared(*function);
            area != Area::Builtin || shared.is_some_and(|shared| words.is_of(&heap, shared))
        };
        let function = of_script.filter(is_its);
        // The frame may be a caller's, of a function that was moved.
        let is_uncertain = code.as_ref().is_some_and(|code| {
            let shared = function.and_then(|function| heap.shared(function));
            let is_its = shared.and_then(|shared| heap.is_code_of(code, shared));
            is_its != Some(true) && (heap.is_compiled(code) || heap.is_interpreter(code))
        });
        let record = if is_uncertain {
            Self::record(&heap, instruction, None, Place::Unknown)
        } else if function.is_some() || is_lost {
            Self::record(&heap, instruction, function, place)
        } else {
            native(!is_innermost)
        };
        // A bytecode that calls has a frame of its own, which is part of the function's.
        let is_part = area == Area::Interpreter && words.is_typed();
        Ok(GeneratedFrame {
            caller: words.caller(),
            record: (!is_part).then_some(record),
        })
    }
}
