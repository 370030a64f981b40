//! Reads sleeping threads without stopping them, and caches data about each for the next time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use otelctx_remote as remote;
use remote::threads::{
    Call, PagedMemory, Pages, ThreadFiles, ThreadPointer, ThreadPointers, max_kept,
};
use remote::tls::Resolution;
use remote::{LiveProcess, Memory, Process, ProcessMemory};

/// Attempts to read a thread before it must be stopped.
const MAX_TRIES: usize = 3;
/// Maximum number of walks over the C library's list of threads after each listing of the threads:
/// the first misses some if the list changes.
const MAX_WALKS: u32 = 2;
/// Maximum number of threads that are found asleep before the first of them is read. With more, the
/// cost per thread does not decrease further.
const MAX_FOUND: usize = 64;

/// Cached data about the threads of a process.
#[derive(Debug, Default)]
pub(crate) struct SleepingThreads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pointers: ThreadPointers,
    /// Thread pointers that runtimes know. `None` if they were not asked since the threads were listed.
    own: Option<HashMap<i32, ThreadPointer>>,
    walks_left: u32,
    /// Thread IDs in the process differ from the reader's. `None` if unknown.
    namespaced: Option<bool>,
    /// The threads listed last, in ascending order of their IDs, with their cached data.
    threads: Vec<(i32, Option<Box<CachedThread>>)>,
    /// Number of threads with open files, and the maximum.
    open: usize,
    max_open: usize,
    /// The index after the thread that was read last.
    next: usize,
    /// The index after the last thread that [`State::find_asleep`] has tried.
    found_to: usize,
    /// Memory that was read after the threads with [`CachedThread::is_found`] were found asleep.
    pages: Pages,
}

/// Cached data about a thread.
#[derive(Debug)]
struct CachedThread {
    /// Its ID in the process's own PID namespace.
    inner: i32,
    /// Open files, for up to [`max_kept`] threads.
    files: Option<ThreadFiles>,
    /// A thread pointer from a stop that no control block confirms, of the thread of `files`.
    unconfirmed: Option<u64>,
    /// The thread pointer of the last read while it slept. Valid as long as it stays asleep.
    last: Option<u64>,
    /// It was asleep before any of [`State::pages`] was read.
    is_found: bool,
}

/// The result of an attempt to read a thread without stopping it.
#[derive(Debug)]
pub(crate) enum Asleep<T> {
    /// It slept throughout.
    Read(T),
    /// It was running in each attempt.
    Ran,
    /// It cannot be read this way. If it sleeps, the system call that it sleeps in.
    Unknown(Option<Call>),
}

impl SleepingThreads {
    /// Clears everything, because the process has executed another program.
    pub(crate) fn clear(&mut self) {
        *self.0.get_mut().unwrap_or_else(PoisonError::into_inner) = State::default();
    }

    pub(crate) fn note_listed(&self, tids: impl Iterator<Item = i32>) {
        let mut listed: Vec<_> = tids.map(|tid| (tid, None)).collect();
        listed.sort_unstable_by_key(|(tid, _)| *tid);
        listed.dedup_by_key(|(tid, _)| *tid);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cached = std::mem::take(&mut state.threads).into_iter().peekable();
        state.open = 0;
        for (tid, entry) in &mut listed {
            while cached.next_if(|(other, _)| other < tid).is_some() {}
            let same = cached.next_if(|(other, _)| other == tid);
            *entry = same.and_then(|(_, cached)| cached);
            if let Some(cached) = entry {
                state.open += usize::from(cached.files.is_some());
                cached.is_found = false;
            }
        }
        state.threads = listed;
        state.own = None;
        state.max_open = max_kept();
        state.walks_left = MAX_WALKS;
        state.next = 0;
        state.found_to = 0;
    }

    /// Stores the thread pointers that runtimes know, which `find` is asked for once after each listing of the threads.
    pub(crate) fn note_own(&self, find: impl FnOnce() -> Vec<(i32, ThreadPointer)>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.own.is_none() {
            state.own = Some(find().into_iter().collect());
        }
    }

