//! Converts the program's samples to observations.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use otelctx_reader::runtime::{RuntimeError, RuntimeReading, ThreadView};
use otelctx_sample::{Catalog, Found, Frame, Sample, StackEnd};

use super::abi::{
    self, EventHead, FRAME_INTERRUPTED, Part, Parts, ThreadKey, flag, part, step_outcome,
};
use super::copies::Copies;
use super::thread_words::{Lookup, ThreadWords};
use super::unwind::{Unwinding, stack_end};
use crate::observation::{Observation, Record};
use crate::processes::Processes;
use crate::walkers::LiveWalkers;

/// Maximum size of a stack that is walked by frame pointers, in bytes (`STACK_SIZE` in `stack.h`).
const MAX_UNCHECKED_STACK: usize = 127 * 8;

/// The stacks of one event; the memory is reused for the next.
#[derive(Default)]
pub(super) struct Stacks {
    user: Vec<Frame>,
    kernel: Vec<Frame>,
}

/// The end of a user stack, as the program reports it.
#[derive(Clone, Copy)]
struct UserStackEnd {
    end: StackEnd,
    /// The stack was walked by tables. Frame pointers are followed without a check.
    is_checked: bool,
    /// The program has found mappings that are in no list.
    has_all_mappings: bool,
}

/// The parts that runtimes' steps have added to a sample.
#[derive(Default)]
struct StepParts {
    readings: Vec<RuntimeReading>,
    has_any: bool,
    is_incomplete: bool,
    /// The runtime of a part is not known yet.
    is_unresolved: bool,
}

pub(super) struct Decoder<'r> {
    pub(super) processes: &'r mut Processes,
    pub(super) unwinding: &'r mut Unwinding,
    /// The number of each runtime's step, by its name.
    pub(super) steps: &'r BTreeMap<String, u32>,
    pub(super) words: &'r mut ThreadWords,
    pub(super) copies: &'r mut Copies,
    pub(super) stacks: &'r mut Stacks,
}

impl Decoder<'_> {
    pub(super) fn sample(
        &mut self,
        head: &EventHead,
        parts: Parts<'_>,
        catalog: &mut Catalog,
    ) -> Sample {
        let pid = head.pid as i32;
        self.processes.search_other_context(pid, head.time);
        self.stacks.user.clear();
        self.stacks.kernel.clear();
        let (mut record, mut variable, mut user_end) = (None, 0, None);
        let has_cut_steps = head.flags & flag::CUT_STEPS != 0;
        let mut steps = StepParts {
            is_incomplete: has_cut_steps,
            ..StepParts::default()
        };
        for part in parts {
            match part.kind {
                part::RECORD => {
                    (record, variable) = (Some(part.bytes), usize::from(part.outcome));
                }
                part::USER_STACK if stack_end::is_gone(part.outcome) => {}
                part::USER_STACK => {
                    let end = UserStackEnd::of(&part);
                    read_user_stack(&mut self.stacks.user, part.bytes, end.is_checked);
                    user_end = Some(end);
                }
                part::KERNEL_STACK => read_stack(&mut self.stacks.kernel, part.bytes),
                kind if kind < part::STEP => {}
                _ => self.read_step(head, &part, &mut steps),
            }
        }
        let is_executing =
            head.flags & flag::USER_MODE == 0 && self.processes.is_executing(pid, head.time);
        if is_executing {
            // The registers may be those with which the next program starts.
            self.stacks.user.clear();
            user_end = None;
        }
        let mut stack_end = user_end.map(|end| self.explain_end(head, end));
        let walkers = self.walkers(pid);
        if let Some(end) = self.walk_again(head) {
            stack_end = Some(end);
        } else if walkers.is_some_and(|walkers| self.cut_generated(&walkers)) {
            stack_end = stack_end.map(|_| StackEnd::TablesNotReady);
        }
        let counts = &mut self.processes.tally.counts;
        counts.incomplete_steps += u64::from(steps.is_incomplete);
        counts.unresolved_threads += u64::from(steps.is_unresolved);
        counts.missing_stacks += u64::from(head.flags & flag::NO_USER_STACK != 0);
        let comm = name(&head.comm);
        let serial = head.serial;
        let seen = Observation {
            time: head.time,
            cpu: head.cpu,
            pid,
            tid: head.tid as i32,
            comm: &comm,
            context: abi::found(head.outcome, record).and_then(|bytes| {
                Found::Attached(Record {
                    serial,
                    variable,
                    bytes,
                })
            }),
            runtimes: steps.readings,
            is_executing,
            // Once the steps are configured, each sample has a part for each step.
            is_early: !has_cut_steps && !steps.has_any,
            user_stack: &self.stacks.user,
            stack_end,
            kernel_stack: &self.stacks.kernel,
        };
        self.processes.sample(&seen, catalog)
    }

    fn read_step(&mut self, head: &EventHead, part: &Part<'_>, to: &mut StepParts) {
        to.has_any = true;
        let number = u32::from(part.kind - part::STEP);
        let step = self.steps.iter().find(|(_, known)| **known == number);
        let pid = head.pid as i32;
        let is_known = self.processes.knows_runtimes(pid);
        match (part.outcome, step) {
            (step_outcome::DONE, Some((name, _))) => {
                let reading = self.processes.decode(pid, name, part.bytes);
                to.is_unresolved |= reading.is_none() && !is_known;
                to.readings.extend(reading);
            }
            _ if !is_known => to.is_unresolved = true,
            (step_outcome::UNKNOWN_THREAD, Some((name, _))) => {
                let thread = ThreadKey {
                    pid: head.pid,
                    tid: head.tid,
                    step: number,
                };
                let find = || thread_word(self.processes, head, name, part.bytes);
                match self.words.look_up(thread, head.time, find) {
                    Lookup::Late => to.is_unresolved = true,
                    Lookup::NotFound => {}
                    Lookup::Failed => to.is_incomplete = true,
                }
            }
            (step_outcome::DONE, None) => {}
            _ => to.is_incomplete = true,
        }
    }

    /// Walks the stack again if the program has copied it, because rows of its code were not there. Returns why it ended.
    fn walk_again(&mut self, head: &EventHead) -> Option<StackEnd> {
        let number = Some(head.detail).filter(|number| *number != 0)?;
        let copied = self.copies.take(head.cpu, number)?;
        let pid = head.pid as i32;
        let walked = self.processes.walk_again(pid, head.time, copied)?;
        self.stacks.user.clear();
        self.stacks.user.extend_from_slice(&walked.frames);
        Some(walked.end)
    }

    /// Returns the walkers of generated code of a process. Notes which code they walk now: a runtime may have just begun.
    fn walkers(&mut self, pid: i32) -> Option<Arc<LiveWalkers>> {
        let walkers = self.processes.walkers(pid);
        let ranges = walkers.as_ref().map_or(&[][..], |it| it.walkers.ranges());
        self.unwinding.set_walked(pid, ranges);
        walkers
    }

    /// Cuts a stack at its first frame in generated code that only its runtime can walk. Returns true if there is one.
    fn cut_generated(&mut self, walkers: &LiveWalkers) -> bool {
        let is_walked = |frame: &Frame| {
            let address = frame.lookup_address();
            address.is_some_and(|address| walkers.walkers.lose_frames_at(address))
        };
        let first = self.stacks.user.iter().position(is_walked);
        self.stacks
            .user
            .truncate(first.map_or(usize::MAX, |it| it + 1));
        first.is_some()
    }

    /// Determines why a user stack ended, and cuts it where its frames are uncertain.
    fn explain_end(&mut self, head: &EventHead, reported: UserStackEnd) -> StackEnd {
        let (pid, stack) = (head.pid as i32, &mut self.stacks.user);
        if self.unwinding.lacks_mappings(pid, stack, reported.end)
            && let Some(process) = self.processes.running(pid)
        {
            self.unwinding.read(process);
        }
        let end = if reported.is_checked {
            self.unwinding.explain(pid, stack, reported.end, head.time)
        } else {
            self.unwinding.cut(pid, stack, reported.end)
        };
        let has_all = reported.has_all_mappings;
        let lacks_room = self.unwinding.lacks_room(pid, stack, end, has_all);
        if lacks_room {
            StackEnd::TooManyMappings
        } else {
            end
        }
    }
}

