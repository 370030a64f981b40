//! The code of processes and its unwind tables, read by a separate thread: making the rows of a
//! large program takes longer than a tick.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader::remote::{FileCache, LiveProcess, Process};
use otelctx_track::schedule::Backoff;
use otelctx_unwind::{CodeMap, Dictionary, MakeRules};

use crate::code::Copies;

/// Maximum number of requests for the code of processes in the queue.
const MAX_REQUESTS: usize = 256;

pub(super) struct CodeReader {
    processes: HashMap<i32, ReadCode, RandomState>,
    requests: SyncSender<i32>,
    answers: Receiver<Answer>,
}

struct Answer {
    pid: i32,
    map: CodeMap,
}

struct ReadCode {
    map: Option<Arc<CodeMap>>,
    reads: Backoff,
    is_requested: bool,
    copies: Copies,
}

impl CodeReader {
    /// With `holds_rows`, requests are never answered.
    pub(super) fn start(holds_rows: bool) -> io::Result<Self> {
        let (requests, of_thread) = mpsc::sync_channel(MAX_REQUESTS);
        let (to_here, answers) = mpsc::channel();
        // It ends when this is dropped and the requests are answered.
        std::thread::Builder::new()
            .name("otelctx-rows".into())
            .spawn(move || {
                if holds_rows {
                    return of_thread.into_iter().for_each(drop);
                }
                read_all(&of_thread, &to_here);
            })?;
        Ok(Self {
            processes: HashMap::default(),
            requests,
            answers,
        })
    }

    /// Requests the code of processes before they are sampled, and waits for it, at most this long.
    pub(super) fn read_ahead(&mut self, pids: &[i32], limit: Duration) {
        for pid in pids {
            self.refresh(*pid);
        }
        let end = Instant::now() + limit;
        while self.processes.values().any(|code| code.is_requested) {
            let left = end.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) => self.take(answer),
                Err(_) => break,
            }
        }
    }

    fn take(&mut self, Answer { pid, map }: Answer) {
        // The process may have ended meanwhile.
        if let Some(code) = self.processes.get_mut(&pid) {
            let before = code.map.as_ref().map_or(0, |map| map.mappings().len());
            let is_new = map.mappings().len() != before;
            code.reads.done(Instant::now(), Duration::ZERO, is_new);
            code.is_requested = false;
            code.copies.note(map.may_be_copied);
            code.map = Some(Arc::new(map));
        }
    }

    /// Returns the code of a process, or requests it.
    pub(super) fn of(&mut self, pid: i32) -> Option<Arc<CodeMap>> {
        while let Ok(answer) = self.answers.try_recv() {
            self.take(answer);
        }
        let known = self.processes.get(&pid);
        // What could not be read may be readable now.
        let is_empty = |code: &ReadCode| {
            code.map
                .as_ref()
                .is_some_and(|map| map.mappings().is_empty())
        };
        if known.is_none_or(|code| code.copies.are_read_again() || is_empty(code)) {
            self.refresh(pid);
        }
        self.processes.get(&pid)?.map.clone()
    }

    /// Requests a process's code again: a stack shows that it has changed.
    pub(super) fn refresh(&mut self, pid: i32) {
        let now = Instant::now();
        let code = self.processes.entry(pid).or_insert_with(|| ReadCode {
            map: None,
            reads: Backoff::new(now),
            is_requested: false,
            copies: Copies::default(),
        });
        if !code.is_requested && code.reads.is_due(now) {
            code.is_requested = self.requests.try_send(pid).is_ok();
        }
    }

    /// Returns true if a process's code is not known, or may have changed since it was read.
    pub(super) fn may_be_old(&self, pid: i32) -> bool {
        let code = self.processes.get(&pid);
        code.is_none_or(|it| it.map.is_none() || it.is_requested || it.reads.is_due(Instant::now()))
    }

    /// Forgets a process that has ended or executes another program.
    pub(super) fn forget(&mut self, pid: i32) {
        self.processes.remove(&pid);
    }
}

fn read_all(requests: &Receiver<i32>, answers: &Sender<Answer>) {
    let (files, dictionary) = (FileCache::new(), Arc::new(Dictionary::new()));
    for pid in requests {
        let read = || {
            let process = Process::open(pid).ok()?;
            let memory = process.memory().ok()?;
            let target = LiveProcess::new(&process, &memory);
            CodeMap::read(&target, &files, &dictionary, MakeRules::Before).ok()
        };
        // A process that has ended has no code.
        let map = read().unwrap_or_default();
        if answers.send(Answer { pid, map }).is_err() {
            break;
        }
    }
}
