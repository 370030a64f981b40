//! Finds CPython among the modules of a process: its version and its variables.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use otelctx_reader::remote::libc::is_c_library;
use otelctx_reader::remote::tls::{self, Place};
use otelctx_reader::remote::{FileCache, LoadedModule, Machine, Modules, Target};
use otelctx_reader::runtime::RuntimeError;

use crate::code::Codes;
use crate::getter::{Getter, Returned};
use crate::layout::{Layout, UsedOffsets};
use crate::process::PythonProcess;
use crate::step;
use crate::symbols::{FUNCTION, Symbols};
use crate::threads::{OwnState, Variables};
use crate::version::Version;

/// `Py_tss_t._key`.
const TSS_KEY: u64 = 4;

/// Maximum number of independent interpreters that libraries of a process contain.
const MAX_PROCESSES: usize = 8;

/// Returns whether a file of this name is part of PyPy: `pypy3.11`, `libpypy3.11-c.so`.
pub(crate) fn is_pypy(file_name: &[u8]) -> bool {
    file_name.starts_with(b"pypy") || file_name.starts_with(b"libpypy")
}

/// Finds CPython. `memory` counts that of the functions of all processes.
///
/// # Errors
/// If it is there, and cannot be read.
pub(crate) fn find(
    target: &dyn Target,
    modules: &Modules,
    memory: &Arc<AtomicUsize>,
) -> Result<Option<PythonProcess>, RuntimeError> {
    let found = modules.loaded.iter();
    let found = found.filter_map(|module| Symbols::of(target, module));
    let mut found: Vec<_> = found.collect();
    // Of an executable and its library, one defines the interpreter. The other may have copies of its
    // variables.
    found.sort_by_key(|module| module.code(FUNCTION).is_none());
    // Extension modules may have loaded a library with its own interpreter, which the program does not
    // use.
    let mut first = None;
    let mut used: Vec<(u64, PythonProcess)> = Vec::new();
    for module in found {
        // The module has only copies of variables.
        if !used.is_empty() && module.code(FUNCTION).is_none() {
            continue;
        }
        let process = module.process(modules.cache(), memory);
        let interpreters = process.as_ref().ok().and_then(|process| {
            let interpreters = target.read_u64(process.variables.interpreters);
            interpreters.ok().filter(|first| *first != 0)
        });
        match (process, interpreters) {
            (Ok(process), Some(interpreters)) => {
                if used.iter().all(|(known, _)| *known != interpreters) {
                    used.push((interpreters, process));
                    if used.len() == MAX_PROCESSES {
                        break;
                    }
                }
            }
            (process, _) => drop(first.get_or_insert(process)),
        }
    }
    let mut used = used.into_iter().map(|(_, process)| process);
    match used.next() {
        Some(mut process) => {
            process.others = used.collect();
            Ok(Some(process))
        }
        None if first.is_none() && modules.loaded.iter().any(has_pypy) => {
            Err(RuntimeError::new("this is PyPy; only CPython is supported"))
        }
        None => first.transpose(),
    }
}

fn has_pypy(module: &LoadedModule) -> bool {
    let file_name = Path::new(&module.name).file_name();
    file_name.is_some_and(|name| is_pypy(name.as_bytes()))
}

/// See [`Python::at`](crate::Python::at).
pub(crate) fn at(
    target: &dyn Target,
    [major, minor, micro]: [u8; 3],
    runtime: u64,
) -> Result<PythonProcess, RuntimeError> {
    let version = Version::new(major, minor, micro);
    let layout = Layout::of(target, version, Some(runtime))?;
    let at = |offset: u64| runtime.wrapping_add(offset);
    let offsets = layout.runtime;
    let variables = Variables {
        interpreters: offsets.map_or(runtime, |offsets| at(offsets.interpreters)),
        current: offsets.and_then(|offsets| offsets.current.map(at)),
        thread_current: None,
        thread_id: 0,
        own: None,
    };
    Ok(PythonProcess::new(version, layout, variables))
}

