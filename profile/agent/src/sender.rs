//! The thread that sends messages.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Channel, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use otelctx_export::{Cancel, Error, Exporter, Retry, Sent, Unsent};

use crate::counts::DropReason;
use crate::queue::{Next, Note, Queue};
use crate::{Backoff, Liveness, LivenessGuard};

/// Something that the sender's user should know. The same one may come again and again, but not while nothing changes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The receiver accepts messages: the first time, or again.
    Accepted {
        /// Number of attempts that failed before.
        failures: u32,
    },
    /// An attempt failed, and is repeated: the first one after messages were accepted.
    Failing(Error),
    /// The receiver refused a message, which was dropped.
    Refused(Error),
    /// The receiver rejected a part of a message, or remarked on it.
    Partial {
        /// Number of rejected profiles; 0 for a remark alone.
        rejected: u64,
        /// What the receiver says.
        message: String,
    },
    /// The queue has dropped its oldest messages, because it is full.
    QueueFull,
    /// Messages cannot be written to the queue's directory, and are kept in memory.
    CannotWrite(PathBuf, io::Error),
    /// Messages can be written to the queue's directory again.
    WritesAgain,
    /// A message in the queue's directory cannot be read for now, and is kept.
    CannotRead(PathBuf, io::Error),
    /// The file of a message that is no longer needed cannot be removed: it will be sent again after a restart.
    CannotRemove(PathBuf, io::Error),
    /// A message was dropped because its file was changed, or cannot be read.
    Damaged(PathBuf, String),
    /// The queue's directory has files that are no messages: the first one, and their number. They are ignored.
    Foreign(PathBuf, usize),
}

impl Event {
    /// Returns a hint, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Failing(error) | Self::Refused(error) => error.hint(),
            _ => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted { failures: 0 } => f.write_str("the collector accepts profiles"),
            Self::Accepted { failures } => {
                let plural = if *failures == 1 { "" } else { "s" };
                write!(
                    f,
                    "the collector accepts profiles again, after {failures} failed attempt{plural}"
                )
            }
            Self::Failing(error) => write!(f, "{error}; messages are kept, and sent later"),
            Self::Refused(error) => write!(f, "{error}; the message is dropped"),
            Self::Partial {
                rejected: 0,
                message,
            } => write!(f, "the collector says: {message}"),
            Self::Partial { rejected, message } => {
                let plural = if *rejected == 1 { "" } else { "s" };
                write!(f, "the collector rejected {rejected} profile{plural}")?;
                match &message[..] {
                    "" => Ok(()),
                    message => write!(f, ": {message}"),
                }
            }
            Self::QueueFull => {
                f.write_str("the queue is full: the oldest messages are dropped, and counted")
            }
            Self::CannotWrite(path, error) => write!(
                f,
                "{}: {error}: messages are kept in memory alone",
                path.display()
            ),
            Self::CannotRead(path, error) => write!(
                f,
                "{}: {error}: the message is kept, and sent later",
                path.display()
            ),
            Self::CannotRemove(path, error) => write!(
                f,
                "{}: {error}: the message will be sent again after a restart",
                path.display()
            ),
            Self::WritesAgain => f.write_str("messages are written to the queue's directory again"),
            Self::Damaged(path, why) => {
                write!(f, "{}: {why}: the message is dropped", path.display())
            }
            Self::Foreign(path, 1) => {
                write!(f, "{} is no message: it is ignored", path.display())
            }
            Self::Foreign(path, number) => write!(
                f,
                "{} and {} more are no messages: they are ignored",
                path.display(),
                number - 1
            ),
        }
    }
}

impl From<Note> for Event {
    fn from(note: Note) -> Self {
        match note {
            Note::CannotWrite(path, error) => Self::CannotWrite(path, error),
            Note::WritesAgain => Self::WritesAgain,
            Note::CannotRead(path, error) => Self::CannotRead(path, error),
            Note::CannotRemove(path, error) => Self::CannotRemove(path, error),
            Note::Damaged(path, why) => Self::Damaged(path, why),
            Note::Foreign(path, number) => Self::Foreign(path, number),
            Note::Full => Self::QueueFull,
        }
    }
}

/// Sends the messages of a queue, in order, from a thread of its own.
pub struct Sender {
    queue: Queue,
    cancel: Cancel,
    replacement: Arc<Mutex<Option<Exporter>>>,
    ended: Receiver<()>,
    liveness: Liveness,
    thread: JoinHandle<()>,
}

impl Sender {
    /// Starts to send. The thread calls `on_event`.
    ///
    /// # Errors
    /// Fails if there can be no further thread.
    pub fn start(
        queue: Queue,
        exporter: Exporter,
        backoff: Backoff,
        on_event: impl FnMut(Event) + Send + 'static,
    ) -> io::Result<Self> {
        let cancel = Cancel::default();
        let replacement = Arc::default();
        let (ends, ended) = channel();
        let (guard, liveness) = Liveness::pair();
        let work = Work {
            queue: queue.clone(),
            exporter,
            replacement: Arc::clone(&replacement),
            backoff,
            cancel: cancel.clone(),
            on_event: Box::new(on_event),
            failures: 0,
            state: State::Unknown,
            not_before: None,
            is_asked: false,
            is_last: false,
            _ends: ends,
            _guard: guard,
        };
        let thread = Builder::new().name("sender".to_owned());
        let thread = thread.spawn(move || work.run())?;
        Ok(Self {
            queue,
            cancel,
            replacement,
            ended,
            liveness,
            thread,
        })
    }

