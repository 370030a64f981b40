//! One look at one thread.

use std::fmt;

use crate::{ContextId, StackId, ThreadId};

/// One look at one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When, in nanoseconds of the recorder's `CLOCK_MONOTONIC`.
    pub time: u64,
    /// On which processor.
    pub cpu: u32,
    /// Which thread, and by it which process.
    pub thread: ThreadId,
    /// What the thread was doing.
    pub event: Event,
    /// What it was working on.
    pub found: Found,
    /// Return addresses in the process, innermost first; the first is where it stood.
    pub user_stack: StackId,
    /// The same in the kernel; empty if it ran in the process.
    pub kernel_stack: StackId,
}

/// What a sampled thread was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// It ran when the clock ticked.
    OnCpu,
    /// It came back to a processor after it had been off for this many nanoseconds.
    OffCpu {
        /// How long.
        nanoseconds: u64,
    },
}

/// What a look says about a thread's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Found {
    /// This context was attached.
    Attached(ContextId),
    /// Its process publishes contexts, and this thread had none attached.
    Detached,
    /// Its process publishes no thread contexts.
    NotPublished,
    /// Its process does, and this one could not be read.
    Unread(Unread),
}

/// Why the context of a thread was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Unread {
    /// The record said not to read it: its thread was just writing it.
    NotValid,
    /// The thread's slot could not be read, for example because its page was not in memory.
    Slot,
    /// The record that the slot points at could not be read.
    Record,
    /// It changed while it was read from a running thread.
    Torn,
    /// How this process keeps the slot is not supported by this sampler.
    Unsupported,
    /// Where the slot lies was not looked up yet, or has just changed.
    Unresolved,
}

impl Unread {
    /// Every reason, in the order of [`Counts`].
    pub const ALL: [Self; 6] = [
        Self::NotValid,
        Self::Slot,
        Self::Record,
        Self::Torn,
        Self::Unsupported,
        Self::Unresolved,
    ];
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotValid => "being written",
            Self::Slot => "slot not readable",
            Self::Record => "record not readable",
            Self::Torn => "changed while it was read",
            Self::Unsupported => "unsupported access",
            Self::Unresolved => "place not known yet",
        })
    }
}

/// How many looks there were and what came of them. Nothing is lost without being counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Samples with a context.
    pub attached: u64,
    /// Samples of publishing processes, without one.
    pub detached: u64,
    /// Samples of processes that publish no thread contexts.
    pub not_published: u64,
    /// Samples whose context was not read, by the order of [`Unread::ALL`].
    pub unread: [u64; Unread::ALL.len()],
    /// Looks whose sample got lost, because the recorder was too slow; by ptrace also those that
    /// were due while the thread did not stop in time or was not found running.
    pub lost: u64,
    /// User stacks that had more frames than are kept.
    pub truncated_stacks: u64,
    /// Samples whose user stack could not be walked.
    pub missing_stacks: u64,
    /// Samples without what one of a runtime's steps should have added.
    pub incomplete: u64,
    /// Attributes whose key no key map explained.
    pub unknown_keys: u64,
}

impl Counts {
    /// Counts one sample.
    pub fn add(&mut self, found: Found) {
        match found {
            Found::Attached(_) => self.attached += 1,
            Found::Detached => self.detached += 1,
            Found::NotPublished => self.not_published += 1,
            Found::Unread(why) => {
                let at = Unread::ALL.iter().position(|reason| *reason == why);
                self.unread[at.unwrap_or(Unread::ALL.len() - 1)] += 1;
            }
        }
    }

    /// Samples in all, without the lost ones.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let unread: u64 = self.unread.iter().sum();
        self.attached + self.detached + self.not_published + unread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted_once() {
        let mut counts = Counts::default();
        counts.add(Found::Detached);
        counts.add(Found::NotPublished);
        for why in Unread::ALL {
            counts.add(Found::Unread(why));
        }
        assert_eq!(counts.unread, [1; 6]);
        assert_eq!(counts.samples(), 8);
    }
}
