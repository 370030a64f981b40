//! Files of modules, kept open.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

use crate::process::Module;

/// Maximum number of files that are kept open.
const MAX_FILES: usize = 512;
/// Maximum number of files without room that are distinguished.
const MAX_WITHOUT_ROOM: usize = 1 << 16;

/// Files of modules, opened while they were mapped and kept open: their functions can be resolved even
/// if the file was deleted or replaced and its process has ended. Clones share the files.
///
/// At most 512 files are kept; modules with the same build ID share one. Deleted ones take disk space
/// until the last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct ModuleFiles(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    by_key: HashMap<Key, Kept, RandomState>,
    /// Number of files that were added so far.
    added: u64,
    /// Files for which there was no room, with true for needed ones.
    without_room: HashMap<Key, bool, RandomState>,
    /// Number of needed files among them.
    dropped: u64,
}

/// Identifies a file: by its build ID if it has one, otherwise by device and inode.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    BuildId(Vec<u8>),
    Inode(u64, u64),
}

impl Key {
    fn of(module: &Module) -> Option<Self> {
        if !module.build_id.is_empty() {
            Some(Self::BuildId(module.build_id.clone()))
        } else if module.inode != 0 {
            Some(Self::Inode(module.device, module.inode))
        } else {
            None
        }
    }
}

#[derive(Debug)]
struct Kept {
    file: Arc<File>,
    /// The file's version when it was opened. Only that of a file without a build ID is compared.
    version: Version,
    /// The number of files that were added until this one; `None` once it is needed.
    spare: Option<u64>,
    /// True if it was needed, but not since [`ModuleFiles::age`] was called last.
    aged: bool,
}

/// Changes when a file is written to.
type Version = (u64, i64, i64);

fn version(found: &Metadata) -> Version {
    (found.size(), found.mtime(), found.mtime_nsec())
}

impl ModuleFiles {
    /// Returns true if the module's file is kept.
    #[must_use]
    pub fn contains(&self, module: &Module) -> bool {
        Key::of(module).is_some_and(|key| self.lock().by_key.contains_key(&key))
    }

    /// Keeps `file` open, unless one is kept for this module or there are too many that are needed.
    pub fn keep(&self, module: &Module, file: File) {
        self.keep_spare(module, file);
        self.need(module);
    }

    /// Keeps `file` open until it is [needed](Self::need), or has to make room for another one: not
    /// every mapped file is sampled.
    pub fn keep_spare(&self, module: &Module, file: File) {
        let (Some(key), Ok(found)) = (Key::of(module), file.metadata()) else {
            return;
        };
        let mut files = self.lock();
        let files = &mut *files;
        if files.by_key.len() >= MAX_FILES && !files.by_key.contains_key(&key) {
            files.remove_oldest_spare();
        }
        if files.by_key.len() < MAX_FILES {
            files.added += 1;
            files.by_key.entry(key).or_insert_with(|| Kept {
                file: Arc::new(file),
                version: version(&found),
                spare: Some(files.added),
                aged: false,
            });
        } else if !files.by_key.contains_key(&key) && files.without_room.len() < MAX_WITHOUT_ROOM {
            files.without_room.entry(key).or_default();
        }
    }

    /// Marks the file of a module as needed, so that no other one takes its place. Returns whether it
    /// is kept.
    pub fn need(&self, module: &Module) -> bool {
        let Some(key) = Key::of(module) else {
            return false;
        };
        let mut files = self.lock();
        if let Some(kept) = files.by_key.get_mut(&key) {
            (kept.spare, kept.aged) = (None, false);
            return true;
        }
        let files = &mut *files;
        if let Some(is_needed) = files.without_room.get_mut(&key) {
            files.dropped += u64::from(!*is_needed);
            *is_needed = true;
        }
        false
    }

    /// Closes files that were needed, but not since the last call, and forgets those for which there was no room: for
    /// recorders that run for months. Code that is still sampled needs its file again once the catalog was reset.
    pub fn age(&self) {
        let mut files = self.lock();
        let files = &mut *files;
        files.by_key.retain(|_, kept| !kept.aged);
        files.without_room.clear();
        for kept in files.by_key.values_mut() {
            if kept.spare.is_none() {
                files.added += 1;
                (kept.spare, kept.aged) = (Some(files.added), true);
            }
        }
    }

    /// Returns what identifies the content of a module's file if it has no build ID and was kept: its device, inode, size
    /// and time of its last change.
    #[must_use]
    pub fn content_key(&self, module: &Module) -> Option<[u8; 40]> {
        let found = self.get(module)?.metadata().ok()?;
        let (size, seconds, nanoseconds) = version(&found);
        let mut key = [0; 40];
        let values = [
            found.dev(),
            found.ino(),
            size,
            seconds.cast_unsigned(),
            nanoseconds.cast_unsigned(),
        ];
        for (place, value) in key.chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        Some(key)
    }

    /// Returns true if a file of the module was not kept because 512 others are needed.
    #[must_use]
    pub fn had_no_room(&self, module: &Module) -> bool {
        Key::of(module).is_some_and(|key| self.lock().without_room.contains_key(&key))
    }

