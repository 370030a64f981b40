//! The frames of suspended coroutines, each of which awaits the next one.

use std::collections::HashSet;

use otelctx_reader::remote::Memory;
use otelctx_reader::runtime::{BothEnds, MAX_FRAMES, MAX_OUTERMOST, MAX_WALKED, RuntimeError};
use otelctx_reader::sample::NamedFrame;

use super::layout::{Generator, Stack};
use super::objects::{FIRST, Kind, Objects};
use crate::code::Codes;
use crate::frames;
use crate::layout::{GENERATOR_STATE, Instruction, Layout};
use crate::structure::Structure;

/// Maximum number of objects of a chain, including those without a frame: each coroutine may have one.
const MAX_OBJECTS: usize = 2 * MAX_WALKED;
/// Maximum number of values on the stack of a frame, with its variables.
const MAX_VALUES: u64 = 1 << 20;
/// `YIELD_FROM`, up to 3.10.
const YIELD_FROM: u8 = 72;

/// Facts about a chain of coroutines.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The frames, innermost first. Of a long chain, those at both ends.
    pub(super) frames: Vec<NamedFrame>,
    /// True if one of its coroutines is executed now: a thread has its frames.
    pub(super) is_executing: bool,
    /// True if the outermost one has ended.
    pub(super) has_ended: bool,
    /// True if inner frames are missing.
    pub(super) is_truncated: bool,
}

/// The state of a generator.
enum State {
    Executing,
    Ended,
    /// Suspended, with the addresses of its frame and of the object that it awaits, if any.
    Suspended {
        frame: u64,
        awaits: Option<u64>,
    },
}

pub(super) struct Reader<'r, 'm> {
    pub(super) objects: &'r mut Objects<'m>,
    pub(super) layout: &'r Layout,
    pub(super) generator: Generator,
    pub(super) codes: &'r mut Codes,
}

impl Reader<'_, '_> {
    /// Reads the chain from a coroutine on. If an inner one cannot be read, the chain is truncated.
    pub(super) fn chain(&mut self, coroutine: u64) -> Result<Chain, RuntimeError> {
        let mut chain = Chain::default();
        let mut frames = BothEnds::new(MAX_OUTERMOST, MAX_FRAMES - MAX_OUTERMOST);
        let mut next = Some(coroutine);
        let mut visited = HashSet::new();
        while let Some(address) = next {
            // A coroutine that awaits itself could not be suspended.
            if frames.count() == MAX_WALKED
                || visited.len() == MAX_OBJECTS
                || !visited.insert(address)
            {
                chain.is_truncated = true;
                break;
            }
            match self.step(address, &mut chain, &mut frames) {
                Ok(following) => next = following,
                Err(error) if visited.len() == 1 => return Err(error),
                Err(_) => {
                    chain.is_truncated = true;
                    break;
                }
            }
        }
        let count = frames.count();
        let (outermost, omitted, innermost) = frames.into_parts();
        chain.frames = outermost;
        if omitted > 0 {
            chain.frames.push(NamedFrame::omitted(omitted));
        }
        chain.frames.extend(innermost);
        if chain.is_truncated && count > 0 {
            chain.frames.push(NamedFrame::unknown_inside(count));
        }
        chain.frames.reverse();
        Ok(chain)
    }

    /// Adds the frame of an object, if it is a coroutine. Returns the object that it awaits.
    fn step(
        &mut self,
        address: u64,
        chain: &mut Chain,
        frames: &mut BothEnds<NamedFrame>,
    ) -> Result<Option<u64>, RuntimeError> {
        match self.objects.kind(address)? {
            Kind::Coroutine | Kind::Generator => {}
            Kind::Wrapper => return Ok(Some(self.memory().read_u64(address.wrapping_add(FIRST))?)),
            // Another awaitable, whose frames are unknown.
            _ => return Ok(None),
        }
        match self.state(address)? {
            State::Executing => chain.is_executing = true,
            State::Ended => chain.has_ended = frames.count() == 0,
            State::Suspended { frame, awaits } => {
                let memory = self.objects.memory;
                let function = frames::function(memory, self.layout, self.codes, frame)?;
                frames.push(function);
                return Ok(awaits);
            }
        }
        Ok(None)
    }

    fn memory(&self) -> &dyn Memory {
        self.objects.memory
    }

    fn state(&self, address: u64) -> Result<State, RuntimeError> {
        match self.generator {
            Generator::Object {
                depth_and_state,
                code,
            } => self.of_object(address, depth_and_state, code),
            Generator::Embedded {
                frame,
                states,
                stack,
            } => {
                let frame = address.wrapping_add(frame);
                let mut state = [0];
                let at = frame.wrapping_add(GENERATOR_STATE);
                self.memory().read(at, &mut state)?;
                let state = i8::from_ne_bytes(state);
                let has_more = match (states.awaits, state) {
                    (_, state) if state == states.executing => return Ok(State::Executing),
                    (_, state) if state == states.created => false,
                    (Some((first, last)), state) if (first..=last).contains(&state) => true,
                    (None, state) if state == states.suspended => {
                        self.resumes_what_it_awaits(frame)?
                    }
                    (Some(_), state) if state == states.suspended => false,
                    _ => return Ok(State::Ended),
                };
                let awaits = has_more.then(|| self.top(frame, stack)).transpose()?;
                Ok(State::Suspended { frame, awaits })
            }
        }
    }

