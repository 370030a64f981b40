//! Parquet files of what is sent, for engines that read tables.
//!
//! Messages are kept in files until a table of some minutes is due: so small files do not accumulate, and what a killed agent
//! has not written, the next one writes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg, OFlag};
use otelctx_profile::report::Selection;
use otelctx_profile::{Error, Format, Input, Options, convert};

use super::notices::{self, Notices};

/// Size of messages at which a table is written before it is due, in bytes.
const MAX_MESSAGES: u64 = 64 << 20;
/// Size of messages that are kept while no table can be written, in bytes.
const MAX_KEPT: u64 = 256 << 20;
/// Maximum number of folders of an hour and a service whose files are moved.
const MAX_FOLDERS: usize = 100_000;

/// Messages that are in no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Discarded {
    messages: u32,
    /// Number of samples in those of this process.
    samples: u64,
}

/// Collects messages, and writes tables.
#[derive(Debug)]
pub(super) struct ParquetFiles {
    directory: PathBuf,
    /// The agent's own folder in it, for unfinished tables.
    own: PathBuf,
    /// The folder of the messages in that.
    kept: PathBuf,
    host: String,
    /// The host's name in the names of files.
    name: String,
    _lock: Flock<File>,
    interval: Duration,
    /// Number of messages, and their size.
    messages: u32,
    bytes: u64,
    /// Number of samples in messages of this process, not of an earlier one.
    samples: u64,
    /// When the oldest message was added.
    begun: Option<Instant>,
}

impl ParquetFiles {
    /// Opens a folder for this process alone, which is created if it is missing. `host` names this machine's files.
    pub(super) fn open(directory: &Path, host: &str, interval: Duration) -> io::Result<Self> {
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
        let lock = lock(&own)?;
        let mut files = Self {
            directory: directory.to_owned(),
            kept: own.join("messages"),
            own,
            host: host.to_owned(),
            name,
            _lock: lock,
            interval,
            messages: 0,
            bytes: 0,
            samples: 0,
            begun: None,
        };
        // Of an agent that was killed while it removed them.
        remove(&files.done())?;
        // Of one that was killed earlier, or has ended in time.
        while let Ok(metadata) = files.message_path(files.messages + 1).metadata() {
            files.messages += 1;
            files.bytes += metadata.len();
            files.begun = Some(Instant::now());
        }
        Ok(files)
    }

    /// Returns the path of a message, from 1: those of the parts of one recording.
    fn message_path(&self, number: u32) -> PathBuf {
        let first = self.kept.join("messages.otlp");
        match number {
            1 => first,
            number => Format::part_path(&first, number as usize),
        }
    }

    /// Adds a message, an encoded `ProfilesData` with this number of samples. Returns what was discarded to make room for it.
    fn add(&mut self, message: &[u8], samples: u64) -> io::Result<Option<Discarded>> {
        let discarded = (self.bytes >= MAX_KEPT).then_some(Discarded {
            messages: self.messages,
            samples: self.samples,
        });
        if discarded.is_some() {
            self.forget()?;
        }
        let path = self.message_path(self.messages + 1);
        let unfinished = self.own.join("unfinished");
        fs::create_dir_all(&self.kept)?;
        fs::write(&unfinished, message)?;
        fs::rename(unfinished, path)?;
        self.messages += 1;
        self.bytes += message.len() as u64;
        self.samples += samples;
        self.begun.get_or_insert_with(Instant::now);
        Ok(discarded)
    }

    /// Writes tables if it is time to. Returns true if it was.
    fn write_if_due(&mut self) -> Result<bool, Error> {
        let is_due = self.begun.is_some_and(|it| it.elapsed() >= self.interval);
        if !is_due && self.bytes < MAX_MESSAGES {
            return Ok(false);
        }
        // After an error, the next attempt is one interval later.
        self.begun = Some(Instant::now());
        let new = self.own.join("new");
        let failed = |source| Error::Write {
            path: new.clone(),
            source,
        };
        // Of an agent that was killed while it moved files: the messages have all of it.
        remove(&new).map_err(failed)?;
        let mut options = Options::default();
        options.host = Some(self.host.clone());
        let input = Input::recording(&self.message_path(1));
        let selection = Selection::default();
        convert(&input, &selection, Format::ParquetFolder, &options, &new)?;
        self.publish(&new).map_err(failed)?;
        self.forget().map_err(failed)?;
        Ok(true)
    }

    /// Moves files to where engines find them: `hour=…/service=…/part-HOST-MILLISECONDS.parquet`. The time is that of the first
    /// message: what is written again, after an agent was killed, replaces what was written before.
    fn publish(&self, new: &Path) -> io::Result<()> {
        let first = self.message_path(1).metadata()?.modified()?;
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

    /// Removes all messages, at once: a part of them would replace the table of all, if the agent is killed meanwhile.
    fn forget(&mut self) -> io::Result<()> {
        let done = self.done();
        remove(&done)?;
        match fs::rename(&self.kept, &done) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        (self.messages, self.bytes, self.samples, self.begun) = (0, 0, 0, None);
        remove(&done)
    }

    /// Returns the path of the folder of messages that are in a table.
    fn done(&self) -> PathBuf {
        self.own.join("done")
    }
}

/// Locks an agent's own folder.
fn lock(own: &Path) -> io::Result<Flock<File>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(own.join("lock"))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::Error::EWOULDBLOCK => {
            io::Error::other("another agent writes the Parquet files of this host there")
        }
        errno => errno.into(),
    })
}

