//! The walk over frames of generated code, on x86-64.
//!
//! HotSpot keeps no frame pointers: the frame of compiled code has a fixed size, which its blob says, and the bytes at the
//! instruction decide where a thread is interrupted before that is complete, or after. The interpreter keeps the frame
//! pointer, and fixed slots below it.

mod code;
mod interpreted;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use otelctx_reader::remote::{
    FrameRecord, FrameRegisters, GeneratedCode, GeneratedEnd, GeneratedFrame, Memory,
};

use crate::code_cache::{Blob, CodeCache, Heap, Kind};
use crate::layout::Layout;
use crate::record::Record;
pub(crate) use interpreted::Codelets;

/// DWARF's numbers.
pub(crate) const RAX: u8 = 0;
pub(crate) const RDX: u8 = 1;
pub(crate) const RBX: u8 = 3;
pub(crate) const RBP: u8 = 6;
pub(crate) const RSP: u8 = 7;
pub(crate) const R13: u8 = 13;
/// The thread's object.
pub(crate) const R15: u8 = 15;

/// Maximum number of words that code pushes beyond its frame, for a moment. In JDK 8, it pushes all registers where it calls
/// functions of mathematics.
const MAX_PUSHED: u64 = 8;
const MAX_PUSHED_OF_8: u64 = 160;
/// Maximum size of a frame of the interpreter, in bytes: its stack of operands has at most 64 Ki words.
const MAX_INTERPRETED: u64 = 1 << 20;
/// Maximum distance from the stack pointer to the frame pointer in a frame of a stub.
const MAX_STUB_FRAME: u64 = 512;
/// Maximum distance from the stack pointer to the arguments of a call that an adapter has moved.
const MAX_MOVED: u64 = 4096;

/// Walks the stacks of one process.
#[derive(Clone, Debug)]
pub(crate) struct HotSpotCode {
    pub(crate) layout: Arc<Layout>,
    pub(crate) cache: Arc<CodeCache>,
    /// The return address of the stub that calls Java.
    pub(crate) call_stub_return: u64,
    pub(crate) codelets: Codelets,
    /// The offset of the number of a class, if it is known.
    pub(crate) class_number: Option<u64>,
    /// The interpreter has generated all of its code.
    pub(crate) is_settled: bool,
}

/// What a call calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    This,
    /// Code that selects a method by the receiver's class.
    Dispatch,
    /// Another method.
    Other,
}

/// A frame whose caller is to be found.
struct Step<'s> {
    of: &'s HotSpotCode,
    memory: &'s dyn Memory,
    frame: &'s FrameRegisters,
    is_innermost: bool,
    pc: u64,
    sp: u64,
}

impl GeneratedCode for HotSpotCode {
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<_> = self.cache.heaps.iter().map(Heap::range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    fn covers(&self, address: u64) -> bool {
        self.cache.contains(address)
    }

    fn step(
        &self,
        memory: &dyn Memory,
        frame: &FrameRegisters,
        is_innermost: bool,
    ) -> Result<GeneratedFrame, GeneratedEnd> {
        let pc = frame.instruction_pointer;
        // The call may be the last instruction of its code.
        let called = pc.wrapping_sub(u64::from(!is_innermost));
        let blob = self.cache.blob(memory, &self.layout, called)?;
        let step = Step {
            of: self,
            memory,
            frame,
            is_innermost,
            pc,
            sp: frame.get(RSP).ok_or(GeneratedEnd::UnknownRegister)?,
        };
        step.caller(&blob)
    }
}

impl Step<'_> {
    fn caller(&self, blob: &Blob) -> Result<GeneratedFrame, GeneratedEnd> {
        let stub = Record::Stub {
            blob: blob.object.address,
            is_entry: self.pc == self.of.call_stub_return,
        };
        match &blob.kind {
            Kind::Interpreter => self.interpreted(),
            Kind::Method | Kind::Native => self.compiled(blob),
            Kind::Dispatch => self.returned(None),
            Kind::Adapter => self.adapter(),
            _ if self.pc == self.of.call_stub_return => self.by_frame_pointer(Some(stub)),
            Kind::Barrier if !self.is_innermost => self.by_frame_pointer(Some(stub)),
            _ if blob.frame_size > 0 => Ok(frame(self.sized_stub(blob)?, Some(stub))),
            _ if !self.is_innermost => self.by_frame_pointer(Some(stub)),
            _ => self.leaf(stub),
        }
    }