impl Symbols<'_> {
    fn process(
        &self,
        files: &FileCache,
        memory: &Arc<AtomicUsize>,
    ) -> Result<PythonProcess, RuntimeError> {
        if let Machine::Other(_) = self.target.machine() {
            let reason = "it is supported on x86-64 and aarch64 only";
            return Err(RuntimeError::new(reason));
        }
        let version = self.version()?;
        let layout = Layout::of(self.target, version, self.runtime)?;
        let variables = match (layout.runtime, self.runtime) {
            (Some(offsets), Some(runtime)) => {
                let (machine, used) = (self.target.machine(), self.used_offsets(runtime));
                let offsets = layout.checked(version, machine, offsets, used)?;
                let at = |offset: u64| runtime.wrapping_add(offset);
                Variables {
                    interpreters: at(offsets.interpreters),
                    current: offsets.current.map(at),
                    thread_current: self.thread_current(version, files),
                    thread_id: self.thread_id(files)?,
                    own: self.own_state(version, files, offsets.tss_key.map(at)),
                }
            }
            _ if self.target.machine() != Machine::X86_64 => {
                let reason = format!("version {version} is supported on x86-64 only");
                return Err(RuntimeError::new(reason));
            }
            _ => Variables {
                interpreters: self.interpreters()?,
                current: self.address("_PyThreadState_Current"),
                thread_current: None,
                thread_id: self.thread_id(files)?,
                own: match version.series() {
                    // It keeps its keys in a list of its own.
                    (2, _) => None,
                    _ => self.own_state(version, files, None),
                },
            },
        };
        let code_type = self.address("PyCode_Type");
        Ok(PythonProcess {
            step: code_type.and_then(|code_type| step::kernel_step(&layout, &variables, code_type)),
            module: self.module.name.clone(),
            files: files.clone(),
            codes: Mutex::new(Codes::new(memory.clone())),
            ..PythonProcess::new(version, layout, variables)
        })
    }

    /// The address of the variable that a function returns.
    fn returned_from(&self, name: &str) -> Option<u64> {
        match self.getter(name)?.result? {
            Returned::Value(value) => value.read_from,
            Returned::ThreadLocal(_) | Returned::AtCalled(_) => None,
        }
    }

    /// Before 3.7, the address of the pointer to the first interpreter.
    fn interpreters(&self) -> Result<u64, RuntimeError> {
        let head = self.returned_from("PyInterpreterState_Head");
        let head = head.or_else(|| self.module.address_of(self.target, "interp_head").ok()?);
        head.ok_or_else(|| RuntimeError::new("its list of interpreters was not found"))
    }

    /// Offsets in `_PyRuntime`, which is at `runtime`, that functions use.
    fn used_offsets(&self, runtime: u64) -> UsedOffsets {
        let current = self.returned_from("_PyThreadState_UncheckedGet");
        let key = self.getter("PyGILState_GetThisThreadState");
        let key = key.and_then(|getter| used_key(&getter));
        let offset = |address: u64| address.wrapping_sub(runtime);
        UsedOffsets {
            current: current.map(offset),
            tss_key: key.map(|key| offset(key).wrapping_sub(TSS_KEY)),
        }
    }

    /// Locates the thread states that threads store. `known` is the address of the `Py_tss_t` by the
    /// layout, which may differ between versions with the same minor number.
    fn own_state(
        &self,
        version: Version,
        files: &FileCache,
        known: Option<u64>,
    ) -> Option<OwnState> {
        let getter = self
            .getter("PyGILState_GetThisThreadState")
            .unwrap_or_default();
        // A thread-local variable replaced the key.
        if version.series() >= (3, 15) {
            let offset = self.thread_local(files, "_Py_tss_gilstate", &getter)?;
            return Some(OwnState::ThreadLocal(offset));
        }
        let address = used_key(&getter).or_else(|| Some(known?.wrapping_add(TSS_KEY)))?;
        let libraries = self.c_library(files).ok()?;
        let keys = libraries.pthread_keys(self.target).ok()??;
        Some(OwnState::Key { address, keys })
    }

    /// See [`Variables::thread_current`].
    fn thread_current(&self, version: Version, files: &FileCache) -> Option<i64> {
        if version.series() < (3, 12) {
            return None;
        }
        let names = ["PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet"];
        let getter = names.into_iter().find_map(|name| self.getter(name));
        self.thread_local(files, "_Py_tss_tstate", &getter.unwrap_or_default())
    }

    /// The offset from the thread pointer of a thread-local variable that a function returns.
    fn thread_local(&self, files: &FileCache, name: &str, getter: &Getter) -> Option<i64> {
        if let Some(Returned::ThreadLocal(offset)) = getter.result {
            return Some(offset);
        }
        // In a shared library, the function calls the dynamic linker with a slot. The variable's symbol
        // may be missing, and resolving it reads the files of all modules.
        let slot = getter.argument.and_then(|slot| {
            let modules = self.c_library(files).ok()?;
            let offset = tls::resolve_slot(self.target, &modules, slot.number).ok()??;
            Some(match getter.result {
                Some(Returned::AtCalled(displacement)) => offset.wrapping_add(displacement),
                _ => offset,
            })
        });
        slot.or_else(|| {
            let resolution = tls::resolve(self.target, files, name).ok()?;
            let mut variables = resolution.variables.iter();
            let own = variables.find(|variable| variable.module == self.module.name);
            match own?.place() {
                Place::Static(offset) => Some(offset),
                Place::Dynamic { .. } => None,
            }
        })
    }

    /// The modules of the C library: the interpreter's own module may contain it.
    fn c_library(&self, files: &FileCache) -> Result<Modules, otelctx_reader::remote::Error> {
        let own = self.module.name.as_bytes();
        let is_it = |name: &[u8]| name == own || is_c_library(name);
        Modules::read_named(self.target, files, &is_it)
    }

    /// See [`Variables::thread_id`].
    fn thread_id(&self, files: &FileCache) -> Result<i64, RuntimeError> {
        // Every C library of x86-64 uses the thread pointer.
        if self.target.machine() == Machine::X86_64 {
            return Ok(0);
        }
        let libraries = self.c_library(files)?;
        let thread_id = libraries.pthread_self(self.target)?;
        thread_id.ok_or_else(|| RuntimeError::new("its C library is unknown"))
    }
}

