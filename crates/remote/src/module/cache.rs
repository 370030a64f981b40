//! What is known of files already.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::Module;
use super::file::FileBytes;
use crate::elf::Source;

/// Files that a cache keeps before it starts anew.
const MAX_CACHED: usize = 16 * 1024;

/// Identity and state of a file: as long as all of it is the same, so are the contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// [`Module`]s by file (device, inode, size, modification and change time), for as long as the
/// caller keeps it. One cache serves any number of processes.
#[derive(Debug, Default)]
pub struct ModuleCache {
    modules: HashMap<(FileKey, String), Facts>,
    /// What reading them has cost so far, see [`Counted`].
    pub(crate) cost: u64,
}

/// `None` for a file that is no ELF module, an error's text for one that is not readable.
pub(crate) type Facts = Result<Option<Arc<Module>>, String>;

impl ModuleCache {
    /// An empty cache.
    pub fn new() -> Self {
        ModuleCache::default()
    }

    /// Number of files in it.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Whether it has no file.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }

    pub(crate) fn module(&mut self, file: &File, name: &str) -> Facts {
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        let key = FileKey {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        };
        let key = (key, name.to_string());
        if let Some(known) = self.modules.get(&key) {
            return known.clone();
        }
        let (module, cost) = Module::read_counted(Source::File(&FileBytes(file)), name);
        self.cost = self.cost.saturating_add(cost);
        if self.modules.len() >= MAX_CACHED {
            self.modules.clear();
        }
        self.modules.insert(key, module.clone());
        module
    }
}
