//! The ELF modules that a process has loaded.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Instant;

use crate::elf::{self, Elf, ElfError, ElfSymbol, Source, SymbolKind};
use crate::file::FileBytes;
use crate::file_cache::{Fact, FileCache, FileFacts, FileKey, MAX_READ, read_within};
use crate::libc::{self, CLibrary, PthreadKeys, ThreadDb, glibc};
use crate::mappings::Mapping;
use crate::module::{Module, ModuleFile};
use crate::target::{CodeLayout, CodeLayoutBuilder, Target};
use crate::{Device, Error};

/// Maximum number of modules read of one process; browsers load a few hundred.
const MAX_MODULES: usize = 16 * 1024;

/// Maximum size of the names of these modules, in bytes; a path has at most 4096 bytes, each of
/// which takes at most four when escaped.
const MAX_NAMES: usize = 8 << 20;

/// Maximum number of bytes read of the modules of one process, several hundred times the size of a
/// large browser's tables: about half a second of work. Cached facts cost nothing.
const MAX_COST: u64 = 1 << 30;

fn deadline_passed(target: &dyn Target) -> Error {
    let name = target.name().to_string_lossy().into_owned();
    Error::Deadline { name }
}

/// An ELF module, and where a process has loaded it.
#[derive(Debug, Clone)]
pub struct LoadedModule {
    /// The file that it was loaded from.
    pub file: Arc<ModuleFile>,
    /// The load bias: the difference between addresses in the process and in the module.
    pub bias: u64,
    /// The name of its mapping, as the kernel wrote it.
    pub name: OsString,
    /// First address of its first mapping, which normally contains its ELF header.
    pub start: u64,
    /// The first address after its first mapping.
    pub end: u64,
    /// The device of its file, from the mapping.
    pub device: Device,
    /// The inode of its file, from the mapping.
    pub inode: u64,
    facts: FileFacts,
    /// `None` if its file could not be opened: its facts are from the loaded memory.
    key: Option<FileKey>,
}

impl LoadedModule {
    /// Whether an address of the process lies within the module.
    pub fn contains(&self, address: u64) -> bool {
        let start = self.bias.wrapping_add(self.file.first_load.address);
        let end = self.bias.wrapping_add(self.file.end);
        (start..end).contains(&address)
    }

