//! The walk over frames of generated code, on x86-64.
//!
//! HotSpot keeps no frame pointers: the frame of compiled code has a fixed size, which its blob says, and the bytes at the
//! instruction decide where a thread is interrupted before that is complete, or after. The interpreter keeps the frame
//! pointer, and fixed slots below it.

mod code;
mod interpreted;
mod stubs;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use otelctx_reader::remote::{
    FrameRecord, FrameRegisters, GeneratedCode, GeneratedEnd, GeneratedFrame, Memory,
};

use crate::code_cache::{Blob, CodeCache, Heap, Kind};
use crate::layout::Layout;
use crate::method::Method;
use crate::record::Record;
use crate::scopes;
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

/// Parts of the names of stubs that find what is called, and change the call. Before JDK 23, the last one is called in place of a method
/// whose call changes, until no thread can be in between.
const RESOLVING: [&str; 4] = ["resolve", "wrong_method", "ic_miss", "InlineCacheBuffer"];

/// What a call calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    This,
    /// Code that leads to any method: by the receiver's class, or by what is found then.
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
            Kind::Barrier if !self.is_innermost => self.barrier(stub),
            _ if blob.frame_size > 0 => Ok(frame(self.sized_stub(blob)?, Some(stub))),
            _ if !self.is_innermost => self.by_frame_pointer(Some(stub)),
            _ => self.leaf(blob, stub),
        }
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

    /// The caller of code that has pushed this number of registers, and has no other frame.
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
        // The code may be other code than the callee returns to, at the same address.
        let is_place = self.is_innermost
            || self.is_return_address(pc)
            || scopes::has_place(self.memory, &self.of.layout, blob, pc);
        if !is_place {
            return Err(GeneratedEnd::Unexpected("no call before its place"));
        }
        let record = Record::Compiled {
            blob: start,
            compile_id: object.int(layout.compile_id) as u32,
            pc,
        };
        if self.is_innermost && self.is_calling(blob) {
            return self.returned(None);
        }
        // A callee has returned, and its return address is still on the stack.
        let is_returning = self.is_innermost
            && self.word(self.sp).is_ok_and(|address| address == self.pc)
            && self.is_return_address(self.pc);
        let end = self.sp.wrapping_add(blob.frame_size);
        let end = end.wrapping_add(8 * u64::from(is_returning));
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
        let mut first = None;
        let pushed = match self.of.layout.major {
            8 => MAX_PUSHED_OF_8,
            _ => MAX_PUSHED,
        };
        for pushed in 0..pushed {
            let end = end.wrapping_add(8 * pushed);
            let Ok(caller) = self.at_frame(end) else {
                break;
            };
            if !self.returns_to(&caller) {
                continue;
            }
            let address = caller.instruction_pointer;
            let call = self.call_before(blob, address)?;
            let is_left = match call {
                // The call may call something else since then, but this is more likely left of an earlier one.
                Some(call) => call == Call::Other,
                // Of the interpreter, much is left, but hardly where the frame ends.
                None if self.of.codelets.contains(address) => {
                    pushed > 0 || !caller.get(RBP).is_some_and(|it| self.is_whole(it))
                }
                None => pushed >= MAX_PUSHED,
            };
            if !is_left && self.leads_on(&caller) {
                return Ok(end);
            }
            first = first.or(Some(end));
        }
        if first == Some(end) {
            return Ok(end);
        }
        // Return addresses that HotSpot has replaced are behind no call.
        match self.of.cache.contains(last(end)?) {
            true => Ok(end),
            false => Err(GeneratedEnd::Unexpected(
                "no return address where its frame ends",
            )),
        }
    }

    /// Returns whether a caller in compiled code has a return address where its own frame ends: what earlier calls have left on the
    /// stack leads nowhere.
    fn leads_on(&self, caller: &FrameRegisters) -> bool {
        let address = caller.instruction_pointer.wrapping_sub(1);
        let blob = self.of.cache.blob(self.memory, &self.of.layout, address);
        let (Ok(blob), Some(sp)) = (blob, caller.get(RSP)) else {
            return false;
        };
        let returns_to = |end: u64| self.word(end.wrapping_sub(8));
        !blob.kind.is_method()
            || returns_to(sp.wrapping_add(blob.frame_size))
                .is_ok_and(|address| self.of.cache.contains(address))
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
        let Ok(called) = self.of.cache.blob(self.memory, &self.of.layout, target) else {
            return Ok(Some(Call::Other));
        };
        let layout = &self.of.layout.nmethod;
        let methods = [blob, &called].map(|it| it.object.int(layout.method));
        let entry = called.object.place(layout.verified_entry, called.start);
        Ok(match called.kind {
            // Until a method's code is called directly, an adapter leads to it.
            Kind::Dispatch | Kind::Adapter => Some(Call::Dispatch),
            // It has been compiled again.
            _ if blob.kind == called.kind && methods[0] == methods[1] => Some(Call::This),
            // The code of another class's method passes on calls of this class's, until a call by class replaces them.
            Kind::Method | Kind::Native if self.override_each_other(methods) => {
                Some(Call::Dispatch)
            }
            // Calls through method handles are passed on by code that has the kind of native methods.
            Kind::Native => None,
            // The caller's own code passes the call on, or a stub that finds what is called: so does each call while garbage is
            // collected, and after that.
            _ if (called.start..called.end).contains(&address) && target > entry => {
                Some(Call::Dispatch)
            }
            Kind::Stub(name) if RESOLVING.iter().any(|part| name.contains(part)) => {
                Some(Call::Dispatch)
            }
            _ => Some(Call::Other),
        })
    }

    /// Returns whether methods have the same name and signature, as methods that override each other.
    fn override_each_other(&self, methods: [u64; 2]) -> bool {
        let layout = &self.of.layout;
        let overridden = |method: u64| {
            Method::read(self.memory, layout, method)?.overridden(self.memory, layout)
        };
        let [first, second] = methods.map(overridden);
        first.is_some() && first == second
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
            above.contains(&frame_pointer)
                && frame_pointer % 8 == 0
                && self.method_of(frame_pointer).is_some()
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
        // Code that is about to return has popped what it has pushed where it begins.
        if let Some(caller) = self.left(&self.code_at(self.pc))? {
            return Ok(Some(caller));
        }
        self.entered(blob, entry)
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
            code::Entered::Registers(pushed) => self.above_registers(pushed),
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
