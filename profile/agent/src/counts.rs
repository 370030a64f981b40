//! What became of messages.

use std::time::SystemTime;

/// A number of messages, with their samples and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Number of messages.
    pub messages: u64,
    /// Number of samples in them.
    pub samples: u64,
    /// Their size before compression, in bytes.
    pub bytes: u64,
}

impl Volume {
    /// The volume of one message.
    pub(crate) fn of(samples: u64, size: usize) -> Self {
        Self {
            messages: 1,
            samples,
            bytes: size as u64,
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.samples += other.samples;
        self.bytes += other.bytes;
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.messages -= other.messages;
        self.samples -= other.samples;
        self.bytes -= other.bytes;
    }
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// The queue had no room: the oldest messages are dropped.
    QueueFull,
    /// The receiver refused it, in a way after which OTLP forbids to send it again.
    Refused,
    /// Its file in the queue's directory was changed, truncated or removed, or cannot be read.
    Damaged,
    /// The sender was stopped before it was sent, and it is in no file.
    Stopped,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::QueueFull, Self::Refused, Self::Damaged, Self::Stopped];

    /// Returns its name, as in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::Damaged => "damaged",
            Self::Stopped => "stopped",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// What became of the messages of a queue since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages from the queue's directory that an earlier process had left there.
    pub resumed: Volume,
    /// Messages that were added.
    pub added: Volume,
    /// Messages that the receiver accepted, including those of which it rejected a part.
    pub sent: Volume,
    /// Messages in the queue.
    pub queued: Volume,
    /// Number of profiles that the receiver reported as rejected in messages that it accepted.
    pub rejected_profiles: u64,
    /// Number of attempts that failed and were to be repeated.
    pub retries: u64,
    /// The time at which a message was accepted last.
    pub last_sent: Option<SystemTime>,
    dropped: [Volume; DropReason::ALL.len()],
}

impl Counts {
    /// Returns the messages that were dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> Volume {
        self.dropped[reason.index()]
    }

    /// Returns all messages that were dropped.
    #[must_use]
    pub fn all_dropped(&self) -> Volume {
        let mut all = Volume::default();
        self.dropped.iter().for_each(|it| all.add(*it));
        all
    }

    pub(crate) fn drop(&mut self, reason: DropReason, volume: Volume) {
        self.dropped[reason.index()].add(volume);
    }
}
