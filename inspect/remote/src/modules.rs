//! The ELF modules that a process has loaded.

mod open;
mod scan;

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::elf::{Elf, ElfError, ElfSymbol, Source, SymbolKind};
use crate::file_cache::{FileCache, FileFacts, FileKey, MAX_READ, read_within};
use crate::libc::{self, CLibrary, PthreadKeys, ThreadDb, glibc, musl};
use crate::machine::Machine;
use crate::module::ModuleFile;
use crate::target::{CodeLayout, Target};
use crate::threads::ThreadLists;
use crate::{Device, Error};
use open::OpenFile;
pub(crate) use open::OpenFiles;
pub(crate) use scan::{MAX_COST, Place, visit};

/// An ELF module that a process has loaded, and its address. Methods that read its file return
/// [`Error::Elf`] if that is not possible.
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
    open: Arc<OpenFiles>,
}

impl LoadedModule {
    /// Returns whether an address of the process lies within the module.
    pub fn contains(&self, address: u64) -> bool {
        self.file.contains(self.bias, address)
    }

    /// A fact about the module's file, which `read` computes once per [`FileCache`], type and name.
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
        let fact = self.facts.get(name).unwrap_or_else(|| {
            let (result, _) = self.read_within(target, read);
            let fact = result.map(|fact| fact.map(Arc::new));
            self.facts.keep(name, &fact);
            fact
        });
        self.readable(fact)
    }

    /// Calls `read` with the module, see [`Self::fact`], without storing the result.
    pub fn read<T>(
        &self,
        target: &dyn Target,
        read: impl FnOnce(&Elf<'_>) -> Result<T, ElfError>,
    ) -> Result<T, Error> {
        self.readable(self.read_within(target, read).0)
    }

    /// The definition of `name` in `.dynsym`, or else in `.symtab`. Computed once per file.
    pub fn symbol(&self, target: &dyn Target, name: &str) -> Result<Option<ElfSymbol>, Error> {
        let symbol: Arc<Option<ElfSymbol>> =
            self.fact(target, name, |elf| elf.symbol(name.as_bytes()))?;
        Ok(*symbol)
    }

    /// The definition of `name` in `.dynsym`: a cheaper [`Self::symbol`]. Computed once per file.
    pub fn exported(&self, target: &dyn Target, name: &str) -> Result<Option<ElfSymbol>, Error> {
        struct Exported(Option<ElfSymbol>);
        let symbol = self.fact(target, name, |elf| {
            elf.exported_symbol(name.as_bytes()).map(Exported)
        })?;
        Ok(symbol.0)
    }

    /// The definition of `name` in `.dynsym`, or in the `.symtab` of a program, unless its names
    /// have more than 4 MiB, which takes tens of milliseconds. Computed once per file.
    pub fn defined(&self, target: &dyn Target, name: &str) -> Result<Option<ElfSymbol>, Error> {
        const MAX_NAMES: u64 = 4 << 20;
        struct Defined(Option<ElfSymbol>);
        let exported = self.exported(target, name)?;
        if exported.is_some() || !self.file.executable {
            return Ok(exported);
        }
        let symbol = self.fact(target, name, |elf| match elf.size_of_names()? {
            1..=MAX_NAMES => elf.symbol(name.as_bytes()).map(Defined),
            _ => Ok(Defined(None)),
        })?;
        Ok(symbol.0)
    }

    /// The address in its headers of a section with this name. Of a module whose file cannot be opened, the place of
    /// `start`, the section's first bytes, in memory that can be written, at a multiple of 16. Computed once per file.
    pub fn section(
        &self,
        target: &dyn Target,
        name: &str,
        start: &[u8],
    ) -> Result<Option<u64>, Error> {
        struct Place(Option<u64>);
        let found = self.fact(target, name, |elf| {
            if !elf.is_file() {
                return elf.find_written(start).map(Place);
            }
            let section = elf.section_named(name.as_bytes())?;
            Ok(Place(section.map(|it| it.address)))
        })?;
        Ok(found.0)
    }

    /// Returns whether its file has this.
    fn has(&self, target: &dyn Target, marker: Marker<'_>) -> bool {
        match marker {
            Marker::Symbol(name) => matches!(self.defined(target, name), Ok(Some(_))),
            Marker::Section(name, start) => {
                matches!(self.section(target, name, start), Ok(Some(_)))
            }
        }
    }

    /// The address in the process of `name`, a variable or a function. `None` if the module does
    /// not define it, or as a thread-local variable: see [`tls`](crate::tls).
    pub fn address_of(&self, target: &dyn Target, name: &str) -> Result<Option<u64>, Error> {
        let symbol = self.symbol(target, name)?;
        let symbol = symbol.filter(|symbol| symbol.kind != SymbolKind::ThreadLocal);
        Ok(symbol.map(|symbol| self.bias.wrapping_add(symbol.value)))
    }

    /// The build ID of its file, if there is one. Computed once per file.
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
        let Some(key) = self.key else {
            return read_within(MAX_READ, Source::Loaded(target, self.start), read);
        };
        let range = (self.start, self.end);
        let open = || {
            let file = target.mapped_file(range, self.name.as_bytes(), self.device, self.inode);
            let open = OpenFile::of(file.ok()?).ok();
            open.filter(|open| open.key == key)
        };
        let Some(mut file) = self.open.take(key).or_else(open) else {
            return (Err("its file has changed or is gone".to_owned()), 0);
        };
        let result = file.read(|bytes| read_within(MAX_READ, Source::File(bytes), read));
        self.open.keep(file);
        result
    }
}