/// The folders in a folder; none if it is missing.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.take(MAX_FOLDERS).map(|it| it.map(|it| it.path()));
    paths.collect()
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
    /// Adds a message. Without room for it, it is not in a table.
    pub(super) fn add(&mut self, message: &[u8], samples: u64) {
        let Some(files) = &mut self.files else {
            return;
        };
        let added = files.add(message, samples);
        let own = files.own.display();
        let message = match added {
            Ok(None) => return,
            Ok(Some(Discarded { messages, samples })) => format!(
                "{own}: {messages} messages that could not be written as Parquet are discarded, with {samples} samples that this agent took"
            ),
            Err(error) => format!("{own}: {error}; some samples are not in Parquet files"),
        };
        self.say(message);
    }

    /// Writes a table if it is time to.
    pub(super) fn write_if_due(&mut self) {
        let Some(files) = &mut self.files else {
            return;
        };
        match files.write_if_due() {
            Ok(false) => {}
            Ok(true) => self.failure = None,
            Err(error) => self.say(format!("{error}; the Parquet files are written later")),
        }
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
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn open(folder: &Path) -> ParquetFiles {
        ParquetFiles::open(folder, "web-1/é", Duration::ZERO).unwrap()
    }

    /// The files below a folder, by their paths relative to it.
    fn files(folder: &Path) -> Vec<String> {
        let mut all = Vec::new();
        let mut left = vec![folder.to_owned()];
        while let Some(next) = left.pop() {
            for path in entries(&next).unwrap() {
                match path.is_dir() {
                    true => left.push(path),
                    false => all.push(path.strip_prefix(folder).unwrap().display().to_string()),
                }
            }
        }
        all.sort();
        all
    }

    #[test]
    fn messages_of_an_agent_that_was_killed_are_kept() {
        let folder = scratch("parquet-kept");
        let mut first = open(&folder);
        (0..3).for_each(|number| assert_eq!(first.add(&[number], 1).unwrap(), None));
        // As if it was killed while it wrote another one.
        fs::write(first.own.join("unfinished"), b"x").unwrap();
        drop(first);
        let mut second = open(&folder);
        assert_eq!((second.messages, second.bytes), (3, 3));
        second.add(b"more", 1).unwrap();
        assert_eq!((second.messages, second.bytes), (4, 7));
        assert_eq!(fs::read(second.message_path(4)).unwrap(), b"more");
        second.forget().unwrap();
        assert_eq!(files(&folder), [".agent-web-1/lock"]);
        assert_eq!((second.messages, second.begun), (0, None));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_host_has_a_name_and_one_agent() {
        let folder = scratch("parquet-host");
        let first = open(&folder);
        assert_eq!((&first.host[..], &first.name[..]), ("web-1/é", "web-1"));
        let open = |host| ParquetFiles::open(&folder, host, Duration::ZERO);
        let why = open("web-1").unwrap_err().to_string();
        assert_eq!(
            why,
            "another agent writes the Parquet files of this host there"
        );
        drop(first);
        open("web-1").unwrap();
        let why = open("é").unwrap_err().to_string();
        assert!(why.starts_with("no file can be named after this host, \"é\""));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn messages_that_are_in_a_table_are_removed_at_once_or_later() {
        let folder = scratch("parquet-removed");
        let mut first = open(&folder);
        first.add(b"message", 1).unwrap();
        // As if it was killed while it removed them.
        fs::rename(&first.kept, first.done()).unwrap();
        drop(first);
        let mut second = open(&folder);
        assert_eq!((second.messages, second.done().exists()), (0, false));
        second.add(b"message", 1).unwrap();
        // No folder: it can be removed by nothing that removes folders.
        fs::write(second.done(), b"x").unwrap();
        assert!(second.forget().is_err());
        assert_eq!(second.messages, 1);
        fs::remove_file(second.done()).unwrap();
        second.forget().unwrap();
        assert_eq!(second.messages, 0);
        second.forget().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn messages_that_cannot_be_converted_are_bounded() {
        let folder = scratch("parquet-bound");
        let mut files = open(&folder);
        files.add(b"this is no message", 5).unwrap();
        assert!(files.write_if_due().is_err());
        assert_eq!(files.messages, 1);
        files.bytes = MAX_KEPT;
        let discarded = Discarded {
            messages: 1,
            samples: 5,
        };
        assert_eq!(files.add(b"x", 7).unwrap(), Some(discarded));
        assert_eq!((files.messages, files.bytes, files.samples), (1, 1, 7));
        fs::remove_dir_all(folder).unwrap();
    }

    /// As after an agent that was killed before it had removed the messages.
    #[test]
    fn what_is_written_again_replaces_what_was_written() {
        let folder = scratch("parquet-again");
        let mut tables = open(&folder);
        tables.add(b"message", 1).unwrap();
        for content in ["first", "second"] {
            let new = tables.own.join("new");
            let part = new.join("hour=2026-11-30T13/service=shop");
            fs::create_dir_all(&part).unwrap();
            fs::write(part.join("part.parquet"), content).unwrap();
            tables.publish(&new).unwrap();
            let found = files(&folder);
            let [_lock, _message, table] = &found[..] else {
                panic!("{found:?}");
            };
            let start = "hour=2026-11-30T13/service=shop/part-web-1-";
            assert!(table.starts_with(start), "{table}");
            assert_eq!(fs::read_to_string(folder.join(table)).unwrap(), content);
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
