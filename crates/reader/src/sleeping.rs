//! Reading threads that sleep without stopping them, and what is kept of each for the next time.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use otelctx_remote as remote;
use remote::threads::{Call, ThreadFiles, ThreadPointer, ThreadPointers, max_kept};
use remote::tls::Resolution;
use remote::{LiveProcess, Memory, Process, ProcessMemory};

/// Attempts to read a thread before it has to be stopped. One that ran during all of them is busy.
const MAX_TRIES: usize = 3;
/// Walks over the C library's list of threads after each listing of the threads. The second finds what
/// the first missed because the list changed.
const MAX_WALKS: u32 = 2;

/// What is known of the threads of one process.
#[derive(Debug, Default)]
pub(crate) struct SleepingThreads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pointers: ThreadPointers,
    walks_left: u32,
    /// How many threads were listed last.
    listed: usize,
    /// Whether thread ids in the process differ from the reader's, once that is known.
    namespaced: Option<bool>,
    threads: HashMap<i32, Known>,
    /// How many of these have their files open.
    open: usize,
}

/// What is known of one thread.
#[derive(Debug)]
struct Known {
    /// Its id in the process's own PID namespace.
    inner: i32,
    /// Open files, up to [`max_kept`] threads.
    files: Option<ThreadFiles>,
    /// A thread pointer that a stop told and that no control block confirms. It holds for the thread
    /// that `files` belongs to.
    unconfirmed: Option<u64>,
}

/// How an attempt to read a thread without a stop ended.
#[derive(Debug)]
pub(crate) enum Asleep<T> {
    /// It slept all the time.
    Read(T),
    /// It ran each time.
    Ran,
    /// It cannot be read that way. If it sleeps: in this call.
    Unknown(Option<Call>),
}

impl SleepingThreads {
    /// Forgets everything: another program runs.
    pub(crate) fn clear(&mut self) {
        *self.0.get_mut().unwrap_or_else(PoisonError::into_inner) = State::default();
    }

    /// Notes which threads there are.
    pub(crate) fn note_listed(&self, tids: impl Iterator<Item = i32>) {
        let tids: HashSet<i32> = tids.collect();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.threads.retain(|tid, _| tids.contains(tid));
        state.open = state
            .threads
            .values()
            .filter(|it| it.files.is_some())
            .count();
        state.listed = tids.len();
        state.walks_left = MAX_WALKS;
    }

    /// Calls `read` with the thread pointer of thread `tid` if the thread sleeps. What
    /// it returns counts if the thread slept until then, else it is called again.
    pub(crate) fn read<T>(
        &self,
        (process, memory): (&Process, &ProcessMemory),
        resolution: &Resolution,
        tid: i32,
        mut read: impl FnMut(u64) -> T,
    ) -> Asleep<T> {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut known) = state.take(process, tid) else {
            return Asleep::Unknown(None);
        };
        let mut asleep = Asleep::Ran;
        for _ in 0..MAX_TRIES {
            let (inner, unconfirmed) = (known.inner, known.unconfirmed);
            let Some(files) = &known.files else {
                break;
            };
            let listed = state.pointer((process, memory), resolution, inner);
            if resolution.unplaced || listed.is_none() && unconfirmed.is_none() {
                asleep = Asleep::Unknown(files.call().unwrap_or(None));
                break;
            }
            let result = files.read_asleep(|| {
                let address = match listed {
                    Some(pointer) => pointer.is_of(memory, inner).then_some(pointer.address)?,
                    None => unconfirmed?,
                };
                Some(read(address))
            });
            match result {
                Ok(Some(Some(result))) => {
                    asleep = Asleep::Read(result);
                    break;
                }
                // Another thread has the control block by now.
                Ok(Some(None)) => state.pointers.forget(inner),
                Ok(None) => {}
                // It has exited. Its id may be another thread's by now.
                Err(_) => match Known::open(process, tid, state.namespaced) {
                    Some(new) => known = new,
                    None => return Asleep::Unknown(None),
                },
            }
        }
        state.keep(tid, known);
        asleep
    }

    /// Notes the thread pointer that a stop of thread `tid` told.
    pub(crate) fn learn(&self, memory: &dyn Memory, tid: i32, thread_pointer: u64) {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = state.threads.get_mut(&tid) else {
            return;
        };
        let confirmed = |pointer: &ThreadPointer| pointer.is_of(memory, known.inner);
        match state.pointers.at(thread_pointer).filter(confirmed) {
            Some(pointer) => state.pointers.add(known.inner, pointer),
            // Only open files tell that it is the same thread next time.
            None if known.files.is_some() => known.unconfirmed = Some(thread_pointer),
            None => {}
        }
    }
}

impl Known {
    /// Opens a thread's files. `None` if it has exited, or the kernel does not tell what it does.
    fn open(process: &Process, tid: i32, namespaced: Option<bool>) -> Option<Self> {
        let inner = match namespaced {
            Some(false) => tid,
            _ => *process.thread_status(tid).ok()?.namespace_pids.last()?,
        };
        Some(Self {
            inner,
            files: Some(ThreadFiles::open(process, tid).ok()?),
            unconfirmed: None,
        })
    }
}

impl State {
    /// What is known of a thread, with its files open.
    fn take(&mut self, process: &Process, tid: i32) -> Option<Known> {
        if self.namespaced.is_none() {
            let status = process.status().ok()?;
            self.namespaced = Some(status.namespace_pids.len() > 1);
        }
        match self
            .threads
            .remove(&tid)
            .filter(|known| known.files.is_some())
        {
            Some(known) => {
                self.open -= 1;
                Some(known)
            }
            None => Known::open(process, tid, self.namespaced),
        }
    }

    fn keep(&mut self, tid: i32, mut known: Known) {
        if self.open >= max_kept() {
            (known.files, known.unconfirmed) = (None, None);
        }
        self.open += usize::from(known.files.is_some());
        self.threads.insert(tid, known);
    }

    /// The thread pointer by the C library's list, which is walked if it is not known.
    fn pointer(
        &mut self,
        (process, memory): (&Process, &ProcessMemory),
        resolution: &Resolution,
        inner: i32,
    ) -> Option<ThreadPointer> {
        if let Some(pointer) = self.pointers.get(inner) {
            return Some(pointer);
        }
        if self.walks_left == 0 {
            return None;
        }
        self.walks_left -= 1;
        let leader = match self.namespaced {
            Some(true) => *process.status().ok()?.namespace_pids.last()?,
            _ => process.pid(),
        };
        let lists = &resolution.threads;
        let target = LiveProcess::new(process, memory);
        self.pointers = ThreadPointers::find(lists, &target, leader, self.listed);
        self.pointers.get(inner)
    }
}