/// What a module is recognized by, whatever its name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Marker<'a> {
    /// It defines this symbol ([`LoadedModule::defined`]).
    Symbol(&'a str),
    /// It has a section with this name, which starts with these bytes ([`LoadedModule::section`]).
    Section(&'a str, &'a [u8]),
}

/// The modules that a process has loaded. At most four of their files, those read last, stay open.
#[derive(Debug)]
pub struct Modules {
    /// The modules that could be read, in address order.
    pub loaded: Vec<LoadedModule>,
    /// The modules that could not be read, with the reason.
    pub unreadable: Vec<(OsString, String)>,
    /// The code that was mapped when they were read: compare with [`Target::code_layout`] to find
    /// out whether modules were loaded or unloaded since.
    pub layout: CodeLayout,
    cache: FileCache,
}

impl Modules {
    /// Reads the modules that a process has loaded, and the uncached facts of each file.
    ///
    /// # Errors
    /// If the mappings cannot be read, or the target's deadline has passed.
    #[doc(alias = "dl_iterate_phdr")]
    pub fn read(target: &dyn Target, cache: &FileCache) -> Result<Self, Error> {
        Self::read_named(target, cache, &|_| true)
    }

    /// [`Self::read`] for the modules for whose mappings' names, as the kernel wrote them, `wanted`
    /// returns true. The files of other modules are not opened.
    pub fn read_named(
        target: &dyn Target,
        cache: &FileCache,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Self, Error> {
        Self::read_wanted(target, cache, &|name, _| wanted(name))
    }

    /// [`Self::read_named`] for the C library: itself, its library of threads before glibc 2.34,
    /// and its dynamic linker. A static program has none.
    pub fn read_c_library(target: &dyn Target, cache: &FileCache) -> Result<Self, Error> {
        Self::read_named(target, cache, &libc::is_c_library)
    }

    /// [`Self::read_named`], and other modules that have one of `markers` and at least the size given
    /// with it, in bytes. Unreadable ones of these are not listed.
    pub fn read_named_or_marked(
        target: &dyn Target,
        cache: &FileCache,
        named: &dyn Fn(&[u8]) -> bool,
        markers: &[(Marker<'_>, u64)],
    ) -> Result<Self, Error> {
        let is_large = |size: u64| markers.iter().any(|(_, min_size)| size >= *min_size);
        let wanted = |name: &[u8], size: u64| named(name) || is_large(size);
        let mut modules = Self::read_wanted(target, cache, &wanted)?;
        modules.loaded.retain(|module| {
            let is_marked = |(marker, _): &(Marker<'_>, u64)| module.has(target, *marker);
            named(module.name.as_bytes()) || markers.iter().any(is_marked)
        });
        let unreadable = &mut modules.unreadable;
        unreadable.retain(|(name, _)| named(name.as_bytes()));
        Ok(modules)
    }

    fn read_wanted(
        target: &dyn Target,
        cache: &FileCache,
        wanted: &dyn Fn(&[u8], u64) -> bool,
    ) -> Result<Self, Error> {
        let mut loaded = Vec::new();
        let open = Arc::new(OpenFiles::default());
        let read = |facts: &FileFacts, source: Source<'_>| {
            let known = facts.get(FILE).map(|fact| (fact, 0));
            known.unwrap_or_else(|| facts.compute(FILE, source, ModuleFile::of))
        };
        let keep = |module: Place, file| loaded.push(module.at(file, open.clone()));
        let (unreadable, layout) = visit(MAX_COST, target, cache, &open, wanted, read, keep)?;
        Ok(Modules {
            loaded,
            unreadable,
            layout,
            cache: cache.clone(),
        })
    }

    /// The cache with which they were read.
    pub fn cache(&self) -> &FileCache {
        &self.cache
    }

    /// The C library of the process, if one of its modules is a supported one.
    pub fn c_library(&self) -> Option<CLibrary> {
        libc::FileFacts::c_library(self.loaded.iter().map(|module| &module.file.libc))
    }

    /// glibc's description of its own structures, if a module has it. Read once per file.
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

    /// Locates the threads' values of `pthread_setspecific`, if the C library describes them.
    pub fn pthread_keys(&self, target: &dyn Target) -> Result<Option<PthreadKeys>, Error> {
        let machine = target.machine();
        if self.c_library() == Some(CLibrary::Musl) {
            return Ok(PthreadKeys::of_musl(machine));
        }
        let table = self.thread_db(target)?;
        Ok(table.and_then(|table| {
            let (_, keys) = self.address_of(target, "__pthread_keys")?;
            PthreadKeys::of_glibc(&table, machine, keys)
        }))
    }

    /// The offset of `pthread_self`'s result from a thread pointer, in bytes, if known.
    pub fn pthread_self(&self, target: &dyn Target) -> Result<Option<i64>, Error> {
        let machine = target.machine();
        if self.c_library() == Some(CLibrary::Musl) {
            return Ok(musl::pthread_self(machine));
        }
        let table = self.thread_db(target)?;
        Ok(table.and_then(|table| glibc::pthread_self(&table, machine)))
    }

    /// Locates the process's lists of threads.
    pub fn thread_lists(&self, machine: Machine) -> ThreadLists {
        ThreadLists::of(self.loaded.iter().map(|it| (it.bias, &*it.file)), machine)
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
pub(crate) const FILE: &str = "";

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::ops::ControlFlow;
    use std::time::Instant;

    use super::*;
    use crate::mappings::{Mapping, Walk};
    use crate::memory::MemoryError;
    use crate::{Machine, Memory, Process};

    #[cfg(target_env = "gnu")]
    #[test]
    fn modules_of_any_name_are_found_by_a_symbol_if_they_are_large() {
        let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let memory = process.memory().unwrap();
        let target = crate::LiveProcess::new(&process, &memory);
        let cache = FileCache::new();
        let read = |symbol, min_size| {
            let markers = [(Marker::Symbol(symbol), min_size)];
            Modules::read_named_or_marked(&target, &cache, &|_| false, &markers).unwrap()
        };
        // No file is opened.
        assert!(read("malloc", u64::MAX).loaded.is_empty());
        assert!(cache.is_empty());
        assert!(read("no_such_symbol", 1 << 20).loaded.is_empty());
        assert!(!cache.is_empty());
        let found = read("malloc", 1 << 20).loaded;
        let is_c_library = |module: &LoadedModule| module.file.libc.library.is_some();
        assert!(found.iter().any(is_c_library), "{found:?}");
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn a_file_is_opened_once_for_several_facts() {
        use std::cell::Cell;

        struct Counted<'p>(crate::LiveProcess<'p>, Cell<usize>);
        impl Memory for Counted<'_> {
            fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
                self.0.read(address, buffer)
            }
        }
        impl Target for Counted<'_> {
            fn mappings(
                &self,
                visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
            ) -> Result<Walk, Error> {
                self.0.mappings(visit)
            }
            fn mapped_file(
                &self,
                range: (u64, u64),
                name: &[u8],
                device: Device,
                inode: u64,
            ) -> Result<File, Option<String>> {
                self.1.set(self.1.get() + 1);
                self.0.mapped_file(range, name, device, inode)
            }
            fn machine(&self) -> Machine {
                Machine::own()
            }
            fn name(&self) -> OsString {
                self.0.name()
            }
        }
        let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let memory = process.memory().unwrap();
        let target = Counted(crate::LiveProcess::new(&process, &memory), Cell::default());
        let modules = Modules::read_c_library(&target, &FileCache::new()).unwrap();
        // Itself, and its dynamic linker.
        let files = modules.loaded.len();
        assert!((2..=3).contains(&files), "{modules:?}");
        assert!(modules.thread_lists(Machine::own()).is_known());
        assert_eq!(target.1.get(), files);
        assert!(modules.address_of(&target, "malloc").is_some());
        assert!(modules.address_of(&target, "free").is_some());
        assert!(modules.thread_db(&target).unwrap().is_some());
        assert_eq!(target.1.get(), files);
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
        assert!(matches!(found, Err(Error::Deadline { name, .. }) if name == "late"));
    }
}
