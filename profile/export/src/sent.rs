//! The result of sending a profile.

use std::fmt;

use crate::answer::Answer;
use crate::error::Error;

/// Maximum number of different remarks of a collector that are kept.
const REMARKS: usize = 5;

/// The messages that a collector has accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Number of messages.
    pub messages: usize,
    /// Their size before compression, in bytes.
    pub bytes: usize,
    /// Number of profiles that the collector reported as rejected.
    pub rejected_profiles: u64,
    /// Other messages from the collector, whether or not it rejected anything: a few lines at most.
    pub remarks: Vec<String>,
}

impl Sent {
    pub(crate) fn add(&mut self, bytes: usize, answer: Answer) {
        self.messages += 1;
        self.bytes += bytes;
        let rejected = u64::try_from(answer.rejected).unwrap_or(0);
        self.rejected_profiles = self.rejected_profiles.saturating_add(rejected);
        let is_new = !answer.message.is_empty() && !self.remarks.contains(&answer.message);
        if is_new && self.remarks.len() < REMARKS {
            self.remarks.push(answer.message);
        }
    }
}

/// A profile that could not be sent, or only in part.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failed {
    /// The error.
    pub why: Error,
    /// Number of attempts to send the message that failed.
    pub attempts: u32,
    /// The messages before it, which the collector has accepted.
    pub sent: Sent,
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(out)?;
        if self.attempts > 1 {
            write!(out, ", tried {} times", self.attempts)?;
        }
        match self.sent.messages {
            0 => Ok(()),
            1 => out.write_str("; it accepted one part of the profile before"),
            parts => write!(out, "; it accepted {parts} parts of the profile before"),
        }
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}
