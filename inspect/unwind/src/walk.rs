//! Walks the stack from a thread's registers to its first function.

use std::sync::Arc;

use otelctx_remote::{FrameRecord, GeneratedCode, GeneratedEnd, Memory, MemoryError};

use crate::code::CodeMap;
use crate::registers::Registers;
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

/// Default maximum number of frames of one stack. The deepest of real programs have some 200.
pub const MAX_FRAMES: usize = 512;
/// Maximum number of changes from one stack to another, as rustc makes a few.
const MAX_SWITCHES: usize = 64;
/// Maximum number of changes to a stack at a lower address by the frame pointer, as the calls of a runtime make one or
/// two: a register that holds other data leads anywhere.
const MAX_LOWER_STACKS: usize = 4;
/// Bytes of the code that calls `rt_sigreturn`.
const SIGRETURN: usize = 9;
/// Bytes of the code that a first function returns to.
const MAX_REACH: usize = 26;
/// Bytes of code before a return address in which the frame pointer may be cleared: the call and its arguments.
const MAX_BEFORE_CALL: usize = 24;
/// Bytes read at a time: a page takes hardly longer than a word.
const WINDOW: u64 = 4096;

/// One frame of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The address of the instruction that runs next in it. In a caller that is the return address.
    pub address: u64,
    /// True if the frame has called the previous one: resolve the name of `address - 1`, because
    /// the call is the instruction before `address`.
    pub is_caller: bool,
    /// True if the frame was found by the frame pointer, without tables: callers may be missing.
    pub by_frame_pointer: bool,
    /// What a runtime finds its functions by, if the frame is in code that one has generated.
    pub generated: Option<GeneratedRecord>,
}

/// The record of a frame in generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneratedRecord {
    /// The index of its walker in the list that the walk was given.
    pub walker: usize,
    /// What its runtime finds the functions by.
    pub record: FrameRecord,
}

/// The reason why a stack ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StackEnd {
    /// The last frame is the thread's first function.
    #[error("it reached the start")]
    Start,
    /// There are no tables for the last frame's code, and no frame pointer.
    #[error("no unwind tables")]
    NoRows,
    /// The last frame's tables have an unsupported rule.
    #[error("unwind tables of a kind that is not supported")]
    Unsupported,
    /// The last frame's tables need a register whose value is unknown.
    #[error("a register that the unwind tables need is not known")]
    UnknownRegister,
    /// Memory of the last frame cannot be read.
    #[error("{0}")]
    Unreadable(MemoryError),
    /// The last frame returns to an address that is not executable.
    #[error("{0:#x} is not executable")]
    NotExecutable(u64),
    /// The caller's frame would not be above the last one.
    #[error("the stack does not grow")]
    NotGrowing,
    /// The last frame is in generated code, whose walker does not know the caller.
    #[error("{0}")]
    Generated(GeneratedEnd),
    /// It has more frames than were asked for.
    #[error("it has more frames than the limit")]
    Limit,
}

/// Finds the frames of a thread, from the innermost one out, and returns why the stack ended.
/// `frames` gets at most `limit` of them.
pub fn walk(
    registers: &Registers,
    code: &CodeMap,
    memory: &dyn Memory,
    limit: usize,
    frames: &mut Vec<Frame>,
) -> StackEnd {
    walk_generated(registers, code, &[], memory, limit, frames)
}

