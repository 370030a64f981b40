//! Go's list of its threads (`runtime.allm`), which is read where a thread pointer does not lead to a goroutine, or is not
//! known: programs without cgo have no C library that lists their threads.

use std::ops::Range;
use std::sync::OnceLock;

use otelctx_reader::remote::Target;
use otelctx_reader::remote::threads::ThreadPointer;
use otelctx_reader::runtime::RuntimeError;

use crate::file::Data;
use crate::layout::Layout;

/// Maximum number of threads that are read. Go ends programs with more than 10,000 of them
/// (`sched.maxmcount` in src/runtime/proc.go).
const MAX_THREADS: usize = 16 * 1024;
/// Maximum size of the variables that are searched for the list, in bytes. Kubernetes' kubelet has 2 MiB.
const MAX_SEARCHED: u64 = 16 << 20;
/// Number of bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Maximum number of words that are followed because they may be an address.
const MAX_CANDIDATES: usize = 1 << 17;
/// Maximum number of variables that are kept because they may be the list's.
const MAX_HEADS: usize = 4;
/// Addresses of structures of a process begin behind the first pages, and end where the kernel's half begins.
const ADDRESSES: Range<u64> = 0x1_0000..1 << 56;

/// The threads of one process.
#[derive(Debug)]
pub(crate) struct Threads {
    layout: Layout,
    data: Data,
    /// The addresses of the variable with the first thread.
    heads: OnceLock<Vec<u64>>,
}

/// A thread (`runtime.m`), by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread(pub(crate) u64);

impl Threads {
    pub(crate) fn new(layout: Layout, data: Data) -> Self {
        let heads = OnceLock::new();
        Self {
            layout,
            data,
            heads,
        }
    }

    /// The thread pointers of threads that Go has created without a C library (`settls` in its
    /// src/runtime/sys_linux_amd64.s), by their IDs in the process's own PID namespace.
    pub(crate) fn pointers(&self, target: &dyn Target) -> Vec<(i32, ThreadPointer)> {
        let mut found = Vec::new();
        for thread in self.all(target) {
            // With a C library, this storage is not used.
            let storage = thread.0.wrapping_add(self.layout.thread.storage);
            let Ok(goroutine) = target.read_u64(storage) else {
                continue;
            };
            let owner = goroutine.wrapping_add(self.layout.goroutine.thread);
            let is_own = goroutine != 0 && target.read_u64(owner) == Ok(thread.0);
            if let Some(id) = self.id(target, thread).filter(|_| is_own) {
                let id_at = thread.0.wrapping_add(self.layout.thread.id);
                let pointer = ThreadPointer::new(storage.wrapping_add(8), id_at);
                found.push((id, pointer));
            }
        }
        found
    }

    /// The address of the scheduler's goroutine of a thread, given the thread's ID in the reader's PID namespace. 0 if it
    /// is not one of Go's.
    pub(crate) fn goroutine_of(&self, target: &dyn Target, tid: i32) -> Result<u64, RuntimeError> {
        let inner = target.inner_tid(tid);
        let all = self.all(target);
        let is_it = |it: &&Thread| inner.is_some() && self.id(target, **it) == inner;
        let thread = all.iter().find(is_it);
        Ok(match thread {
            Some(thread) => target.read_u64(thread.0)?,
            None => 0,
        })
    }

    /// The ID of a thread in the process's own PID namespace. `None` if the kernel has not started it yet.
    pub(crate) fn id(&self, target: &dyn Target, thread: Thread) -> Option<i32> {
        let id = target.read_u64(thread.0.wrapping_add(self.layout.thread.id));
        i32::try_from(id.ok()?).ok().filter(|id| *id > 0)
    }

    /// All threads, as far as they could be read.
    pub(crate) fn all(&self, target: &dyn Target) -> Vec<Thread> {
        let heads = self.heads.get_or_init(|| self.find(target));
        let lists = heads.iter().map(|head| match target.read_u64(*head) {
            Ok(first) => self.list(target, first),
            Err(_) => Vec::new(),
        });
        lists.max_by_key(Vec::len).unwrap_or_default()
    }

    /// The list from a thread on.
    fn list(&self, target: &dyn Target, mut next: u64) -> Vec<Thread> {
        let mut threads = Vec::new();
        while next != 0 && threads.len() < MAX_THREADS && self.is_thread(target, next) {
            threads.push(Thread(next));
            let at = next.wrapping_add(self.layout.thread.next);
            next = target.read_u64(at).unwrap_or_default();
        }
        threads
    }

    /// Returns whether it is a thread: its first word is its own goroutine, which leads to it.
    fn is_thread(&self, target: &dyn Target, address: u64) -> bool {
        let Ok(goroutine) = target.read_u64(address) else {
            return false;
        };
        let owner = goroutine.wrapping_add(self.layout.goroutine.thread);
        ADDRESSES.contains(&goroutine) && target.read_u64(owner) == Ok(address)
    }

    /// Finds the list's variable: by its symbol, or as what has the longest list of threads.
    fn find(&self, target: &dyn Target) -> Vec<u64> {
        if let Some(head) = self.data.threads {
            return vec![head];
        }
        let mut best = (0, Vec::new());
        let mut candidates = 0;
        self.data.words(target, &mut |at, word| {
            if ADDRESSES.contains(&word) && word % 8 == 0 && candidates < MAX_CANDIDATES {
                candidates += 1;
                let length = self.list(target, word).len();
                if length > best.0 {
                    best = (length, Vec::new());
                }
                if length > 0 && length == best.0 && best.1.len() < MAX_HEADS {
                    best.1.push(at);
                }
            }
        });
        best.1
    }
}

impl Data {
    /// Calls `visit` with the address and the value of each word of the variables, as far as they can be read.
    pub(crate) fn words(&self, target: &dyn Target, visit: &mut dyn FnMut(u64, u64)) {
        let mut left = MAX_SEARCHED;
        let mut piece = vec![0; PIECE];
        for segment in &self.segments {
            let mut at = segment.start.next_multiple_of(8);
            while at < segment.end && left > 0 {
                let size = (segment.end - at).min(PIECE as u64).min(left);
                left -= size;
                let bytes = &mut piece[..size as usize];
                if target.read(at, bytes).is_ok() {
                    for (word, at) in bytes.chunks_exact(8).zip((at..).step_by(8)) {
                        let word = word.try_into().expect("eight bytes");
                        visit(at, u64::from_ne_bytes(word));
                    }
                }
                at += size;
            }
        }
    }
}
