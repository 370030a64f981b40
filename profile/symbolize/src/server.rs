//! Files from a server, such as debuginfod, by their build IDs. What it sends is not trusted.

use std::fmt;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use otelctx_remote::module;

use crate::answer::Answer;
use crate::copy::nameless;

/// A kind of file that a [`DebugServer`] may have for a build ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServedFile {
    /// The debug information.
    DebugInfo,
    /// The program or library itself.
    Executable,
}

/// Provides files by their build IDs.
pub trait DebugServer: fmt::Debug + Send {
    /// Writes a file to `file`, which is empty. False if there is none, or not all of it could be
    /// written; the implementation reports why.
    fn get(&mut self, build_id: &[u8], kind: ServedFile, file: &mut File) -> bool;
}

/// A server that several users share.
pub type SharedServer = Arc<Mutex<dyn DebugServer>>;

/// Downloads a file. `None` if there is none; an error if it has another build ID.
pub(crate) fn download(
    server: &SharedServer,
    build_id: &[u8],
    kind: ServedFile,
) -> Result<Option<File>, ()> {
    if build_id.is_empty() {
        return Ok(None);
    }
    let Ok(mut file) = nameless() else {
        return Ok(None);
    };
    let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
    if !server.get(build_id, kind, &mut file) {
        return Ok(None);
    }
    let found = match kind {
        ServedFile::DebugInfo => module::build_id(&file),
        ServedFile::Executable => module::code_build_id(&file),
    };
    let is_same = found.is_some_and(|found| found == build_id);
    is_same.then_some(Some(file)).ok_or(())
}

impl Answer {
    /// Returns true if functions are missing, or the source files of all of them.
    pub(crate) fn lacks_debug_info(&self) -> bool {
        let sources = self.functions.iter().flatten().map(|it| &it.file);
        self.functions.iter().any(Vec::is_empty) || sources.into_iter().all(String::is_empty)
    }

    /// Replaces functions by those of `other`, where it has some.
    pub(crate) fn prefer(&mut self, other: Self) {
        let both = self.functions.iter_mut().zip(other.functions);
        for (functions, others) in both.filter(|(_, others)| !others.is_empty()) {
            *functions = others;
        }
    }
}
