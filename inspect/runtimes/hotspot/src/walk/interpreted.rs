//! Frames of the interpreter, on x86-64 (`frame_x86.hpp`, `templateInterpreterGenerator_x86.cpp`).

use std::ops::Range;

use otelctx_reader::remote::{FrameRegisters, GeneratedEnd, GeneratedFrame, Memory, MemoryError};

use super::{HotSpotCode, MAX_INTERPRETED, R13, RAX, RBP, RBX, RSP, Step, code, frame};
use crate::layout::{Interpreter, read_int};
use crate::method::Method;
use crate::record::Record;
use crate::tables::c_string;

/// Words from the frame pointer to the stack pointer of the caller, and to the method.
const SENDER: i64 = -1;
const METHOD: i64 = -3;
/// The same while the frame is being made.
const MAX_NEW_FRAME: u64 = 0x800;
/// Maximum number of the interpreter's pieces of code. There are some 300.
const MAX_CODELETS: u64 = 4096;

/// The code in which the interpreter enters a method, and makes its frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Codelets {
    /// Number of all pieces of the interpreter's code.
    stubs: u64,
    /// The addresses of them all.
    all: Range<u64>,
    /// Sorted addresses.
    entries: Vec<(u64, u64)>,
}

impl Codelets {
    pub(crate) fn read(memory: &dyn Memory, of: &Interpreter) -> Result<Self, MemoryError> {
        let queue = memory.read_u64(of.code)?;
        let number = |field| read_int(memory, queue, field);
        let mut at = memory
            .read_u64(queue.wrapping_add(of.buffer))?
            .wrapping_add(number(of.queue_start)?);
        let (mut entries, stubs) = (Vec::new(), number(of.stubs)?);
        let start = at;
        for _ in 0..stubs.min(MAX_CODELETS) {
            let size = read_int(memory, at, of.stub_size)?;
            let name = memory.read_u64(at.wrapping_add(of.stub_description))?;
            let end = at.wrapping_add(size);
            if c_string(memory, name).is_ok_and(|name| name.starts_with("method entry point")) {
                entries.push((at, end));
            }
            if end <= at {
                break;
            }
            at = end;
        }
        Ok(Self {
            stubs,
            all: start..at,
            entries,
        })
    }

    /// Returns true if there were as many pieces when they were read `before`.
    pub(crate) fn are_settled(&self, before: &Self) -> bool {
        self.stubs != 0 && self.stubs == before.stubs
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        self.all.contains(&address)
    }

    fn is_entry(&self, address: u64) -> bool {
        let behind = self.entries.partition_point(|it| it.0 <= address);
        let entry = behind.checked_sub(1).map(|at| self.entries[at]);
        entry.is_some_and(|(_, end)| address < end)
    }
}

