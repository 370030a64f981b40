//! Resolves function names: from the symbols and DWARF of files, from separate debug files
//! (`/usr/lib/debug`, by build ID and by debug link), and from the kernel.
//!
//! A target's files are not trusted. They are copied and never mapped, because the target could
//! truncate them; a worker process with limits on time and memory decodes them. At paths in them,
//! only regular ELF files are opened, and only those with the expected checksum or ID are used.
//!
//! Names are demangled (Rust, C++, D), and functions that were inlined at an address are listed one by
//! one. `blazesym` does the decoding, and `addr2line` that of debug information in several files.

mod answer;
mod copy;
mod debug_file;
mod decompress;
mod demangle;
mod find;
mod fuzzed;
mod identity;
mod kernel;
mod linkage;
mod living;
mod parts;
mod related;
mod resolve;
mod server;
mod several_files;
mod supplement;
mod vdso;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use otelctx_sample::{Function, Identity, Module, ModuleFiles, SymbolQuery, Symbolizer as _};
use otelctx_worker::{self as worker, Failure as WorkerFailure, Limits};

pub use find::find_files;
#[doc(hidden)]
pub use fuzzed::{
    debug_file_places, decompress_in_place, demangled, functions_in_several_files, section_contents,
};
pub use kernel::loaded_modules;
#[doc(hidden)]
pub use parts::debug_info_parts;
pub use server::{DebugServer, ServedFile, SharedServer};

use answer::Answer;
use copy::Copy;
use debug_file::{DebugFile, Places};
use kernel::KernelSymbols;
use living::LivingFiles;
use resolve::{Sources, in_file};

/// Maximum number of files whose lack of symbols is remembered.
const MAX_WITHOUT_SYMBOLS: usize = 4096;
/// Maximum number of failures that are listed: a caller may decode files for months.
const MAX_FAILURES: usize = 4096;

/// The linker name of the function that the stub at an address of an ELF file calls, for the fuzz target.
#[doc(hidden)]
#[must_use]
pub fn called_by_stub(file: &File, address: u64) -> Option<String> {
    linkage::stubs(file, &[address]).remove(0)
}

/// The size of the file that `.gnu_debugdata` of an ELF file contains, in bytes, for the fuzz target. `None` if there is
/// none, or it is malformed.
#[doc(hidden)]
#[must_use]
pub fn debug_data_size(file: &File) -> Option<u64> {
    copy::Copy::of(file, None).ok()?.debug_data()?.size().ok()
}

/// Resolves functions for a profile.
///
/// Cheap to create. A module is decoded in a worker process when it is queried. The identity of the
/// last module is cached, because it is queried next, and the kernel's list of functions once it is read.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    files: ModuleFiles,
    without_functions: bool,
    without_compressed_lines: bool,
    without_debug_info: bool,
    /// Directories that are searched before the default ones.
    debug_directories: Vec<PathBuf>,
    server: Option<SharedServer>,
    /// The files of living processes, if they may be searched; empty until they are needed.
    living: Option<Arc<OnceLock<LivingFiles>>>,
    last: Option<(Module, Identity)>,
    kernel: KernelSymbols,
    /// True once no further functions are wanted.
    is_abandoned: Arc<AtomicBool>,
    limits: Limits,
    failures: Vec<Failure>,
    /// Files without symbols, each with where its debug file was searched.
    without_symbols: HashMap<Module, Vec<String>>,
}

/// A file that exists but whose functions could not be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The file's path as its process sees it.
    pub path: String,
    /// The reason.
    pub reason: FailureReason,
    /// The name of the file that was not found, as the debug information has it; empty with other reasons.
    pub missing: String,
}

/// The reason why the functions of a file could not be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureReason {
    /// Its debug information or symbols are malformed, or compressed in an unknown way.
    Malformed,
    /// Decoding took too much memory, or was nested too deeply.
    TooLarge,
    /// Decoding took too long.
    TooLong,
    /// The worker process could not be started.
    NoProcess,
    /// It was written to after it was mapped: it has other code now.
    Changed,
    /// Its debug information from the server cannot be decoded, or is that of another file.
    Downloaded,
    /// A `.dwo` file with a part of its debug information was not found, nor a `.dwp` file: inlined functions are missing.
    NoSplitFile,
    /// The supplementary file of its debug information (dwz) was not found: names and inlined functions are missing.
    NoSupplementaryFile,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        let missing = &self.missing;
        let reason = match self.reason {
            FailureReason::Downloaded => {
                return write!(
                    f,
                    "{path}: its debug information from the server is not usable"
                );
            }
            FailureReason::NoSplitFile => {
                return write!(
                    f,
                    "{path}: no inlined functions: neither {missing} nor a .dwp file was found"
                );
            }
            FailureReason::NoSupplementaryFile => {
                return write!(
                    f,
                    "{path}: fewer names and no inlined functions: the supplementary debug file {missing} was not found"
                );
            }
            FailureReason::Malformed => {
                "its symbols are malformed, or compressed in an unknown way"
            }
            FailureReason::TooLarge => "decoding its symbols took too much memory",
            FailureReason::TooLong => "decoding its symbols took too long",
            FailureReason::NoProcess => "the worker process could not be started",
            FailureReason::Changed => "the file was overwritten after it had been mapped",
        };
        write!(f, "{path}: no function names: {reason}")
    }
}

