//! What keeps a thread off the CPU, as all formats write it.

use otelctx_sample::OffCpuState;

use crate::attributes::{CALL, REASON, STATE};
use crate::{Group, Profile};

/// The kind of frames that stand for a wait. Not a value of `profile.frame.type`: files of other
/// programs do not have it.
pub(crate) const FRAME_KIND: &str = "wait";

/// What keeps a thread off the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wait<'p> {
    pub(crate) state: OffCpuState,
    /// The call and the reason in words, which are empty if they are unknown.
    pub(crate) call: &'p str,
    pub(crate) reason: &'p str,
}

impl<'p> Wait<'p> {
    /// Returns names and values of attributes of a sample, where they are known.
    pub(crate) fn attributes(&self) -> [Option<(&'static str, &'p str)>; 3] {
        let known = self.state != OffCpuState::Unknown;
        let text = |key, text: &'p str| (!text.is_empty()).then_some((key, text));
        [
            known.then_some((STATE, self.state.name())),
            text(CALL, self.call),
            text(REASON, self.reason),
        ]
    }

    /// Returns the frame at the end of the stack: why the thread waits, in brackets.
    pub(crate) fn frame(&self) -> String {
        let text = match self.state {
            // What it called before says nothing about the CPU that it has not got.
            OffCpuState::Queued => "queued",
            _ if !self.reason.is_empty() => self.reason,
            _ if !self.call.is_empty() => self.call,
            OffCpuState::Unknown => "waiting",
            state => state.name(),
        };
        format!("[{text}]")
    }
}

impl Profile {
    /// Returns what kept the thread of a group off the CPU, if something did.
    pub(crate) fn wait(&self, group: &Group<'_>) -> Option<Wait<'_>> {
        let (state, reason) = group.off_cpu?;
        let reason = reason.map(|id| self.catalog().reason_facts(id));
        Some(Wait {
            state,
            call: reason.map_or("", |it| &it.call),
            reason: reason.map_or("", |it| &it.text),
        })
    }
}