impl UserStackEnd {
    fn of(part: &Part<'_>) -> Self {
        let is_checked = part.outcome != stack_end::BY_FRAME_POINTERS;
        Self {
            end: if is_checked {
                stack_end::of(part.outcome)
            } else if part.bytes.len() < MAX_UNCHECKED_STACK {
                StackEnd::FramePointers
            } else {
                StackEnd::Limit
            },
            is_checked,
            has_all_mappings: part.outcome & stack_end::ALL_MAPPINGS != 0,
        }
    }
}

/// Finds the word that a step has asked for. `part` has the thread pointer.
fn thread_word(
    processes: &Processes,
    head: &EventHead,
    step: &str,
    part: &[u8],
) -> Result<Option<u64>, RuntimeError> {
    let pointer = part.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    let pointer = pointer.ok_or_else(|| RuntimeError::new("a step has asked for no thread"))?;
    let thread = ThreadView::new(head.tid as i32, pointer);
    processes.thread_word(head.pid as i32, step, thread)
}

/// Decodes a thread's name, which ends with NUL if it is shorter than the array.
pub(super) fn name(comm: &[u8; 16]) -> Cow<'_, str> {
    let end = comm.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&comm[..end.unwrap_or(comm.len())])
}

/// Reads the frames of a user stack. Interrupted ones are marked if `has_marks`.
pub(super) fn read_user_stack(to: &mut Vec<Frame>, bytes: &[u8], has_marks: bool) {
    read_stack(to, bytes);
    if !has_marks {
        return;
    }
    for frame in &mut *to {
        if let Frame::Native { address, .. } = *frame
            && address & FRAME_INTERRUPTED != 0
        {
            *frame = Frame::instruction(address & !FRAME_INTERRUPTED);
        }
    }
    Frame::mark_signal_returns(to);
}

pub(super) fn read_stack(to: &mut Vec<Frame>, bytes: &[u8]) {
    let words = bytes.as_chunks().0.iter().enumerate();
    to.extend(words.map(|(depth, word)| Frame::native(depth, u64::from_ne_bytes(*word))));
}