    /// The caller of a stub whose frame has a fixed size. Some pass on exceptions, and leave in other ways than a return: they
    /// have the address on the stack, or in rdx.
    fn sized_stub(&self, blob: &Blob) -> Result<FrameRegisters, GeneratedEnd> {
        let end = self.sp.wrapping_add(blob.frame_size);
        if blob.frame_complete.is_some() && !self.is_innermost {
            return self.at_frame(end);
        }
        let is_code = |it: &FrameRegisters| self.of.cache.contains(it.instruction_pointer);
        let returns = |it: &FrameRegisters| self.returns_to(it);
        if let Some(caller) = self.at_safepoint(blob).filter(is_code) {
            return Ok(caller);
        }
        if let Some(caller) = self.incomplete(blob, blob.start)?.filter(is_code) {
            return Ok(caller);
        }
        // Where the frame is said to be never complete, its size may be that of another moment.
        let by_frame_pointer = self.frame_pointer().ok().map(|it| it.wrapping_add(16));
        let by_size = self.at_frame(end);
        if by_frame_pointer == Some(end) && by_size.as_ref().is_ok_and(is_code) {
            return by_size;
        }
        let up_to = |limit: u64| by_frame_pointer.filter(|it| *it > self.sp && *it <= limit);
        // The caller's is further away, or that of a caller without a frame pointer of its own.
        let further = up_to(end.saturating_add(8 * MAX_PUSHED));
        let ends = [
            up_to(end),
            Some(end),
            self.frame_end(blob, end).ok(),
            further,
        ];
        let ends = ends.into_iter().flatten();
        let by_ends = ends.filter_map(|end| self.at_frame(end).ok()).find(returns);
        let mut without_frame = (0..=2).filter_map(|pushed| self.above(pushed).ok());
        if let Some(caller) = by_ends.or_else(|| without_frame.find(returns)) {
            return Ok(caller);
        }
        let passed_on = self.frame.get(RDX).filter(|_| self.is_innermost);
        let passed_on = passed_on.map(|address| {
            let mut caller = *self.frame;
            caller.instruction_pointer = address;
            caller
        });
        let others = [by_size.clone().ok(), self.at_return().ok(), passed_on];
        others
            .into_iter()
            .flatten()
            .find(is_code)
            .map_or(by_size, Ok)
    }

    /// The caller of the stub for safepoints that begins where a signal handler sets the thread to it. It pushes a register in place
    /// of the return address, and replaces that soon. `None` for other code, and then.
    fn at_safepoint(&self, blob: &Blob) -> Option<FrameRegisters> {
        // push %rbx; push %rbp; mov %rsp, %rbp
        const ENTRY: [u8; 5] = [0x53, 0x55, 0x48, 0x8b, 0xec];
        let entry = self
            .memory
            .read_vec(blob.start, ENTRY.len() as u64, ENTRY.len());
        if !self.is_innermost || entry.ok()? != ENTRY {
            return None;
        }
        let frame_pointer = self.frame_pointer().ok()?;
        let (end, frame_pointer) = match self.pc.checked_sub(blob.start)? {
            0 => (self.sp, frame_pointer),
            1 => (self.sp.wrapping_add(8), frame_pointer),
            2..5 => (self.sp.wrapping_add(16), frame_pointer),
            _ => (
                frame_pointer.wrapping_add(16),
                self.word(frame_pointer).ok()?,
            ),
        };
        let is_replaced = || {
            let word = self.word(end.wrapping_sub(8));
            word.is_ok_and(|it| self.of.cache.contains(it))
        };
        if self.pc >= blob.start.wrapping_add(ENTRY.len() as u64) && is_replaced() {
            return None;
        }
        let thread = self.frame.get(R15)?;
        let interrupted = thread.wrapping_add(self.of.layout.interrupted_pc?);
        let mut caller = FrameRegisters::new(self.word(interrupted).ok()?);
        caller.set(RSP, end);
        caller.set(RBP, frame_pointer);
        Some(caller)
    }

    /// Reads a word of the stack.
    fn word(&self, address: u64) -> Result<u64, GeneratedEnd> {
        Ok(self.memory.read_u64(address)?)
    }

    fn frame_pointer(&self) -> Result<u64, GeneratedEnd> {
        self.frame.get(RBP).ok_or(GeneratedEnd::UnknownRegister)
    }