impl Step<'_> {
    pub(super) fn interpreted(&self) -> Result<GeneratedFrame, GeneratedEnd> {
        if self.is_innermost
            && self.of.codelets.is_entry(self.pc)
            && let Some(found) = self.entered_method()?
        {
            return Ok(found);
        }
        let interrupted = self.is_innermost.then(|| self.code_at(self.pc));
        let returns = interrupted.and_then(|code| code::interpreter_returns(&code));
        if let Some(found) = returns.filter(|it| it.stack_pointer.is_some())
            && let Some(caller) = self.left_method(found)?
        {
            return Ok(frame(caller, None));
        }
        let found = self.method_frame();
        if found.is_err() && self.is_innermost {
            if let Some(returns) = returns
                && let Some(caller) = self.left_method(returns)?
            {
                return Ok(frame(caller, None));
            }
            // Its frame has been removed, but for the return address.
            let caller = self.at_return()?;
            if self.of.cache.contains(caller.instruction_pointer) {
                return Ok(frame(caller, None));
            }
        }
        found
    }

    /// The caller of a method whose frame has been removed, which is about to return. `None` if it is not.
    fn left_method(&self, returns: code::Return) -> Result<Option<FrameRegisters>, GeneratedEnd> {
        let address = match returns.is_on_stack {
            true => Some(self.word(self.sp)?),
            false => self.frame.get(returns.address),
        };
        let sp = match returns.stack_pointer {
            Some(register) => self.frame.get(register),
            None => Some(self.sp),
        };
        let Some((address, sp)) = address.zip(sp) else {
            return Ok(None);
        };
        if !self.of.cache.contains(address) || sp < self.sp {
            return Ok(None);
        }
        let mut caller = FrameRegisters::new(address);
        caller.set(RSP, sp);
        caller.set(RBP, self.frame_pointer()?);
        Ok(Some(caller))
    }

    /// The method in the interpreter's frame with this frame pointer.
    pub(super) fn method_of(&self, frame_pointer: u64) -> Option<Method> {
        let slot = frame_pointer.wrapping_add_signed(8 * METHOD);
        Method::read(self.memory, &self.of.layout, self.word(slot).ok()?)
    }

    /// The position in a method that its frame has saved.
    fn position(&self, method: &Method, saved: u64) -> Option<u16> {
        // JDK 8 has the position itself there while it collects garbage (`frame::interpreter_frame_bcx`).
        let is_position =
            self.of.layout.major == 8 && saved < method.code.1.saturating_sub(method.code.0);
        let position = || u16::try_from(saved).ok().filter(|_| is_position);
        method.position(saved).or_else(position)
    }

    /// Returns whether the interpreter's frame with this frame pointer has a method, and a place in that.
    pub(super) fn is_whole(&self, frame_pointer: u64) -> bool {
        let slot = 8 * self.of.layout.interpreter.bytecode_slot;
        let saved = self.word(frame_pointer.wrapping_add_signed(slot));
        let method = self.method_of(frame_pointer);
        method.zip(saved.ok()).is_some_and(|(method, saved)| {
            method.is_native || self.position(&method, saved).is_some()
        })
    }

    /// The caller of a method whose frame is complete.
    fn method_frame(&self) -> Result<GeneratedFrame, GeneratedEnd> {
        let frame_pointer = self.frame_pointer()?;
        let most = self.sp.saturating_add(MAX_INTERPRETED);
        if !(self.sp..most).contains(&frame_pointer) || frame_pointer % 8 != 0 {
            return Err(GeneratedEnd::Unexpected(
                "no frame pointer in the interpreter",
            ));
        }
        let slot = |slot: i64| self.word(frame_pointer.wrapping_add_signed(8 * slot));
        let layout = &self.of.layout;
        let method = Method::read(self.memory, layout, slot(METHOD)?);
        let method = method.ok_or(GeneratedEnd::Unexpected("no method in the interpreter"))?;
        let saved = slot(layout.interpreter.bytecode_slot)?;
        // The register has the newest position, unless the code uses it for something else.
        let current = self.frame.get(R13).filter(|_| self.is_innermost);
        let position = current.and_then(|current| method.position(current));
        let position = position.or_else(|| self.position(&method, saved));
        if position.is_none() && !method.is_native {
            return Err(GeneratedEnd::Unexpected(
                "no place in the method in the interpreter",
            ));
        }
        let mut caller = FrameRegisters::new(slot(1)?);
        if !self.of.cache.contains(caller.instruction_pointer) {
            return Err(GeneratedEnd::Unexpected(
                "no return address in the interpreter",
            ));
        }
        caller.set(RSP, slot(SENDER)?);
        caller.set(RBP, slot(0)?);
        Ok(frame(caller, Some(self.of.record(&method, position))))
    }

    /// The caller of a method whose frame is not complete: rbx has the method, and r13 the caller's stack pointer. `None` if it
    /// is complete.
    fn entered_method(&self) -> Result<Option<GeneratedFrame>, GeneratedEnd> {
        let (sp, frame_pointer) = (self.sp, self.frame_pointer()?);
        let registers = self.frame.get(RBX).zip(self.frame.get(R13));
        let (address, sender) = registers.ok_or(GeneratedEnd::UnknownRegister)?;
        let Some(method) = Method::read(self.memory, &self.of.layout, address) else {
            return Ok(None);
        };
        let word = |address: u64| self.memory.read_u64(address).ok();
        let is_near = (sp..sp.saturating_add(MAX_NEW_FRAME)).contains(&frame_pointer);
        let of_frame = word(frame_pointer.wrapping_add_signed(8 * METHOD));
        // The place in the bytecode and one more slot are filled last. From there on, it may be the caller's frame.
        let slots = self.of.layout.interpreter.bytecode_slot.unsigned_abs() + 1;
        let has_slots = sp <= frame_pointer.wrapping_sub(8 * slots);
        // The first slot is filled at once; the register gets another value soon. It may be one word below the caller's stack:
        // a method handle that is called takes an argument away.
        let saved = word(frame_pointer.wrapping_sub(8));
        let above = frame_pointer.saturating_add(8)..frame_pointer.saturating_add(MAX_INTERPRETED);
        let saved = saved.filter(|saved| above.contains(saved));
        if is_near && of_frame == Some(address) && has_slots {
            return Ok(None);
        }
        let record = Some(self.of.record(&method, Some(0)));
        // The frame pointer is set, and the slots below it are being filled.
        let is_new = is_near && frame_pointer < sp.saturating_add(8 * slots);
        let returns_to = word(frame_pointer.wrapping_add(8));
        let returns_to = returns_to.filter(|address| self.of.cache.contains(*address));
        let set = match frame_pointer == sp {
            true => Some(sender),
            false => saved.filter(|_| is_new),
        };
        if let Some((sender, address)) = set.zip(returns_to) {
            let mut caller = FrameRegisters::new(address);
            caller.set(RSP, sender);
            caller.set(RBP, self.word(frame_pointer)?);
            return Ok(Some(frame(caller, record)));
        }
        // The return address is at the stack pointer, in rax, or below a word that was pushed.
        let above = sp.wrapping_add(8);
        let places = [word(sp), self.frame.get(RAX), word(above)];
        let mut places = places.into_iter().flatten();
        let Some(address) = places.find(|address| self.of.cache.contains(*address)) else {
            return Ok(None);
        };
        let mut caller = FrameRegisters::new(address);
        caller.set(RSP, sender.max(above));
        caller.set(RBP, frame_pointer);
        Ok(Some(frame(caller, record)))
    }
}

impl HotSpotCode {
    fn record(&self, method: &Method, position: Option<u16>) -> Record {
        Record::Interpreted {
            method: method.address,
            identity: method.identity(&self.layout, self.class_number),
            position: position.filter(|_| !method.is_native),
        }
    }
}
