//! Who holds the lock that a thread waits for.
//!
//! glibc's mutexes and read-write locks record the thread that has them. For any other futex, the same bytes are arbitrary
//! data that may look like a thread's ID: condition variables, semaphores, barriers, joins, and the locks of musl, Rust and
//! Go. So a holder is named only if all of this holds:
//! - the innermost function of the user stack is a lock function of glibc, or a helper in the same library that it called;
//! - the futex still has the value for which the thread waits, and that means locked with waiters;
//! - the lock's other fields are those of a lock that this thread can wait for in this way;
//! - the recorded thread is one of the same process, and not the waiting one.
//!
//! A futex with priority inheritance is an exception: the kernel defines its word, for programs of any language.

use std::collections::HashMap;
use std::ops::ControlFlow;

use foldhash::fast::RandomState;
use otelctx_reader::remote::{FileCache, LiveProcess, LoadedModule, Memory, Modules, Process};
use otelctx_reader::remote::{ProcessMemory, Target};

use crate::lock_code::{Lock, LockCode};
use crate::{Call, Waiting};

/// Names of the libraries with lock functions: glibc's libc.so, and its libpthread.so before 2.34.
const LIBRARIES: [&[u8]; 2] = [b"libc.so.6", b"libpthread.so.0"];
/// Time after which glibc is searched again where it was not found, in nanoseconds.
const RETRY_INTERVAL: u64 = 10_000_000_000;
/// Time after which the threads of a process in another PID namespace are listed again, in nanoseconds.
const LIST_INTERVAL: u64 = 1_000_000_000;
/// Maximum number of threads that are listed.
const MAX_THREADS: usize = 32 * 1024;
/// Number of frames among which the lock function must be: a helper may have called another one.
const MAX_DEPTH: usize = 3;

/// Commands of futex(2) (<linux/futex.h>).
const WAIT: u64 = 0;
const LOCK_PI: u64 = 6;
const WAIT_BITSET: u64 = 9;
const LOCK_PI2: u64 = 13;
const COMMAND: u64 = 0x7f;
const PRIVATE: u64 = 0x80;
/// FUTEX_WAITERS, FUTEX_OWNER_DIED and FUTEX_TID_MASK, in the word of a robust mutex or one with priority inheritance.
const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const TID: u32 = 0x3fff_ffff;

/// Size of the fields of `struct __pthread_mutex_s` that are read: lock, count, owner, number of users and kind, an int each.
/// They are the same on x86-64 and aarch64 (glibc's sysdeps/x86/nptl/bits/struct_mutex.h and
/// sysdeps/nptl/bits/struct_mutex.h).
const MUTEX_SIZE: usize = 20;
/// Bits of the kind (glibc's nptl/pthreadP.h): robust, priority inheritance, priority protection, shared between processes,
/// two of lock elision.
const ROBUST: u32 = 16;
const INHERIT: u32 = 32;
const PROTECT: u32 = 64;
const SHARED: u32 = 128;
const ALL_KINDS: u32 = 3 | ROBUST | INHERIT | PROTECT | SHARED | 256 | 512;
/// PTHREAD_MUTEX_RECURSIVE_NP.
const RECURSIVE: u32 = 1;
/// The part of the word of a mutex with priority protection that is not the ceiling (PTHREAD_MUTEX_PRIO_CEILING_MASK).
const BELOW_CEILING: u32 = 0x7_ffff;
/// The word of a locked mutex that another thread waits for.
const CONTENDED: u32 = 2;

/// Size of the fields of `struct __pthread_rwlock_arch_t` that are read, an int each: readers, writers, two futexes, two of
/// padding, the writer and whether it is shared between processes. They are the same on x86-64 and aarch64 (glibc's
/// sysdeps/x86/nptl/bits/struct_rwlock.h and sysdeps/nptl/bits/struct_rwlock.h).
const RWLOCK_SIZE: usize = 32;
/// Offsets of the two futexes. Locks are aligned to eight bytes, so an address tells which it is.
const PHASE_FUTEX: u64 = 8;
const WRITERS_FUTEX: u64 = 12;
/// PTHREAD_RWLOCK_WRPHASE and PTHREAD_RWLOCK_WRLOCKED: a writer has the lock.
const WRITE_LOCKED: u32 = 1 | 2;