    /// A fact about the module's file: computed by `read` the first time, and stored in the
    /// [`FileCache`] for every process that has the file mapped. A type can be stored under several
    /// names, for facts that depend on a name, such as that of a variable.
    ///
    /// `read` is passed the file, or the loaded memory if the file cannot be opened (deleted or
    /// replaced, and no permission for `/proc/PID/map_files`), which has no sections and no
    /// `.symtab`. At most 256 MiB are read.
    ///
    /// # Errors
    /// [`Error::Elf`] if the module cannot be read; errors are stored as well.
    pub fn fact<T: Any + Send + Sync>(
        &self,
        target: &dyn Target,
        name: &str,
        read: impl FnOnce(&Elf<'_>) -> Result<T, ElfError>,
    ) -> Result<Arc<T>, Error> {
        let fact = match self.facts.get(name) {
            Some(known) => known,
            None => {
                let (result, _) = self.read_within(target, read);
                let fact = result.map(|fact| fact.map(Arc::new));
                self.facts.keep(name, &fact);
                fact
            }
        };
        self.readable(fact)
    }

    /// Calls `read` with the module, see [`Self::fact`], without storing the result.
    ///
    /// # Errors
    /// [`Error::Elf`] if the module cannot be read.
    pub fn read<T>(
        &self,
        target: &dyn Target,
        read: impl FnOnce(&Elf<'_>) -> Result<T, ElfError>,
    ) -> Result<T, Error> {
        self.readable(self.read_within(target, read).0)
    }

    /// The definition of `name` in its symbol tables: `.dynsym`, or else `.symtab`. Computed once
    /// per file.
    ///
    /// # Errors
    /// [`Error::Elf`] if the module cannot be read.
    pub fn symbol(&self, target: &dyn Target, name: &str) -> Result<Option<ElfSymbol>, Error> {
        let symbol: Arc<Option<ElfSymbol>> =
            self.fact(target, name, |elf| elf.symbol(name.as_bytes()))?;
        Ok(*symbol)
    }

    /// The definition of `name` in `.dynsym`. Unlike [`Self::symbol`], this is very cheap for
    /// modules that do not export it. Computed once per file.
    ///
    /// # Errors
    /// [`Error::Elf`] if the module cannot be read.
    pub fn exported(&self, target: &dyn Target, name: &str) -> Result<Option<ElfSymbol>, Error> {
        struct Exported(Option<ElfSymbol>);
        let symbol = self.fact(target, name, |elf| {
            elf.exported_symbol(name.as_bytes()).map(Exported)
        })?;
        Ok(symbol.0)
    }

    /// The address of the symbol `name` in the process: a variable or a function. `None` if the
    /// module does not define it, or defines it as a thread-local variable, which has an address
    /// for each thread: see [`tls`](crate::tls).
    ///
    /// # Errors
    /// [`Error::Elf`] if the module cannot be read.
    pub fn address_of(&self, target: &dyn Target, name: &str) -> Result<Option<u64>, Error> {
        let symbol = self.symbol(target, name)?;
        let symbol = symbol.filter(|symbol| symbol.kind != SymbolKind::ThreadLocal);
        Ok(symbol.map(|symbol| self.bias.wrapping_add(symbol.value)))
    }

    /// The build ID of its file, if there is one. Computed once per file.
    ///
    /// # Errors
    /// [`Error::Elf`] if the module cannot be read.
    pub fn build_id(&self, target: &dyn Target) -> Result<Option<Vec<u8>>, Error> {
        struct BuildId(Option<Vec<u8>>);
        let id = self.fact(target, "", |elf| elf.build_id().map(BuildId))?;
        Ok(id.0.clone())
    }

    fn readable<T>(&self, result: Result<Option<T>, String>) -> Result<T, Error> {
        let reason = match result {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => "it is not an ELF file".to_owned(),
            Err(reason) => reason,
        };
        let path = self.name.clone().into();
        Err(Error::Elf { path, reason })
    }

    fn read_within<T>(
        &self,
        target: &dyn Target,
        read: impl FnOnce(&Elf<'_>) -> Result<T, ElfError>,
    ) -> (Result<Option<T>, String>, u64) {
        let range = (self.start, self.end);
        let file = || target.mapped_file(range, self.name.as_bytes(), self.device, self.inode);
        match self.key.map(|key| (key, file())) {
            None => read_within(MAX_READ, Source::Loaded(target, self.start), read),
            Some((key, Ok(file))) if FileKey::of(&file).is_ok_and(|now| now == key) => {
                read_within(MAX_READ, Source::File(&FileBytes(&file)), read)
            }
            Some(_) => (Err("its file has changed or is gone".to_owned()), 0),
        }
    }
}

/// The modules that a process has loaded.
#[derive(Debug)]
pub struct Modules {
    /// The modules that could be read, in address order.
    pub loaded: Vec<LoadedModule>,
    /// The modules that could not be read, with the reason.
    pub unreadable: Vec<(OsString, String)>,
    /// The code that was mapped when they were read: compare with [`Target::code_layout`] to find
    /// out whether modules were loaded or unloaded since.
    pub layout: CodeLayout,
}

impl Modules {
    /// Reads the modules that a process has loaded: one walk over its mappings, and the facts that
    /// are not cached yet for each file.
    ///
    /// # Errors
    /// If the mappings cannot be read, or the target's deadline has passed.
    #[doc(alias = "dl_iterate_phdr")]
    pub fn read(target: &dyn Target, cache: &FileCache) -> Result<Self, Error> {
        Self::read_named(target, cache, &|_| true)
    }

    /// Reads only the modules for whose names `wanted` returns true. The names are those of the
    /// mappings, as the kernel wrote them. The files of other modules are not opened.
    ///
    /// # Errors
    /// See [`Modules::read`].
    pub fn read_named(
        target: &dyn Target,
        cache: &FileCache,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Self, Error> {
        let mut loaded = Vec::new();
        let read = |facts: &FileFacts, source: Source<'_>| {
            let known = facts.get(FILE).map(|fact| (fact, 0));
            known.unwrap_or_else(|| facts.compute(FILE, source, ModuleFile::of))
        };
        let keep = |module: Place, file| loaded.push(module.at(file));
        let (unreadable, layout) = visit(MAX_COST, target, cache, wanted, read, keep)?;
        Ok(Modules {
            loaded,
            unreadable,
            layout,
        })
    }

    /// The C library of the process, if one of its modules is a supported one.
    pub fn c_library(&self) -> Option<CLibrary> {
        libc::FileFacts::c_library(self.loaded.iter().map(|module| &module.file.libc))
    }

    /// glibc's description of its own structures; `None` if none of the modules has it. Read once
    /// per file.
    ///
    /// # Errors
    /// [`Error::Elf`] if the module that should have it cannot be read.
    pub fn thread_db(&self, target: &dyn Target) -> Result<Option<Arc<ThreadDb>>, Error> {
        for module in &self.loaded {
            let file = &module.file;
            let is_static = file.executable && !file.interpreter;
            let is_threads = file.soname.as_deref() == Some(glibc::THREADS_SONAME);
            if file.libc.library != Some(CLibrary::Glibc) && !is_threads && !is_static {
                continue;
            }
            let table = module.fact(target, FILE, ThreadDb::of)?;
            if !table.is_empty() {
                return Ok(Some(table));
            }
        }
        Ok(None)
    }

    /// Where the threads store their values of `pthread_setspecific`; `None` if the C library is
    /// unknown or does not describe it.
    ///
    /// # Errors
    /// [`Error::Elf`] if the module that should describe it cannot be read.
    pub fn pthread_keys(&self, target: &dyn Target) -> Result<Option<PthreadKeys>, Error> {
        let machine = target.machine();
        if self.c_library() == Some(CLibrary::Musl) {
            return Ok(PthreadKeys::of_musl(machine));
        }
        let Some(table) = self.thread_db(target)? else {
            return Ok(None);
        };
        let keys = self.address_of(target, "__pthread_keys");
        Ok(keys.and_then(|(_, keys)| PthreadKeys::of_glibc(&table, machine, keys)))
    }

    /// The first module that defines `name`, and the symbol's address in the process, see
    /// [`LoadedModule::address_of`]. Modules that cannot be read are skipped.
    #[doc(alias = "dlsym")]
    pub fn address_of(&self, target: &dyn Target, name: &str) -> Option<(&LoadedModule, u64)> {
        self.loaded.iter().find_map(|module| {
            let address = module.address_of(target, name).ok()??;
            Some((module, address))
        })
    }

    /// The module whose mapping has this name.
    pub fn named(&self, name: &OsStr) -> Option<&LoadedModule> {
        self.loaded.iter().find(|module| module.name == name)
    }
}

/// The name of facts that depend only on the file.
const FILE: &str = "";

/// A module, and its file's facts about one thread-local variable.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) module: Arc<Module>,
    /// The load bias.
    pub(crate) bias: u64,
    /// The name of its mapping.
    pub(crate) name: OsString,
}

impl Loaded {
    /// Whether an address of the process lies within the module.
    pub(crate) fn contains(&self, address: u64) -> bool {
        let start = self.bias.wrapping_add(self.module.first_load.address);
        let end = self.bias.wrapping_add(self.module.end);
        (start..end).contains(&address)
    }
}

/// Modules, with their facts about one thread-local variable.
#[derive(Debug)]
pub(crate) struct TlsModules {
    pub(crate) loaded: Vec<Loaded>,
    pub(crate) unreadable: Vec<(OsString, String)>,
    pub(crate) layout: CodeLayout,
}

/// Reads the facts of every module of the process about the thread-local variable `name`.
pub(crate) fn tls_modules(
    target: &dyn Target,
    cache: &FileCache,
    name: &str,
) -> Result<TlsModules, Error> {
    tls_modules_within(MAX_COST, target, cache, name)
}

fn tls_modules_within(
    limit: u64,
    target: &dyn Target,
    cache: &FileCache,
    name: &str,
) -> Result<TlsModules, Error> {
    let mut loaded = Vec::new();
    let read = |facts: &FileFacts, source: Source<'_>| {
        if let Some(known) = facts.get(name) {
            return (known, 0);
        }
        facts.compute(name, source, |elf| {
            let file = match facts.get(FILE) {
                Some(Ok(Some(file))) => file,
                _ => {
                    let file = Arc::new(ModuleFile::of(elf)?);
                    facts.keep(FILE, &Ok(Some(file.clone())));
                    file
                }
            };
            Module::of(elf, file, name)
        })
    };
    let all = &|_: &[u8]| true;
    let (unreadable, layout) = visit(
        limit,
        target,
        cache,
        all,
        read,
        |place, module: Arc<Module>| {
            let Place { run, bias, .. } = place;
            loaded.push(Loaded {
                module,
                bias,
                name: OsString::from_vec(run.name),
            });
        },
    )?;
    Ok(TlsModules {
        loaded,
        unreadable,
        layout,
    })
}

/// Where a module is, and its file's facts.
struct Place {
    run: Run,
    bias: u64,
    facts: FileFacts,
    key: Option<FileKey>,
}

impl Place {
    fn at(self, file: Arc<ModuleFile>) -> LoadedModule {
        LoadedModule {
            file,
            bias: self.bias,
            name: OsString::from_vec(self.run.name),
            start: self.run.start,
            end: self.run.end,
            device: self.run.device,
            inode: self.run.inode,
            facts: self.facts,
            key: self.key,
        }
    }
}

/// Consecutive mappings of one file: what a dynamic linker creates for a module. There may be
/// memory without a file (zeroed data) between them.
#[derive(Debug)]
struct Run {
    start: u64,
    end: u64,
    /// File offset of the last mapping.
    last_offset: u64,
    device: Device,
    inode: u64,
    /// The name of the first executable mapping.
    name: Vec<u8>,
    /// Address and file offset of the first executable mapping. It certainly belongs to the module,
    /// unlike earlier mappings, which a symbolizer may have created.
    code: Option<(u64, u64)>,
}

impl Run {
    fn new(mapping: &Mapping<'_>) -> Self {
        Run {
            start: mapping.start,
            end: mapping.end,
            last_offset: mapping.offset,
            device: mapping.device,
            inode: mapping.inode,
            name: name(mapping),
            code: code(mapping),
        }
    }