/// Does what [`walk`] does, where runtimes generate code: each of these walkers takes over in its own code, whatever
/// unwind tables there are.
pub fn walk_generated(
    registers: &Registers,
    code: &CodeMap,
    generated: &[Arc<dyn GeneratedCode>],
    memory: &dyn Memory,
    limit: usize,
    frames: &mut Vec<Frame>,
) -> StackEnd {
    frames.clear();
    let mut walk = Walk {
        code,
        generated,
        is_part_of_caller: false,
        stack: Window::new(memory),
        switches: 0,
        lower_stacks: 0,
        registers: *registers,
        frame: Frame {
            address: registers.instruction_pointer(),
            is_caller: false,
            by_frame_pointer: false,
            generated: None,
        },
    };
    // A chain of frames that are part of their callers is bounded, too.
    for _ in 0..limit.saturating_mul(2) {
        if frames.len() == limit {
            break;
        }
        frames.push(walk.frame);
        let stepped = walk.step(frames.last_mut());
        if stepped.is_ok() && std::mem::take(&mut walk.is_part_of_caller) {
            frames.pop();
        }
        if let Err(end) = stepped {
            return end;
        }
    }
    StackEnd::Limit
}

struct Walk<'a> {
    code: &'a CodeMap,
    generated: &'a [Arc<dyn GeneratedCode>],
    /// The frame of the last step is no call of its own.
    is_part_of_caller: bool,
    stack: Window<'a>,
    switches: usize,
    lower_stacks: usize,
    registers: Registers,
    frame: Frame,
}

