//! Answers about some threads of a process, and not all; and the time that is given for one.

use std::time::{Duration, Instant};

use otelctx_reader::{Error, Process, Thread, Threads, remote};
use serde::{Deserialize, Serialize};

use crate::error::{MORE_TIME, is_gone};
use crate::output::words::grouped;

/// The end came before every thread was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partial {
    /// Threads that were looked at.
    pub(super) read: usize,
    /// Threads that there are, without those that have ended since.
    pub(super) of: usize,
    pub(super) why: Why,
}

/// What ended a look at the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// `--deadline`.
    Deadline(Duration),
    /// So many bytes of contexts.
    Memory(usize),
    /// Libraries came or went while the threads were read, or that could not be told, and no time
    /// was left to read them again: none of the answers can be relied on.
    Modules(Duration),
}

impl Partial {
    /// How much was read of how much, and why not more.
    pub(super) fn sentence(&self) -> String {
        let (read, of) = (grouped(self.read), grouped(self.of));
        let why = match self.why {
            Why::Deadline(deadline) => {
                format!("the deadline of {} s has passed", deadline.as_secs_f64())
            }
            Why::Memory(bytes) => format!("their contexts take more than {} MiB", bytes >> 20),
            Why::Modules(deadline) => format!(
                "libraries may have come or gone meanwhile, and in {} s there was no time to read \
                 them again",
                deadline.as_secs_f64()
            ),
        };
        format!("{read} of {of} threads: {why}")
    }

    /// What would give the rest.
    pub(super) fn mend(&self) -> Option<&'static str> {
        match self.why {
            Why::Deadline(_) | Why::Modules(_) => Some(MORE_TIME),
            Why::Memory(_) => None,
        }
    }
}

/// The same for machines (docs/json.md).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartialJson {
    pub(super) read: usize,
    pub(super) of: usize,
    pub(super) text: String,
}

impl PartialJson {
    pub(super) fn of(partial: &Partial) -> Self {
        Self {
            read: partial.read,
            of: partial.of,
            text: partial.sentence(),
        }
    }
}

/// What a look at a thread came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// An answer, or that there is none.
    Read,
    /// The thread has ended.
    Ended,
    /// There was no time left to stop it.
    Late,
}

impl Seen {
    /// By the error of a look at `thread`.
    pub(super) fn of(error: &Error, thread: &Thread<'_>) -> Self {
        let patience = thread.process().options().stop_timeout;
        match error {
            Error::Deadline { .. } => Self::Late,
            // It was given what was left until the deadline, and might have stopped in the time that
            // others are given.
            Error::Remote(remote::Error::StopTimeout { timeout, .. }) if *timeout < patience => {
                Self::Late
            }
            error if is_gone(error) => Self::Ended,
            _ => Self::Read,
        }
    }
}

/// The time that is given to look at one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    patience: Duration,
    half: Instant,
    end: Instant,
}

impl Deadline {
    /// One that is so far away.
    pub(super) fn after(patience: Duration) -> Self {
        let start = Instant::now();
        Self {
            patience,
            half: start + patience / 2,
            end: start + patience,
        }
    }

    /// When it is.
    pub(super) fn end(&self) -> Instant {
        self.end
    }

    /// Until when something may go on that has no end, or is not worth it all.
    pub(super) fn half(&self) -> Instant {
        self.half
    }

    /// Whether it has passed.
    pub(super) fn has_passed(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Has `look` look at one thread of `process` after the other until the deadline, and returns
    /// what that came to if these were not all.
    pub(super) fn threads(
        &self,
        process: &mut Process,
        mut look: impl FnMut(&Thread<'_>) -> Seen,
    ) -> Result<Option<Partial>, Error> {
        // The list has no end while a process creates threads as fast as they are listed.
        let Threads {
            threads,
            is_complete,
            ..
        } = process.threads_while(|| Instant::now() < self.half)?;
        let (mut read, mut ended) = (0, 0);
        let mut is_late = !is_complete;
        for thread in &threads {
            let seen = match self.has_passed() {
                true => Seen::Late,
                false => look(thread),
            };
            match seen {
                Seen::Read => read += 1,
                Seen::Ended => ended += 1,
                Seen::Late => {
                    is_late = true;
                    break;
                }
            }
        }
        let mut of = threads.len() - ended;
        if !is_complete {
            of = of.max(number_of_threads(process));
        }
        let why = Why::Deadline(self.patience);
        Ok(is_late.then_some(Partial { read, of, why }))
    }

    /// For when all the time went before the first thread.
    pub(super) fn none_read(&self, process: &Process) -> Partial {
        Partial {
            read: 0,
            of: number_of_threads(process),
            why: Why::Deadline(self.patience),
        }
    }
}

/// How many threads the kernel counts, 0 if the process has ended.
pub(super) fn number_of_threads(process: &Process) -> usize {
    let status = process.target().status();
    status.map_or(0, |status| status.threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That of a process which creates threads as fast as they are listed need not end by itself.
    #[test]
    fn a_list_of_threads_ends_at_half_of_the_time() {
        let mut own = Process::open(nix::unistd::getpid().as_raw()).unwrap();
        let now = Instant::now();
        let patience = Duration::from_secs(3600);
        let end = now + patience;
        let mut seen = |half| {
            let deadline = Deadline {
                patience,
                half,
                end,
            };
            deadline.threads(&mut own, |_| Seen::Read).unwrap()
        };
        let partial = seen(now).unwrap();
        assert_eq!((partial.read, partial.of > 0), (0, true));
        assert_eq!(seen(end), None);
    }
}