    /// The caller of a frame that ends at `end`, with the return address last, and before it the caller's frame pointer.
    fn at_frame(&self, end: u64) -> Result<FrameRegisters, GeneratedEnd> {
        let mut caller = FrameRegisters::new(self.word(end.wrapping_sub(8))?);
        caller.set(RSP, end);
        caller.set(RBP, self.word(end.wrapping_sub(16))?);
        Ok(caller)
    }

    /// The caller of code without a frame: the return address is at the stack pointer.
    fn at_return(&self) -> Result<FrameRegisters, GeneratedEnd> {
        let mut caller = FrameRegisters::new(self.word(self.sp)?);
        caller.set(RSP, self.sp.wrapping_add(8));
        if let Some(frame_pointer) = self.frame.get(RBP) {
            caller.set(RBP, frame_pointer);
        }
        Ok(caller)
    }

    /// The caller of code that has pushed so many registers, and has no other frame.
    fn above(&self, pushed: u64) -> Result<FrameRegisters, GeneratedEnd> {
        let at = self.sp.wrapping_add(8 * pushed);
        let mut caller = self.at_return()?;
        caller.instruction_pointer = self.word(at)?;
        caller.set(RSP, at.wrapping_add(8));
        Ok(caller)
    }

    fn returned(&self, record: Option<Record>) -> Result<GeneratedFrame, GeneratedEnd> {
        Ok(frame(self.at_return()?, record))
    }

    fn by_frame_pointer(&self, record: Option<Record>) -> Result<GeneratedFrame, GeneratedEnd> {
        let frame_pointer = self.frame_pointer()?;
        if frame_pointer < self.sp || frame_pointer % 8 != 0 {
            return Err(GeneratedEnd::Unexpected(
                "a stub's frame pointer is not above it",
            ));
        }
        let above = frame_pointer.wrapping_add(16);
        let mut caller = self.at_frame(above)?;
        // The stub that compiled code calls when it is entered keeps a word between (`generate_method_entry_barrier`).
        if caller.instruction_pointer == u64::MAX {
            caller.instruction_pointer = self.word(above)?;
            caller.set(RSP, above.wrapping_add(8));
        }
        Ok(frame(caller, record))
    }

    /// Code that moves the arguments of a call, which it passes on: the callee returns to the caller, whose stack pointer is
    /// in r13.
    fn adapter(&self) -> Result<GeneratedFrame, GeneratedEnd> {
        let mut caller = self.at_return()?;
        let mut above = self.sp.wrapping_add(8);
        if !self.of.cache.contains(caller.instruction_pointer) {
            // The stack has been aligned for the callee, and does not have the return address again yet.
            caller.instruction_pointer = self.word(above)?;
            above = above.wrapping_add(8);
            caller.set(RSP, above);
        }
        if let Some(sender) = self.frame.get(R13)
            && (above..above.saturating_add(MAX_MOVED)).contains(&sender)
        {
            caller.set(RSP, sender);
        }
        Ok(frame(caller, None))
    }

    /// A thread that is interrupted in a stub whose frames have several sizes: it has one if the frame pointer is near, and
    /// leads back to generated code.
    fn leaf(&self, stub: Record) -> Result<GeneratedFrame, GeneratedEnd> {
        let code = self.code_at(self.pc);
        if let Some(caller) = self.left(&code)? {
            return Ok(frame(caller, Some(stub)));
        }
        if code::pushes_frame_pointer(&code) {
            return self.returned(Some(stub));
        }
        if code::sets_frame_pointer(&code) {
            let caller = self.at_frame(self.sp.wrapping_add(16))?;
            return Ok(frame(caller, Some(stub)));
        }
        let frame_pointer = self.frame_pointer()?;
        let is_near = (self.sp..self.sp.saturating_add(MAX_STUB_FRAME)).contains(&frame_pointer);
        if is_near
            && let Ok(caller) = self.at_frame(frame_pointer.wrapping_add(16))
            && self.of.cache.contains(caller.instruction_pointer)
        {
            return Ok(frame(caller, Some(stub)));
        }
        if self.of.cache.contains(self.word(self.sp)?) {
            return self.returned(Some(stub));
        }
        self.by_frame_pointer(Some(stub))
    }

