//! Names of functions: from the symbols and the DWARF of files, from separate debug files
//! (`/usr/lib/debug`, by build id and by debug link), and from the kernel.
//!
//! What is a target's is not trusted: its files are never mapped, because it could cut them short
//! meanwhile, but copied first; and no path that stands in them is followed, but looked for below
//! `/usr/lib/debug` alone.
//!
//! Names are demangled (Rust, C++), and functions that were inlined at an address are told one by
//! one. The decoding itself is `blazesym`'s.

mod copy;
mod debug_file;
mod identity;

use std::path::PathBuf;

use blazesym::symbolize::source::{Elf, Kernel, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use otelctx_profile::{Asked, Function, Identity};

use copy::Copy;

/// Names functions for a profile.
///
/// Cheap to make. A module is looked at when it is asked for, and nothing of it is kept.
#[derive(Clone, Debug)]
pub struct Symbols {
    debug_directories: Vec<PathBuf>,
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            debug_directories: debug_file::DIRECTORIES.map(PathBuf::from).into(),
        }
    }
}

impl Symbols {
    /// All symbols that can be had.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Also looks for separate debug files below `directory`, before the usual ones: by build id
    /// in its `.build-id`, by debug link in the directory that mirrors the module's. What lies
    /// there is trusted, and must not change meanwhile.
    #[must_use]
    pub fn debug_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.debug_directories.insert(0, directory.into());
        self
    }

    fn in_file(&self, asked: Asked<'_>, offsets: &[u64]) -> Option<Vec<Vec<Function>>> {
        let copy = Copy::of(&identity::open(asked)?).ok()?;
        // Where a debug file has what it describes is in the module's own program headers.
        let (known, addresses): (Vec<usize>, Vec<u64>) = offsets
            .iter()
            .enumerate()
            .filter_map(|(index, offset)| Some((index, copy.address(*offset)?)))
            .unzip();
        let separate = debug_file::find(&copy, asked.module, &self.debug_directories);
        let source = Source::Elf(Elf::new(separate.unwrap_or_else(|| copy.path())));
        let named = symbolize(&source, Input::VirtOffset(&addresses))?;
        let mut functions = vec![Vec::new(); offsets.len()];
        for (index, found) in known.into_iter().zip(named) {
            functions[index] = found;
        }
        Some(functions)
    }
}

impl otelctx_profile::Symbolizer for Symbols {
    fn functions(&mut self, asked: Asked<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        let named = if asked.module.is_kernel() {
            symbolize(
                &Source::Kernel(Kernel::default()),
                Input::AbsAddr(addresses),
            )
        } else if asked.module.has_file() {
            self.in_file(asked, addresses)
        } else {
            None
        };
        named.unwrap_or_else(|| vec![Vec::new(); addresses.len()])
    }

    fn identity(&mut self, asked: Asked<'_>) -> Identity {
        identity::of(asked)
    }
}

fn symbolize(source: &Source<'_>, addresses: Input<&[u64]>) -> Option<Vec<Vec<Function>>> {
    // What one has parsed it keeps: so one for each module.
    let symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
    let found = symbolizer.symbolize(source, addresses).ok()?;
    Some(found.iter().map(functions).collect())
}

/// The innermost first.
fn functions(symbolized: &Symbolized<'_>) -> Vec<Function> {
    let Symbolized::Sym(symbol) = symbolized else {
        return Vec::new();
    };
    let Sym {
        name,
        code_info,
        inlined,
        ..
    } = symbol;
    let inlined = inlined.iter().rev();
    let mut functions: Vec<Function> = inlined
        .map(|function| named(&function.name, function.code_info.as_ref()))
        .collect();
    functions.push(named(name, code_info.as_deref()));
    functions
}

fn named(name: &str, code: Option<&CodeInfo<'_>>) -> Function {
    Function {
        name: name.to_owned(),
        system_name: String::new(),
        file: code.map_or(String::new(), |code| {
            code.to_path().to_string_lossy().into()
        }),
        line: code.and_then(|code| code.line).unwrap_or(0),
    }
}
