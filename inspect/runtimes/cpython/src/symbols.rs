//! The symbols of CPython in a module: its version, and its code that is recognized in native stacks.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use otelctx_reader::remote::{FileCache, LoadedModule, Modules, Target};
use otelctx_reader::runtime::RuntimeError;

use crate::callers;
use crate::getter::Getter;
use crate::interpreter::{self, Loop};
use crate::version::Version;

/// Number of bytes that are read of a text that may be a version.
const MAX_VERSION: usize = 8;
/// A function of every version.
pub(crate) const FUNCTION: &str = "Py_GetVersion";

/// Code of the interpreter that is recognized in native stacks.
#[derive(Debug, Default)]
pub(crate) struct NativeCode {
    /// The evaluation loop.
    pub(crate) interpreter: Vec<Range<u64>>,
    /// The functions for single instructions that it calls, in the builds that have some.
    pub(crate) instructions: Arc<[Range<u64>]>,
    /// The return addresses of the calls to it, in the versions that have a JIT.
    pub(crate) callers: Arc<[u64]>,
    /// The code that takes the GIL.
    pub(crate) gil: Arc<[Range<u64>]>,
}

/// Finds the code of the interpreter that the module with this name defines.
pub(crate) fn native_code(
    target: &dyn Target,
    files: &FileCache,
    name: &OsStr,
    version: Version,
) -> Option<NativeCode> {
    let is_it = |other: &[u8]| other == name.as_bytes();
    let modules = Modules::read_named(target, files, &is_it).ok()?;
    let mut modules = modules.loaded.iter();
    let symbols = modules.find_map(|module| Symbols::of(target, module))?;
    let Loop {
        parts: interpreter,
        instructions,
    } = symbols.interpreter(version);
    let entry = interpreter.first().filter(|_| version.series() >= (3, 13));
    let callers = entry.map(|entry| callers::callers(target, symbols.module, entry));
    Some(NativeCode {
        interpreter,
        instructions: instructions.into(),
        callers: callers.unwrap_or_default(),
        gil: interpreter::gil_code(target, symbols.module),
    })
}

/// The module that defines the interpreter.
pub(crate) struct Symbols<'s> {
    pub(crate) target: &'s dyn Target,
    pub(crate) module: &'s LoadedModule,
    /// Address of `_PyRuntime`, which exists from 3.7 on.
    pub(crate) runtime: Option<u64>,
    /// True if the module exports the interpreter's functions.
    is_exported: bool,
}

impl<'s> Symbols<'s> {
    pub(crate) fn of(target: &'s dyn Target, module: &'s LoadedModule) -> Option<Self> {
        let mut symbols = Self {
            target,
            module,
            runtime: None,
            is_exported: matches!(module.exported(target, FUNCTION), Ok(Some(_))),
        };
        symbols.runtime = symbols.address("_PyRuntime");
        let is_old = || symbols.address("_PyThreadState_Current").is_some();
        (symbols.runtime.is_some() || is_old()).then_some(symbols)
    }

    /// Returns the address of a variable or function.
    pub(crate) fn address(&self, name: &str) -> Option<u64> {
        self.code(name).map(|code| code.start)
    }

    pub(crate) fn code(&self, name: &str) -> Option<Range<u64>> {
        // In a program that exports its symbols, `.symtab` has no other needed ones, and its search
        // takes long.
        let symbol = if self.is_exported {
            self.module.exported(self.target, name).ok()??
        } else {
            self.module.defined(self.target, name).ok()??
        };
        Some(interpreter::range(self.module, symbol))
    }

    pub(crate) fn getter(&self, name: &str) -> Option<Getter> {
        let code = self.code(name)?;
        Getter::read(self.target, code.start, code.end - code.start).ok()
    }

    pub(crate) fn version(&self) -> Result<Version, RuntimeError> {
        if let Some(version) = self.address("Py_Version") {
            let hex = self.target.read_u64(version)?;
            return Version::of_hex(hex).ok_or_else(|| {
                RuntimeError::new(format!("its version, {hex:#x}, is not one of CPython's"))
            });
        }
        // Before 3.11, only this function uses it.
        let getter = self.getter(FUNCTION).unwrap_or_default();
        let parse = |address: &u64| {
            let mut text = [0; MAX_VERSION];
            self.target.read(*address, &mut text).ok()?;
            Version::parse(&text)
        };
        let version = getter.constants.iter().find_map(parse);
        version.ok_or_else(|| RuntimeError::new("its version is unknown"))
    }

    /// The code of the evaluation loop.
    fn interpreter(&self, version: Version) -> Loop {
        let name = match version.series() {
            (2, _) => "PyEval_EvalFrameEx",
            _ => "_PyEval_EvalFrameDefault",
        };
        let Some(code) = self.code(name) else {
            return Loop::default();
        };
        let has_table = version.series() >= (3, 14);
        Loop::find(self.target, self.module, name, &code, has_table)
    }
}
