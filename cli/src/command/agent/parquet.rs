//! Parquet files of what is sent, for engines that read tables.
//!
//! Messages are kept in files until a table of some minutes is due: so small files do not accumulate, and what a killed agent
//! has not written, the next one writes. A thread of its own converts them, while the next ones are collected.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::fcntl::Flock;
use otelctx_agent::lock_folder;
use otelctx_profile::report::Selection;
use otelctx_profile::{Error, Format, Input, Options, convert};

use super::notices::{self, Notices};

/// Size of messages at which a table is written before it is due, in bytes: more may be too many to convert.
const MAX_MESSAGES: u64 = 64 << 20;
/// Size of messages that are kept while no table can be written, in bytes.
const MAX_KEPT: u64 = 256 << 20;
/// Number of attempts to convert messages that fail because of these.
const MAX_FAILURES: u32 = 2;
/// The start of the names of folders of messages to which none are added.
const FULL: &str = "full-";
/// Maximum number of folders of hours, and of services of an hour, whose files are moved.
const MAX_FOLDERS: usize = 100_000;

/// Some messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Messages {
    number: u32,
    bytes: u64,
    /// Number of samples in those of this process, not of an earlier one.
    samples: u64,
}

/// Whether the files of messages that no longer count were removed, or what is said of them: the next removal, or the next agent,
/// removes the rest.
type Removal = Result<(), String>;

/// What was discarded to make room.
#[derive(Debug, PartialEq, Eq)]
struct Discarded {
    messages: Messages,
    removal: Removal,
}

/// Where an agent writes.
#[derive(Debug)]
struct Folder {
    directory: PathBuf,
    /// The agent's own folder in it, for messages and unfinished tables.
    own: PathBuf,
    host: String,
    /// The host's name in the names of files.
    name: String,
    _lock: Flock<File>,
}

