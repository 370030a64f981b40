//! Unwinds stacks of programs without frame pointers, from another process.
//!
//! This crate
//! - turns the unwind tables of an ELF file (`.eh_frame`, `.debug_frame`, linkage stubs, signal
//!   frames) into [`Rows`] of four bytes, once a file, for any number of processes ([`FileRows`]);
//! - finds the rows of each executable mapping of a process ([`CodeMap`]);
//! - walks from a thread's [`Registers`] to its first function ([`walk`]), over any
//!   [`Memory`](otelctx_remote::Memory), and reports why the stack ended ([`StackEnd`]);
//! - leaves frames in code that a runtime has generated to that runtime's walker
//!   ([`walk_generated`], [`GeneratedCode`](otelctx_remote::GeneratedCode)).
//!
//! It does not stop the thread or ensure that it sleeps, and does not find names. Of a caller's
//! registers, only the stack and frame pointer are found (and rbx, where assembly needs it).
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use otelctx_remote::{FileCache, LiveProcess, Process, Stopped};
//! use otelctx_unwind::{CodeMap, Dictionary, MAX_FRAMES, MakeRules, Registers, walk};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let process = Process::open(4711)?;
//! let memory = process.memory()?;
//! let target = LiveProcess::new(&process, &memory);
//! let rules = Arc::new(Dictionary::new());
//! let code = CodeMap::read(&target, &FileCache::new(), &rules, MakeRules::OnDemand)?;
//!
//! let stopped = Stopped::stop(&process, 4711, Duration::from_secs(1))?;
//! let registers = Registers::of_stopped(stopped.registers()).ok_or("not on this machine")?;
//! let mut frames = Vec::new();
//! let end = walk(&registers, &code, &memory, MAX_FRAMES, &mut frames);
//! for frame in &frames {
//!     println!("{:#x}", frame.address);
//! }
//! println!("{end}");
//! # Ok(())
//! # }
//! ```

mod arch;
mod cfi;
mod code;
mod compressed;
mod converter;
mod error;
mod expression;
mod file;
mod functions;
mod instruction_set;
mod instructions;
mod maker;
mod on_demand;
mod paths;
mod ranges;
mod records;
mod registers;
mod rows;
mod rule;
mod shards;
mod tables;
mod uncovered;
mod walk;
mod writer;

pub use code::{CodeMap, CodeMapping, FileRules, MAX_MAPPINGS, MakeRules};
pub use error::Error;
pub use file::{CodeSegments, FileRows, UnwindTables};
pub use ranges::FreeRanges;
pub use registers::Registers;
pub use rows::{PAGE_SIZE, Rows};
pub use rule::{Cfa, Dictionary, FrameRule, GAP, MAX_RULES, ReturnAddress, Rule, RuleIndex, Saved};
pub use shards::{FILLER, Piece, Placement, SHARD_ROWS, Shards};
pub use walk::{Frame, GeneratedRecord, MAX_FRAMES, StackEnd, walk, walk_generated};
pub use writer::Counts;
