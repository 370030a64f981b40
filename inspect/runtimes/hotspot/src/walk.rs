//! The walk over frames of generated code, on x86-64.
//!
//! HotSpot keeps no frame pointers: the frame of compiled code has a fixed size, which its blob says, and the bytes at the
//! instruction decide where a thread is interrupted before that is complete, or after. The interpreter keeps the frame
//! pointer, and fixed slots below it.

mod code;
mod interpreted;

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

/// Maximum number of words that code pushes beyond its frame, for a moment.
const MAX_PUSHED: u64 = 8;
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
        let caller = self.incomplete(blob, blob.start)?;
        let end = self.sp.wrapping_add(blob.frame_size);
        let caller = caller.map_or_else(|| self.at_frame(end), Ok);
        let is_code = |it: &FrameRegisters| self.of.cache.contains(it.instruction_pointer);
        if !self.is_innermost || caller.as_ref().is_ok_and(is_code) {
            return caller;
        }
        let passed_on = self.frame.get(RDX).map(|address| {
            let mut caller = *self.frame;
            caller.instruction_pointer = address;
            caller
        });
        let others = [self.at_return().ok(), passed_on];
        let found = others.into_iter().flatten().find(is_code);
        found.map_or(caller, Ok)
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
        let above = self.sp.wrapping_add(8);
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
        let end = self.sp.wrapping_add(blob.frame_size);
        let caller = if self.is_innermost {
            let entry = object.place(layout.verified_entry, blob.start);
            match self.incomplete(blob, entry)? {
                Some(caller) => caller,
                None if code::is_poll(&self.code_at(self.pc)) => self.at_return()?,
                None => self.at_frame(self.frame_end(end)?)?,
            }
        } else {
            self.at_frame(end)?
        };
        Ok(frame(caller, Some(record)))
    }

    /// Finds the end of the frame of interrupted code: it may have pushed words beyond the frame.
    fn frame_end(&self, end: u64) -> Result<u64, GeneratedEnd> {
        for pushed in 0..MAX_PUSHED {
            let end = end.wrapping_add(8 * pushed);
            if self.is_return_address(self.word(end.wrapping_sub(8))?) {
                return Ok(end);
            }
        }
        // Return addresses that HotSpot has replaced are behind no call.
        match self.of.cache.contains(self.word(end.wrapping_sub(8))?) {
            true => Ok(end),
            false => Err(GeneratedEnd::Unexpected(
                "no return address where its frame ends",
            )),
        }
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
        let bytes = bytes.map_err(|_| GeneratedEnd::Unexpected("its entry cannot be read"))?;
        Ok(Some(
            match code::entered(&bytes, (self.pc - entry) as usize) {
                code::Entered::Nothing => self.at_return()?,
                code::Entered::Pushed => self.at_frame(self.sp.wrapping_add(16))?,
                code::Entered::Complete => self.at_frame(self.sp.wrapping_add(blob.frame_size))?,
                code::Entered::Unsaved => {
                    let mut caller = self.at_frame(self.sp.wrapping_add(blob.frame_size))?;
                    caller.set(RBP, self.frame_pointer()?);
                    caller
                }
            },
        ))
    }

    /// The caller of code that has removed its frame.
    fn left(&self, code: &[u8]) -> Result<Option<FrameRegisters>, GeneratedEnd> {
        match code::left(code) {
            Some(code::Left::FramePointer) => self.at_frame(self.sp.wrapping_add(16)).map(Some),
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
