//! A symbolizer that remembers what it has resolved, for a recording that is written again and again.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use otelctx_profile::sample::{Function, Identity, Module, ModuleFiles};
use otelctx_profile::{SymbolQuery, Symbolizer};
use otelctx_symbolize::{Symbols, loaded_modules};

/// Size of the functions that were used last and are remembered, in bytes. Up to twice as many are kept.
const MAX_SIZE: usize = 4 << 20;
/// Estimated size of an address and its list of functions, and of a function without its texts, in bytes.
const ADDRESS: usize = 64;
const FUNCTION: usize = size_of::<Function>() + 48;

/// A symbolizer that remembers functions, if it is asked to.
pub(super) struct CachedSymbols {
    symbols: Symbols,
    /// The files of the sampled code.
    files: ModuleFiles,
    known: Option<KnownFunctions>,
    /// True while nothing that takes time should be resolved.
    hurry: Arc<AtomicBool>,
}

impl CachedSymbols {
    /// Creates a symbolizer that remembers nothing.
    pub(super) fn new(symbols: Symbols) -> Self {
        Self {
            symbols,
            files: ModuleFiles::default(),
            known: None,
            hurry: Arc::default(),
        }
    }

    /// Creates one that remembers functions, and resolves only known ones while `hurry` is true.
    pub(super) fn remembering(
        symbols: Symbols,
        files: ModuleFiles,
        hurry: Arc<AtomicBool>,
    ) -> Self {
        Self {
            files,
            symbols,
            known: Some(KnownFunctions::default()),
            hurry,
        }
    }

    /// Resolves further functions with these symbols.
    pub(super) fn renew(&mut self, symbols: Symbols) {
        self.symbols = symbols;
    }

    pub(super) fn symbols(&self) -> &Symbols {
        &self.symbols
    }
}

impl Symbolizer for CachedSymbols {
    fn functions(&mut self, query: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        let Some(known) = self.known.as_mut() else {
            return self.symbols.functions(query, addresses);
        };
        let Some(file) = key(query.module, &self.files) else {
            return self.symbols.functions(query, addresses);
        };
        let file = &file[..];
        let mut found: Vec<_> = addresses.iter().map(|it| known.get(file, *it)).collect();
        let missing = addresses.iter().zip(&found);
        let missing: Vec<u64> = missing
            .filter_map(|(address, known)| known.is_none().then_some(*address))
            .collect();
        if missing.is_empty() {
            return found.into_iter().flatten().collect();
        }
        let resolved = if self.hurry.load(Ordering::Relaxed) {
            vec![Vec::new(); missing.len()]
        } else {
            self.symbols.functions(query, &missing)
        };
        // Without any, the file could not be decoded, perhaps only this time.
        if resolved.iter().any(|functions| !functions.is_empty()) {
            let lasting = missing.iter().zip(&resolved);
            for (address, functions) in lasting.filter(|(_, it)| !is_transient(it)) {
                known.add(file, *address, functions);
            }
        }
        let mut resolved = resolved.into_iter();
        for functions in &mut found {
            if functions.is_none() {
                *functions = resolved.next();
            }
        }
        found.into_iter().map(Option::unwrap_or_default).collect()
    }

    fn identity(&mut self, query: SymbolQuery<'_>) -> Identity {
        let both = self.known.as_mut().zip(key(query.module, &self.files));
        let Some((known, file)) = both.filter(|_| query.module.has_file()) else {
            return self.symbols.identity(query);
        };
        let file = &file[..];
        if let Some(identity) = known.identity(file) {
            return identity;
        }
        if self.hurry.load(Ordering::Relaxed) {
            return Identity::by_build_id(query.module);
        }
        let identity = self.symbols.identity(query);
        if identity.htlhash.is_some() {
            known.set_identity(file, identity.clone());
        }
        identity
    }
}

/// Returns what identifies the content of a module: the build ID of a file, or for a file without one that is kept open
/// its inode and the time of its last change; of the kernel its loaded modules. `None` for other code, which may have
/// other functions at an address later.
pub(in crate::command) fn key(module: &Module, files: &ModuleFiles) -> Option<Box<[u8]>> {
    if module.is_kernel() {
        let modules = loaded_modules().ok()?;
        return Some([b"[kernel] ", &*modules].concat().into());
    }
    match &module.build_id[..] {
        [] => files.content_key(module).map(|it| Box::from(&it[..])),
        build_id => module.has_file().then(|| build_id.into()),
    }
}

/// Returns whether functions may be known by another name later, although the key stays: an eBPF program takes the place of
/// one that was unloaded.
pub(in crate::command) fn is_transient(functions: &[Function]) -> bool {
    functions.iter().any(|it| it.name.starts_with("bpf_prog_"))
}