impl Symbols {
    /// Creates a symbolizer for files, separate debug files and the kernel.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Also searches `directory` for separate debug files, before the default ones: by build ID in
    /// its `.build-id`, and by debug link in the directory that mirrors the module's or in `directory`
    /// itself; and for the module with its symbols, by its path or file name. Files there
    /// are trusted, and must not change during use.
    #[must_use]
    pub fn debug_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.debug_directories.insert(0, directory.into());
        self
    }

    /// Also asks `server` for the debug information of files whose functions or source files are not
    /// known otherwise.
    #[must_use]
    pub fn debug_server(mut self, server: SharedServer) -> Self {
        self.server = Some(server);
        self
    }

    /// Also searches all living processes for files that are neither kept, nor mapped by the process of the query, nor
    /// at their paths: by their build IDs, once, for at most ten seconds.
    #[must_use]
    pub fn search_processes(mut self) -> Self {
        self.living = Some(Arc::default());
        self
    }

    /// Decodes no files: resolves only their identities, and the functions of the kernel and of the vDSO, which cannot be
    /// resolved later.
    #[must_use]
    pub fn without_functions(mut self) -> Self {
        self.without_functions = true;
        self
    }

    /// Reads only the symbol tables of separate debug files whose debug information is compressed: their
    /// functions have names, but no source lines and no inlined calls. Of a file of glibc's, decompressing
    /// takes ten times as long as all else.
    #[must_use]
    pub fn without_compressed_lines(mut self) -> Self {
        self.without_compressed_lines = true;
        self
    }

    /// Reads only symbol tables: functions have names, but no source lines and no inlined calls, and nothing is downloaded.
    /// Of large files, debug information takes up to a hundred times as long.
    #[must_use]
    pub fn without_debug_info(mut self) -> Self {
        self.without_debug_info = true;
        self
    }

    /// Prefers these files, which were opened while they were mapped.
    #[must_use]
    pub fn files(mut self, files: ModuleFiles) -> Self {
        self.files = files;
        self
    }

    /// Resolves no further functions of files once another thread has set this: they have none, soon after that.
    #[must_use]
    pub fn abandoned_by(mut self, is_abandoned: Arc<AtomicBool>) -> Self {
        self.is_abandoned = is_abandoned;
        self
    }

    /// Limits the memory of each child process that decodes a file, in bytes: 4 GiB by default. A file that needs more has no names.
    #[must_use]
    pub const fn worker_memory(mut self, bytes: u64) -> Self {
        self.limits.memory = bytes;
        self
    }

    /// The files whose functions could not be resolved, in the order in which they were queried: the first 4096.
    #[must_use]
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// If the file of a module that was queried has no symbols but exported ones: the paths at which its debug
    /// file was searched, without success. Of many such files, the first 4,096 are known.
    #[must_use]
    pub fn without_symbols(&self, module: &Module) -> Option<&[String]> {
        self.without_symbols
            .get(&one_of_copies(module))
            .map(Vec::as_slice)
    }

    /// Resolves the functions of several modules, each as
    /// [`functions`](otelctx_sample::Symbolizer::functions) does. They are
    /// decoded in one worker process, and one by one if that fails.
    pub fn functions_of_all(
        &mut self,
        queries: &[(SymbolQuery<'_>, &[u64])],
    ) -> Vec<Vec<Vec<Function>>> {
        let has_usable_file = |module: &Module| {
            let is_changed = || self.files.contains(module) && self.files.get(module).is_none();
            module.has_file() && !module.is_kernel() && !is_changed()
        };
        let is_decoded = |query: &&(SymbolQuery<'_>, &[u64])| {
            !self.without_functions && has_usable_file(query.0.module)
        };
        let is_decoded: Vec<bool> = queries.iter().map(|query| is_decoded(&query)).collect();
        let with_files = queries.iter().zip(&is_decoded).filter(|it| *it.1);
        let with_files: Vec<_> = with_files.map(|(query, _)| *query).collect();
        let decoded = (with_files.len() > 1).then(|| self.decode(&with_files, true, None));
        let mut decoded = decoded.and_then(Result::ok).into_iter().flatten();
        let both = queries.iter().zip(is_decoded);
        let functions = both.map(|((query, offsets), is_decoded)| {
            match is_decoded.then(|| decoded.next()).flatten() {
                Some(answer) => self.of_file(*query, offsets, Some(answer)).functions,
                None => self.functions(*query, offsets),
            }
        });
        functions.collect()
    }

    /// Decodes the files of modules in a worker process.
    fn decode(
        &self,
        queries: &[(SymbolQuery<'_>, &[u64])],
        with_dwarf: bool,
        downloaded: Option<&File>,
    ) -> Result<Vec<Answer>, WorkerFailure> {
        // Before the fork, because a worker process takes no lock.
        let kept: Vec<_> = queries.iter().map(|it| self.kept_file(it.0)).collect();
        let bytes = worker::run_unless(&self.is_abandoned, self.limits, |pipe| {
            let mut both = queries.iter().zip(&kept);
            both.try_for_each(|(query, kept)| {
                let answer = self.answer(*query, kept.as_deref(), with_dwarf, downloaded)?;
                answer.write(pipe)
            })
        })?;
        let answers = Answer::read(&bytes).filter(|answers| answers.len() == queries.len());
        answers.ok_or(WorkerFailure::Died)
    }

    /// The file of a module, if it was kept. If living processes may be searched, also any other.
    fn kept_file(&self, query: SymbolQuery<'_>) -> Option<Arc<File>> {
        let kept = self.files.get(query.module);
        kept.or_else(|| {
            let living = self.living.as_ref()?;
            let build_id = &query.module.build_id;
            if build_id.is_empty() {
                return None;
            }
            let search = || living.get_or_init(LivingFiles::search).open(build_id);
            identity::open(query, None).or_else(search).map(Arc::new)
        })
    }

    /// Decodes the file of a module, in the worker process.
    ///
    /// # Errors
    /// If it is too large.
    fn answer(
        &self,
        (query, offsets): (SymbolQuery<'_>, &[u64]),
        kept: Option<&File>,
        with_dwarf: bool,
        downloaded: Option<&File>,
    ) -> io::Result<Answer> {
        let mut searched = None;
        let directories = &self.debug_directories[..];
        let found = in_file(query, kept, offsets, directories, |copy| {
            if let Some(copy) = downloaded.and_then(|file| Copy::of(file, None).ok()) {
                return Sources {
                    debug_file: Some(DebugFile::Copied(copy)),
                    with_dwarf,
                };
            }
            let places = Places::of(copy, query.module, directories);
            let debug_file = places.find(query.module).and_then(DebugFile::at);
            let debug_file = debug_file.or_else(|| {
                let copy = Copy::of(&places.open_beside(query)?, None);
                copy.ok().map(DebugFile::Copied)
            });
            if debug_file.is_none() && !copy.has_symbols {
                let text = |path: &PathBuf| path.to_string_lossy().into_owned();
                searched = Some(places.all().map(text).collect());
            }
            let path = debug_file.as_ref().map(DebugFile::path);
            let is_compressed = || path.as_deref().is_some_and(debug_file::is_compressed);
            let is_left_out =
                self.without_debug_info || self.without_compressed_lines && is_compressed();
            Sources {
                debug_file,
                with_dwarf: with_dwarf && !is_left_out,
            }
        });
        let found = found?.unwrap_or_default();
        Ok(Answer {
            identity: identity::of(query, kept),
            functions: found.functions,
            is_broken: found.is_broken,
            searched,
            missing_object: found.missing_object,
            missing_supplement: found.missing_supplement,
        })
    }

    /// The functions of a module with a file. `answer` has them if they were decoded before.
    fn of_file(
        &mut self,
        query: SymbolQuery<'_>,
        offsets: &[u64],
        answer: Option<Answer>,
    ) -> Answer {
        let was_kept = self.files.contains(query.module);
        if was_kept && self.files.get(query.module).is_none() {
            // The file at its path is the same one: without a build ID, its inode identifies it.
            return self.of_changed_file(query, offsets);
        }
        let child = |with_dwarf, downloaded: Option<&File>| {
            let answers = self.decode(&[(query, offsets)], with_dwarf, downloaded);
            answers.map(|mut answers| answers.remove(0))
        };
        let mut answer = answer.map_or_else(|| child(true, None), Ok);
        let (mut is_refused, mut is_downloaded) = (false, false);
        if let (Ok(local), Some(server)) = (&mut answer, &self.server)
            && !(offsets.is_empty() || self.without_debug_info)
            && local.lacks_debug_info()
        {
            let (build_id, kind) = (&query.module.build_id, ServedFile::DebugInfo);
            let usable = match server::download(server, build_id, kind) {
                Ok(None) => true,
                Ok(Some(file)) => {
                    let better = child(true, Some(&file)).ok();
                    let better = better.filter(|it| !it.is_broken);
                    is_downloaded = better.map(|better| local.prefer(better)).is_some();
                    is_downloaded
                }
                Err(()) => false,
            };
            is_refused = !usable;
        }
        let reason = match &answer {
            Ok(answer) if !answer.is_broken => None,
            Ok(_) => Some(FailureReason::Malformed),
            Err(WorkerFailure::TimedOut) => Some(FailureReason::TooLong),
            Err(WorkerFailure::NotStarted) => Some(FailureReason::NoProcess),
            Err(_) => Some(FailureReason::TooLarge),
        };
        // The symbols may be well-formed even if the DWARF is not.
        let answer = answer.or_else(|_| child(false, None));
        let refused = is_refused.then_some(FailureReason::Downloaded);
        let reasons = refused.into_iter().chain(reason);
        for reason in reasons {
            self.add_failure(query.module, reason, String::new());
        }
        if let Ok(answer) = &answer {
            self.add_missing(query.module, answer);
        }
        let has_no_hash = |answer: &Answer| answer.identity.htlhash.is_none();
        if was_kept && answer.as_ref().is_ok_and(has_no_hash) {
            return self.of_changed_file(query, offsets);
        }
        let mut answer = answer.unwrap_or_else(|_| Answer {
            identity: Identity::by_build_id(query.module),
            ..Answer::default()
        });
        answer.functions.resize(offsets.len(), Vec::new());
        if let Some(searched) = answer.searched.take().filter(|_| !is_downloaded)
            && self.without_symbols.len() < MAX_WITHOUT_SYMBOLS
        {
            let file = one_of_copies(query.module);
            self.without_symbols.insert(file, searched);
        }
        answer
    }

    /// Lists the files that belong to the debug information of a module, and were not found.
    fn add_missing(&mut self, module: &Module, answer: &Answer) {
        let object = (FailureReason::NoSplitFile, &answer.missing_object);
        let supplement = (
            FailureReason::NoSupplementaryFile,
            &answer.missing_supplement,
        );
        for (reason, missing) in [object, supplement] {
            if let Some(missing) = missing {
                self.add_failure(module, reason, missing.clone());
            }
        }
    }

    /// Lists a file, unless there are very many by now.
    fn add_failure(&mut self, module: &Module, reason: FailureReason, missing: String) {
        if self.failures.len() < MAX_FAILURES {
            self.failures.push(Failure {
                path: module.path.clone(),
                reason,
                missing,
            });
        }
    }

    /// The answer for a file that was kept open, but has other content now.
    fn of_changed_file(&mut self, query: SymbolQuery<'_>, offsets: &[u64]) -> Answer {
        let path = &query.module.path;
        // Runtimes generate code in memory with a name like this.
        if !offsets.is_empty() && !path.starts_with("/memfd:") {
            self.add_failure(query.module, FailureReason::Changed, String::new());
        }
        Answer {
            identity: Identity::by_build_id(query.module),
            functions: vec![Vec::new(); offsets.len()],
            ..Answer::default()
        }
    }
}

/// The same for all copies of a file that have its build ID, of which one is decoded.
fn one_of_copies(module: &Module) -> Module {
    match &module.build_id[..] {
        [] => module.clone(),
        build_id => Module {
            build_id: build_id.to_vec(),
            ..Module::default()
        },
    }
}

impl otelctx_sample::Symbolizer for Symbols {
    fn functions(&mut self, query: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        if query.module.is_kernel() {
            return self.kernel.functions(addresses);
        }
        if !query.module.has_file() {
            let named = vdso::functions(query, addresses);
            return named.unwrap_or_else(|| vec![Vec::new(); addresses.len()]);
        }
        if self.without_functions {
            return vec![Vec::new(); addresses.len()];
        }
        let answer = self.of_file(query, addresses, None);
        self.last = Some((query.module.clone(), answer.identity));
        answer.functions
    }

    fn identity(&mut self, query: SymbolQuery<'_>) -> Identity {
        match &self.last {
            Some((module, identity)) if module == query.module => identity.clone(),
            _ if query.module.has_file() => self.of_file(query, &[], None).identity,
            _ => identity::of(query, None),
        }
    }
}
