//! Another process seen from outside: memory, mappings, ELF modules, thread-local variables,
//! threads. It knows nothing of OpenTelemetry.
//!
//! What it does for you:
//! - shows a running process ([`LiveProcess`]), a core file ([`CoreFile`]) and a process made by hand
//!   for a test ([`TargetImage`]) through one trait, [`Target`]; what you write for one works for all;
//! - reads memory exactly or not at all ([`Memory`]), and streams mappings in bounded memory
//!   ([`mappings`]), millions of them;
//! - lists the modules that are loaded ([`Modules`]), with their symbols, sections, segments,
//!   relocations and build-id ([`elf`]), and gives the address of a symbol in the process
//!   ([`LoadedModule::address_of`]);
//! - keeps what was read of a file, once for every process that has it mapped ([`FileCache`]), and
//!   any type of yours beside it ([`LoadedModule::fact`]);
//! - finds a thread-local variable by name in whatever module defines it, and computes its address
//!   for one thread ([`tls`]);
//! - lists threads with their thread pointers, reads threads that sleep without stopping them
//!   ([`threads`]), and stops others, hands out their registers, and leaves them as they were
//!   ([`stop`]).
//!
//! What stays your job: choosing processes, and having the right to inspect them (`CAP_SYS_PTRACE`,
//! or the same user where ptrace is not restricted).
//!
//! What it is not for: it runs no code in the target, writes no byte of its memory, and maps none
//! of its files. It reads 64-bit little-endian Linux processes, on x86-64 and aarch64.
//!
//! Everything read from a target is untrusted: bounded before it is used, and an error that says
//! what was read, never a zero in its place.
//!
//! ```
//! use otelctx_remote::elf::SymbolKind;
//! use otelctx_remote::{FileCache, LiveProcess, Memory, Modules, Process};
//!
//! /// What is to be found from outside.
//! #[unsafe(no_mangle)]
//! static ANSWER: u64 = 42;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // This very process: reading another one is the same.
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
//! // A fact of one's own, computed once a file however many processes have it mapped.
//! struct CodeSize(u64);
//! let code = module.fact(&target, "", |elf| {
//!     let code = elf.loads().iter().filter(|segment| segment.executable);
//!     Ok(CodeSize(code.map(|segment| segment.memory_size).sum()))
//! })?;
//! assert!(code.0 > 0);
//! # Ok(())
//! # }
//! ```

mod arch;
pub mod core_file;
pub mod device;
pub mod elf;
mod error;
mod file;
mod file_cache;
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
pub use machine::{Access, Machine, TlsSegment};
pub use mappings::{Mapping, Permissions};
pub use memory::{Memory, MemoryError, Omission, ProcessMemory};
pub use module::{Module, ModuleFile};
pub use modules::{LoadedModule, Modules};
pub use process::{Process, Thread};
pub use stop::Stopped;
pub use target::{CallRegisters, CodeLayout, LiveProcess, Target, TargetImage, ThreadInfo};
pub use tls::{Storage, TlsVariable};
