//! The thread that makes rows of files, and places them where the program searches them. Rows of
//! files that no process has mapped are kept until others need their room.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, Metadata};
use std::hash::{BuildHasher, Hash, RandomState};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use otelctx_reader::remote::elf::{Elf, Source};
use otelctx_reader::remote::{Device, FileBytes};
use otelctx_sample::StackEnd;
use otelctx_unwind::{Dictionary, FileRows, UnwindTables};

use super::super::shared::{Shared, member};
use super::abi::{FileCodeKey, KernelRule, RuleList};
use super::code_file::CodeFile;
use super::store::{PlacedRows, Store};
use crate::priority::raise_thread_priority;
use crate::vdso;

/// Maximum number of requests on the way to the thread, and of received ones: each has an open file.
pub(super) const MAX_REQUESTS: usize = 256;
/// Time after which a file comes before smaller ones.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of files that are remembered, with rows or without.
const MAX_FILES: usize = 16 * 1024;
/// Time between two attempts to place the rows of a file without room.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two attempts to give rows back, while more are kept than should be.
const TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// A request for the rows of a file that a process has mapped.
#[derive(Debug)]
pub(super) enum Request {
    /// A file that was opened while it was mapped: its process may have ended.
    File {
        file: File,
        code_file: CodeFile,
        mapped: (Device, u64),
    },
    Vdso,
}

pub(super) struct Answer {
    pub(super) code_file: CodeFile,
    /// `None` where the file has no usable tables, or there is no room.
    pub(super) rows: Option<Arc<PlacedRows>>,
    /// The reason why stacks end in code whose tables are damaged, exceed a limit, could not be
    /// read, or have no room; `None` if there is no such code.
    pub(super) end_in_gaps: Option<StackEnd>,
}

/// One state of a file's contents: device, inode, size, and mtime and ctime in nanoseconds.
type State = (u64, u64, u64, i128, i128);

#[derive(Clone, Debug)]
enum FileOutcome {
    /// Its rows, unless they were given back.
    Placed(Weak<PlacedRows>),
    NoTables,
    /// Its tables are damaged, exceed a limit, or could not be read.
    Damaged,
    /// There was no room for its rows at that time.
    NoRoom(Instant),
}

impl From<otelctx_unwind::Error> for FileOutcome {
    fn from(error: otelctx_unwind::Error) -> Self {
        match error {
            otelctx_unwind::Error::NoTables | otelctx_unwind::Error::Architecture => Self::NoTables,
            _ => Self::Damaged,
        }
    }
}

impl FileOutcome {
    fn is_current(&self) -> bool {
        match self {
            Self::Placed(rows) => rows.strong_count() > 0,
            Self::NoTables | Self::Damaged => true,
            Self::NoRoom(since) => since.elapsed() < RETRY_INTERVAL,
        }
    }

    fn answer(&self, code_file: CodeFile) -> Answer {
        let mut answer = Answer {
            code_file,
            rows: None,
            end_in_gaps: None,
        };
        match self {
            Self::Placed(rows) => {
                answer.rows = rows.upgrade();
                answer.end_in_gaps = answer.rows.as_ref().and_then(|rows| rows.end_in_gaps);
            }
            Self::NoTables => {}
            Self::Damaged => answer.end_in_gaps = Some(StackEnd::BadTables),
            Self::NoRoom(_) => answer.end_in_gaps = Some(StackEnd::TooManyTables),
        }
        answer
    }
}

pub(super) struct Worker {
    store: Store,
    rules: Shared<RuleList>,
    dictionary: Arc<Dictionary>,
    /// Number of rules that the program has.
    written: usize,
    by_state: HashMap<State, FileOutcome>,
    by_tables: HashMap<(u64, u64), FileOutcome>,
    /// Make no rows, as while they are not ready.
    holds_rows: bool,
    /// Random: nobody can make a file whose tables are taken for another's.
    seeds: [RandomState; 2],
}