    /// Returns what knows whether the thread still runs: it ends with [`stop`](Self::stop), or if `on_event` panics.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    /// Sends further messages with another exporter, from the next attempt on.
    pub fn replace(&self, exporter: Exporter) {
        *lock(&self.replacement) = Some(exporter);
        // Waiting for a retry with the former one makes no sense.
        self.queue.wake();
    }

    /// Sends what is in the queue, for at most `grace`, and ends. While the receiver does not accept messages, only one more
    /// attempt is made, and none if all messages are in files or the receiver has asked for a delay. Messages that are
    /// neither sent nor in files are dropped, and counted.
    pub fn stop(self, grace: Duration) {
        self.queue.stop(Instant::now() + grace);
        if self.ended.recv_timeout(grace) == Err(RecvTimeoutError::Timeout) {
            self.cancel.cancel();
        }
        // A panic was printed, and its messages are in the queue.
        let _ = self.thread.join();
        self.queue.close();
    }
}

/// What the thread works with.
struct Work {
    queue: Queue,
    exporter: Exporter,
    replacement: Arc<Mutex<Option<Exporter>>>,
    backoff: Backoff,
    cancel: Cancel,
    on_event: Box<dyn FnMut(Event) + Send>,
    /// Number of failed attempts since the last answer of the receiver.
    failures: u32,
    state: State,
    /// The time before which no attempt is made.
    not_before: Option<Instant>,
    /// True if the receiver has asked for that delay.
    is_asked: bool,
    /// True once the last attempt at the end was begun.
    is_last: bool,
    /// Both are dropped at the end of the thread.
    _ends: Channel<()>,
    _guard: LivenessGuard,
}

/// What was reported of the receiver.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Accepting,
    Failing,
    /// It accepts messages in part, or with this remark.
    Partial(String),
    /// It refuses messages, with this error.
    Refusing(String),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    fn run(mut self) {
        loop {
            if self.queue.is_stopping() {
                self.begin_last_attempt();
            }
            match self.queue.next(self.not_before) {
                Next::Report(notes) => notes.into_iter().for_each(|it| (self.on_event)(it.into())),
                Next::Woken => {
                    if let Some(exporter) = lock(&self.replacement).take() {
                        self.exporter = exporter;
                        (self.not_before, self.is_asked) = (None, false);
                    }
                }
                Next::Send(bytes) => {
                    let message = self.exporter.message(bytes);
                    match self.exporter.attempt(&message, &self.cancel) {
                        Ok(sent) => self.sent(&sent),
                        Err(unsent) => self.unsent(unsent),
                    }
                }
                Next::End => return,
            }
        }
    }

    /// At the end, one more attempt is made without a delay, unless there is no use in it.
    fn begin_last_attempt(&mut self) {
        if !(self.is_asked || self.is_last || self.queue.is_stored()) {
            self.not_before = None;
        }
        self.is_last = true;
    }

    fn sent(&mut self, sent: &Sent) {
        self.queue.add_rejected(sent.rejected_profiles);
        self.queue.finish(None);
        let failures = std::mem::take(&mut self.failures);
        (self.not_before, self.is_asked) = (None, false);
        let message = sent.remarks.first().cloned().unwrap_or_default();
        let rejected = sent.rejected_profiles;
        if rejected > 0 || !message.is_empty() {
            self.enter(State::Partial(message.clone()), || Event::Partial {
                rejected,
                message,
            });
        } else {
            self.enter(State::Accepting, || Event::Accepted { failures });
        }
    }

    fn unsent(&mut self, unsent: Unsent) {
        let error = unsent.error;
        let asked = match unsent.retry {
            Retry::Never => {
                self.queue.finish(Some(DropReason::Refused));
                self.failures = 0;
                (self.not_before, self.is_asked) = (None, false);
                let state = State::Refusing(error.to_string());
                return self.enter(state, || Event::Refused(error));
            }
            Retry::Later => None,
            Retry::After(asked) => Some(asked.min(self.backoff.max_asked)),
        };
        self.queue.keep();
        self.failures = self.failures.saturating_add(1);
        // Some receivers ask for no delay at all, or until a time that has passed here.
        let delay = match asked {
            Some(asked) => asked.max(self.backoff.first),
            None => self.backoff.delay(self.failures),
        };
        self.not_before = Instant::now().checked_add(delay);
        self.is_asked = asked.is_some();
        if !matches!(error, Error::Cancelled { .. }) {
            self.enter(State::Failing, || Event::Failing(error));
        }
    }

    /// Reports an event if it is a change.
    fn enter(&mut self, state: State, event: impl FnOnce() -> Event) {
        if self.state != state {
            self.state = state;
            (self.on_event)(event());
        }
    }
}
