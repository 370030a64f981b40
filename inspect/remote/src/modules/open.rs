//! Files of modules that stay open while several facts about each are read.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::file_cache::FileKey;
use crate::memory::FileBytes;
use crate::threads::{PagedMemory, Pages};

/// Maximum number of files: a runtime's facts are from its program, its library and the C library.
const MAX_OPEN: usize = 4;

/// The files of modules that were read last, kept open.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(Mutex<Vec<OpenFile>>);

/// An open file, and some of its pages. They are valid as long as the key is.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(super) key: FileKey,
    file: File,
    pages: Pages,
}

impl OpenFile {
    pub(super) fn of(file: File) -> io::Result<Self> {
        Ok(Self {
            key: FileKey::of(&file)?,
            file,
            pages: Pages::default(),
        })
    }

    pub(super) fn read<T>(&mut self, read: impl FnOnce(&PagedMemory<'_, FileBytes<'_>>) -> T) -> T {
        let bytes = FileBytes(&self.file);
        read(&PagedMemory::new(&bytes, &mut self.pages))
    }
}

impl OpenFiles {
    /// Takes out the file with this key, if it is open and unchanged.
    pub(super) fn take(&self, key: FileKey) -> Option<OpenFile> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = files.iter().position(|file| file.key == key)?;
        let open = files.remove(index);
        let is_unchanged = FileKey::of(&open.file).is_ok_and(|now| now == key);
        is_unchanged.then_some(open)
    }

    /// Keeps a file, in place of the one that was used least recently.
    pub(super) fn keep(&self, file: OpenFile) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() >= MAX_OPEN {
            files.remove(0);
        }
        files.push(file);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::Memory;

    fn open(name: &str, content: &[u8]) -> (std::path::PathBuf, OpenFile) {
        let name = format!("open-files-{}-{name}", std::process::id());
        let path = otelctx_fixtures::directory().join(name);
        fs::write(&path, content).unwrap();
        let file = OpenFile::of(File::open(&path).unwrap()).unwrap();
        (path, file)
    }

    #[test]
    fn a_file_stays_open_until_it_changes_or_others_take_its_place() {
        let files = OpenFiles::default();
        let (path, mut file) = open("0", b"first");
        let key = file.key;
        assert_eq!(file.read(|bytes| bytes.read_u8(4)), Ok(b't'));
        assert!(files.take(key).is_none());
        files.keep(file);
        let file = files.take(key).unwrap();
        // It is in use.
        assert!(files.take(key).is_none());
        files.keep(file);
        let others = (1..MAX_OPEN).map(|index| open(&index.to_string(), b"other"));
        let mut paths: Vec<_> = others
            .map(|(path, file)| {
                files.keep(file);
                path
            })
            .collect();
        // Now it was used last, and the first of the others goes.
        files.keep(files.take(key).unwrap());
        let (last, file) = open("last", b"last");
        files.keep(file);
        assert_eq!(files.0.lock().unwrap().len(), MAX_OPEN);
        assert!(
            files
                .take(OpenFile::of(File::open(&paths[0]).unwrap()).unwrap().key)
                .is_none()
        );
        files.keep(files.take(key).unwrap());
        // What was read of it is not that of the file any more.
        let changed = File::options().write(true).open(&path).unwrap();
        changed.set_len(100).unwrap();
        changed.write_all_at(b"other", 0).unwrap();
        assert!(files.take(key).is_none());
        paths.extend([path, last]);
        paths.iter().for_each(|path| fs::remove_file(path).unwrap());
    }
}