    /// The caller of a compiled method, or of the code that calls a native one.
    fn compiled(&self, blob: &Blob) -> Result<GeneratedFrame, GeneratedEnd> {
        let (layout, object) = (&self.of.layout.nmethod, &blob.object);
        let start = object.address;
        let handlers = [Some(layout.deopt_handler), layout.deopt_mh_handler];
        let is_handler = |pc: u64| {
            let mut handlers = handlers.iter().flatten();
            handlers.any(|handler| object.place(*handler, start) == pc)
        };
        let mut pc = self.pc;
        if !self.is_innermost && is_handler(pc) {
            // The method will be interpreted from there on.
            let original = object.signed(layout.original_pc);
            pc = self.word(self.sp.wrapping_add_signed(original))?;
            if !(blob.start..blob.end).contains(&pc) {
                return Err(GeneratedEnd::Unexpected(
                    "deoptimized code has no original place",
                ));
            }
        }
        let record = Record::Compiled {
            blob: start,
            compile_id: object.int(layout.compile_id) as u32,
            pc,
        };
        if self.is_innermost && self.is_calling(blob) {
            return self.returned(None);
        }
        let end = self.sp.wrapping_add(blob.frame_size);
        let caller = if self.is_innermost {
            let entry = object.place(layout.verified_entry, blob.start);
            match self.incomplete(blob, entry)? {
                Some(caller) => caller,
                None if code::is_poll(&self.code_at(self.pc)) => self.at_return()?,
                None => self.at_frame(self.frame_end(blob, end)?)?,
            }
        } else {
            let caller = self.at_frame(end)?;
            // A stub may have its arguments on the stack, or a function of the C library is called with all registers there.
            match self.of.cache.contains(caller.instruction_pointer) {
                true => caller,
                false => self.at_frame(self.frame_end(blob, end)?)?,
            }
        };
        Ok(frame(caller, Some(record)))
    }

    /// Returns whether code has called another method and not left its own yet: behind it is the code for calls of methods that are
    /// not compiled, which passes on the method.
    fn is_calling(&self, blob: &Blob) -> bool {
        const PASSED_ON: usize = 10;
        let start = self.pc.wrapping_sub(PASSED_ON as u64);
        let before = self.memory.read_vec(start, PASSED_ON as u64, PASSED_ON);
        code::passes_on_method(&before.unwrap_or_default(), &self.code_at(self.pc))
            && self.word(self.sp).is_ok_and(|address| {
                (blob.start..blob.end).contains(&address) && self.is_return_address(address)
            })
    }

    /// Finds the end of the frame of interrupted code: it may have pushed words beyond the frame.
    fn frame_end(&self, blob: &Blob, end: u64) -> Result<u64, GeneratedEnd> {
        let last = |end: u64| self.word(end.wrapping_sub(8));
        let may_return = |end: u64| -> Result<bool, GeneratedEnd> {
            let caller = self.at_frame(end)?;
            Ok(self.returns_to(&caller)
                && self.call_before(blob, caller.instruction_pointer)? != Some(Call::Other))
        };
        for end in (0..MAX_PUSHED).map(|pushed| end.wrapping_add(8 * pushed)) {
            if may_return(end)? {
                return Ok(end);
            }
        }
        if self.of.layout.major == 8 {
            let further = MAX_PUSHED..MAX_PUSHED_OF_8;
            for end in further.map(|pushed| end.wrapping_add(8 * pushed)) {
                // What is left of earlier calls is there, too.
                if self
                    .call_before(blob, last(end)?)?
                    .is_some_and(|it| it != Call::Other)
                {
                    return Ok(end);
                }
            }
        }
        // Return addresses that HotSpot has replaced are behind no call.
        match self.of.cache.contains(last(end)?) {
            true => Ok(end),
            false => Err(GeneratedEnd::Unexpected(
                "no return address where its frame ends",
            )),
        }
    }

    /// Returns what the call before a return address calls, as seen from code that may be called by it. `None` if there is no call
    /// that says so.
    fn call_before(&self, blob: &Blob, address: u64) -> Result<Option<Call>, GeneratedEnd> {
        if !self.is_return_address(address) {
            return Ok(None);
        }
        let mut call = [0; 5];
        self.memory.read(address.wrapping_sub(5), &mut call)?;
        let [0xe8, distance @ ..] = call else {
            return Ok(None);
        };
        let target = address.wrapping_add_signed(i32::from_le_bytes(distance).into());
        if (blob.start..blob.end).contains(&target) {
            return Ok(Some(Call::This));
        }
        let called = self.of.cache.blob(self.memory, &self.of.layout, target);
        Ok(called.ok().and_then(|called| match called.kind {
            Kind::Dispatch => Some(Call::Dispatch),
            Kind::Method | Kind::Native => Some(Call::Other),
            _ => None,
        }))
    }

