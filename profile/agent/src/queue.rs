//! Messages that wait to be sent.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::counts::{Counts, DropReason, Volume};
use crate::directory::{Directory, DirectoryError, Stored};

/// Time after which a message that could not be read is read again.
const READ_PAUSE: Duration = Duration::from_millis(500);

/// How many messages a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum size of messages in memory, in bytes. Default: 16 MiB.
    pub memory: u64,
    /// Maximum size of messages in the directory, in bytes. Default: 256 MiB.
    pub directory: u64,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            memory: 16 << 20,
            directory: 256 << 20,
        }
    }
}

/// Messages that wait to be sent, in order. Copies share them.
///
/// Without room for a message, the oldest ones are dropped, but for the one that is being sent. Messages are in memory; of
/// a queue in a directory only messages that could not be written, for example because the disk is full.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: QueueLimits,
    directory: Option<Directory>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    /// Size of the messages in memory, and of the stored ones, in bytes.
    held: u64,
    stored: u64,
    next_sequence: u64,
    /// True while the first entry is being sent.
    is_sending: bool,
    /// True while messages cannot be written to the directory.
    cannot_write: bool,
    /// The time after which no message is sent any more.
    stop: Option<Instant>,
    is_woken: bool,
    /// True while each message that is added makes others be dropped.
    is_full: bool,
    /// True while messages are damaged, cannot be read for now, or cannot be removed.
    is_damaged: bool,
    cannot_read: bool,
    cannot_remove: bool,
    notes: Vec<Note>,
    counts: Counts,
}

#[derive(Debug)]
struct Entry {
    stored: Stored,
    /// The message, unless it is in a file.
    held: Option<Arc<Vec<u8>>>,
}

impl Entry {
    fn volume(&self) -> Volume {
        Volume::of(self.stored.samples, self.stored.size as usize)
    }
}

/// What a sender reports of its queue.
#[derive(Debug)]
pub(crate) enum Note {
    CannotWrite(PathBuf, io::Error),
    WritesAgain,
    CannotRead(PathBuf, io::Error),
    CannotRemove(PathBuf, io::Error),
    Damaged(PathBuf, String),
    Foreign(PathBuf, usize),
    Full,
}

/// What a sender is to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send the first message; then [`Queue::finish`] or [`Queue::keep`].
    Send(Vec<u8>),
    /// Report what has happened.
    Report(Vec<Note>),
    /// [`Queue::wake`] was called.
    Woken,
    /// End.
    End,
}

impl Queue {
    /// Creates a queue in memory.
    #[must_use]
    pub fn in_memory(limits: QueueLimits) -> Self {
        Self::new(limits, None, State::default())
    }

    /// Opens a queue in a directory, which is created if it does not exist, with the messages that an earlier process has
    /// left there.
    ///
    /// # Errors
    /// Fails if the directory cannot be used, other users may write to it, or another process uses it.
    pub fn in_directory(path: &Path, limits: QueueLimits) -> Result<Self, DirectoryError> {
        let directory = Directory::open(path)?;
        let found = directory.find()?;
        let mut state = State::default();
        for stored in found.damaged {
            let volume = Volume::of(stored.samples, stored.size as usize);
            state.counts.resumed.add(volume);
            state.counts.drop(DropReason::Damaged, volume);
            let why = "its size is not that in its name".to_owned();
            if !std::mem::replace(&mut state.is_damaged, true) {
                let path = directory.path(stored);
                state.notes.push(Note::Damaged(path, why));
            }
        }
        if let Some((path, number)) = found.foreign {
            state.notes.push(Note::Foreign(path, number));
        }
        for stored in found.messages {
            let entry = Entry { stored, held: None };
            state.counts.resumed.add(entry.volume());
            state.counts.queued.add(entry.volume());
            state.stored += stored.size;
            state.next_sequence = stored.sequence + 1;
            state.entries.push_back(entry);
        }
        let queue = Self::new(limits, Some(directory), state);
        queue.shared.make_room(&mut queue.shared.lock(), 0, true);
        Ok(queue)
    }

    fn new(limits: QueueLimits, directory: Option<Directory>, state: State) -> Self {
        Self {
            shared: Arc::new(Shared {
                limits,
                directory,
                state: Mutex::new(state),
                changed: Condvar::new(),
            }),
        }
    }