    /// Calls `read` with the memory and the thread pointer of `tid` until that slept throughout.
    pub(crate) fn read<T>(
        &self,
        (process, memory): (&Process, &ProcessMemory),
        resolution: &Resolution,
        tid: i32,
        mut read: impl FnMut(&dyn Memory, u64) -> T,
    ) -> Asleep<T> {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = state.index(tid);
        if let Some(index) = index {
            state.note_read(process, index);
        }
        let Some(mut cached) = state.take(process, tid, index) else {
            return Asleep::Unknown(None);
        };
        let last = cached.last.take().filter(|_| !resolution.unplaced);
        if let (Some(last), Some(files)) = (last, &mut cached.files) {
            let result = read(memory, last);
            if files.has_stayed_asleep().unwrap_or(false) {
                cached.last = Some(last);
                state.keep(index, cached);
                return Asleep::Read(result);
            }
        }
        if std::mem::take(&mut cached.is_found)
            && let Some(files) = &mut cached.files
            && !resolution.unplaced
            && let Some(pointer) = state.pointer((process, memory), resolution, cached.inner)
        {
            let paged = PagedMemory::new(memory, &mut state.pages);
            let is_same = pointer.is_of(&paged, cached.inner);
            if let Some(result) = is_same.then(|| read(&paged, pointer.address))
                && files.has_stayed_asleep().unwrap_or(false)
            {
                cached.last = Some(pointer.address);
                state.keep(index, cached);
                return Asleep::Read(result);
            }
        }
        let mut asleep = Asleep::Ran;
        for _ in 0..MAX_TRIES {
            let (inner, unconfirmed) = (cached.inner, cached.unconfirmed);
            let Some(files) = &mut cached.files else {
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
                Some((read(memory, address), address))
            });
            match result {
                Ok(Some(Some((result, address)))) => {
                    cached.last = Some(address);
                    asleep = Asleep::Read(result);
                    break;
                }
                // The control block now belongs to another thread.
                Ok(Some(None)) => state.forget(inner),
                Ok(None) => {}
                // It has exited. Its ID may already belong to another thread.
                Err(_) => match CachedThread::open(process, tid, state.namespaced) {
                    Some(new) => *cached = new,
                    None => return Asleep::Unknown(None),
                },
            }
        }
        state.keep(index, cached);
        asleep
    }

    /// The system call in which a thread sleeps, if its files are open.
    pub(crate) fn call(&self, tid: i32) -> Option<Call> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = state.threads[state.index(tid)?].1.as_ref()?;
        cached.files.as_ref()?.call().ok()?
    }

    /// The thread pointer of a thread, if known and if the thread is still the same.
    pub(crate) fn pointer(
        &self,
        process: (&Process, &ProcessMemory),
        resolution: &Resolution,
        tid: i32,
    ) -> Option<u64> {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_namespaced = state.is_namespaced(process.0)?;
        let (inner, unconfirmed) = match &state.threads[state.index(tid)?].1 {
            Some(cached) => (cached.inner, cached.unconfirmed),
            None if is_namespaced => return None,
            None => (tid, None),
        };
        let listed = state.pointer(process, resolution, inner);
        listed.map(|pointer| pointer.address).or(unconfirmed)
    }

    /// Stores the thread pointer that a stop of thread `tid` has returned.
    pub(crate) fn learn(&self, memory: &dyn Memory, tid: i32, thread_pointer: u64) {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = state.index(tid);
        let Some(cached) = index.and_then(|index| state.threads[index].1.as_mut()) else {
            return;
        };
        let confirmed = |pointer: &ThreadPointer| pointer.is_of(memory, cached.inner);
        match state.pointers.at(thread_pointer).filter(confirmed) {
            Some(pointer) => state.pointers.add(cached.inner, pointer),
            // Only open files can identify the thread next time.
            None if cached.files.is_some() => cached.unconfirmed = Some(thread_pointer),
            None => {}
        }
    }
}