    /// Returns whether this is a place to which code returns. The interpreter pushes addresses of its own, which are behind no
    /// call; it needs its frame pointer.
    fn returns_to(&self, caller: &FrameRegisters) -> bool {
        let address = caller.instruction_pointer;
        if !self.of.codelets.contains(address) {
            return self.is_return_address(address);
        }
        let both = caller.get(RSP).zip(caller.get(RBP));
        both.is_some_and(|(sp, frame_pointer)| {
            let above = sp..sp.saturating_add(MAX_INTERPRETED);
            above.contains(&frame_pointer) && frame_pointer % 8 == 0
        })
    }

    /// Returns whether an address is in generated code, behind a call.
    fn is_return_address(&self, address: u64) -> bool {
        let mut before = [0; 8];
        self.of.cache.contains(address)
            && self
                .memory
                .read(address.wrapping_sub(8), &mut before)
                .is_ok()
            && code::is_behind_call(before)
    }

    /// The caller of a thread that is interrupted where its frame is not complete yet, or has been removed.
    fn incomplete(&self, blob: &Blob, entry: u64) -> Result<Option<FrameRegisters>, GeneratedEnd> {
        if !self.is_innermost {
            return Ok(None);
        }
        if let Some(caller) = self.entered(blob, entry)? {
            return Ok(Some(caller));
        }
        self.left(&self.code_at(self.pc))
    }

    /// The caller of code that has not completed its frame.
    fn entered(&self, blob: &Blob, entry: u64) -> Result<Option<FrameRegisters>, GeneratedEnd> {
        let is_complete = |complete: u64| self.pc >= complete;
        if blob.frame_complete.is_some_and(is_complete) {
            return Ok(None);
        }
        if self.pc <= entry {
            return self.at_return().map(Some);
        }
        let size = (self.pc - entry).saturating_add(code::MAX_PROLOGUE as u64);
        let bytes = self.memory.read_vec(entry, size, code::MAX_ENTERED);
        let Ok(bytes) = bytes else {
            return Ok(None);
        };
        let end = self.sp.wrapping_add(blob.frame_size);
        Ok(match code::entered(&bytes, (self.pc - entry) as usize) {
            code::Entered::Nothing => Some(self.at_return()?),
            code::Entered::Pushed => Some(self.at_frame(self.sp.wrapping_add(16))?),
            code::Entered::Complete if blob.frame_complete.is_none() => None,
            code::Entered::Complete => Some(self.at_frame(end)?),
            code::Entered::Unsaved => {
                let mut caller = self.at_frame(end)?;
                caller.set(RBP, self.frame_pointer()?);
                Some(caller)
            }
            code::Entered::Unknown => None,
            // For a moment, there may be one more.
            code::Entered::Registers(pushed) => [pushed, pushed + 1]
                .into_iter()
                .filter_map(|pushed| self.above(pushed).ok())
                .find(|caller| self.returns_to(caller)),
        })
    }

    /// The caller of code that has removed its frame.
    fn left(&self, code: &[u8]) -> Result<Option<FrameRegisters>, GeneratedEnd> {
        match code::left(code) {
            Some(code::Left::FramePointer) => self.at_frame(self.sp.wrapping_add(16)).map(Some),
            Some(code::Left::Registers(popped)) => self.above(popped).map(Some),
            Some(code::Left::Everything) => self.at_return().map(Some),
            None => Ok(None),
        }
    }

    /// Reads the code at an address, as much as there is.
    fn code_at(&self, address: u64) -> Vec<u8> {
        let sizes = [code::MAX_EPILOGUE as u64, 8];
        let read = |size| self.memory.read_vec(address, size, code::MAX_EPILOGUE).ok();
        sizes.into_iter().find_map(read).unwrap_or_default()
    }
}

fn frame(caller: FrameRegisters, record: Option<Record>) -> GeneratedFrame {
    GeneratedFrame {
        caller,
        record: record.map(|record| -> FrameRecord { record.encode() }),
    }
}
