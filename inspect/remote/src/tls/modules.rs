//! The modules of a process, with their facts about one thread-local variable.

use std::ffi::OsString;
use std::sync::Arc;

use crate::Error;
use crate::elf::Source;
use crate::file_cache::{FileCache, FileFacts};
use crate::module::{Module, ModuleFile, Symbol};
use crate::modules::{FILE, LoadedModule, MAX_COST, OpenFiles, Place, visit};
use crate::target::{CodeLayout, Target};

/// A module, and its file's facts about one thread-local variable.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub(super) module: Arc<Module>,
    pub(super) bias: u64,
    pub(super) name: OsString,
}

impl Loaded {
    /// A module without facts about a variable.
    pub(super) fn without_symbol(loaded: &LoadedModule) -> Self {
        Self {
            module: Arc::new(Module {
                file: loaded.file.clone(),
                symbol: Symbol::Absent,
                relocations: Vec::new(),
            }),
            bias: loaded.bias,
            name: loaded.name.clone(),
        }
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        self.module.file.contains(self.bias, address)
    }
}

/// Modules, with their facts about one thread-local variable.
#[derive(Debug)]
pub(super) struct TlsModules {
    pub(super) loaded: Vec<Loaded>,
    pub(super) unreadable: Vec<(OsString, String)>,
    pub(super) layout: CodeLayout,
}

/// Reads the facts of every module of the process about the thread-local variable `name`.
pub(super) fn tls_modules(
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
            if let Some(Ok(Some(file))) = facts.get(FILE) {
                return Module::of(elf, file, name);
            }
            let file = Arc::new(ModuleFile::of(elf)?);
            facts.keep(FILE, &Ok(Some(file.clone())));
            Module::of(elf, file, name)
        })
    };
    let keep = |place: Place, module: Arc<Module>| {
        loaded.push(Loaded {
            module,
            bias: place.bias,
            name: place.name(),
        });
    };
    let open = OpenFiles::default();
    let (unreadable, layout) = visit(limit, target, cache, &open, &|_, _| true, read, keep)?;
    Ok(TlsModules {
        loaded,
        unreadable,
        layout,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LiveProcess, Process};

    #[test]
    fn modules_that_cost_too_much_are_skipped_and_counted() {
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
}
