//! Another process, observed from outside: memory, mappings, ELF modules, thread-local variables,
//! threads. This crate knows nothing of OpenTelemetry.
//!
//! It provides:
//! - one trait, [`Target`], for a running process ([`LiveProcess`]), a core file ([`CoreFile`]) and
//!   a hand-made process for tests ([`TargetImage`]);
//! - reads of memory that return everything or an error ([`Memory`]), and mappings that are
//!   streamed in bounded memory ([`mappings`]), even millions of them;
//! - a list of the loaded modules ([`Modules`]), with their symbols, sections, segments,
//!   relocations and build IDs ([`elf`]), and the addresses of symbols in the process
//!   ([`LoadedModule::address_of`]);
//! - a cache of facts about files, shared by all processes that have them mapped ([`FileCache`]),
//!   including facts of your own types ([`LoadedModule::fact`]);
//! - thread-local variables by name, in any module that defines them, and their addresses for a
//!   thread ([`tls`]);
//! - threads with their thread pointers, and reads of sleeping threads without stopping them
//!   ([`threads`]); stops of other threads, with their registers, that leave them unchanged
//!   ([`stop`]).
//!
//! It does not choose processes, and does not obtain the right to inspect them (`CAP_SYS_PTRACE`,
//! or the same user where ptrace is not restricted). It runs no code in the target, never writes to
//! its memory, and maps none of its files. It supports 64-bit processes on x86-64 and aarch64.
//!
//! Everything read from a target is untrusted: it is bounded before use, and a failed read is an
//! error that says what was read, never a zero.
//!
//! ```
//! use otelctx_remote::elf::SymbolKind;
//! use otelctx_remote::{FileCache, LiveProcess, Memory, Modules, Process};
//!
//! /// To be found from outside.
//! #[unsafe(no_mangle)]
//! static ANSWER: u64 = 42;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // This process; others are read in the same way.
//! let process = Process::open(std::process::id() as i32)?;
//! let memory = process.memory()?;
//! let target = LiveProcess::new(&process, &memory);
//!
//! let files = FileCache::new();
//! let modules = Modules::read(&target, &files)?;
//! let (module, address) = modules.address_of(&target, "ANSWER").ok_or("no such symbol")?;
//! assert_eq!(address, &raw const ANSWER as u64);
//! assert_eq!(target.read_u64(address)?, 42);
//! let symbol = module.symbol(&target, "ANSWER")?.ok_or("no such symbol")?;
//! assert_eq!((symbol.kind, symbol.size), (SymbolKind::Object, 8));
//!
//! // A custom fact, computed once per file, however many processes have it mapped.
//! struct CodeSize(u64);
//! let code = module.fact(&target, "", |elf| {
//!     let code = elf.loads().iter().filter(|segment| segment.executable);
//!     Ok(CodeSize(code.map(|segment| segment.memory_size).sum()))
//! })?;
//! assert!(code.0 > 0);
//! # Ok(())
//! # }
//! ```

pub mod a64;
mod arch;
pub mod core_file;
mod descriptors;
pub mod device;
pub mod elf;
mod error;
mod file;
mod file_cache;
pub mod generated;
pub mod inspect;
pub mod libc;
mod machine;
pub mod mappings;
pub mod memory;
pub mod module;
mod modules;
mod permission;
pub mod process;
pub mod stop;
mod target;
pub mod threads;
pub mod tls;

pub use core_file::CoreFile;
pub use device::Device;
pub use error::Error;
pub use file_cache::{Fact, FileCache};
pub use generated::{FrameRecord, FrameRegisters, GeneratedCode, GeneratedEnd, GeneratedFrame};
pub use machine::{Access, Machine, TlsSegment};
pub use mappings::{Mapping, Permissions};
pub use memory::{FileBytes, Memory, MemoryError, Omission, ProcessMemory};
pub use module::{Module, ModuleFile};
pub use modules::{LoadedModule, Marker, Modules};
pub use process::{Process, Thread};
pub use stop::Stopped;
pub use target::{
    CallRegisters, CodeLayout, LiveProcess, Target, TargetImage, ThreadInfo, Through,
};
pub use tls::{Storage, TlsVariable};