    /// Adds a message with this number of samples. One thread at a time may add messages.
    pub fn push(&self, message: Vec<u8>, samples: u64) {
        let shared = &*self.shared;
        let size = message.len() as u64;
        let (sequence, dropped) = shared.lock().position();
        let stored = Stored::of(sequence, samples, &message);
        let is_stored = shared.store(stored, &message);
        let mut state = shared.lock();
        state.next_sequence = sequence + 1;
        let mut entry = Entry { stored, held: None };
        state.counts.added.add(entry.volume());
        if is_stored {
            state.stored += size;
        } else {
            if !shared.make_room(&mut state, size, false) {
                state.counts.drop(DropReason::QueueFull, entry.volume());
                state.note_full();
                shared.changed.notify_all();
                return;
            }
            entry.held = Some(Arc::new(message));
            state.held += size;
        }
        state.is_full = state.position().1 > dropped;
        state.counts.queued.add(entry.volume());
        state.entries.push_back(entry);
        shared.changed.notify_all();
    }

    /// Returns what became of the messages so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Waits for a message to send, not before `not_before`, or for something to report.
    pub(crate) fn next(&self, not_before: Option<Instant>) -> Next {
        let shared = &*self.shared;
        let mut state = shared.lock();
        loop {
            if std::mem::take(&mut state.is_woken) {
                return Next::Woken;
            }
            if !state.notes.is_empty() {
                return Next::Report(std::mem::take(&mut state.notes));
            }
            let now = Instant::now();
            let delay = not_before.and_then(|it| it.checked_duration_since(now));
            let delay = delay.filter(|it| !it.is_zero());
            if let Some(end) = state.stop
                && (state.entries.is_empty() || delay.is_some() || now >= end)
            {
                return Next::End;
            }
            let first = state.entries.front().filter(|_| delay.is_none());
            let Some((stored, held)) = first.map(|it| (it.stored, it.held.clone())) else {
                state = match delay {
                    Some(delay) => {
                        let waited = shared.changed.wait_timeout(state, delay);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => {
                        let waited = shared.changed.wait(state);
                        waited.unwrap_or_else(PoisonError::into_inner)
                    }
                };
                continue;
            };
            state.is_sending = true;
            drop(state);
            let message = shared.message(stored, held);
            match message {
                Ok(message) => {
                    state = shared.lock();
                    (state.is_damaged, state.cannot_read) = (false, false);
                    return Next::Send(message);
                }
                Err(error) if !Directory::is_damage(&error) => {
                    state = shared.lock();
                    state.is_sending = false;
                    if !std::mem::replace(&mut state.cannot_read, true) {
                        let path = shared.directory.as_ref().map(|it| it.path(stored));
                        let note = Note::CannotRead(path.unwrap_or_default(), error);
                        state.notes.push(note);
                        continue;
                    }
                    let waited = shared.changed.wait_timeout(state, READ_PAUSE);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Err(error) => {
                    state = shared.lock();
                    shared.finish(&mut state, Some(DropReason::Damaged));
                    let path = shared.directory.as_ref().map(|it| it.path(stored));
                    let note = Note::Damaged(path.unwrap_or_default(), error.to_string());
                    if !std::mem::replace(&mut state.is_damaged, true) {
                        state.notes.push(note);
                    }
                }
            }
        }
    }

    /// Removes the message that was sent, or is dropped for a reason.
    pub(crate) fn finish(&self, dropped: Option<DropReason>) {
        let mut state = self.shared.lock();
        self.shared.finish(&mut state, dropped);
        if dropped.is_none() {
            state.counts.last_sent = Some(SystemTime::now());
        }
    }

    /// Keeps the message that could not be sent.
    pub(crate) fn keep(&self) {
        let mut state = self.shared.lock();
        state.is_sending = false;
        state.counts.retries += 1;
    }

    pub(crate) fn add_rejected(&self, profiles: u64) {
        let rejected = &mut self.shared.lock().counts.rejected_profiles;
        *rejected = rejected.saturating_add(profiles);
    }

    /// Makes [`Self::next`] return at once.
    pub(crate) fn wake(&self) {
        self.shared.lock().is_woken = true;
        self.shared.changed.notify_all();
    }

    /// Ends [`Self::next`] once all messages are sent, at the latest at `end`.
    pub(crate) fn stop(&self, end: Instant) {
        let mut state = self.shared.lock();
        // The sender may wait for a retry, and makes a last attempt.
        (state.stop, state.is_woken) = (Some(end), true);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Returns true once [`Self::stop`] was called.
    pub(crate) fn is_stopping(&self) -> bool {
        self.shared.lock().stop.is_some()
    }

    /// Returns whether each message is in a file.
    pub(crate) fn is_stored(&self) -> bool {
        let state = self.shared.lock();
        state.entries.iter().all(|it| it.held.is_none())
    }

    /// Writes messages in memory to files if possible, and drops the others: the process is about to end.
    pub(crate) fn close(&self) {
        let shared = &*self.shared;
        let mut state = shared.lock();
        state.is_sending = false;
        let entries = std::mem::take(&mut state.entries);
        for entry in entries {
            let message = entry.held.as_ref();
            let is_stored = message.is_none_or(|message| {
                let directory = shared.directory.as_ref();
                directory.is_some_and(|it| it.write(entry.stored, message).is_ok())
            });
            if is_stored {
                state.entries.push_back(Entry {
                    held: None,
                    ..entry
                });
            } else {
                state.counts.queued.subtract(entry.volume());
                state.counts.drop(DropReason::Stopped, entry.volume());
            }
        }
    }
}

impl State {
    /// Returns the number of the next message, and how many were dropped for lack of room.
    fn position(&self) -> (u64, u64) {
        let dropped = self.counts.dropped(DropReason::QueueFull).messages;
        (self.next_sequence, dropped)
    }

    fn note_full(&mut self) {
        if !std::mem::replace(&mut self.is_full, true) {
            self.notes.push(Note::Full);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a message to a file, if there is a directory and it has room.
    fn store(&self, stored: Stored, message: &[u8]) -> bool {
        let Some(directory) = &self.directory else {
            return false;
        };
        if !self.make_room(&mut self.lock(), stored.size, true) {
            return false;
        }
        let written = directory.write(stored, message);
        let mut state = self.lock();
        let could_not = std::mem::replace(&mut state.cannot_write, written.is_err());
        match written {
            Ok(()) => {
                if could_not {
                    state.notes.push(Note::WritesAgain);
                }
                true
            }
            Err(error) => {
                if !could_not {
                    let path = directory.path(stored);
                    let path = path.parent().map(Path::to_owned).unwrap_or_default();
                    state.notes.push(Note::CannotWrite(path, error));
                }
                false
            }
        }
    }

    /// Drops the oldest messages in files, or in memory, until there is room for `size` more bytes. Returns false if there
    /// is none.
    fn make_room(&self, state: &mut State, size: u64, in_files: bool) -> bool {
        let limit = if in_files {
            self.limits.directory
        } else {
            self.limits.memory
        };
        loop {
            let used = if in_files { state.stored } else { state.held };
            if used + size <= limit {
                return true;
            }
            let mut entries = state.entries.iter().enumerate();
            let oldest = entries.find(|(index, entry)| {
                let is_sending = state.is_sending && *index == 0;
                !is_sending && entry.held.is_none() == in_files
            });
            let Some(index) = oldest.map(|(index, _)| index).filter(|_| size <= limit) else {
                return false;
            };
            self.remove(state, index, Some(DropReason::QueueFull));
            state.note_full();
        }
    }

    fn finish(&self, state: &mut State, dropped: Option<DropReason>) {
        if state.is_sending {
            state.is_sending = false;
            self.remove(state, 0, dropped);
        }
    }

    fn remove(&self, state: &mut State, index: usize, dropped: Option<DropReason>) {
        let Some(entry) = state.entries.remove(index) else {
            return;
        };
        let volume = entry.volume();
        state.counts.queued.subtract(volume);
        match dropped {
            Some(reason) => state.counts.drop(reason, volume),
            None => state.counts.sent.add(volume),
        }
        if entry.held.is_some() {
            state.held -= volume.bytes;
        } else {
            state.stored -= volume.bytes;
            let removed = self.directory.as_ref().map(|it| it.remove(entry.stored));
            match removed {
                Some(Err((path, error))) => {
                    if !std::mem::replace(&mut state.cannot_remove, true) {
                        state.notes.push(Note::CannotRemove(path, error));
                    }
                }
                _ => state.cannot_remove = false,
            }
        }
    }

    fn message(&self, stored: Stored, held: Option<Arc<Vec<u8>>>) -> io::Result<Vec<u8>> {
        match (held, &self.directory) {
            (Some(message), _) => Ok(message.to_vec()),
            (None, Some(directory)) => directory.read(stored),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

#[cfg(test)]
mod tests;