/// The address of the key that `PyGILState_GetThisThreadState` uses.
fn used_key(getter: &Getter) -> Option<u64> {
    let argument = getter.argument?;
    // The argument is the key, or a `Py_tss_t`.
    let tss = || argument.number.wrapping_add(TSS_KEY);
    Some(argument.read_from.unwrap_or_else(tss))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::ffi::{OsStr, OsString};
    use std::fs::File;
    use std::ops::ControlFlow;

    use otelctx_fixtures::Target as Program;
    use otelctx_fixtures::python::{Interpreter, Linkage};
    use otelctx_reader::remote::mappings::Walk;
    use otelctx_reader::remote::{Device, LiveProcess, Mapping, Memory, MemoryError};

    use super::*;
    use crate::test_process;

    /// So that other versions with the same minor number are compared with these.
    #[test]
    fn functions_use_the_offsets_of_the_table() {
        for series in ["3.7", "3.8", "3.9", "3.10", "3.11", "3.12"] {
            for interpreter in Interpreter::with_version(series) {
                let program = Program::spawn(interpreter.command("crowd.py").arg("2"));
                let target = test_process::open(program.pid());
                let modules = Modules::read(&target, &FileCache::default()).unwrap();
                let module = modules
                    .loaded
                    .iter()
                    .find_map(|module| Symbols::of(&target, module))
                    .unwrap();
                let version = module.version().unwrap();
                let layout = Layout::of(&target, version, module.runtime).unwrap();
                let mut used = module.used_offsets(module.runtime.unwrap());
                let offsets = layout.runtime.unwrap();
                let offsets = layout.checked(version, target.machine(), offsets, used);
                let offsets = offsets.unwrap();
                let expected = UsedOffsets {
                    current: offsets.current,
                    tss_key: offsets.tss_key,
                };
                // 3.12 keeps it elsewhere.
                used.current = used.current.filter(|_| expected.current.is_some());
                assert_eq!(used, expected, "{interpreter:?}");
            }
        }
    }

    /// `interpreted.py` has a thread that holds the GIL, and some that have released it.
    #[test]
    fn threads_store_the_state_that_holds_the_gil() {
        const LINKAGES: [Linkage; 4] = [
            Linkage::Exported,
            Linkage::Stripped,
            Linkage::Library,
            Linkage::StrippedLibrary,
        ];
        for series in ["3.12", "3.13", "3.14", "3.15"] {
            for interpreter in Interpreter::with_version(series) {
                let program = "interpreted.py";
                check_current(&interpreter.to_string(), &interpreter.start(program));
                for linkage in LINKAGES {
                    if let Some(mut command) = interpreter.embedded(linkage, program) {
                        let name = format!("{interpreter} {linkage:?}");
                        check_current(&name, &Program::spawn(&mut command));
                    }
                }
            }
        }
    }

    /// A process, and the names of its mappings whose files were opened.
    struct Opened<'p>(LiveProcess<'p>, RefCell<BTreeSet<OsString>>);

    impl Memory for Opened<'_> {
        fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
            self.0.read(address, buffer)
        }
    }

    impl Target for Opened<'_> {
        fn mappings(
            &self,
            visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
        ) -> Result<Walk, otelctx_reader::remote::Error> {
            self.0.mappings(visit)
        }

        fn mapped_file(
            &self,
            range: (u64, u64),
            name: &[u8],
            device: Device,
            inode: u64,
        ) -> Result<File, Option<String>> {
            self.1
                .borrow_mut()
                .insert(OsStr::from_bytes(name).to_owned());
            self.0.mapped_file(range, name, device, inode)
        }

        fn machine(&self) -> Machine {
            self.0.machine()
        }

        fn name(&self) -> OsString {
            self.0.name()
        }
    }

    /// Opens no file of another module.
    fn find_python(name: &str, target: LiveProcess<'_>) -> PythonProcess {
        let files = FileCache::default();
        let file = |path: &OsStr| {
            path.to_string_lossy()
                .rsplit('/')
                .next()
                .unwrap()
                .to_owned()
        };
        let mut modules = Modules::read(&target, &files).unwrap();
        // As for a runtime that filters modules by their file names.
        let is_python = |path: &OsStr| {
            let names = ["python", "libpython", "embedded_python"];
            names.iter().any(|it| file(path).starts_with(it))
        };
        modules.loaded.retain(|module| is_python(&module.name));
        let opened = Opened(target, RefCell::default());
        let found = find(&opened, &modules, &Arc::default());
        let mut others = opened.1.take();
        let is_of_libc = |path: &OsStr| ["libc", "ld-"].iter().any(|it| file(path).starts_with(it));
        others.retain(|path| !is_python(path) && !is_of_libc(path));
        assert_eq!(others, BTreeSet::new(), "{name}");
        found.unwrap().unwrap()
    }

    fn check_current(name: &str, program: &Program) {
        let found = find_python(name, test_process::open(program.pid()));
        let target = test_process::open(program.pid());
        let offset = found.variables.thread_current.expect(name);
        let states = program.lines.iter().filter_map(|line| {
            let address = line.strip_prefix("state ")?.split(' ').nth(1)?;
            u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()
        });
        let states: Vec<u64> = states.collect();
        assert!(states.len() > 2, "{name}: {:?}", program.lines);
        for (index, state) in states.into_iter().enumerate() {
            let thread = target.read_u64(state + found.layout.thread.id).unwrap();
            let pointer = thread.wrapping_add_signed(-found.variables.thread_id);
            let stored = target
                .read_u64(pointer.wrapping_add_signed(offset))
                .unwrap();
            let expected = if index == 0 { state } else { 0 };
            assert_eq!(stored, expected, "{name}, thread {index}");
        }
    }
}
