//! The configuration of the eBPF sampler's step (`bpf/cpython.step.h`) for a process, and the part that
//! the step adds to a sample.

use otelctx_reader::remote::libc::KeyLayout;
use otelctx_reader::runtime::{KernelStep, MAX_FRAMES, MAX_OUTERMOST, MAX_WALKED, RuntimeError};

use crate::identity::name_word;
use crate::layout::{CallEnd, GENERATOR_STATE, Gil, Instruction, Layout, TextLayout, TopFrame};
use crate::threads::{OwnState, Variables};

/// Stands for the offset of a field that the version does not have.
const NO_FIELD: u64 = u64::MAX;

/// Number of bytes of a generator before its frame that are read, in 3.11.
const GENERATOR_START: u64 = 0_u64.wrapping_sub(8);

/// The step and its configuration for a process. `None` if it cannot read the frames.
pub(crate) fn kernel_step(
    layout: &Layout,
    variables: &Variables,
    code_type: u64,
) -> Option<KernelStep> {
    let own = variables.own.and_then(own_state).unwrap_or(UNKNOWN_PLACE);
    let (gil, locked, holder, enabled) = match layout.gil {
        Gil::Current => (NO_FIELD, 0, 0, NO_FIELD),
        Gil::OfInterpreter {
            gil,
            locked,
            last_holder,
            enabled,
        } => (gil, locked, last_holder, enabled.unwrap_or(NO_FIELD)),
    };
    let (top, c_frame) = match layout.thread.frame {
        TopFrame::Direct(frame) => (frame, NO_FIELD),
        TopFrame::CFrame { cframe, current } => (cframe, current),
    };
    let words = [
        layout.thread.id,
        layout.thread.interpreter,
        top,
        layout.thread.call.unwrap_or(NO_FIELD),
        layout.interpreter.next,
        gil,
        locked,
        holder,
        enabled,
        c_frame,
    ];
    let thread_current = variables.thread_current.map(i64::cast_unsigned);
    let variables = [
        variables.current.unwrap_or(0),
        thread_current.unwrap_or(NO_FIELD),
        code_type,
        variables.thread_id.cast_unsigned(),
        variables.interpreters,
    ];
    let words = variables
        .into_iter()
        .chain(own)
        .chain(words)
        .chain(frame(layout)?);
    let configuration = words.flat_map(u64::to_ne_bytes).collect();
    Some(KernelStep::new("cpython", configuration))
}

/// Threads do not store their states, as in 2.7, or in an unknown way: the step requests them.
const UNKNOWN_PLACE: [u64; 7] = [0, 0, 0, 0, NO_FIELD, 0, 0];

/// The location of the state that a thread stores.
fn own_state(own: OwnState) -> Option<[u64; 7]> {
    let (key, keys) = match own {
        OwnState::ThreadLocal(offset) => return Some([0, 0, 0, 0, offset.cast_unsigned(), 0, 0]),
        OwnState::Key { address, keys } => (address, keys),
    };
    match keys.layout() {
        KeyLayout::Glibc {
            blocks,
            entries,
            entry_size,
            entry_sequence: 0,
            entry_data: 8,
            keys,
            key_size,
            key_sequence,
            ..
        } => Some([
            key,
            keys,
            key_size,
            key_sequence,
            blocks.cast_unsigned(),
            entries,
            entry_size,
        ]),
        KeyLayout::Musl { values, .. } => Some([key, 0, 0, 0, values.cast_unsigned(), 0, 0]),
        _ => None,
    }
}

/// The layout of frames and code objects.
fn frame(layout: &Layout) -> Option<[u64; 21]> {
    let frame = &layout.frame;
    let (position, is_int) = match frame.instruction {
        Instruction::Last { at, .. } => (at, true),
        Instruction::Address(at) => (at, false),
    };
    // Greater than any byte.
    const NO_SHIM: u64 = 0x100;
    let (mark, entry_marks, shim_marks, all_are_entries) = match frame.end {
        CallEnd::Every => (position, 0, NO_SHIM, 1),
        CallEnd::Flag { is_entry, .. } => (is_entry, 0xff, NO_SHIM, 0),
        CallEnd::Shim { owner, least } => (owner, 0, least.into(), 0),
    };
    let owner = match frame.end {
        CallEnd::Every => position,
        CallEnd::Flag { owner, .. } | CallEnd::Shim { owner, .. } => owner,
    };
    let copy = frame.copy.unwrap_or(position);
    let fields = [frame.previous, frame.code, position, mark, owner, copy];
    let first = fields.into_iter().min()?;
    // In 3.11, the state of a generator is read with its frame, which comes after it.
    let (start, generator_state) = match frame.end {
        CallEnd::Flag { .. } => (GENERATOR_START, GENERATOR_STATE - GENERATOR_START),
        _ => (first, NO_FIELD),
    };
    let size = (fields.into_iter().max()? + 8).wrapping_sub(start);
    let at = |field: u64| field.wrapping_sub(start);
    // The step has room for a power of two.
    if size >= 128 {
        return None;
    }
    let text = match name_word(layout) {
        Some(word) => {
            let start = layout.text.start();
            let is_bytes = layout.text == TextLayout::Bytes;
            let length = TextLayout::LENGTH.wrapping_sub(start);
            [word as u64, start, length, is_bytes.into()]
        }
        None => [NO_FIELD, 0, 0, 0],
    };
    let [name, text_start, text_length, text_is_bytes] = text;
    Some([
        start,
        size,
        at(frame.previous),
        at(frame.code),
        at(position),
        at(mark),
        entry_marks,
        shim_marks,
        all_are_entries,
        at(owner),
        generator_state,
        is_int.into(),
        frame.copy.map_or(NO_FIELD, at),
        layout.code.copies.unwrap_or(0),
        layout.code.instructions.unwrap_or(0),
        layout.object.object_type(),
        layout.code.changing_words.into(),
        name,
        text_start,
        text_length,
        text_is_bytes,
    ])
}