impl Worker {
    pub(super) fn new(store: Store, rules: Shared<RuleList>, holds_rows: bool) -> Self {
        Self {
            store,
            rules,
            dictionary: Arc::new(Dictionary::new()),
            written: 0,
            by_state: HashMap::new(),
            by_tables: HashMap::new(),
            holds_rows,
            seeds: [RandomState::new(), RandomState::new()],
        }
    }

    /// Answers requests until the other end is dropped, for the smallest files first: the rows of a large program take as
    /// long as those of a hundred small ones.
    pub(super) fn run(mut self, requests: &Receiver<Request>, answers: &Sender<Answer>) {
        // Without the right to, it only takes longer.
        let _ = raise_thread_priority();
        let mut next_trim = Instant::now() + TRIM_INTERVAL;
        let mut queue = RequestQueue::default();
        loop {
            let now = Instant::now();
            if now >= next_trim {
                self.store.trim();
                next_trim = now + TRIM_INTERVAL;
            }
            queue.fill(requests);
            let request = if let Some(next) = queue.take(now) {
                Ok(next)
            } else if self.store.is_trimmed() {
                requests.recv().map_err(RecvTimeoutError::from)
            } else {
                requests.recv_timeout(next_trim - now)
            };
            if self.holds_rows && request.is_ok() {
                continue;
            }
            let mut key = FileCodeKey::default();
            let answer = match &request {
                Ok(Request::File {
                    file,
                    code_file,
                    mapped,
                }) => {
                    let (device, inode) = *mapped;
                    (key.inode, key.device) = (inode, device.major << 20 | device.minor);
                    let outcome = file.metadata().map(|facts| {
                        (key.ctime, key.ctime_nanoseconds) =
                            (facts.ctime(), facts.ctime_nsec() as u32);
                        self.of_file(file, &facts)
                    });
                    outcome.unwrap_or(FileOutcome::Damaged).answer(*code_file)
                }
                Ok(Request::Vdso) => self.of_vdso().answer(CodeFile::Vdso),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Some(rows) = &answer.rows {
                self.store.note_use(rows);
                self.store.add_file(answer.code_file, key, rows);
            }
            if answers.send(answer).is_err() {
                break;
            }
        }
    }

    fn of_vdso(&mut self) -> FileOutcome {
        match vdso::rows(&self.dictionary) {
            Ok(rows) => self.place(&rows),
            Err(error) => error.into(),
        }
    }

    fn of_file(&mut self, file: &File, facts: &Metadata) -> FileOutcome {
        let state = (
            facts.dev(),
            facts.ino(),
            facts.size(),
            i128::from(facts.mtime()) << 32 | i128::from(facts.mtime_nsec()),
            i128::from(facts.ctime()) << 32 | i128::from(facts.ctime_nsec()),
        );
        if let Some(known) = self.by_state.get(&state).filter(|it| it.is_current()) {
            return known.clone();
        }
        let bytes = FileBytes(file);
        let elf = Elf::read(Source::File(&bytes));
        let known = match elf.map(|elf| elf.map(|elf| UnwindTables::read(&elf))) {
            Ok(Some(Ok(tables))) => self.of_tables(tables),
            Ok(Some(Err(error))) => error.into(),
            // Not an ELF file.
            Ok(None) => FileOutcome::NoTables,
            Err(_) => FileOutcome::Damaged,
        };
        remember(&mut self.by_state, state, &known);
        known
    }

    /// Makes the rows of these tables, once for all files that have them.
    fn of_tables(&mut self, tables: UnwindTables) -> FileOutcome {
        let [first, second] = &self.seeds;
        let identity = (first.hash_one(&tables), second.hash_one(&tables));
        if let Some(known) = self.by_tables.get(&identity).filter(|it| it.is_current()) {
            return known.clone();
        }
        let known = match tables.rows(&self.dictionary) {
            Ok(rows) => self.place(&rows),
            Err(error) => error.into(),
        };
        remember(&mut self.by_tables, identity, &known);
        known
    }

    fn place(&mut self, file: &FileRows) -> FileOutcome {
        self.write_rules();
        match self.store.place(file) {
            Some(rows) => FileOutcome::Placed(Arc::downgrade(&rows)),
            None => FileOutcome::NoRoom(Instant::now()),
        }
    }

    fn write_rules(&mut self) {
        let rule = |index: usize| KernelRule::from(self.dictionary.rule(index as u16));
        let new: Vec<KernelRule> = (self.written..self.dictionary.len()).map(rule).collect();
        self.rules.write(member!(RuleList, at), self.written, &new);
        self.written += new.len();
    }
}

/// Requests that were received: the smallest file comes first, unless another one has waited for long.
#[derive(Default)]
struct RequestQueue(VecDeque<QueuedRequest>);

struct QueuedRequest {
    /// Of the file, in bytes.
    size: u64,
    received: Instant,
    request: Request,
}

impl RequestQueue {
    /// Receives what was sent, as far as there is room for it.
    fn fill(&mut self, requests: &Receiver<Request>) {
        while self.0.len() < MAX_REQUESTS
            && let Ok(request) = requests.try_recv()
        {
            let size = match &request {
                // One that cannot be examined is answered at once.
                Request::File { file, .. } => file.metadata().map_or(0, |facts| facts.len()),
                Request::Vdso => 0,
            };
            self.0.push_back(QueuedRequest {
                size,
                received: Instant::now(),
                request,
            });
        }
    }