impl Walk<'_> {
    /// Goes to the caller of a frame, which gets its record if it is in generated code.
    fn step(&mut self, frame: Option<&mut Frame>) -> Result<(), StackEnd> {
        let address = self.registers.instruction_pointer();
        let called = address.wrapping_sub(self.frame.is_caller.into());
        if let Some(walker) = self.walker_at(called) {
            let (caller, record) = self.by_walker(walker)?;
            self.is_part_of_caller = record.is_none();
            if let Some(frame) = frame {
                frame.generated = record.map(|record| GeneratedRecord { walker, record });
            }
            return self.go_to(caller, true, false);
        }
        let mapping = self.code.at(called);
        let mapping = mapping.ok_or(StackEnd::NotExecutable(address))?;
        let (caller, is_caller, by_frame_pointer) = match mapping.rule_at(called) {
            Rule::End => return Err(StackEnd::Start),
            Rule::Unsupported => return Err(StackEnd::Unsupported),
            Rule::Frame(rule) => (self.by_rule(rule)?, true, false),
            Rule::Context {
                register,
                offset,
                signal,
            } => (self.context(register, offset)?, !signal, false),
            // In C libraries without tables, and the vDSO of aarch64, only the code shows it.
            Rule::Gap if self.is_in(self.registers.architecture.sigreturn, SIGRETURN) => {
                let architecture = self.registers.architecture;
                let context = self.context(architecture.stack_pointer, architecture.signal_context);
                (context?, false, false)
            }
            Rule::Gap if self.returns_to_trampoline() => (self.by_stack_pointer()?, true, false),
            Rule::Gap => match self.without_frame() {
                Some(Rule::Frame(rule)) => (self.by_rule(rule)?, true, false),
                _ => (self.by_frame_pointer()?, true, true),
            },
        };
        self.go_to(caller, is_caller, by_frame_pointer)
    }

    /// The index of the walker of the generated code at an address.
    fn walker_at(&self, address: u64) -> Option<usize> {
        let mut walkers = self.generated.iter();
        walkers.position(|walker| walker.covers(address))
    }

    /// The caller of a frame in generated code, and the frame's record.
    fn by_walker(&self, walker: usize) -> Result<(Registers, Option<FrameRecord>), StackEnd> {
        let registers = &self.registers;
        let is_innermost = !self.frame.is_caller;
        let walker = &self.generated[walker];
        let found = walker.step(self.stack.memory, &registers.frame, is_innermost);
        let found = found.map_err(StackEnd::Generated)?;
        let mut caller = Registers {
            frame: found.caller,
            ..*registers
        };
        caller.frame.instruction_pointer &= registers.architecture.address_mask;
        // Code that has taken its return address from the stack leaves the stack pointer where its caller has it.
        let (from, to) = (registers.stack_pointer(), caller.stack_pointer());
        if to < from || to == from && !is_innermost {
            return Err(StackEnd::NotGrowing);
        }
        Ok((caller, found.record))
    }

    /// Makes the caller the current frame, if it is in code.
    fn go_to(
        &mut self,
        caller: Registers,
        is_caller: bool,
        by_frame_pointer: bool,
    ) -> Result<(), StackEnd> {
        let address = caller.instruction_pointer();
        let called = address.wrapping_sub(is_caller.into());
        if self.code.at(called).is_none() && self.walker_at(called).is_none() {
            let is_start = self.is_in(self.registers.architecture.starts, MAX_REACH);
            return Err(if is_start {
                StackEnd::Start
            } else {
                StackEnd::NotExecutable(address)
            });
        }
        self.registers = caller;
        self.frame = Frame {
            address,
            is_caller,
            by_frame_pointer,
            generated: None,
        };
        Ok(())
    }

    fn register(&self, register: u8) -> Result<u64, StackEnd> {
        let value = self.registers.get(register);
        value.ok_or(StackEnd::UnknownRegister)
    }

    fn by_rule(&mut self, rule: FrameRule) -> Result<Registers, StackEnd> {
        let stack_pointer = self.registers.stack_pointer();
        let own = self.registers.architecture.stack_pointer;
        let (cfa, by_stack_pointer) = match rule.cfa {
            Cfa::Register { register, offset } => {
                let base = self.register(register)?;
                (base.wrapping_add_signed(offset.into()), register == own)
            }
            Cfa::Memory {
                register,
                offset,
                addend,
            } => {
                let base = self.register(register)?;
                let value = self.stack.u64_at(base.wrapping_add_signed(offset.into()))?;
                (value.wrapping_add_signed(addend.into()), false)
            }
            Cfa::Plt { pushed_at } => {
                let offset = self.registers.instruction_pointer() % 16;
                let size = if offset >= pushed_at.into() { 16 } else { 8 };
                (stack_pointer.wrapping_add(size), true)
            }
        };
        let keeps_stack = matches!(rule.return_address, ReturnAddress::Register(_));
        if cfa < stack_pointer || cfa == stack_pointer && !keeps_stack {
            // Only tables that count from another register can mean another stack.
            self.switches += 1;
            if by_stack_pointer || cfa == stack_pointer || self.switches > MAX_SWITCHES {
                return Err(StackEnd::NotGrowing);
            }
        }
        let return_address = match rule.return_address {
            ReturnAddress::AtCfa(offset) => {
                self.stack.u64_at(cfa.wrapping_add_signed(offset.into()))?
            }
            ReturnAddress::Register(register) => self.register(register)?,
        };
        let mut saved = |address: u64| self.stack.u64_at(address).ok();
        let frame_pointer = self.registers.frame_pointer();
        let frame_pointer = match rule.frame_pointer {
            Saved::Same => frame_pointer,
            Saved::AtCfa(offset) => saved(cfa.wrapping_add_signed(offset.into())),
            Saved::AtFramePointer(offset) => {
                frame_pointer.and_then(|it| saved(it.wrapping_add_signed(offset.into())))
            }
            Saved::Register(register) => self.registers.get(register),
            Saved::Unknown => None,
            Saved::Cfa => Some(cfa),
        };
        let architecture = self.registers.architecture;
        let base = architecture.base.and_then(|register| {
            let value = match rule.base {
                Saved::Same => self.registers.get(register),
                Saved::AtCfa(offset) => saved(cfa.wrapping_add_signed(offset.into())),
                _ => None,
            };
            Some((register, value?))
        });
        let mut caller = self.registers.caller(return_address, cfa, frame_pointer);
        if let Some((register, value)) = base {
            caller.set(register, value);
        }
        Ok(caller)
    }

    fn context(&mut self, register: u8, offset: i32) -> Result<Registers, StackEnd> {
        let layout = &self.registers.architecture.context;
        let base = self.register(register)?.wrapping_add_signed(offset.into());
        self.switches += 1;
        if self.switches > MAX_SWITCHES {
            return Err(StackEnd::NotGrowing);
        }
        let mut interrupted = self.registers.caller(0, 0, None);
        let mut at = base.wrapping_add(layout.offset);
        for register in layout.registers {
            let value = self.stack.u64_at(at)?;
            if *register == layout.instruction_pointer {
                interrupted.frame.instruction_pointer = value
            } else {
                interrupted.set(*register, value)
            }
            at = at.wrapping_add(8);
        }
        Ok(interrupted)
    }

    /// Returns whether the frame is less than `reach` bytes behind the start of a sequence.
    fn is_in(&self, sequences: &[&[u8]], reach: usize) -> bool {
        let mut there = [0; 2 * MAX_REACH];
        // From the earliest start of a sequence to the end of the latest.
        let start = self.frame.address.wrapping_sub(reach as u64 - 1);
        let (skipped, there) = self.code_at(start, &mut there[..2 * reach]);
        sequences.iter().any(|code| {
            let places = there.windows(code.len());
            let mut places = places.take(reach.saturating_sub(skipped));
            places.any(|it| it == *code)
        })
    }

    /// Reads less than a page of code. Returns the unmapped bytes' number, and the part behind
    /// them.
    fn code_at<'b>(&self, start: u64, buffer: &'b mut [u8]) -> (usize, &'b [u8]) {
        let in_page = (WINDOW - start % WINDOW) as usize;
        let (first, second) = buffer.split_at_mut(in_page.min(buffer.len()));
        let memory = self.stack.memory;
        let has_first = memory.read(start, first).is_ok();
        let next = start.wrapping_add(first.len() as u64);
        let has_second = !second.is_empty() && memory.read(next, second).is_ok();
        let border = in_page.min(buffer.len());
        let skipped = if has_first { 0 } else { border };
        let end = if has_second { buffer.len() } else { border };
        (skipped, &buffer[skipped..end])
    }

    /// The rule of a frame that a function has not built yet, or has removed.
    fn without_frame(&self) -> Option<Rule> {
        if self.frame.is_caller {
            return None;
        }
        let (memory, address) = (self.stack.memory, self.frame.address);
        let mut next = [0; 8];
        // The next page may not be mapped.
        let size = (WINDOW - address % WINDOW).min(next.len() as u64);
        memory.read(address, &mut next[..size as usize]).ok()?;
        let before = |bytes: &mut [u8]| {
            let start = address.checked_sub(bytes.len() as u64);
            start.is_some_and(|start| memory.read(start, bytes).is_ok())
        };
        let architecture = self.registers.architecture;
        let rule = (architecture.without_frame)(next, &before);
        // The bytes before can be the end of another instruction.
        let is_left = (architecture.has_left)(next, &before);
        rule.filter(|_| !is_left || self.is_return_address_at(self.registers.stack_pointer()))
    }

    fn is_return_address_at(&self, address: u64) -> bool {
        let mut word = [0; 8];
        let is_read = self.stack.memory.read(address, &mut word).is_ok();
        is_read && self.is_behind_call(u64::from_ne_bytes(word))
    }

    /// Returns whether the frame is a trampoline's, which has called the one before it.
    fn returns_to_trampoline(&self) -> bool {
        let code = self.registers.architecture.trampoline;
        let mut there = [0; 16];
        let there = &mut there[..code.len()];
        self.frame.is_caller
            && !code.is_empty()
            && self.stack.memory.read(self.frame.address, there).is_ok()
            && there == code
    }

    /// The caller of a trampoline.
    fn by_stack_pointer(&mut self) -> Result<Registers, StackEnd> {
        let stack_pointer = self.registers.stack_pointer();
        let return_address = self.stack.u64_at(stack_pointer.wrapping_add(8))?;
        let cfa = stack_pointer.checked_add(16).ok_or(StackEnd::NotGrowing)?;
        let frame_pointer = self.registers.frame_pointer();
        Ok(self.registers.caller(return_address, cfa, frame_pointer))
    }

    /// Finds the caller by the frame pointer, which points to its former value and the return
    /// address.
    fn by_frame_pointer(&mut self) -> Result<Registers, StackEnd> {
        let pointer = self.registers.frame_pointer().ok_or(StackEnd::NoRows)?;
        // Both ABIs mark the outermost frame so ("The Stack Frame"; "The Frame Pointer").
        if pointer == 0 && (self.frame.by_frame_pointer || self.has_cleared_frame_pointer()) {
            return Err(StackEnd::Start);
        }
        if pointer % 8 != 0 {
            return Err(StackEnd::NoRows);
        }
        let is_lower = pointer < self.registers.stack_pointer();
        if is_lower {
            self.lower_stacks += 1;
            if self.lower_stacks > MAX_LOWER_STACKS {
                return Err(StackEnd::NoRows);
            }
        }
        let caller = self.caller_at(pointer);
        if !is_lower {
            return caller;
        }
        // A frame of another stack, or the register holds other data.
        let is_frame = |caller: &Registers| {
            let is_aligned = caller.frame_pointer().is_none_or(|former| former % 8 == 0);
            is_aligned && self.is_behind_call(caller.instruction_pointer())
        };
        caller.ok().filter(is_frame).ok_or(StackEnd::NoRows)
    }

    /// The caller whose frame pointer and return address are at an address.
    fn caller_at(&mut self, pointer: u64) -> Result<Registers, StackEnd> {
        let former = self.stack.u64_at(pointer)?;
        let return_address = self.stack.u64_at(pointer.wrapping_add(8))?;
        let cfa = pointer.checked_add(16).ok_or(StackEnd::NotGrowing)?;
        Ok(self.registers.caller(return_address, cfa, Some(former)))
    }

    /// Returns whether the frame has cleared the frame pointer just before its call.
    fn has_cleared_frame_pointer(&self) -> bool {
        let code = self.registers.architecture.clears_frame_pointer;
        let mut before = [0; MAX_BEFORE_CALL];
        let start = self.frame.address.checked_sub(before.len() as u64);
        self.frame.is_caller
            && !code.is_empty()
            && start.is_some_and(|start| self.stack.memory.read(start, &mut before).is_ok())
            && before.windows(code.len()).any(|it| it == code)
    }

    /// Returns whether the instruction before a return address is a call.
    fn is_behind_call(&self, return_address: u64) -> bool {
        let mut before = [0; 8];
        let start = return_address.checked_sub(before.len() as u64);
        start.is_some_and(|start| self.stack.memory.read(start, &mut before).is_ok())
            && (self.registers.architecture.is_behind_call)(before)
    }
}

/// The page read last. Stacks are walked upwards.
struct Window<'a> {
    memory: &'a dyn Memory,
    start: u64,
    bytes: [u8; WINDOW as usize],
    is_filled: bool,
}

impl<'a> Window<'a> {
    fn new(memory: &'a dyn Memory) -> Self {
        Window {
            memory,
            start: 0,
            bytes: [0; WINDOW as usize],
            is_filled: false,
        }
    }

    fn u64_at(&mut self, address: u64) -> Result<u64, StackEnd> {
        if let Some(value) = self.known(address) {
            return Ok(value);
        }
        // Where an image or a core file lacks a part of the page, the value itself may be there.
        let start = address - address % WINDOW;
        if self.memory.read(start, &mut self.bytes).is_ok() {
            (self.start, self.is_filled) = (start, true);
            if let Some(value) = self.known(address) {
                return Ok(value);
            }
        } else {
            self.is_filled = false;
        }
        self.memory.read_u64(address).map_err(StackEnd::Unreadable)
    }

    fn known(&self, address: u64) -> Option<u64> {
        let skip = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(skip..).filter(|_| self.is_filled)?;
        Some(u64::from_ne_bytes(*bytes.first_chunk()?))
    }
}

#[cfg(test)]
mod tests;