impl Folder {
    /// Opens a folder for this process alone, which is created if it is missing.
    fn open(directory: &Path, host: &str) -> io::Result<Self> {
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        let name: String = host.chars().filter(|it| is_plain(*it)).take(64).collect();
        if name.is_empty() {
            let why = format!(
                "no file can be named after this host, {host:?}: set a name with --node-name"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let own = directory.join(format!(".agent-{name}"));
        fs::create_dir_all(&own)?;
        let lock = lock_folder(&own)?.ok_or_else(|| {
            io::Error::other("another agent writes the Parquet files of this host there")
        })?;
        Ok(Self {
            directory: directory.to_owned(),
            own,
            host: host.to_owned(),
            name,
            _lock: lock,
        })
    }

    /// Returns the path of the folder of messages that are collected.
    fn kept(&self) -> PathBuf {
        self.own.join("messages")
    }

    /// Returns the path of a folder of messages to which none are added, with a number that gives the order.
    fn full(&self, number: u32) -> PathBuf {
        self.own.join(format!("{FULL}{number}"))
    }

    /// Finds the folders to which none are added, of an earlier process, the oldest first.
    fn find_full(&self) -> io::Result<VecDeque<(u32, Messages)>> {
        let all = entries(&self.own)?;
        let number = |it: &PathBuf| it.file_name()?.to_str()?.strip_prefix(FULL)?.parse().ok();
        let mut numbers: Vec<u32> = all.iter().filter_map(number).collect();
        numbers.sort_unstable();
        let found = numbers.into_iter().map(|it| (it, find(&self.full(it))));
        Ok(found.filter(|(_, messages)| messages.number > 0).collect())
    }

    /// Returns the path of the folder of messages that are converted.
    fn taken(&self) -> PathBuf {
        self.own.join("taken")
    }

    /// Returns the path that a folder of messages has while these are removed. Each has its own: two threads remove messages.
    fn done(&self, messages: &Path) -> PathBuf {
        let mut name = OsString::from("done-");
        name.push(messages.file_name().unwrap_or_default());
        self.own.join(name)
    }

    /// Removes messages that an earlier process had begun to remove.
    fn remove_done(&self) -> io::Result<()> {
        let all = entries(&self.own)?;
        let name = |it: &PathBuf| it.file_name().map(|it| it.to_string_lossy().into_owned());
        let mut done = all
            .iter()
            .filter(|it| name(it).is_some_and(|it| it.starts_with("done")));
        done.try_for_each(|it| remove(it))
    }

    /// Writes tables of the messages that were taken, and removes these.
    fn write(&self) -> Result<Removal, Error> {
        let new = self.own.join("new");
        let failed = |source| Error::Write {
            path: new.clone(),
            source,
        };
        // Of an agent that was killed while it moved files: the messages have all of it.
        remove(&new).map_err(failed)?;
        let mut options = Options::default();
        options.host = Some(self.host.clone());
        let input = Input::recording(&message_path(&self.taken(), 1));
        let selection = Selection::default();
        convert(&input, &selection, Format::ParquetFolder, &options, &new)?;
        self.publish(&new).map_err(failed)?;
        self.forget(&self.taken()).map_err(failed)
    }

    /// Moves files to where engines find them: `hour=…/service=…/part-HOST-MILLISECONDS.parquet`. The time is that of the first
    /// message: what is written again, after an agent was killed, replaces what was written before.
    fn publish(&self, new: &Path) -> io::Result<()> {
        let first = message_path(&self.taken(), 1).metadata()?.modified()?;
        let since = first.duration_since(UNIX_EPOCH);
        let milliseconds = since.map_or(0, |it| it.as_millis());
        let name = format!("part-{}-{milliseconds}.parquet", self.name);
        for hour in entries(new)? {
            for service in entries(&hour)? {
                let below = service.strip_prefix(new).map_err(io::Error::other)?;
                let to = self.directory.join(below);
                fs::create_dir_all(&to)?;
                fs::rename(service.join("part.parquet"), to.join(&name))?;
            }
        }
        remove(new)
    }

    /// Removes messages, all at once: a part of them would replace the table of all, if the agent is killed meanwhile. After an
    /// error, all of them are still there.
    fn forget(&self, messages: &Path) -> io::Result<Removal> {
        let done = self.done(messages);
        remove(&done)?;
        match fs::rename(messages, &done) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        let removed = remove(&done);
        Ok(removed.map_err(|error| format!("{}: {error}; it is removed later", done.display())))
    }
}

/// Returns the path of a message, from 1: those of the parts of one recording.
fn message_path(folder: &Path, number: u32) -> PathBuf {
    let first = folder.join("messages.otlp");
    match number {
        1 => first,
        number => Format::part_path(&first, number as usize),
    }
}

/// Finds the messages of an earlier process.
fn find(folder: &Path) -> Messages {
    let mut found = Messages::default();
    while let Ok(metadata) = message_path(folder, found.number + 1).metadata() {
        found.number += 1;
        found.bytes += metadata.len();
    }
    found
}

/// Collects messages, and has tables written.
#[derive(Debug)]
pub(super) struct ParquetFiles {
    folder: Arc<Folder>,
    interval: Duration,
    /// The messages that are collected.
    kept: Messages,
    /// Those before, in folders by their numbers, the oldest first.
    full: VecDeque<(u32, Messages)>,
    /// Those before, which are being converted, or are again after an error.
    taken: Messages,
    /// When the oldest collected message was added, or the last attempt to convert failed.
    begun: Option<Instant>,
    conversion: Option<JoinHandle<Result<Removal, Error>>>,
    /// Number of attempts that failed because of the messages that were taken.
    failures: u32,
}

impl ParquetFiles {
    /// Opens a folder for this process alone, which is created if it is missing. `host` names this machine's files.
    pub(super) fn open(directory: &Path, host: &str, interval: Duration) -> io::Result<Self> {
        let folder = Folder::open(directory, host)?;
        // Of an agent that was killed while it removed them.
        folder.remove_done()?;
        // Of one that was killed earlier, or has ended in time.
        let (kept, taken) = (find(&folder.kept()), find(&folder.taken()));
        let full = folder.find_full()?;
        let has_any = kept.number > 0 || taken.number > 0 || !full.is_empty();
        Ok(Self {
            folder: Arc::new(folder),
            interval,
            kept,
            full,
            taken,
            begun: has_any.then(Instant::now),
            conversion: None,
            failures: 0,
        })
    }

    /// Discards the oldest messages that are not being converted, if there is no room for more. After an error, none are.
    fn make_room(&mut self) -> io::Result<Option<Discarded>> {
        let full: u64 = self.full.iter().map(|(_, it)| it.bytes).sum();
        if self.kept.bytes + full + self.taken.bytes < MAX_KEPT {
            return Ok(None);
        }
        let folder = &self.folder;
        let (messages, removal) = if self.taken.number > 0 && self.conversion.is_none() {
            let removal = folder.forget(&folder.taken())?;
            self.failures = 0;
            (std::mem::take(&mut self.taken), removal)
        } else if let Some((number, messages)) = self.full.front().copied() {
            let removal = folder.forget(&folder.full(number))?;
            self.full.pop_front();
            (messages, removal)
        } else {
            let removal = folder.forget(&folder.kept())?;
            (std::mem::take(&mut self.kept), removal)
        };
        Ok((messages.number > 0).then_some(Discarded { messages, removal }))
    }

    /// Adds a message, an encoded `ProfilesData` with this number of samples.
    fn add(&mut self, message: &[u8], samples: u64) -> io::Result<()> {
        let kept = self.folder.kept();
        if self.kept.bytes >= MAX_MESSAGES {
            let number = self.full.back().map_or(1, |(last, _)| last + 1);
            fs::rename(&kept, self.folder.full(number))?;
            self.full
                .push_back((number, std::mem::take(&mut self.kept)));
        }
        let path = message_path(&kept, self.kept.number + 1);
        let unfinished = self.folder.own.join("unfinished");
        fs::create_dir_all(&kept)?;
        fs::write(&unfinished, message)?;
        fs::rename(unfinished, path)?;
        self.kept.number += 1;
        self.kept.bytes += message.len() as u64;
        self.kept.samples += samples;
        self.begun.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Discards messages that cannot be converted, after a second attempt: no later ones would ever be. After an error, they stay.
    fn give_up(&mut self) -> io::Result<Option<Discarded>> {
        if self.failures < MAX_FAILURES || self.conversion.is_some() {
            return Ok(None);
        }
        let removal = self.folder.forget(&self.folder.taken())?;
        self.failures = 0;
        let messages = std::mem::take(&mut self.taken);
        Ok(Some(Discarded { messages, removal }))
    }

    /// Begins to write tables if it is time to, and no other ones are being written.
    fn write_if_due(&mut self) -> io::Result<()> {
        let is_due = self.begun.is_some_and(|it| it.elapsed() >= self.interval);
        let has_full = self.kept.bytes >= MAX_MESSAGES || !self.full.is_empty();
        let is_due = is_due || has_full && self.taken.number == 0;
        let has_none = self.taken.number == 0 && self.kept.number == 0 && !has_full;
        if !is_due || has_none || self.conversion.is_some() {
            return Ok(());
        }
        if self.taken.number == 0 {
            let taken = self.folder.taken();
            remove(&taken)?;
            if let Some((number, messages)) = self.full.front().copied() {
                fs::rename(self.folder.full(number), taken)?;
                self.full.pop_front();
                self.taken = messages;
            } else {
                fs::rename(self.folder.kept(), taken)?;
                self.taken = std::mem::take(&mut self.kept);
            }
        }
        self.begun = None;
        let folder = Arc::clone(&self.folder);
        let thread = Builder::new().name("parquet".to_owned());
        self.conversion = Some(thread.spawn(move || folder.write())?);
        Ok(())
    }

    /// Returns the result of tables that are written by now; `None` while none are.
    fn written(&mut self) -> Option<Result<Removal, Error>> {
        let ended = self.conversion.take_if(|it| it.is_finished())?;
        let result = ended.join().unwrap_or_else(|_| {
            Err(Error::Write {
                path: self.folder.own.clone(),
                source: io::Error::other("the thread that writes Parquet files has panicked"),
            })
        });
        match &result {
            Ok(_) => {
                self.taken = Messages::default();
                self.failures = 0;
            }
            Err(error) => self.failures += u32::from(is_of_messages(error)),
        }
        // After an error, the next attempt is one interval later.
        if self.taken.number > 0 || self.kept.number > 0 {
            self.begun.get_or_insert_with(Instant::now);
        }
        Some(result)
    }
}

/// Returns whether it is because of the messages that they cannot be converted, and not because of the disk or the machine.
fn is_of_messages(error: &Error) -> bool {
    match error {
        Error::Malformed { .. } | Error::TooLarge { .. } | Error::OtherFormat { .. } => true,
        Error::Write { source, .. } => source.kind() == io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// The folders in a folder; none if it is missing, and an error if there are too many.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    at_most(MAX_FOLDERS, folder)
}

fn at_most(limit: usize, folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.take(limit + 1).map(|it| it.map(|it| it.path()));
    let paths: Vec<PathBuf> = paths.collect::<io::Result<_>>()?;
    if paths.len() > limit {
        let why = format!("{}: more than {limit} folders", folder.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(paths)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The Parquet files of an agent, if it writes any, with what is said of them.
pub(super) struct Tables {
    pub(super) files: Option<ParquetFiles>,
    pub(super) notices: Arc<Mutex<Notices>>,
    /// The last error.
    pub(super) failure: Option<String>,
}

impl Tables {
    /// Adds a message. Returns the number of samples of this agent that are in no table: of messages that were discarded to make
    /// room for it, or its own.
    pub(super) fn add(&mut self, message: &[u8], samples: u64) -> u64 {
        let Some(files) = &mut self.files else {
            return 0;
        };
        let own = files.folder.own.display().to_string();
        let room = files.make_room();
        // Without room, it would be one too many.
        let added = match &room {
            Ok(_) => files.add(message, samples),
            Err(_) => Ok(()),
        };
        let mut lost = 0;
        match room {
            Ok(None) => {}
            Ok(Some(discarded)) => lost += self.count(&own, discarded),
            Err(error) => lost += self.lost(&own, &error, samples),
        }
        if let Err(error) = added {
            lost += self.lost(&own, &error, samples);
        }
        lost
    }

    /// Says what was discarded. Returns the number of samples.
    fn count(&mut self, own: &str, discarded: Discarded) -> u64 {
        let Messages {
            number, samples, ..
        } = discarded.messages;
        self.say(format!(
            "{own}: {number} messages that could not be written as Parquet are discarded, with {samples} samples that this agent took"
        ));
        self.say_if_left(discarded.removal);
        samples
    }

    /// Says that a message was not kept. Returns the number of its samples.
    fn lost(&mut self, own: &str, error: &io::Error, samples: u64) -> u64 {
        self.say(format!(
            "{own}: {error}; some samples are not in Parquet files"
        ));
        samples
    }

    fn say_if_left(&mut self, removal: Removal) {
        if let Err(message) = removal {
            self.say(message);
        }
    }

    /// Has a table written if it is time to. Returns the number of samples of this agent in messages that were discarded, because
    /// they cannot be converted.
    pub(super) fn write_if_due(&mut self) -> u64 {
        let Some(files) = &mut self.files else {
            return 0;
        };
        let written = files.written();
        let given_up = files.give_up();
        let own = files.folder.own.display().to_string();
        let begun = files.write_if_due();
        match written {
            None => {}
            Some(Ok(removal)) => {
                self.failure = None;
                self.say_if_left(removal);
            }
            Some(Err(error)) => self.say(format!("{error}; the Parquet files are written later")),
        }
        let mut lost = 0;
        let failed = match given_up {
            Ok(discarded) => {
                lost += discarded.map_or(0, |it| self.count(&own, it));
                begun.err()
            }
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            self.say(format!(
                "{own}: {error}; the Parquet files are written later"
            ));
        }
        lost
    }

    /// Says an error once, until a table was written again.
    fn say(&mut self, message: String) {
        if self.failure.as_ref() != Some(&message) {
            notices::say(&self.notices, &message, None);
            self.failure = Some(message);
        }
    }
}

#[cfg(test)]
mod tests;
