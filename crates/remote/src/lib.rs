//! Another process seen from outside: memory, mappings, ELF modules, thread-local variables,
//! threads. It knows nothing of OpenTelemetry.
//!
//! What it does:
//! - reads another process's memory exactly or not at all ([`memory`]);
//! - streams its mappings in bounded memory ([`mappings`]);
//! - finds a thread-local variable by name in whatever module defines it ([`module`], once a
//!   file; [`tls`], once a process) and computes its address for one thread;
//! - says what else a file tells of it, for people ([`inspect`]);
//! - reads the same out of a core file ([`core_file`]);
//! - finds each thread's thread pointer, and reads a thread that sleeps, without stopping it
//!   ([`threads`]);
//! - stops a thread, hands out its registers, and leaves it as it was ([`stop`]).
//!
//! What it does not do: it runs no code in the target, writes no byte of its memory, and maps
//! none of its files. Everything read from a target is untrusted: bounded before it is used.

mod arch;
pub mod core_file;
pub mod device;
pub mod elf;
mod error;
mod file;
mod file_cache;
pub mod inspect;
mod libc;
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