    /// Whether the mapping belongs to the same loaded module: the same file, at a later offset.
    /// Small segments share a page of the file, which is mapped for each of them.
    fn takes(&self, mapping: &Mapping<'_>) -> bool {
        self.inode == mapping.inode
            && self.device == mapping.device
            && mapping.offset >= self.last_offset
    }
}

/// The name of an executable mapping; others may have no name.
fn name(mapping: &Mapping<'_>) -> Vec<u8> {
    match mapping.permissions.execute {
        true => mapping.name.to_vec(),
        false => Vec::new(),
    }
}

fn code(mapping: &Mapping<'_>) -> Option<(u64, u64)> {
    let executable = mapping.permissions.execute;
    executable.then_some((mapping.start, mapping.offset))
}

/// Finds the modules: runs of mappings of one file of which one is executable. Also returns the
/// number of skipped modules.
fn runs(target: &dyn Target) -> Result<(Vec<Run>, u64, CodeLayout), Error> {
    let mut runs = Vec::new();
    let mut left_out = 0;
    let mut names = 0;
    let mut current: Option<Run> = None;
    let mut layout = CodeLayoutBuilder::default();
    let mut keep = |run: Option<Run>| {
        if let Some(run) = run.filter(|run| run.code.is_some()) {
            names += run.name.len();
            if runs.len() < MAX_MODULES && names <= MAX_NAMES {
                runs.push(run)
            } else {
                left_out += 1
            }
        }
    };
    target.file_mappings(&mut |mapping| {
        layout.add(mapping);
        match &mut current {
            Some(run) if run.takes(mapping) => {
                run.last_offset = mapping.offset;
                if run.code.is_none() {
                    run.name = name(mapping);
                    run.code = code(mapping);
                }
            }
            current => keep(current.replace(Run::new(mapping))),
        }
    })?;
    keep(current);
    Ok((runs, left_out, layout.finish()))
}

/// Calls `keep` with each module of the process with a wanted name and a fact about its file, which
/// `read` looks up or computes within its cost. Returns the modules that could not be read, and the
/// layout.
fn visit<T: AsRef<ModuleFile>>(
    limit: u64,
    target: &dyn Target,
    cache: &FileCache,
    wanted: &dyn Fn(&[u8]) -> bool,
    read: impl Fn(&FileFacts, Source<'_>) -> (Fact<T>, u64),
    mut keep: impl FnMut(Place, Arc<T>),
) -> Result<(Vec<(OsString, String)>, CodeLayout), Error> {
    let (runs, mut left_out, layout) = runs(target)?;
    let unlisted = target.unlisted().map(|why| (target.name(), why));
    let mut unreadable = Vec::from_iter(unlisted);
    let mut total_cost = 0_u64;
    let is_late = || {
        let deadline = target.deadline();
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
    };
    for run in runs {
        if !wanted(&run.name) {
            continue;
        }
        if is_late() {
            return Err(deadline_passed(target));
        }
        if total_cost > limit {
            left_out += 1;
            continue;
        }
        let range = (run.start, run.end);
        let file = target.mapped_file(range, &run.name, run.device, run.inode);
        let (facts, key, (fact, cost)) = match file {
            Ok(file) => match FileKey::of(&file) {
                Ok(key) => {
                    let facts = cache.facts(key);
                    let fact = read(&facts, Source::File(&FileBytes(&file)));
                    (facts, Some(key), fact)
                }
                Err(error) => (FileFacts::default(), None, (Err(error.to_string()), 0)),
            },
            // Deleted or replaced, and no permission for map_files: the loaded memory has the same
            // data, except for .symtab.
            Err(why) => {
                let facts = FileFacts::default();
                let (fact, cost) = read(&facts, Source::Loaded(target, run.start));
                let fact = fact.map_err(|error| match why {
                    Some(why) => format!("{why}, and {error}"),
                    None => error,
                });
                (facts, None, (fact, cost))
            }
        };
        total_cost = total_cost.saturating_add(cost);
        match fact {
            Ok(Some(fact)) => {
                let module: &ModuleFile = (*fact).as_ref();
                let (Some((start, offset)), code) = (run.code, module.first_code) else {
                    continue;
                };
                // The page of the file in which the segment starts is mapped with it.
                let before = code.offset.saturating_sub(offset);
                if before >= code.alignment.max(0x1000) || offset >= code.file_end() {
                    continue;
                }
                let bias = elf::bias(start, offset, &code);
                let place = Place {
                    run,
                    bias,
                    facts,
                    key,
                };
                keep(place, fact);
            }
            Ok(None) => {}
            Err(reason) => unreadable.push((OsString::from_vec(run.name), reason)),
        }
    }
    if left_out > 0 {
        let reason = format!(
            "{left_out} modules skipped, above the limit of {MAX_MODULES} modules, {} MiB of \
             names or {} MiB read",
            MAX_NAMES >> 20,
            limit >> 20
        );
        unreadable.push((target.name(), reason));
    }
    Ok((unreadable, layout))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::ops::ControlFlow;

    use super::*;
    use crate::mappings::Walk;
    use crate::memory::MemoryError;
    use crate::{LiveProcess, Machine, Memory, Process};

    #[test]
    fn modules_that_cost_too_much_are_left_out_and_counted() {
        let own = i32::try_from(std::process::id()).unwrap();
        let process = Process::open(own).unwrap();
        let memory = process.memory().unwrap();
        let target = LiveProcess::new(&process, &memory);
        let read = |limit, cache: &FileCache| {
            tls_modules_within(limit, &target, cache, "otel_thread_ctx_v1").unwrap()
        };
        let cache = FileCache::new();
        let one = read(0, &cache);
        assert_eq!((one.loaded.len(), one.unreadable.len()), (1, 1));
        assert!(one.unreadable[0].1.contains("modules skipped"));
        let all = read(MAX_COST, &cache);
        assert!(all.loaded.len() > 1);
        assert_eq!(all.unreadable, []);
        // Cached facts cost nothing.
        assert_eq!(read(0, &cache).loaded.len(), all.loaded.len());
        assert_eq!(all.layout, target.code_layout().unwrap());
    }

    /// Reading files takes its time, too.
    #[test]
    fn a_deadline_ends_a_read_before_the_next_module() {
        struct Late(Process);
        impl Memory for Late {
            fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryError> {
                panic!("there is no time for it")
            }
        }
        impl Target for Late {
            fn mappings(
                &self,
                visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
            ) -> Result<Walk, Error> {
                self.0.mappings(visit)
            }
            fn deadline(&self) -> Option<Instant> {
                Some(Instant::now())
            }
            fn mapped_file(
                &self,
                _: (u64, u64),
                _: &[u8],
                _: Device,
                _: u64,
            ) -> Result<File, Option<String>> {
                panic!("there is no time for it")
            }
            fn machine(&self) -> Machine {
                Machine::own()
            }
            fn name(&self) -> OsString {
                "late".into()
            }
        }
        let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let found = Modules::read(&Late(process), &FileCache::new());
        assert!(matches!(found, Err(Error::Deadline { name }) if name == "late"));
    }
}
