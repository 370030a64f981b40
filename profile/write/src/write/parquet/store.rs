//! Where Parquet files are kept while they are written: several of them, row group by row group, in
//! one file without a name. So each of them is complete when it appears.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, file};

/// Maximum size of all files, in bytes: samples of a hostile recording can be many.
const MAX_SIZE: u64 = 8 << 30;
/// Bytes that are copied at a time.
const CHUNK: usize = 256 << 10;

/// The content of files that are being written.
#[derive(Debug)]
pub(crate) struct Store {
    file: BufWriter<File>,
    size: u64,
}

/// A file in a [`Store`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Its folder below the one that was asked for.
    folder: String,
    /// Position and size of each of its pieces.
    pieces: Vec<(u64, u64)>,
}

impl Part {
    /// Creates a file without content.
    pub(crate) fn in_folder(folder: String) -> Self {
        Self {
            folder,
            pieces: Vec::new(),
        }
    }

    /// Returns the number of its pieces.
    #[cfg(test)]
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }
}

impl Store {
    /// Creates a store near the file or folder that will be written.
    ///
    /// # Errors
    /// Returns the errors of creating a file.
    pub(crate) fn beside(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::with_capacity(1 << 16, file::spool(path)?),
            size: 0,
        })
    }

    /// Returns the same store, for a process that is forked.
    ///
    /// # Errors
    /// Returns the errors of dup(2).
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::with_capacity(1 << 16, self.file.get_ref().try_clone()?),
            size: self.size,
        })
    }

    /// Adds a piece to a file.
    ///
    /// # Errors
    /// Returns the errors of writing, and fails if all files are too large.
    pub(crate) fn add<T>(
        &mut self,
        part: &mut Part,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> io::Result<T> {
        let start = self.size;
        let written = write(self)?;
        part.pieces.push((start, self.size - start));
        Ok(written)
    }

    /// Copies a file. Everything must have been flushed.
    ///
    /// # Errors
    /// Returns the errors of reading and writing.
    pub(crate) fn copy(&self, part: &Part, writer: &mut dyn Write) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        for (start, size) in &part.pieces {
            let mut at = *start;
            while at < start + size {
                let length = CHUNK.min((start + size - at) as usize);
                self.file
                    .get_ref()
                    .read_exact_at(&mut chunk[..length], at)?;
                writer.write_all(&chunk[..length])?;
                at += length as u64;
            }
        }
        Ok(())
    }

    /// Writes each file as `part.parquet` to its folder below `path`.
    ///
    /// # Errors
    /// Returns [`Error::Write`].
    pub(crate) fn write_folder(&self, parts: &[Part], path: &Path) -> Result<(), Error> {
        for part in parts {
            let folder = path.join(&part.folder);
            fs::create_dir_all(&folder).map_err(|source| Error::Write {
                path: folder.clone(),
                source,
            })?;
            file::write(&folder.join("part.parquet"), |writer| {
                self.copy(part, writer)
            })?;
        }
        Ok(())
    }
}

impl Write for Store {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.size + bytes.len() as u64 > MAX_SIZE {
            let limit = MAX_SIZE >> 30;
            return Err(io::Error::other(format!("it takes more than {limit} GiB")));
        }
        let written = self.file.write(bytes)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