/// The part of a sample that the step adds.
pub(crate) struct Part<'a> {
    pub(crate) thread_state: u64,
    /// `None` if there is no GIL, or that is unknown.
    pub(crate) holds_gil: Option<bool>,
    pub(crate) is_truncated: bool,
    /// Numbers of frames that were read, and of frames that are the outermost ones of a call.
    count: usize,
    calls: usize,
    frames: &'a [[u8; 24]],
}

/// A frame in a [`Part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampledFrame {
    /// The address of its code object.
    pub(crate) code: u64,
    /// [`Identity::hash`](crate::identity::Identity::hash) of the code object.
    pub(crate) identity: u64,
    /// Bytes from the start of the code object to the instruction; up to 3.10, `f_lasti`.
    pub(crate) position: u32,
    /// True for the outermost frame of a call of the interpreter.
    pub(crate) is_entry: bool,
}

impl SampledFrame {
    fn read(bytes: &[u8; 24]) -> Self {
        const ENTRY: u32 = 1;
        let word = |at: usize| u64::from_ne_bytes(bytes.as_chunks().0[at]);
        let half = |at: usize| u32::from_ne_bytes(bytes.as_chunks().0[at]);
        Self {
            code: word(0),
            identity: word(1),
            position: half(4),
            is_entry: half(5) & ENTRY != 0,
        }
    }
}

impl<'a> Part<'a> {
    /// `None` for a thread without a thread state; an error if the part is truncated.
    pub(crate) fn read(part: &'a [u8]) -> Result<Option<Self>, RuntimeError> {
        if part.is_empty() {
            return Ok(None);
        }
        const NO_GIL: u32 = 2;
        let cut = || RuntimeError::new("the kernel's step has added less than a thread state");
        let (thread_state, rest) = part.split_first_chunk().ok_or_else(cut)?;
        let (holds_gil, rest) = rest.split_first_chunk().ok_or_else(cut)?;
        let (is_truncated, rest) = rest.split_first_chunk().ok_or_else(cut)?;
        let (count, rest) = rest.split_first_chunk().ok_or_else(cut)?;
        let (calls, frames) = rest.split_first_chunk().ok_or_else(cut)?;
        let (frames, _) = frames.as_chunks();
        let frames = &frames[..frames.len().min(MAX_FRAMES)];
        let number = |bytes: &[u8; 4]| (u32::from_ne_bytes(*bytes) as usize).min(MAX_WALKED);
        Ok(Some(Self {
            thread_state: u64::from_ne_bytes(*thread_state),
            holds_gil: match u32::from_ne_bytes(*holds_gil) {
                NO_GIL => None,
                holds_gil => Some(holds_gil != 0),
            },
            is_truncated: u32::from_ne_bytes(*is_truncated) != 0,
            count: number(count).max(frames.len()),
            calls: number(calls),
            frames,
        }))
    }

    /// The innermost and the outermost frames, innermost first.
    pub(crate) fn frames(&self) -> (Vec<SampledFrame>, Vec<SampledFrame>) {
        const INNERMOST: usize = MAX_FRAMES - MAX_OUTERMOST;
        let frames = self.frames.iter().map(SampledFrame::read);
        let mut innermost: Vec<_> = frames.collect();
        let mut outermost = innermost.split_off(INNERMOST.min(innermost.len()));
        // A ring, which begins with the oldest of the last frames.
        if outermost.len() == MAX_OUTERMOST {
            outermost.rotate_left((self.count - INNERMOST) % MAX_OUTERMOST);
        }
        (innermost, outermost)
    }

    /// The number of frames that were read and not kept, and how many of them are the outermost ones of a
    /// call.
    pub(crate) fn omitted(&self) -> (usize, usize) {
        let kept = self.frames.iter().map(SampledFrame::read);
        let kept_calls = kept.filter(|frame| frame.is_entry).count();
        let omitted = self.count - self.frames.len();
        (omitted, self.calls.saturating_sub(kept_calls))
    }
}

#[cfg(test)]
mod tests;
