//! Reading threads that sleep without stopping them, and what is kept of each for the next time.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use otelctx_remote as remote;
use remote::threads::{
    Batch, Call, MemoryRange, ThreadFiles, ThreadPointer, ThreadPointers, max_kept,
};
use remote::tls::Resolution;
use remote::{LiveProcess, Memory, Process, ProcessMemory};

/// Attempts to read a thread before it has to be stopped. One that ran during all of them is busy.
const MAX_TRIES: usize = 3;
/// Walks over the C library's list of threads after each listing of the threads. The second finds what
/// the first missed because the list changed.
const MAX_WALKS: u32 = 2;
/// Threads that are read ahead at once. With more, a call gets no cheaper for each.
const MAX_AHEAD: usize = 64;
/// Ranges and bytes of a thread that are read ahead at most.
const MAX_RANGES: usize = 8;
const MAX_BYTES: usize = 4096;

/// What is known of the threads of one process.
#[derive(Debug, Default)]
pub(crate) struct SleepingThreads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pointers: ThreadPointers,
    walks_left: u32,
    /// Whether thread ids in the process differ from the reader's, once that is known.
    namespaced: Option<bool>,
    /// The threads that were listed last, by their ids in ascending order, and what is known of them.
    threads: Vec<(i32, Option<Box<Known>>)>,
    /// How many of these have their files open, and how many may.
    open: usize,
    max_open: usize,
    /// What was read ahead.
    batch: Batch,
    /// Index behind the thread that was read last.
    next: usize,
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
    /// What was read of it while it slept. Holds for as long as it stays asleep.
    last: Option<Last>,
}

/// How a thread was read.
#[derive(Debug)]
struct Last {
    thread_pointer: u64,
    /// What was read of its memory.
    ranges: Vec<MemoryRange>,
    /// The same in the batch, if it was read ahead.
    ahead: Range<usize>,
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
        let mut listed: Vec<_> = tids.map(|tid| (tid, None)).collect();
        listed.sort_unstable_by_key(|(tid, _)| *tid);
        listed.dedup_by_key(|(tid, _)| *tid);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = std::mem::take(&mut state.threads).into_iter().peekable();
        state.open = 0;
        for (tid, entry) in &mut listed {
            while known.next_if(|(other, _)| other < tid).is_some() {}
            *entry = known.next_if(|(other, _)| other == tid).and_then(|it| it.1);
            if let Some(known) = entry {
                state.open += usize::from(known.files.is_some());
                known.last.iter_mut().for_each(|last| last.ahead = 0..0);
            }
        }
        state.threads = listed;
        state.max_open = max_kept();
        state.walks_left = MAX_WALKS;
        state.batch.clear();
        state.next = 0;
    }

    /// Calls `read` with the memory and the thread pointer of thread `tid` if the thread sleeps. What
    /// it returns counts if the thread slept until then, else it is called again.
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
            state.read_ahead(process, memory, index);
        }
        let Some(mut known) = state.take(process, tid, index) else {
            return Asleep::Unknown(None);
        };
        let last = known.last.take().filter(|_| !resolution.unplaced);
        if let (Some(last), Some(files)) = (last, &mut known.files) {
            let memory = state.batch.over(last.ahead, memory);
            let result = read(&memory, last.thread_pointer);
            if files.has_stayed_asleep().unwrap_or(false) {
                known.last = Last::new(last.thread_pointer, memory.into_ranges());
                state.keep(index, known);
                return Asleep::Read(result);
            }
        }
        let mut asleep = Asleep::Ran;
        for _ in 0..MAX_TRIES {
            let (inner, unconfirmed) = (known.inner, known.unconfirmed);
            let Some(files) = &mut known.files else {
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
                let memory = state.batch.over(0..0, memory);
                Some((read(&memory, address), address, memory.into_ranges()))
            });
            match result {
                Ok(Some(Some((result, address, ranges)))) => {
                    known.last = Last::new(address, ranges);
                    asleep = Asleep::Read(result);
                    break;
                }
                // Another thread has the control block by now.
                Ok(Some(None)) => state.pointers.forget(inner),
                Ok(None) => {}
                // It has exited. Its id may be another thread's by now.
                Err(_) => match Known::open(process, tid, state.namespaced) {
                    Some(new) => *known = new,
                    None => return Asleep::Unknown(None),
                },
            }
        }
        state.keep(index, known);
        asleep
    }

    /// The system call that a thread sleeps in, if its files are open.
    pub(crate) fn call(&self, tid: i32) -> Option<Call> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state.threads[state.index(tid)?].1.as_ref()?;
        known.files.as_ref()?.call().ok()?
    }

    /// The thread pointer of a thread, if it is known and the thread is still the same.
    pub(crate) fn pointer(
        &self,
        process: (&Process, &ProcessMemory),
        resolution: &Resolution,
        tid: i32,
    ) -> Option<u64> {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_namespaced = state.is_namespaced(process.0)?;
        let (inner, unconfirmed) = match &state.threads[state.index(tid)?].1 {
            Some(known) => (known.inner, known.unconfirmed),
            None if is_namespaced => return None,
            None => (tid, None),
        };
        let listed = state.pointer(process, resolution, inner);
        listed.map(|pointer| pointer.address).or(unconfirmed)
    }

    /// Notes the thread pointer that a stop of thread `tid` told.
    pub(crate) fn learn(&self, memory: &dyn Memory, tid: i32, thread_pointer: u64) {
        let state = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = state.index(tid);
        let Some(known) = index.and_then(|index| state.threads[index].1.as_mut()) else {
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
            last: None,
        })
    }
}