/// Functions by build ID and offset. Functions are removed that were not used while [`MAX_SIZE`] of others were.
#[derive(Debug, Default)]
pub(in crate::command) struct KnownFunctions {
    young: HashMap<Box<[u8]>, KnownFile>,
    old: HashMap<Box<[u8]>, KnownFile>,
    /// Size of the young ones, in bytes.
    size: usize,
}

#[derive(Debug, Default)]
struct KnownFile {
    identity: Option<Identity>,
    functions: HashMap<u64, Vec<Function>>,
}

impl KnownFunctions {
    pub(in crate::command) fn get(&mut self, file: &[u8], address: u64) -> Option<Vec<Function>> {
        let young = self.young.get(file);
        if let Some(functions) = young.and_then(|it| it.functions.get(&address)) {
            return Some(functions.clone());
        }
        let functions = self.old.get_mut(file)?.functions.remove(&address)?;
        self.add(file, address, &functions);
        Some(functions)
    }

    pub(in crate::command) fn identity(&mut self, file: &[u8]) -> Option<Identity> {
        let mut known = [&self.young, &self.old].into_iter();
        known.find_map(|files| files.get(file)?.identity.clone())
    }

    pub(in crate::command) fn set_identity(&mut self, file: &[u8], identity: Identity) {
        self.young.entry(file.into()).or_default().identity = Some(identity);
    }

    pub(in crate::command) fn add(&mut self, file: &[u8], address: u64, functions: &[Function]) {
        let texts = |it: &Function| it.name.len() + it.system_name.len() + it.file.len();
        let size = functions
            .iter()
            .map(|it| FUNCTION + texts(it))
            .sum::<usize>();
        self.size += ADDRESS + size;
        if self.size > MAX_SIZE {
            self.old = mem::take(&mut self.young);
            self.size = ADDRESS + size;
        }
        let known = self.young.entry(file.into()).or_default();
        known.functions.insert(address, functions.to_vec());
    }
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::ProcessFacts;

    use super::*;

    fn function(name: &str) -> Vec<Function> {
        vec![Function {
            name: name.to_owned(),
            ..Function::default()
        }]
    }

    #[test]
    fn what_is_used_is_remembered_and_memory_is_bounded() {
        let mut known = KnownFunctions::default();
        known.add(&[1], 7, &function("used"));
        let long = "x".repeat(1000);
        for address in 0..100_000 {
            known.add(&[2], address, &function(&long));
            assert_eq!(known.get(&[1], 7), Some(function("used")));
            assert!(known.size <= MAX_SIZE);
        }
        let files = known.young.values().chain(known.old.values());
        let kept: usize = files.map(|it| it.functions.len()).sum();
        assert!(kept <= 2 * MAX_SIZE / 1000 + 2, "{kept}");
        assert_eq!(known.get(&[2], 99_999), Some(function(&long)));
        assert_eq!((known.get(&[2], 0), known.get(&[3], 7)), (None, None));
    }

    #[test]
    fn the_functions_of_the_kernel_are_known_while_its_modules_stay() {
        let key = key(&Module::kernel(), &ModuleFiles::default()).unwrap();
        assert!(key.starts_with(b"[kernel] "), "{key:?}");
        let of = |name| is_transient(&function(name));
        assert!(of("bpf_prog_6deef7357e7b4530_sample") && !of("do_syscall_64"));
    }

    /// The second time, nothing is decoded: the file of the query is not there.
    #[test]
    fn a_file_with_a_build_id_is_resolved_once() {
        let mut symbols =
            CachedSymbols::remembering(Symbols::new(), ModuleFiles::default(), Arc::default());
        let module = Module {
            path: "/usr/bin/absent".into(),
            build_id: vec![1, 2, 3],
            ..Module::default()
        };
        let process = ProcessFacts::default();
        let query = SymbolQuery::new(&module, &process);
        let none = || vec![Vec::new(), Vec::new()];
        assert_eq!(symbols.functions(query, &[1, 2]), none());
        // It may be there the next time.
        let known = symbols.known.as_mut().unwrap();
        assert_eq!(known.get(&module.build_id, 1), None);
        known.add(&module.build_id, 2, &function("checkout"));
        symbols.hurry.store(true, Ordering::Relaxed);
        let expected = [function("checkout"), Vec::new()];
        assert_eq!(symbols.functions(query, &[2, 3]), expected);
        let without_id = Module {
            build_id: Vec::new(),
            inode: 7,
            ..module.clone()
        };
        let files = ModuleFiles::default();
        assert_eq!(key(&without_id, &files), None);
        files.keep(&without_id, std::fs::File::open("/proc/self/exe").unwrap());
        assert_eq!(key(&without_id, &files).map(|it| it.len()), Some(40));
    }
}