    fn take(&mut self, now: Instant) -> Option<Request> {
        let oldest = self.0.front()?;
        if now.duration_since(oldest.received) >= MAX_WAIT {
            return Some(self.0.pop_front()?.request);
        }
        let sizes = self.0.iter().map(|it| it.size).enumerate();
        let (index, _) = sizes.min_by_key(|(_, size)| *size)?;
        Some(self.0.remove(index)?.request)
    }
}

fn remember<K: Hash + Eq>(all: &mut HashMap<K, FileOutcome>, key: K, known: &FileOutcome) {
    if all.len() >= MAX_FILES {
        all.clear();
    }
    all.insert(key, known.clone());
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::mpsc;

    use super::*;

    fn request(size: u64) -> Request {
        let folder = std::env::temp_dir();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(folder)
            .unwrap();
        file.set_len(size).unwrap();
        let device = Device { major: 0, minor: 1 };
        Request::File {
            file,
            code_file: CodeFile::File {
                device,
                inode: size,
            },
            mapped: (device, size),
        }
    }

    fn size_of(request: Option<Request>) -> Option<u64> {
        request.map(|request| match request {
            Request::File { mapped, .. } => mapped.1,
            Request::Vdso => 0,
        })
    }

    #[test]
    fn small_files_come_first_but_none_waits_long() {
        let (sender, requests) = mpsc::channel();
        let mut queue = RequestQueue::default();
        for size in [1 << 30, 5, 1 << 20, 7] {
            sender.send(request(size)).unwrap();
        }
        sender.send(Request::Vdso).unwrap();
        queue.fill(&requests);
        let now = Instant::now();
        assert_eq!(size_of(queue.take(now)), Some(0));
        // One that comes later than larger ones.
        sender.send(request(6)).unwrap();
        queue.fill(&requests);
        assert_eq!(
            [(); 2].map(|()| size_of(queue.take(now))),
            [Some(5), Some(6)]
        );
        let late = Instant::now() + MAX_WAIT;
        assert_eq!(size_of(queue.take(late)), Some(1 << 30));
        assert_eq!(
            [(); 3].map(|()| size_of(queue.take(now))),
            [Some(7), Some(1 << 20), None]
        );

        for _ in 0..MAX_REQUESTS + 1 {
            sender.send(Request::Vdso).unwrap();
        }
        queue.fill(&requests);
        assert_eq!(queue.0.len(), MAX_REQUESTS);
    }
}