impl Last {
    fn new(thread_pointer: u64, ranges: Vec<MemoryRange>) -> Option<Self> {
        Some(Self {
            thread_pointer,
            ranges,
            ahead: 0..0,
        })
    }

    /// What is to be read ahead the next time, unless it is too much.
    fn ranges(&self) -> &[MemoryRange] {
        let bytes: usize = self.ranges.iter().map(|(_, length)| length).sum();
        let fits = self.ranges.len() <= MAX_RANGES && bytes <= MAX_BYTES;
        if fits { &self.ranges } else { &[] }
    }
}

impl State {
    fn index(&self, tid: i32) -> Option<usize> {
        let threads = &self.threads;
        threads.binary_search_by_key(&tid, |(tid, _)| *tid).ok()
    }

    /// If threads are read one after the other, reads what was last read of the next ones.
    fn read_ahead(&mut self, process: &Process, memory: &ProcessMemory, index: usize) {
        let is_next = index == std::mem::replace(&mut self.next, index + 1) && index > 0;
        let ahead = |(_, known): &(i32, Option<Box<Known>>)| {
            let last = known.as_ref()?.last.as_ref()?;
            Some(last.ahead.clone())
        };
        if !is_next || ahead(&self.threads[index]).is_none_or(|ahead| !ahead.is_empty()) {
            return;
        }
        self.batch.clear();
        let threads = self.threads[index..].iter_mut().take(MAX_AHEAD);
        for known in threads.filter_map(|(_, known)| known.as_mut()) {
            if let Some(last) = &mut known.last {
                last.ahead = self.batch.add(last.ranges()).unwrap_or_default();
            }
        }
        self.batch.read(process);
        self.batch.discard_if_gone(memory);
    }

    fn is_namespaced(&mut self, process: &Process) -> Option<bool> {
        if self.namespaced.is_none() {
            let status = process.status().ok()?;
            self.namespaced = Some(status.namespace_pids.len() > 1);
        }
        self.namespaced
    }

    /// What is known of a thread, with its files open.
    fn take(&mut self, process: &Process, tid: i32, index: Option<usize>) -> Option<Box<Known>> {
        self.is_namespaced(process)?;
        let known = index.and_then(|index| self.threads[index].1.take());
        match known.filter(|known| known.files.is_some()) {
            Some(known) => {
                self.open -= 1;
                Some(known)
            }
            None => Known::open(process, tid, self.namespaced).map(Box::new),
        }
    }

    fn keep(&mut self, index: Option<usize>, mut known: Box<Known>) {
        let Some(index) = index else {
            return;
        };
        if self.open >= self.max_open {
            (known.files, known.unconfirmed, known.last) = (None, None, None);
        }
        self.open += usize::from(known.files.is_some());
        self.threads[index].1 = Some(known);
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
        self.pointers = ThreadPointers::find(lists, &target, leader, self.threads.len());
        self.pointers.get(inner)
    }
}