impl CachedThread {
    /// Opens a thread's files. `None` if it has exited, or the kernel does not show its state.
    fn open(process: &Process, tid: i32, namespaced: Option<bool>) -> Option<Self> {
        let inner = match namespaced {
            Some(false) => tid,
            _ => *process.thread_status(tid).ok()?.namespace_pids.last()?,
        };
        Some(Self {
            inner,
            files: Some(ThreadFiles::open(process, tid).ok()?),
            unconfirmed: None,
            last: None,
            is_found: false,
        })
    }
}

impl State {
    /// Removes the thread pointer of a thread that has ended.
    fn forget(&mut self, inner: i32) {
        self.pointers.forget(inner);
        if let Some(own) = &mut self.own {
            own.remove(&inner);
        }
    }

    fn index(&self, tid: i32) -> Option<usize> {
        let threads = &self.threads;
        threads.binary_search_by_key(&tid, |(tid, _)| *tid).ok()
    }

    /// If threads are read one after another, finds which of the next ones sleep.
    fn note_read(&mut self, process: &Process, index: usize) {
        let is_next = index == std::mem::replace(&mut self.next, index + 1) && index > 0;
        let cached = &self.threads[index].1;
        let is_new = cached.as_ref().is_none_or(|it| it.last.is_none());
        if is_next && is_new && index >= self.found_to {
            self.find_asleep(process, index);
        }
    }

    /// Finds which of the next threads, if not read before, sleep: the same pages serve them all.
    fn find_asleep(&mut self, process: &Process, index: usize) {
        let end = self.threads.len().min(index + MAX_FOUND);
        for index in index..end {
            let (tid, cached) = &self.threads[index];
            if cached.as_ref().is_some_and(|it| it.last.is_some()) || self.open >= self.max_open {
                continue;
            }
            let Some(mut cached) = self.take(process, *tid, Some(index)) else {
                continue;
            };
            if let Some(files) = &mut cached.files {
                cached.is_found = files.is_asleep().unwrap_or(false);
            }
            self.keep(Some(index), cached);
        }
        self.found_to = end;
        self.pages.clear();
    }

    fn is_namespaced(&mut self, process: &Process) -> Option<bool> {
        if self.namespaced.is_none() {
            let status = process.status().ok()?;
            self.namespaced = Some(status.namespace_pids.len() > 1);
        }
        self.namespaced
    }

    /// The cached data of a thread, with its files open.
    fn take(
        &mut self,
        process: &Process,
        tid: i32,
        index: Option<usize>,
    ) -> Option<Box<CachedThread>> {
        self.is_namespaced(process)?;
        let cached = index.and_then(|index| self.threads[index].1.take());
        let Some(cached) = cached.filter(|cached| cached.files.is_some()) else {
            return CachedThread::open(process, tid, self.namespaced).map(Box::new);
        };
        self.open -= 1;
        Some(cached)
    }

    fn keep(&mut self, index: Option<usize>, mut cached: Box<CachedThread>) {
        let Some(index) = index else {
            return;
        };
        if self.open >= self.max_open {
            (cached.files, cached.unconfirmed, cached.last) = (None, None, None);
        }
        self.open += usize::from(cached.files.is_some());
        self.threads[index].1 = Some(cached);
    }

    /// Finds the thread pointer in the C library's list, which is walked if necessary.
    fn pointer(
        &mut self,
        (process, memory): (&Process, &ProcessMemory),
        resolution: &Resolution,
        inner: i32,
    ) -> Option<ThreadPointer> {
        let own = self.own.as_ref().and_then(|own| own.get(&inner));
        if let Some(pointer) = own.copied().or_else(|| self.pointers.get(inner)) {
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
        self.pointers = ThreadPointers::find(lists, &target, leader, self.threads.len());
        self.pointers.get(inner)
    }
}
