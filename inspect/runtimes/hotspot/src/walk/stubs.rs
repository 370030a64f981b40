//! Frames of the virtual machine's own code, on x86-64 (`sharedRuntime_x86_64.cpp`, `c1_Runtime1_x86.cpp`): some of it says the size
//! of its frame, and where that is complete.

use otelctx_reader::remote::{FrameRegisters, GeneratedEnd, GeneratedFrame};

use super::{MAX_PUSHED, R13, R15, RAX, RBP, RDX, RSP, Step, code, frame};
use crate::code_cache::Blob;
use crate::record::Record;

/// Maximum distance from the stack pointer to the frame pointer in a frame of a stub.
const MAX_STUB_FRAME: u64 = 512;
/// Maximum distance from the stack pointer to the arguments of a call that an adapter has moved.
const MAX_MOVED: u64 = 4096;

/// Maximum number of words between the frames of a virtual thread and the saved registers of the frame in which they begin: that has
/// some ten of its own (`ContinuationEntry`), and the arguments of the outermost method that are on the stack.
const MAX_ENTRY: u64 = 32;

impl Step<'_> {
    /// The caller of a virtual thread's outermost frame that is on this stack. It returns to code that brings back the next one from the
    /// heap. The frame pointer may be that of a frame there.
    pub(super) fn barrier(&self, stub: Record) -> Result<GeneratedFrame, GeneratedEnd> {
        // Behind a call, the code brings back frames at this moment, and leaves room for them.
        let entry = match self.is_return_address(self.pc) {
            true => None,
            false => self.above_entry(),
        };
        if let Some(caller) = entry {
            return Ok(frame(caller, Some(stub)));
        }
        let found = self.by_frame_pointer(Some(stub))?;
        match self.of.cache.contains(found.caller.instruction_pointer) {
            true => Ok(found),
            false => Err(GeneratedEnd::Unexpected(
                "no frame in which a virtual thread begins",
            )),
        }
    }

    /// The caller of the frame in which a virtual thread's frames begin: none of the words before is an address of code.
    fn above_entry(&self) -> Option<FrameRegisters> {
        let ends = (2..=MAX_ENTRY).map(|words| self.sp.wrapping_add(8 * words));
        let mut callers = ends.filter_map(|end| self.at_frame(end).ok());
        let caller = callers.find(|it| self.of.cache.contains(it.instruction_pointer));
        caller.filter(|caller| self.returns_to(caller))
    }

    /// The caller of a stub whose frame has a fixed size. Some pass on exceptions, and leave in other ways than a return: they
    /// have the address on the stack, or in rdx.
    pub(super) fn sized_stub(&self, blob: &Blob) -> Result<FrameRegisters, GeneratedEnd> {
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
        let others = [by_size.ok(), self.at_return().ok(), passed_on];
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

    pub(super) fn by_frame_pointer(
        &self,
        record: Option<Record>,
    ) -> Result<GeneratedFrame, GeneratedEnd> {
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
    pub(super) fn adapter(&self) -> Result<GeneratedFrame, GeneratedEnd> {
        let mut caller = self.at_return()?;
        let mut above = self.sp.wrapping_add(8);
        let is_code = |address: &u64| self.of.cache.contains(*address);
        if !is_code(&caller.instruction_pointer) {
            // The stack is being aligned for the callee: the return address is in rax, or above.
            let popped = self.frame.get(RAX).filter(|_| self.is_innermost);
            let saved = match self.is_innermost {
                true => above,
                false => self.above_saved_registers().unwrap_or(above),
            };
            (caller.instruction_pointer, above) = match popped.filter(is_code) {
                Some(address) => (address, self.sp),
                None => (self.word(saved)?, saved.wrapping_add(8)),
            };
            caller.set(RSP, above);
        }
        if let Some(sender) = self.frame.get(R13)
            && (above..above.saturating_add(MAX_MOVED)).contains(&sender)
        {
            caller.set(RSP, sender);
        }
        Ok(frame(caller, None))
    }

    /// Where the return address of an adapter is that has saved all registers, because it calls the virtual machine.
    fn above_saved_registers(&self) -> Option<u64> {
        const REGISTERS: u64 = 16;
        let saved = code::restored_state(&self.code_at(self.pc))?;
        let registers = self
            .sp
            .wrapping_add(saved.into())
            .wrapping_add(8 * REGISTERS);
        let mut words = (0..MAX_PUSHED).map(|word| registers.wrapping_add(8 * word));
        words.find(|at| self.word(*at).is_ok_and(|it| self.is_return_address(it)))
    }

    /// A thread that is interrupted in a stub whose frames have several sizes: it has one if the frame pointer is near, and
    /// leads back to generated code.
    pub(super) fn leaf(&self, blob: &Blob, stub: Record) -> Result<GeneratedFrame, GeneratedEnd> {
        let code = self.code_at(self.pc);
        if let Some(caller) = self.left(&code)? {
            return Ok(frame(caller, Some(stub)));
        }
        if let Some(caller) = self.pushed_registers(blob) {
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

    /// The caller of code that begins with pushes of registers, and has no other frame.
    fn pushed_registers(&self, blob: &Blob) -> Option<FrameRegisters> {
        let at = usize::try_from(self.pc.checked_sub(blob.start)?).ok()?;
        let size = at.checked_add(code::MAX_PROLOGUE)? as u64;
        let bytes = self.memory.read_vec(blob.start, size, code::MAX_ENTERED);
        match code::entered(&bytes.ok()?, at) {
            code::Entered::Registers(pushed) => self.above_registers(pushed),
            _ => None,
        }
    }

    /// The caller of code that has pushed this number of registers, or one more for a moment.
    pub(super) fn above_registers(&self, pushed: u64) -> Option<FrameRegisters> {
        let all = [pushed, pushed + 1].into_iter();
        let mut callers = all.filter_map(|pushed| self.above(pushed).ok());
        callers.find(|caller| self.returns_to(caller))
    }
}
