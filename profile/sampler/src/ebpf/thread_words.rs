//! Words of threads that runtimes' steps cannot find in the threads: `thread_words` in `steps.h`.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use aya::Ebpf;
use aya::maps::MapData;
use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_reader::runtime::RuntimeError;

use super::abi::ThreadKey;
use super::object::map;
use crate::monotonic;
use crate::refusal::Refusal;

pub(super) struct ThreadWords {
    map: aya::maps::HashMap<MapData, ThreadKey, u64>,
    /// Content of the map.
    known: BTreeMap<ThreadKey, Word>,
    /// The results of the current drain: a runtime searches for each thread once.
    found: HashMap<ThreadKey, Lookup, RandomState>,
    /// The process whose threads were checked last.
    checked: u32,
}

#[derive(Clone, Copy, Debug)]
struct Word {
    word: u64,
    /// Time when the program got it, in nanoseconds of `CLOCK_MONOTONIC`.
    since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The thread has a word, which the program did not know when the sample was taken.
    Late,
    /// The thread has none, or the step could not use it.
    NotFound,
    /// The runtime could not be read.
    Failed,
}

impl ThreadWords {
    pub(super) fn new(programs: &mut Ebpf) -> Result<Self, Refusal> {
        Ok(Self {
            map: map(programs, "thread_words")?,
            known: BTreeMap::new(),
            found: HashMap::default(),
            checked: 0,
        })
    }

    pub(super) fn begin(&mut self) {
        self.found.clear();
    }

    /// Passes the word of a thread on to the program. `time` is the sample's; `find` returns the
    /// word. If the map is full, each sample of the thread asks again.
    pub(super) fn look_up(
        &mut self,
        thread: ThreadKey,
        time: u64,
        find: impl FnOnce() -> Result<Option<u64>, RuntimeError>,
    ) -> Lookup {
        if self.known.get(&thread).is_some_and(|it| time < it.since) {
            return Lookup::Late;
        }
        if let Some(found) = self.found.get(&thread) {
            return *found;
        }
        let found = match find() {
            Ok(Some(word)) if self.known.get(&thread).is_some_and(|it| it.word == word) => {
                Lookup::NotFound
            }
            Ok(Some(word)) => {
                if self.map.insert(thread, word, 0).is_ok() {
                    let since = monotonic();
                    self.known.insert(thread, Word { word, since });
                }
                Lookup::Late
            }
            Ok(None) => {
                self.remove(thread);
                Lookup::NotFound
            }
            Err(_) => Lookup::Failed,
        };
        self.found.insert(thread, found);
        found
    }

    fn remove(&mut self, thread: ThreadKey) {
        if self.known.remove(&thread).is_some() {
            // Only this process removes words.
            let _ = self.map.remove(&thread);
        }
    }

    pub(super) fn forget(&mut self, pid: u32) {
        self.retain(pid, |_| false);
    }

    fn retain(&mut self, pid: u32, is_kept: impl Fn(ThreadKey) -> bool) {
        let threads = self.known.range(of_process(pid)).map(|(thread, _)| *thread);
        let gone: Vec<ThreadKey> = threads.filter(|thread| !is_kept(*thread)).collect();
        for thread in gone {
            self.remove(thread);
        }
    }

    /// Removes the words of ended threads of the next process.
    pub(super) fn check_next(&mut self) {
        let mut after = self.known.range(*of_process(self.checked).end()..);
        let next = after.next().or_else(|| self.known.first_key_value());
        let Some((&ThreadKey { pid, .. }, _)) = next else {
            return;
        };
        self.checked = pid;
        let process = reader::remote::Process::open(pid as i32);
        match process.and_then(|process| process.thread_ids()) {
            Ok(mut threads) => {
                threads.sort_unstable();
                self.retain(pid, |thread| {
                    threads.binary_search(&(thread.tid as i32)).is_ok()
                });
            }
            Err(_) => self.forget(pid),
        }
    }
}

/// Returns the range of keys of all threads of a process.
fn of_process(pid: u32) -> RangeInclusive<ThreadKey> {
    let key = |rest| ThreadKey {
        pid,
        tid: rest,
        step: rest,
    };
    key(0)..=key(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ThreadWords {
        /// Returns the number of words in the map.
        pub(in crate::ebpf) fn len(&self) -> usize {
            self.map.keys().filter_map(Result::ok).count()
        }

        pub(in crate::ebpf) fn get(&self, thread: ThreadKey) -> Option<u64> {
            self.map.get(&thread, 0).ok()
        }
    }
}
