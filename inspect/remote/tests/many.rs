//! A process with more of everything than any has: the work is bounded, and what is skipped is said.

use std::cell::Cell;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::ops::ControlFlow;

use otelctx_fixtures::Compiler;
use otelctx_remote::mappings::{self, Walk};
use otelctx_remote::module::Machine;
use otelctx_remote::tls::{Resolution, resolve};
use otelctx_remote::{Device, Error, FileCache, Mapping, Memory, MemoryError, Target};

const NAME: &str = "otel_thread_ctx_v1";

/// Shows one library in many places. Every word of its memory leads to itself.
struct Many {
    library: File,
    mappings: String,
    reads: Cell<u64>,
}

impl Many {
    /// With this many modules, whose names have this many bytes.
    fn new(library: &File, modules: u64, name: usize) -> Self {
        let name = "n".repeat(name);
        let mut mappings = String::new();
        for module in 0..modules {
            let start = 0x10_0000 * (module + 1);
            let end = start + 0x1_0000;
            // The lines of a library that gcc made: one with the headers, one with the code.
            writeln!(mappings, "{start:x}-{end:x} r--p 0 0:1 1 {name}").unwrap();
            writeln!(
                mappings,
                "{:x}-{end:x} r-xp 1000 0:1 1 {name}",
                start + 0x1000
            )
            .unwrap();
        }
        Many {
            library: library.try_clone().unwrap(),
            mappings,
            reads: Cell::new(0),
        }
    }

    fn resolve(&self) -> Resolution {
        resolve(self, &FileCache::new(), NAME).unwrap()
    }
}

impl Memory for Many {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.reads.set(self.reads.get() + 1);
        let word = address.to_le_bytes();
        buffer
            .iter_mut()
            .zip(word.iter().cycle())
            .for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

impl Target for Many {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error> {
        Ok(mappings::walk(self.mappings.as_bytes(), visit).unwrap())
    }

    fn mapped_file(
        &self,
        _: (u64, u64),
        _: &[u8],
        _: Device,
        _: u64,
    ) -> Result<File, Option<String>> {
        Ok(self.library.try_clone().unwrap())
    }

    fn machine(&self) -> Machine {
        Machine::X86_64
    }

    fn name(&self) -> OsString {
        "the process".into()
    }
}

fn library() -> Option<File> {
    let path = Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu"])?;
    Some(File::open(path).unwrap())
}

/// Each module defines the variable and refers to it: to compare all with all would take hours.
#[test]
fn definitions_and_references() {
    let Some(library) = library() else { return };
    let many = Many::new(&library, 16_000, 1);
    let resolution = many.resolve();
    let found = resolution.variables.len() + resolution.bound_elsewhere.len();
    assert!(found + resolution.unreadable.len() <= 257, "{resolution:?}");
    let said = |(name, reason): &(OsString, String)| {
        name == "the process" && reason.starts_with("15744 definitions")
    };
    assert!(resolution.unreadable.iter().any(said));
    // Two words of each slot.
    assert!(many.reads.get() <= 2 * 16_000, "{}", many.reads.get());
}

#[test]
fn modules() {
    let Some(library) = library() else { return };
    let resolution = Many::new(&library, 16_384 + 7, 1).resolve();
    let said = |(name, reason): &(OsString, String)| {
        name == "the process" && reason.starts_with("7 modules skipped")
    };
    assert!(
        resolution.unreadable.iter().any(said),
        "{:?}",
        resolution.unreadable
    );
}

/// Names of 16 KiB each would be a quarter of a gigabyte.
#[test]
fn names() {
    let Some(library) = library() else { return };
    let resolution = Many::new(&library, 600, 16 << 10).resolve();
    let said = |(name, reason): &(OsString, String)| {
        name == "the process" && reason.starts_with("88 modules skipped")
    };
    assert!(
        resolution.unreadable.iter().any(said),
        "{:?}",
        resolution.unreadable.last()
    );
}