    /// Returns whether the next instruction of a suspended frame, `RESUME`, has the argument after `yield
    /// from` (2) or `await` (3). For 3.11 and 3.12.
    fn resumes_what_it_awaits(&self, frame: u64) -> Result<bool, RuntimeError> {
        let Instruction::Address(at) = self.layout.frame.instruction else {
            return Ok(false);
        };
        let instruction = self.memory().read_u64(frame.wrapping_add(at))?;
        let mut next = [0; 2];
        self.memory().read(instruction.wrapping_add(2), &mut next)?;
        Ok(next[1] & 3 >= 2)
    }

    /// The object that a suspended frame awaits, from 3.11 on: a value on its stack.
    fn top(&self, frame: u64, stack: Stack) -> Result<u64, RuntimeError> {
        /// Low bits of a reference, from 3.14 on.
        const TAG: u64 = 3;
        let wrong = || RuntimeError::new(format!("the frame at {frame:#x} has no stack"));
        let values = frame.wrapping_add(stack.values());
        let structure = Structure::read(self.memory(), frame, &[Stack::TOP])?;
        let (count, least) = match stack {
            Stack::Count { locals } => {
                let code = frame.wrapping_add(self.layout.frame.code);
                let code = self.memory().read_u64(code)?;
                let locals = Structure::read(self.memory(), code, &[locals])?.int(locals);
                let count = u64::try_from(structure.int(Stack::TOP)).map_err(|_| wrong())?;
                (count, u64::try_from(locals).map_err(|_| wrong())?)
            }
            Stack::End { above } => {
                let end = structure.pointer(Stack::TOP).wrapping_sub(8 * above);
                (end.wrapping_sub(values) / 8, 0)
            }
        };
        if count <= least || count > MAX_VALUES {
            return Err(wrong());
        }
        let top = values.wrapping_add(8 * (count - 1));
        Ok(self.memory().read_u64(top)? & !TAG)
    }

    /// [`Self::state`] up to 3.10. `f_valuestack` and `f_stacktop` have the same offsets in each version.
    fn of_object(
        &self,
        address: u64,
        depth_and_state: Option<(u64, u64)>,
        code: u64,
    ) -> Result<State, RuntimeError> {
        const RUNNING: u64 = 24;
        const BOTTOM: u64 = 64;
        const TOP: u64 = 72;
        let structure = Structure::read(self.memory(), address, &[FIRST, RUNNING])?;
        let frame = structure.pointer(FIRST);
        if frame == 0 {
            return Ok(State::Ended);
        }
        let Instruction::Last { at, unit, .. } = self.layout.frame.instruction else {
            return Err(RuntimeError::new("frames have an unknown layout"));
        };
        let (depth, state) = depth_and_state.unwrap_or((TOP, TOP));
        let fields = [BOTTOM, TOP, depth, state, at, self.layout.frame.code];
        let inner = Structure::read(self.memory(), frame, &fields)?;
        let top = match depth_and_state {
            Some((depth, state)) => {
                // FRAME_EXECUTING is 0.
                match inner.byte(state).cast_signed() {
                    0 => return Ok(State::Executing),
                    1.. => return Ok(State::Ended),
                    _ => {}
                }
                let depth = u64::try_from(inner.int(depth)).unwrap_or(0);
                let bottom = inner.pointer(BOTTOM);
                bottom.wrapping_add(8 * depth.min(MAX_VALUES))
            }
            None if structure.byte(RUNNING) != 0 => return Ok(State::Executing),
            None => inner.pointer(TOP),
        };
        if top == 0 {
            return Ok(State::Executing);
        }
        let last = inner.int(at);
        let mut awaits = None;
        if last >= 0 {
            /// `PyBytesObject.ob_sval`.
            const BYTES: u64 = 32;
            let code = inner.pointer(self.layout.frame.code).wrapping_add(code);
            let bytes = self.memory().read_u64(code)?.wrapping_add(BYTES);
            let next = u64::from(last.unsigned_abs()) * u64::from(unit.unsigned_abs()) + 2;
            let instruction = self.memory().read_u8(bytes.wrapping_add(next))?;
            if instruction == YIELD_FROM && top > inner.pointer(BOTTOM) {
                awaits = Some(self.memory().read_u64(top.wrapping_sub(8))?);
            }
        }
        Ok(State::Suspended { frame, awaits })
    }
}