/// What is known about the locks of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessLocks {
    libraries: Vec<Library>,
    searched_at: Option<u64>,
    /// Whether the process is in another PID namespace, and its threads: IDs in its namespace, and the reader's.
    is_namespaced: Option<bool>,
    threads: HashMap<i32, i32, RandomState>,
    listed_at: Option<u64>,
}

#[derive(Debug)]
struct Library {
    module: LoadedModule,
    code: LockCode,
}

/// A lock's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its thread ID in the reader's PID namespace.
    pub(crate) tid: i32,
    pub(crate) lock: Lock,
}

impl ProcessLocks {
    /// The holder of the lock that a thread waits for in futex(2).
    pub(crate) fn holder(
        &mut self,
        process: &Process,
        memory: &ProcessMemory,
        files: &FileCache,
        thread: &Waiting<'_>,
    ) -> Option<Holder> {
        let command = thread.call.arguments[1] & COMMAND;
        let words = thread.memory.unwrap_or(memory);
        let (lock, owner) = match command {
            LOCK_PI | LOCK_PI2 => (Lock::Mutex, inheriting_owner(words, &thread.call)?),
            WAIT | WAIT_BITSET => {
                self.find_libraries(process, memory, files, thread.now);
                let lock = self.lock_function(thread.frames)?;
                let owner = match lock {
                    Lock::Mutex => mutex_owner(words, &thread.call)?,
                    Lock::ReadWrite => writer(words, &thread.call)?,
                };
                (lock, owner)
            }
            _ => return None,
        };
        let tid = self.outer(process, owner, thread.now)?;
        (tid != thread.tid).then_some(Holder { tid, lock })
    }

    fn find_libraries(
        &mut self,
        process: &Process,
        memory: &ProcessMemory,
        files: &FileCache,
        now: u64,
    ) {
        let is_due = |at| now.saturating_sub(at) >= RETRY_INTERVAL;
        if !self.libraries.is_empty() || !self.searched_at.is_none_or(is_due) {
            return;
        }
        self.searched_at = Some(now);
        let target = LiveProcess::new(process, memory);
        let Ok(modules) = Modules::read_c_library(&target, files) else {
            return;
        };
        for module in modules.loaded {
            let name = module.file.soname.as_deref().unwrap_or_default();
            if LIBRARIES.contains(&name)
                && let Ok(code) = module.fact(&target as &dyn Target, "locks", LockCode::read)
            {
                let code = LockCode::clone(&code);
                self.libraries.push(Library { module, code });
            }
        }
    }

    /// The kind of lock that the thread takes: its innermost functions are all of one library, and one of them takes a lock.
    fn lock_function(&self, frames: &[u64]) -> Option<Lock> {
        let innermost = *frames.first()?;
        let mut libraries = self.libraries.iter();
        let library = libraries.find(|library| library.module.contains(innermost))?;
        let own = frames.iter().take(MAX_DEPTH).map_while(|address| {
            // Both the address after a system call and a return address may be at the end of the function.
            let address = address.wrapping_sub(1);
            let is_own = library.module.contains(address);
            is_own.then(|| address.wrapping_sub(library.module.bias))
        });
        own.filter_map(|address| library.code.at(address)).next()
    }

