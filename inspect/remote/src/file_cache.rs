//! Facts about ELF files, computed once per file and shared by all processes that have it mapped.
//!
//! A file is identified by device, inode, size, modification and change time. Facts can be of any
//! type, see [`LoadedModule::fact`](crate::LoadedModule::fact).

use std::any::{Any, TypeId};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::elf::{Elf, ElfError, Source};
use crate::memory::{Memory, MemoryError};

/// Maximum number of files in a cache; it is emptied when it is full.
const MAX_FILES: usize = 16 * 1024;
/// Maximum number of facts about one file; they are dropped if there are more.
const MAX_FACTS: usize = 256;
/// Maximum number of bytes read of one file for one fact: several times a large browser's tables.
pub(crate) const MAX_READ: u64 = 256 << 20;
/// The cost of a short read, about half a microsecond, as the number of bytes that take this time.
const SHORT_READ: u64 = 1024;

/// Identity and state of a file: if all of it is unchanged, so are the contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileKey {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(FileKey {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// A fact about a file: `None` if it is not an ELF file, an error message if it cannot be read.
pub type Fact<T> = Result<Option<Arc<T>>, String>;

/// Facts about files, for any number of processes and threads. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct FileCache(Arc<Mutex<HashMap<FileKey, FileFacts>>>);

impl FileCache {
    /// Creates an empty cache.
    pub fn new() -> Self {
        FileCache::default()
    }

    /// Number of files in the cache.
    pub fn len(&self) -> usize {
        self.files().len()
    }

    /// Returns whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.files().is_empty()
    }

    pub(crate) fn facts(&self, key: FileKey) -> FileFacts {
        let mut files = self.files();
        if files.len() >= MAX_FILES && !files.contains_key(&key) {
            files.clear();
        }
        files.entry(key).or_default().clone()
    }

    fn files(&self) -> MutexGuard<'_, HashMap<FileKey, FileFacts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Kept = Result<Option<Arc<dyn Any + Send + Sync>>, String>;

/// The facts about one file, by type and name. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileFacts(Arc<Mutex<HashMap<(TypeId, String), Kept>>>);

impl FileFacts {
    fn kept(&self) -> MutexGuard<'_, HashMap<(TypeId, String), Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fact with this type and name, if it was computed before.
    pub(crate) fn get<T: Any + Send + Sync>(&self, name: &str) -> Option<Fact<T>> {
        let kept = self.kept();
        let kept = kept.get(&(TypeId::of::<T>(), name.to_owned()))?;
        // It is stored under the ID of its own type.
        Some(kept.clone().map(|fact| fact?.downcast().ok()))
    }

    /// Computes a fact and caches it. Also returns the cost of reading, see [`Counted`].
    pub(crate) fn compute<T: Any + Send + Sync>(
        &self,
        name: &str,
        source: Source<'_>,
        read: impl FnOnce(&Elf<'_>) -> Result<T, ElfError>,
    ) -> (Fact<T>, u64) {
        let (fact, cost) = read_within(MAX_READ, source, read);
        let fact = fact.map(|fact| fact.map(Arc::new));
        self.keep(name, &fact);
        (fact, cost)
    }

    pub(crate) fn keep<T: Any + Send + Sync>(&self, name: &str, fact: &Fact<T>) {
        let kept: Kept = fact.clone().map(|fact| fact.map(|fact| fact as _));
        let mut facts = self.kept();
        if facts.len() >= MAX_FACTS {
            facts.clear();
        }
        facts.insert((TypeId::of::<T>(), name.to_owned()), kept);
    }
}

/// Reads the ELF module at `source`, at most `limit` bytes of it. Returns the result, if it is ELF,
/// and its cost.
pub(crate) fn read_within<T>(
    limit: u64,
    source: Source<'_>,
    read: impl FnOnce(&Elf<'_>) -> Result<T, ElfError>,
) -> (Result<Option<T>, String>, u64) {
    let cost = Cell::new(0);
    let from = |source| match Elf::read(source)? {
        Some(elf) => read(&elf).map(Some),
        None => Ok(None),
    };
    let counted = |memory| Counted {
        memory,
        cost: &cost,
        limit,
    };
    let result = match source {
        Source::File(memory) => from(Source::File(&counted(memory))),
        Source::Loaded(memory, base) => from(Source::Loaded(&counted(memory), base)),
    };
    let mut result = result.map_err(|error| error.to_string());
    if cost.get() > limit {
        let limit = limit >> 20;
        result = Err(format!("more than {limit} MiB of it would have to be read"));
    }
    (result, cost.get())
}

/// Memory that counts the cost of reads, in bytes, at least [`SHORT_READ`] each, up to a limit.
struct Counted<'a> {
    memory: &'a dyn Memory,
    cost: &'a Cell<u64>,
    limit: u64,
}

impl Memory for Counted<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len() as u64;
        let cost = self.cost.get().saturating_add(length.max(SHORT_READ));
        self.cost.set(cost);
        if cost > self.limit {
            return Err(MemoryError::Limit {
                address,
                length,
                limit: self.limit as usize,
            });
        }
        self.memory.read(address, buffer)
    }
}