    /// Number of [needed](Self::need) files that were not kept because 512 others are: at most 65,536.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// The file of a module, if it was kept. A file without a build ID must not have been written to
    /// since; a build ID is for the caller to check.
    #[must_use]
    pub fn get(&self, module: &Module) -> Option<Arc<File>> {
        let key = Key::of(module)?;
        let files = self.lock();
        let kept = files.by_key.get(&key)?;
        let found = || kept.file.metadata();
        let is_same = || found().is_ok_and(|found| version(&found) == kept.version);
        (matches!(key, Key::BuildId(_)) || is_same()).then(|| Arc::clone(&kept.file))
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    fn remove_oldest_spare(&mut self) {
        let oldest = self.by_key.values().filter_map(|it| it.spare).min();
        if oldest.is_some() {
            self.by_key.retain(|_, kept| kept.spare != oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn module(build_id: &[u8], inode: u64) -> Module {
        Module {
            path: "/lib/a.so".into(),
            build_id: build_id.to_vec(),
            inode,
            ..Module::default()
        }
    }

    #[test]
    fn a_file_is_kept_for_its_build_id_or_inode() {
        let files = ModuleFiles::default();
        let other_path = Module {
            path: "/container/a.so".into(),
            ..module(&[1], 0)
        };
        let open = || File::open("/proc/self/exe").unwrap();
        files.keep(&module(&[1], 0), open());
        files.keep(&module(&[], 7), open());
        files.keep(&module(&[], 0), open());
        assert!(files.get(&other_path).is_some());
        assert!(files.clone().get(&module(&[], 7)).is_some());
        for absent in [module(&[2], 0), module(&[], 8), module(&[], 0)] {
            assert!(!files.contains(&absent) && files.get(&absent).is_none());
        }
    }

    #[test]
    fn a_file_without_a_build_id_that_was_written_to_is_another_one() {
        let path = std::env::temp_dir().join(format!("otelctx-files-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(b"old").unwrap();
        let files = ModuleFiles::default();
        files.keep(&module(&[], 7), File::open(&path).unwrap());
        assert!(files.get(&module(&[], 7)).is_some());
        file.write_all(b"and new").unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(files.contains(&module(&[], 7)) && files.get(&module(&[], 7)).is_none());
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let files = ModuleFiles::default();
        for inode in 1..=MAX_FILES as u64 + 1 {
            files.keep(&module(&[], inode), File::open("/dev/null").unwrap());
        }
        assert!(files.contains(&module(&[], MAX_FILES as u64)));
        assert!(!files.contains(&module(&[], MAX_FILES as u64 + 1)));
        assert!(files.had_no_room(&module(&[], MAX_FILES as u64 + 1)));
        // Each that is dropped counts once, and one that could not be opened or is not needed does not.
        files.keep_spare(
            &module(&[], MAX_FILES as u64 + 2),
            File::open("/dev/null").unwrap(),
        );
        for inode in [0, 1, MAX_FILES as u64 + 3, MAX_FILES as u64 + 1] {
            files.need(&module(&[], inode));
        }
        assert_eq!(files.dropped(), 1);
    }

    #[test]
    fn files_that_are_no_longer_needed_are_closed() {
        let files = ModuleFiles::default();
        let open = || File::open("/dev/null").unwrap();
        let is_kept = |inode| files.contains(&module(&[], inode));
        (1..=3).for_each(|inode| files.keep(&module(&[], inode), open()));
        files.keep_spare(&module(&[], 4), open());
        files.age();
        assert!((1..=4).all(is_kept));
        assert!(files.need(&module(&[], 1)));
        files.age();
        // A spare one may belong to code that was not sampled yet.
        assert_eq!([1, 2, 3, 4].map(is_kept), [true, false, false, true]);
        files.age();
        assert_eq!([1, 2, 3, 4].map(is_kept), [false, false, false, true]);
    }

    #[test]
    fn the_content_of_a_file_without_a_build_id_has_a_key() {
        let path = std::env::temp_dir().join(format!("otelctx-content-{}", std::process::id()));
        let (files, other) = (ModuleFiles::default(), ModuleFiles::default());
        let keep = |files: &ModuleFiles| {
            files.keep(&module(&[], 7), File::open(&path).unwrap());
            files.content_key(&module(&[], 7))
        };
        std::fs::write(&path, "old").unwrap();
        let old = keep(&files);
        assert!(old.is_some() && old == keep(&files));
        std::fs::write(&path, "and new").unwrap();
        assert_eq!(files.content_key(&module(&[], 7)), None);
        assert!(keep(&other).is_some_and(|new| Some(new) != old));
        assert_eq!(files.content_key(&module(&[], 8)), None);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn spare_files_make_room_oldest_first_until_they_are_needed() {
        let files = ModuleFiles::default();
        let open = || File::open("/dev/null").unwrap();
        let spare = |inode| files.keep_spare(&module(&[], inode), open());
        let is_kept = |inode| files.contains(&module(&[], inode));
        (1..=MAX_FILES as u64).for_each(spare);
        assert!(files.need(&module(&[], 1)));
        // It would have room.
        assert!(!files.need(&module(&[], 1000)));
        assert_eq!(files.dropped(), 0);
        // Once more, which makes it no newer.
        spare(2);
        spare(1000);
        assert_eq!([1, 2, 3, 1000].map(is_kept), [true, false, true, true]);
        files.keep(&module(&[], 1001), open());
        assert_eq!([1, 3, 4, 1001].map(is_kept), [true, false, true, true]);
        (1..=MAX_FILES as u64).for_each(|inode| files.keep(&module(&[], inode), open()));
        (2000..2010).for_each(spare);
        assert!(is_kept(1) && is_kept(1001) && !is_kept(2009));
    }
}