    /// The ID in the reader's PID namespace of the thread with this ID in the process's own, if there is one.
    fn outer(&mut self, process: &Process, inner: i32, now: u64) -> Option<i32> {
        if self.is_namespaced.is_none() {
            let status = process.status().ok()?;
            self.is_namespaced = Some(status.namespace_pids.len() > 1);
        }
        if self.is_namespaced != Some(true) {
            return process.has_thread(inner).then_some(inner);
        }
        let is_it = |outer: &i32| inner_id(process, *outer) == Some(inner);
        if let Some(outer) = self.threads.get(&inner).copied().filter(is_it) {
            return Some(outer);
        }
        if self
            .listed_at
            .is_some_and(|at| now.saturating_sub(at) < LIST_INTERVAL)
        {
            return None;
        }
        self.listed_at = Some(now);
        self.threads.clear();
        let threads = &mut self.threads;
        let listed = process.visit_thread_ids(&mut |outer| {
            if let Some(inner) = inner_id(process, outer) {
                threads.insert(inner, outer);
            }
            match threads.len() < MAX_THREADS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        listed.ok()?;
        self.threads.get(&inner).copied()
    }
}

/// The ID of a thread in its own PID namespace.
fn inner_id(process: &Process, outer: i32) -> Option<i32> {
    let status = process.thread_status(outer).ok()?;
    status.namespace_pids.last().copied()
}

fn word(bytes: &[u8], index: usize) -> u32 {
    let word = bytes.get(index * 4..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

fn id(number: u32) -> Option<i32> {
    i32::try_from(number).ok().filter(|id| *id > 0)
}

/// The thread that has a futex with priority inheritance, by the word that futex(2) defines.
fn inheriting_owner(memory: &dyn Memory, call: &Call) -> Option<i32> {
    let word = memory.read_u32(call.arguments[0]).ok()?;
    let is_held = word & WAITERS != 0 && word & OWNER_DIED == 0;
    id(word & TID).filter(|_| is_held)
}

/// The thread that has the mutex whose futex a thread waits for.
fn mutex_owner(memory: &dyn Memory, call: &Call) -> Option<i32> {
    let [address, operation, value, ..] = call.arguments;
    let mut mutex = [0; MUTEX_SIZE];
    memory.read(address, &mut mutex).ok()?;
    let [lock, count, owner, users, kind] = std::array::from_fn(|index| word(&mutex, index));
    // Robust mutexes are always taken with the operation for shared ones.
    let is_private = operation & PRIVATE != 0;
    let is_consistent = match kind & ROBUST {
        0 => is_private == (kind & SHARED == 0),
        _ => !is_private,
    };
    let is_mutex = address % 8 == 0
        && kind & !ALL_KINDS == 0
        && kind & INHERIT == 0
        && is_consistent
        && users > 0
        && (kind & 3 != RECURSIVE || count > 0);
    let is_held = match kind & (ROBUST | PROTECT) {
        0 => lock == CONTENDED,
        PROTECT => lock & BELOW_CEILING == CONTENDED,
        ROBUST => lock == WAITERS | owner,
        _ => false,
    };
    let is_waited_for = lock == value as u32;
    id(owner).filter(|_| is_mutex && is_held && is_waited_for)
}

/// The thread that has the read-write lock for writing of which a thread waits for a futex.
fn writer(memory: &dyn Memory, call: &Call) -> Option<i32> {
    let [address, operation, value, ..] = call.arguments;
    let offset = match address % 8 {
        0 => PHASE_FUTEX,
        _ => WRITERS_FUTEX,
    };
    let mut rwlock = [0; RWLOCK_SIZE];
    memory
        .read(address.checked_sub(offset)?, &mut rwlock)
        .ok()?;
    let word = |index| word(&rwlock, index);
    let (readers, futex, writer, shared) = (word(0), word(offset as usize / 4), word(6), word(7));
    let is_private = operation & PRIVATE != 0;
    let is_held = readers & WRITE_LOCKED == WRITE_LOCKED && futex == value as u32;
    let is_consistent = shared <= 1 && is_private == (shared == 0);
    id(writer).filter(|_| is_held && is_consistent)
}
